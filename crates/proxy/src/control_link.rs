//! The sidecar's connection to its controller: one ordered connection, JSON lines both ways (design §3.6).
//!
//! The sidecar opens it by an HTTP/1.1 upgrade and opens it again, with growing pauses, when it is gone. Leases are not
//! this module's business: they end by the clock, connected or not. What is to be said while there is no connection
//! waits in the brain.

use std::io;
use std::time::Duration;

use aftershock_core::wire::{FromController, FromSidecar, Hello, MAX_LINE, PROTOCOL, UPGRADE_PATH, UPGRADE_TOKEN};
use aftershock_trust::{Endpoint, TrustError};
use bytes::{Bytes, BytesMut};
use http_body_util::Empty;
use hyper::header::{AUTHORIZATION, CONNECTION, HOST, UPGRADE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The first pause after a connection was lost; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// How long connecting, and writing what is to be said, may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("cannot connect to the controller")]
    Io(#[from] io::Error),
    #[error("the controller does not speak HTTP as expected")]
    Http(#[from] hyper::Error),
    #[error("the controller wants a valid token (`token_file`)")]
    Unauthorized,
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("the controller answered {0} instead of switching protocols")]
    Status(StatusCode),
    #[error("the controller sent what is no message of protocol version {PROTOCOL}")]
    Message(#[from] serde_json::Error),
    #[error("the controller sent a line of more than {MAX_LINE} bytes")]
    Line,
    #[error("the controller speaks protocol version {theirs} ({version}), this sidecar {PROTOCOL} ({})", env!("CARGO_PKG_VERSION"))]
    Protocol { theirs: u64, version: String },
    #[error("the controller does not take this sidecar: {0}")]
    Refused(String),
    #[error("the controller does not take what is said")]
    Slow,
    #[error("the controller closed the connection")]
    Closed,
}

/// What the connection needs of the rest of the sidecar.
pub trait Brain {
    /// A word of the controller. What it changes has taken effect when this returns: what is said after it may say so.
    fn hear(&self, word: FromController) -> impl Future<Output = ()>;
    /// What is to be said, in order.
    fn say(&self) -> Vec<FromSidecar>;
    /// Completes when there may be something to say.
    fn has_word(&self) -> impl Future<Output = ()>;
    /// The connection is gone: what waits for an answer on it will get none.
    fn cut(&self);
}

/// Keep a connection to the controller until this future is dropped.
pub async fn run(control: Endpoint, hello: Hello, brain: impl Brain) {
    let mut pause = FIRST_PAUSE;
    let mut complained = false;
    loop {
        let mut welcomed = false;
        let error = match session(&control, &hello, &brain, &mut welcomed).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        brain.cut();
        let reason = &error as &dyn std::error::Error;
        if welcomed {
            (pause, complained) = (FIRST_PAUSE, false);
            tracing::warn!(%control, reason, "lost the controller; rules end with their leases, traffic flows on");
        } else if !complained {
            complained = true;
            tracing::warn!(%control, reason, "no controller yet; traffic flows on");
        } else {
            tracing::debug!(%control, reason, "no controller yet");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

async fn session(
    control: &Endpoint,
    hello: &Hello,
    brain: &impl Brain,
    welcomed: &mut bool,
) -> Result<std::convert::Infallible, LinkError> {
    let opened = tokio::time::timeout(TIMEOUT, open(control)).await;
    let stream = opened.map_err(|_| LinkError::Io(io::ErrorKind::TimedOut.into()))??;
    let (mut reader, mut writer) = tokio::io::split(stream);
    say(&mut writer, &[FromSidecar::Hello(hello.clone())]).await?;
    let mut lines = Lines::default();
    loop {
        while let Some(line) = lines.next()? {
            if !*welcomed {
                same_protocol(&line)?;
            }
            let word: FromController = serde_json::from_slice(&line)?;
            match &word {
                FromController::Welcome { version, .. } => {
                    tracing::info!(%control, %version, "registered with the controller");
                    *welcomed = true;
                }
                FromController::Refused { reason } => return Err(LinkError::Refused(reason.clone())),
                _ => {}
            }
            brain.hear(word).await;
        }
        tokio::select! {
            read = reader.read_buf(&mut lines.buffer) => if read? == 0 {
                return Err(LinkError::Closed);
            },
            // Before the welcome there is nobody to talk to.
            () = brain.has_word(), if *welcomed => say(&mut writer, &brain.say()).await?,
        }
    }
}

/// The version is looked at first: another protocol's welcome may have another form.
fn same_protocol(line: &[u8]) -> Result<(), LinkError> {
    let value: serde_json::Value = serde_json::from_slice(line)?;
    match value["protocol"].as_u64() {
        Some(theirs) if value["say"] == "welcome" && theirs != u64::from(PROTOCOL) => {
            let version = value["version"].as_str().unwrap_or("?").chars().take(128).collect();
            Err(LinkError::Protocol { theirs, version })
        }
        _ => Ok(()),
    }
}

/// Connect and switch protocols.
async fn open(control: &Endpoint) -> Result<TokioIo<hyper::upgrade::Upgraded>, LinkError> {
    let stream = control.connect().await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "the connection to the controller ended");
        }
    });
    let mut request = Request::get(UPGRADE_PATH)
        .header(HOST, control.authority())
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, UPGRADE_TOKEN);
    if let Some(token) = control.authorization()? {
        request = request.header(AUTHORIZATION, token);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .expect("the parts are constant, or checked when the configuration was read");
    let response = sender.send_request(request).await?;
    if response.status() == StatusCode::UNAUTHORIZED {
        return Err(LinkError::Unauthorized);
    }
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(LinkError::Status(response.status()));
    }
    Ok(TokioIo::new(hyper::upgrade::on(response).await?))
}

