//! Faults inside responses, evidence at the ends of streams, and answers that come too late (design §3.3–§3.5).

use std::time::Duration;

use aftershock_core::event::{Event, EventKind, Outcome, OutcomeFilter};
use aftershock_core::plan::{Atom, Fault, Hold, Occurrence, Phase, Rule, Side, StreamPoint};
use aftershock_core::span::{CallSpan, Ending, PassedBy};
use aftershock_core::wire::{FromController, Ruling};

use crate::exchange::{Closed, Refusal};
use crate::sidecar::testing::*;

const LIST: &str = "stock shop.Stock/List";
const ITEMS: &str = "stock GET /items";
const NOTE: &str = "ledger POST /note";
const SENT: EventKind = EventKind::RequestSent;
const RECEIVED: EventKind = EventKind::ResponseReceived;
const DELAY: Duration = Duration::from_millis(100);
/// A message of five bytes, with its prefix.
const MESSAGE: usize = 10;

fn list() -> Request {
    Request::grpc("shop.Stock/List")
}

fn items() -> Request {
    Request::http("GET", "/items")
}

/// Three messages of five bytes.
fn stream() -> Response {
    Response::grpc(0).with_messages(&[5, 5, 5])
}

fn inside(of: &str, at: StreamPoint, fault: Fault) -> Rule {
    let mut rule = rule("cart", Side::Caller, of, Occurrence::Number(1), Phase::Response, fault);
    rule.tfic.target.at = Some(at);
    rule
}

fn delay() -> Fault {
    Fault::Delay(DELAY.into())
}

/// A cart with one open entry, whose application asks the stock.
struct Cart {
    net: Net,
    seen: Request,
}

impl Cart {
    fn armed(rules: &[Rule]) -> Self {
        let mut net = Net::new(&["cart", "stock", "ledger"]);
        let outcomes = [OutcomeFilter::Any, OutcomeFilter::Ok, OutcomeFilter::Error];
        let of = |of: &'static str| {
            let received = outcomes.map(|outcome| Event { outcome, ..event(RECEIVED, of) });
            received.into_iter().chain([event(SENT, of), event(EventKind::ResponseSent, of)])
        };
        let events: Vec<Event> = of(LIST).chain(of(ITEMS)).chain([event(SENT, NOTE)]).collect();
        net.arm(rules, &events);
        let seen = net.come_in("cart", tagged(Request::http("POST", "/add"))).1.through();
        Cart { net, seen }
    }

    fn call(&mut self, request: Request) -> Dialogue {
        self.net.call("cart", "stock", request.within(&self.seen))
    }

    /// What the stock answers, at the cart's sidecar.
    fn answer(&mut self, call: &Dialogue, response: Response) -> Passage<Response> {
        self.net.answer(call, response)
    }

    fn count(&mut self, at: &str, event: &Event) -> u64 {
        let execution = self.seen.member().unwrap().execution;
        self.net.evidence(at, execution).count(event.id())
    }

    /// How often the cart's sidecar counted response-received of `of`: ok, error.
    fn received(&mut self, of: &str) -> (u64, u64) {
        let count = |cart: &mut Cart, outcome| cart.count("cart", &Event { outcome, ..event(RECEIVED, of) });
        let (ok, error) = (count(self, OutcomeFilter::Ok), count(self, OutcomeFilter::Error));
        assert_eq!(count(self, OutcomeFilter::Any), ok + error);
        (ok, error)
    }

    #[track_caller]
    fn span(&mut self) -> CallSpan {
        let spans = self.net.spans("cart");
        assert_eq!(spans.len(), 1, "{spans:#?}");
        spans.into_iter().next().unwrap()
    }
}

// ── at: message, at: bytes ──────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_grpc_stream_is_cut_at_a_message_and_counts_as_error_there() {
    for fault in [Fault::Reset(Default::default()), Fault::Abort, Fault::Error(Default::default())] {
        let mut cart = Cart::armed(&[inside(LIST, StreamPoint::Message(2), fault.clone())]);
        let call = cart.call(list());
        let passage = cart.answer(&call, stream());
        match (&fault, passage) {
            (Fault::Reset(_), Passage::Reset) => {}
            (_, Passage::Made(made)) => {
                let status = if fault == Fault::Abort { "14" } else { "13" };
                let trailers = made.trailers.expect("its head has gone");
                assert_eq!(trailers[0], ("grpc-status".to_owned(), status.to_owned()));
            }
            (_, other) => panic!("{fault}: {other:?}"),
        }
        assert_eq!(cart.net.written(&call.out), MESSAGE, "the first message has gone on");
        assert_eq!(cart.received(LIST), (0, 1));
        let span = cart.span();
        assert_eq!((span.outcome, span.http_status, span.passes[0].k), (Some(Outcome::Error), Some(200), Some(1)));
        assert_eq!(span.made, fault != Fault::Reset(Default::default()));
        let injection = span.injection.unwrap();
        assert!(injection.decided < span.response.unwrap().clock);
    }
}

