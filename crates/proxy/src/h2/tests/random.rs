//! Two strict peers, a random interceptor, random timing: what must hold whatever happens.
//!
//! Each peer keeps its own windows and fails when one is overrun, when an identifier does not grow, when a frame comes
//! that its stream does not allow, or when more streams are open than it announced. At the end everything is let go, and
//! all credit must have come back, all tables must be equal, every exchange be closed once, and every message that passed
//! be what was sent. Up to a mark, the application has exactly what it would have had without a sidecar.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::super::stream::Way;
use super::*;
use crate::exchange::Marks;

/// A small deterministic generator (xorshift64*).
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Octets of one gRPC message with its prefix.
const MESSAGE: usize = 500;

/// Octets `from..from + len` of the body of request `n` in one direction: messages of [`MESSAGE`] octets.
fn body_of(n: u64, up: bool, from: usize, len: usize) -> &'static [u8] {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut dice = Dice::new(1);
        let prefix = [&[0][..], &(MESSAGE as u32 - 5).to_be_bytes()].concat();
        (0..340).flat_map(|_| [&prefix[..], &[0; MESSAGE - 5].map(|_| dice.next() as u8)].concat()).collect()
    });
    &NOISE[(n as usize * 7 + usize::from(up)) % 40 * MESSAGE + from..][..len]
}

/// Whether the response to request `n` is a gRPC one.
fn is_grpc(n: u64) -> bool {
    n % 8 != 7
}

/// The edits of the end of request `n`: none, a line more, or none of its own left.
fn end_of_request(n: u64) -> Edits {
    match n % 8 {
        3 => smallvec::smallvec![Edit::Set("aft", "z".into())],
        5 => smallvec::smallvec![Edit::Remove("t"), Edit::Remove("grpc-status")],
        _ => Edits::new(),
    }
}

/// Where a mark is in a body of endless length.
fn place(mark: Mark) -> usize {
    match mark {
        Mark::Message(n) => (n as usize - 1) * MESSAGE,
        Mark::Bytes(n) => n as usize,
    }
}

/// One stream as a peer sees it.
#[derive(Default, Debug)]
struct Seen {
    /// The ordinal that its request carries, known to both ends.
    n: u64,
    send_window: i64,
    recv_window: i64,
    /// Received and not yet granted back.
    unread: i64,
    /// Body octets to be sent in all, and sent.
    plan: usize,
    sent: usize,
    trailers: bool,
    headed: bool,
    received: usize,
    got_head: bool,
    got_trailers: Option<bool>,
    made: bool,
    ended_here: bool,
    ended_there: bool,
    /// Reset by either side.
    reset: bool,
    /// Reset by this side.
    gave_up: bool,
    /// The request has an end of its own.
    has_end: bool,
}

impl Seen {
    fn open(&self) -> bool {
        !(self.reset || self.ended_here && self.ended_there)
    }
}

/// A peer with its own codec, windows and rules.
struct Peer {
    server: bool,
    out: Vec<u8>,
    reader: Reader,
    greeted: bool,
    encoder: Encoder,
    decoder: Decoder,
    block: Option<(u32, bool, Vec<u8>)>,
    streams: BTreeMap<u32, Seen>,
    last: u32,
    send_window: i64,
    recv_window: i64,
    unread: i64,
    /// Initial windows: of what it sends, and of what it receives.
    initial_send: i64,
    initial_recv: i64,
    /// Own settings that are not yet acknowledged.
    pending: std::collections::VecDeque<Vec<(u16, u32)>>,
    max_streams: usize,
    limit: usize,
    pings: usize,
    pongs: usize,
    /// GOAWAYs that came: the last stream each named.
    told: Vec<u32>,
}

impl Peer {
    fn new(server: bool) -> Self {
        Self {
            server,
            out: if server { Vec::new() } else { PREFACE.to_vec() },
            reader: if server { Reader::with_preface() } else { Reader::default() },
            greeted: !server,
            encoder: Encoder::default(),
            decoder: Decoder::new(1 << 20),
            block: None,
            streams: BTreeMap::new(),
            last: 0,
            send_window: 65_535,
            recv_window: 65_535,
            unread: 0,
            initial_send: 65_535,
            initial_recv: 65_535,
            pending: Default::default(),
            max_streams: 1000,
            limit: 1000,
            pings: 0,
            pongs: 0,
            told: Vec::new(),
        }
    }

