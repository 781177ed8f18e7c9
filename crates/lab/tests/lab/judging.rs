//! The truth module on logs written by hand: each fate, each claim, true and false.

use aftershock_lab::events::{Event, Failure, Kind, Nanoseconds, Outcome};
use aftershock_lab::truth::{Fate, Log};

/// `TIME SERVICE EVENT API CALL PARENT [STATUS|FAILURE|LEDGER]`, one line each; PARENT `-` for the client's request.
fn log(text: &str) -> Log {
    let events = text.lines().filter(|line| !line.trim().is_empty()).enumerate().map(|(sequence, line)| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kind: Kind = serde_json::from_value(words[2].into()).unwrap();
        let last = words.get(6).copied();
        let status = last.filter(|_| matches!(kind, Kind::ResponseSent | Kind::ResponseReceived));
        let failure = last.filter(|_| matches!(kind, Kind::CallFailed | Kind::HandlingCancelled));
        Event {
            clock: Nanoseconds(words[0].parse().unwrap()),
            sequence: sequence as u64,
            process: 1,
            service: words[1].to_owned(),
            event: kind,
            api: words[3].to_owned(),
            call: words[4].to_owned(),
            parent: Some(words[5].to_owned()).filter(|parent| parent != "-"),
            caller: if words[5] == "-" { "client".to_owned() } else { "web".to_owned() },
            index: 1,
            attempt: 1,
            outcome: status.map(|status| if status == "OK" { Outcome::Ok } else { Outcome::Error }),
            status: status.map(str::to_owned),
            failure: failure.map(|failure| serde_json::from_value::<Failure>(failure.into()).unwrap()),
            ledger: last.filter(|_| kind == Kind::EffectMade).map(str::to_owned),
        }
    });
    // In no particular order: the log puts them into that of the clock.
    let mut events: Vec<Event> = events.collect();
    events.reverse();
    Log::new(events)
}

#[test]
fn each_disagreement_between_the_ends_of_a_call_is_its_own_fate() {
    for (events, expected, faulted) in [
        (
            "1 web request-sent A a r\n2 x request-received A a r\n3 x response-sent A a r OK\n4 web response-received A a r OK",
            Fate::Whole,
            false,
        ),
        ("1 x request-received A a -\n3 x response-sent A a - 500", Fate::Whole, false),
        ("1 web request-sent A a r\n2 web call-failed A a r transport", Fate::RequestLost, true),
        ("1 web request-sent A a r\n2 web response-received A a r UNAVAILABLE", Fate::RequestLost, true),
        (
            "1 web request-sent A a r\n2 x request-received A a r\n3 x response-sent A a r OK\n9 web call-failed A a r hang",
            Fate::ResponseLost,
            true,
        ),
        (
            "1 web request-sent A a r\n2 x request-received A a r\n3 x response-sent A a r OK\n4 web response-received A a r UNAVAILABLE",
            Fate::ResponseReplaced,
            true,
        ),
        (
            "1 web request-sent A a r\n2 x request-received A a r\n4 web response-received A a r UNAVAILABLE",
            Fate::ResponseReplaced,
            true,
        ),
        (
            "1 web request-sent A a r\n2 x request-received A a r\n4 web call-failed A a r cancelled\n5 x handling-cancelled A a r cancelled",
            Fate::LeftByCaller,
            false,
        ),
        ("1 web request-sent A a r\n2 x request-received A a r", Fate::Open, false),
        ("1 web request-sent A a r\n2 x request-received A a r\n3 x response-sent A a r OK", Fate::Open, false),
    ] {
        let log = log(events);
        assert_eq!(log.calls().len(), 1);
        assert_eq!(log.calls()[0].fate(), expected, "{events}");
        assert_eq!(log.faulted().count(), usize::from(faulted), "{events}");
        assert_eq!(log.is_complete(), expected != Fate::Open, "{events}");
    }
}

/// Two executions under one key; in the first the second of three answers is lost.
const PAGES: &str = "
0 web request-received page r1 -
1 web request-sent Get a r1
1 web request-sent Get b r1
1 web request-sent Get c r1
2 x request-received Get a r1
2 x request-received Get b r1
2 x request-received Get c r1
10 x response-sent Get b r1 OK
11 web response-received Get b r1 OK
20 x effect-made Get c r1 views
21 x response-sent Get c r1 OK
30 x response-sent Get a r1 OK
31 web response-received Get a r1 OK
40 web call-failed Get c r1 hang
41 web response-sent page r1 - 200
50 web request-received page r2 -
51 web request-sent Get d r2
52 x request-received Get d r2
53 x response-sent Get d r2 OK
54 web response-received Get d r2 OK
55 web response-sent page r2 - 200
";

