//! The controller: collector, arming, rounds, verdicts, store, HTTP API, and the runner that drives rounds.

pub mod api;
pub mod client;
pub mod runner;
pub mod scenario;
pub mod server;
#[doc(hidden)]
pub mod simulation;
pub mod verdict;

mod activity;
mod arbiter;
mod arming;
mod collector;
mod completion;
mod hub;
mod keys;
mod link;
mod registry;
mod rounds;
mod state;
mod store;
#[cfg(test)]
mod testing;
