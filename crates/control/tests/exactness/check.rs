//! A verdict against the truth.

use std::collections::BTreeSet;

use aftershock_control::api::{FaultVerdict, Verdict};
use aftershock_core::plan::Occurrence;
use aftershock_core::span::PassedBy;

use crate::net::Net;
use crate::truth::{Attempt, TrueFault, TruePass};

impl Net {
    /// What is wrong with the verdict of a round; and the verdict.
    pub(crate) fn check(&mut self, round: usize) -> (Verdict, Vec<String>) {
        self.kept_faults(round);
        let finished = self.rounds[round].finished.clone().expect("it is over");
        let Some(verdict) = finished.faults.first() else { return (finished.verdict, Vec::new()) };
        let mut wrong = Vec::new();
        let faults = &self.rounds[round].faults;
        let right: Vec<bool> = faults.iter().map(|fault| self.why_not_right(round, fault).is_none()).collect();
        let limit = self.rounds[round].tfic.as_ref().map_or(0, |tfic| tfic.max_injections.limit());
        let executions: BTreeSet<usize> = faults.iter().map(|fault| fault.attempt).collect();
        let allowed = executions.len() == faults.len() && faults.len() <= limit as usize;
        match verdict.verdict {
            Verdict::Injected => {
                if faults.is_empty() || !allowed {
                    wrong.push(format!(
                        "injected, and {} faults happened in {} executions",
                        faults.len(),
                        executions.len()
                    ));
                }
                for fault in faults {
                    wrong.extend(self.why_not_right(round, fault).map(|why| format!("injected, but {why}")));
                }
            }
            Verdict::Premature if !right.is_empty() && right.iter().all(|right| *right) => {
                wrong.push("premature, and the hit was right".to_owned());
            }
            Verdict::Multiple if allowed => wrong.push("multiple, and no fault was one too many".to_owned()),
            Verdict::Missed | Verdict::Unreached => {
                if !faults.is_empty() {
                    wrong.push(format!("{}, and a fault happened", verdict.verdict));
                }
                for attempt in self.executions(round) {
                    wrong.extend(self.why_not_missed(round, &self.attempts[attempt], verdict.verdict));
                }
            }
            _ => {}
        }
        wrong.extend(self.unexplained(round, verdict));
        if !wrong.is_empty() {
            wrong.push(format!("verdict {} because {:?}", verdict.verdict, verdict.reasons));
            wrong.push(format!("target {:?}", self.rounds[round].tfic));
        }
        (verdict.verdict, wrong)
    }

    pub(crate) fn executions(&self, round: usize) -> BTreeSet<usize> {
        self.rounds[round].attempts.iter().map(|attempt| self.first_of(*attempt)).collect()
    }

    /// The number of a pass: by the arbiter's order of questions, or by arrival. None if it never was in question.
    fn number(&self, round: usize, attempt: &Attempt, call: usize) -> Option<u32> {
        let at = match self.rounds[round].arbitrated {
            true => attempt.asked.iter().position(|asked| *asked == call),
            false => attempt.passes.iter().position(|pass| pass.call == call),
        };
        at.map(|at| at as u32 + 1)
    }

    fn is_judged(&self, round: usize, attempt: &Attempt, pass: &TruePass) -> bool {
        let round = &self.rounds[round];
        round.armed.contains(&pass.observer) && !pass.lost && (!round.arbitrated || attempt.asked.contains(&pass.call))
    }

    fn why_not_right(&self, round: usize, fault: &TrueFault) -> Option<String> {
        let attempt = &self.attempts[fault.attempt];
        let tfic = self.rounds[round].tfic.as_ref()?;
        let Some(pass) = attempt.passes.iter().find(|pass| pass.call == fault.call) else {
            return Some(format!("call {} is no pass", fault.call));
        };
        if !fault.guard {
            return Some(format!("the guard did not hold at call {}", fault.call));
        }
        if !pass.outcome {
            return Some(format!("the outcome of call {} is not the target's", fault.call));
        }
        let number = self.number(round, attempt, fault.call);
        if let Occurrence::Number(k) = tfic.target.k
            && number != Some(k)
        {
            return Some(format!("call {} was pass {number:?}, not {k}", fault.call));
        }
        // The arbiter reserves the shot when it is asked: a pass that comes while the answer is under way is refused for it,
        // and need not ask where that is known.
        let arbitrated = self.rounds[round].arbitrated && tfic.hold.is_none();
        let decided = if arbitrated { pass.arrived } else { fault.at };
        let mut earlier = attempt.passes.iter().filter(|other| other.call != fault.call && other.arrived < decided);
        if let Some(other) = earlier.clone().find(|other| !self.is_judged(round, attempt, other)) {
            return Some(format!("call {} was a pass before it that nobody judged", other.call));
        }
        if tfic.target.k == Occurrence::First && tfic.hold.is_none() {
            let before = |other: &TruePass| match self.rounds[round].arbitrated {
                true => self.number(round, attempt, other.call) < number,
                false => other.arrived < pass.arrived,
            };
            if let Some(other) = earlier.find(|other| before(other) && other.guard_then && other.outcome) {
                return Some(format!("the guard held at call {} before it", other.call));
            }
        }
        None
    }

