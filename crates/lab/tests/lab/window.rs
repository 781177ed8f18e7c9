//! The window of a fault, on logs made of known arrivals: compared with every order in which the passes can have come.

use std::sync::LazyLock;

use aftershock_core::plan::{Plan, Tfic};
use aftershock_lab::Topology;
use aftershock_lab::events::{Event, Failure, Kind, Nanoseconds, Outcome};
use aftershock_lab::truth::{Log, NoWindow, Question, Window};
use proptest::prelude::*;

use crate::topology_files::shipped;

/// A fault on the answers that workers get from the store.
fn plan(k: &str, fault: &str, atoms: &str) -> Plan {
    let tfic: Tfic = serde_json::from_str(&format!(
        r#"{{"target": {{"caller": "worker", "api": "store POST /items", "k": {k}, "phase": "response"}},
            "fault": {fault}, "guard": {{"after": [{atoms}]}}}}"#
    ))
    .unwrap();
    Plan { faults: vec![tfic], ..Plan::default() }
}

fn ask(plan: &Plan, ordered: bool, log: &Log) -> Result<(), String> {
    static FAN: LazyLock<Topology> = LazyLock::new(|| shipped("fan"));
    let window = Window::of(&FAN, plan, 0, ordered).unwrap();
    Question::Window(Box::new(window)).ask(log, None).map_err(|contradiction| contradiction.to_string())
}

/// A call of the store by a worker: when it answered, when the worker had read that or gave up, and what it read.
#[derive(Clone, Copy, Debug)]
struct Pass {
    sent: u64,
    seen: u64,
    faulted: bool,
}

fn log(passes: &[Pass]) -> Log {
    let mut events = Vec::new();
    let mut add = |clock: u64, event: Kind, api: &str, call: String, parent: Option<String>, status: Option<&str>| {
        let caller = if parent.is_none() { "client" } else { "worker" };
        events.push(Event {
            clock: Nanoseconds(clock),
            sequence: events.len() as u64,
            service: caller.to_owned(),
            process: 1,
            event,
            api: api.to_owned(),
            call,
            parent,
            caller: caller.to_owned(),
            index: 1,
            attempt: 1,
            outcome: status.map(|status| if status == "200" { Outcome::Ok } else { Outcome::Error }),
            status: status.map(str::to_owned),
            failure: (event == Kind::CallFailed).then_some(Failure::Hang),
            ledger: None,
        });
    };
    add(0, Kind::RequestReceived, "post_batch", "client.1".into(), None, None);
    for (n, pass) in passes.iter().enumerate() {
        let (call, parent) = (format!("worker.{n}"), Some("client.1".to_owned()));
        add(1, Kind::RequestSent, "put_item", call.clone(), parent.clone(), None);
        add(2, Kind::RequestReceived, "put_item", call.clone(), parent.clone(), None);
        add(pass.sent, Kind::ResponseSent, "put_item", call.clone(), parent.clone(), Some("200"));
        let status = if pass.faulted { "503" } else { "200" };
        add(pass.seen, Kind::ResponseReceived, "put_item", call, parent, Some(status));
    }
    add(1_000, Kind::ResponseSent, "post_batch", "client.1".into(), None, Some("200"));
    Log::new(events)
}

/// Every number that pass `of` can have had: all orders are tried, each pass somewhere between sent and seen.
fn possible_numbers(passes: &[Pass], of: usize) -> Vec<usize> {
    fn go(passes: &[Pass], of: usize, order: &mut Vec<usize>, now: u64, found: &mut Vec<usize>) {
        if order.len() == passes.len() {
            let number = order.iter().position(|&pass| pass == of).unwrap() + 1;
            if !found.contains(&number) {
                found.push(number);
            }
            return;
        }
        for next in 0..passes.len() {
            let at = now.max(passes[next].sent);
            if !order.contains(&next) && at <= passes[next].seen {
                order.push(next);
                go(passes, of, order, at, found);
                order.pop();
            }
        }
    }
    let mut found = Vec::new();
    go(passes, of, &mut Vec::new(), 0, &mut found);
    found.sort_unstable();
    found
}

