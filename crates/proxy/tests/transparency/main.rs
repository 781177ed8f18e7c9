//! The same exchange with and without a sidecar, and faults on real sockets.
//!
//! Each exchange is made directly, through a driver whose decider lets everything pass, and through two sidecars as they
//! run, the caller's and the callee's. Compared are status line, informational responses, names, values and order of header
//! fields, body, trailers and the fate of both connections (design §3.9). Through the real sidecars the request that
//! arrives may have our own fields in addition, nothing else.

mod exchanges;
mod faults;
mod opaque;
mod peers;
mod support;
