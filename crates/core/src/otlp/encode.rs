//! Spans written straight into the protobuf encoding of an `ExportTraceServiceRequest`.
//!
//! A sidecar writes a span for every call it records, so none of the messages is built: every field goes once, to its
//! place. A length stands before what it is the length of; it is written afterwards, into a varint of a fixed number of
//! bytes. The wire format lets a varint be longer than it need be.

use std::fmt::Write as _;

use super::{SCHEMA, parent_span_id, span_id, trace_id};
use crate::event::Outcome;
use crate::evidence::Gaps;
use crate::hex;
use crate::id::ObserverId;
use crate::name::Service;
use crate::plan::Side;
use crate::span::{CallSpan, Ending, Pass, PassedBy};

use super::message::{KIND_CLIENT, KIND_SERVER, STATUS_ERROR};

/// Bytes that most spans take; more are made room for.
const USUAL_SPAN: usize = 1024;
/// Bytes of the lengths of the two outer messages: up to 256 MiB, far beyond [`super::MAX_BODY`].
const OUTER: usize = 4;
/// Bytes of the length of a span, and of an array in it; a longer one is moved.
const INNER: usize = 2;

/// Field numbers with their wire types, as they stand before a field.
mod field {
    const fn varint(number: u8) -> u8 {
        number << 3
    }
    const fn fixed64(number: u8) -> u8 {
        number << 3 | 1
    }
    const fn length(number: u8) -> u8 {
        number << 3 | 2
    }

    pub(super) const REQUEST_RESOURCE_SPANS: u8 = length(1);
    pub(super) const RESOURCE: u8 = length(1);
    pub(super) const RESOURCE_ATTRIBUTES: u8 = length(1);
    pub(super) const SCOPE_SPANS: u8 = length(2);
    pub(super) const SCOPE: u8 = length(1);
    pub(super) const SCOPE_NAME: u8 = length(1);
    pub(super) const SCOPE_VERSION: u8 = length(2);
    pub(super) const SPAN: u8 = length(2);
    pub(super) const TRACE_ID: u8 = length(1);
    pub(super) const SPAN_ID: u8 = length(2);
    pub(super) const PARENT_SPAN_ID: u8 = length(4);
    pub(super) const NAME: u8 = length(5);
    pub(super) const KIND: u8 = varint(6);
    pub(super) const START: u8 = fixed64(7);
    pub(super) const END: u8 = fixed64(8);
    pub(super) const ATTRIBUTES: u8 = length(9);
    pub(super) const STATUS: u8 = length(15);
    pub(super) const STATUS_CODE: u8 = varint(3);
    pub(super) const KEY: u8 = length(1);
    pub(super) const VALUE: u8 = length(2);
    pub(super) const STRING: u8 = length(1);
    pub(super) const BOOL: u8 = varint(2);
    pub(super) const INT: u8 = varint(3);
    pub(super) const ARRAY: u8 = length(5);
    pub(super) const ARRAY_VALUES: u8 = length(1);
}

/// The bytes of an attribute before its value; the two lengths among them that depend on the value are missing.
const fn key<const N: usize>(attributes: u8, name: &str) -> [u8; N] {
    let mut bytes = [0; N];
    assert!(N == 6 + name.len() && N < 0x80, "the name has a length of one byte");
    (bytes[0], bytes[2], bytes[3], bytes[N - 2]) = (attributes, field::KEY, name.len() as u8, field::VALUE);
    let mut at = 0;
    while at < name.len() {
        bytes[4 + at] = name.as_bytes()[at];
        at += 1;
    }
    bytes
}

/// [`key`] of a span's attribute, or of one in another list, as a constant.
macro_rules! key {
    ($name:literal) => {
        key!(field::ATTRIBUTES, $name)
    };
    ($attributes:expr, $name:literal) => {
        const { key::<{ 6 + $name.len() }>($attributes, $name) }
    };
}

/// An export request in protobuf, as far as it was written.
#[derive(Debug, Default)]
pub struct Batch {
    wire: Wire,
    /// The sidecar whose spans are being written, and where the lengths of the messages around them are.
    source: Option<Source>,
    spans: usize,
}

#[derive(Debug)]
struct Source {
    service: Service,
    observer: ObserverId,
    resource_spans: usize,
    scope_spans: usize,
}

