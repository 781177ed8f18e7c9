//! The hop header: what one sidecar tells the next about a call (design §3.2, §3.8).
//!
//! Layout, before base64url without padding: version `1`, key id, call (8 bytes, big endian), caller (length, text),
//! clock (varint), outcome, gaps (`255` for any, else a count and for each kind, observer, service), observers (count,
//! 8 bytes each), entries (count, and for each the event's digest, the observer's index, the count), tag (8 bytes).
//! The tag is SipHash-2-4 under a key shared by the registered sidecars, over all that precedes it and over the
//! `tracestate` member that travels beside it.

use std::hash::Hasher;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use crate::event::{EventId, Outcome};
use crate::evidence::{Evidence, Gap, GapKind, Gaps, Knowledge};
use crate::id::{CallId, ObserverId};
use crate::name::Service;

/// The header's name, in both directions.
pub const HEADER: &str = "aftershock-hop";

/// The header's value is never longer than this many bytes; what does not fit sets a gap instead.
pub const MAX_LEN: usize = 1024;

/// The version this code writes.
pub const VERSION: u8 = 1;

/// A key for tags, named by its id.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopKey {
    /// Travels in the header.
    pub id: u8,
    /// The secret.
    pub secret: [u8; 16],
}

impl std::fmt::Debug for HopKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HopKey {{ id: {}, secret: … }}", self.id)
    }
}

/// The keys a sidecar knows: it signs with the first and accepts all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Keyring(pub Vec<HopKey>);

impl Keyring {
    /// The key to sign with; none before registration.
    pub fn current(&self) -> Option<&HopKey> {
        self.0.first()
    }

    fn by_id(&self, id: u8) -> Option<&HopKey> {
        self.0.iter().find(|key| key.id == id)
    }
}

/// The fields of a hop header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The call it belongs to; zero is the hop mark of an unassociated call.
    pub call: CallId,
    /// The calling service.
    pub caller: Option<Service>,
    /// On a response: how *this* call ended, as the callee's sidecar saw it.
    pub outcome: Option<Outcome>,
    /// Evidence and clock.
    pub knowledge: Knowledge,
}

/// Why a header does not count. The request goes through all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HopError {
    /// Longer than [`MAX_LEN`].
    #[error("hop header of {0} bytes, expected at most {MAX_LEN}")]
    Oversized(usize),
    /// Not base64url.
    #[error("hop header is not base64url without padding")]
    Encoding,
    /// A newer sidecar wrote it: it is relayed untouched and sets the gap.
    #[error("hop header of version {0}, this sidecar reads version {VERSION}")]
    Newer(u8),
    /// The bytes end early, go on too long, or hold something impossible.
    #[error("hop header is malformed at byte {0}")]
    Malformed(usize),
    /// Signed with a key this sidecar does not have.
    #[error("hop header names the unknown key {0}")]
    UnknownKey(u8),
    /// The tag does not fit.
    #[error("hop header has a wrong tag")]
    Forged,
}

impl Hop {
    /// Encode and sign, beside `member` (empty if none travels). Entries that would go beyond [`MAX_LEN`] are left out,
    /// and `on_overflow` is the gap set in their place.
    pub fn encode(&self, key: &HopKey, member: &str, on_overflow: &Gap) -> String {
        let full = self.encode_entries(key, member, usize::MAX);
        if full.len() <= MAX_LEN {
            return full;
        }
        let mut reduced = self.clone();
        reduced.knowledge.evidence.gaps_mut().insert(on_overflow.clone());
        // An upper bound for one entry is 8 + 10 + 10 bytes and 8 for its observer; halve until it fits.
        let mut keep = self.knowledge.evidence.len();
        loop {
            keep /= 2;
            let text = reduced.encode_entries(key, member, keep);
            if text.len() <= MAX_LEN || keep == 0 {
                return text;
            }
        }
    }

