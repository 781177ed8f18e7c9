//! HTTP/1.1 as two known peers speak it: requests and answers with bodies of 1 KiB.

use std::time::Instant;

use crate::client::{Client, Ticket, Wrong};
use crate::message::{self, Answer, BODY};
use crate::traffic::Context;

const REQUEST: &[u8] = b"POST /cart/checkout HTTP/1.1\r\n\
    Host: checkout.example:8080\r\n\
    User-Agent: bench/1.0\r\n\
    Accept: application/json\r\n\
    Accept-Encoding: gzip, deflate\r\n\
    Content-Type: application/json\r\n\
    Content-Length: 1024\r\n\
    X-Request-Id: 7b8c1a5e-5f3b-4c43-9b0f-0a9d1c1f2e3d\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Content-Type: application/json\r\n\
    Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n\
    Server: origin\r\n";

/// The operation that sidecars see.
pub(crate) const OPERATION: &str = "POST /cart/checkout";

/// How a body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

/// What is looked at of a head: its length and framing, whether the connection ends with the message.
struct Head {
    length: usize,
    framing: Framing,
    closes: bool,
}

/// Reads the head of a message whose first line is right; none if it is not complete.
fn head(input: &[u8], is_first_line: impl FnOnce(&[u8]) -> bool) -> Result<Option<Head>, Wrong> {
    let Some(end) = memchr::memmem::find(input, b"\r\n\r\n") else { return Ok(None) };
    let line_end = memchr::memchr(b'\r', input).unwrap_or(end);
    if !is_first_line(&input[..line_end]) {
        return Err(Wrong("the first line of a message is another"));
    }
    let mut lines = [httparse::EMPTY_HEADER; 32];
    let fields = input.get(line_end + 2..end + 4).unwrap_or_default();
    let Ok(httparse::Status::Complete((_, lines))) = httparse::parse_headers(fields, &mut lines) else {
        return Err(Wrong("a message has header lines that cannot be read"));
    };
    let (mut framing, mut closes) = (None, false);
    for line in lines {
        let says = if line.name.eq_ignore_ascii_case("content-length") {
            std::str::from_utf8(line.value).ok().and_then(|text| text.parse().ok()).map(Framing::Length)
        } else if line.name.eq_ignore_ascii_case("transfer-encoding") {
            line.value.eq_ignore_ascii_case(b"chunked").then_some(Framing::Chunked)
        } else {
            closes |= line.name.eq_ignore_ascii_case("connection") && line.value.eq_ignore_ascii_case(b"close");
            continue;
        };
        if says.is_none() || framing.is_some() {
            return Err(Wrong("a message is framed in more than one way, or in none"));
        }
        framing = says;
    }
    match framing {
        Some(framing) => Ok(Some(Head { length: end + 4, framing, closes })),
        None => Err(Wrong("a message does not say where it ends")),
    }
}

/// Reads the body at the front of `input`: octets taken, answer and tag. None if it is not complete.
fn body(input: &[u8], framing: Framing) -> Result<Option<(usize, Answer, u64)>, Wrong> {
    let wrong = Wrong("a body is another than the one that was sent");
    match framing {
        Framing::Length(BODY) => match input.get(..BODY) {
            None => Ok(None),
            Some(content) => message::read(content).map(|(answer, tag)| Some((BODY, answer, tag))).ok_or(wrong),
        },
        Framing::Length(_) => Err(wrong),
        Framing::Chunked => {
            let mut content = Vec::with_capacity(BODY);
            let mut at = 0;
            loop {
                let Ok(parsed) = httparse::parse_chunk_size(&input[at..]) else {
                    return Err(Wrong("a chunk has no length"));
                };
                let httparse::Status::Complete((line, size)) = parsed else { return Ok(None) };
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                if content.len().saturating_add(size) > BODY {
                    return Err(wrong);
                }
                let Some(chunk) = input.get(at + line..at + line + size + 2) else { return Ok(None) };
                let Some(chunk) = chunk.strip_suffix(b"\r\n") else { return Err(Wrong("a chunk does not end")) };
                content.extend_from_slice(chunk);
                at += line + size + 2;
                if size == 0 {
                    return message::read(&content).map(|(answer, tag)| Some((at, answer, tag))).ok_or(wrong);
                }
            }
        }
    }
}