    fn announce(&mut self, entries: Vec<(u16, u32)>) {
        self.out.extend(settings(&entries));
        self.pending.push_back(entries);
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        if !self.greeted {
            self.greeted = self.reader.greet(&mut input).unwrap();
        }
        let mut reader = std::mem::take(&mut self.reader);
        while let Some(frame) = reader.next(&mut input, 1 << 24).unwrap() {
            self.frame(frame);
        }
        self.reader = reader;
    }

    fn frame(&mut self, frame: frame::Frame<'_>) {
        let id = frame.stream;
        let value = || frame::u32_at(frame.payload, 0);
        match frame.kind {
            kind::SETTINGS if frame.flags & flag::ACK != 0 => {
                for (id, value) in self.pending.pop_front().expect("an acknowledgement of something sent") {
                    match id {
                        1 => self.decoder.allow(value as usize),
                        3 => self.limit = value as usize,
                        4 => {
                            let delta = i64::from(value) - self.initial_recv;
                            self.initial_recv = value.into();
                            self.streams.values_mut().for_each(|s| s.recv_window += delta);
                        }
                        _ => {}
                    }
                }
            }
            kind::SETTINGS => {
                for entry in frame.payload.chunks(6) {
                    let value = frame::u32_at(entry, 2);
                    match entry[1] {
                        1 => self.encoder.resize(value as usize),
                        2 => assert_eq!(value, 0),
                        3 => self.max_streams = value as usize,
                        4 => {
                            let delta = i64::from(value) - self.initial_send;
                            self.initial_send = value.into();
                            self.streams.values_mut().for_each(|s| s.send_window += delta);
                        }
                        _ => {}
                    }
                }
                self.out.extend(ack());
            }
            kind::PING if frame.flags & flag::ACK != 0 => self.pongs += 1,
            kind::PING => self.out.extend(ping(frame.payload.try_into().unwrap(), true)),
            kind::GOAWAY if frame.payload[4..] == [0; 4] => self.told.push(value()),
            kind::GOAWAY => panic!("GOAWAY {} {:?}", value(), frame.payload),
            kind::WINDOW_UPDATE => {
                let increment = i64::from(value());
                assert!(increment > 0);
                let window = if id == 0 {
                    &mut self.send_window
                } else {
                    assert!(id <= self.last, "WINDOW_UPDATE on idle stream {id}");
                    let Some(stream) = self.streams.get_mut(&id) else { return };
                    &mut stream.send_window
                };
                *window += increment;
                assert!(*window < 1 << 31, "window overflow");
            }
            kind::RST_STREAM => {
                assert!(id <= self.last, "RST_STREAM on idle stream {id}");
                self.streams.get_mut(&id).unwrap().reset = true;
            }
            kind::DATA => {
                let octets = frame.payload.len() as i64;
                self.recv_window -= octets;
                assert!(self.recv_window >= 0, "connection window overrun");
                self.unread += octets;
                assert!(id <= self.last, "DATA on idle stream {id}");
                let server = self.server;
                let stream = self.streams.get_mut(&id).unwrap();
                if stream.reset {
                    return;
                }
                stream.recv_window -= octets;
                assert!(stream.recv_window >= 0 || octets == 0, "stream window overrun");
                stream.unread += octets;
                assert!(!stream.ended_there && stream.got_head);
                let body = frame.unpadded().unwrap();
                let expected = body_of(stream.n, server, stream.received, body.len());
                assert!(stream.made || body == expected, "body of {} at {}", stream.n, stream.received);
                stream.received += body.len();
                stream.ended_there = frame.flags & flag::END_STREAM != 0;
            }
            kind::HEADERS | kind::CONTINUATION => {
                let (stream, end, mut block) = match self.block.take() {
                    Some(open) => open,
                    None => (id, frame.flags & flag::END_STREAM != 0, Vec::new()),
                };
                assert_eq!(stream, id);
                block.extend_from_slice(frame.payload);
                if frame.flags & flag::END_HEADERS == 0 {
                    self.block = Some((stream, end, block));
                } else {
                    self.head(id, end, &block);
                }
            }
            other => assert_eq!(other, 0x50, "an extension frame"),
        }
    }

