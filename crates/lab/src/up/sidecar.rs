//! The configuration file of a sidecar, `kind: Sidecar`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use super::Options;
use super::layout::{Site, Sites};
use super::pods::{Pods, REDIRECTED, SIDECARS};
use crate::topology::{Operation, Propagation, Topology};

/// The text of the file; JSON strings are YAML strings, so every value is quoted as JSON.
///
/// On a network of pods connections are redirected, except for questions about a service's state.
pub(super) fn config(
    topology: &Topology,
    service: &str,
    site: &Site,
    sites: &Sites,
    options: &Options,
    pods: Option<&Pods>,
) -> String {
    let address = |address: &std::net::SocketAddr| quoted(&address.to_string());
    let mut out = String::from("apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\n");
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string never fails");
    line(format!("service: {service}"));
    if let Some(control) = pods.map_or(&options.control, |pods| &pods.control) {
        let file = |name: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!(", {name}: {}", quoted(&path.to_string_lossy()))).unwrap_or_default()
        };
        let address = control.address.map(|at| format!(", address: {}", address(&at))).unwrap_or_default();
        let files = [
            address,
            file("token_file", &control.token_file),
            file("ca", &control.ca),
            file("cert", &control.cert),
            file("key", &control.key),
        ];
        let insecure = if control.insecure_plaintext { ", insecure_plaintext: true" } else { "" };
        let shown = files.concat() + insecure;
        match shown.is_empty() {
            true => line(format!("control: {}", quoted(&control.url))),
            false => line(format!("control: {{url: {}{shown}}}", quoted(&control.url))),
        }
    }
    match pods {
        Some(_) => {
            let [inbound, outbound] = REDIRECTED;
            line("transparent:".into());
            line(format!("  inbound: {inbound}"));
            line(format!("  outbound: {outbound}"));
            let admins: BTreeSet<u16> = sites.values().flatten().map(|site| site.admin.port()).collect();
            let admins: Vec<u16> = admins.into_iter().collect();
            line(format!("  exclude: {{inbound_ports: [{}], outbound_ports: {admins:?}}}", site.admin.port()));
            line(format!("  own: {{gid: {SIDECARS}}}"));
        }
        None => listeners(site, sites, &mut line),
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

/// Listeners that the application and its callers are told of.
fn listeners(site: &Site, sites: &Sites, line: &mut dyn FnMut(String)) {
    let address = |address: &std::net::SocketAddr| quoted(&address.to_string());
    line("inbound:".into());
    line(format!("  - {{listen: {}, to: {}}}", address(&site.inbound), address(&site.application)));
    match site.callees.is_empty() {
        true => line("outbound: []".into()),
        false => line("outbound:".into()),
    }
    for callee in site.callees.keys() {
        let listen = address(&site.outbound(callee));
        let to: Vec<String> = sites[callee].iter().map(|site| address(&site.inbound)).collect();
        line(format!("  - {{listen: {listen}, callee: {callee}, to: [{}], host: upstream}}", to.join(", ")));
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is JSON")
}

#[cfg(test)]
mod tests {
    use super::super::Launcher;
    use super::super::layout::Layout;
    use super::*;

    fn shipped_config(service: &str, propagation: Option<Propagation>) -> String {
        let text = include_str!("../../../../topologies/online-boutique.yaml");
        let topology = Topology::parse("online-boutique.yaml", text).unwrap();
        let launcher = Launcher { program: "unused".into(), args: Vec::new() };
        let control = Some("http://127.0.0.1:4700".to_owned().into());
        let sidecar = Some(launcher.clone());
        let options = Options { sidecar, control, propagation, ..Options::new(launcher) };
        let sites = Layout::on([127, 9, 9], &topology, &options).sites;
        config(&topology, service, &sites[service][0], &sites, &options, None)
    }

    #[test]
    fn every_replica_of_a_callee_is_listed_in_the_order_of_the_replicas() {
        let topology = Topology::parse("fan.yaml", include_str!("../../../../topologies/fan.yaml")).unwrap();
        let launcher = Launcher { program: "unused".into(), args: Vec::new() };
        let replicas = std::num::NonZeroU16::new(2).unwrap();
        let options = Options { sidecar: Some(launcher.clone()), replicas, ..Options::new(launcher) };
        let sites = Layout::on([127, 9, 9], &topology, &options).sites;
        let second = config(&topology, "worker", &sites["worker"][1], &sites, &options, None);
        assert!(second.contains("  - {listen: \"127.9.10.2:7001\", to: \"127.9.10.2:17001\"}\n"), "{second}");
        let to = "to: [\"127.9.9.3:7002\", \"127.9.10.3:7002\"], host: upstream}\n";
        assert!(second.contains(&format!("{{listen: \"127.9.10.2:20001\", callee: store, {to}")), "{second}");
    }

    #[test]
    fn a_caller_gets_a_listener_for_each_callee() {
        assert_eq!(
            shipped_config("checkoutservice", None),
            r#"apiVersion: aftershock.dev/v1alpha1
kind: Sidecar
service: checkoutservice
control: "http://127.0.0.1:4700"
inbound:
  - {listen: "127.9.9.2:5050", to: "127.9.9.2:15050"}
outbound:
  - {listen: "127.9.9.2:20002", callee: cartservice, to: ["127.9.9.5:7070"], host: upstream}
  - {listen: "127.9.9.2:20003", callee: currencyservice, to: ["127.9.9.6:7000"], host: upstream}
  - {listen: "127.9.9.2:20006", callee: emailservice, to: ["127.9.9.9:8080"], host: upstream}
  - {listen: "127.9.9.2:20005", callee: paymentservice, to: ["127.9.9.8:50051"], host: upstream}
  - {listen: "127.9.9.2:20001", callee: productcatalogservice, to: ["127.9.9.4:3550"], host: upstream}
  - {listen: "127.9.9.2:20004", callee: shippingservice, to: ["127.9.9.7:50051"], host: upstream}
association: {carrier: tracestate, correlate: []}
templates: []
"#
        );
    }

    #[test]
    fn http_operations_are_listed_and_a_leaf_has_no_outbound() {
        let frontend = shipped_config("frontend", Some(Propagation::Uber));
        assert!(frontend.contains("association: {carrier: tracestate, correlate: [uber-trace-id]}\n"), "{frontend}");
        assert!(
            frontend.ends_with(
                "templates: [\"POST /cart\", \"GET /cart\", \"POST /cart/checkout\", \"GET /\", \"GET /product/{id}\"]\n"
            ),
            "{frontend}"
        );
        let leaf = shipped_config("adservice", Some(Propagation::Uber));
        assert!(
            leaf.contains("outbound: []\nassociation: {carrier: tracestate, correlate: []}\ntemplates: []\n"),
            "{leaf}"
        );
    }
}