#[test]
fn an_answer_that_may_be_cut_does_not_announce_its_length() {
    let with_length = |mut response: Response| {
        response.lines.push(("content-length".to_owned(), response.body.len().to_string()));
        response
    };
    let announced = |response: &Response| response.lines.iter().any(|(name, _)| name == "content-length");
    // Of HTTP/1 the length is the framing.
    for (of, request, response, expected) in [
        (LIST, list(), stream(), false),
        (ITEMS, items(), Response::http(200).with_body("12345"), true),
        (NOTE, list(), stream(), true),
    ] {
        let mut cart = Cart::armed(&[inside(of, StreamPoint::Bytes(1000), Fault::Reset(Default::default()))]);
        let call = cart.call(request);
        let passed = cart.answer(&call, with_length(response)).through();
        assert_eq!(announced(&passed), expected, "a rule inside {of}");
    }
}

#[test]
fn a_grpc_stream_that_is_dropped_inside_has_no_response_event() {
    let mut cart = Cart::armed(&[inside(LIST, StreamPoint::Bytes(12), Fault::Drop)]);
    let call = cart.call(list());
    assert_eq!(cart.answer(&call, stream()), Passage::Dropped);
    assert_eq!((cart.net.written(&call.out), cart.received(LIST)), (12, (0, 0)));
    cart.net.tell("cart", FromController::Disarm { token: ROUND });
    assert_eq!(cart.net.resumed(), [(call.out, Resumed::Closed)]);
    let span = cart.span();
    assert_eq!((span.ending, span.response, span.outcome), (Ending::Faulted, None, None));
}

#[test]
fn a_mark_that_is_reached_after_the_disarming_is_recorded_as_such() {
    for disarmed_before in [true, false] {
        let mut cart = Cart::armed(&[inside(LIST, StreamPoint::Bytes(12), Fault::Drop)]);
        if disarmed_before {
            cart.net.tell("cart", FromController::Disarm { token: ROUND });
        }
        let call = cart.call(list());
        if !disarmed_before {
            cart.net.tell("cart", FromController::Disarm { token: ROUND });
        }
        cart.answer(&call, stream()).through();
        let span = cart.span();
        let passes: Vec<_> = span.passes.into_iter().map(|pass| (pass.k, pass.passed_by)).collect();
        assert_eq!(passes, [(Some(1), Some(PassedBy::RoundOver))]);
    }
}

#[test]
fn a_grpc_stream_that_is_delayed_inside_counts_at_its_trailers() {
    let mut cart = Cart::armed(&[inside(LIST, StreamPoint::Message(3), delay())]);
    let call = cart.call(list());
    assert_eq!(cart.answer(&call, stream()), Passage::Kept);
    assert_eq!((cart.net.written(&call.out), cart.received(LIST)), (2 * MESSAGE, (0, 0)));
    cart.net.pass_time(DELAY);
    let [(_, Resumed::Response(passage))] = &cart.net.resumed()[..] else { panic!("it is let go") };
    assert!(!passage.clone().through().has_hop());
    assert_eq!(cart.received(LIST), (1, 0));
    let span = cart.span();
    assert_eq!((span.outcome, span.messages, span.passes.len()), (Some(Outcome::Ok), Some(3), 1));
    assert!(span.injection.is_some());
}

