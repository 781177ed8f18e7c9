//! A plain HTTP/1.1 client, one connection per request.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Status and JSON body of one exchange.
pub(crate) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> (u16, Value) {
    try_send(address, request).await.unwrap()
}

/// The same, of a service that may not answer.
pub(crate) async fn try_send(address: SocketAddr, request: Request<Full<Bytes>>) -> hyper::Result<(u16, Value)> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        drop(sender);
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    };
    futures_util::future::join(exchange, connection).await.0
}

pub(crate) fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut builder = Request::builder().method(method).uri(target).header("host", "shop");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::default()).unwrap()
}

pub(crate) async fn get(address: SocketAddr, target: &str) -> (u16, Value) {
    send(address, request("GET", target, &[])).await
}

pub(crate) async fn post(address: SocketAddr, target: &str) -> (u16, Value) {
    send(address, request("POST", target, &[])).await
}