impl Batch {
    /// An empty request in memory that another one had.
    pub fn reusing(mut memory: Vec<u8>) -> Self {
        memory.clear();
        Batch { wire: Wire(memory), ..Batch::default() }
    }

    /// Adds a span. Spans of one sidecar that follow each other share its resource.
    pub fn push(&mut self, span: &CallSpan) {
        match &self.source {
            Some(source) if source.service == span.service && source.observer == span.observer => {}
            _ => self.begin(span),
        }
        self.wire.span(span);
        self.spans += 1;
    }

    /// How many spans it holds.
    pub fn len(&self) -> usize {
        self.spans
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.spans == 0
    }

    /// How many bytes it has so far.
    pub fn size(&self) -> usize {
        self.wire.0.len()
    }

    /// The request, complete.
    pub fn finish(mut self) -> Vec<u8> {
        self.end();
        self.wire.0
    }

    fn begin(&mut self, span: &CallSpan) {
        self.end();
        let wire = &mut self.wire;
        let resource_spans = wire.open::<OUTER>(field::REQUEST_RESOURCE_SPANS);
        let resource = wire.open::<INNER>(field::RESOURCE);
        wire.attribute(key!(field::RESOURCE_ATTRIBUTES, "service.name"), &[span.service.as_str().as_bytes()]);
        wire.attribute(key!(field::RESOURCE_ATTRIBUTES, "service.instance.id"), &[&hex::of_u64(span.observer.0)]);
        wire.close::<INNER>(resource);
        let scope_spans = wire.open::<OUTER>(field::SCOPE_SPANS);
        let scope = wire.open::<INNER>(field::SCOPE);
        wire.bytes(field::SCOPE_NAME, b"aftershock");
        wire.bytes(field::SCOPE_VERSION, env!("CARGO_PKG_VERSION").as_bytes());
        wire.close::<INNER>(scope);
        let (service, observer) = (span.service.clone(), span.observer);
        self.source = Some(Source { service, observer, resource_spans, scope_spans });
    }

    fn end(&mut self) {
        if let Some(source) = self.source.take() {
            self.wire.close::<OUTER>(source.scope_spans);
            self.wire.close::<OUTER>(source.resource_spans);
        }
    }
}

/// Bytes of the wire format.
#[derive(Debug, Default)]
struct Wire(Vec<u8>);

/// How many bytes a varint of `value` takes.
fn varint_len(value: usize) -> usize {
    if value < 0x80 { 1 } else { (usize::BITS - value.leading_zeros()).div_ceil(7) as usize }
}

