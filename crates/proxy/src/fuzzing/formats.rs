//! Formats that are read in one go: the hop header, identity and correlation headers, spans, the controller's lines and
//! path templates.
//!
//! What is read is written and read again, and must be the same; what others wrote is left as it was.

use std::hash::Hasher;
use std::sync::LazyLock;

use aftershock_core::evidence::{Gap, GapKind};
use aftershock_core::hop::{self, Hop, HopKey, Keyring};
use aftershock_core::id::{CallId, ExecutionId, ObserverId, Token};
use aftershock_core::otlp;
use aftershock_core::plan::Side;
use aftershock_core::template::{Matcher, Template, grpc_operation};
use aftershock_core::w3c::{Baggage, Member, TraceParent, TraceState, correlation};
use aftershock_core::wire::{FromController, FromSidecar, MAX_LINE};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use siphasher::sip::SipHasher24;

use super::Input;
use crate::config::Config;
use crate::control_link::Lines;
use crate::exchange::{Edit, Edits, Fields};
use crate::sidecar::header::Arriving;

const KEY: HopKey = HopKey { id: 7, secret: *b"for fuzzing only" };
const MEMBER: &str = "1-0000000000000001-0000000000000002-0000000000000003-00000004";

/// The hop header: as it comes, and with a valid tag, behind which the fields are read.
pub(super) fn hop(input: &[u8]) {
    let keys = Keyring(vec![KEY]);
    assert!(Hop::decode(input, &keys, MEMBER).is_err(), "a forgery was taken");
    let fields = [&[hop::VERSION, KEY.id], input].concat();
    let Ok(decoded) = Hop::decode(signed(&fields).as_bytes(), &keys, MEMBER) else { return };
    assert!(Hop::decode(signed(&fields).as_bytes(), &keys, "").is_err(), "the member beside it is signed too");
    let gap = Gap { kind: GapKind::Evidence, observer: ObserverId(1), service: "here".parse().unwrap() };
    let text = decoded.encode(&KEY, MEMBER, &gap);
    assert!(text.len() <= hop::MAX_LEN);
    let again = Hop::decode(text.as_bytes(), &keys, MEMBER).expect("what was encoded can be decoded");
    assert_eq!(again, decoded);
}

/// A second implementation of the tag.
fn signed(fields: &[u8]) -> String {
    let mut hasher = SipHasher24::new_with_key(&KEY.secret);
    hasher.write(&(fields.len() as u64).to_be_bytes());
    hasher.write(fields);
    hasher.write(MEMBER.as_bytes());
    URL_SAFE_NO_PAD.encode([fields, &hasher.finish().to_be_bytes()[..]].concat())
}

/// `traceparent`, `tracestate`, `baggage`, the member, and the correlation ids of other tracers.
pub(super) fn trace_context(input: &[u8]) {
    let mut input = Input(input);
    let choice = input.byte();
    let value = input.0;
    if let Ok(parent) = TraceParent::parse(value) {
        assert!(parent.trace_id != 0 && parent.parent_id != 0);
        let again = TraceParent::parse(parent.to_string()).expect("what was written can be read");
        assert_eq!((again.trace_id, again.parent_id), (parent.trace_id, parent.parent_id));
    }
    if let Ok(member) = Member::parse(value) {
        assert_eq!(member.to_string().as_bytes(), value, "a member has one text");
        assert_eq!(Member::parse_encoded(value), Ok(member));
    }
    let lines: Vec<&[u8]> = value.split(|byte| *byte == b'\n').collect();
    tracestate(&lines);
    baggage(&lines);
    let name = ["traceparent", "uber-trace-id", "b3", "x-b3-traceid", "x-request-id"][usize::from(choice) % 5];
    if let Some(id) = correlation(name, value) {
        assert!((1..=128).contains(&id.len()), "{id}");
        if name == "x-request-id" {
            assert_eq!(correlation(name, &id).as_ref(), Some(&id), "an id stands for itself");
        }
    }
}