#[test]
fn an_http_body_is_cut_behind_its_outcome_which_stays_counted() {
    for fault in [Fault::Reset(Default::default()), Fault::Drop, delay()] {
        let mut cart = Cart::armed(&[inside(ITEMS, StreamPoint::Bytes(4), fault.clone())]);
        let call = cart.call(items());
        let passage = cart.answer(&call, Response::http(200).with_body("0123456789"));
        assert_eq!(cart.net.written(&call.out), 4);
        assert_eq!(cart.received(ITEMS), (1, 0), "{fault}: the outcome stood in the head");
        match &fault {
            Fault::Drop => {
                assert_eq!(passage, Passage::Dropped);
                cart.net.close(&call.out, Closed::ByApplication);
            }
            Fault::Delay(_) => {
                assert_eq!(passage, Passage::Kept);
                cart.net.pass_time(DELAY);
            }
            _ => assert_eq!(passage, Passage::Reset),
        }
        assert_eq!(cart.received(ITEMS), (1, 0), "{fault}: and it is counted once");
        let span = cart.span();
        let ending = match fault {
            Fault::Drop => Ending::ApplicationGone,
            Fault::Delay(_) => Ending::Complete,
            _ => Ending::Faulted,
        };
        assert_eq!((span.outcome, span.ending, span.made), (Some(Outcome::Ok), ending, false));
        assert!(span.response.unwrap().clock <= span.injection.unwrap().decided, "the cut came after the event");
    }
}

#[test]
fn the_number_is_taken_where_the_place_is_reached() {
    let mut second = inside(LIST, StreamPoint::Message(2), Fault::Reset(Default::default()));
    second.tfic.target.k = Occurrence::Number(2);
    let mut cart = Cart::armed(&[second]);
    // Four answers: too short, long enough, an error without any message, long enough.
    for (response, passage_is_reset) in [
        (Response::grpc(0).with_messages(&[5]), false),
        (stream(), false),
        (Response::trailers_only(14), false),
        (stream(), true),
    ] {
        let call = cart.call(list());
        let passage = cart.answer(&call, response);
        assert_eq!(passage == Passage::Reset, passage_is_reset, "{passage:?}");
    }
    let passes: Vec<_> = cart.net.spans("cart").into_iter().map(|span| span.passes).collect();
    let numbers: Vec<Vec<_>> =
        passes.iter().map(|passes| passes.iter().map(|pass| pass.k.unwrap()).collect()).collect();
    assert_eq!(numbers, [vec![], vec![1], vec![], vec![2]], "what never gets there is no pass");
    assert_eq!(passes[1][0].passed_by, Some(PassedBy::Number));
}

#[test]
fn a_call_that_another_rule_faulted_takes_its_number_inside_all_the_same() {
    let slow = rule("cart", Side::Caller, LIST, Occurrence::Number(1), Phase::Request, delay());
    let mut second = inside(LIST, StreamPoint::Message(2), Fault::Reset(Default::default()));
    (second.index, second.tfic.target.k) = (1, Occurrence::Number(2));
    let mut cart = Cart::armed(&[slow, second]);
    let (out, passage) = cart.net.go_out("cart", "stock", list().within(&cart.seen));
    assert_eq!(passage, Passage::Kept);
    cart.net.pass_time(DELAY);
    let resumed = cart.net.resumed();
    let [(_, Resumed::Request(passage))] = &resumed[..] else { panic!("{resumed:?}") };
    let (into, seen) = cart.net.come_in("stock", passage.clone().through());
    seen.through();
    let sent = cart.net.response(&into, stream()).through();
    cart.net.response(&out, sent).through();
    let passes = cart.span().passes;
    assert_eq!((passes[1].rule, passes[1].k, &passes[1].passed_by), (1, Some(1), &Some(PassedBy::Number)));
    let call = cart.call(list());
    assert_eq!(cart.answer(&call, stream()), Passage::Reset);
}

#[test]
fn inside_a_stream_a_pass_asks_the_arbiter_and_waits_at_its_place() {
    for granted in [true, false] {
        let rule = inside(LIST, StreamPoint::Message(2), Fault::Reset(Default::default()));
        let mut cart = Cart::armed(&[Rule { arbitrated: true, ..rule }]);
        let call = cart.call(list());
        assert_eq!(cart.answer(&call, stream()), Passage::Kept);
        assert_eq!(cart.net.written(&call.out), MESSAGE);
        let asks = cart.net.asked("cart");
        assert_eq!((asks.len(), asks[0].ready, asks[0].outcome), (1, true, None));
        let ruling = if granted { Ruling::Grant } else { Ruling::Number };
        cart.net.rule_on("cart", &asks[0], if granted { 1 } else { 2 }, ruling);
        let resumed = cart.net.resumed();
        let [(leg, Resumed::Response(passage))] = &resumed[..] else { panic!("{resumed:?}") };
        assert_eq!((leg, matches!(passage, Passage::Reset)), (&call.out, granted));
        let pass = cart.span().passes.remove(0);
        assert_eq!((pass.k, pass.passed_by.is_none()), (Some(if granted { 1 } else { 2 }), granted));
    }
}

