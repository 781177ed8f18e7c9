//! The sidecar: a transparent HTTP editor that observes, carries evidence and injects faults.
pub mod exchange;
pub mod hpack;
