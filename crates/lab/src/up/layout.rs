//! Who listens where: a free /24 of loopback for each replica, one address per service in it, as if each instance had a
//! host of its own. Replica 1 is in the subnet that was chosen, replica r in the r-1st after it.
//!
//! On the address of an instance: its own port is what callers see (the sidecar's inbound listener, or the application
//! itself without sidecars); the application behind a sidecar listens 10,000 above; outbound listeners count from 20,001;
//! the admin listener is 30,000. Ports that the topology itself uses are passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::{Options, UpError};
use crate::topology::Topology;

/// Host parts 1 to 254.
const MOST_SERVICES: usize = 254;
/// Replicas of a service, each in a /24 of its own.
const MOST_REPLICAS: u16 = 64;
/// Subnets tried before giving up.
const TRIES: usize = 32;

/// The addresses of one instance of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    /// What callers see.
    pub(super) inbound: SocketAddr,
    /// Where the application listens; `inbound` itself without sidecar.
    pub(super) application: SocketAddr,
    pub(super) admin: SocketAddr,
    /// Where the application reaches each callee, one address for each of the callee's instances: a listener of its own
    /// sidecar, as often as there are instances, or the instances' `inbound`.
    pub(super) callees: BTreeMap<String, Vec<SocketAddr>>,
}

impl Site {
    /// Where the sidecar of this service listens.
    pub(super) fn sidecar_listeners(&self) -> Vec<SocketAddr> {
        std::iter::once(self.inbound)
            .chain(self.callees.values().flatten().copied())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Where the sidecar listens for calls to `callee`.
    pub(super) fn outbound(&self, callee: &str) -> SocketAddr {
        self.callees[callee][0]
    }

    fn all(&self) -> BTreeSet<SocketAddr> {
        let own = self.callees.values().flatten().copied().filter(|address| address.ip() == self.inbound.ip());
        [self.inbound, self.application, self.admin].into_iter().chain(own).collect()
    }
}

/// By service, its instances in their order; each service has the same number of them.
pub(super) type Sites = BTreeMap<String, Vec<Site>>;

#[derive(Debug)]
pub(super) struct Layout {
    pub(super) sites: Sites,
}

impl Layout {
    /// A layout all of whose addresses can be bound now.
    pub(super) fn find(topology: &Topology, options: &Options) -> Result<Self, UpError> {
        let services = topology.services().len();
        if services > MOST_SERVICES {
            return Err(UpError::TooManyServices { most: MOST_SERVICES, found: services });
        }
        // Third numbers from 0 to 255.
        let most = options.subnet.map_or(MOST_REPLICAS, |[_, _, c]| MOST_REPLICAS.min(256 - u16::from(c)));
        let replicas = options.replicas.get();
        if replicas > most {
            return Err(UpError::TooManyReplicas { most, asked: replicas });
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
            let third = u16::from_be_bytes([random[1], random[2]]) % (257 - replicas);
            let third = u8::try_from(third).expect("less than 256, since there is a replica");
            let layout = Self::on([127, 1 + random[0] % 254, third], topology, options);
            match layout.check() {
                Ok(()) => return Ok(layout),
                Err(failed) => refused = Some(failed),
            }
        }
        let (address, source) = refused.expect("at least one subnet was tried");
        Err(UpError::Addresses { services, address, source })
    }

    pub(super) fn on(subnet: [u8; 3], topology: &Topology, options: &Options) -> Self {
        let [a, b, c] = subnet;
        let inbound: BTreeMap<&str, Vec<SocketAddr>> = topology
            .services()
            .iter()
            .zip(1..=u8::MAX)
            .map(|(service, host)| {
                let replica = |replica: u16| {
                    let third = u8::try_from(u16::from(c) + replica).expect("as many replicas as subnets");
                    SocketAddr::from((Ipv4Addr::new(a, b, third, host), service.port))
                };
                (service.name.as_str(), (0..options.replicas.get()).map(replica).collect())
            })
            .collect();
        let mut sites = Sites::new();
        for (&name, addresses) in &inbound {
            let of = |&address: &SocketAddr| Self::site(name, address, &inbound, topology, options);
            sites.insert(name.to_owned(), addresses.iter().map(of).collect());
        }
        Self { sites }
    }

