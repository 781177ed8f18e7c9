//! The lab as its users see it: files in, processes and sockets out.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "all of this is test code")]

mod client;
mod hop;
mod judging;
mod net;
mod peers;
mod processes;
mod running;
mod topology_files;
mod window;
