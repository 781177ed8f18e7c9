//! What the client's view and the system's state say together (design §4.4).

use std::time::Duration;

use super::send::{Failure, Found, Sent};
use crate::api::{OracleFinding, OracleVerdict};
use crate::scenario::{Expectation, Hide, Invariant, Request, When};
use aftershock_core::duration::Interval;

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    unmet: Vec<String>,
    broken: Vec<String>,
    differences: Vec<String>,
}

impl Judgement {
    /// Whether a request's expectation failed.
    pub(crate) fn is_unavailable(&self) -> bool {
        !self.unmet.is_empty()
    }

    /// The last answer to `request` is in, and differs from what is expected in this.
    pub(crate) fn unmet(&mut self, request: &Request, found: Vec<String>) {
        self.unmet.extend(found.into_iter().map(|difference| format!("{}: {difference}", request.name)));
    }

    /// What tells of the state is here. Returns what differs.
    pub(crate) fn invariant(&mut self, invariant: &Invariant, found: &Found, hide: Hide<'_>) -> Option<String> {
        let difference = match (found, &invariant.check) {
            (Found::Difference(difference), _) => difference.clone(),
            (_, None) => return None,
            (Found::Text(text), Some(check)) => check.difference(text, hide)?,
            (Found::Value(value), Some(check)) => check.difference_in(value, hide)?,
        };
        let when = match invariant.when {
            When::AfterRound => String::new(),
            when => format!(" ({when})"),
        };
        self.differences.push(format!("{}{when}: {difference}", invariant.name));
        if !self.broken.contains(&invariant.name) {
            self.broken.push(invariant.name.clone());
        }
        Some(difference)
    }

    /// The finding, with the names of the broken invariants.
    pub(crate) fn finding(self) -> (OracleFinding, Vec<String>) {
        let found = if !self.broken.is_empty() {
            OracleVerdict::Violated
        } else if !self.unmet.is_empty() {
            OracleVerdict::Unavailable
        } else {
            OracleVerdict::Held
        };
        let differences = self.differences.into_iter().chain(self.unmet).collect();
        (OracleFinding { found, differences }, self.broken)
    }
}

