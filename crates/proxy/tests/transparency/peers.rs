//! Exchanges of real peers over HTTP/1.

use aftershock_proxy::exchange::{Act, Mark, Marks, Verdict};

use crate::support::peers::{Nginx, curl, has_curl, has_nginx, present};
use crate::support::sidecar::{Board, Point, Sidecar};
use crate::support::way::alike;
use crate::support::wire::{Ended, Origin, Step, send, until};

fn watch(mark: Mark) -> Verdict {
    Verdict::Watch(Marks::from_slice(&[mark]))
}

#[test]
fn curl_sees_the_same_of_nginx() {
    let test = "curl_sees_the_same_of_nginx";
    if !(present(test, "curl", has_curl()) && present(test, "nginx-light", has_nginx())) {
        return;
    }
    let cases: [&[&str]; 17] = [
        &["@/small.txt"],
        &["--head", "@/small.txt"],
        &["@/none"],
        &["--header", "If-None-Match: \"6553f100-6\"", "@/small.txt"],
        &["--header", "If-Modified-Since: Tue, 14 Nov 2023 22:13:20 GMT", "@/small.txt"],
        &["--range", "2-3", "@/small.txt"],
        &["--raw", "--header", "Accept-Encoding: gzip", "--output", "-", "@/gzip"],
        &["@/large.txt"],
        &["--http1.0", "@/small.txt"],
        &["--http1.0", "--header", "Connection: keep-alive", "@/small.txt", "@/small.txt"],
        &["@/small.txt", "@/none", "@/large.txt", "@/missing"],
        &["--request", "PROPFIND", "@/small.txt"],
        &["--header", "Connection: close, x", "--header", "X-Case;", "@/seen"],
        &["--location", "@/moved"],
        &["--header", "Expect: 100-continue", "--data", "0123456789", "@/seen"],
        &["--header", "Expect: 100-continue", "--data-binary", "@LARGE", "@/refused"],
        &["--path-as-is", "@/../small.txt?%20//"],
    ];
    let large = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(large.path(), vec![b'x'; 4096]).expect("a file");
    alike(|stage| {
        let nginx = Nginx::on(stage.listen());
        let route = stage.lead_to(nginx.address);
        let tracestate = stage.tracestate().map(|value| format!("tracestate: {value}"));
        cases.map(|case| {
            let arguments: Vec<_> = case
                .iter()
                .map(|a| match a.strip_prefix('@') {
                    Some("LARGE") => format!("@{}", large.path().display()),
                    Some(path) => format!("http://{}{path}", route.address),
                    None => (*a).to_owned(),
                })
                .collect();
            let tagged = tracestate.iter().flat_map(|line| ["--header", line]);
            let arguments: Vec<_> = arguments.iter().map(String::as_str).chain(tagged).collect();
            // The authority differs by the port alone.
            let seen = stage.as_client(|| curl(&arguments)).replace(&route.address.to_string(), "authority");
            assert!(seen.contains("HTTP/1."), "{case:?}: {seen}");
            // Not one of them passed as something else than HTTP.
            assert!(!stage.log().iter().any(|l| l.ends_with("opaque")), "{case:?}: {:?}", stage.log());
            seen
        })
    });
}

#[test]
fn curl_sees_a_body_that_was_reset_as_a_cut_transfer() {
    if !present("curl_sees_a_body_that_was_reset_as_a_cut_transfer", "curl", has_curl()) {
        return;
    }
    const CUT: usize = 70_000;
    let body = "x".repeat(100_000);
    let chunks: String =
        body.as_bytes().chunks(3000).map(|c| format!("{:x}\r\n{}\r\n", c.len(), &body[..c.len()])).collect();
    for (framing, sent) in [
        ("Content-Length: 100000\r\n", body.clone()),
        ("Transfer-Encoding: chunked\r\n", chunks + "0\r\n\r\n"),
        ("Connection: close\r\n", body.clone()),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n");
        let reset = Verdict::Act(Act::Reset { code: 2, connection: false });
        let board = Board::default().at(Point::Response, watch(Mark::Bytes(CUT as u64))).at(Point::Mark, reset);
        let origin = Origin::start(vec![vec![until("\r\n\r\n"), send(head.clone() + &sent), Step::End]]);
        let sidecar = Sidecar::recording(&[origin.address], &board);
        let seen = curl(&[&format!("http://{}/", sidecar.address)]);
        // 56: failure in receiving network data. A FIN would have been 18, or for a body up to the close no failure.
        assert_eq!(seen, format!("exit Some(56)\n{head}{}", &body[..CUT]), "{framing}");
        board.wait("1.1 closed ByFault");
        assert_eq!(origin.seen()[0].ended, Ended::Fin);
    }
}
