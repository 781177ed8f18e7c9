//! `tracestate`: W3C Trace Context Level 2, §3.3, edited without touching what others wrote in it.
//!
//! Several header lines are one list, in order. Members of others are kept byte for byte, without the optional
//! whitespace around them; empty members are dropped. Whoever edits nothing forwards the lines as they came.
//!
//! *A malformed list* (a member that is no `key=value`) is absent for reading. Removing our member from it leaves the
//! rest as it came; adding one replaces it, as §3.3 and the processing model ask of a participant that writes, since
//! the next strict reader would throw the list away and our member with it.
//!
//! *Limits*, kept whenever a member is added: 32 members and 512 characters. To get there, whole members go, from the
//! right, those of more than 128 characters first (§3.3.1.5). The added one stays. Removing never makes a list longer.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{Member, MemberError, member, trim_ows};

/// The most members of a list (§3.3.1.1).
const MAX_MEMBERS: usize = 32;
/// The most characters of a list with its commas, of those we write (§3.3.1.5).
const MAX_LENGTH: usize = 512;
/// Members longer than this go first.
const LONG_MEMBER: usize = 128;
/// The most characters of a key, and of a value (§3.3.1.3).
const MAX_PART: usize = 256;

/// A key or a value that may not stand in a `tracestate`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a tracestate key of [a-z0-9_*/@-] and a value of printable ASCII, up to 256 characters each, found {0:?}"
)]
pub struct InvalidMember(String);

/// The members of a `tracestate`, as they came. Those are borrowed from the lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceState<'a> {
    members: SmallVec<[Cow<'a, [u8]>; 4]>,
    malformed: bool,
}

impl<'a> TraceState<'a> {
    /// Reads the values of all `tracestate` lines of a message, in their order. Never fails; see the module.
    pub fn parse<V: AsRef<[u8]> + ?Sized + 'a>(lines: impl IntoIterator<Item = &'a V>) -> Self {
        let mut members: SmallVec<[Cow<'a, [u8]>; 4]> = SmallVec::new();
        for line in lines {
            let split = line.as_ref().split(|byte| *byte == b',').map(trim_ows);
            members.extend(split.filter(|member| !member.is_empty()).map(Cow::Borrowed));
        }
        let malformed = !members.iter().all(|member| well_formed(member));
        TraceState { members, malformed }
    }

    /// Whether the list can be read. If not it is absent for reading.
    pub fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The value of the leftmost member with `key`.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        if self.malformed {
            return None;
        }
        self.members.iter().find(|member| has_key(member, key)).map(|member| &member[key.len() + 1..])
    }

    /// The leftmost member of ours.
    pub fn member(&self) -> Option<Result<Member, MemberError>> {
        self.get(Member::KEY).map(Member::parse)
    }

    /// Takes out every member with `key`; whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.members.len();
        self.members.retain(|member| !has_key(member, key));
        self.members.len() < before
    }

    /// Puts `key=value` at the left, in place of every other member with `key`, and keeps the limits.
    pub fn prepend(&mut self, key: &str, value: &str) -> Result<(), InvalidMember> {
        let member = [key, "=", value].concat().into_bytes();
        if !well_formed(&member) {
            return Err(InvalidMember(format!("{key}={value}").chars().take(80).collect()));
        }
        self.put_first(key, member);
        Ok(())
    }

    /// [`TraceState::prepend`] of our member, which is well-formed.
    pub fn set_member(&mut self, member: &Member) {
        let mut text = Vec::new();
        member.write_named(&mut text);
        self.put_first(Member::KEY, text);
    }

    /// The value of the list with our member at its left: what [`TraceState::set_member`] and [`TraceState::value`] make of
    /// a copy, which is needed only where the limits are in the way.
    pub fn with_member(&self, ours: &Member) -> Vec<u8> {
        let others = || self.members.iter().filter(|other| !self.malformed && !has_key(other, Member::KEY));
        let length = others().map(|other| other.len() + 1).sum::<usize>() + member::NAMED_LENGTH;
        if length > MAX_LENGTH || self.members.len() >= MAX_MEMBERS {
            let mut state = self.clone();
            state.set_member(ours);
            return state.value().unwrap_or_default();
        }
        let mut text = Vec::with_capacity(length);
        ours.write_named(&mut text);
        for other in others() {
            text.push(b',');
            text.extend_from_slice(other);
        }
        text
    }

    fn put_first(&mut self, key: &str, member: Vec<u8>) {
        if self.malformed {
            *self = TraceState::default();
        }
        self.remove(key);
        self.members.insert(0, Cow::Owned(member));
        self.keep_limits();
    }

    /// The list as one header value; none if there is nothing to send.
    pub fn value(&self) -> Option<Vec<u8>> {
        (!self.members.is_empty()).then(|| self.members.join(&b','))
    }

    fn keep_limits(&mut self) {
        self.members.truncate(MAX_MEMBERS);
        let mut length = self.members.iter().map(|member| member.len() + 1).sum::<usize>() - 1;
        for long_only in [true, false] {
            // The leftmost is the one just added.
            for index in (1..self.members.len()).rev() {
                if length <= MAX_LENGTH {
                    return;
                }
                if !long_only || self.members[index].len() > LONG_MEMBER {
                    length -= self.members.remove(index).len() + 1;
                }
            }
        }
    }
}

fn has_key(member: &[u8], key: &str) -> bool {
    member.strip_prefix(key.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// `key "=" value` by the grammar of §3.3.1.3; the keys of Level 1, with one `@`, are among those of Level 2.
fn well_formed(member: &[u8]) -> bool {
    let Some(equals) = member.iter().position(|byte| *byte == b'=') else { return false };
    let (key, value) = (&member[..equals], &member[equals + 1..]);
    let places = |text: &[u8]| text.iter().fold(u8::MAX, |places, byte| places & PLACES[usize::from(*byte)]);
    (1..=MAX_PART).contains(&key.len())
        && PLACES[usize::from(key[0])] & INITIAL != 0
        && places(key) & KEY != 0
        && (1..=MAX_PART).contains(&value.len())
        && places(value) & VALUE != 0
        && !value.ends_with(b" ")
}

/// The first character of a key, any of a key, any of a value: each byte with the places that it may take.
const INITIAL: u8 = 1;
const KEY: u8 = 2;
const VALUE: u8 = 4;
const PLACES: [u8; 256] = {
    let mut places = [0; 256];
    let mut byte = b' ';
    while byte <= b'~' {
        places[byte as usize] = match byte {
            b'a'..=b'z' | b'0'..=b'9' => INITIAL | KEY | VALUE,
            b'_' | b'-' | b'*' | b'/' | b'@' => KEY | VALUE,
            b',' | b'=' => 0,
            _ => VALUE,
        };
        byte += 1;
    }
    places
};

#[cfg(test)]
mod tests;
