//! `aftershock-proxy redirect`: what was there is there again afterwards, or nothing was changed in the first place.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use aftershock_lab::net::Namespace;

use crate::support::pods::{Configured, namespace, proxy, run, succeed};

const NFT: (&str, &str) = ("nft", "nftables");
const KINDS: [(&str, &str); 2] = [("xtables-nft-multi", "iptables"), ("xtables-legacy-multi", "iptables")];

/// Everything that can be said.
const FULL: &str = "{inbound: 16006, outbound: 16001, own: {gid: 4700, uid: 4701}, exclude: {inbound_ports: [22, 9090], \
                    outbound_ports: [25], outbound_ranges: [10.9.0.0/16, \"fd00:9::/64\"]}}";

/// Rules of somebody else, at the same hooks.
const FOREIGN: &str = "table ip nat {
    chain PREROUTING { type nat hook prerouting priority dstnat; policy accept; tcp dport 8 redirect to :9; }
    chain OUTPUT { type nat hook output priority -100; policy accept; ip daddr 192.0.2.1 accept; }
}
table inet filter {
    set blocked { type ipv4_addr; elements = { 192.0.2.7, 192.0.2.8 }; }
    chain input { type filter hook input priority filter; policy accept; ip saddr @blocked drop; }
}
";

fn nft(inside: &Namespace, text: &str) {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    let mut child = inside.spawn(&mut command).expect("nft runs");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    assert!(child.wait().expect("it ends").success(), "{text}");
}

fn ruleset(inside: &Namespace) -> String {
    succeed(inside, Command::new("nft").args(["list", "ruleset"]))
}

/// What a command that must fail says, in one line.
fn refusal(inside: &Namespace, command: &mut Command) -> String {
    let output = run(inside, command);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said.trim_end().strip_prefix("aftershock-proxy: ").expect("it says who speaks").to_owned()
}

#[test]
fn rules_made_twice_are_made_once_and_leave_the_ruleset_as_it_was() {
    let test = "rules_made_twice_are_made_once_and_leave_the_ruleset_as_it_was";
    for foreign in [FOREIGN, ""] {
        let Some(inside) = namespace(test, &[NFT]) else { return };
        nft(&inside, foreign);
        let before = ruleset(&inside);
        for transparent in ["{}", FULL] {
            let configured = Configured::new("shop", transparent);
            succeed(&inside, &mut configured.redirect("apply", "nft"));
            let once = ruleset(&inside);
            assert!(once.starts_with(&before) && once.len() > before.len(), "{once}");
            succeed(&inside, &mut configured.redirect("apply", "nft"));
            assert_eq!(ruleset(&inside), once);
        }
        // Other rules were replaced; whoever removes them needs no configuration.
        for _ in 0..2 {
            succeed(&inside, proxy().args(["redirect", "remove"]));
            assert_eq!(ruleset(&inside), before);
        }
    }
}

#[test]
fn what_is_printed_is_what_is_made() {
    let test = "what_is_printed_is_what_is_made";
    let Some(inside) = namespace(test, &[NFT]) else { return };
    let configured = Configured::new("shop", FULL);
    let printed = succeed(&inside, &mut configured.redirect("print", "nft"));
    assert_eq!(ruleset(&inside), "", "printing changes nothing");
    nft(&inside, &printed);
    let by_hand = ruleset(&inside);
    succeed(&inside, &mut configured.redirect("apply", "nft"));
    assert_eq!(ruleset(&inside), by_hand);
    for expected in [
        "meta skgid 4700 return",
        "meta skuid 4701 return",
        "fib daddr type local return",
        "tcp dport { 22, 9090 } return",
        "tcp dport 25 return",
        "ip daddr 10.9.0.0/16 return",
        "ip6 daddr fd00:9::/64 return",
        "redirect to :16006",
        "redirect to :16001",
    ] {
        assert!(by_hand.contains(expected), "{expected}: {by_hand}");
    }
}

/// The programs of one kind of iptables, under their usual names and first in PATH.
struct Kind {
    folder: tempfile::TempDir,
}

impl Kind {
    fn new(program: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for family in ["iptables", "ip6tables"] {
            for verb in ["", "-save", "-restore"] {
                let name = folder.path().join(format!("{family}{verb}"));
                symlink(Path::new("/usr/sbin").join(program), name).expect("a link");
            }
        }
        // Not that of everybody else on this machine.
        File::create(folder.path().join("lock")).expect("a file");
        Self { folder }
    }

