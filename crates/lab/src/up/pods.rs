//! A lab on a network of pods: each instance on a host of its own, its traffic redirected to the sidecar beside it.
//!
//! What lies outside reaches it as if it were on loopback. The addresses of the loopback layout are listeners here, whose
//! connections go on inside, from the host `client`; and `controller` is a host that hands what sidecars send it to the
//! controller, wherever that is. Both can be parted from others as any host can.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::layout::{Site, Sites};
use super::{Control, Launcher, Options, UpError, instance};
use crate::net::{Family, Gate, Namespace, NetError, PodNetwork};
use crate::topology::Topology;

/// The host that requests and questions from outside come from.
pub const CLIENT: &str = "client";
/// The host that stands for the controller.
pub const CONTROLLER: &str = "controller";
/// The group of sidecars: what they send themselves is not redirected.
pub(super) const SIDECARS: u32 = 4700;
/// Where redirected connections arrive: callers', the application's.
pub(super) const REDIRECTED: [u16; 2] = [15006, 15001];
/// A sidecar that is dead or out of reach is so for the controller after this time, as it would be without a relay.
const VANISHED: Duration = Duration::from_secs(6);
/// Long for a connection on one machine.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The network and the ways into it.
#[derive(Debug)]
pub(super) struct Pods {
    pub(super) network: PodNetwork,
    /// Where everything is inside.
    pub(super) sites: Sites,
    /// Where sidecars find the controller.
    pub(super) control: Option<Control>,
    _gates: Vec<Gate>,
}

impl Pods {
    /// A host for each instance of `front`, whose addresses lead there.
    pub(super) fn lay(family: Family, topology: &Topology, front: &Sites, options: &Options) -> Result<Self, UpError> {
        let mut network = PodNetwork::new(family)?;
        for name in [CLIENT, CONTROLLER] {
            if front.contains_key(name) {
                return Err(UpError::Reserved(name));
            }
            network.add(name)?;
        }
        for (service, sites) in front {
            for replica in 0..sites.len() {
                network.add(&instance(service, replica))?;
            }
        }
        let sites = inside(&network, topology, front);
        let outside = Gate::of(Some(namespace(&network, CLIENT)), None)?;
        for (service, fronts) in front {
            for (front, inside) in fronts.iter().zip(&sites[service]) {
                for (listen, to) in [(front.inbound, inside.inbound), (front.admin, inside.admin)] {
                    let listener = TcpListener::bind(listen);
                    let listener = listener.map_err(|source| UpError::Taken { address: listen, source })?;
                    outside.relay(listener, to)?;
                }
            }
        }
        let mut gates = vec![outside];
        let control = match &options.control {
            Some(control) => {
                let gate = Gate::of(None, Some(VANISHED))?;
                let inside = self::control(&network, &gate, control)?;
                gates.push(gate);
                Some(inside)
            }
            None => None,
        };
        Ok(Self { network, sites, control, _gates: gates })
    }

    pub(super) fn namespace(&self, service: &str, replica: usize) -> &Namespace {
        namespace(&self.network, &instance(service, replica))
    }

    /// Where the application of an instance listens: everywhere if it has several addresses.
    pub(super) fn listen(&self, site: &Site) -> SocketAddr {
        match self.network.family() {
            Family::Dual => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), site.application.port()),
            Family::V4 | Family::V6 => site.application,
        }
    }

    /// Has the sidecar's program make the rules of redirection in an instance's namespace.
    pub(super) fn redirect(
        &self,
        service: &str,
        replica: usize,
        launcher: &Launcher,
        config: &Path,
    ) -> Result<(), UpError> {
        let mut command = std::process::Command::new(&launcher.program);
        command.args(&launcher.args).args(["redirect", "apply", "--config"]).arg(config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = self.namespace(service, replica).spawn(&mut command)?;
        let output = child
            .wait_with_output()
            .map_err(|source| NetError::System { doing: "make rules of redirection".to_owned(), source })?;
        match output.status.success() {
            true => Ok(()),
            false => Err(UpError::Redirect {
                service: service.to_owned(),
                said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    }

    /// Whether the sidecar of an instance takes redirected connections.
    pub(super) fn takes_redirected(&self, service: &str, replica: usize) -> bool {
        let loopback: IpAddr = match self.network.family() {
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
            Family::V4 | Family::Dual => [127, 0, 0, 1].into(),
        };
        let accepts = || {
            let connect = |port| TcpStream::connect_timeout(&SocketAddr::new(loopback, port), AT_ONCE);
            REDIRECTED.into_iter().all(|port| connect(port).is_ok())
        };
        self.namespace(service, replica).run(accepts).unwrap_or(false)
    }
}

fn namespace<'a>(network: &'a PodNetwork, pod: &str) -> &'a Namespace {
    network.pod(pod).expect("every instance has a pod").namespace()
}

/// Where everything is inside: callees at their own ports, at every address of theirs.
fn inside(network: &PodNetwork, topology: &Topology, front: &Sites) -> Sites {
    let pod = |service: &str, replica: usize| network.pod(&instance(service, replica)).expect("each has been added");
    let site = |service: &str, replica: usize, outside: &Site| {
        let callees = topology.callees(service).into_iter().map(|callee| {
            let instances = 0..front[&callee.name].len();
            let addresses = instances.flat_map(|replica| pod(&callee.name, replica).addresses());
            (callee.name.clone(), addresses.map(|ip| SocketAddr::new(ip, callee.port)).collect())
        });
        let own = SocketAddr::new(pod(service, replica).address(), outside.inbound.port());
        let admin = SocketAddr::new(own.ip(), outside.admin.port());
        Site { inbound: own, application: own, admin, callees: callees.collect() }
    };
    let sites = |service: &String, fronts: &Vec<Site>| {
        fronts.iter().enumerate().map(|(replica, front)| site(service, replica, front)).collect()
    };
    front.iter().map(|(service, fronts)| (service.clone(), sites(service, fronts))).collect()
}

/// Where sidecars find the controller: a listener on the host that stands for it.
fn control(network: &PodNetwork, gate: &Gate, control: &Control) -> Result<Control, UpError> {
    let unusable = |why: &str| UpError::Controller { url: control.url.clone(), why: why.to_owned() };
    let url: http::Uri = control.url.parse().map_err(|_| unusable("it is no URL"))?;
    let host = url.host().ok_or_else(|| unusable("it has no host"))?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let encrypted = url.scheme_str() == Some("https");
    let named = bare.parse::<IpAddr>().is_err();
    if encrypted && !named {
        return Err(unusable("its certificate cannot have the address that it has for pods: give it a name"));
    }
    let port = url.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
    let to = control.address.or_else(|| (bare, port).to_socket_addrs().ok()?.next());
    let to = to.ok_or_else(|| unusable("its host is unknown"))?;
    let pod = network.pod(CONTROLLER).expect("it has been added");
    let at = SocketAddr::new(pod.address(), port);
    let listener = pod.namespace().run(|| TcpListener::bind(at))?;
    gate.relay(listener.map_err(|source| UpError::Taken { address: at, source })?, to)?;
    Ok(match encrypted {
        // The certificate is for the name, which stays.
        true => Control { address: Some(at), ..control.clone() },
        // What is sent to the host of the controller does not leave this machine, and goes on as it was to go anyway.
        false => Control {
            url: format!("http://{at}"),
            address: None,
            insecure_plaintext: control.insecure_plaintext || control.token_file.is_some(),
            ..control.clone()
        },
    })
}
