//! What a fault does to a message, in the editors' terms (design §3.5).

use aftershock_core::plan::{ErrorAnswer, Fault, ResetScope, Rule};
use aftershock_core::wire::Arm;
use bytes::Bytes;

use crate::exchange::{Act, Made};

/// gRPC UNAVAILABLE.
const UNAVAILABLE: u8 = 14;
/// gRPC INTERNAL.
const INTERNAL: u8 = 13;

/// Fields that belong to the framing or to the connection: the editors write them.
const FRAMING: [&str; 8] =
    ["connection", "content-length", "transfer-encoding", "trailer", "upgrade", "keep-alive", "te", "proxy-connection"];

/// The act of a fault; none for a delay, which parks, and for a release, which lets go.
pub(crate) fn act(fault: &Fault, grpc: bool) -> Option<Act> {
    Some(match fault {
        Fault::Delay(_) | Fault::Release => return None,
        Fault::Drop => Act::Drop,
        Fault::Reset(reset) => {
            Act::Reset { code: reset.code.code(), connection: reset.scope == ResetScope::Connection }
        }
        Fault::Abort if grpc => Act::Answer(Box::new(grpc_answer(UNAVAILABLE, None, []))),
        Fault::Abort => {
            Act::Answer(Box::new(Made { status: 503, fields: Vec::new(), body: Bytes::new(), trailers: None }))
        }
        Fault::Error(answer) => Act::Answer(Box::new(error(answer, grpc))),
    })
}

fn error(answer: &ErrorAnswer, grpc: bool) -> Made {
    let headers = answer.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    if grpc {
        return grpc_answer(answer.grpc_status.unwrap_or(INTERNAL), answer.grpc_message.as_deref(), headers);
    }
    Made {
        status: answer.status.unwrap_or(500),
        fields: headers.collect(),
        body: Bytes::copy_from_slice(answer.body.as_bytes()),
        trailers: None,
    }
}

/// A trailers-only answer.
fn grpc_answer(status: u8, message: Option<&str>, headers: impl IntoIterator<Item = (String, String)>) -> Made {
    let mut fields = vec![
        ("content-type".to_owned(), "application/grpc".to_owned()),
        ("grpc-status".to_owned(), status.to_string()),
    ];
    fields.extend(message.map(|message| ("grpc-message".to_owned(), grpc_message(message))));
    fields.extend(headers.into_iter().filter(|(name, _)| name != "content-type" && name != "grpc-status"));
    let trailers = fields.iter().filter(|(name, _)| name != "content-type").cloned().collect();
    Made { status: 200, fields, body: Bytes::new(), trailers: Some(trailers) }
}

/// `Percent-Encoded` of the gRPC protocol: printable ASCII but `%` stays.
fn grpc_message(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' => encoded.push_str("%25"),
            b' '..=b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Why this sidecar cannot carry out what a round is armed with, if so. Found at arming, so that nothing is sent under
/// half a plan.
pub(crate) fn refusal(arm: &Arm) -> Option<String> {
    let unreadable = arm.outcomes.iter().find_map(|reading| reading.check().err());
    unreadable
        .map(|error| error.to_string())
        .or_else(|| arm.rules.iter().find_map(impossible_answer))
        .or_else(|| arm.rules.iter().find_map(|rule| impossible_point(rule, arm)))
}

/// Why a rule cannot act at its `at`, alone or beside what else is armed.
fn impossible_point(rule: &Rule, arm: &Arm) -> Option<String> {
    let index = rule.index;
    rule.tfic.target.at?;
    let fits = rule.tfic.check_point(&rule.apis);
    if let Err(why) = fits.and_then(|()| rule.tfic.check_outcomes(&rule.apis, &arm.outcomes)) {
        return Some(format!("rule {index}: {why}"));
    }
    arm.rules.iter().filter(|other| other.side == rule.side).find_map(|other| {
        let api = rule.tfic.kept_back_by(&rule.apis, &other.tfic, &other.apis)?;
        Some(format!("rule {index}: rule {} keeps the answers of `{api}` back to their end", other.index))
    })
}

/// Why the answer of a rule cannot be made.
fn impossible_answer(rule: &Rule) -> Option<String> {
    if rule.tfic.fault == Fault::Release && rule.tfic.hold.is_none() {
        return Some(format!("rule {}: `release` lets go what a `hold` keeps, and the rule has no `hold`", rule.index));
    }
    let Fault::Error(answer) = &rule.tfic.fault else { return None };
    if answer.status.is_some_and(|status| !(200..=599).contains(&status)) {
        return Some(format!("rule {}: expected a status from 200 to 599", rule.index));
    }
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let bad = answer.headers.iter().find(|(name, value)| {
        let visible = value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
        name.is_empty() || !name.bytes().all(token) || !visible || FRAMING.contains(&name.to_ascii_lowercase().as_str())
    });
    bad.map(|(name, _)| format!("rule {}: the header field {name:?} cannot be put into an answer", rule.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(act: Option<Act>) -> Made {
        match act {
            Some(Act::Answer(made)) => *made,
            other => panic!("expected an answer, found {other:?}"),
        }
    }

    #[test]
    fn an_abort_is_503_or_trailers_only_unavailable() {
        let http = answer(act(&Fault::Abort, false));
        assert_eq!((http.status, http.fields.len(), http.body.len()), (503, 0, 0));
        let grpc = answer(act(&Fault::Abort, true));
        assert_eq!(grpc.status, 200);
        assert_eq!(grpc.fields[0], ("content-type".into(), "application/grpc".into()));
        assert_eq!(grpc.fields[1], ("grpc-status".into(), "14".into()));
        assert!(grpc.body.is_empty());
    }

    #[test]
    fn an_error_is_what_was_chosen_and_a_grpc_one_stays_grpc() {
        let chosen = ErrorAnswer {
            status: Some(429),
            grpc_status: None,
            grpc_message: Some("100 % naïve\n".into()),
            headers: [("Retry-After".to_owned(), "3".to_owned())].into(),
            body: "later".into(),
        };
        let http = answer(act(&Fault::Error(chosen.clone()), false));
        assert_eq!((http.status, &http.body[..]), (429, &b"later"[..]));
        assert_eq!(http.fields, [("retry-after".to_owned(), "3".to_owned())]);
        let grpc = answer(act(&Fault::Error(chosen), true));
        assert_eq!((grpc.status, grpc.body.len()), (200, 0));
        assert_eq!(grpc.fields[1].1, "13");
        assert_eq!(grpc.fields[2].1, "100 %25 na%C3%AFve%0A");
        assert_eq!(grpc.fields[3].0, "retry-after");
    }

    #[test]
    fn a_reset_has_a_code_that_clients_do_not_retry_silently() {
        assert_eq!(act(&Fault::Reset(Default::default()), true), Some(Act::Reset { code: 2, connection: false }));
    }
}
