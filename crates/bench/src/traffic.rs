//! Whose the requests are: ordinary ones, or those of executions that a client declared.
//!
//! A round of the load has up to [`PER_ROUND`] executions, then the next begins, since a sidecar follows a bounded
//! number of executions of a live round. The next one is armed while the one at hand is half used, as if a runner worked
//! off one round after the other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use aftershock_core::id::{CallId, ExecutionId, Token, scatter};
use aftershock_core::w3c::{Member, TraceParent};
use anyhow::{Context as _, ensure};

use crate::controller::Controller;

/// Requests of one execution, all on one connection.
const PER_EXECUTION: u32 = 100;
/// Executions of one round; sidecars follow 4,096.
const PER_ROUND: u32 = 2_000;

/// Field lines that a client sends beside its own.
#[derive(Debug, Default)]
pub(crate) struct Context {
    fields: Vec<(&'static str, String)>,
}

impl Context {
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.fields.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

/// Where requests come from.
#[derive(Debug)]
pub(crate) struct Traffic {
    whose: Whose,
    drawn: Cell<u64>,
}

#[derive(Debug)]
enum Whose {
    /// Each request is an execution of its own.
    Ordinary,
    /// The same octets as those of rounds, and nobody knows their token.
    Nobodys(Token),
    /// Of whatever round runs when an execution begins, if one does.
    Current(Rc<Cell<Token>>),
    Rounds(RefCell<Rounds>),
}

/// Rounds that follow each other.
#[derive(Debug)]
struct Rounds {
    controller: Rc<Controller>,
    /// All so far, the one at hand and the next one behind them.
    tokens: Vec<Token>,
    /// Which of them is at hand.
    current: usize,
    /// How many executions of it have begun.
    begun: u32,
}

impl Traffic {
    /// Each request is an execution of its own, of no round.
    pub(crate) fn ordinary() -> Self {
        Traffic { whose: Whose::Ordinary, drawn: Cell::new(1) }
    }

    /// For what knows of no rounds: requests that look like those of rounds.
    pub(crate) fn of_nobody() -> Self {
        Traffic { whose: Whose::Nobodys(Token(scatter(1))), drawn: Cell::new(1) }
    }

    /// Executions of the round that `token` names when they begin, of none while that is zero.
    pub(crate) fn of_current(token: Rc<Cell<Token>>, seed: u64) -> Self {
        Traffic { whose: Whose::Current(token), drawn: Cell::new(scatter(seed)) }
    }

    /// Executions of rounds, which `controller` arms. Their tokens are new ones.
    pub(crate) async fn of_rounds(controller: Rc<Controller>) -> anyhow::Result<Self> {
        let first = controller.arm();
        controller.armed(first).await?;
        let rounds = Rounds { controller, tokens: vec![first], current: 0, begun: 0 };
        Ok(Traffic { whose: Whose::Rounds(RefCell::new(rounds)), drawn: Cell::new(first.0) })
    }

    /// Ends its rounds; which ones there were.
    pub(crate) fn end(&self) -> Vec<Token> {
        let Whose::Rounds(rounds) = &self.whose else { return Vec::new() };
        let rounds = rounds.borrow();
        rounds.tokens.iter().for_each(|token| rounds.controller.end(*token));
        rounds.tokens.clone()
    }

    fn draw(&self) -> u64 {
        // A permutation of the numbers that meets zero once in 2⁶⁴.
        self.drawn.set(self.drawn.get().wrapping_add(1));
        scatter(self.drawn.get()).max(1)
    }

    fn token(&self) -> anyhow::Result<Token> {
        match &self.whose {
            Whose::Ordinary => Ok(Token(0)),
            Whose::Nobodys(token) => Ok(*token),
            Whose::Current(token) => Ok(token.get()),
            Whose::Rounds(rounds) => rounds.borrow_mut().next(),
        }
    }
}

impl Rounds {
    fn next(&mut self) -> anyhow::Result<Token> {
        if self.begun == PER_ROUND / 2 {
            self.tokens.push(self.controller.arm());
        }
        if self.begun >= PER_ROUND && self.controller.is_armed(self.tokens[self.current + 1]) {
            self.current += 1;
            self.begun = 0;
        }
        self.begun += 1;
        ensure!(self.begun < 2 * PER_ROUND, "the sidecar did not arm the next round while one was worked off");
        Ok(self.tokens[self.current])
    }
}

/// The executions of one connection, one after the other.
#[derive(Debug)]
pub(crate) struct Executions {
    traffic: Rc<Traffic>,
    left: u32,
    context: Context,
}

impl Executions {
    pub(crate) fn new(traffic: Rc<Traffic>) -> Self {
        Executions { traffic, left: 0, context: Context::default() }
    }

    /// What goes beside the next request.
    pub(crate) fn next(&mut self) -> anyhow::Result<&Context> {
        let parent_id = self.traffic.draw();
        if self.left == 0 {
            self.left = if matches!(self.traffic.whose, Whose::Ordinary) { 1 } else { PER_EXECUTION };
            self.begin(parent_id)?;
        } else {
            let (_, parent) = self.context.fields.first_mut().context("an execution has a trace context")?;
            parent.replace_range(36..52, &format!("{parent_id:016x}"));
        }
        self.left -= 1;
        Ok(&self.context)
    }

    fn begin(&mut self, parent_id: u64) -> anyhow::Result<()> {
        let token = self.traffic.token()?;
        let trace_id = u128::from(self.traffic.draw()) << 64 | u128::from(self.traffic.draw());
        let parent = TraceParent { version: 0, trace_id, parent_id, flags: 1 };
        self.context.fields.clear();
        self.context.fields.push(("traceparent", parent.to_string()));
        if !token.is_zero() {
            let execution = ExecutionId(self.traffic.draw());
            let member = Member { execution, call: CallId(0), token, check: parent.check() };
            self.context.fields.push(("tracestate", format!("{}={member}", Member::KEY)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ordinary_request_has_a_trace_of_its_own() {
        let traffic = Rc::new(Traffic::ordinary());
        let mut executions = Executions::new(traffic);
        let mut traces = std::collections::BTreeSet::new();
        for _ in 0..10 {
            let context = executions.next().unwrap();
            let [(name, value)] = context.fields().collect::<Vec<_>>()[..] else { panic!("{context:?}") };
            assert_eq!(name, "traceparent");
            traces.insert(TraceParent::parse(value).unwrap().trace_id);
        }
        assert_eq!(traces.len(), 10);
    }
}