#[test]
fn a_body_of_exactly_n_bytes_has_no_byte_after_them() {
    for (n, fires) in [(0, true), (9, true), (10, false)] {
        let mut cart = Cart::armed(&[inside(ITEMS, StreamPoint::Bytes(n), Fault::Reset(Default::default()))]);
        let call = cart.call(items());
        let passage = cart.answer(&call, Response::http(200).with_body("0123456789"));
        assert_eq!(passage == Passage::Reset, fires, "{n}");
        assert_eq!(cart.span().passes.len(), usize::from(fires));
    }
}

#[test]
fn rules_at_several_places_of_one_stream_number_there_and_one_fault_acts() {
    let rules: Vec<Rule> = [(StreamPoint::Message(3), 1), (StreamPoint::Message(2), 2), (StreamPoint::Message(2), 1)]
        .into_iter()
        .enumerate()
        .map(|(index, (at, k))| {
            let mut rule = inside(LIST, at, delay());
            (rule.index, rule.tfic.target.k) = (index, Occurrence::Number(k));
            rule
        })
        .collect();
    let mut cart = Cart::armed(&rules);
    let call = cart.call(list());
    assert_eq!(cart.answer(&call, stream()), Passage::Kept);
    assert_eq!(cart.net.written(&call.out), MESSAGE);
    cart.net.pass_time(DELAY);
    assert_eq!(cart.net.resumed().len(), 1);
    let passes = cart.span().passes;
    let seen: Vec<_> = passes.iter().map(|pass| (pass.rule, pass.k, pass.passed_by.clone())).collect();
    assert_eq!(seen, [(1, Some(1), Some(PassedBy::Number)), (2, Some(1), None), (0, Some(1), Some(PassedBy::Spent))]);
}

#[test]
fn a_stream_is_held_at_its_place_until_the_guard_holds_or_the_deadline() {
    let mut held = inside(LIST, StreamPoint::Message(2), Fault::Abort);
    held.tfic.guard.after = vec![Atom::new(event(RECEIVED, ITEMS), 1)];
    held.tfic.hold = Some(Hold { deadline: Duration::from_secs(2).into() });
    for fires in [true, false] {
        let mut cart = Cart::armed(std::slice::from_ref(&held));
        let (streaming, other) = (cart.call(list()), cart.call(items()));
        assert_eq!(cart.answer(&streaming, stream()), Passage::Kept);
        assert_eq!((cart.net.parked("cart").len(), cart.net.written(&streaming.out)), (1, MESSAGE));
        if fires {
            cart.answer(&other, Response::http(200)).through();
        } else {
            cart.net.pass_time(Duration::from_secs(2));
        }
        let resumed = cart.net.resumed();
        let [(_, Resumed::Response(passage))] = &resumed[..] else { panic!("{resumed:?}") };
        assert_eq!(matches!(passage, Passage::Made(_)), fires);
        assert_eq!(cart.received(LIST), if fires { (0, 1) } else { (1, 0) });
        let span = cart.net.spans("cart").into_iter().find(|span| span.api == api(LIST)).unwrap();
        assert_eq!(span.injection.map(|injection| injection.held), fires.then_some(true));
        assert_eq!(span.passes[0].passed_by, (!fires).then_some(PassedBy::HoldDeadline));
    }
}

#[test]
fn a_cut_that_the_editor_refuses_leaves_the_stream_whole_and_the_shot_unspent() {
    for (of, request, response) in
        [(LIST, list(), stream()), (ITEMS, items(), Response::http(200).with_body([b'x'; 30]))]
    {
        let mut fault = inside(of, StreamPoint::Bytes(10), Fault::Reset(Default::default()));
        fault.tfic.target.k = Occurrence::First;
        let mut cart = Cart::armed(&[fault]);
        let call = cart.call(request.clone());
        let sent = cart.net.response(&call.into, response.clone()).through();
        cart.net.refuse = Some(Refusal::Pipelined);
        cart.net.response(&call.out, sent).through();
        assert_eq!((cart.received(of), cart.net.written(&call.out)), ((1, 0), 30));
        let span = cart.span();
        assert_eq!((span.injection, span.passes[0].passed_by.clone()), (None, Some(PassedBy::Pipelined)));
        let call = cart.call(request);
        assert_eq!(cart.answer(&call, response), Passage::Reset);
    }
}

