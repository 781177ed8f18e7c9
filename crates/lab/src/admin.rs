//! Reading a service's state over HTTP.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

/// Why a service's state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The service is not there.
    #[error("cannot connect to {address}")]
    Connect {
        /// The service's admin address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The exchange broke off.
    #[error("no answer from {address}")]
    Exchange {
        /// The service's admin address.
        address: SocketAddr,
        /// Why.
        source: hyper::Error,
    },
    /// It answered an error.
    #[error("{address} answered {status}: {body}")]
    Refused {
        /// The service's admin address.
        address: SocketAddr,
        /// The status.
        status: StatusCode,
        /// What it said.
        body: String,
    },
    /// It answered something else.
    #[error("{address} answered something else than expected")]
    Malformed {
        /// The service's admin address.
        address: SocketAddr,
        /// What was wrong.
        source: serde_json::Error,
    },
    /// The topology has no such thing.
    #[error("{0}")]
    Unknown(String),
}

/// `GET path?key=…`, as JSON.
pub(crate) async fn get<T: DeserializeOwned>(address: SocketAddr, path: &str, key: &str) -> Result<T, AdminError> {
    let target = format!("{path}?key={}", utf8_percent_encode(key, NON_ALPHANUMERIC));
    let body = fetch(address, &target).await?;
    serde_json::from_slice(&body).map_err(|source| AdminError::Malformed { address, source })
}

/// Whether the process that listens at `address` is this one.
pub(crate) async fn answers_as(address: SocketAddr, pid: u32) -> bool {
    match fetch(address, "/healthz").await.map(|body| serde_json::from_slice::<serde_json::Value>(&body)) {
        Ok(Ok(health)) => health.get("pid").and_then(serde_json::Value::as_u64) == Some(u64::from(pid)),
        _ => false,
    }
}

async fn fetch(address: SocketAddr, target: &str) -> Result<Bytes, AdminError> {
    match exchange(address, Method::GET, target).await? {
        (StatusCode::OK, body) => Ok(body),
        (status, body) => {
            Err(AdminError::Refused { address, status, body: String::from_utf8_lossy(&body).into_owned() })
        }
    }
}

/// One request without a body, on a connection of its own.
pub(crate) async fn exchange(
    address: SocketAddr,
    method: Method,
    target: &str,
) -> Result<(StatusCode, Bytes), AdminError> {
    let stream = TcpStream::connect(address).await.map_err(|source| AdminError::Connect { address, source })?;
    let exchange = |source| AdminError::Exchange { address, source };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(exchange)?;
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header(http::header::HOST, address.to_string())
        .header(http::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("an escaped path and an address");
    let ask = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    };
    // The connection is driven here and not on a task: it ends with the exchange.
    let (asked, _) = futures_util::future::join(ask, connection).await;
    asked.map_err(exchange)
}
