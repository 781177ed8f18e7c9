//! The lab as its users see it: files in, processes and sockets out.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod client;
mod hop;
mod running;
mod topology_files;
