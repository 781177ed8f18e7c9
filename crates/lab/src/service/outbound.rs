//! Connections to callees: one long-lived HTTP/2 connection each, or kept-alive HTTP/1.1 connections.
//!
//! Nothing here retries what may have reached the callee: a message is only sent again if it provably never left, because
//! the kept connection turned out to be closed. Retries that can double an effect are the handler's (`client.retries`).
//! Dropping a future of this module cancels its call: RST_STREAM on HTTP/2, a closed connection on HTTP/1.1.

use std::net::SocketAddr;
use std::sync::Mutex;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::payload::MAX_MESSAGE;

pub(crate) type Message = Full<Bytes>;

/// No answer that could be read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    #[error("could not connect to {address}")]
    Connect { address: SocketAddr, source: std::io::Error },
    #[error("the connection or stream ended")]
    Exchange(#[from] hyper::Error),
    #[error("the answer broke off")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The way to one callee.
#[derive(Debug)]
pub(crate) enum Channel {
    Http1(Http1),
    Http2(Http2),
}

impl Channel {
    /// One exchange, read to the end of the answer and its trailers.
    pub(crate) async fn exchange(
        &self,
        request: Request<Message>,
    ) -> Result<(http::response::Parts, Collected<Bytes>), TransportError> {
        match self {
            Self::Http1(channel) => channel.exchange(request).await,
            Self::Http2(channel) => {
                let response = channel.send(request).await?;
                collect(response).await
            }
        }
    }
}

async fn collect(response: Response<Incoming>) -> Result<(http::response::Parts, Collected<Bytes>), TransportError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_MESSAGE).collect().await.map_err(TransportError::Body)?;
    Ok((head, body))
}

async fn connect(address: SocketAddr) -> Result<TokioIo<TcpStream>, TransportError> {
    let stream = TcpStream::connect(address).await.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
    stream.map(TokioIo::new).map_err(|source| TransportError::Connect { address, source })
}

/// One connection for all calls, made at the first one and again when it broke.
#[derive(Debug)]
pub(crate) struct Http2 {
    address: SocketAddr,
    connection: tokio::sync::Mutex<Option<http2::SendRequest<Message>>>,
}

impl Http2 {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, connection: tokio::sync::Mutex::new(None) }
    }

    /// The kept connection, or a new one and `true`.
    async fn connection(&self) -> Result<(http2::SendRequest<Message>, bool), TransportError> {
        let mut kept = self.connection.lock().await;
        if let Some(sender) = kept.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok((sender.clone(), false));
        }
        let (sender, connection) = http2::handshake(TokioExecutor::new(), connect(self.address).await?).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to callee ended");
            }
        });
        *kept = Some(sender.clone());
        Ok((sender, true))
    }

    async fn send(&self, mut request: Request<Message>) -> Result<Response<Incoming>, TransportError> {
        loop {
            let (mut sender, new) = self.connection().await?;
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => request = unsent(error, new)?,
            }
        }
    }
}

/// The request back if it never left on a kept connection; otherwise the error.
fn unsent(mut error: TrySendError<Request<Message>>, new: bool) -> Result<Request<Message>, TransportError> {
    match error.take_message() {
        Some(request) if !new => Ok(request),
        _ => Err(error.into_error().into()),
    }
}

/// Connections that are kept after an answer was read and taken again, the last used first.
#[derive(Debug)]
pub(crate) struct Http1 {
    address: SocketAddr,
    idle: Mutex<Vec<http1::SendRequest<Message>>>,
}

impl Http1 {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, idle: Mutex::default() }
    }

    fn kept(&self) -> Option<http1::SendRequest<Message>> {
        self.idle.lock().expect("no holder of this lock panics").pop()
    }

    async fn connection(&self) -> Result<(http1::SendRequest<Message>, bool), TransportError> {
        while let Some(mut sender) = self.kept() {
            if sender.ready().await.is_ok() {
                return Ok((sender, false));
            }
        }
        let (sender, connection) = http1::handshake(connect(self.address).await?).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to callee ended");
            }
        });
        Ok((sender, true))
    }

    async fn exchange(
        &self,
        mut request: Request<Message>,
    ) -> Result<(http::response::Parts, Collected<Bytes>), TransportError> {
        loop {
            let (mut sender, new) = self.connection().await?;
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let read = collect(response).await?;
                    if !sender.is_closed() {
                        self.idle.lock().expect("no holder of this lock panics").push(sender);
                    }
                    return Ok(read);
                }
                Err(error) => request = unsent(error, new)?,
            }
        }
    }
}
