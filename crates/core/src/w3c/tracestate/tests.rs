use proptest::prelude::*;

use super::*;
use crate::id::{CallId, ExecutionId, Token};

fn state<'a>(lines: &[&'a str]) -> TraceState<'a> {
    TraceState::parse(lines.iter().copied())
}

fn text(state: &TraceState<'_>) -> String {
    String::from_utf8(state.value().unwrap_or_default()).unwrap()
}

fn ours(call: u64) -> Member {
    Member { execution: ExecutionId(7), call: CallId(call), token: Token(0), check: 0x0e0e_4736 }
}

#[test]
fn lines_are_one_list_in_order_without_empty_members_and_whitespace() {
    for (lines, expected) in [
        (&["foo=1,bar=2"][..], "foo=1,bar=2"),
        (&["foo=1", "bar=2"], "foo=1,bar=2"),
        (&["foo=1", "", "bar=2"], "foo=1,bar=2"),
        (&["foo=1,", ",,bar=2,"], "foo=1,bar=2"),
        (&["foo=1 \t , \t bar=2, \t baz=3"], "foo=1,bar=2,baz=3"),
        (&["foo=1\t \t,\t \tbar=2,\t \tbaz=3"], "foo=1,bar=2,baz=3"),
        (&[" foo=1", "\tbar=2\t"], "foo=1,bar=2"),
        (&["foo= 1 2"], "foo= 1 2"),
        (&["foo=1,foo=2"], "foo=1,foo=2"),
        (&["", " ", ",\t,"], ""),
        (&[], ""),
    ] {
        let state = state(lines);
        assert_eq!(text(&state), expected, "{lines:?}");
        assert!(!state.is_malformed());
        assert_eq!(state.value().is_none(), expected.is_empty());
    }
}

// The cases of the W3C validation suite (trace-context/test/test.py) about keys and values.
#[test]
fn keys_and_values_outside_the_grammar_make_the_list_malformed() {
    let long_key = format!("{}=1", "z".repeat(256));
    let longer_key = format!("{}=1", "z".repeat(257));
    let long_value = format!("a={}", "t".repeat(256));
    let longer_value = format!("a={}", "t".repeat(257));
    let tenant = format!("{}@v=1", "t".repeat(241));
    for member in [
        "foo=1",
        "0=0",
        "abcdefghijklmnopqrstuvwxyz0123456789_-*/=1",
        "fw529a3039@dt=FfFlc3",
        "a@b@c=1",
        "foo=!\"#$%&'()*+-./:;<>?@[\\]^_`{|}~",
        "foo=1 2",
        &long_key,
        &long_value,
        &tenant,
    ] {
        assert!(!state(&[member]).is_malformed(), "{member}");
    }
    for member in [
        "foo",
        "foo=",
        "=1",
        "foo =1",
        "FOO=1",
        "foo.bar=1",
        "@foo=1",
        "_foo=1",
        "foo=bar=baz",
        "foo=1=",
        "foo=\u{e9}",
        "foo=\u{7f}",
        "foo=a\tb",
        "foo@=1,bar",
        "aft=1-0-0-0-0,broken",
        &longer_key,
        &longer_value,
    ] {
        assert!(state(&[member]).is_malformed(), "{member}");
    }
}

#[test]
fn the_leftmost_member_of_ours_counts_and_the_others_go_with_it() {
    let lines = [format!("foo=1,aft={}", ours(1)), format!("aft={},bar=2", ours(2))];
    let mut state = TraceState::parse(&lines);
    assert_eq!(state.member(), Some(Ok(ours(1))));
    let mut without = state.clone();
    assert!(without.remove(Member::KEY));
    assert_eq!(text(&without), "foo=1,bar=2");
    assert!(!without.remove(Member::KEY));
    state.set_member(&ours(3));
    assert_eq!(text(&state), format!("aft={},foo=1,bar=2", ours(3)));
    assert_eq!(state.member(), Some(Ok(ours(3))));
}

