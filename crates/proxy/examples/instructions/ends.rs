//! The ends of a connection, as known peers speak: a POST of 1 KiB answered by 1 KiB, over HTTP/1.1 or as a unary gRPC
//! call.

use aftershock_proxy::hpack::{Decoder, Encoder, HeaderList, Indexing};

/// Field lines that an application hands on: names and values.
pub(crate) type Context = Vec<(String, String)>;

/// The fields that make up a [`Context`].
const HANDED_ON: [&str; 2] = ["traceparent", "tracestate"];

/// Size of all bodies.
const BODY: usize = 1024;

/// One end of one connection: a client uses `request` and `read`, a server `read` and `respond`.
pub(crate) trait End {
    /// Writes the next request, with `context` beside its own fields.
    fn request(&mut self, context: &Context, output: &mut Vec<u8>);
    /// Reads one message to its end, and returns its context. None: it has not ended.
    fn read(&mut self, input: &mut Vec<u8>) -> Option<Context>;
    /// Answers the request that was read last.
    fn respond(&mut self, output: &mut Vec<u8>);
}

/// HTTP/1.1; it has no state.
pub(crate) struct Http1;

impl End for Http1 {
    fn request(&mut self, context: &Context, output: &mut Vec<u8>) {
        output.extend_from_slice(
            b"POST /cart/7/items?trial=1 HTTP/1.1\r\nHost: origin.example:8080\r\nUser-Agent: instructions/1.0\r\n\
              Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\nContent-Type: application/json\r\n\
              Content-Length: 1024\r\n",
        );
        for (name, value) in context {
            output.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        output.extend_from_slice(b"\r\n");
        output.extend_from_slice(&[b'q'; BODY]);
    }

    fn read(&mut self, input: &mut Vec<u8>) -> Option<Context> {
        let head = memchr::memmem::find(input, b"\r\n\r\n")?;
        let end = head + 4 + BODY;
        if input.len() < end {
            return None;
        }
        let text = String::from_utf8_lossy(&input[..head]).into_owned();
        input.drain(..end);
        let fields = text.lines().filter_map(|line| line.split_once(": "));
        let context = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        Some(context.filter(|(name, _)| HANDED_ON.contains(&name.as_str())).collect())
    }

    fn respond(&mut self, output: &mut Vec<u8>) {
        output.extend_from_slice(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\n\
              Server: origin\r\nContent-Length: 1024\r\n\r\n",
        );
        output.extend_from_slice(&[b'r'; BODY]);
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// Wide enough for a whole run.
const WINDOW: u32 = 0x7fff_ffff;

/// HTTP/2 by prior knowledge, one stream after the other.
pub(crate) struct Http2 {
    encoder: Encoder,
    decoder: Decoder,
    fields: HeaderList,
    /// The stream of the message at hand; 0 before the first.
    stream: u32,
    /// What was read of the message at hand.
    context: Context,
    open: bool,
    settled: bool,
}

impl Http2 {
    pub(crate) fn new() -> Self {
        Self {
            encoder: Encoder::default(),
            decoder: Decoder::new(64 * 1024),
            fields: HeaderList::default(),
            stream: 0,
            context: Context::new(),
            open: false,
            settled: true,
        }
    }

    /// What precedes the first message, and the acknowledgement that is due.
    fn open(&mut self, output: &mut Vec<u8>) {
        if !self.open {
            self.open = true;
            let settings: [u8; 6] = [0, 4, 0x7f, 0xff, 0xff, 0xff];
            frame(SETTINGS, 0, 0, &settings, output);
            frame(WINDOW_UPDATE, 0, 0, &(WINDOW - 65_535).to_be_bytes(), output);
        }
        if !self.settled {
            self.settled = true;
            frame(SETTINGS, ACK, 0, &[], output);
        }
    }

    fn headers(&mut self, flags: u8, fields: &[(&str, &str)], context: &Context, output: &mut Vec<u8>) {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            self.encoder.field(name.as_bytes(), value.as_bytes(), Indexing::Incremental, &mut block);
        }
        for (name, value) in context {
            self.encoder.field(name.as_bytes(), value.as_bytes(), Indexing::Without, &mut block);
        }
        frame(HEADERS, END_HEADERS | flags, self.stream, &block, output);
    }
}

impl End for Http2 {
    fn request(&mut self, context: &Context, output: &mut Vec<u8>) {
        if !self.open {
            output.extend_from_slice(PREFACE);
        }
        self.open(output);
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/shop.Cart/AddItem"),
            (":authority", "origin.example:8080"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "grpc-instructions/1.0"),
        ];
        self.headers(0, &fields, context, output);
        frame(DATA, END_STREAM, self.stream, &[b'q'; BODY], output);
    }

    fn read(&mut self, input: &mut Vec<u8>) -> Option<Context> {
        if input.starts_with(PREFACE) {
            input.drain(..PREFACE.len());
        }
        let (mut at, mut ended) = (0, false);
        while let Some((head, rest)) = input[at..].split_at_checked(9).filter(|_| !ended) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = rest.get(..length) else { break };
            let (kind, flags) = (head[3], head[4]);
            match kind {
                SETTINGS if flags & ACK == 0 => self.settled = false,
                HEADERS => {
                    self.stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                    self.decoder.decode(payload, &mut self.fields).expect("an editor writes blocks that can be read");
                    for (name, value) in self.fields.iter() {
                        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                        if HANDED_ON.contains(&&*name) {
                            self.context.push((name.into_owned(), value.into_owned()));
                        }
                    }
                }
                _ => {}
            }
            ended = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
            at += 9 + length;
        }
        input.drain(..at);
        ended.then(|| std::mem::take(&mut self.context))
    }

    fn respond(&mut self, output: &mut Vec<u8>) {
        self.open(output);
        let none = Context::new();
        self.headers(0, &[(":status", "200"), ("content-type", "application/grpc")], &none, output);
        frame(DATA, 0, self.stream, &[b'r'; BODY], output);
        self.headers(END_STREAM, &[("grpc-status", "0")], &none, output);
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], output: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).expect("payloads here are short").to_be_bytes();
    output.extend_from_slice(&length[1..]);
    output.extend_from_slice(&[kind, flags]);
    output.extend_from_slice(&stream.to_be_bytes());
    output.extend_from_slice(payload);
}
