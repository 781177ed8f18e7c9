use proptest::prelude::*;

use super::*;
use crate::name::Operation;

fn matcher(templates: &[&str]) -> Matcher {
    Matcher::new(templates.iter().map(|text| Template::parse(text).unwrap()).collect())
}

/// The operations of GET requests, in order.
fn operations<'a>(templates: &[&str], cases: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let matcher = matcher(templates);
    for (target, expected) in cases {
        assert_eq!(matcher.operation("GET", target), format!("GET {expected}"), "{target}");
    }
}

#[test]
fn literal_beats_variable_segment_by_segment_with_backtracking() {
    let templates = [
        "GET /a/{x}",
        "GET /a/b",
        "GET /{y}/b/c",
        "GET /a/{x}/d",
        "GET /{y}/{z}",
        "GET /{rest=**}",
        "GET /{y}/b/{z}/e",
    ];
    operations(
        &templates,
        [
            ("/a/b", "/a/b"),
            ("/a/q", "/a/{x}"),
            ("/q/b", "/{y}/{z}"),
            // `a` leads to `/a/{x}/d` only, which does not match: back, and right.
            ("/a/b/c", "/{y}/b/c"),
            ("/a/b/d", "/a/{x}/d"),
            ("/a/b/q/e", "/{y}/b/{z}/e"),
            ("/a/b/q/f", "/{rest=**}"),
            ("/a", "/{rest=**}"),
            ("/", "/{rest=**}"),
        ],
    );
}

#[test]
fn a_segment_may_have_text_around_its_variable() {
    let templates = [
        "GET /v1/{name}:cancel",
        "GET /v1/{name}",
        "GET /v1/{name}:batch:cancel",
        "GET /v1/items:batchGet",
        "GET /f/{n}.json",
        "GET /f/v{n}.json",
        "GET /f/v{n}",
    ];
    operations(
        &templates,
        [
            ("/v1/7:cancel", "/v1/{name}:cancel"),
            ("/v1/7:batch:cancel", "/v1/{name}:batch:cancel"),
            ("/v1/:cancel", "/v1/{name}"),
            ("/v1/7:undelete", "/v1/{name}"),
            ("/v1/items:batchGet", "/v1/items:batchGet"),
            ("/f/v1.json", "/f/v{n}.json"),
            ("/f/v.json", "/f/{n}.json"),
            ("/f/1.json", "/f/{n}.json"),
            ("/f/v1", "/f/v{n}"),
        ],
    );
}

#[test]
fn the_tail_takes_what_is_left_after_its_slash() {
    for tail in ["{rest=**}", "{rest...}"] {
        let template = format!("GET /static/{tail}");
        let whole = format!("/static/{tail}");
        let cases = ["/static/", "/static/a", "/static/a/b//c/"].map(|target| (target, whole.as_str()));
        operations(&[&template], cases);
        operations(&[&template], [("/static", "/static"), ("/other/a", "/other/a")]);
    }
}

