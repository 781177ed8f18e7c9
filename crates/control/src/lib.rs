//! The controller: collector, arming, rounds, verdicts, store, HTTP API, and the runner that drives rounds.

pub mod api;
pub mod verdict;

mod activity;
mod arming;
mod completion;
#[cfg(test)]
mod testing;