fn tracestate(lines: &[&[u8]]) {
    let mut state = TraceState::parse(lines);
    let malformed = state.is_malformed();
    let before = members(state.value());
    if let Some(value) = state.value() {
        assert_eq!(TraceState::parse([&value]).value().as_ref(), Some(&value), "what was written can be read");
    }
    state.set_member(&member());
    let after = members(state.value());
    assert_eq!(state.member(), Some(Ok(member())));
    assert_eq!(after[0], format!("aft={MEMBER}").into_bytes(), "ours is the leftmost");
    assert!(after.len() <= 32 && !state.is_malformed());
    if malformed {
        assert_eq!(after.len(), 1);
        return;
    }
    let mut others = before.iter().filter(|member| !member.starts_with(b"aft="));
    assert!(after[1..].iter().all(|member| others.any(|other| other == member)), "others stay, and in order");
    let length = |members: &[Vec<u8>]| members.iter().map(|member| member.len() + 1).sum::<usize>() - 1;
    assert!(length(&after) <= 512, "{}", length(&after));
}

fn baggage(lines: &[&[u8]]) {
    let mut baggage = Baggage::parse(lines);
    let before = members(baggage.value());
    let room = baggage.prepend("aft", MEMBER).is_ok();
    let after = members(baggage.value());
    let ours = |member: &[u8]| {
        let key = member.split(|byte| *byte == b'=').next().unwrap_or_default();
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let key: Vec<u8> = key.iter().copied().skip_while(blank).collect();
        let end = key.iter().rposition(|byte| !blank(byte)).map_or(0, |last| last + 1);
        member.contains(&b'=') && key[..end] == *b"aft"
    };
    let others = before.iter().filter(|member| !ours(member));
    let left = after.iter().skip(usize::from(room));
    if before.is_empty() || after.is_empty() {
        assert!(others.clone().all(|member| member.trim_ascii().is_empty()));
    } else {
        assert!(others.eq(left), "others stay as they are");
    }
    if room {
        assert_eq!(baggage.get("aft").as_deref(), Some(MEMBER.as_bytes()));
        assert!(baggage.value().unwrap().len() <= 8192);
    }
}

fn members(value: Option<Vec<u8>>) -> Vec<Vec<u8>> {
    value.map_or_else(Vec::new, |value| value.split(|byte| *byte == b',').map(<[u8]>::to_vec).collect())
}

fn member() -> Member {
    Member { execution: ExecutionId(1), call: CallId(2), token: Token(3), check: 4 }
}

/// Field lines as a sidecar reads its identity from them, and the edits that follow, for each carrier.
pub(super) fn header(input: &[u8]) {
    const NAMES: [&str; 8] =
        ["tracestate", "baggage", "uberctx-aft", "uber-trace-id", "traceparent", "b3", hop::HEADER, "x-b3-traceid"];
    let mut input = Input(input);
    let (config, side) = (configured(input.below(3)), input.pick(&[Side::Caller, Side::Callee]));
    let lines: Vec<(&[u8], &[u8])> = std::iter::from_fn(|| {
        (!input.is_empty()).then(|| {
            let name = input.pick(&NAMES);
            (name.as_bytes(), input.piece())
        })
    })
    .take(24)
    // No line that an editor hands on has these.
    .filter(|(_, value)| !value.iter().any(|byte| b"\r\n\0".contains(byte)))
    .collect();
    let fields = Fields(lines.to_vec());
    let arriving = Arriving::read(&fields, side, config);
    assert!(arriving.correlations.len() <= config.correlate.len());
    assert_eq!(
        arriving.member_text().is_empty(),
        !matches!(arriving.state.member(), Some(Ok(_))) || { !matches!(arriving.member, Some(Ok(_))) }
    );

    let mut handed = Edits::new();
    let room = arriving.hand_over(&member(), &mut handed).is_ok();
    let after = edited(&lines, &handed);
    let seen = Arriving::read(&as_fields(&after), Side::Caller, config);
    if room {
        // An application with that carrier sends back what it got.
        let found = seen.member.and_then(Result::ok).expect("the application is given the member");
        assert_eq!((found.execution, found.call, found.token), (ExecutionId(1), CallId(2), Token(3)));
    }
    others_stay(&lines, &after, &handed);

    let mut sent = Edits::new();
    arriving.send(&member(), &mut sent);
    arriving.remove_hop(&mut sent);
    let after = edited(&lines, &sent);
    let seen = Arriving::read(&as_fields(&after), Side::Callee, config);
    assert_eq!(seen.member, Some(Ok(member())), "the next sidecar reads the member");
    assert_eq!(seen.hop, crate::sidecar::header::HopLine::Absent);
    others_stay(&lines, &after, &sent);

    let mut removed = Edits::new();
    arriving.remove_member(&mut removed);
    let after = edited(&lines, &removed);
    for side in [Side::Caller, Side::Callee] {
        let seen = Arriving::read(&as_fields(&after), side, config);
        assert!(seen.member.is_none() || arriving.state.is_malformed(), "no member of ours is left");
    }
    others_stay(&lines, &after, &removed);
}