async fn say(writer: &mut (impl AsyncWrite + Unpin), words: &[FromSidecar]) -> Result<(), LinkError> {
    let mut bytes = Vec::new();
    for word in words {
        serde_json::to_writer(&mut bytes, word)?;
        bytes.push(b'\n');
    }
    let written = tokio::time::timeout(TIMEOUT, async {
        writer.write_all(&bytes).await?;
        writer.flush().await
    });
    written.await.map_err(|_| LinkError::Slow)?.map_err(LinkError::Io)
}

/// Complete lines of what was read, each of at most [`MAX_LINE`] bytes.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: BytesMut,
    /// How much of it has no line end.
    searched: usize,
}

impl Lines {
    /// Bytes that came, for fuzzing; the connection reads into the buffer itself.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self) -> Result<Option<BytesMut>, LinkError> {
        let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return if self.searched > MAX_LINE { Err(LinkError::Line) } else { Ok(None) };
        };
        let end = self.searched + end;
        if end > MAX_LINE {
            return Err(LinkError::Line);
        }
        let mut line = self.buffer.split_to(end + 1);
        line.truncate(end);
        self.searched = 0;
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_they_arrive() {
        let text = b"one\n\ntwo three\nfour";
        for split in 0..text.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            for part in [&text[..split], &text[split..]] {
                lines.buffer.extend_from_slice(part);
                while let Some(line) = lines.next().unwrap() {
                    seen.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(seen, ["one", "", "two three"], "split at {split}");
        }
    }

    #[test]
    fn a_controller_one_version_apart_is_named_whatever_its_welcome_looks_like() {
        for theirs in [PROTOCOL - 1, PROTOCOL + 1] {
            let line = format!(r#"{{"say":"welcome","protocol":{theirs},"version":"9.9.9","keys":"of another form"}}"#);
            let error = same_protocol(line.as_bytes()).unwrap_err().to_string();
            let own = env!("CARGO_PKG_VERSION");
            let expected =
                format!("the controller speaks protocol version {theirs} (9.9.9), this sidecar {PROTOCOL} ({own})");
            assert_eq!(error, expected);
        }
        let same = format!(r#"{{"say":"welcome","protocol":{PROTOCOL}}}"#);
        assert!(same_protocol(same.as_bytes()).is_ok());
        assert!(same_protocol(br#"{"say":"refused","reason":"no"}"#).is_ok(), "its reason is told");
    }

    #[test]
    fn a_line_without_end_is_an_error_before_it_is_kept_for_long() {
        let mut lines = Lines::default();
        lines.buffer.extend_from_slice(&vec![b'x'; MAX_LINE]);
        assert!(lines.next().unwrap().is_none());
        lines.buffer.extend_from_slice(b"xx");
        assert!(matches!(lines.next(), Err(LinkError::Line)));
    }
}
