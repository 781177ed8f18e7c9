//! What these tests are made of: a sidecar on a thread, scripted peers on raw sockets, real peers as processes.

pub(crate) mod application;
pub(crate) mod brain;
pub(crate) mod frames;
pub(crate) mod http2;
pub(crate) mod http_peers;
pub(crate) mod load;
pub(crate) mod peers;
pub(crate) mod pods;
pub(crate) mod process;
pub(crate) mod rules;
pub(crate) mod sidecar;
pub(crate) mod way;
pub(crate) mod wire;
