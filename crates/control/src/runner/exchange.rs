//! One request over one new connection, and how it can fail. Shared by the runner and the client of the API.
//!
//! A connection serves one exchange: what happens to it then belongs to that exchange alone. Dropping the future closes
//! the connection, so that the server sees that its client went.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The largest body that is read.
pub(crate) const MAX_BODY: usize = 16 << 20;

/// A complete answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Why there was no complete answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// Not in time.
    #[error("timeout")]
    Timeout,
    /// No connection, or it ended early.
    #[error("{0}")]
    Transport(String),
    /// More than is read.
    #[error("body over {MAX_BODY} bytes")]
    TooLarge,
}

/// The HTTP version of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 by prior knowledge.
    Http2,
}

/// Sends `request` to the authority of its URI, within `timeout`.
pub(crate) async fn exchange(
    protocol: Protocol,
    request: Request<Full<Bytes>>,
    timeout: Duration,
) -> Result<Answer, ExchangeError> {
    match tokio::time::timeout(timeout, exchange_untimed(protocol, request)).await {
        Ok(result) => result,
        Err(_) => Err(ExchangeError::Timeout),
    }
}

/// As [`exchange`] over HTTP/1.1, on the connection that `connecting` makes.
pub(crate) async fn exchange_on<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connecting: impl Future<Output = io::Result<S>>,
    request: Request<Full<Bytes>>,
    timeout: Duration,
) -> Result<Answer, ExchangeError> {
    let both = async {
        let stream = connecting.await.map_err(|error| ExchangeError::Transport(io_error(&error)))?;
        converse(Protocol::Http1, stream, request).await
    };
    tokio::time::timeout(timeout, both).await.unwrap_or(Err(ExchangeError::Timeout))
}

async fn exchange_untimed(protocol: Protocol, request: Request<Full<Bytes>>) -> Result<Answer, ExchangeError> {
    let stream = connect(request.uri()).await.map_err(|error| ExchangeError::Transport(io_error(&error)))?;
    converse(protocol, stream, request).await
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    protocol: Protocol,
    stream: S,
    mut request: Request<Full<Bytes>>,
) -> Result<Answer, ExchangeError> {
    let io = TokioIo::new(stream);
    match protocol {
        Protocol::Http1 => {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(hyper_error)?;
            let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
            if let Some(host) = authority.and_then(|authority| authority.parse().ok()) {
                request.headers_mut().entry(http::header::HOST).or_insert(host);
            }
            *request.uri_mut() = origin_form(request.uri());
            driven(connection, async move { collect(sender.send_request(request).await.map_err(hyper_error)?).await })
                .await
        }
        Protocol::Http2 => {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.map_err(hyper_error)?;
            driven(connection, async move { collect(sender.send_request(request).await.map_err(hyper_error)?).await })
                .await
        }
    }
}

async fn connect(uri: &Uri) -> io::Result<TcpStream> {
    let host = uri.host().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no host in the URL"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().map(|path| Uri::from(path.clone())).unwrap_or_default()
}

/// Runs `work` while `connection` moves its bytes. What ended the connection explains a failure of the work best.
async fn driven(
    connection: impl Future<Output = Result<(), hyper::Error>>,
    work: impl Future<Output = Result<Answer, ExchangeError>>,
) -> Result<Answer, ExchangeError> {
    let (mut connection, mut work) = (pin!(connection), pin!(work));
    let mut ended = None;
    loop {
        tokio::select! {
            biased;
            result = &mut work => {
                return match (result, ended) {
                    (Err(ExchangeError::Transport(reason)), Some(Err(error))) if reason == CLOSED => Err(hyper_error(error)),
                    (result, _) => result,
                };
            }
            result = &mut connection, if ended.is_none() => ended = Some(result),
        }
    }
}

async fn collect(response: Response<Incoming>) -> Result<Answer, ExchangeError> {
    let (head, mut body) = response.into_parts();
    let (mut bytes, mut trailers) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.map_err(hyper_error)?.into_data() {
            Ok(data) if bytes.len() + data.len() > MAX_BODY => return Err(ExchangeError::TooLarge),
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok(Answer { status: head.status, headers: head.headers, body: bytes.freeze(), trailers })
}

/// The connection ended without an error of its own.
const CLOSED: &str = "connection closed";

fn hyper_error(error: hyper::Error) -> ExchangeError {
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    let mut deepest = None;
    while let Some(source) = cause {
        if let Some(io) = source.downcast_ref::<io::Error>()
            && let kind @ (io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof) = io.kind()
        {
            return ExchangeError::Transport(kind_text(kind));
        }
        deepest = Some(source.to_string());
        cause = source.source();
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return ExchangeError::Transport(CLOSED.to_owned());
    }
    ExchangeError::Transport(deepest.unwrap_or_else(|| error.to_string()))
}

fn io_error(error: &io::Error) -> String {
    match error.kind() {
        kind @ (io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionAborted) => kind_text(kind),
        _ => error.to_string(),
    }
}

fn kind_text(kind: io::ErrorKind) -> String {
    match kind {
        io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => CLOSED.to_owned(),
        io::ErrorKind::ConnectionAborted => "connection aborted".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => "connection reset".to_owned(),
    }
}