#[test]
fn members_with_similar_keys_are_left_alone() {
    let mut state = state(&["aft2=1,aftx=2,xaft=3,aft@v=4"]);
    assert_eq!(state.member(), None);
    assert!(!state.remove("aft"));
    assert_eq!(text(&state), "aft2=1,aftx=2,xaft=3,aft@v=4");
}

#[test]
fn a_member_that_cannot_be_read_is_reported_and_can_be_removed() {
    let mut state = state(&["aft=2-whatever,foo=1"]);
    assert_eq!(state.member(), Some(Err(MemberError::Version)));
    assert!(state.remove("aft"));
    assert_eq!(text(&state), "foo=1");
}

#[test]
fn a_malformed_list_is_absent_for_reading_kept_on_removal_and_replaced_on_adding() {
    let line = format!("aft={},Broken,foo=\u{e9}", ours(1));
    let mut state = state(&[&line]);
    assert!(state.is_malformed());
    assert_eq!((state.member(), state.get("foo")), (None, None));
    assert!(state.remove("aft"));
    assert_eq!(state.value().unwrap(), "Broken,foo=\u{e9}".as_bytes());
    state.set_member(&ours(2));
    assert_eq!(text(&state), format!("aft={}", ours(2)));
    assert_eq!(state.member(), Some(Ok(ours(2))));
}

#[test]
fn the_thirty_third_member_goes_from_the_right() {
    let line: Vec<String> = (0..32).map(|n| format!("k{n}=v")).collect();
    let text_of_line = line.join(",");
    let mut state = TraceState::parse([&text_of_line]);
    state.set_member(&ours(1));
    assert_eq!(text(&state), format!("aft={},{}", ours(1), line[..31].join(",")));
}

#[test]
fn over_512_characters_long_members_go_first_and_then_the_rightmost() {
    let small = |key: &str| format!("{key}={}", "s".repeat(97));
    let long = |key: &str| format!("{key}={}", "l".repeat(147));
    // 150 + 100 + 150 + 100 and ours: without the right long one it fits.
    let line = [long("l1"), small("s1"), long("l2"), small("s2")].join(",");
    let mut state = TraceState::parse([&line]);
    state.set_member(&ours(1));
    assert_eq!(text(&state), [format!("aft={}", ours(1)), long("l1"), small("s1"), small("s2")].join(","));
    // Five small ones and ours are too many, and none is long.
    let smalls: Vec<String> = (1..=5).map(|n| small(&format!("s{n}"))).collect();
    let line = smalls.join(",");
    let mut state = TraceState::parse([&line]);
    state.set_member(&ours(1));
    assert_eq!(text(&state), format!("aft={},{}", ours(1), smalls[..4].join(",")));
}

#[test]
fn exactly_512_characters_stay() {
    let mut kept = 0;
    for length in 430..470 {
        let line = [format!("a={}", "x".repeat(200)), format!("b={}", "y".repeat(length - 200))].join(",");
        let mut state = TraceState::parse([&line]);
        state.prepend("aft", &"z".repeat(50)).unwrap();
        let full = format!("aft={},{line}", "z".repeat(50));
        assert_eq!(text(&state) == full, full.len() <= 512, "{}", full.len());
        kept += usize::from(full.len() <= 512);
    }
    assert!(kept > 0 && kept < 40);
}

#[test]
fn a_key_or_value_that_may_not_be_sent_is_refused() {
    let mut before = state(&["foo=1"]);
    for (key, value) in
        [("", "1"), ("Foo", "1"), ("foo", ""), ("foo", "a,b"), ("foo", "a=b"), ("foo", "a\r\nx: y"), ("f,o", "1")]
    {
        assert!(before.prepend(key, value).is_err(), "{key}={value}");
    }
    assert!(before.prepend("foo", &"x".repeat(257)).is_err());
    assert_eq!(text(&before), "foo=1");
}

