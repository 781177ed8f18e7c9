//! One end of an HTTP/2 connection, on a raw socket, that keeps what comes on each stream; and a server made of it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use aftershock_proxy::hpack::{Decoder, HeaderList};

use super::frames::{PREFACE, block, frame};
use super::wire;

/// Names and values of header fields.
pub(crate) type Fields = Vec<(String, String)>;

/// The value of a field.
pub(crate) fn value<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
}

/// The octets of a gRPC message.
pub(crate) fn message(text: &str) -> Vec<u8> {
    [&[0][..], &(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// What came from the other end.
#[derive(Debug)]
enum Event {
    Head {
        stream: u32,
        fields: Fields,
        end: bool,
    },
    Data {
        stream: u32,
        octets: Vec<u8>,
        end: bool,
    },
    Reset {
        stream: u32,
        code: u32,
    },
    /// The answer to a PING.
    Pong,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// How the other end ended a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Stream,
    /// With this error code.
    Reset(u32),
}

/// What came on a stream.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Came {
    /// The fields of its head and of its trailers, in order.
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) ended: Option<End>,
}

impl Came {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        value(&self.fields, name)
    }
}

/// One end of a connection.
pub(crate) struct Http2 {
    stream: TcpStream,
    unread: Vec<u8>,
    decoder: Decoder,
    came: BTreeMap<u32, Came>,
    /// The last stream that this end opened.
    last: Option<u32>,
    /// Octets of DATA that the other end takes.
    credit: i64,
    /// Its PING was answered.
    answered: bool,
}

