//! Networks of pods: reached, parted, killed, and gone without a trace.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aftershock_lab::net::{Family, Namespace, NetError, PodNetwork};
use aftershock_lab::{HostError, Options, up};

use crate::client::post;
use crate::running::service_launcher;
use crate::topology_files::shipped;

/// What this test binary does as a process of its own, instead of testing.
const PART: &str = "AFTERSHOCK_TEST_PART";
/// Long enough for anything that comes to have come: neighbours are on one machine.
const SILENCE: Duration = Duration::from_millis(300);
/// No test waits as long for what must come.
const PATIENCE: Duration = Duration::from_secs(20);
const FAMILIES: [Family; 3] = [Family::V4, Family::V6, Family::Dual];

/// Without root and the programs, a test is skipped aloud, or fails where peers are required.
fn network(test: &str, family: Family, pods: &[&str]) -> Option<PodNetwork> {
    let made = PodNetwork::new(family);
    if let Err(error @ (NetError::Missing { .. } | NetError::NotPermitted { .. })) = &made {
        assert!(std::env::var_os("AFTERSHOCK_REQUIRE_PEERS").is_none_or(|v| v != "1"), "{test}: {error}");
        eprintln!("SKIPPED {test}: {error}");
        return None;
    }
    let mut network = made.unwrap();
    for pod in pods {
        network.add(pod).unwrap();
    }
    Some(network)
}

fn inside(network: &PodNetwork, pod: &str) -> Namespace {
    network.pod(pod).unwrap().namespace().clone()
}

fn listen(network: &PodNetwork, pod: &str) -> (TcpListener, SocketAddr) {
    let address = SocketAddr::new(network.pod(pod).unwrap().address(), 8080);
    (inside(network, pod).run(|| TcpListener::bind(address)).unwrap().unwrap(), address)
}

fn connect(network: &PodNetwork, pod: &str, to: SocketAddr, within: Duration) -> std::io::Result<TcpStream> {
    let stream = inside(network, pod).run(|| TcpStream::connect_timeout(&to, within)).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    Ok(stream)
}

