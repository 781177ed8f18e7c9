//! What a connection may cost: bounded memory however much passes and however slow a peer is, and all the time that a live
//! exchange takes.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use aftershock_proxy::exchange::Door;
use aftershock_proxy::link::{Listener, Router, Stop, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::frames::{PREFACE, frame, head, request};
use crate::support::process::Process;
use crate::support::sidecar::{Board, Recorder};
use crate::support::wire::{HANG, connect};

const GIB: u64 = 1 << 30;

/// Writes until the socket has taken nothing for a while; how much it took.
fn fill(stream: &mut TcpStream, most: u64) -> u64 {
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let (mut sent, block) = (0, vec![b'x'; 64 << 10]);
    let taken = loop {
        match stream.write(&block[..usize::try_from((most - sent).min(block.len() as u64)).expect("small")]) {
            Ok(0) => break sent,
            Ok(wrote) => sent += wrote as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break sent,
            Err(error) => panic!("cannot send: {error}"),
        }
    };
    stream.set_write_timeout(Some(HANG)).expect("a timeout");
    taken
}

/// Writes so much.
fn pour(stream: &mut TcpStream, mut left: u64) {
    let block = vec![b'x'; 256 << 10];
    while left > 0 {
        let part = usize::try_from(left.min(block.len() as u64)).expect("small");
        stream.write_all(&block[..part]).expect("the reader reads");
        left -= part as u64;
    }
}

/// Reads so much.
fn swallow(stream: &mut TcpStream, mut left: u64) {
    let mut buffer = vec![0; 256 << 10];
    while left > 0 {
        let most = usize::try_from(left.min(buffer.len() as u64)).expect("small");
        let read = stream.read(&mut buffer[..most]).expect("the rest comes");
        assert!(read > 0, "{left} bytes are missing");
        left -= read as u64;
    }
}

fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
}

#[test]
fn a_body_of_a_gibibyte_takes_no_memory_however_slow_its_reader_is() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let sidecar = Process::before(listener.local_addr().expect("a bound socket"), "");
    let mut client = connect(sidecar.addresses[0]);
    let (mut origin, _) = listener.accept().expect("a connection");
    origin.set_read_timeout(Some(HANG)).expect("a timeout");
    let before = sidecar.peak();
    // Up: the origin takes nothing for a while, then all of it.
    client.write_all(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {GIB}\r\n\r\n").as_bytes()).expect("open");
    let taken = fill(&mut client, GIB);
    assert!(taken < GIB / 8, "back-pressure reaches the sender");
    thread::scope(|scope| {
        scope.spawn(|| pour(&mut client, GIB - taken));
        read_head(&mut origin);
        swallow(&mut origin, GIB);
    });
    // Down: the same with the client.
    origin.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {GIB}\r\n\r\n").as_bytes()).expect("open");
    let taken = fill(&mut origin, GIB);
    assert!(taken < GIB / 8, "back-pressure reaches the sender");
    thread::scope(|scope| {
        scope.spawn(|| pour(&mut origin, GIB - taken));
        read_head(&mut client);
        swallow(&mut client, GIB);
    });
    let grown = sidecar.peak() - before;
    assert!(grown <= 2048, "{grown} KiB");
}

#[test]
fn connections_that_stand_still_take_bounded_memory_each() {
    const CONNECTIONS: u64 = 32;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let sidecar = Process::before(listener.local_addr().expect("a bound socket"), "");
    let before = sidecar.peak();
    let stuck: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let address = sidecar.addresses[0];
            let mut client = connect(address);
            let (mut origin, _) = listener.accept().expect("a connection");
            client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("open");
            origin.set_read_timeout(Some(HANG)).expect("a timeout");
            read_head(&mut origin);
            origin.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {GIB}\r\n\r\n").as_bytes()).expect("open");
            (client, origin)
        })
        .collect();
    // Their readers read nothing.
    let stuck: Vec<_> = stuck
        .into_iter()
        .map(|(client, mut origin)| {
            thread::spawn(move || {
                assert!(fill(&mut origin, GIB) < GIB);
                (client, origin)
            })
        })
        .collect();
    let _stuck: Vec<_> = stuck.into_iter().map(|thread| thread.join().expect("it filled")).collect();
    let grown = sidecar.peak() - before;
    // What waits for a peer, and one read more.
    assert!(grown <= CONNECTIONS * (256 + 64 + 64), "{grown} KiB");
}

/// Runs `what` with a sidecar in a runtime whose clock only moves when it is told to, or when nobody has anything to do but
/// wait for it.
fn with_paused_clock<F: Future<Output = ()>>(
    what: impl FnOnce(tokio::net::TcpStream, tokio::net::TcpStream) -> F + Send + 'static,
) {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            let bind = || tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
            let (socket, upstream) = (bind().await.expect("a free port"), bind().await.expect("a free port"));
            let address = socket.local_addr().expect("a bound socket");
            let upstreams = vec![upstream.local_addr().expect("a bound socket")];
            let listeners = vec![Listener::before(Door::Inbound(0), socket, upstreams)];
            let decider = Rc::new(RefCell::new(Recorder::new(Board::default())));
            tokio::task::spawn_local(serve(listeners, decider, Router::new(), Stop::new(), Duration::ZERO));
            let client = tokio::net::TcpStream::connect(address).await.expect("it listens");
            let (origin, _) = upstream.accept().await.expect("a connection");
            what(client, origin).await;
        });
        sender.send(()).expect("the test waits");
    });
    done.recv_timeout(HANG).expect("it comes to its end");
}

