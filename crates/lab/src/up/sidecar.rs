//! The configuration file of a sidecar, `kind: Sidecar`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Options;
use super::layout::Site;
use crate::topology::{Operation, Propagation, Topology};

/// The text of the file; JSON strings are YAML strings, so every value is quoted as JSON.
pub(super) fn config(topology: &Topology, service: &str, sites: &BTreeMap<String, Site>, options: &Options) -> String {
    let quoted = |text: &str| serde_json::to_string(text).expect("a string is JSON");
    let address = |address: &std::net::SocketAddr| quoted(&address.to_string());
    let site = &sites[service];
    let mut out = String::from("apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\n");
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string never fails");
    line(format!("service: {service}"));
    if let Some(control) = &options.control {
        line(format!("control: {}", quoted(control)));
    }
    line("inbound:".into());
    line(format!("  - {{listen: {}, to: {}}}", address(&site.inbound), address(&site.application)));
    match site.callees.is_empty() {
        true => line("outbound: []".into()),
        false => line("outbound:".into()),
    }
    for (callee, listen) in &site.callees {
        let to = address(&sites[callee].inbound);
        line(format!("  - {{listen: {}, callee: {callee}, to: [{to}], host: upstream}}", address(listen)));
    }
    let shipped = topology.service(service).and_then(|service| service.propagation);
    let correlate = match shipped.map(|shipped| options.propagation.unwrap_or(shipped)) {
        Some(Propagation::Uber) => "uber-trace-id",
        Some(Propagation::W3c | Propagation::None) | None => "",
    };
    line(format!("association: {{carrier: tracestate, correlate: [{correlate}]}}"));
    let templates: Vec<String> = topology
        .apis()
        .filter(|api| api.service == service)
        .filter_map(|api| match &api.operation {
            Operation::Http(route) => Some(quoted(&route.to_string())),
            Operation::Grpc(_) => None,
        })
        .collect();
    line(format!("templates: [{}]", templates.join(", ")));
    out
}
