//! Channels that are cut, on real sockets.

use std::io::ErrorKind::{self, ConnectionReset};

use super::*;

/// A way out of the shop that leads to a callee.
struct Channel {
    listen: SocketAddr,
    callee: TcpListener,
}

/// A connection over it, from its application to its callee.
struct Connection {
    application: TcpStream,
    callee: TcpStream,
}

impl Channel {
    /// At an address that no other process uses, with a port that no other test does.
    async fn new(port: u16) -> Self {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let listen = SocketAddr::from(([127, a | 0x80, b, c], port));
        Channel { listen, callee: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    /// Its line of configuration.
    fn line(&self, callee: &str) -> String {
        format!("  - {{listen: '{}', callee: {callee}, to: ['{}']}}\n", self.listen, self.callee.local_addr().unwrap())
    }

    async fn open(&self) -> Connection {
        let application = TcpStream::connect(self.listen).await.unwrap();
        let (callee, _) = self.callee.accept().await.unwrap();
        Connection { application, callee }
    }

    /// What becomes of a new connection on which `said` is said.
    async fn refuses(&self, said: &[u8]) -> ErrorKind {
        let mut application = TcpStream::connect(self.listen).await.unwrap();
        let _ = application.write_all(said).await;
        end(&mut application).await
    }
}

impl Connection {
    async fn ask(&mut self, said: &[u8]) {
        self.application.write_all(said).await.unwrap();
        let (_, last) = said.split_last_chunk::<4>().unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(last) {
            assert!(self.callee.read_buf(&mut heard).await.unwrap() > 0, "{}", String::from_utf8_lossy(&heard));
        }
    }

    async fn answer(&mut self, said: &[u8]) {
        self.callee.write_all(said).await.unwrap();
        let mut heard = vec![0; said.len()];
        self.application.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, said);
    }

    async fn is_answered(&mut self) {
        self.ask(GET).await;
        self.answer(OK).await;
    }

    /// How its application and its callee see it end.
    async fn ends(mut self) -> [ErrorKind; 2] {
        [end(&mut self.application).await, end(&mut self.callee).await]
    }
}

/// How the bytes of a connection end; a FIN is an unexpected end.
async fn end(stream: &mut TcpStream) -> ErrorKind {
    loop {
        match stream.read(&mut [0; 4096]).await {
            Ok(0) => return ErrorKind::UnexpectedEof,
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

const GET: &[u8] = b"GET /stock HTTP/1.1\r\nhost: h\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const HALF: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal";
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const TLS: &[u8] = b"\x16\x03\x01 a greeting";

fn cutting(callee: &str, lease: Duration) -> FromController {
    FromController::Arm(Arm { cuts: [callee.parse().unwrap()].into(), ..Arm::clean(ROUND, lease) })
}

#[test]
fn a_cut_breaks_open_connections_and_refuses_new_ones_until_it_ends() {
    on_stage(async {
        let (payment, stock) = (Channel::new(4001).await, Channel::new(4002).await);
        let outbound = format!("outbound:\n{}{}", payment.line("payment"), stock.line("stock"));
        let (stage, mut session) = Stage::with(true, &outbound).await;
        let mut untouched = stock.open().await;
        untouched.is_answered().await;

        let silent = payment.open().await;
        let mut idle = payment.open().await;
        idle.is_answered().await;
        let mut waiting = payment.open().await;
        waiting.ask(GET).await;
        let mut halfway = payment.open().await;
        halfway.ask(GET).await;
        halfway.answer(HALF).await;
        let mut http2 = payment.open().await;
        http2.ask(HTTP2).await;
        let mut opaque = payment.open().await;
        opaque.ask(TLS).await;
        opaque.answer(TLS).await;

        session.say(&cutting("payment", LONG)).await;
        assert_eq!(session.hear().await, FromSidecar::Armed { token: ROUND });
        for (connection, is) in [
            (silent, "silent"),
            (idle, "idle"),
            (waiting, "waiting for an answer"),
            (halfway, "within an answer"),
            (http2, "HTTP/2"),
            (opaque, "opaque"),
        ] {
            assert_eq!(connection.ends().await, [ConnectionReset; 2], "a connection that is {is}");
        }
        for said in [GET, HTTP2, TLS, b""] {
            assert_eq!(payment.refuses(said).await, ConnectionReset, "{}", String::from_utf8_lossy(said));
        }
        untouched.is_answered().await;

        session.say(&FromController::Disarm { token: ROUND }).await;
        session.expect(|word| (word == FromSidecar::Disarmed { token: ROUND }).then_some(())).await;
        let mut healed = payment.open().await;
        healed.is_answered().await;
        untouched.is_answered().await;

        session.say(&cutting("payment", Duration::from_millis(50))).await;
        session.expect(|word| (word == FromSidecar::Lapsed { token: ROUND }).then_some(())).await;
        assert_eq!(healed.ends().await, [ConnectionReset; 2]);
        payment.open().await.is_answered().await;
        stage.stop().await;
    });
}
