//! The binary `aftershock` as its users run it: real processes, real sockets, nothing mocked.

mod demo;
mod failure;
mod files;
mod inject;
mod quickstart;
mod support;
