//! See `crates/proxy/src/fuzzing.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aftershock_proxy::fuzzing::run("lines", input));
