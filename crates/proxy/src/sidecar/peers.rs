//! Who stands behind each listener, and how its Apis are called (design §3.10).

use aftershock_core::name::{Api, Operation, Service};
use aftershock_core::template::{Matcher, Template, grpc_operation};
use aftershock_core::wire::Registry;

use crate::config::Config;
use crate::exchange::{Protocol, RequestHead};

/// The callee behind an outbound listener.
#[derive(Debug)]
pub(crate) struct Callee {
    pub(crate) service: Service,
    /// It has a sidecar: members and hop headers go to it.
    pub(crate) registered: bool,
    /// It has none, and hands members on.
    pub(crate) relay: bool,
    templates: Matcher,
}

/// The callees of all outbound listeners, in their order, as the registry names them.
pub(crate) fn callees(config: &Config, registry: &Registry) -> Vec<Callee> {
    let resolve = |outbound: &crate::config::Outbound| {
        let registered = outbound.to.iter().find_map(|address| registry.addresses.get(address));
        let service = registered.unwrap_or(&outbound.callee).clone();
        if service != outbound.callee {
            tracing::warn!(configured = %outbound.callee, registered = %service, "a callee registered under another name");
        }
        let templates = registry.templates.get(&service).map_or(&[][..], Vec::as_slice);
        let parse = |text: &String| match Template::parse(text) {
            Ok(template) => Some(template),
            Err(error) => {
                tracing::warn!(%service, %error, "ignoring a path template of a callee");
                None
            }
        };
        Callee {
            registered: registry.services.contains(&service),
            relay: config.relay.contains(&service),
            templates: Matcher::new(templates.iter().filter_map(parse).collect()),
            service,
        }
    };
    config.outbound.iter().map(resolve).collect()
}

impl Callee {
    pub(crate) fn api(&self, head: &RequestHead<'_>) -> Api {
        api(&self.service, &self.templates, head)
    }
}

/// The Api that a request to `service` calls.
pub(crate) fn api(service: &Service, templates: &Matcher, head: &RequestHead<'_>) -> Api {
    let grpc = if is_grpc(head) { grpc_operation(head.path) } else { None };
    let text = grpc.map_or_else(|| templates.operation(head.method, head.path), str::to_owned);
    // Both forms are made to parse; a request is never stopped for its name.
    let operation = text.parse::<Operation>().or_else(|_| "_OTHER *".parse()).expect("the fallback is an operation");
    Api { service: service.clone(), operation }
}

/// Whether the outcome of a request's answer stands in its trailers.
pub(crate) fn is_grpc(head: &RequestHead<'_>) -> bool {
    let content_type = head.fields.text("content-type").and_then(|text| text.strip_prefix("application/grpc"));
    head.protocol == Protocol::Http2
        && head.method == "POST"
        && content_type.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// Whether a request is a health probe, which is neither faulted nor counted. The configured paths are those of the
/// service itself.
pub(crate) fn is_probe(head: &RequestHead<'_>, config: &Config, inbound: bool) -> bool {
    let path = head.path.split('?').next().unwrap_or_default();
    let kubelet = head.fields.text("user-agent").is_some_and(|agent| agent.starts_with("kube-probe/"));
    kubelet || path.starts_with("/grpc.health.v1.Health/") || (inbound && config.health_paths.contains(path))
}
