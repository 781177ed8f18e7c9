//! The rules that bring connections to the sidecar and leave its own alone.
//!
//! [`Rules`] are made of a configuration; a back end renders them as one text and hands it to the system's own program, which
//! takes all of it or nothing. Everything lives in a table (nftables) or in chains (iptables) of our own, so that it can be
//! replaced and removed whole without touching what others made. `docs/redirect.md` tells the user what they do.
//!
//! Invariants:
//! * What the sidecar itself sends is never redirected, nor what this host sends to itself: neither can loop.
//! * Making the same rules twice is making them once. Removing them restores what was there, byte for byte with nftables.

mod iptables;
mod nft;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::process::{Command, Output, Stdio};

use clap::ValueEnum;
use rustix::thread::CapabilitySet;

use crate::config::Config;
use crate::config::transparent::{Own, Range};

/// What is redirected, and what is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Where connections to the application go.
    inbound: u16,
    /// Where connections of the application go.
    outbound: u16,
    /// Ports at which connections are left alone, because that is said or because a listener of the sidecar is there.
    inbound_ports: BTreeSet<u16>,
    outbound_ports: BTreeSet<u16>,
    outbound_ranges: BTreeSet<Range>,
    own: Own,
}

/// What makes the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Backend {
    /// nftables, by `nft`.
    #[default]
    Nft,
    /// iptables, by `iptables-restore` and `ip6tables-restore`, of either kind.
    Iptables,
}

/// Why rules were not made or removed. Then nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// The configuration has no section `transparent`.
    #[error("{file} has no section `transparent`, so there is nothing to redirect")]
    Nothing {
        /// The file.
        file: String,
    },
    /// The process may not.
    #[error("changing the rules of a network namespace needs the capability NET_ADMIN, which this process lacks")]
    NotPermitted,
    /// A program is missing.
    #[error("cannot find the program `{program}`: install {package} or add it to PATH, or choose `--backend {other}`")]
    Missing {
        /// Which.
        program: &'static str,
        /// Where it comes from.
        package: &'static str,
        /// What else there is.
        other: &'static str,
    },
    /// It cannot be run.
    #[error("cannot run `{program}`")]
    Run {
        /// Which.
        program: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another program changes the rules and does not end.
    #[error("another program has held the lock of iptables for {seconds} s; nothing was changed, try again")]
    Locked {
        /// How long was waited.
        seconds: u32,
    },
    /// The kernel was built without something.
    #[error("the kernel lacks what `{program}` needs to redirect connections: {said}")]
    Kernel {
        /// Which.
        program: &'static str,
        /// What it said.
        said: String,
    },
    /// The program refuses for another reason.
    #[error("`{program}` failed: {said}")]
    Failed {
        /// Which.
        program: &'static str,
        /// What it said.
        said: String,
    },
}

impl Rules {
    /// Those of a sidecar with this configuration; none unless it is to be transparent.
    pub fn of(config: &Config) -> Option<Rules> {
        let transparent = config.transparent.as_ref()?;
        let listeners = config.inbound.iter().map(|inbound| inbound.listen);
        let reached = listeners.filter(|listen| !listen.ip().is_loopback() && listen.port() != 0);
        let exclude = &transparent.exclude;
        Some(Rules {
            inbound: transparent.inbound,
            outbound: transparent.outbound,
            inbound_ports: reached.map(|listen| listen.port()).chain(exclude.inbound_ports.iter().copied()).collect(),
            outbound_ports: exclude.outbound_ports.clone(),
            outbound_ranges: exclude.outbound_ranges.clone(),
            own: transparent.own,
        })
    }

    /// The text that makes them where there are none.
    pub fn render(&self, backend: Backend) -> String {
        match backend {
            Backend::Nft => nft::make(self),
            Backend::Iptables => iptables::both(self),
        }
    }

    /// Make them, in place of those that were made before.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn apply(&self, backend: Backend) -> Result<(), RedirectError> {
        permitted()?;
        match backend {
            Backend::Nft => nft::run(&nft::make(self)),
            Backend::Iptables => iptables::apply(self),
        }
    }
}

/// Remove the rules that were made, if there are any.
///
/// # Errors
/// When that is not possible.
pub fn remove(backend: Backend) -> Result<(), RedirectError> {
    permitted()?;
    match backend {
        Backend::Nft => nft::run(nft::REMOVE),
        Backend::Iptables => iptables::remove(),
    }
}

/// Asked first, so that everybody hears the same whatever the programs say.
fn permitted() -> Result<(), RedirectError> {
    match rustix::thread::capabilities(None) {
        Ok(sets) if !sets.effective.contains(CapabilitySet::NET_ADMIN) => Err(RedirectError::NotPermitted),
        // Where that cannot be known the kernel will say it.
        _ => Ok(()),
    }
}

