//! iptables, of either kind: chains of our own in the table `nat`, once for each family, reached from the built-in chains by
//! one rule each. `iptables-restore` takes a text as one transaction for one family; when the second family refuses, the
//! first is given back what it had.
//!
//! What was there is read from `iptables-save`, which does not bring tables into being.

use std::fmt::Write as _;
use std::path::Path;

use super::{Program, RedirectError, Rules};

/// Seconds to wait for another program that holds the lock.
const WAIT: u32 = 5;

/// Our chain, the built-in chain that leads to it.
const CHAINS: [(&str, &str); 2] = [("AFTERSHOCK_IN", "PREROUTING"), ("AFTERSHOCK_OUT", "OUTPUT")];

/// A family of addresses and its programs.
struct Family {
    ipv6: bool,
    save: Program,
    restore: Program,
}

const fn program(name: &'static str) -> Program {
    Program { name, package: "iptables", other: "nft" }
}

const FAMILIES: [Family; 2] = [
    Family { ipv6: false, save: program("iptables-save"), restore: program("iptables-restore") },
    Family { ipv6: true, save: program("ip6tables-save"), restore: program("ip6tables-restore") },
];

/// What `iptables-save` says of ours.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Found {
    /// Our chains that are there.
    chains: Vec<String>,
    /// Their rules, `-A AFTERSHOCK_IN …`.
    rules: Vec<String>,
    /// The rules of other chains that lead to ours, `-A PREROUTING …`.
    jumps: Vec<String>,
}

impl Found {
    fn read(saved: &str) -> Found {
        let mut found = Found::default();
        let mut table = "";
        for line in saved.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            }
            if table != "nat" {
                continue;
            }
            let ours = |name: &str| CHAINS.iter().any(|(chain, _)| *chain == name);
            if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
                if ours(chain) {
                    found.chains.push(chain.to_owned());
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let words: Vec<&str> = rule.split(' ').collect();
                if ours(words[0]) {
                    found.rules.push(line.to_owned());
                } else if words.windows(2).any(|pair| pair[0] == "-j" && ours(pair[1])) {
                    found.jumps.push(line.to_owned());
                }
            }
        }
        found
    }

    fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty()
    }

    /// The text that removes it.
    fn removal(&self) -> String {
        let mut out = String::from("*nat\n");
        for jump in &self.jumps {
            let _ = writeln!(out, "-D {}", jump.strip_prefix("-A ").unwrap_or(jump));
        }
        for verb in ["-F", "-X"] {
            for chain in &self.chains {
                let _ = writeln!(out, "{verb} {chain}");
            }
        }
        out + "COMMIT\n"
    }

    /// The text that gives back what was found, after other rules of ours were made over it.
    fn again(&self) -> String {
        let mut out = String::from("*nat\n");
        for chain in &self.chains {
            let _ = writeln!(out, ":{chain} - [0:0]");
        }
        for rule in &self.rules {
            let _ = writeln!(out, "{rule}");
        }
        out + "COMMIT\n"
    }
}