/// A sidecar of a service that hands its context on in the n-th carrier.
fn configured(carrier: usize) -> &'static Config {
    static CONFIGS: LazyLock<[Config; 3]> = LazyLock::new(|| {
        ["tracestate", "baggage", "uberctx"].map(|carrier| {
            let text = format!(
                "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: a\nassociation: {{carrier: {carrier}}}\n\
                 inbound: [{{listen: \"127.0.0.1:80\", to: \"127.0.0.1:81\"}}]\n"
            );
            Config::parse("fuzzing", &text).unwrap_or_else(|error| panic!("{error}"))
        })
    });
    &CONFIGS[carrier]
}

type LineList = Vec<(Vec<u8>, Vec<u8>)>;

fn as_fields(lines: &LineList) -> Fields<'_> {
    Fields(lines.iter().map(|(name, value)| (&name[..], &value[..])).collect())
}

/// The lines behind the edits, as the editors apply them.
fn edited(lines: &[(&[u8], &[u8])], edits: &Edits) -> LineList {
    let mut lines: LineList = lines.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    for edit in edits {
        match edit {
            Edit::Remove(name) => lines.retain(|(known, _)| known != name.as_bytes()),
            Edit::Set(name, value) => {
                let first = lines.iter().position(|(known, _)| known == name.as_bytes());
                lines.retain(|(known, _)| known != name.as_bytes());
                let line = (name.as_bytes().to_vec(), value.clone());
                lines.insert(first.unwrap_or(lines.len()).min(lines.len()), line);
            }
        }
    }
    lines
}

/// What an edit does not name is as it was, and in a list that it names so are the members that are not ours.
fn others_stay(before: &[(&[u8], &[u8])], after: &LineList, edits: &Edits) {
    let named = |name: &[u8]| {
        edits.iter().any(|edit| match edit {
            Edit::Set(known, _) | Edit::Remove(known) => known.as_bytes() == name,
        })
    };
    let untouched = before.iter().filter(|(name, _)| !named(name)).map(|(name, value)| (*name, *value));
    let left = after.iter().filter(|(name, _)| !named(name)).map(|(name, value)| (&name[..], &value[..]));
    assert!(untouched.eq(left), "a line that no edit names has changed");
    let foreign = |lines: &[(&[u8], &[u8])]| -> Vec<Vec<u8>> {
        let all =
            lines.iter().filter(|(name, _)| *name == b"baggage").flat_map(|(_, value)| value.split(|b| *b == b','));
        all.filter(|member| !member.trim_ascii().is_empty() && !is_ours(member)).map(<[u8]>::to_vec).collect()
    };
    let after: Vec<(&[u8], &[u8])> = after.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    assert_eq!(foreign(before), foreign(&after), "the application's own baggage has changed");
}

