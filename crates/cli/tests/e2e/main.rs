//! The binary `aftershock` as its users run it: real processes, real sockets, nothing mocked.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test that cannot go on fails")]

mod demo;
mod exactness;
mod executions;
mod failure;
mod files;
mod generate;
mod hostile;
mod inject;
mod interleaved;
mod lab;
mod netns;
mod quickstart;
mod scenarios;
mod support;
mod table;
mod trust;
mod unseen;
