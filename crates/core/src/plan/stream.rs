//! Faults inside a response stream: what can be done there at all (design §3.5).
//!
//! Files are checked against this when they are loaded, plans when they are armed, and each sidecar checks the rules it
//! is given: one reading for all three.

use std::collections::BTreeSet;

use super::{Fault, Phase, Plan, StreamPoint, Tfic};
use crate::event::OutcomeFilter;
use crate::name::Api;
use crate::outcome::OutcomeOverride;

/// Why a fault cannot act where its `at` says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitPoint {
    /// Requests have no such places.
    #[error("expected no `at`: it names a place in a response, and the phase is `request`")]
    Request,
    /// The outcome may come later.
    #[error("expected no `outcome` beside `at`: the fault acts before the outcome is known")]
    Outcome,
    /// So may what the callee's sidecar says of it.
    #[error("expected no `post_effect` beside `at`: the fault acts before the outcome is known")]
    PostEffect,
    /// There is no message 0.
    #[error("expected a message from 1, found 0")]
    MessageZero,
    /// Only gRPC has messages.
    #[error("expected `at: {{bytes: …}}` or `at: head`: `{0}` is HTTP, whose bodies have no messages")]
    NoMessages(Api),
    /// An HTTP answer that has begun cannot become another one.
    #[error(
        "expected a delay, a drop or a reset at this `at`: the head of the answer of `{api}` has gone by then, and {fault} \
         cannot take it back"
    )]
    HeadGone {
        /// Of which Api.
        api: Api,
        /// What was wanted.
        fault: String,
    },
    /// Sidecars read the whole body first.
    #[error("expected no `at`: the answers of `{0}` are kept back for their outcome, which is in the body")]
    OutcomeInBody(Api),
    /// Another fault of the plan keeps the same answers back to their end.
    #[error(
        "expected no `at` inside the answers of `{api}`: faults[{by}] keeps them back to their end, where the outcome of a \
         gRPC call is"
    )]
    KeptBack {
        /// Of which Api.
        api: Api,
        /// The other fault, from 0.
        by: usize,
    },
}

impl StreamPoint {
    /// Whether it lies behind the response head.
    pub fn is_inside(self) -> bool {
        self != StreamPoint::Head
    }
}

impl Tfic {
    /// Whether it can act at its `at`, for a target of these Apis.
    ///
    /// # Errors
    /// Why not.
    pub fn check_point(&self, apis: &BTreeSet<Api>) -> Result<(), UnfitPoint> {
        let target = &self.target;
        let Some(point) = target.at else { return Ok(()) };
        if target.phase == Phase::Request {
            return Err(UnfitPoint::Request);
        }
        if target.post_effect {
            return Err(UnfitPoint::PostEffect);
        }
        if target.outcome != OutcomeFilter::Any {
            return Err(UnfitPoint::Outcome);
        }
        if point == StreamPoint::Message(0) {
            return Err(UnfitPoint::MessageZero);
        }
        let Some(http) = apis.iter().find(|api| !api.operation.is_grpc()) else { return Ok(()) };
        if matches!(point, StreamPoint::Message(_)) {
            return Err(UnfitPoint::NoMessages(http.clone()));
        }
        if point.is_inside() && matches!(self.fault, Fault::Abort | Fault::Error(_)) {
            return Err(UnfitPoint::HeadGone { api: http.clone(), fault: format!("`{}`", self.fault) });
        }
        Ok(())
    }

    /// Whether its `at` is for Apis whose outcome the head or the trailers tell.
    ///
    /// # Errors
    /// When it is in the body of one of them.
    pub fn check_outcomes(&self, apis: &BTreeSet<Api>, outcomes: &[OutcomeOverride]) -> Result<(), UnfitPoint> {
        let mut by_body = outcomes.iter().filter(|outcome| outcome.body.is_some() && apis.contains(&outcome.api));
        match by_body.next() {
            Some(outcome) if self.target.at.is_some() => Err(UnfitPoint::OutcomeInBody(outcome.api.clone())),
            _ => Ok(()),
        }
    }

    /// The gRPC Api of both targets whose answers `self` would fault in mid-stream while `other` keeps them back.
    pub fn kept_back_by<'a>(
        &self,
        apis: &'a BTreeSet<Api>,
        other: &Tfic,
        others: &'a BTreeSet<Api>,
    ) -> Option<&'a Api> {
        let inside = self.target.at.is_some_and(StreamPoint::is_inside);
        let keeps = other.target.phase == Phase::Response && other.target.at.is_none();
        let callers_meet = match (&self.target.caller, &other.target.caller) {
            (Some(one), Some(another)) => one == another,
            _ => true,
        };
        if !inside || !keeps || !callers_meet {
            return None;
        }
        apis.intersection(others).find(|api| api.operation.is_grpc())
    }
}