/// §3.3 once more, on whole strings and by trial: drop the least worthy member until the list is allowed.
fn reference(lines: &[String], key: &str, value: &str) -> String {
    let combined = lines.join(",");
    let mut others: Vec<&str> = combined
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']))
        .filter(|member| !member.is_empty() && member.split('=').next() != Some(key))
        .collect();
    others.truncate(31);
    loop {
        let mut list = vec![format!("{key}={value}")];
        list.extend(others.iter().map(|member| member.to_string()));
        let text = list.join(",");
        if text.len() <= 512 {
            return text;
        }
        let worst = others.iter().rposition(|member| member.len() > 128).unwrap_or(others.len() - 1);
        others.remove(worst);
    }
}

fn member_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-c]{1,2}=[a-z]{1,5}",
        1 => "aft=[0-9a-f-]{1,20}",
        2 => ("[a-z]{1,3}", 1usize..200).prop_map(|(key, len)| format!("{key}={}", "v".repeat(len))),
        1 => "[ \t]{0,2}",
    ]
}

fn lines() -> impl Strategy<Value = Vec<String>> {
    let line =
        prop::collection::vec(("[ \t]{0,2}", member_text(), "[ \t]{0,2}").prop_map(|(a, m, b)| a + &m + &b), 0..16);
    prop::collection::vec(line.prop_map(|members| members.join(",")), 0..4)
}

proptest! {
    #[test]
    fn adding_agrees_with_the_rule_written_as_trial_and_error(lines in lines(), call in 1u64..) {
        let mut state = TraceState::parse(&lines);
        prop_assert!(!state.is_malformed());
        state.set_member(&ours(call));
        prop_assert_eq!(text(&state), reference(&lines, "aft", &ours(call).to_string()));
    }

    #[test]
    fn adding_and_removing_gives_back_what_fits(lines in lines(), call in 1u64..) {
        let mut state = TraceState::parse(&lines);
        state.remove("aft");
        let before = state.clone();
        state.set_member(&ours(call));
        prop_assert_eq!(state.member(), Some(Ok(ours(call))));
        let fits = before.members.len() < 32 && before.value().map_or(0, |value| value.len() + 1) + 65 <= 512;
        state.remove("aft");
        prop_assert!(!fits || state == before);
        prop_assert!(state.members.iter().all(|member| before.members.contains(member)));
    }

    #[test]
    fn no_bytes_panic_and_no_edit_without_adding_grows(
        lines in prop::collection::vec(prop::collection::vec(prop_oneof![any::<u8>(), Just(b','), Just(b'='), Just(b'a')], 0..80), 0..4),
    ) {
        let received = lines.iter().map(|line| line.len() + 1).sum::<usize>();
        let mut state = TraceState::parse(&lines);
        prop_assert!(state.value().map_or(0, |value| value.len() + 1) <= received);
        state.remove("a");
        let kept = state.value().map_or(0, |value| value.len() + 1);
        prop_assert!(kept <= received);
        // What is sent is read again as the same list.
        let value = state.value();
        prop_assert_eq!(&TraceState::parse(&value).members, &state.members);
        state.set_member(&ours(1));
        let value = state.value().unwrap();
        prop_assert!(value.len() <= 512 && value.len() <= kept + 65);
        prop_assert!(!TraceState::parse([&value]).is_malformed());
    }
}

proptest! {
    #[test]
    fn the_value_with_our_member_is_that_of_a_list_in_which_it_was_set(
        members in proptest::collection::vec("aft=[a-z]{1,3}|[a-z]{1,3}=[ -+]{0,5}|[a-z]{1,9}=[0-9]{1,140}", 0..40),
    ) {
        let line = members.join(",");
        let state = TraceState::parse([&line]);
        let mut set = state.clone();
        set.set_member(&ours(5));
        prop_assert_eq!(Some(state.with_member(&ours(5))), set.value());
    }
}
