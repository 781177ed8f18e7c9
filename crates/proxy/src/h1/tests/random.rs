//! Random input: no panic, bounded output, every exchange closed once.

use proptest::prelude::*;

use super::*;
use crate::exchange::Marks;
use crate::h1::MAX_HEAD;

/// Pieces from which both well-formed and broken messages come about.
const PIECES: [&str; 32] = [
    "GET / HTTP/1.1\r\n",
    "HEAD / HTTP/1.1\r\n",
    "CONNECT a:1 HTTP/1.1\r\n",
    "POST /a HTTP/1.0\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 101 Switch\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 204 No\r\n",
    "Host: h\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "Upgrade: h2c\r\n",
    "Expect: 100-continue\r\n",
    "\r\n",
    "\n",
    "\r",
    "hello",
    "Content-Type: application/grpc\r\n",
    "\0\0\0\0\x01",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "0\r\nT: v\r\n\r\n",
    " ",
    ":",
    GET,
    POST,
    OK,
    CHUNKED,
    "\0",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(prop::sample::select(&PIECES[..]), 1..4).prop_map(|p| p.concat().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

fn resume() -> impl Strategy<Value = Resume> {
    prop_oneof![3 => Just(Resume::Pass), 1 => Just(Resume::Close), 2 => any_act().prop_map(Resume::Act)]
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![1 => Just(Act::Drop), 1 => Just(RESET), 3 => Just(made(503, "no"))]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        4 => Just(Verdict::Pass),
        2 => Just(Verdict::Park),
        2 => any_act().prop_map(Verdict::Act),
        1 => (0usize..9).prop_map(|limit| Verdict::Withhold { limit }),
        2 => prop::collection::vec(mark(), 0..4).prop_map(|marks| Verdict::Watch(Marks::from_vec(marks))),
    ]
}

fn mark() -> impl Strategy<Value = Mark> {
    prop_oneof![(0..4u32).prop_map(Mark::Message), (0..8u64).prop_map(Mark::Bytes)]
}

fn step() -> impl Strategy<Value = Step> {
    let end = || prop_oneof![3 => Just(PeerEnd::Eof), 1 => Just(PeerEnd::Broken)];
    prop_oneof![
        10 => bytes().prop_map(Step::App),
        10 => bytes().prop_map(Step::Up),
        4 => (1u64..6, resume()).prop_map(|(stream, resume)| Step::Resume(stream, resume)),
        1 => end().prop_map(Step::AppEnd),
        1 => Just(Step::Drain),
        1 => prop_oneof![end(), Just(PeerEnd::Refused)].prop_map(Step::UpEnd),
    ]
}

fn point() -> impl Strategy<Value = Point> {
    prop_oneof![Just(Point::Request), Just(Point::Response), Just(Point::Mark), Just(Point::End)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The script asserts that no call comes for an exchange that is not open and none is opened twice.
    #[test]
    fn whatever_comes_every_exchange_is_closed_once(
        steps in prop::collection::vec(step(), 1..14),
        verdicts in prop::collection::hash_map((1u64..6, point()), verdict(), 0..8),
    ) {
        let script = Script { verdicts, ..Script::default() };
        let input: usize = steps.iter().map(|s| match s { Step::App(b) | Step::Up(b) => b.len(), _ => 0 }).sum();
        let over = [steps.clone(), vec![Step::AppEnd(PeerEnd::Broken)]].concat();
        let outcome = play(&over, script.clone());
        let requests = outcome.log.iter().filter(|l| l.starts_with("request ")).count();
        let closed = outcome.log.iter().filter(|l| l.starts_with("closed ")).count();
        prop_assert_eq!(requests, closed, "{:?}", outcome.log);
        prop_assert!(outcome.open.is_empty());
        // Only made answers and refusals add bytes.
        prop_assert!(outcome.to_app.len() <= input + 200 * (requests + 1));
        prop_assert!(outcome.to_upstream.len() <= input);
    }

    /// Reads of any size: cuts change nothing of a single exchange, whatever is decided. Up to a mark, the application has
    /// exactly what it would have had directly.
    #[test]
    fn cuts_of_a_watched_response_change_nothing(
        texts in prop::collection::vec("[a-z]{0,9}", 0..5),
        framing in 0..3usize,
        sizes in prop::collection::vec(1..30usize, 1..12),
        marks in prop::collection::vec(mark(), 0..4),
        verdicts in prop::collection::hash_map(prop_oneof![Just(Point::Mark), Just(Point::End)], verdict(), 0..2),
        withhold in prop::option::weighted(0.3, 0usize..60),
        cuts in prop::collection::vec(1..60usize, 0..20),
        resumes in prop::collection::vec(resume(), 0..4),
    ) {
        let body: Vec<u8> = texts
            .iter()
            .flat_map(|text| [&[0, 0, 0, 0, text.len() as u8][..], text.as_bytes()].concat())
            .collect();
        let head = |line: String| format!("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\n{line}\r\n").into_bytes();
        let response = match framing {
            0 => [head(format!("Content-Length: {}\r\n", body.len())), body.clone()].concat(),
            1 => [head(String::new()), body.clone()].concat(),
            _ => {
                let mut out = head("Transfer-Encoding: chunked\r\n".into());
                let (mut rest, mut sizes) = (&body[..], sizes.iter().cycle());
                while !rest.is_empty() {
                    let (chunk, behind) = rest.split_at(rest.len().min(*sizes.next().expect("endless")));
                    out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    out.extend_from_slice(&[chunk, b"\r\n"].concat());
                    rest = behind;
                }
                out.extend_from_slice(b"0\r\nT: v\r\n\r\n");
                out
            }
        };
        let mut script = Script { verdicts: verdicts.iter().map(|(p, v)| ((1, *p), v.clone())).collect(), ..Script::default() };
        let first = withhold.map_or(Verdict::Watch(Marks::from_slice(&marks)), |limit| Verdict::Withhold { limit });
        script = script.at(1, Point::Response, first);
        let end = [Step::UpEnd(PeerEnd::Eof)];
        let resumes: Vec<_> = resumes.into_iter().map(|resume| Step::Resume(1, resume)).collect();
        let whole = play(&[&[app(GET), up(&response)][..], &end, &resumes].concat(), script.clone());
        let (mut pieces, mut rest) = (vec![app(GET)], &response[..]);
        for cut in cuts {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            pieces.push(up(piece));
            rest = behind;
        }
        pieces.push(up(rest));
        let cut = play(&[&pieces[..], &end, &resumes].concat(), script);
        prop_assert_eq!(&cut, &whole);
        let answered = whole.to_app.starts_with(b"HTTP/1.1 503");
        prop_assert!(answered || response.starts_with(&whole.to_app));
    }

    /// Without faults, bytes that leave are a prefix of those that came.
    #[test]
    fn what_passes_is_a_prefix_of_what_came(steps in prop::collection::vec(step(), 1..14)) {
        // A link that drains changes a head.
        let steps: Vec<_> = steps.into_iter().filter(|step| !matches!(step, Step::Drain)).collect();
        let outcome = play(&steps, Script::default());
        let all = |app: bool| -> Vec<u8> {
            steps.iter().flat_map(|s| match s {
                Step::App(b) if app => b.clone(),
                Step::Up(b) if !app => b.clone(),
                _ => Vec::new(),
            }).collect()
        };
        prop_assert!(all(true).starts_with(&outcome.to_upstream));
        let to_app = match find(&outcome.to_app, b"content-length: 0\r\nconnection: close\r\n\r\n") {
            // A refusal is the last thing that is sent.
            Some(at) => &outcome.to_app[..at],
            None => &outcome.to_app[..],
        };
        let start = to_app.strip_suffix(b"HTTP/1.1 400 Bad Request\r\n").unwrap_or(to_app);
        prop_assert!(all(false).starts_with(start));
    }

    /// A message that is kept never takes more than its bounds.
    #[test]
    fn noise_is_bounded(noise in prop::collection::vec(any::<u8>(), 0..2000), repeat in 1usize..100) {
        let mut link = Link::new();
        let mut script = Script::default();
        for _ in 0..repeat {
            if link.wants_app() {
                link.app_bytes(&noise, &mut script);
            }
            if link.wants_upstream() {
                link.upstream_bytes(&noise, &mut script);
            }
            prop_assert!(link.app.pending.len() <= MAX_HEAD + noise.len());
            prop_assert!(link.upstream.pending.len() <= MAX_HEAD + noise.len());
        }
    }
}

fn find(whole: &[u8], part: &[u8]) -> Option<usize> {
    whole.windows(part.len()).position(|w| w == part)
}
