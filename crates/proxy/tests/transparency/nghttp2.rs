//! Exchanges of nghttp2's tools.

use std::process::Command;

use crate::support::peers::{Nghttpd, has_nghttp, has_nghttpd, present};
use crate::support::way::Stage;

/// What a command prints, and whether it succeeded.
fn run(program: &str, arguments: &[&str]) -> (String, bool) {
    let out = Command::new(program).args(arguments).output().expect("it runs");
    (String::from_utf8_lossy(&out.stdout).into_owned(), out.status.success())
}

fn installed(test: &str) -> bool {
    present(test, "nghttp2-client", has_nghttp()) && present(test, "nghttp2-server", has_nghttpd())
}

#[test]
fn streams_wait_for_the_servers_limit_as_they_do_without_a_sidecar() {
    if !installed("streams_wait_for_the_servers_limit_as_they_do_without_a_sidecar") {
        return;
    }
    for (limit, early) in [(1, 30), (100, 0)] {
        for stage in Stage::every() {
            let server = stage.as_origin(|host| Nghttpd::at(host, &["--max-concurrent-streams", &limit.to_string()]));
            let route = stage.lead_to(server.address);
            let url = format!("http://{}/small.txt", route.address);
            let (text, _) = stage.as_client(|| run("h2load", &["-n", "400", "-c", "2", "-m", "16", &url]));
            let line = text.lines().find(|line| line.starts_with("requests: ")).expect("h2load counts");
            let count = |what: &str| {
                let (before, _) = line.split_once(what).expect("it counts these");
                before.split([' ', ',']).next_back().and_then(|n| n.parse::<u32>().ok()).expect("a number")
            };
            let (done, succeeded) = (count(" done"), count(" succeeded"));
            // Whoever sends before it has heard of the limit is refused, with and without a sidecar.
            assert_eq!(done, 400, "{:?}: {line}", stage.way);
            assert!(succeeded >= 400 - early, "{:?}: {line}", stage.way);
        }
    }
}

#[test]
fn large_heads_and_bodies_pass_small_windows() {
    if !installed("large_heads_and_bodies_pass_small_windows") {
        return;
    }
    let long = format!("x-long: {}", "v".repeat(15_000));
    let body = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(body.path(), vec![b'b'; 1 << 20]).expect("a file");
    let body = body.path().display().to_string();
    // Four fields of 15,000 octets need CONTINUATION; windows of a kilobyte need many updates.
    let heads: Vec<_> = std::iter::repeat_n(["-H", &long], 4).flatten().collect();
    let cases: [(&[&str], &str, usize); 3] = [
        (&heads, "small.txt", 6),
        (&["--window-bits=10", "--connection-window-bits=16"], "large.txt", 1 << 20),
        (&["--data", &body], "small.txt", 6),
    ];
    for (options, file, octets) in cases {
        for stage in Stage::every() {
            let server = stage.as_origin(|host| Nghttpd::at(host, &["--window-bits=12"]));
            let route = stage.lead_to(server.address);
            let url = format!("http://{}/{file}", route.address);
            let arguments: Vec<_> = options.iter().copied().chain([url.as_str()]).collect();
            let (text, succeeded) = stage.as_client(|| run("nghttp", &arguments));
            assert_eq!((text.len(), succeeded), (octets, true), "{file}, {:?}", stage.way);
        }
    }
}
