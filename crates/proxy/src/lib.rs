//! The sidecar: a transparent HTTP editor that observes, carries evidence and injects faults.
pub mod config;
pub mod detect;
pub mod exchange;
pub mod h1;
pub mod h2;
pub mod hpack;
pub mod link;
pub mod sidecar;