impl Plan {
    /// Whether every fault can act at its `at`. Groups that the plan does not define are left to others to find.
    ///
    /// # Errors
    /// The position of a fault that cannot, and why.
    pub fn check_points(&self) -> Result<(), (usize, UnfitPoint)> {
        let apis = |tfic: &Tfic| self.resolve(&tfic.target.api).unwrap_or_default();
        for (index, tfic) in self.faults.iter().enumerate() {
            let ours = apis(tfic);
            tfic.check_point(&ours).map_err(|why| (index, why))?;
            for (by, other) in self.faults.iter().enumerate() {
                if let Some(api) = tfic.kept_back_by(&ours, other, &apis(other)) {
                    return Err((index, UnfitPoint::KeptBack { api: api.clone(), by }));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn complaint(faults: serde_json::Value) -> Option<(usize, String)> {
        let groups = json!({"both": ["stock GET /items", "stock shop.Stock/List"]});
        let plan: Plan = serde_json::from_value(json!({"groups": groups, "faults": faults})).unwrap();
        plan.check_points().err().map(|(fault, why)| (fault, why.to_string()))
    }

    fn fault(api: &str, fault: serde_json::Value, more: serde_json::Value) -> serde_json::Value {
        let mut target = json!({"api": api, "k": 1, "phase": "response"});
        target.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"target": target, "fault": fault})
    }

    const HTTP: &str = "stock GET /items";
    const GRPC: &str = "stock shop.Stock/List";

    #[test]
    fn every_fault_can_act_where_it_is_possible() {
        let at = [json!("head"), json!({"message": 2}), json!({"bytes": 0}), json!({"bytes": 100})];
        let faults = [json!("drop"), json!("reset"), json!({"delay": "1s"}), json!("abort"), json!({"error": {}})];
        for at in &at {
            for what in &faults {
                assert_eq!(complaint(json!([fault(GRPC, what.clone(), json!({"at": at}))])), None, "{at} {what}");
                let message = at.get("message").is_some();
                let answer = *what == json!("abort") || what.get("error").is_some();
                let possible = !message && (!answer || *at == json!("head"));
                for api in [HTTP, "group:both"] {
                    let found = complaint(json!([fault(api, what.clone(), json!({"at": at}))]));
                    assert_eq!(found.is_none(), possible, "{api} {at} {what}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_act_says_why() {
        for (one, expected) in [
            (fault(HTTP, json!("drop"), json!({"phase": "request", "at": "head"})), "the phase is `request`"),
            (fault(GRPC, json!("drop"), json!({"at": "head", "outcome": "ok"})), "expected no `outcome` beside `at`"),
            (fault(GRPC, json!("drop"), json!({"at": "head", "post_effect": true})), "expected no `post_effect`"),
            (fault(GRPC, json!("drop"), json!({"at": {"message": 0}})), "expected a message from 1"),
            (fault(HTTP, json!("drop"), json!({"at": {"message": 1}})), "`stock GET /items` is HTTP"),
            (fault(HTTP, json!({"error": 503}), json!({"at": {"bytes": 9}})), "`error 503` cannot take it back"),
        ] {
            let (index, found) = complaint(json!([one])).unwrap();
            assert!(index == 0 && found.contains(expected), "{found}");
        }
    }

    #[test]
    fn two_faults_do_not_keep_back_and_cut_the_same_answers() {
        let inside = fault(GRPC, json!("reset"), json!({"at": {"message": 2}}));
        let whole = fault(GRPC, json!("drop"), json!({}));
        let (index, found) = complaint(json!([whole, inside])).unwrap();
        assert_eq!(index, 1);
        assert!(found.contains("faults[0] keeps them back"), "{found}");
        let elsewhere = fault(GRPC, json!("drop"), json!({"caller": "b"}));
        let inside = fault(GRPC, json!("reset"), json!({"at": {"message": 2}, "caller": "a"}));
        assert_eq!(complaint(json!([elsewhere, inside])), None, "their callers differ");
        let request = fault(GRPC, json!("drop"), json!({"phase": "request"}));
        let head = fault(GRPC, json!("drop"), json!({"at": "head"}));
        assert_eq!(complaint(json!([inside, request, head])), None);
        let http = fault(HTTP, json!("drop"), json!({}));
        let bytes = fault(HTTP, json!("drop"), json!({"at": {"bytes": 3}}));
        assert_eq!(complaint(json!([http, bytes])), None, "the outcome of HTTP stands in the head");
    }

    #[test]
    fn an_answer_whose_body_is_read_first_has_no_place_inside() {
        let outcomes: Vec<OutcomeOverride> = serde_json::from_value(json!([
            {"api": HTTP, "body": {"pointer": "/state", "ok": ["done"]}},
            {"api": GRPC, "ok": [5]}
        ]))
        .unwrap();
        let apis = |api: &str| BTreeSet::from([api.parse::<Api>().unwrap()]);
        for (api, at, fits) in [
            (HTTP, Some(StreamPoint::Bytes(3)), false),
            (HTTP, Some(StreamPoint::Head), false),
            (HTTP, None, true),
            (GRPC, Some(StreamPoint::Message(2)), true),
        ] {
            let mut tfic: Tfic = serde_json::from_value(fault(api, json!("reset"), json!({}))).unwrap();
            tfic.target.at = at;
            assert_eq!(tfic.check_outcomes(&apis(api), &outcomes).is_ok(), fits, "{api} {at:?}");
        }
    }
}
