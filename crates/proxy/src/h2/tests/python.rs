//! The `h2` package of Python at both ends: a state machine and flow control that are not ours. It raises on whatever
//! RFC 9113 forbids, and its HPACK is `hpack`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use smallvec::smallvec;

use super::*;
use crate::exchange::Marks;

/// Both peers in one process. Lines in: `A hex` and `U hex`, bytes for the application and for the upstream, and `.` to
/// let both act; lines out: the same from them, and `.`; at the end `=` and what the application saw.
const PROGRAM: &str = r#"
import sys, random
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import *
from h2.settings import SettingCodes as S
COUNT = 24
dice = random.Random(int(sys.argv[1]))
app = H2Connection(H2Configuration(client_side=True, header_encoding='utf-8'))
up = H2Connection(H2Configuration(client_side=False, header_encoding='utf-8'))
app.initiate_connection(); up.initiate_connection()
app.update_settings({S.INITIAL_WINDOW_SIZE: dice.choice([3000, 65535, 200000]), S.HEADER_TABLE_SIZE: dice.choice([0, 4096])})
up.update_settings({S.INITIAL_WINDOW_SIZE: dice.choice([3000, 65535]), S.MAX_CONCURRENT_STREAMS: 5, S.HEADER_TABLE_SIZE: dice.choice([0, 300, 4096])})
todo = {}      # (connection, stream) -> [octets left, trailers]
result, served, opened, acked = {}, {}, 0, False
number, ends = {}, {}   # of the upstream's streams: the ordinal; by ordinal: what the trailers of the request say
def feed(conn, data):
    for e in conn.receive_data(data):
        on(conn, e)
def on(conn, e):
    global acked
    if isinstance(e, SettingsAcknowledged): acked = True
    if isinstance(e, DataReceived):
        if conn is app: result[e.stream_id]['body'] += len(e.data)
        else: served[e.stream_id] += len(e.data)
        if e.flow_controlled_length: conn.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
    elif isinstance(e, RequestReceived):
        h = dict(e.headers); served[e.stream_id] = 0; number[e.stream_id] = int(h['n'])
        assert h['aft'] == 'q', h
        if int(h['n']) % 7 == 3: up.send_headers(e.stream_id, [(':status', '103'), ('link', '</x>')])
        n = int(h['n'])
        if n % 6 == 5: up.send_headers(e.stream_id, [(':status', '200'), ('grpc-status', '0'), ('n', h['n'])], end_stream=True)
        else:
            up.send_headers(e.stream_id, [(':status', '200'), ('n', h['n']), ('x-long', 'v' * dice.choice([1, 20000]))])
            todo[(up, e.stream_id)] = [dice.choice([0, 5, 20000, 90000]), n % 2 == 0]
    elif isinstance(e, ResponseReceived): result[e.stream_id]['head'] = dict(e.headers)
    elif isinstance(e, TrailersReceived) and conn is app: result[e.stream_id]['trailers'] = dict(e.headers)
    elif isinstance(e, TrailersReceived): ends[number[e.stream_id]] = dict(e.headers).get('aft', 'own')
    elif isinstance(e, StreamEnded) and conn is app: result[e.stream_id]['end'] = 'end'
    elif isinstance(e, StreamReset):
        if conn is app: result[e.stream_id].setdefault('end', 'reset %d' % e.error_code)
        todo.pop((conn, e.stream_id), None)
    elif isinstance(e, ConnectionTerminated): raise Exception('GOAWAY %r' % e)
