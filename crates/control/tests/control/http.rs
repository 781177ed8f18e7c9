//! A client of one request per connection, plain enough to send anything.

use std::net::SocketAddr;

use aftershock_control::api::ApiError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Where the controller listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api(pub(crate) SocketAddr);

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body of a 200.
    pub(crate) fn ok<T: DeserializeOwned>(&self) -> T {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The error of an answer with this status.
    pub(crate) fn error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let error: ApiError =
            serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()));
        error.error
    }

    pub(crate) fn text(&self) -> String {
        format!("{}\n{}", self.head, String::from_utf8_lossy(&self.body))
    }
}

impl Api {
    pub(crate) async fn get(self, path: &str) -> Answer {
        self.send("GET", path, "", b"").await
    }

    pub(crate) async fn post(self, path: &str, body: &impl Serialize) -> Answer {
        let body = serde_json::to_vec(body).unwrap();
        self.send("POST", path, "content-type: application/json\r\n", &body).await
    }

    /// `headers` with their line ends.
    pub(crate) async fn send(self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            self.0,
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat()).await
    }

    /// Send these bytes, read to the end.
    pub(crate) async fn raw(self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.0).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        // A server that refuses early stops reading: what it answers counts all the same.
        let write = async { drop(writer.write_all(request).await) };
        let mut bytes = Vec::new();
        let read = async { drop(reader.read_to_end(&mut bytes).await) };
        tokio::join!(write, read);
        let split = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let split = split.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(&bytes)));
        let head = String::from_utf8_lossy(&bytes[..split]).into_owned();
        let status = head[9..12].parse().unwrap();
        let body = bytes[split + 4..].to_vec();
        Answer { status, head, body }
    }
}