#[test]
fn the_number_of_a_lost_answer_is_counted_at_its_callee_within_its_execution() {
    let log = log(PAGES);
    assert_eq!(log.lost_answer("Get", 2).unwrap().id, "c");
    let number = |id: &str| log.earlier_answers(log.calls().iter().find(|call| call.id == id).unwrap()) + 1;
    assert_eq!(["b", "c", "a", "d"].map(number), [1, 2, 3, 1]);
    let error = log.lost_answer("Get", 3).unwrap_err().to_string();
    assert_eq!(
        error,
        "the lost answer of Get was number 3 that its callee sent: web -> Get #1 attempt 1 (c) was number 2"
    );
}

#[test]
fn a_second_fault_or_none_contradicts_an_only_fault() {
    let second = format!("{PAGES}60 web request-sent Get e r2\n61 web call-failed Get e r2 transport\n");
    let error = log(&second).lost_answer("Get", 2).unwrap_err().to_string();
    assert!(error.contains("(c): ResponseLost; ") && error.contains("(e): RequestLost"), "{error}");
    let none = PAGES.replace("40 web call-failed Get c r1 hang", "40 web response-received Get c r1 OK");
    let error = log(&none).lost_answer("Get", 2).unwrap_err().to_string();
    assert!(error.ends_with(": none was"), "{error}");
    log(PAGES).only_fault("page", &Fate::ResponseLost).unwrap_err();
    log(PAGES).only_fault("Get", &Fate::RequestLost).unwrap_err();
}

#[test]
fn a_lost_answer_is_after_its_effect_only_if_it_was_made_before_and_once() {
    log(PAGES).lost_after_effect("Get", "views").unwrap();
    log(PAGES).lost_after_effect("Get", "charges").unwrap_err();
    let late = PAGES.replace("20 x effect-made", "22 x effect-made");
    log(&late).lost_after_effect("Get", "views").unwrap_err();
    let twice = format!("{PAGES}19 x effect-made Get c r1 views\n");
    log(&twice).lost_after_effect("Get", "views").unwrap_err();
    let refused = PAGES.replace("21 x response-sent Get c r1 OK", "21 x response-sent Get c r1 INTERNAL");
    log(&refused).lost_after_effect("Get", "views").unwrap_err();
}

#[test]
fn the_order_of_two_answers_is_judged_where_they_are_received() {
    let race = |user: u32, risk: u32| {
        log(&format!(
            "0 web request-received up r -
             1 web request-sent User u r
             1 web request-sent Risk k r
             5 x response-sent Risk k r DENIED
             9 x response-sent User u r OK
             {user} web response-received User u r OK
             {risk} web response-received Risk k r DENIED"
        ))
    };
    race(10, 20).received_in_order("web", "User", "Risk").unwrap();
    race(20, 10).received_in_order("web", "User", "Risk").unwrap_err();
    // A refusal is no success, however early it came.
    race(20, 10).received_in_order("web", "Risk", "User").unwrap_err();
    race(10, 20).received_in_order("other", "User", "Risk").unwrap_err();
    let lost = log("0 web request-received up r -
         1 web request-sent User u r
         1 web request-sent Risk k r
         10 web response-received User u r OK
         20 web call-failed Risk k r hang");
    lost.received_in_order("web", "User", "Risk").unwrap();
}

/// A caller that is cancelled loses what is under way to it; nobody interfered. What was sent long before did not arrive for
/// another reason.
#[test]
fn an_answer_under_way_to_a_cancelled_caller_is_cut_off_unless_it_was_so_for_longer_than_any_that_arrived() {
    let of = |cancelled: u64| {
        log(&format!(
            "1 web request-sent A a r\n2 x request-received A a r\n10 x response-sent A a r OK\n15 web response-received A a r OK\n\
             20 web request-sent B b r\n21 y request-received B b r\n30 y response-sent B b r OK\n{cancelled} web call-failed B b r cancelled"
        ))
    };
    assert_eq!(of(35).faulted().count(), 0, "five are what the slowest took");
    assert_eq!(of(36).faulted().count(), 1);
}

#[test]
fn an_answer_that_was_sent_when_nobody_waited_any_more_was_not_lost_on_the_way() {
    let late = "1 web request-sent A a r\n2 x request-received A a r\n5 web call-failed A a r hang\n9 x response-sent A a r OK";
    let log = log(late);
    assert_eq!((log.calls()[0].fate(), log.faulted().count()), (Fate::LeftByCaller, 0));
}
