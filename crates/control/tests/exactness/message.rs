//! Messages as lists of field lines, and what an editor does to them.

use aftershock_core::hop::HEADER;
use aftershock_core::w3c::{Member, TraceState};
use aftershock_proxy::exchange::{Edit, Edits, Fields, Protocol, RequestHead, ResponseHead};

pub(crate) type Lines = Vec<(String, String)>;

pub(crate) fn fields(lines: &Lines) -> Fields<'_> {
    Fields(lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect())
}

pub(crate) fn apply(lines: &mut Lines, edits: Edits) {
    for edit in edits {
        match edit {
            Edit::Remove(name) => lines.retain(|(n, _)| n != name),
            Edit::Set(name, value) => {
                let value = String::from_utf8(value).expect("what is sent here is text");
                let first = lines.iter().position(|(n, _)| n == name);
                let mut at = 0;
                lines.retain(|(n, _)| {
                    at += 1;
                    n != name || first == Some(at - 1)
                });
                match lines.iter_mut().find(|(n, _)| n == name) {
                    Some(line) => line.1 = value,
                    None => lines.push((name.to_owned(), value)),
                }
            }
        }
    }
}

/// The length of the hop header among `lines`, if it is there.
pub(crate) fn hop_length(lines: &Lines) -> Option<usize> {
    lines.iter().find(|(name, _)| name == HEADER).map(|(_, value)| value.len())
}

pub(crate) fn lose_hop(lines: &mut Lines) -> bool {
    let before = lines.len();
    lines.retain(|(name, _)| name != HEADER);
    lines.len() < before
}

pub(crate) fn member(lines: &Lines) -> Option<Member> {
    let values = lines.iter().filter(|(name, _)| name == "tracestate").map(|(_, value)| value);
    TraceState::parse(values).member().and_then(Result::ok)
}

/// A request at one place of its way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) grpc: bool,
    pub(crate) path: String,
    pub(crate) lines: Lines,
    /// Empty for HTTP, whose requests end with their heads here.
    pub(crate) trailers: Lines,
}

impl Request {
    pub(crate) fn head(&self) -> RequestHead<'_> {
        RequestHead {
            protocol: if self.grpc { Protocol::Http2 } else { Protocol::Http1 },
            method: if self.grpc { "POST" } else { "GET" },
            path: &self.path,
            authority: "simulated",
            fields: fields(&self.lines),
            ends: !self.grpc,
        }
    }
}

/// A response at one place of its way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) lines: Lines,
    /// None: it ends with its head.
    pub(crate) trailers: Option<Lines>,
}

impl Response {
    pub(crate) fn new(grpc: bool, ok: bool, trailers_only: bool) -> Self {
        if !grpc {
            return Response { status: if ok { 200 } else { 500 }, lines: Lines::new(), trailers: None };
        }
        let status = ("grpc-status".to_owned(), if ok { "0" } else { "13" }.to_owned());
        let mut lines = vec![("content-type".to_owned(), "application/grpc".to_owned())];
        if trailers_only {
            lines.push(status);
            return Response { status: 200, lines, trailers: None };
        }
        Response { status: 200, lines, trailers: Some(vec![status]) }
    }

    pub(crate) fn head(&self) -> ResponseHead<'_> {
        ResponseHead { status: self.status, fields: fields(&self.lines), ends: self.trailers.is_none() }
    }
}
