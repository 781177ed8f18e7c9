//! The two listeners of a service: the application's own, and the one on which its state is read.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use super::context::Context;
use super::handler::{Answer, Inbound, answer};
use super::payload::{Caller, MAX_MESSAGE, Payload, query_fields};
use super::{Body, Process, grpc};
use crate::events::{History, Ledger};
use crate::file::Protocol;
use crate::scalar::{GrpcCode, Status};
use crate::topology::{Api, Operation, Propagation};

/// Accepts the application's connections until the process ends.
pub(crate) async fn serve_application(process: Arc<Process>, listener: TcpListener) {
    accept(listener, move |stream| {
        let process = process.clone();
        async move {
            let io = TokioIo::new(stream);
            let protocol = process.protocol;
            let service = service_fn(move |request| {
                let process = process.clone();
                async move {
                    Ok::<_, Infallible>(match protocol {
                        Protocol::Http1 => http(process, request).await,
                        Protocol::Grpc => grpc(process, request).await,
                    })
                }
            });
            match protocol {
                Protocol::Http1 => http1::Builder::new().serve_connection(io, service).await,
                Protocol::Grpc => http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await,
            }
        }
    })
    .await;
}

/// Accepts connections that ask for ledgers, events and health until the process ends.
pub(crate) async fn serve_state(process: Arc<Process>, listener: TcpListener) {
    accept(listener, move |stream| {
        let process = process.clone();
        let service = service_fn(move |request| {
            let process = process.clone();
            async move { Ok::<_, Infallible>(state(&process, &request).await) }
        });
        http1::Builder::new().serve_connection(TokioIo::new(stream), service)
    })
    .await;
}

async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = Result<(), hyper::Error>> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection was gone at once");
                    continue;
                }
                let connection = serve(stream);
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "connection ended");
                    }
                });
            }
            // Out of descriptors: wait for connections to end instead of spinning.
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        }
    }
}

async fn read(body: Incoming) -> Result<Bytes, String> {
    let read = Limited::new(body, MAX_MESSAGE).collect().await;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| format!("the request broke off: {error}"))
}

async fn http(process: Arc<Process>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let Some(api) = process.http_api(head.method.as_str(), head.uri.path()).cloned() else {
        let error = format!("{} has no operation {} {}", process.service, head.method, head.uri.path());
        return json_response(StatusCode::NOT_FOUND, &json!({ "error": error }));
    };
    let payload = match read(body).await {
        Ok(body) => Payload::from_http(head.uri.query(), &body, &process.topology.params),
        Err(error) => Err(error),
    };
    match payload {
        Err(error) => json_response(StatusCode::BAD_REQUEST, &json!({ "error": error })),
        Ok(payload) => {
            let (answer, message) = respond(process, api, payload, &head.headers).await;
            let Status::Http(code) = answer.status else { unreachable!("an HTTP service's statuses are HTTP's") };
            json_response(StatusCode::from_u16(code).expect("files have statuses from 200 to 599"), &message)
        }
    }
}

async fn grpc(process: Arc<Process>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let is_grpc = head.headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    if !is_grpc {
        return json_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, &json!({"error": "expected application/grpc"}));
    }
    let method = head.uri.path().trim_start_matches('/');
    if method == "grpc.health.v1.Health/Check" {
        // HealthCheckResponse { status: SERVING }.
        return grpc::success(&[0x08, 0x01]);
    }
    let Some(api) = process.grpc_api(method).cloned() else {
        return grpc::error(GrpcCode::Unimplemented, &format!("{} has no method {method}", process.service));
    };
    let payload = match read(body).await {
        Ok(stream) => grpc::unframe(&stream)
            .map_err(str::to_owned)
            .and_then(|message| Payload::from_json(message, &process.topology.params)),
        Err(error) => Err(error),
    };
    match payload {
        Err(error) => grpc::error(GrpcCode::InvalidArgument, &error),
        Ok(payload) => {
            let (answer, message) = respond(process, api, payload, &head.headers).await;
            match answer.status {
                Status::Grpc(GrpcCode::Ok) => grpc::success(message.to_string().as_bytes()),
                Status::Grpc(code) => grpc::error(code, answer.cause.as_deref().unwrap_or_default()),
                Status::Http(_) => unreachable!("a gRPC service's statuses are gRPC's"),
            }
        }
    }
}