#[test]
fn a_caller_that_leaves_a_delayed_stream_is_no_event_and_still_injected() {
    let mut cart = Cart::armed(&[inside(LIST, StreamPoint::Message(2), delay())]);
    let call = cart.call(list());
    cart.answer(&call, stream());
    cart.net.close(&call.out, Closed::ByApplication);
    cart.net.pass_time(DELAY);
    assert!(cart.net.resumed().is_empty());
    assert_eq!(cart.received(LIST), (0, 0));
    let span = cart.span();
    assert!(span.injection.is_some() && span.response.is_none());
}

#[test]
fn at_an_entry_the_callees_sidecar_cuts_its_own_answer() {
    let mut fault = rule("cart", Side::Callee, "cart POST /add", Occurrence::Number(1), Phase::Response, Fault::Drop);
    fault.tfic.target.at = Some(StreamPoint::Bytes(2));
    let mut net = Net::new(&["cart"]);
    let sent = event(EventKind::ResponseSent, "cart POST /add");
    net.arm(&[fault], std::slice::from_ref(&sent));
    let (leg, seen) = net.come_in("cart", tagged(Request::http("POST", "/add")));
    let execution = seen.through().member().unwrap().execution;
    assert_eq!(net.response(&leg, Response::http(200).with_body("abc")), Passage::Dropped);
    assert_eq!((net.written(&leg), net.evidence("cart", execution).count(sent.id())), (2, 1));
}

// ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn messages_of_grpc_answers_are_counted_on_both_sides_and_of_no_others() {
    let mut cart = Cart::armed(&[]);
    let call = cart.call(list());
    cart.answer(&call, stream()).through();
    let call = cart.call(items());
    cart.answer(&call, Response::http(200).with_body([0; 20])).through();
    for service in ["cart", "stock"] {
        let spans = cart.net.spans(service);
        let messages: Vec<_> = spans.iter().map(|span| (span.api.to_string(), span.messages)).collect();
        assert_eq!(messages, [(LIST.to_owned(), Some(3)), (ITEMS.to_owned(), None)], "{service}");
    }
}

#[test]
fn a_second_message_lets_a_kept_back_answer_go_unfaulted() {
    let fault = rule("cart", Side::Caller, LIST, Occurrence::Number(1), Phase::Response, Fault::Drop);
    let mut cart = Cart::armed(std::slice::from_ref(&fault));
    let call = cart.call(list());
    cart.answer(&call, stream()).through();
    let span = cart.span();
    assert_eq!((span.passes[0].k, span.passes[0].passed_by.clone()), (Some(1), Some(PassedBy::Stream)));
    assert_eq!((span.messages, cart.received(LIST)), (Some(3), (1, 0)));
    let mut cart = Cart::armed(&[fault]);
    let call = cart.call(list());
    assert_eq!(cart.answer(&call, Response::grpc(0).with_messages(&[5])), Passage::Dropped);
    assert_eq!(cart.net.written(&call.out), 0, "not a byte of it");
}

// ── evidence at the ends ────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn what_a_caller_learns_while_it_uploads_reaches_the_callee_at_the_end() {
    for grows in [true, false] {
        for trailers in [vec![], vec![("x-sum".to_owned(), "1".to_owned())]] {
            let mut cart = Cart::armed(&[]);
            let upload = cart.call(items());
            if grows {
                let (_, passage) =
                    cart.net.go_out("cart", "ledger", Request::http("POST", "/note").within(&cart.seen.clone()));
                passage.through();
            }
            let sent = cart.net.request_end(&upload.out, trailers.clone());
            assert_eq!(sent.len(), trailers.len() + usize::from(grows), "nothing is said twice");
            let seen = cart.net.request_end(&upload.into, sent);
            assert_eq!(seen, trailers, "the application sees what was sent to it");
            assert_eq!(cart.count("stock", &event(SENT, NOTE)), u64::from(grows));
        }
    }
}