    fn head(&mut self, id: u32, end: bool, block: &[u8]) {
        let mut list = HeaderList::default();
        self.decoder.decode(block, &mut list).expect("tables in step");
        let text =
            |name: &[u8]| list.iter().find(|(n, _)| *n == name).map(|(_, v)| String::from_utf8(v.to_vec()).unwrap());
        if self.server && id > self.last {
            assert!(id % 2 == 1);
            self.last = id;
            let open = self.streams.values().filter(|s| s.open()).count();
            assert!(open < self.limit, "{open} streams are open where {} may be", self.limit);
            assert_eq!(text(b"aft").as_deref(), Some("q"), "requests are stamped");
            let seen = Seen {
                n: text(b"n").unwrap().parse().unwrap(),
                send_window: self.initial_send,
                recv_window: self.initial_recv,
                got_head: true,
                ended_there: end,
                ..Seen::default()
            };
            self.streams.insert(id, seen);
            return;
        }
        let stream = self.streams.get_mut(&id).unwrap_or_else(|| panic!("HEADERS on idle stream {id}"));
        if stream.reset {
            return;
        }
        assert!(!stream.ended_there);
        if self.server || stream.got_head {
            assert!(end);
            stream.got_trailers = Some(text(b"t").is_some());
            if self.server {
                let stamped = (stream.n % 8 == 3).then_some("z");
                assert_eq!(text(b"aft").as_deref(), stamped, "ends of requests are stamped");
            }
            assert_eq!(text(b"t").unwrap_or(stream.n.to_string()), stream.n.to_string());
        } else if text(b":status").unwrap() != "103" {
            stream.got_head = true;
            stream.made = text(b"made").is_some();
            if !stream.made {
                assert_eq!(text(b"n").unwrap(), stream.n.to_string());
                assert_eq!(text(b"aft").as_deref(), Some("r"), "responses are stamped");
            }
        }
        stream.ended_there = end;
    }

    /// One random thing this peer may do.
    fn act(&mut self, dice: &mut Dice, calm: bool) {
        let ids: Vec<u32> = self.streams.iter().filter(|(_, s)| s.open()).map(|(id, _)| *id).collect();
        match dice.below(if calm { 6 } else { 10 }) {
            0 => self.grant(),
            1..6 if !ids.is_empty() => {
                let id = dice.pick(&ids);
                self.speak(id, dice);
            }
            6 if !ids.is_empty() && dice.one_in(6) => {
                let id = dice.pick(&ids);
                let stream = self.streams.get_mut(&id).unwrap();
                (stream.reset, stream.gave_up) = (true, true);
                self.out.extend(reset(id, 8));
            }
            7 if dice.one_in(6) => {
                let window = dice.pick(&[0, 1000, 20_000, 65_535, 200_000]);
                self.announce(vec![(4, window), (1, dice.pick(&[0, 100, 4096]))]);
            }
            8 if dice.one_in(3) => {
                self.pings += 1;
                self.out.extend(ping(b"01234567", false));
            }
            9 if !ids.is_empty() && dice.one_in(4) => self.out.extend(frame_of(0x50, 0, dice.pick(&ids), b"extension")),
            _ => {}
        }
    }

    /// Grant everything that was received, for the connection and for each stream that still needs it.
    fn grant(&mut self) {
        if self.unread > 0 {
            self.out.extend(window(0, self.unread as u32));
            self.recv_window += std::mem::take(&mut self.unread);
        }
        for (id, stream) in &mut self.streams {
            if stream.open() && !stream.ended_there && stream.unread > 0 {
                self.out.extend(window(*id, stream.unread as u32));
                stream.recv_window += std::mem::take(&mut stream.unread);
            }
        }
    }

    /// Go on with a message: head, data, end.
    fn speak(&mut self, id: u32, dice: &mut Dice) {
        let room = self.send_window;
        let stream = self.streams.get_mut(&id).unwrap();
        if stream.ended_here {
            return;
        }
        if !stream.headed {
            // Only a server speaks first here: a client's stream begins with its head.
            if dice.one_in(4) {
                self.out.extend(headers(&mut self.encoder, id, false, &[(":status", "103")]));
            }
            stream.plan = dice.pick(&[0, 0, 10, 3000, 40_000, 150_000]);
            stream.trailers = dice.one_in(2);
            stream.headed = true;
            stream.ended_here = stream.plan == 0 && !stream.trailers;
            let n = stream.n.to_string();
            let kind = if is_grpc(stream.n) { "application/grpc" } else { "text/plain" };
            let fields = [(":status", "200"), ("n", &n), ("content-type", kind)];
            self.out.extend(headers(&mut self.encoder, id, stream.ended_here, &fields));
            return;
        }
        let padding = if dice.one_in(5) { dice.below(50) } else { 0 };
        let most = room.min(stream.send_window).min(16_384) - if padding > 0 { padding as i64 + 1 } else { 0 };
        let left = stream.plan - stream.sent;
        if left > 0 && most > 0 {
            let len = left.min(most as usize).min(1 + dice.below(16_384));
            let last = len == left && !stream.trailers;
            let body = body_of(stream.n, !self.server, stream.sent, len);
            let (flags, payload) = if padding > 0 {
                (8, [&[padding as u8][..], body, &vec![0; padding]].concat())
            } else {
                (0, body.to_vec())
            };
            self.out.extend(frame_of(0, flags | u8::from(last), id, &payload));
            stream.sent += len;
            stream.send_window -= payload.len() as i64;
            self.send_window -= payload.len() as i64;
            stream.ended_here = last;
        } else if left == 0 && stream.trailers {
            stream.ended_here = true;
            let n = stream.n.to_string();
            self.out.extend(headers(&mut self.encoder, id, true, &[("t", &n), ("grpc-status", "0")]));
        } else if left == 0 {
            stream.ended_here = true;
            self.out.extend(data(id, true, b""));
        }
    }

