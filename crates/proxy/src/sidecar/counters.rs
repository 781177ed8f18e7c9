//! What a sidecar counts: ladder steps, things ignored, opaque connections, for `status`; how ordinary entry requests
//! end, for the stop condition.

use aftershock_core::hop::HopError;
use aftershock_core::name::Api;
use aftershock_core::span::Association;
use aftershock_core::w3c::MemberError;
use aftershock_core::wire;

/// Something that came and does not count. The request goes through all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ignored {
    /// A hop header whose tag does not fit.
    HopForged,
    /// A hop header over its limit.
    HopOversized,
    /// A hop header that cannot be read.
    HopMalformed,
    /// A hop header of a newer version.
    HopNewer,
    /// A hop header signed with a key that is not known here.
    HopUnknownKey,
    /// A hop header with a valid tag that belongs to another call.
    HopUnexpected,
    /// A hop header that did not fit into the receiver's limit and was left out.
    HopUnsent,
    /// A response without hop header, where one was due.
    HopMissing,
    /// A member that cannot be read.
    MemberMalformed,
    /// A member of another version.
    MemberVersion,
    /// On its way out, a member of no call that this process has or had open, or whose check does not fit.
    MemberStale,
    /// On its way in, a member of ordinary traffic without a valid hop tag.
    MemberUntagged,
    /// A member for which the application's carrier had no room, or of a client whose callee is not registered.
    MemberUnsent,
    /// A token that is not live here.
    TokenUnknown,
    /// A call that was seen here before.
    Replay,
    /// A message that was to be parked, with no place left for it.
    ParkedLimit,
}

impl Ignored {
    /// Every kind.
    pub(crate) const ALL: [Ignored; 16] = [
        Ignored::HopForged,
        Ignored::HopOversized,
        Ignored::HopMalformed,
        Ignored::HopNewer,
        Ignored::HopUnknownKey,
        Ignored::HopUnexpected,
        Ignored::HopUnsent,
        Ignored::HopMissing,
        Ignored::MemberMalformed,
        Ignored::MemberVersion,
        Ignored::MemberStale,
        Ignored::MemberUntagged,
        Ignored::MemberUnsent,
        Ignored::TokenUnknown,
        Ignored::Replay,
        Ignored::ParkedLimit,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Ignored::HopForged => "hop-forged",
            Ignored::HopOversized => "hop-oversized",
            Ignored::HopMalformed => "hop-malformed",
            Ignored::HopNewer => "hop-newer",
            Ignored::HopUnknownKey => "hop-unknown-key",
            Ignored::HopUnexpected => "hop-unexpected",
            Ignored::HopUnsent => "hop-unsent",
            Ignored::HopMissing => "hop-missing",
            Ignored::MemberMalformed => "member-malformed",
            Ignored::MemberVersion => "member-version",
            Ignored::MemberStale => "member-stale",
            Ignored::MemberUntagged => "member-untagged",
            Ignored::MemberUnsent => "member-unsent",
            Ignored::TokenUnknown => "token-unknown",
            Ignored::Replay => "replay",
            Ignored::ParkedLimit => "parked-limit",
        }
    }
}

impl From<&HopError> for Ignored {
    fn from(error: &HopError) -> Self {
        match error {
            HopError::Oversized(_) => Ignored::HopOversized,
            HopError::Encoding | HopError::Malformed(_) => Ignored::HopMalformed,
            HopError::Newer(_) => Ignored::HopNewer,
            HopError::UnknownKey(_) => Ignored::HopUnknownKey,
            HopError::Forged => Ignored::HopForged,
        }
    }
}

impl From<MemberError> for Ignored {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::Version => Ignored::MemberVersion,
            MemberError::Form => Ignored::MemberMalformed,
        }
    }
}

/// Counters since the process began.
#[derive(Debug, Default)]
pub(crate) struct Counters(wire::Counters);

impl Counters {
    /// A call stood on this step of the ladder.
    pub(crate) fn associated(&mut self, step: Association) {
        *self.0.associations.entry(step).or_default() += 1;
    }

    /// A call of its service could not be associated.
    pub(crate) fn unassociated(&mut self, api: &Api) {
        self.associated(Association::Unassociated);
        let counted = &mut self.0.unassociated;
        if let Some(calls) = counted.get_mut(api) {
            *calls += 1;
        } else if counted.len() < wire::MAX_UNASSOCIATED {
            counted.insert(api.clone(), 1);
        }
    }

    pub(crate) fn ignored(&mut self, what: Ignored) {
        if matches!(what, Ignored::HopForged | Ignored::HopOversized | Ignored::Replay) {
            tracing::warn!(what = what.as_str(), "ignored what came");
        }
        match self.0.ignored.get_mut(what.as_str()) {
            Some(count) => *count += 1,
            None => {
                self.0.ignored.insert(what.as_str().to_owned(), 1);
            }
        }
    }

    /// An entry request of no round ended.
    pub(crate) fn ordinary(&mut self, failed: bool) {
        self.0.ordinary.requests += 1;
        self.0.ordinary.errors += u64::from(failed);
    }

    /// A hop header of this length with evidence of a round leaves.
    pub(crate) fn evidence(&mut self, bytes: usize) {
        let bytes = u16::try_from(bytes).expect("hop headers have at most 1,024 bytes");
        *self.0.evidence.entry(bytes).or_default() += 1;
    }

    pub(crate) fn opaque(&mut self) {
        self.0.opaque += 1;
    }

    /// A connection of its service to `to` is opaque.
    pub(crate) fn unseen(&mut self, to: String, server_name: Option<&str>) {
        let counted = &mut self.0.unseen;
        let same = |seen: &&mut wire::Unseen| seen.to == to && seen.server_name.as_deref() == server_name;
        if let Some(seen) = counted.iter_mut().find(same) {
            seen.connections += 1;
        } else if counted.len() < wire::MAX_UNSEEN {
            counted.push(wire::Unseen { to, server_name: server_name.map(str::to_owned), connections: 1 });
        }
    }

    pub(crate) fn told(&self) -> &wire::Counters {
        &self.0
    }

    pub(crate) fn report(&self) -> wire::Counters {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unseen_connections_are_counted_by_place_and_name_and_the_list_is_bounded() {
        let mut counters = Counters::default();
        for _ in 0..3 {
            counters.unseen("db".to_owned(), None);
            counters.unseen("db".to_owned(), Some("db.example"));
        }
        for port in 0..1000 {
            counters.unseen(format!("10.0.0.1:{port}"), None);
        }
        counters.unseen("db".to_owned(), None);
        let report = counters.report();
        assert_eq!(report.unseen.len(), wire::MAX_UNSEEN);
        let named = |name: Option<&str>, connections| wire::Unseen {
            to: "db".to_owned(),
            server_name: name.map(str::to_owned),
            connections,
        };
        assert_eq!(report.unseen[..2], [named(None, 4), named(Some("db.example"), 3)]);
    }
}