def act():
    global opened
    if acked and opened < COUNT and app.open_outbound_streams < app.remote_settings.max_concurrent_streams and dice.random() < 0.7:
        s = app.get_next_available_stream_id(); n = opened; opened += 1
        size = dice.choice([None, 0, 10, 30000])
        result[s] = {'n': n, 'body': 0, 'upload': size is not None}
        app.send_headers(s, [(':method', 'POST'), (':scheme', 'http'), (':authority', 'svc'), (':path', '/p.S/M'), ('n', str(n))], end_stream=size is None)
        if size is not None: todo[(app, s)] = [size, n % 3 == 0]
    for (conn, s), t in list(todo.items()):
        if dice.random() < 0.4: continue
        try:
            if t[0]:
                n = min(t[0], conn.local_flow_control_window(s), conn.max_outbound_frame_size, dice.randrange(1, 16384))
                pad = 9 if n > 10 and dice.random() < 0.3 else None
                if pad: n -= 10
                if n > 0: conn.send_data(s, b'x' * n, pad_length=pad); t[0] -= n
            else:
                del todo[(conn, s)]
                if t[1]: conn.send_headers(s, [('grpc-status', '0')], end_stream=True)
                else: conn.end_stream(s)
        except Exception as e:
            if type(e).__name__ != 'StreamClosedError': raise
            todo.pop((conn, s), None)
for line in sys.stdin:
    line = line.strip()
    if line == '=':
        for s in sorted(result):
            r = result[s]; h = r.get('head', {})
            print('=', r['n'], h.get(':status'), h.get('n'), h.get('aft'), r['body'], r.get('trailers', {}).get('grpc-status'), r.get('trailers', {}).get('aft'), r['upload'], ends.get(r['n']), r.get('end'))
        print('.', flush=True); continue
    if line != '.':
        feed(app if line[0] == 'A' else up, bytes.fromhex(line[2:])); continue
    act()
    for name, conn in (('A', app), ('U', up)):
        data = conn.data_to_send()
        if data: print(name, data.hex())
    print('.' if opened < COUNT or todo or any('end' not in r for r in result.values()) else '. done', flush=True)
"#;

