//! The controller: collector, arming, rounds, verdicts, store, HTTP API, and the runner that drives rounds.

pub mod api;
pub mod client;
pub mod runner;
pub mod scenario;
pub mod server;
pub mod verdict;

mod activity;
mod arbiter;
mod arming;
mod collector;
mod completion;
mod hub;
mod link;
mod registry;
mod rounds;
mod store;
#[cfg(test)]
mod testing;