#[test]
fn segments_are_compared_decoded_and_split_before_that() {
    let templates = ["GET /a/{x}", "GET /a%2Fb", "GET /caf%C3%A9", "GET /%7euser", "GET /a/b%20c%25"];
    operations(
        &templates,
        [
            ("/a%2fb", "/a%2Fb"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a/b", "/a/{x}"),
            ("/a/b%2Fc", "/a/{x}"),
            ("/%61/b", "/a/{x}"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/~user", "/%7euser"),
            ("/a/b%20c%25", "/a/b%20c%25"),
            // A broken escape stands for itself.
            ("/a/%zz", "/a/{x}"),
            ("/%6/b", "/{id}/b"),
            ("/%61%", "/{id}"),
        ],
    );
    let raw = matcher(&["GET /caf%C3%A9"]);
    assert_eq!(raw.operation("GET", "/caf\u{e9}".as_bytes()), "GET /caf%C3%A9");
}

#[test]
fn slashes_count_and_the_query_does_not() {
    let templates = ["GET /a", "GET /a/", "GET /a//b", "GET /{x}/{y}", "GET /"];
    operations(
        &templates,
        [
            ("/a", "/a"),
            ("/a/", "/a/"),
            ("/a//b", "/a//b"),
            ("/a//", "/a//"),
            ("//", "//"),
            ("/", "/"),
            ("/a?x=/1", "/a"),
            ("/a/?", "/a/"),
            ("/a#f?x", "/a"),
            ("http://shop:8080/a?x=1", "/a"),
            ("https://shop?x=http://y/z", "/"),
            ("http://shop", "/"),
        ],
    );
}

#[test]
fn path_parameters_do_not_keep_a_template_from_matching() {
    operations(
        &["GET /cart/{item}", "GET /exact;v=1"],
        [("/cart;jsessionid=1A53/7", "/cart/{item}"), ("/exact;v=1", "/exact;v=1"), ("/other;v=1", "/other")],
    );
}

#[test]
fn targets_that_are_no_path_have_no_address_in_their_name() {
    let matcher = matcher(&["OPTIONS /a"]);
    assert_eq!(matcher.operation("OPTIONS", "*"), "OPTIONS *");
    assert_eq!(matcher.operation("CONNECT", "10.1.2.3:443"), "CONNECT *");
    assert_eq!(matcher.operation("CONNECT", "/chat"), "CONNECT /chat");
    assert_eq!(matcher.operation("GET", ""), "GET *");
}

#[test]
fn methods_are_kept_as_they_are_if_they_are_methods() {
    let matcher = matcher(&["GET /a/{x}", "PURGE /a/{y}"]);
    assert_eq!(matcher.operation("PURGE", "/a/b"), "PURGE /a/{y}");
    assert_eq!(matcher.operation("get", "/a/b"), "get /a/b");
    assert_eq!(matcher.operation("POST", "/a/7"), "POST /a/{id}");
    assert_eq!(matcher.operation("M".repeat(40), "/a"), format!("{} /a", "M".repeat(32)));
    for none in [&b""[..], b"G T", b"G\r\n", b"\xff", b"G/1"] {
        assert_eq!(matcher.operation(none, "/a"), "_OTHER /a");
    }
}

#[test]
fn a_path_without_template_is_cut_after_twelve_segments() {
    let matcher = Matcher::default();
    let twelve = "/a".repeat(12);
    assert_eq!(matcher.operation("GET", &twelve), format!("GET {twelve}"));
    assert_eq!(matcher.operation("GET", format!("{twelve}/")), format!("GET {twelve}/..."));
    assert_eq!(matcher.operation("GET", "/x".repeat(30_000)), format!("GET {}/...", "/x".repeat(12)));
}

#[test]
fn what_is_no_template_is_refused_with_what_was_expected() {
    use ParseTemplateError::{Escape, Form, Tail, Variable};
    let long = format!("GET /{}", "x".repeat(600));
    for text in [
        "",
        "/a",
        "GET",
        "GET a",
        "GET  /a",
        " GET /a",
        "G\u{e9}T /a",
        "GET /\u{e9}",
        "GET /a b",
        "GET /a?b",
        "GET /a#b",
        &long,
    ] {
        assert!(matches!(Template::parse(text), Err(Form(_))), "{text:?}");
    }
    for text in [
        "GET /{",
        "GET /}",
        "GET /{}",
        "GET /}a{",
        "GET /{a}{b}",
        "GET /{a{b}}",
        "GET /{a:int}",
        "GET /{n=a/*}",
        "GET /{=**}",
    ] {
        assert!(matches!(Template::parse(text), Err(Variable(_))), "{text:?}");
    }
    for text in ["GET /{a=**}/b", "GET /x{a=**}", "GET /{a...}/", "GET /{a...}:x"] {
        assert!(matches!(Template::parse(text), Err(Tail(_))), "{text:?}");
    }
    for text in ["GET /%", "GET /%zz", "GET /a%2", "GET /%7Bid%7D", "GET /%zz{a}", "GET /{a}%"] {
        assert!(matches!(Template::parse(text), Err(Escape(_))), "{text:?}");
    }
    let message = Template::parse("GET /{a}{b}").unwrap_err().to_string();
    assert!(message.starts_with("expected at most one variable in a segment, `{name}`"), "{message}");
}

#[test]
fn templates_are_read_from_files_as_text() {
    let template: Template = serde_json::from_str("\"GET /product/{id}\"").unwrap();
    assert_eq!((template.method(), template.path()), ("GET", "/product/{id}"));
    assert_eq!(serde_json::to_string(&template).unwrap(), "\"GET /product/{id}\"");
    assert!(serde_json::from_str::<Template>("\"/product\"").unwrap_err().to_string().contains("expected `METHOD"));
}

#[test]
fn templates_that_match_the_same_requests_are_reported_and_the_first_counts() {
    let matcher = matcher(&["GET /a/{x}", "GET /a/{y}", "POST /a/{x}", "GET /%61/{z=*}"]);
    let conflicts: Vec<_> = matcher.conflicts().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    let pair = |second: &str| ("GET /a/{x}".to_owned(), second.to_owned());
    assert_eq!(conflicts, [pair("GET /a/{y}"), pair("GET /%61/{z=*}")]);
    assert_eq!(matcher.operation("GET", "/a/b"), "GET /a/{x}");
}

#[test]
fn grpc_paths_are_service_and_method() {
    assert_eq!(grpc_operation("/hipstershop.CartService/AddItem"), Some("hipstershop.CartService/AddItem"));
    assert_eq!(grpc_operation(b"/S/M"), Some("S/M"));
    for none in ["", "/", "S/M", "/S", "/S/", "//M", "/S/M/x", "/S/M?x", "/S/\u{e9}", "/S /M", "*"] {
        assert_eq!(grpc_operation(none), None, "{none}");
    }
}

/// A segment of a template, in its own words.
#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Literal(&'static str),
    Around(&'static str, &'static str),
    Rest,
}

fn render(pieces: &[Piece]) -> String {
    let texts = pieces.iter().map(|piece| match piece {
        Piece::Literal(text) => format!("/{text}"),
        Piece::Around(before, after) => format!("/{before}{{x}}{after}"),
        Piece::Rest => "/{x=**}".to_owned(),
    });
    texts.collect()
}

/// Decoding, once more: by hand, all or nothing.
fn decoded(segment: &str) -> String {
    let mut out = String::new();
    let mut rest = segment;
    while let Some(c) = rest.chars().next() {
        match (c, rest.get(1..3).map(|hex| u8::from_str_radix(hex, 16))) {
            ('%', Some(Ok(octet))) => {
                out.push(octet as char);
                rest = &rest[3..];
            }
            ('%', _) => return segment.to_owned(),
            _ => {
                out.push(c);
                rest = &rest[1..];
            }
        }
    }
    out
}

/// How well each segment is matched, best lowest; none if the template does not match.
fn grades(pieces: &[Piece], target: &[&str]) -> Option<Vec<(u8, isize, isize)>> {
    match (pieces, target) {
        ([], []) => Some(vec![]),
        ([Piece::Rest], [_, ..]) => Some(vec![(3, 0, 0)]),
        ([piece, pieces @ ..], [segment, target @ ..]) => {
            let segment = decoded(segment);
            let grade = match piece {
                Piece::Literal(text) if decoded(text) == segment => (0, 0, 0),
                Piece::Around(before, after)
                    if segment.len() > before.len() + after.len()
                        && segment.starts_with(before)
                        && segment.ends_with(after) =>
                {
                    let length = (before.len() + after.len()) as isize;
                    (if length == 0 { 2 } else { 1 }, -length, -(before.len() as isize))
                }
                _ => return None,
            };
            let mut all = vec![grade];
            all.extend(grades(pieces, target)?);
            Some(all)
        }
        _ => None,
    }
}

/// The template with the best grades, by trying all of them.
fn brute_force(templates: &[Vec<Piece>], target: &[&str]) -> Option<usize> {
    let matching = templates.iter().enumerate().filter_map(|(i, pieces)| Some((grades(pieces, target)?, i)));
    matching.min().map(|(_, index)| index)
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop_oneof![
        4 => prop::sample::select(&["a", "b", "ab", "", "a%2Fb", "%61"][..]).prop_map(Piece::Literal),
        3 => Just(Piece::Around("", "")),
        2 => prop::sample::select(&[("a", ""), ("", "b"), ("a", "b"), ("ab", ""), ("", ":c"), ("", "b:c")][..])
            .prop_map(|(before, after)| Piece::Around(before, after)),
    ];
    (prop::collection::vec(piece, 1..5), any::<bool>(), any::<bool>()).prop_map(|(mut pieces, a, b)| {
        if a && b {
            pieces.push(Piece::Rest);
        }
        pieces
    })
}

fn target() -> impl Strategy<Value = Vec<&'static str>> {
    let segment = ["a", "b", "ab", "aab", "abb", "", "a%2fb", "%61", "%61b", "a%zz", "a:c", "bb:c", "7"];
    prop::collection::vec(prop::sample::select(segment.to_vec()), 1..6)
}

