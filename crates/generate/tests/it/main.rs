//! Guard synthesis against independent readings of its definitions, on simulated executions.

#![allow(clippy::unwrap_used, reason = "test helpers are not seen as tests")]

mod after;
mod definitions;
mod fixtures;
mod hitting_set;
mod plans;
mod streams;
mod support;
