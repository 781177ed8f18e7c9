//! `baggage`: W3C Baggage §3.3, edited without touching what others wrote in it.
//!
//! Several header lines are one list, in order. Members of others are kept byte for byte, whitespace and properties
//! included, whether or not they follow the grammar: they are the application's business data.
//!
//! *Limits* (§3.3.2: what every participant has to hand on, 64 members and 8,192 bytes): a member that would lead
//! beyond them is not added. Nobody else's ever goes for it.

use percent_encoding::percent_decode;

use super::trim_ows;

/// The most members of a list that everybody hands on.
const MAX_MEMBERS: usize = 64;
/// The most bytes of such a list, commas included.
const MAX_LENGTH: usize = 8_192;

/// There is no place for one more member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected room in a baggage of at most {MAX_MEMBERS} members and {MAX_LENGTH} bytes")]
pub struct BaggageFull;

/// The members of a `baggage`, as they came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Baggage {
    members: Vec<Vec<u8>>,
}

impl Baggage {
    /// Reads the values of all `baggage` lines of a message, in their order. Never fails; see the module.
    pub fn parse<V: AsRef<[u8]>>(lines: impl IntoIterator<Item = V>) -> Self {
        let mut members = Vec::new();
        for line in lines {
            members.extend(line.as_ref().split(|byte| *byte == b',').map(<[u8]>::to_vec));
        }
        Baggage { members }
    }

    /// The value of the first member with `key`, without its properties and percent-decoded.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (_, value) = self.members.iter().filter_map(|member| split(member)).find(|(k, _)| *k == key.as_bytes())?;
        Some(percent_decode(value).collect())
    }

    /// Takes out every member with `key`; whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.members.len();
        self.members.retain(|member| split(member).is_none_or(|(k, _)| k != key.as_bytes()));
        self.members.len() < before
    }

    /// Puts `key=value` at the left, in place of every other member with `key`. Both are to be characters that stand for
    /// themselves: letters, digits, `-`.
    ///
    /// # Errors
    /// When there is no room; then nothing but the other members with `key` is gone.
    pub fn prepend(&mut self, key: &str, value: &str) -> Result<(), BaggageFull> {
        self.remove(key);
        let length: usize = self.members.iter().map(|member| member.len() + 1).sum();
        let filled = self.members.iter().filter(|member| !trim_ows(member).is_empty()).count();
        if filled >= MAX_MEMBERS || length + key.len() + 1 + value.len() > MAX_LENGTH {
            return Err(BaggageFull);
        }
        self.members.insert(0, [key, "=", value].concat().into_bytes());
        Ok(())
    }

    /// The list as one header value; none if nothing is left to send.
    pub fn value(&self) -> Option<Vec<u8>> {
        let some = self.members.iter().any(|member| !trim_ows(member).is_empty());
        some.then(|| self.members.join(&b','))
    }
}

/// Key and value of a member, `key OWS "=" OWS value *( OWS ";" property )`.
fn split(member: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = member.iter().position(|byte| *byte == b'=')?;
    let (key, rest) = (&member[..equals], &member[equals + 1..]);
    let value = rest.split(|byte| *byte == b';').next().unwrap_or_default();
    Some((trim_ows(key), trim_ows(value)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(value: Option<Vec<u8>>) -> Option<String> {
        value.map(|value| String::from_utf8(value).unwrap())
    }

    #[test]
    fn ours_is_found_between_others_with_whitespace_properties_and_encoding() {
        for (lines, expected) in [
            (vec!["aft=1-a"], Some("1-a")),
            (vec!["user=7;secure, aft = 1-a ;p=1 , x=2"], Some("1-a")),
            (vec!["user=7", "x=1,aft=1%2Da"], Some("1-a")),
            (vec!["aft=first", "aft=second"], Some("first")),
            (vec!["after=1", "Aft=1", "x=aft=1"], None),
            (vec![""], None),
            (vec![], None),
        ] {
            assert_eq!(text(Baggage::parse(&lines).get("aft")).as_deref(), expected, "{lines:?}");
        }
    }

    #[test]
    fn what_others_wrote_stays_byte_for_byte() {
        let mut baggage = Baggage::parse(["user=J%C3%BC;a=b ,  aft=old,aft = older", " x=1 ;p"]);
        baggage.prepend("aft", "1-new").unwrap();
        assert_eq!(text(baggage.value()).unwrap(), "aft=1-new,user=J%C3%BC;a=b , x=1 ;p");
        assert!(baggage.remove("aft") && !baggage.remove("aft"));
        assert_eq!(text(baggage.value()).unwrap(), "user=J%C3%BC;a=b , x=1 ;p");
        assert_eq!(Baggage::parse(["aft=1", " "]).value(), Some(b"aft=1, ".to_vec()));
        let mut alone = Baggage::parse(["aft=1, "]);
        assert!(alone.remove("aft"));
        assert_eq!(alone.value(), None, "an empty list is no header");
    }

    #[test]
    fn a_full_baggage_takes_no_more_and_loses_nothing() {
        let many: Vec<String> = (0..64).map(|n| format!("k{n}=v")).collect();
        let mut baggage = Baggage::parse([many.join(",")]);
        assert_eq!(baggage.prepend("aft", "1"), Err(BaggageFull));
        assert_eq!(text(baggage.value()).unwrap(), many.join(","));
        let mut room = Baggage::parse([many[1..].join(",")]);
        assert_eq!(room.prepend("aft", "1"), Ok(()));

        let long = format!("k={}", "x".repeat(MAX_LENGTH - "k=,aft=1".len()));
        let mut exact = Baggage::parse([&long]);
        exact.prepend("aft", "1").unwrap();
        assert_eq!(exact.value().unwrap().len(), MAX_LENGTH);
        let mut beyond = Baggage::parse([format!("{long}x")]);
        assert_eq!(beyond.prepend("aft", "1"), Err(BaggageFull));
    }

    proptest! {
        #[test]
        fn adding_and_removing_ours_changes_nothing(lines in proptest::collection::vec("[a-z0-9 =;,%]{0,30}", 0..4)) {
            let before = Baggage::parse(&lines);
            prop_assume!(before.get("aft").is_none());
            let mut baggage = before.clone();
            baggage.prepend("aft", "1-0").unwrap();
            prop_assert_eq!(baggage.get("aft"), Some(b"1-0".to_vec()));
            let written = baggage.value().unwrap();
            let mut read = Baggage::parse([&written]);
            prop_assert!(read.remove("aft"));
            prop_assert_eq!(read, before);
        }

        #[test]
        fn no_bytes_panic(value: Vec<u8>) {
            let mut baggage = Baggage::parse([&value]);
            let _ = baggage.get("aft");
            let _ = baggage.prepend("aft", "1");
        }
    }
}
