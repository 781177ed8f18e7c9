//! HTTP/2 on raw sockets: what one stream does to its neighbours, and what one connection does to the sidecar and others.
//!
//! Order is measured, never time. A flood must end or stall its connection and cost a bounded amount of memory.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use aftershock_proxy::exchange::{Act, Resume, Verdict};

use crate::support::frames::{self, Frames, frame};
use crate::support::peers::{Nghttpd, has_nghttpd, present};
use crate::support::process::Process;
use crate::support::sidecar::{Board, Point, Sidecar};

const MAX_WINDOW: u32 = (1 << 31) - 1;

#[test]
fn neighbours_of_parked_and_dropped_streams_go_on() {
    let test = "neighbours_of_parked_and_dropped_streams_go_on";
    if !present(test, "nghttp2-server", has_nghttpd()) {
        return;
    }
    for (point, note) in [(Point::Request, "1.1 request POST /small.txt"), (Point::Response, "1.1 response 200")] {
        for act in [Verdict::Park, Verdict::Act(Act::Drop)] {
            let parks = act == Verdict::Park;
            let server = Nghttpd::start(&[]);
            let board = Board::default().only(" POST ").at(point, act);
            let sidecar = Sidecar::recording(&[server.address], &board);
            let mut client = Frames::connect(sidecar.address, &[(4, 1 << 20)]);
            client.send(&frame(8, 0, 0, &(64u32 << 20).to_be_bytes()));
            // Its body fills the connection's window, so that whoever follows needs what it used.
            client.request(1, false, "POST", "/small.txt");
            client.body(1, 60_000, true);
            board.wait(note);
            for stream in [3, 5, 7] {
                client.request(stream, false, "PUT", "/small.txt");
                client.body(stream, 60_000, true);
            }
            let ended = client.until_ended(&[3, 5, 7]);
            assert!(!ended.contains(&1), "{point:?}: it is kept");
            sidecar.resume(1, 1, if parks { Resume::Pass } else { Resume::Close });
            client.until_ended(&[1]);
            board.wait(if parks { "1.1 closed Complete" } else { "1.1 closed ByFault" });
        }
    }
}

#[test]
fn a_stream_whose_reader_is_slow_does_not_stop_the_others() {
    let test = "a_stream_whose_reader_is_slow_does_not_stop_the_others";
    if !present(test, "nghttp2-server", has_nghttpd()) {
        return;
    }
    let server = Nghttpd::start(&[]);
    let sidecar = Process::before(server.address, "");
    // Streams begin without a window; the connection's is never the reason to wait.
    let mut client = Frames::connect(sidecar.addresses[0], &[(4, 0)]);
    client.send(&frame(8, 0, 0, &(64u32 << 20).to_be_bytes()));
    for stream in [1, 3, 5] {
        client.request(stream, true, "GET", "/large.txt");
    }
    client.send(&frame(8, 0, 3, &(1u32 << 20).to_be_bytes()));
    assert_eq!(client.until_ended(&[3]), [3]);
    client.send(&frame(8, 0, 5, &(1u32 << 20).to_be_bytes()));
    assert_eq!(client.until_ended(&[5]), [5]);
    client.send(&frame(8, 0, 1, &(1u32 << 20).to_be_bytes()));
    assert_eq!(client.until_ended(&[1]), [1]);
}

/// An origin that answers every request and then sends as much as the windows allow; how much it has got rid of.
fn gushing() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let counter = counter.clone();
            thread::spawn(move || gush(stream, &counter));
        }
    });
    (address, sent)
}

fn gush(mut stream: TcpStream, sent: &AtomicUsize) {
    let (mut buffer, mut seen) = ([0; 65_536], Vec::new());
    let _ = stream.write_all(&frame(4, 0, 0, &[]));
    let _ = stream.write_all(&frame(4, 1, 0, &[]));
    while frames::kinds(seen.get(frames::PREFACE.len()..).unwrap_or_default()).filter(|kind| *kind == 1).count() < 100 {
        let Ok(read @ 1..) = stream.read(&mut buffer) else { return };
        seen.extend_from_slice(&buffer[..read]);
    }
    for id in 0..100 {
        let _ = stream.write_all(&frame(1, 4, 2 * id + 1, &[0x88]));
    }
    let piece = [0; 16_384];
    loop {
        for id in 0..100 {
            if stream.write_all(&frame(0, 0, 2 * id + 1, &piece)).is_err() {
                return;
            }
            sent.fetch_add(piece.len(), Ordering::Relaxed);
        }
    }
}

#[test]
fn what_a_slow_connection_costs_is_bounded() {
    let (origin, sent) = gushing();
    let sidecar = Process::before(origin, "");
    let before = sidecar.resident();
    // It allows everything and reads nothing.
    let mut slow = Frames::connect(sidecar.addresses[0], &[(4, MAX_WINDOW)]);
    slow.send(&frame(8, 0, 0, &(MAX_WINDOW - 65_535).to_be_bytes()));
    for id in 0..100 {
        slow.request(2 * id + 1, true, "GET", "/gush");
    }
    // Until nothing moves any more: the origin's count has stood still for a while.
    let mut last = usize::MAX;
    while last != sent.load(Ordering::Relaxed) || last == 0 {
        last = sent.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(200));
    }
    // Sockets hold some megabytes; the sidecar less than one.
    assert!(last < 64 << 20, "{last} octets went out of the origin");
    let grown = sidecar.resident().saturating_sub(before);
    assert!(grown < 4 << 20, "the sidecar grew by {grown} octets");
    // The memory is given to whoever reads.
    let mut read = 0;
    slow.while_reading(|octets| {
        read += octets;
        read < 2 * last
    });
    assert!(sent.load(Ordering::Relaxed) > last, "it goes on");
}