impl Http2 {
    /// The client's end of a connection to `address`.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let mut stream = wire::connect(address);
        stream.write_all(PREFACE).expect("the connection is open");
        Self::greet(stream)
    }

    /// The server's end of the next connection; its client speaks first.
    pub(crate) fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().expect("a connection");
        Self::serve(stream).expect("a client of HTTP/2")
    }

    fn serve(mut stream: TcpStream) -> std::io::Result<Self> {
        wire::prepare(&stream);
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface)?;
        assert_eq!(preface, PREFACE);
        Ok(Self::greet(stream))
    }

    fn greet(stream: TcpStream) -> Self {
        let decoder = Decoder::new(1 << 20);
        let (unread, came) = (Vec::new(), BTreeMap::new());
        let mut end = Self { stream, unread, decoder, came, last: None, credit: 65_535, answered: false };
        // The connection's window never is the reason to wait.
        end.send(&[frame(4, 0, 0, &[]), frame(8, 0, 0, &(1u32 << 30).to_be_bytes())].concat());
        end
    }

    fn send(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).expect("the connection is open");
    }

    /// Opens a stream with these fields behind those that every request has.
    pub(crate) fn open(&mut self, method: &str, path: &str, further: &[(&str, &str)], end: bool) -> u32 {
        let stream = self.last.map_or(1, |last| last + 2);
        self.last = Some(stream);
        let all = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "origin")];
        self.head(stream, &[&all, further].concat(), end);
        stream
    }

    /// Sends a head or trailers.
    pub(crate) fn head(&mut self, stream: u32, fields: &[(&str, &str)], end: bool) {
        self.send(&frame(1, 4 | u8::from(end), stream, &block(fields)));
    }

    /// Sends a piece of a body, as soon as the connection's window has room for it. The stream's must have it.
    pub(crate) fn data(&mut self, stream: u32, octets: &[u8], end: bool) {
        while self.credit < octets.len() as i64 {
            self.read();
        }
        self.credit -= octets.len() as i64;
        self.send(&frame(0, u8::from(end), stream, octets));
    }

    /// Waits until this stream has ended; all that came on it.
    pub(crate) fn ended(&mut self, stream: u32) -> Came {
        self.until(stream, |came| came.ended.is_some());
        self.came.remove(&stream).expect("it ended")
    }

    /// Waits until `enough` has come on this stream.
    pub(crate) fn until(&mut self, stream: u32, enough: impl Fn(&Came) -> bool) -> &Came {
        while !self.came.get(&stream).is_some_and(&enough) {
            self.read();
        }
        &self.came[&stream]
    }

    /// What has come on this stream when the other end has answered a PING.
    pub(crate) fn so_far(&mut self, stream: u32) -> Option<&Came> {
        self.send(&frame(6, 0, 0, b"so far ?"));
        while !std::mem::take(&mut self.answered) {
            self.read();
        }
        self.came.get(&stream)
    }

    /// Waits for something.
    fn read(&mut self) {
        match self.event().expect("something comes").expect("the connection is open") {
            Event::Head { stream, fields, end } => self.came(stream, end).fields.extend(fields),
            Event::Data { stream, octets, end } => self.came(stream, end).body.extend(octets),
            Event::Reset { stream, code } => {
                self.came.entry(stream).or_default().ended.get_or_insert(End::Reset(code));
            }
            Event::Pong => self.answered = true,
        }
    }

    fn came(&mut self, stream: u32, end: bool) -> &mut Came {
        let came = self.came.entry(stream).or_default();
        if end {
            came.ended = Some(End::Stream);
        }
        came
    }

    /// What comes next on a stream; none at the end of the connection. What concerns the connection is seen to.
    fn event(&mut self) -> std::io::Result<Option<Event>> {
        loop {
            let Some(Frame { kind, flags, stream, payload }) = self.frame()? else { return Ok(None) };
            let word = || u32::from_be_bytes(payload[..4].try_into().expect("four octets"));
            let end = flags & 1 != 0;
            match kind {
                0 => return Ok(Some(Event::Data { stream, octets: payload, end })),
                1 => {
                    assert_eq!(flags & !1, 4, "a head in one frame, without padding");
                    let mut list = HeaderList::default();
                    self.decoder.decode(&payload, &mut list).expect("a header block");
                    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
                    let fields = list.iter().map(|(name, value)| (text(name), text(value))).collect();
                    return Ok(Some(Event::Head { stream, fields, end }));
                }
                3 => return Ok(Some(Event::Reset { stream, code: word() })),
                4 if !end => self.stream.write_all(&frame(4, 1, 0, &[]))?,
                6 if end => return Ok(Some(Event::Pong)),
                6 => self.stream.write_all(&frame(6, 1, 0, &payload))?,
                8 if stream == 0 => self.credit += i64::from(word()),
                _ => {}
            }
        }
    }

    /// The next frame; none at the end of the connection.
    fn frame(&mut self) -> std::io::Result<Option<Frame>> {
        loop {
            if let Some((header, rest)) = self.unread.split_first_chunk::<9>() {
                let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
                if let Some(payload) = rest.get(..length) {
                    let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
                    let frame = Frame { kind: header[3], flags: header[4], stream, payload: payload.to_vec() };
                    self.unread.drain(..9 + length);
                    return Ok(Some(frame));
                }
            }
            let mut buffer = [0; 65_536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                read => self.unread.extend_from_slice(&buffer[..read?]),
            }
        }
    }
}

/// A server that answers every request with 200, sends each body back as it comes, and ends as gRPC does.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    requests: mpsc::Receiver<Fields>,
}

impl Echo {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (seen, requests) = mpsc::channel();
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let seen = seen.clone();
                thread::spawn(move || Http2::serve(stream).map(|end| echo(end, &seen)));
            }
        });
        Self { address, requests }
    }

    /// The heads of the requests that have come since the last call.
    pub(crate) fn requests(&self) -> Vec<Fields> {
        self.requests.try_iter().collect()
    }
}

fn echo(mut client: Http2, seen: &mpsc::Sender<Fields>) {
    // An idle connection is none of its business.
    client.stream.set_read_timeout(None).expect("a socket");
    while let Ok(Some(event)) = client.event() {
        let ended = match event {
            Event::Head { stream, fields, end } => {
                if value(&fields, ":method").is_some() {
                    let _ = seen.send(fields);
                    client.head(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
                }
                end.then_some(stream)
            }
            Event::Data { stream, octets, end } => {
                client.data(stream, &octets, false);
                end.then_some(stream)
            }
            Event::Reset { .. } | Event::Pong => None,
        };
        if let Some(stream) = ended {
            client.head(stream, &[("grpc-status", "0")], true);
        }
    }
}
