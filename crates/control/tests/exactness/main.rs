//! Exactly once: the real sidecars and the real controller in a simulated network, judged by what really happened.
//!
//! Random systems of services run under virtual time with random delays on every connection. Clean rounds are recorded,
//! the real generator makes guards of them, rounds are armed with these, and each verdict is compared with the truth that
//! the simulated services and editors keep. `AFTERSHOCK_TARGETS` says how many targets, `AFTERSHOCK_SEED` plays one system
//! again and tells its events.

#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]
#![allow(clippy::print_stderr, reason = "a campaign says what it came to")]

mod apps;
mod campaign;
mod check;
mod message;
mod net;
mod passage;
mod random;
mod rounds;
mod scripts;
mod system;
mod targets;
mod truth;
