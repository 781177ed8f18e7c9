//! One sidecar's connection: lines of JSON both ways, over an upgraded HTTP/1.1 connection (`core::wire`).
//!
//! The first line is its hello. What is no message of the protocol ends the connection; the sidecar is told why.

use std::sync::Arc;
use std::time::Duration;

use aftershock_core::wire::{FromController, FromSidecar, Hello, MAX_LINE, PROTOCOL};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use crate::hub::Hub;
use crate::registry::Outgoing;

/// A connection that does not say hello within this time is closed.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// What is left of a closing connection is written within this time.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("a line is longer than {MAX_LINE} bytes")]
    TooLong,
    #[error("expected a message of protocol {PROTOCOL}: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("nothing was said within {} s, expected `hello`", HELLO_WITHIN.as_secs())]
    Silent,
    #[error("expected `hello` first and only once")]
    Hello,
    #[error(
        "the sidecar of {service} (version {version}) speaks protocol {theirs}, this controller (version {}) speaks \
         protocol {PROTOCOL}",
        env!("CARGO_PKG_VERSION")
    )]
    Protocol { service: String, version: String, theirs: u64 },
    #[error("it does not read what it is sent, or it connected anew")]
    Kicked,
}

/// Serve one connection to its end.
pub(crate) async fn attend<I: AsyncRead + AsyncWrite + Unpin>(hub: Arc<Hub>, io: I) {
    hub.look().links += 1;
    converse(&hub, io).await;
    hub.change(|state| state.links -= 1);
}

async fn converse<I: AsyncRead + AsyncWrite + Unpin>(hub: &Hub, io: I) {
    let (reader, mut writer) = tokio::io::split(io);
    let mut reader = BufReader::new(reader);
    let hello = match timeout(HELLO_WITHIN, hello(&mut reader)).await.unwrap_or(Err(LinkError::Silent)) {
        Ok(Some(hello)) => hello,
        Ok(None) => return,
        Err(error) => {
            if let LinkError::Protocol { service, .. } = &error {
                hub.look().refuse(service, error.to_string());
            }
            return refuse(&mut writer, &error).await;
        }
    };
    let observer = hello.observer;
    let service = hello.service.clone();
    let mut outgoing = hub.register(hello);
    let connection = outgoing.connection;
    let ended = tokio::select! {
        ended = hear(hub, observer, connection, &mut reader) => ended,
        ended = speak(&mut outgoing, &mut writer) => ended,
    };
    hub.deregister(observer, connection);
    if let Err(error) = ended {
        tracing::warn!(%service, %observer, %error, "sidecar disconnected");
        refuse(&mut writer, &error).await;
    }
}

async fn hello(reader: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Hello>, LinkError> {
    let Some(line) = line(reader).await? else { return Ok(None) };
    // The version is looked at first: another protocol's hello may have another form.
    let value: serde_json::Value = serde_json::from_slice(&line)?;
    let text = |key: &str| value[key].as_str().unwrap_or("?").chars().take(128).collect::<String>();
    if value["say"] == "hello"
        && let Some(theirs) = value["protocol"].as_u64()
        && theirs != u64::from(PROTOCOL)
    {
        return Err(LinkError::Protocol { service: text("service"), version: text("version"), theirs });
    }
    match serde_json::from_value(value)? {
        FromSidecar::Hello(hello) => Ok(Some(hello)),
        _ => Err(LinkError::Hello),
    }
}

async fn hear(
    hub: &Hub,
    observer: aftershock_core::id::ObserverId,
    connection: u64,
    reader: &mut (impl AsyncBufRead + Unpin),
) -> Result<(), LinkError> {
    while let Some(line) = line(reader).await? {
        if !hub.hear(observer, connection, serde_json::from_slice(&line)?) {
            return Err(LinkError::Hello);
        }
    }
    Ok(())
}

async fn speak(outgoing: &mut Outgoing, writer: &mut (impl AsyncWrite + Unpin)) -> Result<(), LinkError> {
    let kick = Arc::clone(&outgoing.kick);
    let write = async {
        while let Some(message) = outgoing.messages.recv().await {
            write_line(writer, &message).await?;
            // What is waiting goes with it.
            while let Ok(message) = outgoing.messages.try_recv() {
                write_line(writer, &message).await?;
            }
            writer.flush().await?;
        }
        // The controller ends; everything was written.
        writer.shutdown().await?;
        Ok(())
    };
    tokio::select! {
        ended = write => ended,
        () = kick.notified() => Err(LinkError::Kicked),
    }
}

async fn write_line(writer: &mut (impl AsyncWrite + Unpin), message: &FromController) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message).expect("messages have text keys only");
    line.push(b'\n');
    writer.write_all(&line).await
}

async fn refuse(writer: &mut (impl AsyncWrite + Unpin), error: &LinkError) {
    tracing::debug!(%error, "sidecar refused");
    let refused = FromController::Refused { reason: error.to_string() };
    let _ = timeout(GOODBYE_WITHIN, async {
        write_line(writer, &refused).await?;
        writer.shutdown().await
    })
    .await;
}

/// The next line without its end, of at most [`MAX_LINE`] bytes; none at the end of the connection. A last line without
/// an end was cut off and does not count.
async fn line(reader: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Vec<u8>>, LinkError> {
    let mut line = Vec::new();
    loop {
        let available = reader.fill_buf().await?;
        if available.is_empty() {
            return Ok(None);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        if line.len() + part.len() > MAX_LINE {
            return Err(LinkError::TooLong);
        }
        line.extend_from_slice(part);
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(bytes: &[u8], capacity: usize) -> (Vec<Vec<u8>>, Option<String>) {
        let mut reader = BufReader::with_capacity(capacity, bytes);
        let mut found = Vec::new();
        loop {
            match line(&mut reader).await {
                Ok(Some(line)) => found.push(line),
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error.to_string())),
            }
        }
    }

    #[tokio::test]
    async fn lines_are_the_same_however_the_bytes_arrive() {
        for capacity in 1..12 {
            let (found, error) = lines(b"one\n\ntwo three\ncut off", capacity).await;
            assert_eq!(found, [b"one".to_vec(), b"".to_vec(), b"two three".to_vec()]);
            assert_eq!(error, None);
        }
    }

    #[tokio::test]
    async fn a_line_longer_than_the_limit_is_refused_before_it_ends() {
        let mut bytes = vec![b'x'; MAX_LINE];
        bytes.push(b'\n');
        assert_eq!(lines(&bytes, 8192).await.0.len(), 1);
        let (found, error) = lines(&vec![b'x'; MAX_LINE + 1], 8192).await;
        assert_eq!((found.len(), error), (0, Some(format!("a line is longer than {MAX_LINE} bytes"))));
    }
}