fn join(segments: &[&str]) -> String {
    segments.iter().map(|segment| format!("/{segment}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn the_tree_agrees_with_trying_all_templates(
        templates in prop::collection::vec(pieces(), 0..12), targets in prop::collection::vec(target(), 1..8),
    ) {
        let texts = templates.iter().map(|pieces| Template::parse(&format!("GET {}", render(pieces))).unwrap());
        let matcher = Matcher::new(texts.collect());
        for target in targets {
            let expected = brute_force(&templates, &target).map(|index| &matcher.templates()[index]);
            prop_assert_eq!(matcher.template("GET", join(&target)), expected, "{}", join(&target));
            prop_assert_eq!(matcher.template("POST", join(&target)), None);
        }
    }

    #[test]
    fn an_operation_names_itself(
        templates in prop::collection::vec(pieces(), 0..12),
        target in prop_oneof![
            target().prop_map(|segments| join(&segments)),
            "(/[a-z0-9:{}%;.@-]{0,12}|/[0-9]{1,3}:[a-z]{1,26}|/[a-z]{31,33}){1,16}",
            "/[ -~]{0,80}",
        ],
    ) {
        let texts = templates.iter().map(|pieces| Template::parse(&format!("GET {}", render(pieces))).unwrap());
        let matcher = Matcher::new(texts.collect());
        let operation = matcher.operation("GET", &target);
        let (method, path) = operation.split_once(' ').unwrap();
        prop_assert_eq!(matcher.operation(method, path), operation.clone(), "{}", target);
    }

    #[test]
    fn no_bytes_panic_and_every_operation_is_a_bounded_name(
        templates in prop::collection::vec(pieces(), 0..4),
        method in prop_oneof![Just(b"GET".to_vec()), any::<Vec<u8>>()],
        target in prop_oneof![
            any::<Vec<u8>>(),
            any::<Vec<u8>>().prop_map(|rest| [b"/", &rest[..]].concat()),
            "(/[a-zA-Z0-9:]{0,40}){0,40}".prop_map(String::into_bytes),
        ],
    ) {
        let texts = templates.iter().map(|pieces| Template::parse(&format!("GET {}", render(pieces))).unwrap());
        let operation = Matcher::new(texts.collect()).operation(&method, &target);
        prop_assert!(!operation.contains(char::is_control));
        prop_assert!(operation.parse::<Operation>().is_ok(), "{}", operation);
        if let Some(operation) = grpc_operation(&target) {
            prop_assert!(operation.parse::<Operation>().is_ok_and(|operation| operation.is_grpc()));
        }
    }
}