    fn site(
        name: &str,
        inbound_address: SocketAddr,
        inbound: &BTreeMap<&str, Vec<SocketAddr>>,
        topology: &Topology,
        options: &Options,
    ) -> Site {
        let sidecars = options.sidecar.is_some();
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
                let addresses = match options.detours.get(&callee.name) {
                    _ if sidecars => vec![free(20_001); inbound[callee.name.as_str()].len()],
                    Some(detour) => vec![*detour],
                    None => inbound[callee.name.as_str()].clone(),
                };
                (callee.name.clone(), addresses)
            })
            .collect();
        Site { inbound: inbound_address, application, admin, callees }
    }

    /// All at once, so that two that fall together are found as well.
    fn check(&self) -> Result<(), (SocketAddr, std::io::Error)> {
        let mut bound = Vec::new();
        for address in self.sites.values().flatten().flat_map(Site::all) {
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
        let site = &layout.sites["s0"][0];
        assert_eq!(site.inbound, "127.9.9.1:8080".parse().unwrap());
        assert_eq!(site.application, "127.9.9.1:18080".parse().unwrap());
        assert_eq!(site.admin, "127.9.9.1:30000".parse().unwrap());
        assert_eq!(site.callees["s1"], ["127.9.9.1:20001".parse().unwrap()]);
        assert_eq!(layout.sites["s1"][0].application, "127.9.9.2:60051".parse().unwrap());
    }

    #[test]
    fn each_replica_has_the_same_ports_in_the_next_subnet_and_a_way_to_every_replica_of_a_callee() {
        let replicas = std::num::NonZeroU16::new(3).unwrap();
        let layout = Layout::on([127, 9, 9], &topology(&[8080, 50051]), &Options { replicas, ..options(true) });
        let third = &layout.sites["s0"][2];
        assert_eq!(third.inbound, "127.9.11.1:8080".parse().unwrap());
        assert_eq!(third.callees["s1"], ["127.9.11.1:20001".parse().unwrap(); 3]);
        assert_eq!(third.sidecar_listeners().len(), 2);
        let direct = Layout::on([127, 9, 9], &topology(&[8080, 50051]), &Options { replicas, ..options(false) });
        let callees = &direct.sites["s0"][1].callees["s1"];
        assert_eq!(*callees, ["127.9.9.2:50051", "127.9.10.2:50051", "127.9.11.2:50051"].map(|a| a.parse().unwrap()));
    }

    #[test]
    fn more_replicas_than_subnets_are_refused() {
        let replicas = std::num::NonZeroU16::new(3).unwrap();
        let at = |third| Options { replicas, subnet: Some([127, 9, third]), ..options(true) };
        assert!(Layout::find(&topology(&[8080]), &at(253)).is_ok());
        let error = Layout::find(&topology(&[8080]), &at(254)).unwrap_err();
        assert!(matches!(error, UpError::TooManyReplicas { most: 2, asked: 3 }), "{error}");
    }

    #[test]
    fn without_sidecars_callers_reach_the_application_itself() {
        let layout = Layout::on([127, 9, 9], &topology(&[8080, 50051]), &options(false));
        let (s0, s1) = (&layout.sites["s0"][0], &layout.sites["s1"][0]);
        assert_eq!(s0.application, s0.inbound);
        assert_eq!(s0.callees["s1"], [s1.inbound]);
    }

    #[test]
    fn no_two_listeners_fall_together_whatever_port_the_topology_names() {
        for port in [1, 1024, 10_001, 20_000, 20_001, 30_000, 55_535, 55_536, 65_535] {
            let layout = Layout::on([127, 9, 9], &topology(&[port, port, port]), &options(true));
            for site in layout.sites.values().flatten() {
                assert_eq!(site.all().len(), 3 + site.callees.len(), "{port}: {site:?}");
            }
        }
    }

    #[test]
    fn a_taken_address_is_noticed() {
        let layout = Layout::find(&topology(&[8080, 8080]), &options(true)).unwrap();
        let _taken = TcpListener::bind(layout.sites["s1"][0].application).unwrap();
        assert_eq!(layout.check().unwrap_err().0, layout.sites["s1"][0].application);
    }
}