    fn why_not_missed(&self, round: usize, attempt: &Attempt, verdict: Verdict) -> Option<String> {
        let finished = self.rounds[round].finished.as_ref()?;
        let tfic = self.rounds[round].tfic.as_ref()?;
        for pass in &attempt.passes {
            let number = self.number(round, attempt, pass.call);
            let seen = self.calls[pass.call].id.and_then(|id| {
                let calls = finished.traces.iter().flat_map(|trace| &trace.calls).filter(|call| call.id == id);
                calls.flat_map(|call| call.spans()).flat_map(|span| &span.passes).find(|pass| pass.rule == 0)
            });
            let why = seen.and_then(|seen| seen.passed_by.clone());
            let over = matches!(why, Some(PassedBy::Spent | PassedBy::Arbiter | PassedBy::RoundOver));
            if !self.is_judged(round, attempt, pass) && !over {
                return Some(format!("{verdict}, but call {} was a pass that nobody judged ({why:?})", pass.call));
            }
            let meant = match tfic.target.k {
                Occurrence::First => true,
                Occurrence::Number(k) => number == Some(k),
            };
            if !meant {
                continue;
            }
            if verdict == Verdict::Unreached {
                return Some(format!("unreached, but call {} was the target", pass.call));
            }
            let by_then = match tfic.hold {
                Some(_) => pass.guard_at_last == Some(true),
                None => pass.guard_then,
            };
            let excused = matches!(
                why,
                Some(
                    PassedBy::Arbiter
                        | PassedBy::CallerGone
                        | PassedBy::Disarmed
                        | PassedBy::RoundOver
                        | PassedBy::Spent
                        | PassedBy::ParkedLimit
                        | PassedBy::Goaway
                )
            );
            // The arbiter's count decides atoms on the own event, which are not looked at here.
            let own = self.rounds[round].arbitrated && matches!(why, Some(PassedBy::GuardFalse(_)));
            if by_then && pass.outcome && !excused && !own {
                return Some(format!("missed, but the guard held at call {} ({why:?})", pass.call));
            }
        }
        None
    }

    /// Reasons that say nothing, or speak of what does not exist.
    fn unexplained(&self, round: usize, verdict: &FaultVerdict) -> Vec<String> {
        let mut wrong = Vec::new();
        if verdict.reasons.is_empty() {
            wrong.push("no reason is given".to_owned());
        }
        let finished = self.rounds[round].finished.as_ref().expect("it is over");
        let mut names: BTreeSet<String> = self.known_observers.iter().map(ToString::to_string).collect();
        names.extend(finished.traces.iter().map(|trace| trace.execution.to_string()));
        names.extend(
            self.executions(round).iter().filter_map(|at| self.attempts[*at].execution).map(|id| id.to_string()),
        );
        let calls: BTreeSet<String> = self.ids.keys().map(ToString::to_string).collect();
        let nothing = [
            "arming failed: a sidecar did not acknowledge",
            "no execution of the round was seen",
            "no sidecar recorded a call of the round",
        ];
        for reason in &verdict.reasons {
            let words = reason.split(|c: char| !c.is_ascii_alphanumeric());
            let ids: Vec<&str> =
                words.clone().filter(|word| word.len() == 16 && word.bytes().all(|b| b.is_ascii_hexdigit())).collect();
            if let Some(id) = ids.iter().find(|id| !names.contains(**id) && !calls.contains(**id)) {
                wrong.push(format!("`{reason}` speaks of {id}, which does not exist"));
            }
            let named = words.clone().any(|word| self.system.services.iter().any(|service| service.name == word));
            if ids.is_empty() && !named && !nothing.iter().any(|none| reason.starts_with(none)) {
                wrong.push(format!("`{reason}` names nothing"));
            }
        }
        wrong
    }
}