/// Answers every complete request in `input`: octets taken, and whether the last answer ends the connection.
pub(crate) fn answer(input: &[u8], output: &mut Vec<u8>) -> Result<(usize, bool), Wrong> {
    let mut at = 0;
    while let Some(head) = head(&input[at..], |line| line == b"POST /cart/checkout HTTP/1.1")? {
        let Some((length, answer, tag)) = body(&input[at + head.length..], head.framing)? else { break };
        at += head.length + length;
        output.extend_from_slice(RESPONSE);
        match answer {
            Answer::Usual => output.extend_from_slice(b"Content-Length: 1024\r\n\r\n"),
            Answer::Last => output.extend_from_slice(b"Content-Length: 1024\r\nConnection: close\r\n\r\n"),
            Answer::Other => {
                output.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                let mut content = Vec::with_capacity(BODY);
                message::write(answer, tag, &mut content);
                for chunk in content.chunks(300) {
                    output.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    output.extend_from_slice(chunk);
                    output.extend_from_slice(b"\r\n");
                }
                output.extend_from_slice(b"0\r\n\r\n");
                continue;
            }
        }
        message::write(answer, tag, output);
        if answer == Answer::Last {
            return Ok((at, true));
        }
    }
    Ok((at, false))
}

/// One request at a time.
#[derive(Debug, Default)]
pub(crate) struct OneAtATime {
    waits: Option<Ticket>,
    closed: bool,
}

impl Client for OneAtATime {
    fn has_room(&self) -> bool {
        self.waits.is_none() && !self.closed
    }

    fn is_idle(&self) -> bool {
        self.waits.is_none()
    }

    fn send(&mut self, ticket: Ticket, context: &Context, output: &mut Vec<u8>) {
        output.extend_from_slice(REQUEST);
        for (name, value) in context.fields() {
            output.extend_from_slice(name.as_bytes());
            output.extend_from_slice(b": ");
            output.extend_from_slice(value.as_bytes());
            output.extend_from_slice(b"\r\n");
        }
        output.extend_from_slice(b"\r\n");
        message::write(ticket.answer, ticket.tag, output);
        self.waits = Some(ticket);
    }

    fn take(&mut self, input: &[u8], _: &mut Vec<u8>, answered: &mut dyn FnMut(Instant)) -> Result<usize, Wrong> {
        let Some(ticket) = &self.waits else {
            return if input.is_empty() { Ok(0) } else { Err(Wrong("something came that nobody asked for")) };
        };
        let Some(head) = head(input, |line| line.starts_with(b"HTTP/1.1 200"))? else { return Ok(0) };
        let Some((length, answer, tag)) = body(&input[head.length..], head.framing)? else { return Ok(0) };
        if (answer, tag) != (ticket.answer, ticket.tag) {
            return Err(Wrong("an answer is to another request"));
        }
        if head.closes != (answer == Answer::Last) {
            return Err(Wrong("an answer says otherwise whether the connection ends"));
        }
        if head.length + length != input.len() {
            return Err(Wrong("something follows an answer"));
        }
        self.closed = head.closes;
        answered(ticket.since);
        self.waits = None;
        Ok(input.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends one request to the origin and returns what it said.
    fn exchange(client: &mut OneAtATime, answer: Answer) -> Vec<u8> {
        let (mut request, mut response) = (Vec::new(), Vec::new());
        client.send(Ticket { tag: 7, answer, since: Instant::now() }, &Context::default(), &mut request);
        assert_eq!(super::answer(&request[..request.len() - 1], &mut response), Ok((0, false)), "not complete");
        assert_eq!(super::answer(&request, &mut response), Ok((request.len(), answer == Answer::Last)));
        response
    }

    #[test]
    fn client_and_origin_agree_however_the_answer_is_split() {
        for answer in [Answer::Usual, Answer::Other, Answer::Last] {
            let mut client = OneAtATime::default();
            let response = exchange(&mut client, answer);
            let mut answered = 0;
            for length in 0..response.len() {
                let taken = client.take(&response[..length], &mut Vec::new(), &mut |_| answered += 1);
                assert_eq!((taken, answered), (Ok(0), 0), "{answer:?} {length}");
            }
            assert_eq!(client.take(&response, &mut Vec::new(), &mut |_| answered += 1), Ok(response.len()));
            assert!(answered == 1 && client.is_idle());
            assert_eq!(client.has_room(), answer != Answer::Last);
        }
    }

    #[test]
    fn an_answer_that_was_changed_is_noticed() {
        let usual = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut client = OneAtATime::default();
            let mut response = exchange(&mut client, Answer::Usual);
            change(&mut response);
            client.take(&response, &mut Vec::new(), &mut |_| {})
        };
        assert!(usual(&|_| {}).is_ok());
        assert!(usual(&|response| response[9] = b'5').is_err(), "status");
        assert!(usual(&|response| response.push(b'x')).is_err(), "something behind it");
        assert!(usual(&|response| *response.last_mut().unwrap() = b'y').is_err(), "body");
        let length = |response: &[u8]| memchr::memmem::find(response, b"1024").unwrap();
        let shorter = |response: &mut Vec<u8>| {
            let at = length(response);
            response[at + 3] = b'3';
        };
        assert!(usual(&shorter).is_err(), "length");
        let without = |response: &mut Vec<u8>| {
            let at = length(response);
            response.drain(at - 16..at + 6);
        };
        assert!(usual(&without).is_err(), "no length");
    }
}