fn is_ours(member: &[u8]) -> bool {
    let Some(equals) = member.iter().position(|byte| *byte == b'=') else { return false };
    member[..equals].trim_ascii() == b"aft"
}

/// Export requests and answers, binary and JSON.
pub(super) fn otlp(input: &[u8]) {
    let read = [otlp::decode(input), otlp::decode_json(input)];
    for decoded in read.into_iter().flatten() {
        assert!(decoded.spans.len() + decoded.foreign <= input.len(), "spans from nothing");
        let body = otlp::encode(&decoded.spans);
        if body.len() <= otlp::MAX_BODY {
            let again = otlp::decode(&body).expect("what was encoded can be decoded");
            assert_eq!((again.spans, again.foreign), (decoded.spans, 0));
        }
    }
    if let Ok(answer) = otlp::Answer::decode(input) {
        assert_eq!(otlp::Answer::decode(&answer.encode()).expect("what was encoded can be decoded"), answer);
        serde_json::from_str::<serde_json::Value>(&answer.encode_json()).expect("JSON");
    }
}

/// Messages between sidecar and controller.
pub(super) fn wire(input: &[u8]) {
    message::<FromController>(input);
    message::<FromSidecar>(input);
}

fn message<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(input: &[u8]) {
    let Ok(message) = serde_json::from_slice::<M>(input) else { return };
    let line = serde_json::to_vec(&message).expect("what was read can be written");
    assert!(!line.contains(&b'\n'), "a message is one line");
    assert_eq!(serde_json::from_slice::<M>(&line).expect("what was written can be read"), message);
}

/// Lines out of reads of any size.
pub(super) fn lines(input: &[u8]) {
    let mut input = Input(input);
    let mut sizes = Input(input.bytes(16));
    let mut lines = Lines::default();
    let mut seen = Vec::new();
    let text = input.0;
    let mut rest = text;
    while !rest.is_empty() {
        let (read, after) = rest.split_at(rest.len().min(usize::from(sizes.byte()) + 1));
        rest = after;
        lines.read(read);
        while let Some(line) = lines.next().expect("no line is that long") {
            seen.push(line.to_vec());
        }
    }
    assert!(text.len() <= MAX_LINE);
    let mut expected: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    expected.pop();
    assert_eq!(seen, expected);
}

/// Templates, and the operations that targets are taken for.
pub(super) fn template(input: &[u8]) {
    let mut input = Input(input);
    let count = input.below(6);
    let templates: Vec<Template> = (0..count)
        .filter_map(|_| std::str::from_utf8(input.piece()).ok().and_then(|text| Template::parse(text).ok()))
        .collect();
    for template in &templates {
        assert_eq!(&Template::parse(&template.to_string()).expect("what was written can be read"), template);
    }
    let matcher = Matcher::new(templates.clone());
    for template in &templates {
        let named = matcher.template(template.method(), template.path()).expect("a template names itself");
        assert_eq!(named.method(), template.method());
    }
    let method = input.piece();
    let target = input.0;
    let operation = matcher.operation(method, target);
    assert!(operation.len() <= 4096, "{} bytes", operation.len());
    operation.parse::<aftershock_core::name::Operation>().unwrap_or_else(|error| panic!("{operation:?}: {error}"));
    if let Some(template) = matcher.template(method, target) {
        assert_eq!(operation, template.to_string());
    }
    // What an operation is called is its own operation: names do not change when they are used as targets.
    if let Some((method, path)) = operation.split_once(' ')
        && path.starts_with('/')
    {
        assert_eq!(matcher.operation(method, path), operation, "a name of a name");
    }
    if let Some(operation) = grpc_operation(target) {
        assert_eq!(format!("/{operation}").as_bytes(), target);
    }
}
