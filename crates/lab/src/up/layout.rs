//! Who listens where: a free /24 of loopback, one address per service, as if each had a host of its own.
//!
//! On the address of a service: its own port is what callers see (the sidecar's inbound listener, or the application
//! itself without sidecars); the application behind a sidecar listens 10,000 above; outbound listeners count from 20,001;
//! the admin listener is 30,000. Ports that the topology itself uses are passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::{Options, UpError};
use crate::topology::Topology;

/// Host parts 1 to 254.
const MOST_SERVICES: usize = 254;
/// Subnets tried before giving up.
const TRIES: usize = 32;

/// The addresses of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    /// What callers see.
    pub(super) inbound: SocketAddr,
    /// Where the application listens; `inbound` itself without sidecar.
    pub(super) application: SocketAddr,
    pub(super) admin: SocketAddr,
    /// Where the application reaches each callee: a listener of its own sidecar, or the callee's `inbound`.
    pub(super) callees: BTreeMap<String, SocketAddr>,
}

impl Site {
    /// Where the sidecar of this service listens.
    pub(super) fn sidecar_listeners(&self) -> Vec<SocketAddr> {
        std::iter::once(self.inbound).chain(self.callees.values().copied()).collect()
    }

    fn all(&self) -> BTreeSet<SocketAddr> {
        let own = self.callees.values().copied().filter(|address| address.ip() == self.inbound.ip());
        [self.inbound, self.application, self.admin].into_iter().chain(own).collect()
    }
}

#[derive(Debug)]
pub(super) struct Layout {
    pub(super) sites: BTreeMap<String, Site>,
}

impl Layout {
    /// A layout all of whose addresses can be bound now.
    pub(super) fn find(topology: &Topology, options: &Options) -> Result<Self, UpError> {
        let services = topology.services().len();
        if services > MOST_SERVICES {
            return Err(UpError::TooManyServices { most: MOST_SERVICES, found: services });
        }
        if let Some(subnet) = options.subnet {
            let layout = Self::on(subnet, topology, options);
            return match layout.check() {
                Ok(()) => Ok(layout),
                Err((address, source)) => Err(UpError::Taken { address, source }),
            };
        }
        let mut refused = None;
        for _ in 0..TRIES {
            let random = getrandom::u32().map_err(|error| UpError::Random(error.into()))?.to_be_bytes();
            // Not 127.0.0.0/16: that is where everything else listens.
            let layout = Self::on([127, 1 + random[0] % 254, random[1]], topology, options);
            match layout.check() {
                Ok(()) => return Ok(layout),
                Err(failed) => refused = Some(failed),
            }
        }
        let (address, source) = refused.expect("at least one subnet was tried");
        Err(UpError::Addresses { services, address, source })
    }

    pub(super) fn on(subnet: [u8; 3], topology: &Topology, options: &Options) -> Self {
        let sidecars = options.sidecar.is_some();
        let [a, b, c] = subnet;
        let hosts = (1..=u8::MAX).map(|host| Ipv4Addr::new(a, b, c, host));
        let inbound: BTreeMap<&str, SocketAddr> = topology
            .services()
            .iter()
            .zip(hosts)
            .map(|(service, host)| (service.name.as_str(), SocketAddr::from((host, service.port))))
            .collect();
        let mut sites = BTreeMap::new();
        for (&name, &inbound_address) in &inbound {
            let mut used = BTreeSet::from([inbound_address.port()]);
            let mut free = |from: u16| {
                let port = (from..=u16::MAX).chain(1024..from).find(|port| !used.contains(port));
                let port = port.expect("a service uses fewer ports than there are");
                used.insert(port);
                SocketAddr::from((inbound_address.ip(), port))
            };
            let admin = free(30_000);
            let application = match sidecars {
                true => free(inbound_address.port().checked_add(10_000).unwrap_or(1024)),
                false => inbound_address,
            };
            let callees = topology
                .callees(name)
                .into_iter()
                .map(|callee| {
                    let address = match options.detours.get(&callee.name) {
                        _ if sidecars => free(20_001),
                        Some(detour) => *detour,
                        None => inbound[callee.name.as_str()],
                    };
                    (callee.name.clone(), address)
                })
                .collect();
            let site = Site { inbound: inbound_address, application, admin, callees };
            sites.insert(name.to_owned(), site);
        }
        Self { sites }
    }

    /// All at once, so that two that fall together are found as well.
    fn check(&self) -> Result<(), (SocketAddr, std::io::Error)> {
        let mut bound = Vec::new();
        for address in self.sites.values().flat_map(Site::all) {
            bound.push(TcpListener::bind(address).map_err(|error| (address, error))?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Launcher;
    use super::*;

    fn options(sidecars: bool) -> Options {
        let launcher = Launcher { program: "unused".into(), args: Vec::new() };
        Options { sidecar: sidecars.then(|| launcher.clone()), ..Options::new(launcher) }
    }

    fn topology(ports: &[u16]) -> Topology {
        let services: String = ports
            .iter()
            .enumerate()
            .map(|(i, port)| format!("  s{i}: {{server: http1, port: {port}, propagation: none}}\n"))
            .collect();
        let apis: String = (0..ports.len()).map(|i| format!("  a{i}: {{service: s{i}, http: GET /}}\n")).collect();
        let steps: String = (1..ports.len()).map(|i| format!("{{call: a{i}, on_failure: ignore}}, ")).collect();
        let text = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Topology\nmetadata: {{name: t}}\nservices:\n{services}apis:\n{apis}\
             handlers: {{a0: {{steps: [{steps}]}}}}\n"
        );
        Topology::parse("t.yaml", &text).unwrap()
    }

    #[test]
    fn each_service_has_an_address_and_the_documented_ports() {
        let layout = Layout::on([127, 9, 9], &topology(&[8080, 50051]), &options(true));
        let site = &layout.sites["s0"];
        assert_eq!(site.inbound, "127.9.9.1:8080".parse().unwrap());
        assert_eq!(site.application, "127.9.9.1:18080".parse().unwrap());
        assert_eq!(site.admin, "127.9.9.1:30000".parse().unwrap());
        assert_eq!(site.callees["s1"], "127.9.9.1:20001".parse().unwrap());
        assert_eq!(layout.sites["s1"].application, "127.9.9.2:60051".parse().unwrap());
    }

    #[test]
    fn without_sidecars_callers_reach_the_application_itself() {
        let layout = Layout::on([127, 9, 9], &topology(&[8080, 50051]), &options(false));
        assert_eq!(layout.sites["s0"].application, layout.sites["s0"].inbound);
        assert_eq!(layout.sites["s0"].callees["s1"], layout.sites["s1"].inbound);
    }

    #[test]
    fn no_two_listeners_fall_together_whatever_port_the_topology_names() {
        for port in [1, 1024, 10_001, 20_000, 20_001, 30_000, 55_535, 55_536, 65_535] {
            let layout = Layout::on([127, 9, 9], &topology(&[port, port, port]), &options(true));
            for site in layout.sites.values() {
                assert_eq!(site.all().len(), 3 + site.callees.len(), "{port}: {site:?}");
            }
        }
    }

    #[test]
    fn a_taken_address_is_noticed() {
        let layout = Layout::find(&topology(&[8080, 8080]), &options(true)).unwrap();
        let _taken = TcpListener::bind(layout.sites["s1"].application).unwrap();
        assert_eq!(layout.check().unwrap_err().0, layout.sites["s1"].application);
    }
}