/// A byte an hour, each read before the next is sent.
async fn drip(from: &mut tokio::net::TcpStream, to: &mut tokio::net::TcpStream, bytes: &[u8], whole_head: bool) {
    let mut seen = Vec::new();
    for byte in bytes {
        from.write_all(&[*byte]).await.expect("open");
        tokio::time::advance(Duration::from_secs(3600)).await;
        // A head leaves when it is complete.
        if !whole_head {
            seen.push(to.read_u8().await.expect("it passes"));
        }
    }
    if whole_head {
        seen.resize(bytes.len(), 0);
        to.read_exact(&mut seen).await.expect("it passes");
    }
    assert_eq!(seen, bytes);
}

#[test]
fn no_timer_ends_an_exchange_that_is_alive() {
    with_paused_clock(|mut client, mut origin| async move {
        for _ in 0..2 {
            let request = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n";
            drip(&mut client, &mut origin, request, true).await;
            drip(&mut client, &mut origin, b"body", false).await;
            drip(&mut origin, &mut client, b"HTTP/1.1 102 Processing\r\n\r\n", true).await;
            drip(&mut origin, &mut client, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", true).await;
            drip(&mut origin, &mut client, b"body", false).await;
            // The connection is idle for a month.
            tokio::time::advance(Duration::from_secs(30 * 86_400)).await;
        }
        let upgrade = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        drip(&mut client, &mut origin, upgrade, true).await;
        drip(&mut origin, &mut client, b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", true).await;
        drip(&mut client, &mut origin, b"frames", false).await;
        tokio::time::advance(Duration::from_secs(30 * 86_400)).await;
        drip(&mut origin, &mut client, b"frames", false).await;
    });
}

#[test]
fn no_timer_ends_half_of_a_connection() {
    with_paused_clock(|mut client, mut origin| async move {
        drip(&mut client, &mut origin, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", true).await;
        client.shutdown().await.expect("open");
        assert_eq!(origin.read(&mut [0]).await.expect("a FIN"), 0);
        tokio::time::advance(Duration::from_secs(86_400)).await;
        drip(&mut origin, &mut client, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", true).await;
        drip(&mut origin, &mut client, b"body", false).await;
        drop(origin);
        assert_eq!(client.read(&mut [0]).await.expect("a FIN"), 0);
    });
}

/// Frames a day apart, until what is marked has come.
async fn carry(
    from: &mut tokio::net::TcpStream,
    to: &mut tokio::net::TcpStream,
    frames: &[u8],
    marker: &[u8],
) -> Vec<u8> {
    from.write_all(frames).await.expect("open");
    tokio::time::advance(Duration::from_secs(86_400)).await;
    let mut seen = Vec::new();
    while memchr::memmem::find(&seen, marker).is_none() {
        assert!(to.read_buf(&mut seen).await.expect("it passes") > 0, "the connection ended");
    }
    seen
}

#[test]
fn no_timer_ends_a_call_over_http_2() {
    with_paused_clock(|mut client, mut origin| async move {
        let (settings, acknowledged) = (frame(4, 0, 0, &[]), frame(4, 1, 0, &[]));
        let ok = head(1, false, &[(":status", "200")]);
        let trailers = head(1, true, &[("grpc-status", "0")]);
        let ping = |flags, text: &[u8; 8]| frame(6, flags, 0, text);
        carry(&mut client, &mut origin, &[PREFACE, &settings].concat(), PREFACE).await;
        carry(&mut client, &mut origin, &request(1, false, "POST", "/slow"), &[1, 4]).await;
        carry(&mut client, &mut origin, &frame(0, 1, 1, b"asked"), b"asked").await;
        // A server that takes its time to say hello, to answer, between messages, and with the status.
        carry(&mut origin, &mut client, &settings, &settings).await;
        carry(&mut origin, &mut client, &acknowledged, &acknowledged).await;
        carry(&mut client, &mut origin, &ping(0, b"still on"), b"still on").await;
        carry(&mut origin, &mut client, &ping(1, b"still on"), b"still on").await;
        carry(&mut origin, &mut client, &ok, &[1, 4]).await;
        carry(&mut origin, &mut client, &frame(0, 0, 1, b"first"), b"first").await;
        carry(&mut origin, &mut client, &frame(0, 0, 1, b"second"), b"second").await;
        carry(&mut origin, &mut client, &trailers, &[1, 5]).await;
        carry(&mut client, &mut origin, &request(3, true, "GET", "/next"), &[1, 5]).await;
    });
}
