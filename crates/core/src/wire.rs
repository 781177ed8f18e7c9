//! What the controller and the sidecars say to each other: one JSON object a line, over one ordered connection that the
//! sidecar opens (design §3.6).
//!
//! The sidecar begins with [`FromSidecar::Hello`]; the controller answers [`FromController::Welcome`] or
//! [`FromController::Refused`], naming both versions. Unknown messages of the same protocol version are errors: a
//! change of meaning raises [`PROTOCOL`].

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::{CountedEvent, Outcome};
use crate::hop::Keyring;
use crate::id::{CallId, ExecutionId, ObserverId, Token};
use crate::name::{Api, Service};
use crate::outcome::OutcomeOverride;
use crate::plan::{Rule, Side};
use crate::span::Association;

/// The version of this protocol.
pub const PROTOCOL: u32 = 4;

/// The longest line either side accepts, in bytes.
pub const MAX_LINE: usize = 4 << 20;

/// Most entries of [`Counters::unseen`].
pub const MAX_UNSEEN: usize = 256;

/// Most Apis in [`Counters::unassociated`].
pub const MAX_UNASSOCIATED: usize = 256;

/// How long a pass waits for the arbiter unless told otherwise (design §3.4).
pub const ARBITER_TIMEOUT: Duration = Duration::from_millis(50);

/// The path of the HTTP/1.1 upgrade that opens the connection, with `Upgrade: aftershock/1`.
pub const UPGRADE_PATH: &str = "/v1/sidecar";

/// The token of that upgrade.
pub const UPGRADE_TOKEN: &str = "aftershock/1";

/// Where spans go, beneath the controller's address: the standard OTLP/HTTP path.
pub const TRACES_PATH: &str = "/v1/traces";

/// From a sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum FromSidecar {
    /// The first line.
    Hello(Hello),
    /// The answer to [`FromController::Arm`]: everything after it sees the rules.
    Armed {
        /// Which round.
        token: Token,
    },
    /// The answer to [`FromController::Arm`] when it cannot be done; nothing was changed.
    NotArmed {
        /// Which round.
        token: Token,
        /// Why.
        reason: String,
    },
    /// The answer to [`FromController::Disarm`]: parked messages were released, dropped calls closed.
    Disarmed {
        /// Which round.
        token: Token,
    },
    /// What met the cuts of a round: said before [`FromSidecar::Disarmed`], if it had any.
    Cut {
        /// Which round.
        token: Token,
        /// The connections, by callee.
        connections: BTreeMap<Service, CutConnections>,
    },
    /// A lease ran out before it was renewed: rules were removed, parked messages released.
    Lapsed {
        /// Which round.
        token: Token,
    },
    /// The open calls of a watched round changed.
    Activity {
        /// Which round.
        token: Token,
        /// How many calls of it began here so far.
        begun: u64,
        /// Its calls that are open here.
        open: Vec<OpenCall>,
    },
    /// A pass of an arbitrated rule arrived, or a held one asks again: its number is wanted, and the shot (design §3.4).
    /// Asked in the order in which passes arrive; a pass is named by rule and call.
    Ask(Ask),
    /// A pass was not answered in time and went on: the rule has ended here for that execution, and no shot of it may be
    /// granted there any more.
    GiveUp {
        /// Which round.
        token: Token,
        /// Which rule of its plan.
        rule: usize,
        /// In which execution.
        execution: ExecutionId,
        /// On which call.
        call: CallId,
    },
    /// A grant cannot be used: it came too late, its caller has gone, or the message could not be faulted. The rule has
    /// ended here for that execution.
    HandBack {
        /// Which round.
        token: Token,
        /// Which rule of its plan.
        rule: usize,
        /// In which execution.
        execution: ExecutionId,
        /// On which call.
        call: CallId,
    },
    /// The hop keys that are in use here now, the signing one first: the answer to [`FromController::Keys`].
    Keyed {
        /// Their ids.
        keys: Vec<u8>,
    },
    /// A rule fired. For an arbitrated rule it spends the shot.
    Fired {
        /// Which round.
        token: Token,
        /// Which rule of its plan.
        rule: usize,
        /// In which execution.
        execution: ExecutionId,
        /// On which call.
        call: CallId,
    },
    /// The answer to [`FromController::Flush`]: every span recorded before it was accepted by the collector or counted
    /// as lost.
    Flushed {
        /// Repeats the request's number.
        id: u64,
        /// Spans accepted by the collector since the process began.
        exported: u64,
        /// Spans lost since the process began: the buffer was full or the collector did not take them.
        lost: u64,
        /// Spans lost per round, for rounds that are live here.
        lost_of: BTreeMap<Token, u64>,
    },
    /// Counters since the process began, sent with every flush and on [`FromController::Report`].
    Counters(Counters),
}

