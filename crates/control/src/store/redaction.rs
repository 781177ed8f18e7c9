//! Values that never reach the file: those of header fields that carry credentials.
//!
//! Spans hold no header fields at all, operations no query. A plan may: the made answer of an `error` fault has fields of
//! the user's own.

use std::collections::BTreeSet;

use aftershock_core::plan::{Fault, Plan};
use http::HeaderName;

/// What stands in the place of a value.
const REDACTED: &str = "[redacted]";

/// The header fields whose values are not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redaction(BTreeSet<String>);

impl Default for Redaction {
    /// Those that carry credentials by their definition or by wide custom.
    fn default() -> Self {
        let names = ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "x-auth-token"];
        Redaction(names.map(str::to_owned).into())
    }
}

impl Redaction {
    /// Further fields whose values are not stored.
    #[must_use]
    pub fn also(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.0.extend(names.into_iter().map(|name| name.as_str().to_owned()));
        self
    }

    /// The plan as it may be stored.
    pub(super) fn plan(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        for fault in &mut plan.faults {
            let Fault::Error(answer) = &mut fault.fault else { continue };
            for (name, value) in &mut answer.headers {
                if self.0.contains(&name.to_ascii_lowercase()) {
                    REDACTED.clone_into(value);
                }
            }
        }
        plan
    }
}
