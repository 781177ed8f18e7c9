//! From clean traces to temporal faults: visible counts, pattern atoms, minimum hitting sets, explanations (design §4).
//!
//! Pure: traces and a [`guard::Request`] in, a [`guard::Synthesis`] out; the same input gives the same bytes. What a
//! sidecar will know at a point of an execution is never modelled here: [`aftershock_core::replay`] runs the sidecar's
//! own evidence over the trace. `docs/guards.md` explains the concepts.

pub mod after;
pub mod error;
pub mod explain;
pub mod guard;
pub mod hitting_set;
pub mod patterns;
pub mod site;
mod stream;
pub mod validate;
pub mod visible;
mod warning;

pub use error::GenerateError;
pub use guard::{Request, Synthesis, synthesize};
pub use site::{Site, acting_side};