    fn open(&mut self, dice: &mut Dice) {
        if !self.told.is_empty() || self.streams.values().filter(|s| s.open()).count() >= self.max_streams {
            return;
        }
        let id = self.last + 2 - (self.last + 1) % 2 + 2 * dice.below(2) as u32;
        self.last = id;
        let mut stream = Seen {
            n: u64::from(id),
            send_window: self.initial_send,
            recv_window: self.initial_recv,
            plan: dice.pick(&[0, 0, 10, 3000, 40_000, 150_000]),
            trailers: dice.one_in(3),
            headed: true,
            ..Seen::default()
        };
        stream.ended_here = stream.plan == 0 && !stream.trailers;
        stream.has_end = !stream.ended_here;
        let n = id.to_string();
        let mut fields = vec![(":method", "POST"), (":scheme", "http"), (":path", "/p.S/M"), ("n", &n[..])];
        let pad = "p".repeat(dice.below(200));
        fields.push(("x-pad", &pad));
        self.out.extend(headers(&mut self.encoder, id, stream.ended_here, &fields));
        self.streams.insert(id, stream);
    }
}

/// Decides at random, and remembers.
struct Random {
    dice: Dice,
    calm: bool,
    parked: Vec<u64>,
    seen: BTreeMap<u64, Option<Closed>>,
    faulted: std::collections::BTreeSet<u64>,
    /// Marks that are still to be reached.
    marks: BTreeMap<u64, Vec<Mark>>,
    /// Where a response is parked, or was cut, in mid-body.
    stopped: BTreeMap<u64, usize>,
    cut: BTreeMap<u64, usize>,
    ends_of_requests: BTreeMap<u64, usize>,
    late: std::collections::BTreeSet<u64>,
    /// How often what happened, to show that this test is worth something.
    tally: Tally,
}

type Tally = BTreeMap<String, usize>;

