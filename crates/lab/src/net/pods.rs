//! Pods on a bridge, partitions between them, and their death.
//!
//! The *n*-th pod (from 1) has the addresses 10.11.x.y and fd00:11::n, and a hardware address that says n too, so that a host
//! that comes back is found where it was. Neighbours find each other as on any network. In a partition each side believes
//! that the other has a hardware address that nobody has: what it sends is lost, in silence and at once, on connections
//! that stand as on new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::{Namespace, NetError, ip};

/// The end of the first addresses is that of the network itself.
const MOST: u16 = 60_000;
/// A locally administered address that no pod has.
const NOBODY: &str = "02:00:00:00:ff:ff";
/// How long the kernel may take until a new interface works.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Which addresses the pods of a network have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 alone; IPv6 is switched off, on loopback too.
    V4,
    /// IPv6 alone; 127.0.0.1 is there all the same, the kernel knows no other way.
    V6,
    /// Both.
    Dual,
}

impl Family {
    fn has_v4(self) -> bool {
        self != Self::V6
    }

    fn has_v6(self) -> bool {
        self != Self::V4
    }
}

/// One host of a network.
#[derive(Debug)]
pub struct Pod {
    number: u16,
    family: Family,
    namespace: Namespace,
    alive: bool,
}

impl Pod {
    /// Its namespace; another one after it died and came back.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its address, the IPv4 one if it has both.
    pub fn address(&self) -> IpAddr {
        self.v4().map(IpAddr::V4).or(self.v6().map(IpAddr::V6)).expect("a family has one of them")
    }

    /// All its addresses, IPv4 first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.v4().map(IpAddr::V4).into_iter().chain(self.v6().map(IpAddr::V6)).collect()
    }

    /// Its IPv4 address, unless the network has none.
    pub fn v4(&self) -> Option<Ipv4Addr> {
        let [high, low] = self.number.to_be_bytes();
        self.family.has_v4().then(|| Ipv4Addr::new(10, 11, high, low))
    }

    /// Its IPv6 address, unless the network has none.
    pub fn v6(&self) -> Option<Ipv6Addr> {
        self.family.has_v6().then(|| Ipv6Addr::new(0xfd00, 0x11, 0, 0, 0, 0, 0, self.number))
    }

    /// Whether its host runs.
    pub fn is_alive(&self) -> bool {
        self.alive
    }

    fn hardware(&self) -> String {
        let [high, low] = self.number.to_be_bytes();
        format!("02:00:00:00:{high:02x}:{low:02x}")
    }

    /// The interface at the switch.
    fn port(&self) -> String {
        format!("pod{}", self.number)
    }
}

/// A bridge with pods on it. Dropping it takes the pods' network away from processes that still run in them.
#[derive(Debug)]
pub struct PodNetwork {
    family: Family,
    switch: Namespace,
    pods: BTreeMap<String, Pod>,
    /// Pairs of names, the lesser first.
    partitions: BTreeSet<(String, String)>,
}

impl PodNetwork {
    /// A network without pods.
    ///
    /// # Errors
    /// Says what is missing: root, a program.
    pub fn new(family: Family) -> Result<Self, NetError> {
        let switch = Namespace::new()?;
        // There is no other bridge to agree with, and what is sent to many goes to all.
        ip::ip(
            &switch,
            "link add switch type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set switch up\n",
        )?;
        Ok(Self { family, switch, pods: BTreeMap::new(), partitions: BTreeSet::new() })
    }

    /// What addresses its pods have.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Adds a host; it is on the network when this returns.
    ///
    /// # Errors
    /// The name or every address is taken, or the system says no.
    pub fn add(&mut self, name: &str) -> Result<&Pod, NetError> {
        if self.pods.contains_key(name) {
            return Err(NetError::Twice(name.to_owned()));
        }
        let number = u16::try_from(self.pods.len()).ok().filter(|&taken| taken < MOST).map(|taken| taken + 1);
        let number = number.ok_or(NetError::Full { most: MOST })?;
        let pod = Pod { number, family: self.family, namespace: Namespace::new()?, alive: true };
        self.connect(&pod)?;
        Ok(self.pods.entry(name.to_owned()).or_insert(pod))
    }

    /// The host of this name.
    pub fn pod(&self, name: &str) -> Option<&Pod> {
        self.pods.get(name)
    }

    /// Every host by name.
    pub fn pods(&self) -> impl Iterator<Item = (&str, &Pod)> {
        self.pods.iter().map(|(name, pod)| (name.as_str(), pod))
    }

    /// Loses everything that the two send each other from now on; nobody is told. Twice is once.
    ///
    /// # Errors
    /// There is no such pod, they are one, or the system says no.
    pub fn partition(&mut self, a: &str, b: &str) -> Result<(), NetError> {
        let pair = self.pair(a, b)?;
        self.see(&pair, false)?;
        self.partitions.insert(pair);
        Ok(())
    }

    /// Ends a partition; without one it changes nothing.
    ///
    /// # Errors
    /// As [`PodNetwork::partition`].
    pub fn heal(&mut self, a: &str, b: &str) -> Result<(), NetError> {
        let pair = self.pair(a, b)?;
        if self.partitions.contains(&pair) {
            self.see(&pair, true)?;
            self.partitions.remove(&pair);
        }
        Ok(())
    }

