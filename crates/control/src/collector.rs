//! Spans of live and recent rounds, by token: bounded, each once.
//!
//! Everything else is counted and let go: ordinary traffic (no token), tokens that are not ours, spans of others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::otlp::{Answer, Decoded};
use aftershock_core::plan::Side;
use aftershock_core::span::CallSpan;

use crate::api::{Collected, RoundId};

/// How many judged rounds are remembered, to tell late spans from unknown ones and from repeated ones.
const RECENT: usize = 256;

/// What identifies an observation: a span sent again is the same.
type Key = (ExecutionId, CallId, Side, ObserverId);

/// See the module.
#[derive(Debug)]
pub(crate) struct Collector {
    limit: usize,
    live: BTreeMap<Token, Gathered>,
    recent: VecDeque<(Token, RoundId, BTreeSet<Key>)>,
    counted: Collected,
}

/// What is in of one round.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) spans: Vec<Arc<CallSpan>>,
    /// Spans beyond the limit.
    pub(crate) dropped: u64,
    keys: BTreeSet<Key>,
}

/// What became of one export request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// To be answered.
    pub(crate) answer: Answer,
    /// Live rounds that got something new.
    pub(crate) grew: BTreeSet<Token>,
    /// Spans of rounds that had been judged.
    pub(crate) late: BTreeMap<(RoundId, ExecutionId), u64>,
}

impl Collector {
    /// Keeps at most `limit` spans of each live round.
    pub(crate) fn new(limit: usize) -> Self {
        Collector { limit, live: BTreeMap::new(), recent: VecDeque::new(), counted: Collected::default() }
    }

    /// Spans under `token` are kept from now on.
    pub(crate) fn open(&mut self, token: Token) {
        self.live.insert(token, Gathered::default());
    }

    /// What is in of a live round.
    pub(crate) fn gathered(&self, token: Token) -> Option<&Gathered> {
        self.live.get(&token)
    }

    /// The round was judged by what is in: what comes now is late.
    pub(crate) fn close(&mut self, token: Token, round: RoundId) -> Gathered {
        let mut gathered = self.live.remove(&token).unwrap_or_default();
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((token, round, std::mem::take(&mut gathered.keys)));
        gathered
    }

    /// Take what an export request held.
    pub(crate) fn accept(&mut self, decoded: Decoded) -> Accepted {
        let mut accepted = Accepted::default();
        let counted = &mut self.counted;
        counted.foreign += decoded.foreign as u64;
        for span in decoded.spans {
            if span.token.is_zero() {
                counted.ordinary += 1;
                continue;
            }
            let key = (span.execution, span.call, span.side, span.observer);
            if let Some(round) = self.live.get_mut(&span.token) {
                if round.keys.contains(&key) {
                    counted.repeated += 1;
                } else if round.spans.len() == self.limit {
                    counted.dropped += 1;
                    round.dropped += 1;
                    accepted.answer.rejected += 1;
                } else {
                    counted.kept += 1;
                    round.keys.insert(key);
                    accepted.grew.insert(span.token);
                    round.spans.push(Arc::new(span));
                }
            } else if let Some((_, round, keys)) = self.recent.iter_mut().rev().find(|recent| recent.0 == span.token) {
                if keys.insert(key) {
                    counted.late += 1;
                    *accepted.late.entry((*round, span.execution)).or_default() += 1;
                } else {
                    counted.repeated += 1;
                }
            } else {
                counted.unknown += 1;
            }
        }
        if accepted.answer.rejected > 0 {
            accepted.answer.message = format!("a round keeps at most {} spans", self.limit);
        }
        accepted
    }

    /// Counts since the beginning.
    pub(crate) fn counted(&self) -> Collected {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::span;

    fn request(tokens_and_calls: &[(u64, u64)]) -> Decoded {
        let spans = tokens_and_calls
            .iter()
            .map(|(token, call)| CallSpan {
                token: Token(*token),
                ..span(Side::Callee, *call, None, "payment shop.Payment/Charge")
            })
            .collect();
        Decoded { spans, foreign: 2 }
    }

    #[test]
    fn spans_are_kept_once_for_live_rounds_and_counted_otherwise() {
        let mut collector = Collector::new(10);
        collector.open(Token(1));
        let accepted = collector.accept(request(&[(1, 1), (1, 2), (1, 1), (0, 3), (9, 4)]));
        assert_eq!(accepted, Accepted { grew: [Token(1)].into(), ..Accepted::default() });
        assert!(collector.accept(request(&[(1, 2)])).grew.is_empty());
        assert_eq!(collector.gathered(Token(1)).unwrap().spans.len(), 2);
        let expected = Collected { kept: 2, repeated: 2, ordinary: 1, unknown: 1, foreign: 4, ..Collected::default() };
        assert_eq!(collector.counted(), expected);
    }

    #[test]
    fn spans_after_the_judgement_are_late_unless_they_were_in() {
        let mut collector = Collector::new(10);
        collector.open(Token(1));
        collector.accept(request(&[(1, 1)]));
        assert_eq!(collector.close(Token(1), RoundId(5)).spans.len(), 1);
        let accepted = collector.accept(request(&[(1, 1), (1, 2), (1, 2), (1, 3)]));
        assert_eq!(accepted.late, BTreeMap::from([((RoundId(5), ExecutionId(1)), 2)]));
        assert!(collector.gathered(Token(1)).is_none());
    }

    #[test]
    fn a_round_keeps_no_more_than_the_limit_and_says_so() {
        let mut collector = Collector::new(2);
        collector.open(Token(1));
        let accepted = collector.accept(request(&[(1, 1), (1, 2), (1, 3), (1, 4), (1, 1)]));
        let message = "a round keeps at most 2 spans".to_owned();
        assert_eq!(accepted.answer, Answer { rejected: 2, message });
        assert_eq!(collector.gathered(Token(1)).unwrap().dropped, 2);
    }

    #[test]
    fn the_memory_of_judged_rounds_is_bounded() {
        let mut collector = Collector::new(2);
        for n in 1..=RECENT as u64 + 1 {
            collector.open(Token(n));
            collector.close(Token(n), RoundId(n as i64));
        }
        let accepted = collector.accept(request(&[(1, 1), (2, 1)]));
        assert_eq!(accepted.late.len(), 1, "the first was forgotten: {accepted:?}");
    }
}