/// How an answer differs from what is expected, a sentence each, shown through `hide`.
pub(crate) fn differences(
    request: &Request,
    expected: &Expectation,
    sent: &Sent,
    latency: Duration,
    hide: Hide<'_>,
) -> Vec<String> {
    let mut found = Vec::new();
    let body = match sent {
        Sent::Failed(Failure::Timeout) => {
            return vec![format!("expected an answer within {}, found none", Interval(request.timeout))];
        }
        Sent::Failed(Failure::Transport(reason)) => return vec![hide(&format!("expected an answer, found: {reason}"))],
        Sent::Http { status, body, .. } => {
            match expected.status {
                Some(wanted) if wanted != *status => found.push(format!("expected status {wanted}, found {status}")),
                None if *status >= 400 => found.push(format!("expected a status below 400, found {status}")),
                _ => {}
            }
            body
        }
        Sent::Grpc { http_status, reply, .. } => {
            if let Some(wanted) = expected.status
                && wanted != *http_status
            {
                found.push(format!("expected HTTP status {wanted}, found {http_status}"));
            }
            let wanted = expected.grpc_status.unwrap_or(0);
            if wanted != reply.status {
                let says =
                    if reply.message.is_empty() { String::new() } else { format!(" ({})", hide(&reply.message)) };
                found.push(format!("expected grpc-status {wanted}, found {}{says}", reply.status));
            }
            &reply.body
        }
        Sent::Ran(ran) => {
            found.extend(ran.difference(expected.exit.unwrap_or(0), hide));
            &ran.stdout
        }
    };
    found.extend(expected.body.iter().filter_map(|check| check.difference(body, hide)));
    if let Some(longest) = expected.latency
        && latency > longest.0
    {
        found.push(format!("expected an answer within {longest}, found one after {}", Interval(latency)));
    }
    found
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;

    use super::super::grpc::Reply;
    use super::*;
    use crate::scenario::Scenario;

    fn request() -> Request {
        let text = "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {name: s}\nspec:\n  \
                    entry: http://h\n  requests:\n    - {name: r, http: {method: GET, path: /}, timeout: 1s}\n";
        Scenario::parse("s.yaml", text).unwrap().requests.remove(0)
    }

    fn http(status: u16, body: &'static str) -> Sent {
        Sent::Http { status, headers: HeaderMap::new(), body: Bytes::from_static(body.as_bytes()) }
    }

    fn grpc(http_status: u16, status: u32, message: &str) -> Sent {
        Sent::Grpc {
            http_status,
            headers: HeaderMap::new(),
            reply: Reply { status, message: message.to_owned(), body: Bytes::from_static(b"[3]") },
        }
    }

    #[test]
    fn an_answer_differs_in_status_body_and_latency() {
        let ms = Duration::from_millis;
        for (expected, sent, latency, found) in [
            ("{}", http(302, ""), ms(1), &[][..]),
            ("{}", http(400, ""), ms(1), &["expected a status below 400, found 400"]),
            (r#"{"status": 500}"#, http(500, ""), ms(1), &[]),
            (r#"{"status": 500}"#, http(200, ""), ms(1), &["expected status 500, found 200"]),
            (r#"{"latency": "5ms"}"#, http(200, ""), ms(5), &[]),
            (r#"{"latency": "5ms"}"#, http(200, ""), ms(6), &["expected an answer within 5ms, found one after 6ms"]),
            (
                r#"{"body": [{"json_path": "$.a", "equals": 1}, {"json_path": "$.b", "at_least": 2}], "status": 201}"#,
                http(200, r#"{"a": 2, "b": 2}"#),
                ms(1),
                &["expected status 201, found 200", "$.a: expected 1, found 2"],
            ),
            ("{}", grpc(200, 0, ""), ms(1), &[]),
            ("{}", grpc(200, 9, "no"), ms(1), &["expected grpc-status 0, found 9 (no)"]),
            (r#"{"grpc_status": 9}"#, grpc(200, 9, "no"), ms(1), &[]),
            (
                r#"{"status": 200, "grpc_status": 14}"#,
                grpc(503, 14, ""),
                ms(1),
                &["expected HTTP status 200, found 503"],
            ),
            (
                r#"{"body": [{"json_path": "$[0]", "equals": 4}]}"#,
                grpc(200, 0, ""),
                ms(1),
                &["$[0]: expected 4, found 3"],
            ),
            ("{}", Sent::Failed(Failure::Timeout), ms(1), &["expected an answer within 1s, found none"]),
            (
                r#"{"status": 500}"#,
                Sent::Failed(Failure::Transport("connection reset".to_owned())),
                ms(1),
                &["expected an answer, found: connection reset"],
            ),
        ] {
            let expectation: Expectation = serde_json::from_str(expected).unwrap();
            assert_eq!(
                differences(&request(), &expectation, &sent, latency, &str::to_owned),
                found,
                "{expected} {sent}"
            );
        }
    }

    #[test]
    fn a_broken_invariant_outweighs_a_failed_request() {
        let invariant: Invariant = serde_json::from_str(
            r#"{"name": "one", "when": "after_attempt(1)", "get": "http://h", "json_path": "$.n", "equals": 1}"#,
        )
        .unwrap();
        let run = |n: &str, status: u16| {
            let mut judgement = Judgement::default();
            judgement.invariant(&invariant, &Found::Text(format!("{{\"n\": {n}}}").into()), &str::to_owned);
            let sent = http(status, "");
            judgement.unmet(
                &request(),
                differences(&request(), &Expectation::default(), &sent, Duration::ZERO, &str::to_owned),
            );
            let (finding, broken) = judgement.finding();
            (finding.found, finding.differences, broken)
        };
        assert_eq!(run("1", 200), (OracleVerdict::Held, vec![], vec![]));
        let unmet = "r: expected a status below 400, found 500".to_owned();
        assert_eq!(run("1", 500), (OracleVerdict::Unavailable, vec![unmet.clone()], vec![]));
        let broken = "one (after_attempt(1)): $.n: expected 1, found 2".to_owned();
        assert_eq!(run("2", 200), (OracleVerdict::Violated, vec![broken.clone()], vec!["one".to_owned()]));
        assert_eq!(run("2", 500), (OracleVerdict::Violated, vec![broken, unmet], vec!["one".to_owned()]));
    }
}
