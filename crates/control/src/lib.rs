//! The controller: collector, arming, rounds, verdicts, store, HTTP API, and the runner that drives rounds.

pub mod api;
pub mod client;
pub mod runner;
pub mod scenario;
pub mod verdict;

mod activity;
mod arming;
mod completion;
pub(crate) mod store;
#[cfg(test)]
mod testing;
