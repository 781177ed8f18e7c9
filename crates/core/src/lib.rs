//! The vocabulary of Aftershock: identifiers, events, evidence, guards, plans, traces, and the formats they travel in.
//!
//! Pure: no I/O, no clock, no randomness. Everything here is a value and functions of values, so that the sidecar, the
//! controller and the generator run the same code on the same words (`docs/ARCHITECTURE.md`).

pub mod duration;
pub mod event;
pub mod evidence;
mod hex;
pub mod hop;
pub mod id;
pub mod name;
pub mod otlp;
pub mod outcome;
pub mod plan;
pub mod replay;
pub mod span;
pub mod template;
pub mod trace;
pub mod w3c;
pub mod wire;
pub mod yaml;