/// A connection from one to the other, both ends.
fn connection(network: &PodNetwork, from: &str, (listener, address): &(TcpListener, SocketAddr)) -> [TcpStream; 2] {
    let near = connect(network, from, *address, PATIENCE).unwrap();
    let (far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    [near, far]
}

fn says(from: &mut TcpStream, to: &mut TcpStream, text: &[u8]) {
    from.write_all(text).unwrap();
    hears(to, text);
}

fn hears(to: &mut TcpStream, text: &[u8]) {
    let mut got = vec![0; text.len()];
    to.read_exact(&mut got).unwrap();
    assert_eq!(got, text);
}

/// No byte, no close and no reset arrives.
fn is_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let heard = loop {
        match stream.read(&mut [0]) {
            // A signal of the test process, about a child.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            heard => break heard,
        }
    };
    assert!(heard.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "{heard:?}");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

#[test]
fn pods_reach_each_other_at_all_their_addresses_and_are_at_none_of_the_host() {
    for family in FAMILIES {
        let test = "pods_reach_each_other_at_all_their_addresses_and_are_at_none_of_the_host";
        let Some(network) = network(test, family, &["a", "b"]) else { return };
        let addresses = network.pod("b").unwrap().addresses();
        assert_eq!(addresses.len(), if family == Family::Dual { 2 } else { 1 });
        for ip in addresses {
            let listener = inside(&network, "b").run(|| TcpListener::bind((ip, 8080))).unwrap().unwrap();
            let [mut near, mut far] = connection(&network, "a", &(listener, (ip, 8080).into()));
            assert_eq!(near.local_addr().unwrap().ip().is_ipv4(), ip.is_ipv4());
            assert!(network.pod("a").unwrap().addresses().contains(&far.peer_addr().unwrap().ip()));
            says(&mut near, &mut far, b"hello");
            says(&mut far, &mut near, b"hello to you");
            let at_the_host = TcpListener::bind((ip, 8080)).unwrap_err();
            assert_eq!(at_the_host.kind(), ErrorKind::AddrNotAvailable);
        }
    }
}

#[test]
fn networks_with_the_same_addresses_do_not_know_of_each_other() {
    let test = "networks_with_the_same_addresses_do_not_know_of_each_other";
    let Some(one) = network(test, Family::V4, &["a", "b"]) else { return };
    let other = network(test, Family::V4, &["a", "b"]).unwrap();
    let (listener, address) = listen(&one, "b");
    assert_eq!(other.pod("b").unwrap().address(), address.ip());
    let refused = connect(&other, "a", address, PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    connection(&one, "a", &(listener, address));
}

#[test]
fn a_partition_loses_everything_between_two_until_it_heals() {
    for family in FAMILIES {
        let test = "a_partition_loses_everything_between_two_until_it_heals";
        let Some(mut network) = network(test, family, &["a", "b", "c"]) else { return };
        let b = listen(&network, "b");
        let [mut near, mut far] = connection(&network, "a", &b);
        let [mut bystander, mut beside] = connection(&network, "c", &b);
        says(&mut near, &mut far, b"before");
        network.partition("b", "a").unwrap();
        network.partition("a", "b").unwrap();
        assert_eq!(network.partitions().collect::<Vec<_>>(), [("a", "b")]);
        near.write_all(b"during").unwrap();
        far.write_all(b"as well").unwrap();
        is_silent(&mut far);
        is_silent(&mut near);
        let lost = connect(&network, "a", b.1, SILENCE).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::TimedOut);
        says(&mut bystander, &mut beside, b"nothing to me");
        network.heal("a", "b").unwrap();
        network.heal("a", "b").unwrap();
        // What was sent meanwhile comes late, as on any network.
        hears(&mut far, b"during");
        hears(&mut near, b"as well");
        says(&mut near, &mut far, b"after");
        connection(&network, "a", &b);
    }
}

#[test]
fn a_host_dies_without_a_word_and_comes_back_without_a_memory() {
    for family in FAMILIES {
        let test = "a_host_dies_without_a_word_and_comes_back_without_a_memory";
        let Some(mut network) = network(test, family, &["a", "b"]) else { return };
        let a = listen(&network, "a");
        // A process of the host that sends back what comes.
        let connected = |network: &PodNetwork| {
            let script = format!("exec 3<>/dev/tcp/{}/{}; exec cat <&3 >&3", a.1.ip(), a.1.port());
            let mut command = Command::new("bash");
            command.args(["-c", &script]).stdin(Stdio::null());
            let process = inside(network, "b").spawn(&mut command).unwrap();
            let (mut stream, _) = a.0.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(b"echo").unwrap();
            hears(&mut stream, b"echo");
            (process, stream)
        };
        // The process alone dies: its kernel says so.
        let (mut process, mut stream) = connected(&network);
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);

        let (mut process, mut stream) = connected(&network);
        assert_eq!(inside(&network, "b").processes().unwrap(), [process.id()]);
        network.kill_host("b").unwrap();
        assert!(!network.pod("b").unwrap().is_alive());
        assert!(inside(&network, "b").processes().unwrap().is_empty());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&process.wait().unwrap()), Some(9));
        is_silent(&mut stream);
        stream.write_all(b"are you there?").unwrap();
        is_silent(&mut stream);
        assert!(matches!(network.kill_host("b"), Err(NetError::Dead(name)) if name == "b"));

        network.revive("b").unwrap();
        // Asked again what it is to answer, the host knows of no such connection.
        let deadline = Instant::now() + PATIENCE;
        let told = loop {
            if let Err(error) = stream.write(b"!").and_then(|_| stream.read(&mut [0])) {
                break error;
            }
            assert!(Instant::now() < deadline);
        };
        assert!(matches!(told.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{told}");
        let (mut process, _stream) = connected(&network);
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(matches!(network.revive("b"), Err(NetError::Alive(name)) if name == "b"));
    }
}

