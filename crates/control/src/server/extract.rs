//! What comes in and what goes wrong, as JSON: extractors whose rejections are [`ApiError`]s, too.

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{StatusCode, header};
use serde::de::DeserializeOwned;

use crate::api::{ApiError, RoundId};
use crate::rounds::RoundError;
use crate::store::StoreError;

/// An answer that is not 2xx.
#[derive(Debug)]
pub(super) struct Failed {
    status: StatusCode,
    error: String,
}

impl Failed {
    /// `error` stands behind `failed to …: `.
    pub(super) fn new(status: StatusCode, error: String) -> Self {
        Failed { status, error }
    }

    /// A body could not be read.
    pub(super) fn of_body(rejection: &BytesRejection, limit: usize) -> Self {
        let error = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => format!("expected a body of at most {limit} bytes"),
            _ => format!("the body could not be read: {rejection}"),
        };
        Failed { status: rejection.status(), error }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.status, Json(ApiError { error: self.error })).into_response()
    }
}

impl From<RoundError> for Failed {
    fn from(error: RoundError) -> Self {
        let status = match &error {
            RoundError::Unknown(_) => StatusCode::NOT_FOUND,
            RoundError::Refused(_) | RoundError::Name { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            RoundError::Phase { .. } => StatusCode::CONFLICT,
            RoundError::TooMany | RoundError::Stopping | RoundError::Arming(_) => StatusCode::SERVICE_UNAVAILABLE,
            RoundError::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Failed { status, error: error.to_string() }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Failed { status: StatusCode::INTERNAL_SERVER_ERROR, error: error.to_string() }
    }
}

/// A JSON body of at most `LIMIT` bytes, which the route has to enforce. Its media type has to be said: that is what keeps forms of web pages out.
pub(super) struct Body<T, const LIMIT: usize = { super::MAX_JSON }>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync, const LIMIT: usize> FromRequest<S> for Body<T, LIMIT> {
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failed> {
        let media = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        if !media.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
            let error = format!("expected content-type application/json, found {media:?}");
            return Err(Failed::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
        }
        let bytes =
            Bytes::from_request(request, state).await.map_err(|rejection| Failed::of_body(&rejection, LIMIT))?;
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| Failed::new(StatusCode::BAD_REQUEST, format!("the body is malformed: {error}")))?;
        Ok(Body(value))
    }
}

/// The round's number in a path.
pub(super) struct Id(pub(super) RoundId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        let text = Path::<String>::from_request_parts(parts, state).await.map(|Path(text)| text).unwrap_or_default();
        match text.parse() {
            Ok(number) => Ok(Id(RoundId(number))),
            Err(_) => {
                let shown: String = text.chars().take(80).collect();
                let error = format!("expected the number of a round, found {shown:?}");
                Err(Failed::new(StatusCode::BAD_REQUEST, error))
            }
        }
    }
}

/// Query parameters.
pub(super) struct Parameters<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Parameters(value)),
            Err(rejection) => Err(Failed::new(
                StatusCode::BAD_REQUEST,
                format!("the parameters are malformed: {}", rejection.body_text()),
            )),
        }
    }
}
