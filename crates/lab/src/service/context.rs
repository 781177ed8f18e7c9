//! Trace headers, copied from the request at hand to the calls it causes, as tracing libraries do.
//!
//! Opaque on purpose: the services look at nothing but what the W3C format needs to be copied (trace id and flags of
//! `traceparent`, W3C Trace Context §3.2), and decide nothing by it.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::topology::Propagation;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const UBER_TRACE_ID: HeaderName = HeaderName::from_static("uber-trace-id");

/// What a request brought that its calls take along.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    /// Trace id and flags; each call gets a parent id of its own.
    traceparent: Option<(String, String)>,
    verbatim: Vec<(HeaderName, HeaderValue)>,
}

impl Context {
    pub(crate) fn of(headers: &HeaderMap, propagation: Propagation) -> Self {
        let copy = |wanted: &dyn Fn(&HeaderName) -> bool| {
            headers.iter().filter(|(name, _)| wanted(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        match propagation {
            Propagation::None => Self::default(),
            Propagation::Uber => Self {
                traceparent: None,
                verbatim: copy(&|name| *name == UBER_TRACE_ID || name.as_str().starts_with("uberctx-")),
            },
            // Without a valid traceparent a tracestate means nothing (W3C Trace Context §3.3).
            Propagation::W3c => match trace_id_and_flags(headers) {
                None => Self::default(),
                found => Self { traceparent: found, verbatim: copy(&|name| *name == TRACESTATE) },
            },
        }
    }

    /// Adds the headers of one call; `parent_id` is the call's own span id.
    pub(crate) fn write(&self, headers: &mut HeaderMap, parent_id: u64) {
        if let Some((trace_id, flags)) = &self.traceparent {
            let value = format!("00-{trace_id}-{parent_id:016x}-{flags}");
            headers.insert(TRACEPARENT, HeaderValue::try_from(value).expect("hexadecimal digits and dashes"));
        }
        for (name, value) in &self.verbatim {
            headers.append(name.clone(), value.clone());
        }
    }
}

fn trace_id_and_flags(headers: &HeaderMap) -> Option<(String, String)> {
    let text = headers.get(TRACEPARENT)?.to_str().ok()?;
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, length| {
        part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    match parts[..] {
        [version, trace_id, parent, flags, ..]
            if hex(version, 2) && hex(trace_id, 32) && hex(parent, 16) && hex(flags, 2) && version != "ff" =>
        {
            Some((trace_id.to_owned(), flags.to_owned()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn copied(lines: &[(&'static str, &'static str)], propagation: Propagation) -> Vec<String> {
        let mut out = HeaderMap::new();
        Context::of(&headers(lines), propagation).write(&mut out, 0xab);
        out.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    const TRACEPARENT: (&str, &str) = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");

    #[test]
    fn w3c_keeps_trace_id_and_flags_and_takes_a_new_parent_id() {
        assert_eq!(
            copied(
                &[TRACEPARENT, ("tracestate", "aft=1,x=y"), ("uber-trace-id", "1"), ("other", "z")],
                Propagation::W3c
            ),
            ["traceparent: 00-0af7651916cd43dd8448eb211c80319c-00000000000000ab-01", "tracestate: aft=1,x=y"]
        );
    }

    #[test]
    fn a_tracestate_without_valid_traceparent_is_not_copied() {
        assert!(copied(&[("tracestate", "aft=1")], Propagation::W3c).is_empty());
        assert!(copied(&[("traceparent", "00-xyz-1-01"), ("tracestate", "aft=1")], Propagation::W3c).is_empty());
    }

    #[test]
    fn uber_and_none_copy_what_they_say() {
        let lines = [TRACEPARENT, ("uber-trace-id", "1:2:0:1"), ("uberctx-aft", "m"), ("tracestate", "x=y")];
        assert_eq!(copied(&lines, Propagation::Uber), ["uber-trace-id: 1:2:0:1", "uberctx-aft: m"]);
        assert!(copied(&lines, Propagation::None).is_empty());
    }
}