/// The text for one family, where `found` is there. Declaring a chain empties it.
fn make(rules: &Rules, ipv6: bool, found: &Found) -> String {
    let mut out = String::from("*nat\n");
    for (chain, _) in CHAINS {
        let _ = writeln!(out, ":{chain} - [0:0]");
    }
    let mut rule = |chain: &str, rule: &str| {
        let _ = writeln!(out, "-A {chain} {rule}");
    };
    let [(inbound, _), (outbound, _)] = CHAINS;
    rule(inbound, "-i lo -j RETURN");
    rule(inbound, "-m addrtype ! --dst-type LOCAL -j RETURN");
    if ipv6 {
        rule(inbound, "-d fe80::/10 -j RETURN");
    }
    for port in &rules.inbound_ports {
        rule(inbound, &format!("-p tcp -m tcp --dport {port} -j RETURN"));
    }
    rule(inbound, &format!("-p tcp -j REDIRECT --to-ports {}", rules.inbound));
    if let Some(gid) = rules.own.gid {
        rule(outbound, &format!("-m owner --gid-owner {gid} -j RETURN"));
    }
    if let Some(uid) = rules.own.uid {
        rule(outbound, &format!("-m owner --uid-owner {uid} -j RETURN"));
    }
    rule(outbound, "-m addrtype --dst-type LOCAL -j RETURN");
    if ipv6 {
        rule(outbound, "-d fe80::/10 -j RETURN");
    }
    for port in &rules.outbound_ports {
        rule(outbound, &format!("-p tcp -m tcp --dport {port} -j RETURN"));
    }
    for range in rules.outbound_ranges.iter().filter(|range| range.is_ipv6() == ipv6) {
        rule(outbound, &format!("-d {range} -j RETURN"));
    }
    rule(outbound, &format!("-p tcp -j REDIRECT --to-ports {}", rules.outbound));
    for (chain, builtin) in CHAINS {
        let leads =
            |jump: &String| jump.starts_with(&format!("-A {builtin} ")) && jump.contains(&format!("-j {chain}"));
        if !found.jumps.iter().any(leads) {
            rule(builtin, &format!("-p tcp -j {chain}"));
        }
    }
    out + "COMMIT\n"
}

/// The texts of both families, for people.
pub(super) fn both(rules: &Rules) -> String {
    let mut out = String::new();
    for family in &FAMILIES {
        let _ = writeln!(out, "# {} --noflush", family.restore.name);
        out += &make(rules, family.ipv6, &Found::default());
    }
    out
}

/// The families that the kernel has.
fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().filter(|family| !family.ipv6 || Path::new("/proc/self/net/if_inet6").exists())
}

impl Family {
    fn found(&self) -> Result<Found, RedirectError> {
        let output = self.save.run(&[], "")?;
        if !output.status.success() {
            return Err(self.save.failure(&output));
        }
        Ok(Found::read(&String::from_utf8_lossy(&output.stdout)))
    }

    fn restore(&self, text: &str) -> Result<(), RedirectError> {
        let output = self.restore.run(&["--noflush", "-w", &WAIT.to_string()], text)?;
        if output.status.success() {
            return Ok(());
        }
        if String::from_utf8_lossy(&output.stderr).contains("xtables lock") {
            return Err(RedirectError::Locked { seconds: WAIT });
        }
        Err(self.restore.failure(&output))
    }
}

/// Does something to each family in turn; what was done is undone when a later one fails.
fn all_or_nothing(
    change: impl Fn(&Family, &Found) -> Option<String>,
    undo: impl Fn(&Family, &Found) -> Result<String, RedirectError>,
) -> Result<(), RedirectError> {
    let found: Vec<(&Family, Found)> =
        families().map(|family| family.found().map(|found| (family, found))).collect::<Result<_, _>>()?;
    for (at, (family, before)) in found.iter().enumerate() {
        let Some(text) = change(family, before) else { continue };
        if let Err(error) = family.restore(&text) {
            for (family, before) in &found[..at] {
                if change(family, before).is_some() {
                    family.restore(&undo(family, before)?)?;
                }
            }
            return Err(error);
        }
    }
    Ok(())
}

pub(super) fn apply(rules: &Rules) -> Result<(), RedirectError> {
    all_or_nothing(
        |family, before| Some(make(rules, family.ipv6, before)),
        |family, before| match before.is_empty() {
            true => Ok(family.found()?.removal()),
            false => Ok(before.again()),
        },
    )
}