impl Wire {
    #[inline]
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    #[inline]
    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.0.push(field);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    #[inline]
    fn fixed64(&mut self, field: u8, value: u64) {
        self.0.push(field);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Begins a message whose length comes later.
    fn open<const WIDTH: usize>(&mut self, field: u8) -> usize {
        self.0.push(field);
        self.0.extend_from_slice(&[0; WIDTH]);
        self.0.len()
    }

    /// Ends the message that began at `start`: writes its length.
    fn close<const WIDTH: usize>(&mut self, start: usize) {
        let length = self.0.len() - start;
        let needed = varint_len(length).max(WIDTH);
        if needed > WIDTH {
            self.0.splice(start..start, std::iter::repeat_n(0, needed - WIDTH));
        }
        let place = &mut self.0[start - WIDTH..][..needed];
        for (at, byte) in place.iter_mut().enumerate() {
            *byte = (length >> (7 * at)) as u8 & 0x7f | if at + 1 < needed { 0x80 } else { 0 };
        }
    }

    /// An attribute before its value: `value` is the length of the `AnyValue` that must follow.
    #[inline(always)]
    fn key<const N: usize>(&mut self, mut key: [u8; N], value: usize) {
        let length = N - 2 + value;
        // What keeps lengths to one byte; all but overlong names are of this kind.
        if length < 0x80 {
            (key[1], key[N - 1]) = (length as u8, value as u8);
            self.0.extend_from_slice(&key);
        } else {
            self.0.push(key[0]);
            self.varint((length - 1 + varint_len(value)) as u64);
            self.0.extend_from_slice(&key[2..N - 1]);
            self.varint(value as u64);
        }
    }

    /// A text attribute, the text in pieces.
    #[inline(always)]
    fn attribute<const N: usize>(&mut self, key: [u8; N], pieces: &[&[u8]]) {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        self.key(key, 1 + varint_len(length) + length);
        self.0.push(field::STRING);
        self.varint(length as u64);
        for piece in pieces {
            self.0.extend_from_slice(piece);
        }
    }

    #[inline(always)]
    fn text<const N: usize>(&mut self, key: [u8; N], text: &str) {
        self.attribute(key, &[text.as_bytes()]);
    }

    #[inline(always)]
    fn id<const N: usize>(&mut self, key: [u8; N], id: u64) {
        self.attribute(key, &[&hex::of_u64(id)]);
    }

    #[inline(always)]
    fn flag<const N: usize>(&mut self, key: [u8; N], flag: bool) {
        self.key(key, 2);
        self.0.extend_from_slice(&[field::BOOL, u8::from(flag)]);
    }

    /// OTLP integers are signed; what does not fit travels as decimal text.
    #[inline(always)]
    fn number<const N: usize>(&mut self, key: [u8; N], number: u64) {
        if number > i64::MAX as u64 {
            return self.text(key, &number.to_string());
        }
        self.key(key, 1 + varint_len(number as usize));
        self.0.push(field::INT);
        self.varint(number);
    }

    /// An array of texts, each written by `write`.
    fn texts<T>(&mut self, key: &'static str, items: impl IntoIterator<Item = T>, write: impl Fn(&mut Vec<u8>, T)) {
        let attribute = self.open::<INNER>(field::ATTRIBUTES);
        self.bytes(field::KEY, key.as_bytes());
        let value = self.open::<INNER>(field::VALUE);
        let array = self.open::<INNER>(field::ARRAY);
        for item in items {
            let any = self.open::<INNER>(field::ARRAY_VALUES);
            let text = self.open::<INNER>(field::STRING);
            write(&mut self.0, item);
            self.close::<INNER>(text);
            self.close::<INNER>(any);
        }
        self.close::<INNER>(array);
        self.close::<INNER>(value);
        self.close::<INNER>(attribute);
    }

    fn span(&mut self, span: &CallSpan) {
        self.0.reserve(USUAL_SPAN);
        let start = self.open::<INNER>(field::SPAN);
        self.bytes(field::TRACE_ID, &trace_id(span).to_be_bytes());
        self.bytes(field::SPAN_ID, &span_id(span).to_be_bytes());
        if let Some(parent) = parent_span_id(span) {
            self.bytes(field::PARENT_SPAN_ID, &parent.to_be_bytes());
        }
        self.bytes(field::NAME, span.api.operation.as_str().as_bytes());
        let kind = match span.side {
            Side::Caller => KIND_CLIENT,
            Side::Callee => KIND_SERVER,
        };
        self.0.extend_from_slice(&[field::KIND, kind as u8]);
        self.fixed64(field::START, span.request.unix_nanos);
        self.fixed64(field::END, span.ended_unix_nanos);
        self.standard(span);
        self.ours(span);
        if span.outcome == Some(Outcome::Error) || (span.response.is_none() && span.ending != Ending::Complete) {
            self.0.extend_from_slice(&[field::STATUS, 2, field::STATUS_CODE, STATUS_ERROR as u8]);
        }
        self.close::<INNER>(start);
    }

    /// What OpenTelemetry's conventions for RPC and HTTP spans ask for.
    fn standard(&mut self, span: &CallSpan) {
        let operation = span.api.operation.as_str();
        if let Some((method, path)) = operation.split_once(' ') {
            self.text(key!("http.request.method"), method);
            match span.side {
                Side::Caller => self.text(key!("url.template"), path),
                Side::Callee => self.text(key!("http.route"), path),
            }
        } else if let Some((service, method)) = operation.split_once('/') {
            self.text(key!("rpc.system"), "grpc");
            self.text(key!("rpc.service"), service);
            self.text(key!("rpc.method"), method);
        }
        if span.side == Side::Caller {
            self.text(key!("peer.service"), span.api.service.as_str());
        }
        if let Some(status) = span.http_status {
            self.number(key!("http.response.status_code"), status.into());
        }
        if let Some(status) = span.grpc_status {
            self.number(key!("rpc.grpc.status_code"), status.into());
        }
        match (span.outcome, span.grpc_status, span.http_status) {
            (Some(Outcome::Error), Some(status), _) if status != 0 => {
                self.text(key!("error.type"), &status.to_string())
            }
            (Some(Outcome::Error), _, Some(status)) => self.text(key!("error.type"), &status.to_string()),
            (Some(Outcome::Error), _, None) => self.text(key!("error.type"), "_OTHER"),
            (None, ..) if span.ending != Ending::Complete => self.text(key!("error.type"), span.ending.as_str()),
            _ => {}
        }
    }

    fn ours(&mut self, span: &CallSpan) {
        self.number(key!("aftershock.schema"), SCHEMA);
        self.id(key!("aftershock.execution"), span.execution.0);
        if !span.token.is_zero() {
            self.id(key!("aftershock.token"), span.token.0);
        }
        self.id(key!("aftershock.call"), span.call.0);
        if let Some(parent) = span.parent {
            self.id(key!("aftershock.parent"), parent.0);
        }
        if let Some(caller) = &span.caller {
            self.text(key!("aftershock.caller"), caller.as_str());
        }
        let api = [span.api.service.as_str().as_bytes(), b" ", span.api.operation.as_str().as_bytes()];
        self.attribute(key!("aftershock.api"), &api);
        self.text(key!("aftershock.association"), span.association.as_str());
        self.flag(key!("aftershock.trace_id_derived"), span.trace_id == 0);
        self.number(key!("aftershock.request.clock"), span.request.clock);
        if let Some(response) = span.response {
            self.number(key!("aftershock.response.clock"), response.clock);
            self.number(key!("aftershock.response.unix_nanos"), response.unix_nanos);
        }
        if let Some(outcome) = span.outcome {
            self.text(key!("aftershock.outcome"), outcome.as_str());
        }
        self.flag(key!("aftershock.made"), span.made);
        self.text(key!("aftershock.ending"), span.ending.as_str());
        self.flag(key!("aftershock.evidence.went"), span.evidence_went);
        self.flag(key!("aftershock.evidence.came"), span.evidence_came);
        if !span.gaps.is_empty() {
            self.texts("aftershock.gaps", gap_texts(&span.gaps), |out, gap| out.extend_from_slice(gap.as_bytes()));
        }
        if let Some(messages) = span.messages {
            self.number(key!("aftershock.messages"), messages);
        }
        if !span.passes.is_empty() {
            self.texts("aftershock.passes", &span.passes, json_pass);
        }
        if let Some(injection) = &span.injection {
            self.number(key!("aftershock.injection.rule"), injection.rule as u64);
            self.number(key!("aftershock.injection.k"), injection.k.into());
            self.number(key!("aftershock.injection.decided"), injection.decided);
            self.flag(key!("aftershock.injection.held"), injection.held);
            self.text(key!("aftershock.injection.fault"), &injection.fault);
        }
    }
}

/// A pass in JSON, as serde would write it: what every request at a target has, and nothing else needs.
fn json_pass(out: &mut Vec<u8>, pass: &Pass) {
    out.extend_from_slice(b"{\"rule\":");
    decimal(out, pass.rule as u64);
    out.extend_from_slice(b",\"k\":");
    match pass.k {
        Some(k) => decimal(out, k.into()),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"clock\":");
    decimal(out, pass.clock);
    out.extend_from_slice(b",\"passed_by\":");
    match &pass.passed_by {
        Some(PassedBy::GuardFalse(atoms)) => json_atoms(out, b"{\"guard-false\":[", atoms),
        Some(PassedBy::GuardUnknown(atoms)) => json_atoms(out, b"{\"guard-unknown\":[", atoms),
        other => serde_json::to_writer(&mut *out, other).expect("a word can be written, and memory takes every byte"),
    }
    out.push(b'}');
}

fn json_atoms(out: &mut Vec<u8>, before: &[u8], atoms: &[usize]) {
    out.extend_from_slice(before);
    for (at, atom) in atoms.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        decimal(out, *atom as u64);
    }
    out.extend_from_slice(b"]}");
}

fn decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return out.extend_from_slice(&digits[start..]);
        }
    }
}

fn gap_texts(gaps: &Gaps) -> Vec<String> {
    if gaps.is_any() {
        return vec!["any".to_owned()];
    }
    let text = |gap: &crate::evidence::Gap| {
        let mut text = String::new();
        write!(text, "{} {} {}", gap.kind.as_str(), gap.observer, gap.service).expect("memory takes every byte");
        text
    };
    gaps.named().map(text).collect()
}