impl Random {
    fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            calm: false,
            parked: Vec::new(),
            seen: BTreeMap::new(),
            faulted: Default::default(),
            marks: BTreeMap::new(),
            stopped: BTreeMap::new(),
            cut: BTreeMap::new(),
            ends_of_requests: BTreeMap::new(),
            late: Default::default(),
            tally: Tally::new(),
        }
    }

    fn act(&mut self, stream: u64) -> Act {
        self.faulted.insert(stream);
        self.parked.push(stream);
        match self.dice.below(4) {
            0 => Act::Drop,
            1 => Act::Reset { code: 2, connection: false },
            2 => made(503, &[("made", "1")], &[b'm'; 30_000]),
            _ => {
                let mut act = made(200, &[("made", "1"), ("grpc-status", "14")], b"");
                if let Act::Answer(made) = &mut act {
                    made.trailers = Some(made.fields.clone());
                }
                act
            }
        }
    }

    /// A stream that is parked at a mark goes on, in one way or another.
    fn resumed(&mut self, stream: u64, resume: &Resume) {
        match (self.stopped.remove(&stream), resume) {
            (Some(place), Resume::Close) => drop(self.stopped.insert(stream, place)),
            (Some(place), Resume::Act(act)) => self.cut_at(stream, place, act),
            _ => {}
        }
    }

    /// The end of a body at a mark, unless the act comes too late there.
    fn cut_at(&mut self, stream: u64, place: usize, act: &Act) {
        if !matches!(act, Act::Answer(made) if made.trailers.is_none()) {
            self.cut.insert(stream, place);
        }
    }

    fn watch(&mut self, stream: u64) -> Marks {
        let count = 1 + self.dice.below(4);
        let marks: Vec<Mark> = (0..count)
            .map(|_| match self.dice.below(2) {
                0 => Mark::Message(1 + self.dice.pick(&[0, 1, 2, 5, 70, 200])),
                _ => Mark::Bytes(self.dice.pick(&[0, 1, 9, 10, 500, 2999, 3000, 16_384, 39_999])),
            })
            .collect();
        self.marks.insert(stream, marks.clone());
        Marks::from_vec(marks)
    }

    fn count(&mut self, what: String) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn verdict(&mut self, point: &str, stream: u64) -> Verdict {
        let sides = match point {
            _ if self.calm => 1,
            // Fewer of them are reached, so more of them act.
            "mark" => 16,
            _ => 10,
        };
        let verdict = match self.dice.below(sides) {
            0..4 => Verdict::Pass,
            8 | 9 if point == "response" => Verdict::Watch(self.watch(stream)),
            8 | 9 => Verdict::Watch(Marks::new()),
            4 | 5 => {
                self.parked.push(stream);
                Verdict::Park
            }
            6 | 15 => Verdict::Withhold { limit: self.dice.pick(&[0, 5000, 1 << 20]) },
            _ => Verdict::Act(self.act(stream)),
        };
        let name = match &verdict {
            Verdict::Pass => "pass",
            Verdict::Park => "park",
            Verdict::Withhold { .. } => "withhold",
            Verdict::Watch(_) => "watch",
            Verdict::Act(Act::Drop) => "drop",
            Verdict::Act(Act::Reset { .. }) => "reset",
            Verdict::Act(Act::Answer(_)) => "answer",
        };
        self.count(format!("{point} {name}"));
        verdict
    }
}

impl Interceptor for Random {
    fn request(&mut self, stream: StreamId, _: &RequestHead<'_>) -> Verdict {
        assert!(self.seen.insert(stream.0, None).is_none());
        self.verdict("request", stream.0)
    }

    fn response(&mut self, stream: StreamId, _: &ResponseHead<'_>) -> Verdict {
        assert_eq!(self.seen[&stream.0], None);
        self.verdict("response", stream.0)
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> Verdict {
        assert_eq!(self.seen[&stream.0], None);
        let marks = self.marks.get_mut(&stream.0).expect("a watched response");
        let at = marks.iter().position(|m| *m == mark).expect("each once");
        marks.remove(at);
        assert!(
            marks.iter().all(|other| place(*other) >= place(mark) || !is_grpc(stream.0)),
            "in the order of the body"
        );
        let verdict = self.verdict("mark", stream.0);
        match &verdict {
            Verdict::Park => drop(self.stopped.insert(stream.0, place(mark))),
            Verdict::Act(act) => self.cut_at(stream.0, place(mark), act),
            _ => {}
        }
        verdict
    }

    fn request_end(&mut self, stream: StreamId, _: Option<&Fields<'_>>) {
        assert_eq!(self.seen[&stream.0], None);
        *self.ends_of_requests.entry(stream.0).or_default() += 1;
    }

    fn late(&mut self, stream: StreamId, fields: &Fields<'_>) {
        assert_eq!(self.seen[&stream.0], Some(Closed::ByApplication), "only of what was given up");
        assert!(self.late.insert(stream.0), "once");
        let n = fields.text("n").or(fields.text("t"));
        assert!(n.is_none_or(|n| n == stream.0.to_string()), "of this stream");
        self.count("late".into());
    }

    fn response_end(&mut self, stream: StreamId, tail: &Tail<'_>) -> Verdict {
        assert_eq!(self.seen[&stream.0], None);
        if let Some(body) = tail.body {
            assert_eq!(body, body_of(stream.0, false, 0, body.len()), "the body that was withheld");
            self.count("body".into());
            if let Some(messages) = tail.messages {
                assert_eq!(messages as usize, body.len().div_ceil(MESSAGE));
            }
        }
        self.verdict("end", stream.0)
    }

    fn stamp(&mut self, stream: StreamId, part: Part) -> Edits {
        assert_eq!(self.seen[&stream.0], None);
        let value = match part {
            Part::Request => "q",
            Part::RequestEnd => return end_of_request(stream.0),
            Part::Response => "r",
            Part::ResponseEnd if stream.0 % 4 == 1 => return Edits::new(),
            Part::ResponseEnd => "e",
        };
        smallvec::smallvec![Edit::Set("aft", value.into())]
    }

    fn refused(&mut self, _: StreamId, why: Refusal) {
        assert!(matches!(why, Refusal::Size | Refusal::Stream | Refusal::TooLate), "{why:?}");
        self.count(format!("{why:?}"));
    }

    fn closed(&mut self, stream: StreamId, how: Closed) {
        let before = self.seen.insert(stream.0, Some(how));
        assert_eq!(before, Some(None), "closed once, after its request");
        self.count(format!("{how:?}"));
    }
}

/// Move some bytes: all of them once `calm`.
fn deliver(link: &mut Link, app: &mut Peer, up: &mut Peer, fate: &mut Random, dice: &mut Dice, calm: bool) {
    let mut portion = |len: usize| if calm || dice.one_in(3) { len } else { dice.below(len + 1) };
    let n = portion(app.out.len());
    let bytes: Vec<u8> = app.out.drain(..n).collect();
    link.app_bytes(&bytes, fate);
    let n = portion(up.out.len());
    let bytes: Vec<u8> = up.out.drain(..n).collect();
    link.upstream_bytes(&bytes, fate);
    let out = link.output();
    let n = portion(out.to_upstream.len());
    up.receive(&out.to_upstream.split_to(n));
    let n = portion(out.to_app.len());
    app.receive(&out.to_app.split_to(n));
    let (fates, all) = ((out.app, out.upstream), out.to_app.is_empty());
    let expected = if link.over { Fate::Linger } else { Fate::Open };
    assert_eq!(fates, (expected, expected));
    for (n, place) in fate.stopped.iter().chain(&fate.cut) {
        let stream = &app.streams[&(*n as u32)];
        assert!(stream.received <= *place, "nothing behind a mark has left");
        assert!(!all || stream.gave_up || stream.received == *place, "all before a mark has left");
    }
}

/// How a conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finale {
    /// When all has been said.
    Said,
    /// A fault resets the application's connection in the middle of it.
    Cut,
    /// The link is drained in the middle of it.
    Drained,
}