#[test]
fn nobody_but_a_sidecar_says_anything_at_the_end_of_a_request() {
    let mut cart = Cart::armed(&[]);
    let upload = cart.call(items());
    cart.net.go_out("cart", "ledger", Request::http("POST", "/note").within(&cart.seen.clone())).1.through();
    let forged = vec![(aftershock_core::hop::HEADER.to_owned(), "AQMA".to_owned())];
    let sent = cart.net.request_end(&upload.out, forged.clone());
    assert!(sent.len() == 1 && sent != forged, "the application's own line is replaced");
    let other = cart.call(items());
    assert_eq!(cart.net.request_end(&other.into, sent), [], "the end of another call is not its own");
    assert_eq!(cart.net.ignored("stock", "hop-forged"), 1);
    // The head of that call knew of the note already.
    assert_eq!(cart.count("stock", &event(SENT, NOTE)), 1);
    // Where no tagged request came, nothing is merged and nothing leaves.
    let (entry, _) = cart.net.come_in("stock", tagged(items()));
    assert_eq!(cart.net.request_end(&entry, forged), []);
    assert_eq!(cart.net.ignored("stock", "hop-malformed"), 0, "it was not even read");
}

#[test]
fn a_held_message_goes_when_its_evidence_comes_with_the_end_of_another() {
    let mut held = rule("stock", Side::Caller, NOTE, Occurrence::Number(1), Phase::Request, Fault::Abort);
    held.tfic.guard.after = vec![Atom::new(event(SENT, ITEMS), 2)];
    held.tfic.hold = Some(Hold { deadline: Duration::from_secs(2).into() });
    let mut cart = Cart::armed(&[held]);
    let upload = cart.call(list());
    cart.net.go_out("cart", "stock", items().within(&cart.seen.clone())).1.through();
    let note = Request::http("POST", "/note").within(&upload.seen);
    assert_eq!(cart.net.go_out("stock", "ledger", note).1, Passage::Kept);
    cart.net.go_out("cart", "stock", items().within(&cart.seen.clone())).1.through();
    let sent = cart.net.request_end(&upload.out, Vec::new());
    cart.net.request_end(&upload.into, sent);
    assert!(matches!(&cart.net.resumed()[..], [(_, Resumed::Request(Passage::Made(_)))]));
}

#[test]
fn a_tunnel_carries_evidence_in_its_heads_only() {
    let mut cart = Cart::armed(&[]);
    let tunnel = cart.net.call("cart", "stock", Request::http("CONNECT", "stock:80").within(&cart.seen.clone()));
    cart.net.go_out("cart", "ledger", Request::http("POST", "/note").within(&cart.seen.clone())).1.through();
    assert_eq!(cart.net.request_end(&tunnel.out, Vec::new()), []);
    let head = cart.net.response_head(&tunnel.into, Response::http(200));
    assert!(head.has_hop());
    cart.net.go_out("stock", "ledger", Request::http("POST", "/note").within(&tunnel.seen)).1.through();
    assert_eq!(cart.net.response_rest(&tunnel.into).through().trailers, None);
}

#[test]
fn an_answer_that_streams_while_its_handler_calls_on_tells_of_those_calls_at_its_end() {
    for (request, response) in [(list(), stream()), (items(), Response::http(200).with_body("abc"))] {
        let mut cart = Cart::armed(&[]);
        let call = cart.call(request);
        let head = cart.net.response_head(&call.into, response.clone());
        let grpc = response.trailers.is_some();
        assert_eq!(head.has_hop(), !grpc, "the head of a gRPC answer is no event");
        let note = cart.net.call("stock", "ledger", Request::http("POST", "/note").within(&call.seen));
        cart.net.answer(&note, Response::http(200)).through();
        let sent = cart.net.response_rest(&call.into).through();
        let told = cart.net.response(&call.out, sent).through();
        assert!(!told.has_hop());
        assert_eq!(cart.count("cart", &event(SENT, NOTE)), 1);
        let answered = if grpc { LIST } else { ITEMS };
        assert_eq!(cart.count("cart", &event(EventKind::ResponseSent, answered)), 1);
        assert!(cart.net.all_spans().iter().all(|span| span.gaps.is_empty()));
    }
}