/// The first line of a sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the sender.
    pub protocol: u32,
    /// The sender's product version.
    pub version: String,
    /// Its service.
    pub service: Service,
    /// Its process start.
    pub observer: ObserverId,
    /// The addresses at which callers reach it, `ip:port`; port 0 stands for every port of that address.
    pub inbound: Vec<String>,
    /// Addresses beneath those of `inbound` at which callers reach the application past the sidecar.
    #[serde(default)]
    pub excluded: Vec<String>,
    /// The callees of its outbound listeners, as configured, with their addresses.
    pub outbound: BTreeMap<Service, Vec<String>>,
    /// Path templates of its own HTTP operations.
    pub templates: Vec<String>,
}

/// The question of [`FromSidecar::Ask`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Which round.
    pub token: Token,
    /// Which rule of its plan.
    pub rule: usize,
    /// In which execution.
    pub execution: ExecutionId,
    /// On which call.
    pub call: CallId,
    /// Whether, but for the number and atoms on the target's own event, the fault may happen now: guard and outcome hold
    /// and nothing blocks it here.
    pub ready: bool,
    /// The outcome of the message, where it is known; what atoms on the target's own event count by.
    pub outcome: Option<Outcome>,
}

/// What the arbiter says of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ruling {
    /// The shot is reserved for it: fault it now, or hand it back.
    Grant,
    /// It has another number than `k`.
    Number,
    /// Its number fits; it was not ready, or these atoms on the target's own event do not hold yet, by their position in
    /// the guard. A held pass may ask again.
    NotYet(Vec<usize>),
    /// The shot is reserved or spent, or the rule has ended in this execution or round. It may be said unasked to a pass
    /// that was told to wait: then that goes on at once.
    Spent,
}

/// Connections that met a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CutConnections {
    /// Those that were open when it began.
    pub broken: u64,
    /// Those that were tried while it lasted.
    pub refused: u64,
}

/// One open call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// As whose sidecar it is seen.
    pub side: Side,
    /// Its execution.
    pub execution: ExecutionId,
    /// Its id.
    pub call: CallId,
    /// The call above it.
    pub parent: Option<CallId>,
    /// What was called.
    pub api: Api,
    /// What it waits for.
    pub state: OpenState,
}

/// Why a call is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpenState {
    /// It runs, or asks the arbiter: that is over soon.
    Running,
    /// A `hold` or a `delay` keeps a message of it.
    Parked,
    /// A `drop` lost a message of it.
    Dropped,
}

/// Counters of a sidecar, since its process began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Calls per step of the association ladder.
    pub associations: BTreeMap<Association, u64>,
    /// Unassociated calls that its service sent, by what they call; not more than [`MAX_UNASSOCIATED`] Apis.
    #[serde(default)]
    pub unassociated: BTreeMap<Api, u64>,
    /// Things ignored, by name: `hop-forged`, `hop-oversized`, `member-stale`, `token-unknown`, `replay`, …
    pub ignored: BTreeMap<String, u64>,
    /// Connections that were neither HTTP/1 nor HTTP/2.
    pub opaque: u64,
    /// Where its service's opaque connections went; not more than [`MAX_UNSEEN`] entries.
    #[serde(default)]
    pub unseen: Vec<Unseen>,
    /// Entry requests without a token, by how they ended: what the stop condition watches.
    #[serde(default)]
    pub ordinary: Ordinary,
    /// Hop headers with evidence of a round that left, by their length in bytes, of which there are at most
    /// [`crate::hop::MAX_LEN`].
    #[serde(default, with = "pairs")]
    pub evidence: BTreeMap<u16, u64>,
}