/// A program that changes rules.
struct Program {
    name: &'static str,
    package: &'static str,
    /// The back end that does without it.
    other: &'static str,
}

impl Program {
    /// Run it with `input`; what it printed.
    fn run(&self, arguments: &[&str], input: &str) -> Result<Output, RedirectError> {
        let cannot = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => {
                RedirectError::Missing { program: self.name, package: self.package, other: self.other }
            }
            _ => RedirectError::Run { program: self.name, source },
        };
        let mut child = Command::new(self.name)
            .args(arguments)
            // What it says is read.
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        // It reads everything before it says anything, or has ended: then what it said tells why.
        drop(child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output().map_err(cannot)
    }

    /// Why it failed, in a sentence.
    fn failure(&self, output: &Output) -> RedirectError {
        let text = String::from_utf8_lossy(&output.stderr);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let telling = |line: &&str| line.contains("Error") || line.contains("rror:") || line.contains(self.name);
        let said = lines.clone().find(telling).or_else(|| lines.next()).unwrap_or("it does not say why");
        let said: String = said.chars().take(300).collect();
        let any = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if any(&["Operation not permitted", "Permission denied", "must be root"]) {
            return RedirectError::NotPermitted;
        }
        let kernel = [
            "not supported",
            "No such file or directory",
            "Table does not exist",
            "No chain/target/match by that name",
            "can't initialize",
            "missing kernel module",
        ];
        if any(&kernel) {
            return RedirectError::Kernel { program: self.name, said };
        }
        RedirectError::Failed { program: self.name, said }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a configuration with this section and further lines.
    pub(super) fn rules(transparent: &str, more: &str) -> Rules {
        let text = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\ntransparent: {transparent}\n{more}"
        );
        Rules::of(&Config::parse("s", &text).unwrap_or_else(|error| panic!("{error}"))).unwrap()
    }

    /// One that says everything.
    pub(super) fn full() -> Rules {
        let transparent = "{inbound: 16006, outbound: 16001, own: {gid: 5000, uid: 5001}, exclude: {inbound_ports: [22], \
                           outbound_ports: [53, 25], outbound_ranges: [10.9.0.0/16, \"fd00:9::/64\"]}}";
        let inbound = "inbound: [{listen: \"10.0.0.1:8080\", to: \"127.0.0.1:1\"}, {listen: \"127.0.0.1:9\", to: \
                       \"127.0.0.1:1\"}]\n";
        rules(transparent, inbound)
    }

    #[test]
    fn ports_at_which_a_listener_of_the_sidecar_is_reached_are_left_to_it() {
        assert_eq!(full().inbound_ports, [22, 8080].into(), "nobody else reaches loopback");
        let anywhere = "inbound: [{listen: \"0.0.0.0:81\", to: \"127.0.0.1:1\"}]\n";
        assert_eq!(rules("{}", anywhere).inbound_ports, [81].into());
    }

    #[test]
    fn a_sidecar_that_is_not_transparent_has_no_rules() {
        let text = "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\n\
                    inbound: [{listen: \"0.0.0.0:81\", to: \"127.0.0.1:1\"}]\n";
        assert_eq!(Rules::of(&Config::parse("s", text).unwrap()), None);
    }

    #[test]
    fn what_a_program_says_becomes_a_sentence() {
        let program = Program { name: "nft", package: "nftables", other: "iptables" };
        let said = |stderr: &str| {
            let status = std::os::unix::process::ExitStatusExt::from_raw(256);
            program.failure(&Output { status, stdout: Vec::new(), stderr: stderr.as_bytes().to_vec() }).to_string()
        };
        let lacks = "the kernel lacks what `nft` needs to redirect connections: ";
        for (stderr, sentence) in [
            (
                "Error: Could not process rule: Operation not permitted\n",
                "changing the rules of a network namespace needs",
            ),
            ("iptables: Permission denied (you must be root)\n", "changing the rules of a network namespace needs"),
            ("a\n/dev/stdin:5:9-30: Error: Could not process rule: No such file or directory\n  fib daddr\n", lacks),
            ("iptables-restore v1.8.9 (legacy): can't initialize iptables table `nat'\n", lacks),
            ("\nnft: something else\nand more\n", "`nft` failed: nft: something else"),
            ("", "`nft` failed: it does not say why"),
        ] {
            let said = said(stderr);
            assert!(said.starts_with(sentence) && said.lines().count() == 1, "{said}");
        }
    }
}
