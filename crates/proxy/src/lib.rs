//! The sidecar: a transparent HTTP editor that observes, carries evidence and injects faults.
mod admin;
mod command;
pub mod config;
pub mod control_link;
pub mod detect;
pub mod exchange;
pub mod export;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod h1;
pub mod h2;
pub mod hpack;
pub mod link;
mod log;
mod marks;
mod metrics;
mod pace;
pub mod redirect;
pub mod run;
pub mod sidecar;
pub mod tls;

pub use log::filter as log_filter;

pub use command::{CommandError, main_from_args};