    /// In place of one of them, a program that does this.
    fn replace(&self, name: &str, script: &str) {
        let file = self.folder.path().join(name);
        std::fs::remove_file(&file).expect("a link");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a file");
    }

    fn set<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.folder.path().display());
        command.env("PATH", path).env("XTABLES_LOCKFILE", self.folder.path().join("lock"))
    }

    fn call(&self, inside: &Namespace, program: &str, arguments: &str) -> String {
        let mut command = Command::new(self.folder.path().join(program));
        succeed(inside, self.set(&mut command).args(arguments.split_whitespace()))
    }

    /// Chains and rules of both families, without comments and counters.
    fn saved(&self, inside: &Namespace) -> String {
        let both = ["iptables-save", "ip6tables-save"].map(|program| self.call(inside, program, ""));
        both.concat().lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    }

    /// Rules of somebody else, in both families.
    fn foreign(&self, inside: &Namespace) {
        for program in ["iptables", "ip6tables"] {
            for rule in [
                "-t nat -N THEIRS",
                "-t nat -A THEIRS -p tcp --dport 77 -j RETURN",
                "-t nat -A OUTPUT -j THEIRS",
                "-t nat -A PREROUTING -p tcp --dport 8 -j REDIRECT --to-ports 9",
                "-t filter -A INPUT -p tcp --dport 99 -j DROP",
            ] {
                self.call(inside, program, rule);
            }
        }
    }
}

#[test]
fn both_kinds_of_iptables_make_rules_once_and_remove_only_them() {
    let test = "both_kinds_of_iptables_make_rules_once_and_remove_only_them";
    for (program, _) in KINDS {
        let Some(inside) = namespace(test, &KINDS) else { return };
        let kind = Kind::new(program);
        kind.foreign(&inside);
        let before = kind.saved(&inside);
        for transparent in ["{}", FULL] {
            let configured = Configured::new("shop", transparent);
            succeed(&inside, kind.set(&mut configured.redirect("apply", "iptables")));
            let once = kind.saved(&inside);
            assert_ne!(once, before);
            assert!(before.lines().all(|line| once.contains(line)), "{program}: {once}");
            succeed(&inside, kind.set(&mut configured.redirect("apply", "iptables")));
            assert_eq!(kind.saved(&inside), once, "{program}");
        }
        for _ in 0..2 {
            succeed(&inside, kind.set(proxy().args(["redirect", "remove", "--backend", "iptables"])));
            assert_eq!(kind.saved(&inside), before, "{program}");
        }
    }
}

#[test]
fn when_the_second_family_refuses_the_first_has_what_it_had() {
    let test = "when_the_second_family_refuses_the_first_has_what_it_had";
    let Some(inside) = namespace(test, &KINDS) else { return };
    let refuses = "cat >/dev/null; echo \"ip6tables-restore: can't initialize ip6tables table 'nat'\" >&2; exit 3";
    let (good, bad) = (Kind::new(KINDS[0].0), Kind::new(KINDS[0].0));
    bad.replace("ip6tables-restore", refuses);
    good.foreign(&inside);
    let (first, second) = (Configured::new("shop", "{}"), Configured::new("shop", FULL));
    let before = good.saved(&inside);
    let said = refusal(&inside, bad.set(&mut first.redirect("apply", "iptables")));
    assert!(said.starts_with("the kernel lacks what `ip6tables-restore` needs"), "{said}");
    assert_eq!(good.saved(&inside), before);
    // The same where other rules of ours are there already.
    succeed(&inside, good.set(&mut first.redirect("apply", "iptables")));
    let made = good.saved(&inside);
    refusal(&inside, bad.set(&mut second.redirect("apply", "iptables")));
    assert_eq!(good.saved(&inside), made);
    refusal(&inside, bad.set(proxy().args(["redirect", "remove", "--backend", "iptables"])));
    assert_eq!(good.saved(&inside), made);
}

