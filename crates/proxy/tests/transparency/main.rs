//! The same exchange with and without a sidecar, and faults on real sockets.
//!
//! An exchange is made directly and on every other way that `support::way` knows: through a driver whose decider lets
//! everything pass, and through the sidecars of caller and callee as they run, with and without a recorded round. Compared
//! are status line, informational responses, names, values and order of header fields, body, trailers, the order of events
//! and the fate of both connections (design §3.9). `docs/transparency.md` lists the cases.

mod bounds;
mod conformance;
mod copying;
mod drain;
mod exchanges;
mod faults;
mod floods;
mod framing;
mod grpc;
mod nghttp2;
mod occurrences;
mod opaque;
mod operations;
mod peers;
mod redirect;
mod rules;
mod security;
mod support;
mod upgrade;
mod upstreams;
