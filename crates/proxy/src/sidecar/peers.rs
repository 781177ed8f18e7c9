//! Who stands behind each way out, and how its Apis are called (design §3.10).

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hasher as _};
use std::net::{IpAddr, SocketAddr};

use aftershock_core::name::{Api, Operation, Service};
use aftershock_core::template::{Matcher, Template, grpc_operation};
use aftershock_core::wire::Registry;

use foldhash::HashMap;

use crate::config::Config;
use crate::exchange::{Protocol, RequestHead};

/// The name of a callee of which nothing but an address is known: no Api is named after one.
const UNKNOWN: &str = "unknown";

/// A way out of the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The outbound listener with this index.
    Listed(usize),
    /// The address that the application connected to.
    Dialled(SocketAddr),
}

/// A callee behind a way out.
#[derive(Debug)]
pub(crate) struct Callee {
    /// Its name; where none is known, it is the authority that a request names.
    service: Option<Service>,
    /// It has a sidecar: members and hop headers go to it.
    pub(crate) registered: bool,
    apis: Apis,
}

/// The callees of all ways out.
#[derive(Debug, Default)]
pub(crate) struct Callees {
    listed: Vec<Callee>,
    /// Those of open connections, with how many there are.
    dialled: HashMap<SocketAddr, (Callee, usize)>,
    registry: Registry,
}

impl Callees {
    /// Everybody is named anew.
    pub(crate) fn register(&mut self, config: &Config, registry: Registry) {
        self.registry = registry;
        self.listed = config.outbound.iter().map(|outbound| self.listed(outbound)).collect();
        let addresses: Vec<SocketAddr> = self.dialled.keys().copied().collect();
        for address in addresses {
            let callee = self.resolve(address);
            self.dialled.entry(address).and_modify(|(known, _)| *known = callee);
        }
    }

    fn listed(&self, outbound: &crate::config::Outbound) -> Callee {
        let registered = outbound.to.iter().find_map(|address| self.registry.service_at(*address));
        let service = registered.unwrap_or(&outbound.callee).clone();
        if service != outbound.callee {
            tracing::warn!(configured = %outbound.callee, registered = %service, "a callee registered under another name");
        }
        self.callee(self.registry.services.contains(&service), Some(service))
    }

    fn resolve(&self, address: SocketAddr) -> Callee {
        let service = self.registry.service_at(address).cloned();
        self.callee(service.is_some(), service)
    }

    fn callee(&self, registered: bool, service: Option<Service>) -> Callee {
        let templates = service.as_ref().and_then(|service| self.registry.templates.get(service));
        let parse = |text: &String| match Template::parse(text) {
            Ok(template) => Some(template),
            Err(error) => {
                tracing::warn!(?service, %error, "ignoring a path template of a callee");
                None
            }
        };
        let templates = Matcher::new(templates.into_iter().flatten().filter_map(parse).collect());
        Callee { service, registered, apis: Apis::new(templates) }
    }

    /// A connection to `address` begins.
    pub(crate) fn dial(&mut self, address: SocketAddr) {
        match self.dialled.get_mut(&address) {
            Some((_, open)) => *open += 1,
            None => {
                let callee = self.resolve(address);
                self.dialled.insert(address, (callee, 1));
            }
        }
    }

    /// A connection to `address` has ended.
    pub(crate) fn hang_up(&mut self, address: SocketAddr) {
        if let Some((_, open)) = self.dialled.get_mut(&address) {
            *open -= 1;
            if *open == 0 {
                self.dialled.remove(&address);
            }
        }
    }

    /// Who is behind a way of an open connection.
    pub(crate) fn behind(&self, way: Way) -> &Callee {
        match way {
            Way::Listed(index) => &self.listed[index],
            Way::Dialled(address) => &self.dialled[&address].0,
        }
    }
}

impl Callee {
    /// Its name, where one is registered or configured.
    pub(crate) fn name(&self) -> Option<&Service> {
        self.service.as_ref()
    }

    /// What it is called in `head`.
    pub(crate) fn service(&self, head: &RequestHead<'_>) -> Service {
        self.service.clone().unwrap_or_else(|| named_by(head.authority))
    }

    /// Whether it has no sidecar, and hands members on.
    pub(crate) fn relays(&self, config: &Config, head: &RequestHead<'_>) -> bool {
        !config.relay.is_empty() && config.relay.contains(&self.service(head))
    }

    pub(crate) fn api(&self, head: &RequestHead<'_>) -> Api {
        match &self.service {
            Some(service) => self.apis.called(service, head),
            None => Api { service: named_by(head.authority), operation: self.apis.operation(head, is_grpc(head)) },
        }
    }
}

/// The service that an authority names: its host, unless that is an address.
fn named_by(authority: &str) -> Service {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let is_address = host.starts_with('[') || [host, authority].iter().any(|text| text.parse::<IpAddr>().is_ok());
    let name = if is_address { None } else { host.to_ascii_lowercase().parse().ok() };
    name.unwrap_or_else(|| UNKNOWN.parse().expect("the name of a service"))
}

