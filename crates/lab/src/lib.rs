//! Mock microservices from a topology file: real processes, real sockets, and the truth about what happened on them.
//!
//! A [`Topology`] says which services there are, what they call in which order, and what state they keep by business key.
//! [`service`] runs one of them; [`up`](up()) starts them all, each with its own sidecar process; [`truth`] reads from the
//! services' own logs what happened in a round. Nothing here reads trace or hop headers to decide anything, so the lab can
//! judge the injector (`docs/lab.md`).

mod admin;
pub mod events;
pub mod expand;
mod file;
pub mod hosts;
mod load;
mod names;
pub mod net;
pub mod random;
mod resolve;
mod route;
mod scalar;
pub mod service;
pub mod topology;
pub mod truth;
mod up;

pub use file::TopologyFile;
pub use load::{Load, LoadError, Ordinary};
pub use route::Route;
pub use scalar::{GrpcCode, Status};
pub use topology::{Propagation, Topology};
pub use up::{
    AdminError, CLIENT, CONTROLLER, Control, Ended, HostError, Launcher, Options, Role, RunningLab, UpError, up,
};