    /// The partitions that there are, each pair in the order of its names.
    pub fn partitions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.partitions.iter().map(|(a, b)| (a.as_str(), b.as_str()))
    }

    /// Kills a host: it is cut from the network first and its processes are killed then, so no close and no reset of
    /// theirs reaches anyone. Threads of the calling process in it live on, cut off.
    ///
    /// # Errors
    /// There is no such host, it is dead, or the system says no.
    pub fn kill_host(&mut self, name: &str) -> Result<(), NetError> {
        let pod = self.known(name)?;
        if !pod.alive {
            return Err(NetError::Dead(name.to_owned()));
        }
        ip::ip(&self.switch, &format!("link set {} down\n", pod.port()))?;
        let killed = pod.namespace.kill();
        self.pods.get_mut(name).expect("it is known").alive = false;
        killed
    }

    /// Starts a dead host again: it has its addresses and partitions, no processes, and no memory of its connections.
    ///
    /// # Errors
    /// There is no such host, it is alive, or the system says no.
    pub fn revive(&mut self, name: &str) -> Result<(), NetError> {
        let pod = self.known(name)?;
        if pod.alive {
            return Err(NetError::Alive(name.to_owned()));
        }
        // Connections of the dead may outlive its processes in the kernel; the old namespace keeps them, without a network.
        ip::ip(&self.switch, &format!("link del {}\n", pod.port()))?;
        let revived = Pod { number: pod.number, family: pod.family, namespace: Namespace::new()?, alive: true };
        self.connect(&revived)?;
        self.pods.insert(name.to_owned(), revived);
        for pair in self.partitions.iter().filter(|(a, b)| a == name || b == name) {
            self.see(pair, false)?;
        }
        Ok(())
    }

    fn known(&self, name: &str) -> Result<&Pod, NetError> {
        let unknown = || crate::names::unknown("pod", name, self.pods.keys().map(String::as_str));
        self.pods.get(name).ok_or_else(|| NetError::Unknown(unknown()))
    }

    fn pair(&self, a: &str, b: &str) -> Result<(String, String), NetError> {
        self.known(a)?;
        self.known(b)?;
        if a == b {
            return Err(NetError::Unknown(format!("{a} cannot be parted from itself")));
        }
        let (first, second) = if a < b { (a, b) } else { (b, a) };
        Ok((first.to_owned(), second.to_owned()))
    }

    /// Lays the cable between the switch and a pod.
    fn connect(&self, pod: &Pod) -> Result<(), NetError> {
        let (port, hardware, inside) = (pod.port(), pod.hardware(), pod.namespace.path());
        let cable = format!(
            "link add {port} type veth peer name eth0 address {hardware} netns {inside}\n\
             link set {port} master switch up\n"
        );
        let family = self.family;
        pod.namespace.run(|| prepare(family))??;
        ip::ip(&self.switch, &cable)?;
        ip::ip(&pod.namespace, "link set eth0 up\n")?;
        // A cable carries nothing before the kernel has found time to notice that both its ends are up; until then it
        // loses what it is given, and IPv6 waits as well.
        let up = |shown: &str| shown.contains(" state UP ");
        let forwards = |shown: &str| up(shown) && shown.contains("bridge_slave state forwarding");
        until(&self.switch, &format!("link show {port}"), forwards)?;
        until(&pod.namespace, "link show eth0", up)?;
        let mut addresses = String::new();
        for address in pod.addresses() {
            // No one else has it: it need not be looked for before it is used.
            let (length, at_once) = if address.is_ipv4() { (16, "") } else { (64, " nodad") };
            writeln!(addresses, "address add {address}/{length} dev eth0{at_once}")
                .expect("writing to a string never fails");
        }
        ip::ip(&pod.namespace, &addresses)?;
        until(&pod.namespace, "address show dev eth0 tentative", str::is_empty)
    }

    /// Makes both of a pair see each other's true hardware address, or one that nobody has.
    fn see(&self, (a, b): &(String, String), truth: bool) -> Result<(), NetError> {
        let (a, b) = (&self.pods[a], &self.pods[b]);
        // A dead host sees nobody, and learns of its partitions when it is revived.
        for (from, to) in [(a, b), (b, a)].into_iter().filter(|(from, _)| from.alive) {
            let (hardware, state) = match truth {
                true => (to.hardware(), "reachable"),
                false => (NOBODY.to_owned(), "permanent"),
            };
            let lines: String = to
                .addresses()
                .iter()
                .map(|address| format!("neighbour replace {address} lladdr {hardware} nud {state} dev eth0\n"))
                .collect();
            ip::ip(&from.namespace, &lines)?;
        }
        Ok(())
    }
}

/// What is to be set in a pod's namespace, from a thread inside, before it has an interface.
fn prepare(family: Family) -> Result<(), NetError> {
    let set = |name: &str, value: &str| std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}"), value);
    if !family.has_v6() {
        // A kernel without IPv6 is fine.
        return match std::fs::exists("/proc/sys/net/ipv6").unwrap_or_default() {
            true => set("all/disable_ipv6", "1").map_err(|error| NetError::system("switch IPv6 off", error)),
            false => Ok(()),
        };
    }
    // Some hosts switch it off for what is to come. Nobody else is there who could have an address already.
    let settings = [("all/disable_ipv6", "0"), ("default/disable_ipv6", "0"), ("default/accept_dad", "0")];
    let failed = |error| NetError::system("switch IPv6 on", error);
    settings.into_iter().try_for_each(|(name, value)| set(name, value)).map_err(failed)
}

/// Waits until what ip(8) shows is as it should be; that is a matter of milliseconds.
fn until(namespace: &Namespace, show: &str, ready: impl Fn(&str) -> bool) -> Result<(), NetError> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let shown = ip::ip(namespace, &format!("{show}\n"))?;
        if ready(&shown) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(NetError::Failed { program: "ip", said: format!("`{show}` still says: {shown}") });
        }
        std::thread::yield_now();
    }
}