    fn encode_entries(&self, key: &HopKey, member: &str, keep: usize) -> String {
        let mut out = Vec::with_capacity(96);
        out.extend([VERSION, key.id]);
        out.extend(self.call.0.to_be_bytes());
        put_text(&mut out, self.caller.as_ref().map_or("", Service::as_str));
        put_varint(&mut out, self.knowledge.clock);
        out.push(match self.outcome {
            None => 0,
            Some(Outcome::Ok) => 1,
            Some(Outcome::Error) => 2,
            Some(Outcome::Unknown) => 3,
        });
        let gaps = self.knowledge.evidence.gaps();
        if gaps.is_any() {
            out.push(u8::MAX);
        } else {
            out.push(gaps.named().count() as u8);
            for gap in gaps.named() {
                out.push(match gap.kind {
                    GapKind::Number => 0,
                    GapKind::Evidence => 1,
                });
                out.extend(gap.observer.0.to_be_bytes());
                put_text(&mut out, gap.service.as_str());
            }
        }
        let entries: Vec<_> = self.knowledge.evidence.entries().take(keep).collect();
        let mut observers: Vec<ObserverId> = entries.iter().map(|(_, observer, _)| *observer).collect();
        observers.sort();
        observers.dedup();
        put_varint(&mut out, observers.len() as u64);
        for observer in &observers {
            out.extend(observer.0.to_be_bytes());
        }
        put_varint(&mut out, entries.len() as u64);
        for (event, observer, count) in entries {
            out.extend(event.0.to_be_bytes());
            put_varint(&mut out, observers.binary_search(&observer).expect("every observer was listed") as u64);
            put_varint(&mut out, count);
        }
        let tag = tag(key, &out, member);
        out.extend(tag);
        URL_SAFE_NO_PAD.encode(out)
    }

    /// Decode a header that came beside `member` (empty if none did), and check its tag.
    ///
    /// # Errors
    /// Whatever is wrong with it; nothing of such a header counts.
    pub fn decode(value: &[u8], keys: &Keyring, member: &str) -> Result<Hop, HopError> {
        if value.len() > MAX_LEN {
            return Err(HopError::Oversized(value.len()));
        }
        let bytes = URL_SAFE_NO_PAD.decode(value).map_err(|_| HopError::Encoding)?;
        let mut reader = Reader { bytes: &bytes, at: 0 };
        let version = reader.byte()?;
        if version > VERSION {
            return Err(HopError::Newer(version));
        }
        if version == 0 {
            return Err(HopError::Malformed(0));
        }
        let key_id = reader.byte()?;
        let key = keys.by_id(key_id).ok_or(HopError::UnknownKey(key_id))?;
        let (signed, given) = bytes.split_at(bytes.len().checked_sub(8).ok_or(HopError::Malformed(bytes.len()))?);
        if !same(&tag(key, signed, member), given) {
            return Err(HopError::Forged);
        }
        reader.bytes = signed;
        let call = CallId(reader.fixed()?);
        let caller = reader.service()?;
        let mut knowledge = Knowledge { evidence: Evidence::default(), clock: reader.varint()? };
        let outcome = match reader.byte()? {
            0 => None,
            1 => Some(Outcome::Ok),
            2 => Some(Outcome::Error),
            3 => Some(Outcome::Unknown),
            _ => return Err(reader.malformed()),
        };
        let gaps = match reader.byte()? {
            u8::MAX => Gaps::any(),
            count if usize::from(count) > Gaps::KEPT => return Err(reader.malformed()),
            count => {
                let mut gaps = Gaps::default();
                for _ in 0..count {
                    let kind = match reader.byte()? {
                        0 => GapKind::Number,
                        1 => GapKind::Evidence,
                        _ => return Err(reader.malformed()),
                    };
                    let observer = ObserverId(reader.fixed()?);
                    let service = reader.service()?.ok_or_else(|| reader.malformed())?;
                    gaps.insert(Gap { kind, observer, service });
                }
                gaps
            }
        };
        *knowledge.evidence.gaps_mut() = gaps;
        // Counts are bounded by the bytes that are there: every observer takes 8, every entry at least 10.
        let mut observers = Vec::new();
        for _ in 0..reader.varint()? {
            observers.push(ObserverId(reader.fixed()?));
        }
        for _ in 0..reader.varint()? {
            let event = EventId(reader.fixed()?);
            let index = usize::try_from(reader.varint()?).map_err(|_| reader.malformed())?;
            let observer = *observers.get(index).ok_or_else(|| reader.malformed())?;
            knowledge.evidence.raise(event, observer, reader.varint()?);
        }
        if reader.at != reader.bytes.len() {
            return Err(reader.malformed());
        }
        Ok(Hop { call, caller, outcome, knowledge })
    }
}

fn tag(key: &HopKey, fields: &[u8], member: &str) -> [u8; 8] {
    let mut hasher = SipHasher24::new_with_key(&key.secret);
    hasher.write(&(fields.len() as u64).to_be_bytes());
    hasher.write(fields);
    hasher.write(member.as_bytes());
    hasher.finish().to_be_bytes()
}