#[test]
fn an_answer_that_comes_before_its_request_has_ended_is_whole() {
    let mut cart = Cart::armed(&[]);
    let upload = cart.call(items());
    cart.net.go_out("cart", "ledger", Request::http("POST", "/note").within(&cart.seen.clone())).1.through();
    cart.answer(&upload, Response::http(413)).through();
    assert_eq!(cart.received(ITEMS), (0, 1));
    assert_eq!(cart.net.request_end(&upload.out, Vec::new()), [], "its exchange is over");
    let span = cart.span();
    assert_eq!((span.outcome, span.ending), (Some(Outcome::Error), Ending::Complete));
}

// ── late answers ────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn an_answer_that_nobody_waits_for_is_no_event_and_what_it_says_is_known() {
    for (request, response, of) in [(list(), stream(), LIST), (items(), Response::http(200), ITEMS)] {
        let mut cart = Cart::armed(&[]);
        let call = cart.call(request);
        let note = cart.net.call("stock", "ledger", Request::http("POST", "/note").within(&call.seen));
        cart.net.answer(&note, Response::http(200)).through();
        cart.net.close(&call.out, Closed::ByApplication);
        let sent = cart.net.response(&call.into, response).through();
        assert_eq!(cart.count("cart", &event(SENT, NOTE)), 0);
        let fields = sent.trailers.as_ref().unwrap_or(&sent.lines);
        cart.net.late(&call.out, fields);
        assert_eq!(cart.count("cart", &event(SENT, NOTE)), 1);
        assert_eq!(cart.count("cart", &event(EventKind::ResponseSent, of)), 1);
        assert_eq!(cart.received(of), (0, 0));
        let span = cart.span();
        assert_eq!((span.ending, span.response), (Ending::ApplicationGone, None));
    }
}

#[test]
fn a_late_answer_counts_for_its_own_call_in_a_live_round_and_for_the_linger_time() {
    let late = |prepare: &dyn Fn(&mut Cart, &Dialogue)| {
        let mut cart = Cart::armed(&[]);
        let call = cart.call(items());
        let sent = cart.net.response(&call.into, Response::http(200)).through();
        cart.net.close(&call.out, Closed::ByApplication);
        prepare(&mut cart, &call);
        cart.net.late(&call.out, &sent.lines);
        cart.count("cart", &event(EventKind::ResponseSent, ITEMS))
    };
    assert_eq!(late(&|_, _| {}), 1);
    assert_eq!(late(&|cart, _| cart.net.pass_time_renewing(Duration::from_secs(30))), 1);
    assert_eq!(late(&|cart, _| cart.net.pass_time_renewing(Duration::from_secs(31))), 0, "the linger time is over");
    assert_eq!(late(&|cart, _| cart.net.tell("cart", FromController::End { token: ROUND })), 0, "so is the round");
    assert_eq!(late(&|cart, _| cart.net.tell("cart", FromController::Disarm { token: ROUND })), 1, "its token lives");
    // The answer of another call is not believed for this one.
    let mut cart = Cart::armed(&[]);
    let (one, other) = (cart.call(items()), cart.call(items()));
    let sent = cart.net.response(&other.into, Response::http(200)).through();
    cart.net.close(&one.out, Closed::ByApplication);
    cart.net.late(&one.out, &sent.lines);
    assert_eq!(cart.count("cart", &event(EventKind::ResponseSent, ITEMS)), 0);
    assert_eq!(cart.net.ignored("cart", "hop-forged"), 1, "its tag covers the other call's member");
}

#[test]
fn a_held_message_goes_when_its_evidence_comes_too_late_for_its_caller() {
    let mut held = rule("cart", Side::Caller, LIST, Occurrence::Number(1), Phase::Request, Fault::Abort);
    held.tfic.guard.after = vec![Atom::new(event(EventKind::ResponseSent, ITEMS), 1)];
    held.tfic.hold = Some(Hold { deadline: Duration::from_secs(2).into() });
    let mut cart = Cart::armed(&[held]);
    let call = cart.call(items());
    assert_eq!(cart.net.go_out("cart", "stock", list().within(&cart.seen.clone())).1, Passage::Kept);
    cart.net.close(&call.out, Closed::ByApplication);
    let sent = cart.net.response(&call.into, Response::http(200)).through();
    cart.net.late(&call.out, &sent.lines);
    assert!(matches!(&cart.net.resumed()[..], [(_, Resumed::Request(Passage::Made(_)))]));
}
