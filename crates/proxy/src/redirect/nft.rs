//! nftables: a table of our own for both families. `nft -f` takes a file as one transaction.

use std::fmt::Write as _;

use super::{Program, RedirectError, Rules};

const PROGRAM: Program = Program { name: "nft", package: "nftables", other: "iptables" };

/// A table can only be deleted where there is one, so it is made first.
pub(super) const REMOVE: &str = "add table inet aftershock\ndelete table inet aftershock\n";

/// The table as it is to be, whatever was there.
pub(super) fn make(rules: &Rules) -> String {
    let (mut inbound, mut own, mut outbound) = (String::new(), String::new(), String::new());
    let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(", ");
    if !rules.inbound_ports.is_empty() {
        let ports = list(&mut rules.inbound_ports.iter().map(u16::to_string));
        let _ = writeln!(inbound, "        tcp dport {{ {ports} }} return");
    }
    if let Some(gid) = rules.own.gid {
        let _ = writeln!(own, "        meta skgid {gid} return");
    }
    if let Some(uid) = rules.own.uid {
        let _ = writeln!(own, "        meta skuid {uid} return");
    }
    if !rules.outbound_ports.is_empty() {
        let ports = list(&mut rules.outbound_ports.iter().map(u16::to_string));
        let _ = writeln!(outbound, "        tcp dport {{ {ports} }} return");
    }
    for (family, ipv6) in [("ip", false), ("ip6", true)] {
        let of_family = rules.outbound_ranges.iter().filter(|range| range.is_ipv6() == ipv6);
        let ranges = list(&mut of_family.map(ToString::to_string));
        if !ranges.is_empty() {
            let _ = writeln!(outbound, "        {family} daddr {{ {ranges} }} return");
        }
    }
    format!(
        "{REMOVE}table inet aftershock {{
    chain inbound {{
        type nat hook prerouting priority dstnat; policy accept;
        iif \"lo\" return
        fib daddr type != local return
        ip6 daddr fe80::/10 return
{inbound}        meta l4proto tcp redirect to :{}
    }}

    chain outbound {{
        type nat hook output priority -100; policy accept;
{own}        fib daddr type local return
        ip6 daddr fe80::/10 return
{outbound}        meta l4proto tcp redirect to :{}
    }}
}}
",
        rules.inbound, rules.outbound
    )
}

/// Hands a text to the kernel.
pub(super) fn run(text: &str) -> Result<(), RedirectError> {
    let output = PROGRAM.run(&["-f", "-"], text)?;
    if output.status.success() { Ok(()) } else { Err(PROGRAM.failure(&output)) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{full, rules};
    use super::*;

    #[test]
    fn the_text_replaces_the_whole_table() {
        let expected = "add table inet aftershock
delete table inet aftershock
table inet aftershock {
    chain inbound {
        type nat hook prerouting priority dstnat; policy accept;
        iif \"lo\" return
        fib daddr type != local return
        ip6 daddr fe80::/10 return
        tcp dport { 22, 8080 } return
        meta l4proto tcp redirect to :16006
    }

    chain outbound {
        type nat hook output priority -100; policy accept;
        meta skgid 5000 return
        meta skuid 5001 return
        fib daddr type local return
        ip6 daddr fe80::/10 return
        tcp dport { 25, 53 } return
        ip daddr { 10.9.0.0/16 } return
        ip6 daddr { fd00:9::/64 } return
        meta l4proto tcp redirect to :16001
    }
}
";
        assert_eq!(make(&full()), expected);
        let least = make(&rules("{}", ""));
        assert!(!least.contains("dport") && !least.contains("skuid") && least.contains("meta skgid 4700 return\n"));
        assert!(least.lines().all(|line| line.trim_end() == line), "{least}");
    }
}