fn conversation(seed: u64, finale: Finale) -> Tally {
    let mut dice = Dice::new(seed);
    let mut link = Link::new();
    let (mut app, mut up) = (Peer::new(false), Peer::new(true));
    let mut fate = Random::new(seed ^ 0xfeed);
    for peer in [&mut app, &mut up] {
        let mut entries = vec![
            (1, dice.pick(&[0, 200, 4096, 65_536])),
            (4, dice.pick(&[100, 5000, 65_535, 300_000])),
            (5, dice.pick(&[16_384, 40_000])),
        ];
        if peer.server {
            entries.push((3, dice.pick(&[1, 3, 100])));
        }
        peer.announce(entries);
    }
    for _ in 0..6 {
        deliver(&mut link, &mut app, &mut up, &mut fate, &mut dice, true);
    }
    for step in 0..400 {
        if finale == Finale::Drained && step == 200 {
            link.drain(&mut fate);
        }
        if dice.one_in(4) {
            app.open(&mut dice);
        }
        app.act(&mut dice, false);
        up.act(&mut dice, false);
        if dice.one_in(3) && !fate.parked.is_empty() {
            let stream = fate.parked.swap_remove(dice.below(fate.parked.len()));
            if finale == Finale::Cut && fate.seen.len() > 10 {
                let reset = Act::Reset { code: 2, connection: true };
                link.resume(StreamId(stream), Resume::Act(reset), &mut fate);
                if link.out.app == Fate::Reset {
                    return cut_off(link, app, fate);
                }
                continue;
            }
            let resume = match dice.below(4) {
                0 => Resume::Act(fate.act(stream)),
                1 => Resume::Close,
                _ => Resume::Pass,
            };
            if resume == Resume::Close {
                fate.parked.push(stream);
            }
            fate.resumed(stream, &resume);
            link.resume(StreamId(stream), resume, &mut fate);
        }
        deliver(&mut link, &mut app, &mut up, &mut fate, &mut dice, false);
        for way in [Way::Up, Way::Down] {
            let account = *link.account(way);
            assert!(account.room >= 0, "seed {seed}: the receiver's connection window");
        }
    }
    // Let everything go.
    fate.calm = true;
    for round in 0.. {
        let ids: Vec<u64> = fate.seen.keys().copied().collect();
        for stream in ids {
            fate.resumed(stream, &Resume::Pass);
            link.resume(StreamId(stream), Resume::Pass, &mut fate);
            link.resume(StreamId(stream), Resume::Close, &mut fate);
        }
        for peer in [&mut app, &mut up] {
            if round == 0 {
                peer.announce(vec![(4, 100_000)]);
            }
            let ids: Vec<u32> = peer.streams.iter().filter(|(_, s)| s.open()).map(|(id, _)| *id).collect();
            for id in ids {
                peer.speak(id, &mut dice);
            }
            peer.grant();
        }
        deliver(&mut link, &mut app, &mut up, &mut fate, &mut dice, true);
        let busy = |peer: &Peer| peer.streams.values().any(Seen::open) || !peer.out.is_empty() || peer.unread > 0;
        if !busy(&app) && !busy(&up) && link.out.to_app.is_empty() && link.out.to_upstream.is_empty() {
            break;
        }
        assert!(round < 2000, "seed {seed}: stuck: {:?}\n{:?}", link.streams, app.streams);
    }

    assert!(link.streams.is_empty(), "seed {seed}: {:?}\n{:?}", link.streams, app.streams);
    assert!(link.waiting_up.is_empty() && link.waiting_down.is_empty());
    assert_eq!((link.kept_up, link.kept_down, link.up_open, link.drains.len()), (0, 0, 0, 0), "seed {seed}");
    assert!(link.early.is_empty() && link.ids.app(1).is_none());
    if finale == Finale::Drained {
        // Whatever the application opened before it heard of the end was processed, to which the rest of this bears witness.
        assert_eq!(app.told, [u32::MAX >> 1, app.last], "seed {seed}");
        assert!(link.over);
        *fate.tally.entry("drained".into()).or_default() += 1;
    } else {
        assert!(app.told.is_empty() && !link.over);
        assert_eq!((app.pings, up.pings), (app.pongs, up.pongs));
    }
    assert!(up.told.is_empty());
    // Of a link that has ended the last frames are nobody's.
    if !link.over {
        // All credit is back.
        assert_eq!((app.send_window, up.send_window), (65_535, 65_535), "seed {seed}");
        // All tables are equal.
        assert!(app.encoder.table().eq(link.app.decoder.table()));
        assert!(link.app.encoder.table().eq(app.decoder.table()));
        assert!(up.encoder.table().eq(link.upstream.decoder.table()));
        assert!(link.upstream.encoder.table().eq(up.decoder.table()));
    }
    // Every exchange was closed once, and what passed is what was sent.
    let served: BTreeMap<u64, &Seen> = up.streams.values().map(|s| (s.n, s)).collect();
    for (n, how) in &fate.seen {
        let stream = &app.streams[&(*n as u32)];
        let how = how.unwrap_or_else(|| panic!("seed {seed}: {n} was never closed"));
        if how != Closed::Complete {
            assert!(stream.reset, "seed {seed}: {n} {how:?}");
            continue;
        }
        assert!(stream.ended_there || stream.reset, "seed {seed}: {n}");
        let Some(origin) = served.get(n).filter(|_| !fate.faulted.contains(n)) else { continue };
        if stream.ended_there {
            *fate.tally.entry("whole response".into()).or_default() += 1;
            assert_eq!((stream.received, origin.ended_here), (origin.sent, true), "seed {seed}: response of {n}");
            if origin.trailers {
                assert_eq!(stream.got_trailers, Some(true));
            }
        }
        if !stream.reset && !origin.reset {
            *fate.tally.entry("whole request".into()).or_default() += 1;
            assert_eq!(origin.received, stream.plan, "seed {seed}: request of {n}");
            assert_eq!(fate.ends_of_requests.contains_key(n), stream.has_end);
            let trailers = match n % 8 {
                3 => stream.has_end,
                5 => false,
                _ => stream.trailers,
            };
            assert_eq!(origin.got_trailers.is_some(), trailers, "seed {seed}: trailers of {n}");
        }
    }
    assert!(fate.ends_of_requests.values().all(|times| *times == 1));
    assert!(finale == Finale::Drained || fate.seen.len() > 3, "seed {seed}: a conversation worth the name");
    fate.tally
}