/// The Apis of one service, by the requests that call them.
///
/// Requests repeat each other: what a few of the last ones called is remembered, by method and path as they stand there.
#[derive(Debug)]
pub(crate) struct Apis {
    templates: Matcher,
    lately: RefCell<Vec<Option<Called>>>,
}

/// A request that was seen, and what it called.
#[derive(Debug)]
struct Called {
    method: Box<str>,
    path: Box<str>,
    grpc: bool,
    api: Api,
}

/// How many requests are remembered, each in a place of its own.
const REMEMBERED: usize = 64;
/// The longest path that is.
const LONGEST: usize = 256;

impl Apis {
    pub(crate) fn new(templates: Matcher) -> Self {
        Apis { templates, lately: RefCell::default() }
    }

    /// The Api that a request to `service`, whose Apis these are, calls.
    pub(crate) fn called(&self, service: &Service, head: &RequestHead<'_>) -> Api {
        let grpc = is_grpc(head);
        let mut hasher = DefaultHasher::new();
        hasher.write(head.path.as_bytes());
        let place = hasher.finish() as usize % REMEMBERED;
        let mut lately = self.lately.borrow_mut();
        let is_it = |seen: &&Called| seen.grpc == grpc && *seen.path == *head.path && *seen.method == *head.method;
        if let Some(seen) = lately.get(place).and_then(Option::as_ref).filter(is_it) {
            return seen.api.clone();
        }
        let api = Api { service: service.clone(), operation: self.operation(head, grpc) };
        if head.path.len() <= LONGEST && head.method.len() <= LONGEST {
            lately.resize_with(REMEMBERED, || None);
            lately[place] = Some(Called { method: head.method.into(), path: head.path.into(), grpc, api: api.clone() });
        }
        api
    }

    fn operation(&self, head: &RequestHead<'_>, grpc: bool) -> Operation {
        let grpc = if grpc { grpc_operation(head.path) } else { None };
        let text = grpc.map_or_else(|| self.templates.operation(head.method, head.path), str::to_owned);
        // Both forms are made to parse; a request is never stopped for its name.
        text.parse::<Operation>().or_else(|_| "_OTHER *".parse()).expect("the fallback is an operation")
    }
}

/// Whether the outcome of a request's answer stands in its trailers.
pub(crate) fn is_grpc(head: &RequestHead<'_>) -> bool {
    let is_type = |text: &str| {
        let rest = text.strip_prefix("application/grpc");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
    };
    head.protocol == Protocol::Http2 && head.method == "POST" && head.fields.text("content-type").is_some_and(is_type)
}

/// Whether a request is a health probe, which is neither faulted nor counted. The configured paths are those of the
/// service itself.
pub(crate) fn is_probe(head: &RequestHead<'_>, config: &Config, inbound: bool) -> bool {
    let is_configured = || config.health_paths.contains(head.path.split('?').next().unwrap_or_default());
    let mut agents = head.fields.all("user-agent");
    agents.next().is_some_and(|agent| agent.starts_with(b"kube-probe/"))
        || head.path.starts_with("/grpc.health.v1.Health/")
        || (inbound && !config.health_paths.is_empty() && is_configured())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exchange::Fields;

    #[test]
    fn an_authority_names_a_service_by_its_host_and_never_by_an_address() {
        for (authority, service) in [
            ("Payment:8080", "payment"),
            ("payment.shop.svc", "payment.shop.svc"),
            ("10.0.0.7:80", UNKNOWN),
            ("10.0.0.7", UNKNOWN),
            ("[fd00::7]:80", UNKNOWN),
            ("[fd00::7]", UNKNOWN),
            ("fd00::7", UNKNOWN),
            ("", UNKNOWN),
            ("with space", UNKNOWN),
        ] {
            assert_eq!(named_by(authority).as_str(), service, "{authority}");
        }
    }

    proptest! {
        /// What is remembered changes nothing: the same Api as one that has seen nothing names.
        #[test]
        fn an_api_is_named_as_if_it_were_called_for_the_first_time(
            requests in prop::collection::vec(
                ("GET|POST", "/product/[0-9]{1,3}|/cart|/shop.Cart/(Get|Add)|/[a-z]{1,2}/[a-z]{250,252}", any::<bool>()),
                1..200,
            )
        ) {
            let service: Service = "shop".parse().unwrap();
            let fresh = || Apis::new(Matcher::new(vec![Template::parse("GET /product/{id}").unwrap()]));
            let known = fresh();
            for (method, path, grpc) in &requests {
                let content_type: &[u8] = if *grpc { b"application/grpc" } else { b"text/plain" };
                let head = RequestHead {
                    protocol: Protocol::Http2,
                    method,
                    path,
                    authority: "",
                    fields: Fields([(&b"content-type"[..], content_type)].into_iter().collect()),
                    ends: false,
                };
                prop_assert_eq!(known.called(&service, &head), fresh().called(&service, &head));
            }
            prop_assert!(known.lately.borrow().len() <= REMEMBERED);
        }
    }
}
