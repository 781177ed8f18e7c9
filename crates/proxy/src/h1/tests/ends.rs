//! How connections end.

use super::*;

#[test]
fn a_half_closed_application_still_gets_its_response() {
    let outcome = check(&[app(GET), Step::AppEnd(PeerEnd::Eof), up(OK), Step::UpEnd(PeerEnd::Eof)], &Script::default());
    assert_eq!((outcome.app_text().as_str(), outcome.app, outcome.upstream), (OK, Fate::Fin, Fate::Fin));
    assert!(outcome.logged("closed 1 Complete"));
}

#[test]
fn a_half_closed_upstream_still_gets_the_body() {
    let request = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc";
    let large = "HTTP/1.1 413 Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let steps = [app(request), up(large), Step::UpEnd(PeerEnd::Eof), app("def"), Step::AppEnd(PeerEnd::Eof)];
    let outcome = check(&steps, &Script::default());
    assert_eq!((outcome.app_text().as_str(), outcome.app), (large, Fate::Fin));
    assert_eq!((outcome.upstream_text(), outcome.upstream), ([request, "def"].concat(), Fate::Fin));
}

#[test]
fn an_upstream_that_dies_is_seen_as_it_would_be() {
    for (how, fate) in [(PeerEnd::Eof, Fate::Fin), (PeerEnd::Broken, Fate::Reset)] {
        let outcome = check(&[app(GET), Step::UpEnd(how)], &Script::default());
        assert_eq!((outcome.app_text().as_str(), outcome.app), ("", fate));
        assert!(outcome.logged("closed 1 ByUpstream"));
        // In the middle of a body, and of a chunk-size line.
        for partial in [&OK[..OK.len() - 1], &CHUNKED[..CHUNKED.len() - 9]] {
            let outcome = check(&[app(GET), up(partial), Step::UpEnd(how)], &Script::default());
            assert_eq!((outcome.app_text().as_str(), outcome.app), (partial, fate));
            assert!(outcome.logged("closed 1 ByUpstream"));
            assert!(!outcome.log.iter().any(|l| l.starts_with("end")));
        }
    }
}

#[test]
fn a_refused_upstream_is_told_at_the_first_request() {
    let refused = Step::UpEnd(PeerEnd::Refused);
    let idle = check(std::slice::from_ref(&refused), &Script::default());
    assert_eq!(idle.app, Fate::Open);
    for steps in [vec![refused.clone(), app(GET)], vec![app(GET), refused.clone()]] {
        let outcome = check(&steps, &Script::default());
        assert_eq!((outcome.app_text().as_str(), outcome.app), ("", Fate::Reset));
        assert!(outcome.log[0].starts_with("request 1"));
        assert!(outcome.logged("closed 1 ByUpstream"));
    }
    // A fault at the request does not need the upstream.
    let script = Script::default().at(1, Point::Request, Verdict::Act(made(503, "no")));
    let outcome = check(&[refused, app(GET)], &script);
    assert!(outcome.app_text().contains("connection: close\r\n"));
    assert_eq!(outcome.app, Fate::Linger);
    assert!(outcome.logged("closed 1 Complete"));
}

#[test]
fn an_application_that_breaks_off_breaks_the_upstream() {
    let broken = Step::AppEnd(PeerEnd::Broken);
    for before in [vec![], vec![app(GET)], vec![app(GET), up(&OK[..OK.len() - 1])], vec![app(&POST[..POST.len() - 1])]]
    {
        let requests = usize::from(!before.is_empty());
        let outcome = check(&[before, vec![broken.clone()]].concat(), &Script::default());
        assert_eq!((outcome.app, outcome.upstream), (Fate::Close, Fate::Reset));
        assert_eq!(outcome.log.iter().filter(|l| *l == "closed 1 ByApplication").count(), requests);
    }
}

#[test]
fn a_request_cut_short_is_passed_as_far_as_its_head_is_complete() {
    let outcome = check(&[app(&GET[..10]), Step::AppEnd(PeerEnd::Eof)], &Script::default());
    assert_eq!((outcome.upstream_text().as_str(), outcome.upstream), ("", Fate::Fin));
    let cut = &POST[..POST.len() - 1];
    let steps = [app(cut), Step::AppEnd(PeerEnd::Eof), Step::UpEnd(PeerEnd::Eof)];
    let outcome = check(&steps, &Script::default());
    assert_eq!((outcome.upstream_text().as_str(), outcome.upstream), (cut, Fate::Fin));
    assert!(outcome.logged("closed 1 ByApplication"));
}

#[test]
fn a_request_after_the_upstream_has_closed_is_reset_and_told() {
    let steps = [app(GET), up(OK), Step::UpEnd(PeerEnd::Eof), app(GET)];
    let outcome = check(&steps, &Script::default());
    assert_eq!((outcome.upstream_text().as_str(), outcome.app), (GET, Fate::Reset));
    assert!(outcome.logged("closed 2 ByUpstream"));
    let script = Script::default().at(2, Point::Request, Verdict::Act(made(503, "no")));
    let outcome = check(&steps, &script);
    assert!(outcome.logged("refused 2 TooLate"));
    assert_eq!((outcome.app_text().as_str(), outcome.app), (OK, Fate::Reset));
}

#[test]
fn a_tunnel_that_breaks_breaks_on_both_sides() {
    let tunnel =
        [app("GET / HTTP/1.1\r\nHost: h\r\nUpgrade: x\r\n\r\n"), up("HTTP/1.1 101 Switching Protocols\r\n\r\n")];
    for (end, fates, closed) in [
        (Step::AppEnd(PeerEnd::Broken), (Fate::Close, Fate::Reset), "closed 1 ByApplication"),
        (Step::UpEnd(PeerEnd::Broken), (Fate::Reset, Fate::Close), "closed 1 ByUpstream"),
    ] {
        let outcome = check(&[tunnel.to_vec(), vec![end]].concat(), &Script::default());
        assert_eq!((outcome.app, outcome.upstream), fates);
        assert!(outcome.logged(closed));
    }
    // One half may stay open for as long as it likes.
    let half = check(&[tunnel.to_vec(), vec![Step::AppEnd(PeerEnd::Eof), up("late")]].concat(), &Script::default());
    assert!(half.app_text().ends_with("late"));
    assert_eq!((half.app, half.upstream, half.open), (Fate::Open, Fate::Fin, vec![1]));
}

#[test]
fn a_link_is_idle_only_between_exchanges() {
    let mut link = Link::new();
    let mut script = Script::default();
    assert!(link.idle());
    for (at, byte) in GET.bytes().enumerate() {
        link.app_bytes(&[byte], &mut script);
        assert!(!link.idle(), "after byte {at}");
    }
    link.upstream_bytes(&OK.as_bytes()[..OK.len() - 1], &mut script);
    assert!(!link.idle());
    link.upstream_bytes(&OK.as_bytes()[OK.len() - 1..], &mut script);
    assert!(link.idle());
}