async fn respond(
    process: Arc<Process>,
    api: Api,
    payload: Payload,
    headers: &http::HeaderMap,
) -> (Answer, serde_json::Value) {
    let caller = payload.caller.unwrap_or_else(|| Caller {
        service: "client".into(),
        call: format!("client.{}", process.next_call()),
        parent: None,
        index: 1,
        attempt: 1,
    });
    let context = Context::of(headers, process.propagation.unwrap_or(Propagation::None));
    let inbound = Inbound { key: payload.key, overrides: payload.params, caller, context, inputs: payload.inputs };
    answer(process, api, inbound).await
}

/// `GET /healthz`, `/events?key=`, `/ledgers/{name}?key=`, and for the other instances `/histories/{name}?key=`.
async fn state(process: &Process, request: &Request<Incoming>) -> Response<Body> {
    let key = request.uri().query().map(query_fields).unwrap_or_default().remove("key");
    let no_key = || json_response(StatusCode::BAD_REQUEST, &json!({"error": "expected `?key=`"}));
    if request.method() != http::Method::GET {
        return json_response(StatusCode::METHOD_NOT_ALLOWED, &json!({"error": "expected GET"}));
    }
    if let Some(error) = process.memory.failure() {
        return json_response(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": error }));
    }
    match request.uri().path() {
        "/healthz" => json_response(StatusCode::OK, &json!({"service": process.service, "pid": std::process::id()})),
        "/events" => match key {
            Some(key) => json_response(StatusCode::OK, &process.memory.events(&key)),
            None => no_key(),
        },
        path => {
            let whole = path.strip_prefix("/ledgers/").map(|name| (name, true));
            let Some((name, whole)) = whole.or_else(|| path.strip_prefix("/histories/").map(|name| (name, false)))
            else {
                let error = "expected /healthz, /events?key= or /ledgers/{name}?key=";
                return json_response(StatusCode::NOT_FOUND, &json!({ "error": error }));
            };
            let Some(key) = key else { return no_key() };
            if !process.keeps(name) {
                let error = format!("{} keeps no ledger `{name}`", process.service);
                return json_response(StatusCode::NOT_FOUND, &json!({ "error": error }));
            }
            let own = process.memory.history(name, &key);
            if !whole {
                return json_response(StatusCode::OK, &own);
            }
            let path = format!("/histories/{name}");
            let others = process.replicas.iter().map(|admin| crate::admin::get::<History>(*admin, &path, &key));
            match futures_util::future::try_join_all(others).await {
                Ok(others) => {
                    let all = others.into_iter().chain([own]);
                    json_response(StatusCode::OK, &Ledger::of(name, &key, all))
                }
                Err(error) => json_response(StatusCode::BAD_GATEWAY, &json!({"error": format!("a replica: {error}")})),
            }
        }
    }
}

fn json_response(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(value).expect("its map keys are strings");
    let mut response = Response::new(Full::new(Bytes::from(body)).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl Process {
    fn http_api(&self, method: &str, path: &str) -> Option<&Api> {
        let matching = self.own_apis().filter_map(|api| match &api.operation {
            Operation::Http(route) if route.matches(method, path) => Some((route.precedence(), api)),
            _ => None,
        });
        matching.min_by(|a, b| a.0.cmp(&b.0)).map(|(_, api)| api)
    }

    fn grpc_api(&self, method: &str) -> Option<&Api> {
        self.own_apis().find(|api| matches!(&api.operation, Operation::Grpc(own) if own == method))
    }
}