/// How a connection that floods ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// GOAWAY with this code, or a close without one.
    Goaway(Option<u32>),
    /// Nobody read on, so it cost nothing more.
    Stalled,
    /// All of it was taken.
    Taken,
}

/// Sends `times` floods without reading, or until the sidecar has had enough.
fn flood(sidecar: SocketAddr, times: u32, mut next: impl FnMut(u32) -> Vec<u8>) -> End {
    let mut client = Frames::connect(sidecar, &[]);
    client.stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let mut batch = Vec::new();
    for n in 0..times {
        batch.extend(next(n));
        if batch.len() > 16_384 || n + 1 == times {
            match client.stream.write_all(&batch) {
                Ok(()) => batch.clear(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return End::Stalled;
                }
                Err(_) => return End::Goaway(client.goaway()),
            }
        }
    }
    client.stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    match client.ended() {
        true => End::Goaway(client.goaway()),
        false => End::Taken,
    }
}

#[test]
fn published_floods_end_their_connection_and_nothing_else() {
    let test = "published_floods_end_their_connection_and_nothing_else";
    if !present(test, "nghttp2-server", has_nghttpd()) {
        return;
    }
    type Flood = fn(u32) -> Vec<u8>;
    const CALM: Option<u32> = Some(11);
    let floods: [(&str, u32, Flood, &[End]); 11] = [
        // nghttpd judges what passes.
        (
            "CVE-2023-44487, rapid reset",
            40_000,
            |n| [frames::request(2 * n + 1, true, "GET", "/small.txt"), frame(3, 0, 2 * n + 1, &[0, 0, 0, 8])].concat(),
            &[End::Goaway(Some(2)), End::Goaway(CALM), End::Goaway(None), End::Stalled],
        ),
        (
            "CVE-2024-27316 and its kin, CONTINUATION without end",
            40_000,
            |n| if n == 0 { frame(1, 0, 1, &[]) } else { frame(9, 0, 1, &[0x82; 8]) },
            &[End::Goaway(CALM)],
        ),
        (
            "the same with empty frames",
            40_000,
            |n| if n == 0 { frame(1, 0, 1, &[]) } else { frame(9, 0, 1, &[]) },
            &[End::Goaway(CALM)],
        ),
        ("CVE-2019-9512, PING", 1_000_000, |_| frame(6, 0, 0, b"flooding"), &[End::Stalled, End::Goaway(None)]),
        (
            "CVE-2019-9515, SETTINGS",
            40_000,
            |_| frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]),
            &[End::Goaway(CALM), End::Stalled],
        ),
        (
            "CVE-2019-9518, empty DATA",
            40_000,
            |n| if n == 0 { frames::request(1, false, "POST", "/small.txt") } else { frame(0, 0, 1, &[]) },
            &[End::Goaway(CALM)],
        ),
        ("CVE-2019-9513, PRIORITY", 40_000, |n| frame(2, 0, 2 * n + 1, &[0, 0, 0, 0, 1]), &[End::Goaway(CALM)]),
        (
            "CVE-2019-9514, requests that must be reset",
            40_000,
            |n| frame(1, 5, 2 * n + 1, &[0x82]),
            &[End::Goaway(CALM), End::Goaway(Some(2)), End::Goaway(None), End::Stalled],
        ),
        (
            "CVE-2016-1546 and its kin, a window of nothing",
            40_000,
            |n| {
                if n == 0 {
                    frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])
                } else {
                    frames::request(2 * n + 1, true, "GET", "/large.txt")
                }
            },
            // With more than a thousand refusals unread nghttp2 closes the connection without a word.
            &[End::Taken, End::Stalled, End::Goaway(CALM), End::Goaway(None)],
        ),
        (
            "CVE-2016-6581, HPACK bomb",
            40_000,
            |n| {
                if n == 0 {
                    // A field of 3,900 octets enters the table.
                    let mut block = vec![0x40, 1, b'x', 0x7f, 0xbd, 0x1d];
                    block.extend([b'y'; 3900]);
                    frame(1, 5, 1, &block)
                } else {
                    frame(1, 5, 2 * n + 1, &[0xbe; 16_000])
                }
            },
            &[End::Goaway(CALM)],
        ),
        ("WINDOW_UPDATE beyond 2^31-1", 40_000, |_| frame(8, 0, 0, &MAX_WINDOW.to_be_bytes()), &[End::Goaway(Some(3))]),
    ];
    let server = Nghttpd::start(&[]);
    let sidecar = Process::before(server.address, "");
    let address = sidecar.addresses[0];
    let mut other = Frames::connect(address, &[]);
    let mut asked = 1;
    let mut others = |what: &str| {
        other.request(asked, true, "GET", "/small.txt");
        assert_eq!(other.until_ended(&[asked]), [asked], "another connection during {what}");
        asked += 2;
    };
    others("nothing");
    let before = sidecar.resident();
    for (what, times, next, expected) in floods {
        let end = flood(address, times, next);
        assert!(expected.contains(&end), "{what}: {end:?}");
        others(what);
        let grown = sidecar.resident().saturating_sub(before);
        assert!(grown < 24 << 20, "{what}: the sidecar grew by {grown} octets");
    }
}