struct Python {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Python {
    /// `None`, said aloud, where the package is missing.
    fn start(test: &str, seed: u64) -> Option<Self> {
        let probe = Command::new("/usr/bin/python3").args(["-c", "import h2"]).stderr(Stdio::null()).status();
        if !probe.is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("AFTERSHOCK_REQUIRE_PEERS").is_none(), "{test}: needs python3-h2");
            eprintln!("SKIPPED {test}: needs python3-h2");
            return None;
        }
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", PROGRAM, &seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Some(Self { child, stdin, stdout })
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the peers are alive: their error is above");
    }

    /// Lines up to the one that starts with a dot, which is the last.
    fn hear(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.stdout.read_line(&mut line).unwrap();
            assert!(!line.is_empty(), "the peers raised an error");
            lines.push(line.trim_end().to_owned());
            if line.starts_with('.') {
                return lines;
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Faults by the request's ordinal, which is half its stream's identifier.
#[derive(Default)]
struct Faults {
    calls: Script,
    parked: Vec<StreamId>,
}

impl Interceptor for Faults {
    fn request(&mut self, stream: StreamId, head: &RequestHead<'_>) -> Verdict {
        self.calls.request(stream, head);
        match stream.0 / 2 % 8 {
            1 => {
                self.parked.push(stream);
                Verdict::Park
            }
            2 => Verdict::Act(unavailable()),
            _ => Verdict::Pass,
        }
    }

    fn response(&mut self, stream: StreamId, head: &ResponseHead<'_>) -> Verdict {
        self.calls.response(stream, head);
        match stream.0 / 2 % 8 {
            3 => {
                self.parked.push(stream);
                Verdict::Park
            }
            4 | 5 => Verdict::Withhold { limit: 1 << 20 },
            6 => Verdict::Act(made(503, &[("made", "1")], &[b'm'; 20_000])),
            7 => Verdict::Watch(Marks::from_slice(&[Mark::Bytes(4)])),
            _ => Verdict::Pass,
        }
    }

    fn reached(&mut self, stream: StreamId, _: Mark) -> Verdict {
        if stream.0 / 2 % 16 == 7 {
            return Verdict::Act(unavailable());
        }
        self.parked.push(stream);
        Verdict::Park
    }

    fn response_end(&mut self, stream: StreamId, tail: &Tail<'_>) -> Verdict {
        self.calls.response_end(stream, tail);
        if stream.0 / 2 % 8 == 5 { Verdict::Act(unavailable()) } else { Verdict::Pass }
    }

    fn stamp(&mut self, stream: StreamId, part: Part) -> Edits {
        match part {
            Part::Request => smallvec![Edit::Set("aft", "q".into())],
            Part::Response => smallvec![Edit::Set("aft", "r".into())],
            Part::RequestEnd if (stream.0 / 2).is_multiple_of(4) => smallvec![Edit::Set("aft", "z".into())],
            Part::RequestEnd => smallvec![Edit::Remove("grpc-status")],
            Part::ResponseEnd => smallvec![Edit::Set("aft", "e".into())],
        }
    }

    fn refused(&mut self, stream: StreamId, why: Refusal) {
        self.calls.refused(stream, why);
    }

    fn closed(&mut self, stream: StreamId, how: Closed) {
        self.calls.closed(stream, how);
    }
}

fn converse(test: &str, seed: u64) -> bool {
    let Some(mut python) = Python::start(test, seed) else { return false };
    let mut link = Link::new();
    let mut faults = Faults::default();
    let mut idle = 0;
    for round in 0.. {
        assert!(round < 20_000, "seed {seed}: stuck");
        python.say(".");
        let lines = python.hear();
        for line in &lines {
            match line.split_once(' ') {
                Some(("A", bytes)) => link.app_bytes(&unhex(bytes), &mut faults),
                Some(("U", bytes)) => link.upstream_bytes(&unhex(bytes), &mut faults),
                _ => {}
            }
        }
        if round % 9 == 8 && !faults.parked.is_empty() {
            let stream = faults.parked.remove(0);
            link.resume(stream, Resume::Pass, &mut faults);
        }
        let out = link.output();
        assert_eq!((out.app, out.upstream), (Fate::Open, Fate::Open), "seed {seed}");
        for (name, bytes) in [("A", out.to_app.split()), ("U", out.to_upstream.split())] {
            if !bytes.is_empty() {
                python.say(&format!("{name} {}", hex(&bytes)));
            }
        }
        // A few more rounds, so that what is still in flight is judged as well.
        idle = if lines == [". done"] { idle + 1 } else { 0 };
        if idle > 3 {
            break;
        }
    }
    python.say("=");
    let results = python.hear();
    assert_eq!(results.len(), 25, "seed {seed}");
    for line in &results[..24] {
        let words: Vec<&str> = line.split(' ').collect();
        let n: u64 = words[1].parse().unwrap();
        let [status, origin, stamp, body, outcome, end_stamp, upload, request_end] = words[2..10] else {
            panic!("{line}")
        };
        // Trailers of requests come where there is something in them, and only there.
        assert_eq!(request_end, if n.is_multiple_of(4) && upload == "True" { "z" } else { "None" }, "{line}");
        match n % 8 {
            2 => assert_eq!((status, origin, body), ("200", "None", "0"), "{line}"),
            // A trailers-only answer has no end of its own to act on.
            5 if n % 6 != 5 => assert_eq!((status, origin, body), ("200", "None", "0"), "{line}"),
            6 => assert_eq!((status, origin, body), ("503", "None", "20000"), "{line}"),
            7 if n == 7 && body != "0" => {
                assert_eq!((status, origin, stamp, body, outcome), ("200", "7", "r", "4", "14"), "{line}");
            }
            _ => {
                assert_eq!((status, origin, stamp), ("200", words[1], "r"), "{line}");
                if n % 6 != 5 {
                    assert_eq!(end_stamp, "e", "{line}");
                    assert_eq!(outcome == "0", n.is_multiple_of(2), "{line}");
                    assert!(["0", "5", "20000", "90000"].contains(&body), "{line}");
                }
            }
        }
    }
    drop(python.stdin);
    assert!(python.child.wait().unwrap().success());
    let closed = faults.calls.calls.iter().filter(|call| call.starts_with("closed")).count();
    assert_eq!(closed, 24, "seed {seed}: {:?}", faults.calls.calls);
    assert!(link.streams.is_empty(), "seed {seed}");
    true
}

#[test]
fn python_h2_at_both_ends_finds_nothing_to_object_to() {
    for seed in 0..3 {
        if !converse("python_h2_at_both_ends_finds_nothing_to_object_to", seed) {
            return;
        }
    }
}
