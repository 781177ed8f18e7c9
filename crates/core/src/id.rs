//! Identifiers. All are opaque 64-bit numbers drawn at random by whoever mints them; this crate never draws one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Spread `number` over all 64-bit numbers without a pattern, and no two numbers to the same one (the finalizer of
/// Steele, Lea and Flood's SplitMix64).
///
/// Sidecars of different versions choose the same executions and derive the same span ids by it, so its values never
/// change.
pub fn scatter(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to 16 hexadecimal digits, found {found:?}")]
pub struct ParseIdError {
    found: String,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero stands for "none" on the wire.
            pub fn is_zero(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:016x})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let hex = !text.is_empty() && text.len() <= 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
                match u64::from_str_radix(text, 16) {
                    Ok(value) if hex => Ok($name(value)),
                    _ => Err(ParseIdError { found: text.chars().take(32).collect() }),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id! {
    /// One client request of a round and everything it causes.
    ExecutionId
}
id! {
    /// One inter-service request with its response. Zero at an entry.
    CallId
}
id! {
    /// The capability of a round: rules act only on executions that carry it. Zero for ordinary traffic.
    Token
}
id! {
    /// One process start of one sidecar.
    ObserverId
}
