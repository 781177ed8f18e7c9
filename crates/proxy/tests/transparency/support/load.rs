//! A server for much traffic, and the reading of its answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Answers every request without a body, on connections that stay open; every answer takes a little.
pub(crate) fn answer_all() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let _ = stream.set_nodelay(true);
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    request.extend_from_slice(&buffer[..read]);
                    while let Some(end) = memchr::memmem::find(&request, b"\r\n\r\n") {
                        request.drain(..end + 4);
                        thread::sleep(Duration::from_millis(1));
                        if stream.write_all(OK).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}

/// One response with a length; `None` if it does not come whole.
pub(crate) fn response(stream: &mut TcpStream) -> Option<String> {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = memchr::memmem::find(&seen, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())?;
            if seen.len() >= end + 4 + length {
                return String::from_utf8(seen).ok();
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(read) => seen.extend_from_slice(&buffer[..read]),
        }
    }
}
