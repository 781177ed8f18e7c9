//! Where a scenario's requests enter.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::text::BaseUrl;

/// The base URLs of the entry: one, or its replicas, which requests take in turn. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries(Vec<BaseUrl>);

impl Entries {
    /// These, of which there is at least one.
    pub(crate) fn new(urls: Vec<BaseUrl>) -> Self {
        debug_assert!(!urls.is_empty());
        Entries(urls)
    }

    /// The one that the `n`-th request takes, from 0.
    pub fn turn(&self, n: usize) -> &BaseUrl {
        &self.0[n % self.0.len()]
    }

    /// Every one, in order.
    pub fn iter(&self) -> impl Iterator<Item = &BaseUrl> {
        self.0.iter()
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a base URL, or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Entries, E> {
                Ok(Entries(vec![text.parse().map_err(E::custom)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entries, A::Error> {
                let mut urls: Vec<BaseUrl> = Vec::new();
                while let Some(url) = seq.next_element::<BaseUrl>()? {
                    if urls.contains(&url) {
                        return Err(de::Error::custom(format_args!("expected each entry once, found `{url}` again")));
                    }
                    urls.push(url);
                }
                if urls.is_empty() {
                    return Err(de::Error::custom("expected at least one base URL"));
                }
                Ok(Entries(urls))
            }
        }

        d.deserialize_any(EntriesVisitor)
    }
}

impl JsonSchema for Entries {
    fn schema_name() -> Cow<'static, str> {
        "Entries".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let url = generator.subschema_for::<BaseUrl>();
        schemars::json_schema!({
            "description": "the entry, or its replicas, which requests take in turn",
            "oneOf": [url, {"type": "array", "items": url, "minItems": 1, "uniqueItems": true}]
        })
    }
}
