//! What must hold of every parser that sees the network, whatever it is fed: one function for each, from bytes to a
//! panic or none (`docs/fuzzing.md`).
//!
//! The same functions are run by cargo-fuzz on inputs it makes up (`fuzz/`) and by an ordinary test on the inputs that are
//! checked in beside it. They are compiled for tests and with the feature `fuzzing` only, never into the sidecar.
//!
//! An input is a little program: bytes that choose what happens next and bytes that are what happens. Whatever the bytes
//! are, it is a valid program, so that a mutation is another conversation and not a refused one.
#![allow(clippy::unwrap_used, reason = "a panic is what a target answers with")]

mod body;
mod brain;
mod contract;
mod detection;
mod driver;
mod formats;
mod http1;
mod http2;
mod tables;

/// A target: its name, which is that of its folder and program under `fuzz/`, and what is run.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 13] = [
    ("body", body::run),
    ("brain", brain::run),
    ("detect", detection::detect),
    ("header", formats::header),
    ("hop", formats::hop),
    ("hpack", tables::run),
    ("http1", http1::run),
    ("http2", http2::run),
    ("lines", formats::lines),
    ("otlp", formats::otlp),
    ("template", formats::template),
    ("trace_context", formats::trace_context),
    ("wire", formats::wire),
];

/// Run the target called `name`.
///
/// # Panics
/// When something does not hold, and when there is no such target.
pub fn run(name: &str, input: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target of this name");
    target(input);
}

/// An input, read from its front; behind its end there are zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (some, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        some
    }

    /// As many bytes as the next one says.
    fn piece(&mut self) -> &'a [u8] {
        let count = self.byte();
        self.bytes(count.into())
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
    }

    fn inputs(name: &str) -> Vec<PathBuf> {
        let folder = folder().join("corpus").join(name);
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    fn replay(name: &str) {
        let paths = inputs(name);
        assert!(!paths.is_empty(), "no input is checked in for {name}");
        run(name, b"");
        for path in paths {
            let input = std::fs::read(&path).unwrap();
            let done = std::panic::catch_unwind(|| run(name, &input));
            assert!(done.is_ok(), "{name}: does not hold for {}", path.display());
        }
    }

    /// A test per target, so that they run beside each other and are named when they fail.
    macro_rules! replays {
        ($($name:ident $test:ident),* $(,)?) => {
            $(
                #[test]
                fn $test() {
                    replay(stringify!($name));
                }
            )*

            #[test]
            fn every_target_replays_and_has_a_program_of_its_own() {
                let replayed = [$(stringify!($name)),*];
                assert_eq!(TARGETS.map(|(name, _)| name), replayed);
                let manifest = std::fs::read_to_string(folder().join("Cargo.toml")).unwrap();
                for name in replayed {
                    let program = std::fs::read_to_string(folder().join(format!("targets/{name}.rs"))).unwrap();
                    assert!(program.contains(&format!("\"{name}\"")), "{name}");
                    assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
                }
            }
        };
    }

    replays! {
        body body_replays,
        brain brain_replays,
        detect detect_replays,
        header header_replays,
        hop hop_replays,
        hpack hpack_replays,
        http1 http1_replays,
        http2 http2_replays,
        lines lines_replays,
        otlp otlp_replays,
        template template_replays,
        trace_context trace_context_replays,
        wire wire_replays,
    }

    #[test]
    fn what_is_checked_in_stays_small() {
        let sizes = TARGETS.iter().flat_map(|(name, _)| inputs(name)).map(|path| path.metadata().unwrap().len());
        let total: u64 = sizes.sum();
        assert!(total < 1 << 20, "{total} bytes");
    }
}