/// A map with numbers for keys as a list of pairs: JSON has no such map, and inside of a tagged message serde does not read
/// numbers back from text.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<u16, u64>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u16, u64>, D::Error> {
        Ok(Vec::<(u16, u64)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Connections of a service to one place whose calls cannot be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    /// The callee's name where its sidecar registered or the configuration gives one, else the address.
    pub to: String,
    /// What a TLS client asked for (RFC 6066 §3).
    #[serde(default)]
    pub server_name: Option<String>,
    /// How many.
    pub connections: u64,
}

/// Ordinary entry requests that ended, since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ordinary {
    /// All of them.
    pub requests: u64,
    /// Those with outcome `error`, or that ended without a response although their client waited.
    pub errors: u64,
}

/// From the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum FromController {
    /// The sidecar is registered.
    Welcome {
        /// [`PROTOCOL`] of the controller.
        protocol: u32,
        /// The controller's product version.
        version: String,
        /// Keys of hop tags.
        keys: Keyring,
        /// Who is registered.
        registry: Registry,
        /// Rounds that are live: this sidecar came late to them (design §3.4).
        late: Vec<Token>,
    },
    /// The sidecar is not registered; the connection is closed.
    Refused {
        /// Why.
        reason: String,
    },
    /// Who is registered, again after a change.
    Registry(Registry),
    /// Make a round live here, with its rules, until the lease ends.
    Arm(Arm),
    /// The answer to [`FromSidecar::Ask`]. Also said unasked, as [`Ruling::Spent`], of a held pass that was told to wait,
    /// once the rule has ended in its execution or the round's shots are spent.
    Ruled {
        /// Which round.
        token: Token,
        /// Which rule of its plan.
        rule: usize,
        /// In which execution.
        execution: ExecutionId,
        /// On which call.
        call: CallId,
        /// The number of the pass in the execution, from 1.
        number: u32,
        /// What it may do.
        ruling: Ruling,
    },
    /// Other keys of hop tags. Answered with [`FromSidecar::Keyed`].
    Keys {
        /// The signing one first.
        keys: Keyring,
    },
    /// Prolong the lease of a round.
    Renew {
        /// Which round.
        token: Token,
    },
    /// Remove the rules of a round; its token stays live.
    Disarm {
        /// Which round.
        token: Token,
    },
    /// Forget the round.
    End {
        /// Which round.
        token: Token,
    },
    /// Send [`FromSidecar::Activity`] now and at every change of the round's open calls, until its end.
    Watch {
        /// Which round.
        token: Token,
    },
    /// Export everything recorded so far, then answer with this number.
    Flush {
        /// Repeated in the answer.
        id: u64,
    },
    /// Send [`FromSidecar::Counters`].
    Report,
}

