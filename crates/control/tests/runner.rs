//! The runner against a controller and services that write down what they are asked, over real sockets.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by a panic and speaks of what it skips")]

#[path = "runner/command.rs"]
mod command;
#[path = "runner/docs.rs"]
mod docs;
#[path = "runner/flow.rs"]
mod flow;
#[path = "runner/grpc.rs"]
mod grpc;
#[path = "runner/http.rs"]
mod http;
#[path = "runner/peers.rs"]
mod peers;
#[path = "runner/stage.rs"]
mod stage;
#[path = "runner/state.rs"]
mod state;