#[test]
fn a_partition_outlasts_the_death_of_a_host() {
    let Some(mut network) = network("a_partition_outlasts_the_death_of_a_host", Family::Dual, &["a", "b"]) else {
        return;
    };
    network.partition("a", "b").unwrap();
    network.kill_host("b").unwrap();
    network.revive("b").unwrap();
    let b = listen(&network, "b");
    assert_eq!(connect(&network, "a", b.1, SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
    // From the revived side as well.
    let a = listen(&network, "a");
    assert_eq!(connect(&network, "b", a.1, SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
    network.kill_host("b").unwrap();
    network.heal("a", "b").unwrap();
    network.revive("b").unwrap();
    let b = listen(&network, "b");
    connection(&network, "a", &b);
}

#[test]
fn names_are_checked() {
    let Some(mut network) = network("names_are_checked", Family::V4, &["cart", "payment"]) else { return };
    let said = network.partition("cart", "paymnt").unwrap_err().to_string();
    assert_eq!(said, "unknown pod `paymnt`, did you mean `payment`?");
    assert_eq!(network.heal("cart", "cart").unwrap_err().to_string(), "cart cannot be parted from itself");
    assert_eq!(network.add("cart").unwrap_err().to_string(), "there is a pod cart already");
}

#[tokio::test]
async fn a_lab_on_pods_is_reached_as_on_loopback_and_its_hosts_die_and_come_back() {
    for family in FAMILIES {
        let test = "a_lab_on_pods_is_reached_as_on_loopback_and_its_hosts_die_and_come_back";
        if network(test, family, &[]).is_none() {
            return;
        }
        let options = Options { pods: Some(family), durable: true, ..Options::new(service_launcher()) };
        let mut lab = up(shipped("online-boutique"), &options).await.unwrap();
        let frontend = lab.address("frontend").unwrap();
        assert!(frontend.ip().is_loopback());
        assert_eq!(post(frontend, "/cart/checkout?key=before").await.0, 200);
        assert_eq!(lab.ledger("charges", "before").await.unwrap().count, 1);

        lab.kill_host("paymentservice").unwrap();
        assert_eq!(lab.dead_hosts(), ["paymentservice"]);
        assert!(lab.ended().is_empty(), "a dead host is no accident of a process");
        let lost = tokio::time::timeout(SILENCE, post(frontend, "/cart/checkout?key=during")).await;
        assert!(lost.is_err(), "nobody told the shop: {lost:?}");
        lab.partition("frontend", "cartservice").unwrap();
        lab.restore_hosts().await.unwrap();
        assert!(lab.dead_hosts().is_empty() && lab.partitions().next().is_none());
        assert_eq!(lab.ledger("charges", "before").await.unwrap().count, 1, "it has its journal");
        // The one connection to the dead is found out by the first who uses it.
        let after = post(frontend, "/cart/checkout?key=after").await.0;
        assert!([200, 500].contains(&after), "{after}");
        assert_eq!(post(frontend, "/cart/checkout?key=afterwards").await.0, 200);
        assert_eq!(lab.ledger("charges", "afterwards").await.unwrap().count, 1);
        assert!(matches!(lab.kill_host("client"), Err(HostError::Immortal(_))));
        let ended = lab.stop(Duration::from_secs(5)).await;
        assert!(ended.iter().all(|ended| ended.status.success()), "{ended:?}");
    }
}

/// This test again, as a process of its own that plays a part.
fn myself(test: &str, part: &str, before: &[&str]) -> Command {
    let own = std::env::current_exe().unwrap().into_os_string();
    let line: Vec<_> = before.iter().map(Into::into).chain([own]).collect();
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).args(["--exact", &format!("net::{test}"), "--nocapture"]).env(PART, part);
    command
}

#[test]
fn nothing_is_left_of_a_network_whose_owner_is_killed() {
    let test = "nothing_is_left_of_a_network_whose_owner_is_killed";
    if std::env::var_os(PART).is_some() {
        let network = network(test, Family::Dual, &["a", "b"]).unwrap();
        let mut command = Command::new("cat");
        let mut child = inside(&network, "a").spawn(command.stdin(Stdio::piped())).unwrap();
        println!("\nPID {}", child.id());
        // It lives as long as its standard input, which only this process holds.
        let lifeline = child.stdin.take();
        let ended = child.wait();
        panic!("nobody killed me: {ended:?} {lifeline:?}");
    }
    if network(test, Family::V4, &[]).is_none() {
        return;
    }
    let interfaces = || {
        let names = std::fs::read_dir("/sys/class/net").unwrap();
        names.map(|entry| entry.unwrap().file_name()).collect::<std::collections::BTreeSet<_>>()
    };
    let before = interfaces();
    let mut owner = myself(test, "owner", &[]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let child: u32 = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("PID ")?.parse().ok()).unwrap();
    let namespace = std::fs::read_link(format!("/proc/{child}/ns/net")).unwrap();
    assert_ne!(namespace, std::fs::read_link("/proc/self/ns/net").unwrap());
    owner.kill().unwrap();
    owner.wait().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let held = || {
        let processes = std::fs::read_dir("/proc").unwrap();
        let mut namespaces = processes.filter_map(|entry| std::fs::read_link(entry.ok()?.path().join("ns/net")).ok());
        namespaces.any(|other| other == namespace)
    };
    while held() {
        assert!(Instant::now() < deadline, "a process is in it still");
        std::thread::yield_now();
    }
    assert_eq!(interfaces(), before);
}

#[test]
fn what_is_missing_is_said_in_one_sentence() {
    let test = "what_is_missing_is_said_in_one_sentence";
    if std::env::var_os(PART).is_some() {
        println!("\nSAID {}", PodNetwork::new(Family::V4).unwrap_err());
        return;
    }
    if network(test, Family::V4, &[]).is_none() {
        return;
    }
    let says = |mut command: Command| {
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        output.lines().find_map(|line| line.strip_prefix("SAID ")).unwrap_or_default().to_owned()
    };
    let mut no_programs = myself(test, "says", &[]);
    no_programs.env("PATH", "/nowhere");
    assert_eq!(says(no_programs), "network namespaces need the program `unshare` (Debian package util-linux)");
    assert_eq!(
        says(myself(test, "says", &["setpriv", "--bounding-set=-sys_admin"])),
        "network namespaces need root, with CAP_SYS_ADMIN and CAP_NET_ADMIN: unshare: unshare failed: Operation not \
         permitted"
    );
    assert_eq!(
        says(myself(test, "says", &["setpriv", "--bounding-set=-net_admin"])),
        "network namespaces need root, with CAP_SYS_ADMIN and CAP_NET_ADMIN: RTNETLINK answers: Operation not permitted; \
         Command failed -:1"
    );
}