/// A round, as a sidecar is armed with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// The round's token.
    pub token: Token,
    /// The rules that act at this sidecar.
    pub rules: Vec<Rule>,
    /// The events to count, the same at every sidecar.
    pub events: Vec<CountedEvent>,
    /// Apis that a rule mentions or that have such an Api beneath them in the traces: an unassociated call to one of
    /// them sets the number gap.
    pub gap_apis: BTreeSet<Api>,
    /// Record spans of its executions.
    pub record: bool,
    /// The entry's sidecar replaces trace and correlation ids by fresh ones (clients whose environment is constant).
    pub constant_context: bool,
    /// How long the rules stay without [`FromController::Renew`], from receipt, on the monotonic clock.
    pub lease: Duration,
    /// Most messages parked at once at this sidecar.
    pub max_parked: usize,
    /// How long a pass of an arbitrated rule waits for its answer.
    pub arbiter_timeout: Duration,
    /// Apis whose outcome is not what their status says.
    #[serde(default)]
    pub outcomes: Vec<OutcomeOverride>,
    /// Apis that this service is known to call: what the ladder's step `exclusive` may claim (design §3.1).
    #[serde(default)]
    pub known_calls: BTreeSet<Api>,
    /// This sidecar makes executions of the round of ordinary entry requests.
    #[serde(default)]
    pub tagging: Option<Tagging>,
    /// Callees that are cut off from this sidecar's service until the round is disarmed: open connections to them are
    /// broken, new ones refused, whoever's calls they carry.
    #[serde(default)]
    pub cuts: BTreeSet<Service>,
}

impl Arm {
    /// What arms a clean recording: no rules, no events.
    pub fn clean(token: Token, lease: Duration) -> Self {
        Arm {
            token,
            rules: Vec::new(),
            events: Vec::new(),
            gap_apis: BTreeSet::new(),
            record: true,
            constant_context: false,
            lease,
            max_parked: 64,
            arbiter_timeout: ARBITER_TIMEOUT,
            outcomes: Vec::new(),
            known_calls: BTreeSet::new(),
            tagging: None,
            cuts: BTreeSet::new(),
        }
    }
}

/// Which ordinary entry requests become executions of a round (design §3.6).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tagging {
    /// Only requests that carry each of these header fields with exactly this value; names in lower case.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Of those, this many in a million, by chance.
    pub per_million: u32,
}

/// The services that have a sidecar, and how their Apis are named.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Registry {
    /// Service by the address at which its sidecar takes requests; port 0 stands for every port of that address.
    pub addresses: BTreeMap<String, Service>,
    /// Addresses beneath those at which requests pass by the sidecar.
    #[serde(default)]
    pub excluded: BTreeSet<String>,
    /// Path templates by service.
    pub templates: BTreeMap<Service, Vec<String>>,
    /// Services with at least one registered sidecar.
    pub services: BTreeSet<Service>,
}

impl Registry {
    /// The service whose sidecar takes what is sent to `address`.
    pub fn service_at(&self, address: SocketAddr) -> Option<&Service> {
        let text = address.to_string();
        if self.excluded.contains(&text) {
            return None;
        }
        let every_port = || self.addresses.get(&SocketAddr::new(address.ip(), 0).to_string());
        self.addresses.get(&text).or_else(every_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_by_itself_then_by_its_host_and_not_where_it_is_excluded() {
        let service = |name: &str| name.parse::<Service>().unwrap();
        let registry = Registry {
            addresses: [("10.0.0.1:80", "exact"), ("10.0.0.1:0", "host"), ("[fd00::1]:0", "six")]
                .map(|(address, name)| (address.to_owned(), service(name)))
                .into(),
            excluded: ["10.0.0.1:9090".to_owned()].into(),
            ..Registry::default()
        };
        let at = |address: &str| registry.service_at(address.parse().unwrap()).map(Service::as_str);
        assert_eq!(at("10.0.0.1:80"), Some("exact"));
        assert_eq!(at("10.0.0.1:81"), Some("host"));
        assert_eq!(at("10.0.0.1:9090"), None);
        assert_eq!(at("10.0.0.2:80"), None);
        assert_eq!(at("[fd00::1]:443"), Some("six"));
    }

    #[test]
    fn counters_are_read_back_as_they_were_sent() {
        let evidence = BTreeMap::from([(32, 7), (1024, 1)]);
        let sent = FromSidecar::Counters(Counters { evidence, opaque: 3, ..Counters::default() });
        let line = serde_json::to_string(&sent).unwrap();
        assert!(line.contains(r#""evidence":[[32,7],[1024,1]]"#), "{line}");
        assert_eq!(serde_json::from_str::<FromSidecar>(&line).unwrap(), sent);
    }
}