pub(super) fn remove() -> Result<(), RedirectError> {
    all_or_nothing(
        |_, before| (!before.is_empty()).then(|| before.removal()),
        |_, before| Ok(before.again().replace("COMMIT\n", &(before.jumps.join("\n") + "\nCOMMIT\n"))),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{full, rules};
    use super::*;

    const MADE: &str = "*nat
:AFTERSHOCK_IN - [0:0]
:AFTERSHOCK_OUT - [0:0]
-A AFTERSHOCK_IN -i lo -j RETURN
-A AFTERSHOCK_IN -m addrtype ! --dst-type LOCAL -j RETURN
-A AFTERSHOCK_IN -d fe80::/10 -j RETURN
-A AFTERSHOCK_IN -p tcp -m tcp --dport 22 -j RETURN
-A AFTERSHOCK_IN -p tcp -m tcp --dport 8080 -j RETURN
-A AFTERSHOCK_IN -p tcp -j REDIRECT --to-ports 16006
-A AFTERSHOCK_OUT -m owner --gid-owner 5000 -j RETURN
-A AFTERSHOCK_OUT -m owner --uid-owner 5001 -j RETURN
-A AFTERSHOCK_OUT -m addrtype --dst-type LOCAL -j RETURN
-A AFTERSHOCK_OUT -d fe80::/10 -j RETURN
-A AFTERSHOCK_OUT -p tcp -m tcp --dport 25 -j RETURN
-A AFTERSHOCK_OUT -p tcp -m tcp --dport 53 -j RETURN
-A AFTERSHOCK_OUT -d fd00:9::/64 -j RETURN
-A AFTERSHOCK_OUT -p tcp -j REDIRECT --to-ports 16001
-A PREROUTING -p tcp -j AFTERSHOCK_IN
-A OUTPUT -p tcp -j AFTERSHOCK_OUT
COMMIT
";

    #[test]
    fn each_family_has_its_own_ranges() {
        assert_eq!(make(&full(), true, &Found::default()), MADE);
        let ipv4 = make(&full(), false, &Found::default());
        assert!(ipv4.contains("-d 10.9.0.0/16 ") && !ipv4.contains("fd00") && !ipv4.contains("fe80"), "{ipv4}");
    }

    #[test]
    fn a_jump_that_is_there_is_not_made_again_wherever_it_stands() {
        let saved =
            MADE.replace("-A PREROUTING", "-A PREROUTING -i x -j X\n-A PREROUTING -m comment --comment \"a b\"");
        let found = Found::read(&saved);
        assert_eq!(found.jumps.len(), 2);
        let again = make(&rules("{}", ""), true, &found);
        assert!(!again.contains("-A PREROUTING") && !again.contains("-A OUTPUT"), "{again}");
    }

    #[test]
    fn only_what_is_ours_in_the_table_nat_is_found_and_removed() {
        let saved = "# Generated\n*filter\n:INPUT ACCEPT [1:2]\n:AFTERSHOCK_IN - [0:0]\n-A INPUT -j AFTERSHOCK_IN\nCOMMIT\n\
                     *nat\n:PREROUTING ACCEPT [0:0]\n:AFTERSHOCK_IN - [0:0]\n:AFTERSHOCK_INN - [0:0]\n\
                     -A PREROUTING -j AFTERSHOCK_INN\n-A PREROUTING -p tcp -j AFTERSHOCK_IN\n\
                     -A PREROUTING -p tcp -j AFTERSHOCK_IN\n-A AFTERSHOCK_IN -p tcp -j REDIRECT --to-ports 1\nCOMMIT\n";
        let found = Found::read(saved);
        let expected = "*nat\n-D PREROUTING -p tcp -j AFTERSHOCK_IN\n-D PREROUTING -p tcp -j AFTERSHOCK_IN\n\
                        -F AFTERSHOCK_IN\n-X AFTERSHOCK_IN\nCOMMIT\n";
        assert_eq!(found.removal(), expected);
        let again = "*nat\n:AFTERSHOCK_IN - [0:0]\n-A AFTERSHOCK_IN -p tcp -j REDIRECT --to-ports 1\nCOMMIT\n";
        assert_eq!(found.again(), again);
        assert!(Found::read("").is_empty() && Found::read("*nat\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n").is_empty());
    }
}