proptest! {
    #[test]
    fn a_number_is_accepted_if_and_only_if_some_order_of_arrival_gives_it(
        spans in prop::collection::vec((0_u64..40, 1_u64..40), 1..6),
        of in 0_usize..6,
    ) {
        let of = of % spans.len();
        // Clocks that differ: ends of spans are odd, beginnings even, and none is used twice.
        let mut passes: Vec<Pass> = Vec::new();
        for (n, (sent, length)) in spans.iter().enumerate() {
            let sent = 10 + (sent * 8 + n as u64) * 2;
            passes.push(Pass { sent, seen: sent + length * 16 + 1, faulted: n == of });
        }
        let possible = possible_numbers(&passes, of);
        for k in 1..=passes.len() {
            let judged = ask(&plan(&k.to_string(), r#""abort""#, ""), false, &log(&passes));
            prop_assert_eq!(judged.is_ok(), possible.contains(&k), "{}: {:?}, {:?}", k, judged, &possible);
        }
        // On one connection the order of sending is that of arriving.
        let number = passes.iter().filter(|pass| pass.sent <= passes[of].sent).count();
        for k in 1..=passes.len() {
            prop_assert_eq!(ask(&plan(&k.to_string(), r#""abort""#, ""), true, &log(&passes)).is_ok(), k == number);
        }
    }
}

#[test]
fn a_second_fault_another_mark_and_none_at_all_are_contradictions() {
    let pass = |sent, faulted| Pass { sent, seen: sent + 5, faulted };
    let abort = plan("2", r#""abort""#, "");
    assert_eq!(ask(&abort, false, &log(&[pass(10, false), pass(20, true)])), Ok(()));
    let both = ask(&abort, false, &log(&[pass(10, true), pass(20, true)])).unwrap_err();
    assert!(both.contains("worker.0") && both.contains("worker.1"), "{both}");
    let none = ask(&abort, false, &log(&[pass(10, false), pass(20, false)])).unwrap_err();
    assert!(none.ends_with("no call was interfered with"), "{none}");
    let early = ask(&abort, false, &log(&[pass(10, true), pass(20, false)])).unwrap_err();
    assert!(early.contains("was number 1"), "{early}");
    let dropped = ask(&plan("2", r#""drop""#, ""), false, &log(&[pass(10, false), pass(20, true)])).unwrap_err();
    assert!(dropped.contains("ResponseReplaced"), "a dropped answer is not replaced: {dropped}");
}

#[test]
fn a_guard_that_cannot_have_been_true_yet_is_a_contradiction() {
    let pass = |sent, faulted| Pass { sent, seen: sent + 5, faulted };
    let atom = r#"{"event": "response-received", "api": "store POST /items", "caller": "worker", "outcome": "ok", "count": 1}"#;
    let first = plan(r#""first""#, r#""abort""#, atom);
    assert_eq!(ask(&first, false, &log(&[pass(10, false), pass(20, true)])), Ok(()));
    let early = ask(&first, false, &log(&[pass(10, true), pass(20, false)])).unwrap_err();
    assert!(early.contains("only 0 response-received of put_item"), "{early}");
}

#[test]
fn a_delay_is_a_message_that_was_late_and_nothing_else() {
    let delay = plan("2", r#"{"delay": "100ms"}"#, "");
    let late = Pass { sent: 20, seen: 20 + 100_000_000, faulted: false };
    let quick = Pass { sent: 10, seen: 15, faulted: false };
    assert_eq!(ask(&delay, false, &log(&[quick, late])), Ok(()));
    assert!(ask(&delay, false, &log(&[quick, quick])).is_err());
    assert!(ask(&delay, false, &log(&[quick, late, Pass { sent: 30, seen: 31, faulted: true }])).is_err());
}

#[test]
fn the_logs_cannot_tell_of_a_fault_at_an_entry_or_on_an_api_they_do_not_know() {
    let mut entry = plan("1", r#""abort""#, "");
    entry.faults[0].target.caller = None;
    entry.faults[0].target.api = "gateway POST /batch".parse().unwrap();
    assert_eq!(Window::of(&shipped("fan"), &entry, 0, false), Err(NoWindow::Entry));
    entry.faults[0].target.api = "store POST /item".parse().unwrap();
    assert_eq!(Window::of(&shipped("fan"), &entry, 0, false), Err(NoWindow::UnknownApi("store POST /item".to_owned())));
}