/// Compare without telling by time where the first difference is.
fn same(a: &[u8; 8], b: &[u8]) -> bool {
    b.len() == 8 && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Service names have at most 128 bytes.
    out.push(text.len() as u8);
    out.extend(text.as_bytes());
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn malformed(&self) -> HopError {
        HopError::Malformed(self.at)
    }

    fn take(&mut self, n: usize) -> Result<&[u8], HopError> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len()).ok_or_else(|| self.malformed())?;
        let slice = &self.bytes[self.at..end];
        self.at = end;
        Ok(slice)
    }

    fn byte(&mut self) -> Result<u8, HopError> {
        self.take(1).map(|b| b[0])
    }

    fn fixed(&mut self) -> Result<u64, HopError> {
        self.take(8).map(|b| u64::from_be_bytes(b.try_into().expect("eight bytes were taken")))
    }

    fn varint(&mut self) -> Result<u64, HopError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(self.malformed());
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    fn service(&mut self) -> Result<Option<Service>, HopError> {
        let n = usize::from(self.byte()?);
        if n == 0 {
            return Ok(None);
        }
        let text = std::str::from_utf8(self.take(n)?).ok().and_then(|text| text.parse().ok());
        text.map(Some).ok_or_else(|| self.malformed())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: HopKey = HopKey { id: 7, secret: *b"0123456789abcdef" };

    fn keys() -> Keyring {
        Keyring(vec![HopKey { id: 8, secret: [0; 16] }, KEY])
    }

    fn gap(n: u64) -> Gap {
        Gap { kind: GapKind::Evidence, observer: ObserverId(n), service: "shipping".parse().unwrap() }
    }

    prop_compose! {
        fn hops()(call: u64, caller in proptest::option::of("[a-z]{1,20}"), clock: u64, outcome in 0..4_u8,
                  gaps in proptest::collection::vec(0..6_u64, 0..6),
                  counts in proptest::collection::vec((0..9_u64, any::<u64>(), 1..u64::MAX), 0..9)) -> Hop {
            let mut knowledge = Knowledge { clock, ..Knowledge::default() };
            for n in gaps {
                knowledge.evidence.gaps_mut().insert(gap(n));
            }
            for (event, observer, count) in counts {
                knowledge.evidence.raise(EventId(event), ObserverId(observer % 3), count);
            }
            let outcome = [None, Some(Outcome::Ok), Some(Outcome::Error), Some(Outcome::Unknown)][usize::from(outcome)];
            Hop { call: CallId(call), caller: caller.map(|c| c.parse().unwrap()), outcome, knowledge }
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(hop in hops(), member in "[a-z0-9-]{0,60}") {
            let text = hop.encode(&KEY, &member, &gap(99));
            prop_assert!(text.len() <= MAX_LEN);
            prop_assert_eq!(Hop::decode(text.as_bytes(), &keys(), &member), Ok(hop));
        }

        #[test]
        fn any_changed_bit_is_noticed(hop in hops(), position: prop::sample::Index, bit in 0..6_u32) {
            let text = hop.encode(&KEY, "1-a-b", &gap(99));
            let mut bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
            let at = position.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let changed = URL_SAFE_NO_PAD.encode(bytes);
            prop_assert!(Hop::decode(changed.as_bytes(), &keys(), "1-a-b").is_err());
        }

        #[test]
        fn another_member_beside_it_is_noticed(hop in hops()) {
            let text = hop.encode(&KEY, "1-a-b", &gap(99));
            prop_assert_eq!(Hop::decode(text.as_bytes(), &keys(), "1-a-c"), Err(HopError::Forged));
        }

        #[test]
        fn arbitrary_bytes_are_refused_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
            prop_assert!(Hop::decode(&bytes, &keys(), "").is_err());
            prop_assert!(Hop::decode(URL_SAFE_NO_PAD.encode(&bytes).as_bytes(), &keys(), "").is_err());
        }
    }

    #[test]
    fn too_much_evidence_sets_the_gap_and_still_fits() {
        let mut knowledge = Knowledge { clock: 3, ..Knowledge::default() };
        for n in 0..200 {
            knowledge.evidence.raise(EventId(n), ObserverId(n), 1);
        }
        let hop = Hop { call: CallId(1), caller: None, outcome: None, knowledge };
        let text = hop.encode(&KEY, "", &gap(5));
        assert!(text.len() <= MAX_LEN, "{}", text.len());
        let back = Hop::decode(text.as_bytes(), &keys(), "").unwrap();
        assert_eq!(back.knowledge.evidence.gaps().named().collect::<Vec<_>>(), [&gap(5)]);
        for (event, observer, count) in back.knowledge.evidence.entries() {
            assert_eq!((event.0, count), (observer.0, 1), "kept entries are unchanged");
        }
        assert!(back.knowledge.evidence.len() >= 10);
    }

    #[test]
    fn a_newer_version_is_told_from_a_broken_header() {
        let text = URL_SAFE_NO_PAD.encode([2, 0, 0, 0]);
        assert_eq!(Hop::decode(text.as_bytes(), &keys(), ""), Err(HopError::Newer(2)));
    }
}