/// What is left of a link whose application got an RST: nothing, and what had been written before is as it should be.
fn cut_off(mut link: Link, mut app: Peer, fate: Random) -> Tally {
    assert_eq!(link.out.upstream, Fate::Linger);
    app.receive(&link.out.to_app.split());
    assert!(link.streams.is_empty() && link.waiting_up.is_empty() && link.waiting_down.is_empty());
    assert_eq!((link.kept_up, link.kept_down), (0, 0));
    assert!(fate.seen.values().all(Option::is_some), "every exchange is closed");
    for (n, place) in &fate.stopped {
        let stream = &app.streams[&(*n as u32)];
        assert!(stream.gave_up || stream.received == *place);
    }
    Tally::from([("cut".into(), 1)])
}

#[test]
fn random_conversations_keep_windows_tables_identifiers_and_bodies() {
    let mut tally = Tally::new();
    for seed in 0..150 {
        for (what, times) in conversation(seed, Finale::Said) {
            *tally.entry(what).or_default() += times;
        }
    }
    for seed in 1000..1040 {
        for (what, times) in conversation(seed, Finale::Cut).into_iter().filter(|(what, _)| what == "cut") {
            *tally.entry(what).or_default() += times;
        }
    }
    for seed in 2000..2040 {
        for (what, times) in conversation(seed, Finale::Drained) {
            *tally.entry(what).or_default() += times;
        }
    }
    // Four points times seven verdicts, three refusals, four ends, messages that were compared, bodies that were shown,
    // what came late, and connections that were reset or drained.
    assert_eq!(tally.len(), 28 + 3 + 4 + 2 + 4, "{tally:#?}");
    for (what, times) in &tally {
        assert!(*times >= 30, "{what} happened {times} times only: {tally:#?}");
    }
}