#[test]
fn a_lock_that_another_program_holds_is_waited_for_and_then_named() {
    let test = "a_lock_that_another_program_holds_is_waited_for_and_then_named";
    let Some(inside) = namespace(test, &KINDS) else { return };
    let kind = Kind::new(KINDS[1].0);
    let lock = File::open(kind.folder.path().join("lock")).expect("a file");
    lock.lock().expect("it is free");
    let configured = Configured::new("shop", "{}");
    let said = refusal(&inside, kind.set(&mut configured.redirect("apply", "iptables")));
    assert_eq!(said, "another program has held the lock of iptables for 5 s; nothing was changed, try again");
    lock.unlock().expect("it is ours");
    assert!(!kind.saved(&inside).contains("AFTERSHOCK"));
    succeed(&inside, kind.set(&mut configured.redirect("apply", "iptables")));
}

#[test]
fn without_the_capability_nothing_is_changed_and_one_sentence_says_so() {
    let test = "without_the_capability_nothing_is_changed_and_one_sentence_says_so";
    let Some(inside) = namespace(test, &[NFT, ("setpriv", "util-linux")]) else { return };
    nft(&inside, FOREIGN);
    let before = ruleset(&inside);
    let configured = Configured::new("shop", "{}");
    let weak = |command: &Command| {
        let mut weak = Command::new("setpriv");
        weak.args(["--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]);
        weak.arg(command.get_program()).args(command.get_args());
        weak
    };
    for backend in ["nft", "iptables"] {
        let mut remove = proxy();
        remove.args(["redirect", "remove", "--backend", backend]);
        for command in [&configured.redirect("apply", backend), &remove] {
            let said = refusal(&inside, &mut weak(command));
            assert!(said.contains("needs the capability NET_ADMIN"), "{said}");
        }
    }
    assert_eq!(ruleset(&inside), before);
}

#[test]
fn a_program_that_is_missing_is_named_with_its_package_and_the_other_way() {
    let test = "a_program_that_is_missing_is_named_with_its_package_and_the_other_way";
    let Some(inside) = namespace(test, &[]) else { return };
    let configured = Configured::new("shop", "{}");
    for (backend, program, package, other) in
        [("nft", "nft", "nftables", "iptables"), ("iptables", "iptables-save", "iptables", "nft")]
    {
        let said = refusal(&inside, configured.redirect("apply", backend).env("PATH", "/nowhere"));
        let expected = format!(
            "cannot find the program `{program}`: install {package} or add it to PATH, or choose `--backend {other}`"
        );
        assert_eq!(said, expected);
    }
}

#[test]
fn a_kernel_without_what_is_needed_is_named_in_one_sentence() {
    let test = "a_kernel_without_what_is_needed_is_named_in_one_sentence";
    let Some(inside) = namespace(test, &KINDS) else { return };
    let kind = Kind::new(KINDS[0].0);
    let script = "cat >/dev/null; printf '/dev/stdin:4:9-20: Error: Could not process rule: Operation not supported\\n\
                  chain inbound {\\n^^^^^\\n' >&2; exit 1";
    let nft = kind.folder.path().join("nft");
    std::fs::write(&nft, "").expect("a file");
    kind.replace("nft", script);
    let configured = Configured::new("shop", "{}");
    let said = refusal(&inside, kind.set(&mut configured.redirect("apply", "nft")));
    assert!(said.starts_with("the kernel lacks what `nft` needs to redirect connections: "), "{said}");
    assert!(said.ends_with("Operation not supported"), "{said}");
}

#[test]
fn a_sidecar_that_is_not_transparent_has_nothing_to_redirect() {
    let Some(inside) = namespace("a_sidecar_that_is_not_transparent_has_nothing_to_redirect", &[]) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("explicit.yaml");
    let text = "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\n\
                inbound: [{listen: \"127.0.0.1:1\", to: \"127.0.0.1:2\"}]\n";
    std::fs::write(&file, text).expect("a file");
    for action in ["apply", "print"] {
        let said = refusal(&inside, proxy().args(["redirect", action, "--config"]).arg(&file));
        assert!(said.ends_with("has no section `transparent`, so there is nothing to redirect"), "{said}");
    }
}

#[test]
fn a_sidecar_whose_own_traffic_would_come_back_does_not_start() {
    let Some(inside) = namespace("a_sidecar_whose_own_traffic_would_come_back_does_not_start", &[]) else { return };
    let configured = Configured::new("shop", "{}");
    let said = refusal(&inside, proxy().arg("--config").arg(configured.file()));
    let expected = "must not be redirected: run it as group 4700 (`transparent: own`), not as user 0, group 0";
    assert!(said.ends_with(expected), "{said}");
}