/// Frames of every kind with random contents, and plain noise.
fn noise(dice: &mut Dice, encoder: &mut Encoder) -> Vec<u8> {
    let stream = dice.pick(&[0, 1, 1, 3, 3, 5, 7, 2, 9]);
    match dice.below(12) {
        0 => (0..dice.below(60)).map(|_| dice.next() as u8).collect(),
        1..5 => {
            let fields: &[(&str, &str)] = if dice.one_in(2) {
                &[(":method", "GET"), (":scheme", "http"), (":path", "/")]
            } else {
                &[(":status", "200"), ("x", "y")]
            };
            headers(encoder, stream, dice.one_in(3), fields)
        }
        5 => headers(encoder, stream, true, &[("t", "1")]),
        6 => data(stream, dice.one_in(3), &vec![1; dice.below(400)]),
        7 => window(stream, dice.next() as u32 & 0xffff),
        8 => reset(stream, dice.below(14) as u32),
        9 => settings(&[(dice.below(8) as u16, dice.next() as u32 & 0x1ffff)]),
        10 => ack(),
        _ => {
            let payload: Vec<u8> = (0..dice.pick(&[0, 4, 5, 6, 8, 30])).map(|_| dice.next() as u8).collect();
            frame_of(dice.below(18) as u8, dice.next() as u8, stream, &payload)
        }
    }
}

#[test]
fn random_frames_from_both_sides_never_panic_leak_or_close_twice() {
    for seed in 0..1500 {
        let mut dice = Dice::new(seed);
        let mut link = Link::new();
        let mut fate = Random::new(seed + 7);
        let (mut app, mut up) = (Encoder::default(), Encoder::default());
        link.app_bytes(PREFACE, &mut fate);
        link.app_bytes(&settings(&[]), &mut fate);
        if dice.one_in(2) {
            link.upstream_bytes(&settings(&[]), &mut fate);
        }
        for _ in 0..60 {
            let bytes = noise(&mut dice, &mut app);
            link.app_bytes(&bytes, &mut fate);
            let bytes = noise(&mut dice, &mut up);
            // Mostly well-behaved, so that conversations get somewhere.
            if bytes.get(3).is_some_and(|kind| *kind < 2) || dice.one_in(5) {
                link.upstream_bytes(&bytes, &mut fate);
            }
            if let Some(stream) = fate.parked.pop() {
                let act = match dice.below(20) {
                    0 => Act::Reset { code: 2, connection: true },
                    _ => fate.act(stream),
                };
                let resume = [Resume::Pass, Resume::Close, Resume::Act(act)][dice.below(3)].clone();
                link.resume(StreamId(stream), resume, &mut fate);
            }
            let out = link.output();
            assert!(out.to_app.len() + out.to_upstream.len() < 1 << 20);
            out.to_app.clear();
            out.to_upstream.clear();
        }
        let how = dice.pick(&[PeerEnd::Eof, PeerEnd::Broken]);
        if dice.one_in(2) {
            link.upstream_end(how, &mut fate);
        }
        link.app_end(how, &mut fate);
        link.upstream_end(PeerEnd::Eof, &mut fate);
        assert!(fate.seen.values().all(Option::is_some), "seed {seed}: every exchange is closed");
        assert!(link.streams.is_empty() && link.kept_up == 0 && link.kept_down == 0);
    }
}
