use serde_json::Value;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Step {
    call: Spanned<String>,
    #[serde(default)]
    after: Option<crate::duration::Interval>,
    #[serde(default)]
    times: Option<u8>,
    #[serde(default)]
    enabled: Option<bool>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Script {
    name: String,
    #[serde(default)]
    steps: Vec<Step>,
}

/// The message and the place of the one complaint about `text`.
fn complaint(text: &str) -> (String, Option<u32>, Option<u32>) {
    let error = from_str::<Script>("script.yaml", text).unwrap_err();
    assert_eq!(error.file, "script.yaml");
    (error.message, error.line, error.column)
}

fn at(message: &str, line: u32, column: u32) -> (String, Option<u32>, Option<u32>) {
    (message.to_owned(), Some(line), Some(column))
}

#[test]
fn an_unknown_key_is_shown_where_it_stands_with_the_nearest_valid_one() {
    let error = from_str::<Script>("script.yaml", "name: x\nsteps:\n  - call: a\n    aftr: 1s\n").unwrap_err();
    let expected = [
        "unknown key `aftr`, expected one of `call`, `after`, `times`, `enabled`; did you mean `after`?",
        " --> script.yaml:4:5",
        "  |",
        "4 |     aftr: 1s",
        "  |     ^^^^",
    ];
    assert_eq!(error.to_string(), expected.join("\n"));
}

#[test]
fn a_valid_document_is_read_with_the_places_of_its_values() {
    let text = "# comment\nname: x\nsteps:\n  - {call: a, after: 1m30s}\n  - call: \"b\"\n    times: 3\n";
    let script: Script = from_str("script.yaml", text).unwrap();
    assert_eq!(script.steps.len(), 2);
    assert_eq!(*script.steps[0].call, "a");
    assert_eq!(script.steps[0].call.location, Some(Location { line: 4, column: 12, length: 1 }));
    assert_eq!(script.steps[1].call.location, Some(Location { line: 5, column: 11, length: 3 }));
    let json: Script = from_str("script.json", r#"{"name": "x", "steps": [{"call": "a"}]}"#).unwrap();
    assert_eq!(json.steps[0].call, Spanned::from("a".to_owned()));
}

#[test]
fn every_complaint_says_what_was_expected_and_where() {
    for (text, expected) in [
        ("steps: []\n", at("expected the key `name`, it is missing here", 1, 1)),
        ("name: x\nname: y\n", at("expected each key once, found `name` again", 2, 1)),
        ("name:\n", at("expected text, found nothing; write `\"\"` for an empty text", 1, 5)),
        ("name: [a]\n", at("expected text", 1, 7)),
        ("name: x\nsteps: {}\n", at("expected a list, e.g. `- item` or `[item]`", 2, 8)),
        ("- name: x\n", at("expected a mapping, `key: value`", 1, 1)),
        ("name: x\nsteps: [{call: a, times: 300}]\n", at("expected a whole number from 0 to 255", 2, 26)),
        ("name: x\nsteps: [{call: a, times: -1}]\n", at("expected a whole number from 0 to 255", 2, 26)),
        ("name: x\nsteps: [{call: a, enabled: yes}]\n", at("expected `true` or `false`", 2, 28)),
        (
            "name: x\nsteps:\n  - call: a\n    after: 100\n",
            at("expected a duration with a unit, e.g. `100ms` or `100s`, found `100`", 4, 12),
        ),
        ("name: !secret x\n", at("expected no tag here, found `!secret`", 1, 15)),
        ("name: x\n---\nname: y\n", at("expected one document in this file, found another after it", 3, 1)),
        ("name: \"\\q\"\n", at("while parsing a quoted scalar, found unknown escape character", 1, 7)),
    ] {
        assert_eq!(complaint(text), expected, "{text:?}");
    }
}

#[test]
fn a_file_without_a_document_is_an_error_and_no_set_of_defaults() {
    #[derive(Debug, Deserialize)]
    struct Lenient {
        #[serde(default)]
        _name: Option<String>,
    }
    for text in ["", "\n\n", "# only a comment\n  # and another\r\n", "\u{feff}\n"] {
        let error = from_str::<Lenient>("empty.yaml", text).unwrap_err();
        assert_eq!(error.to_string(), "expected a document, the file is empty\n --> empty.yaml");
        assert_eq!(from_str_all::<Lenient>("empty.yaml", text).unwrap_err(), error);
    }
}

#[test]
fn several_documents_are_read_only_where_they_are_asked_for() {
    let text = "name: x\n---\nname: y\n";
    let names: Vec<String> =
        from_str_all::<Script>("all.yaml", text).unwrap().into_iter().map(|script| script.name).collect();
    assert_eq!(names, ["x", "y"]);
    let error = from_str_all::<Script>("all.yaml", "name: x\n---\nname: y\nstep: []\n").unwrap_err();
    assert_eq!((error.line, error.column), (Some(4), Some(1)));
}

#[test]
fn size_nesting_and_aliases_are_bounded() {
    let large = format!("name: {}\n", "x".repeat(MAX_BYTES));
    let (message, line, _) = complaint(&large);
    assert_eq!((message.as_str(), line), ("expected a file of at most 1048576 bytes, found 1048583 bytes", None));
    assert!(from_str::<Script>("script.yaml", &large[..MAX_BYTES]).is_ok());

    assert!(from_str::<Value>("deep.yaml", &format!("{}{}", "[".repeat(60), "]".repeat(60))).is_ok());
    for deep in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
        assert!(from_str::<Value>("deep.yaml", &deep).unwrap_err().line.is_some());
    }

    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let previous = format!("*a{}, ", level - 1).repeat(9);
        let _ = writeln!(bomb, "a{level}: &a{level} [{previous}]");
    }
    assert!(from_str::<Value>("bomb.yaml", &bomb).unwrap_err().message.contains("smaller"));
}

#[test]
fn a_check_after_parsing_points_at_the_value_it_refuses() {
    let text = "name: x\nsteps:\n\t\n  - call: pay\n".replace("\n\t\n", "\n");
    let script: Script = from_str("script.yaml", &text).unwrap();
    let call = &script.steps[0].call;
    let error = Located::at("script.yaml", &text, call.location, format_args!("no trace has a call `{call}`"));
    assert_eq!(
        error.to_string(),
        "no trace has a call `pay`\n --> script.yaml:3:11\n  |\n3 |   - call: pay\n  |           ^^^"
    );
}

#[test]
fn an_alias_is_reported_where_it_is_used() {
    let text = "name: &n {a: b}\nsteps: *n\n";
    #[derive(Debug, Deserialize)]
    struct Aliased {
        #[serde(rename = "name")]
        _name: Value,
        #[serde(rename = "steps")]
        _steps: Vec<String>,
    }
    let error = from_str::<Aliased>("alias.yaml", text).unwrap_err();
    assert_eq!((error.message.as_str(), error.line), ("expected a list, e.g. `- item` or `[item]`", Some(2)));
}

#[test]
fn long_lines_are_cut_around_the_place_and_control_characters_are_not_printed() {
    let text = format!("name: x\nsteps: [{}{{call: a, tines: 1}}]\n", "{call: a}, ".repeat(100));
    let error = from_str::<Script>("script.yaml", &text).unwrap_err();
    let shown = error.to_string();
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() < 140), "{shown}");
    let start = lines[4].find('^').unwrap();
    let underlined: String = lines[3].chars().skip(start).take(5).collect();
    assert_eq!((underlined.as_str(), error.column), ("tines", Some(1119)));

    let error = from_str::<Script>("script.yaml", "name: x\n\"st\\e[31mps\": 1\n").unwrap_err();
    assert!(error.message.starts_with("unknown key `st\\u{1b}[31mps`"), "{}", error.message);
    assert!(!error.to_string().replace('\n', "").contains(char::is_control));
}

#[test]
fn lines_end_as_yaml_ends_them() {
    assert_eq!(lines("a\nb\r\nc\rd").collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    for text in ["name: x\rstep: 1\r", "name: x\r\nstep: 1\r\n", "\u{feff}name: x\nstep: 1"] {
        let shown = from_str::<Script>("script.yaml", text).unwrap_err().to_string();
        assert!(shown.ends_with("2 | step: 1\n  | ^^^^"), "{shown}");
    }
}

#[test]
fn a_value_without_a_place_is_read_from_json_and_has_the_schema_of_its_type() {
    let step: Step = serde_json::from_str(r#"{"call": "a"}"#).unwrap();
    assert_eq!((step.call.value.as_str(), step.call.location), ("a", None));
    assert_eq!(serde_json::to_value(&step.call).unwrap(), "a");
    assert_eq!(schemars::schema_for!(Spanned<String>), schemars::schema_for!(String));
}

#[test]
fn the_kind_is_read_before_the_rest() {
    let text = "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nanything: [1, 2]\n";
    assert_eq!(kind("a.yaml", text).unwrap(), "Scenario");
    let error = kind("a.yaml", "apiVersion: aftershock.dev/v1alpha1\n").unwrap_err();
    assert_eq!(error.message, "expected the key `kind`, it is missing here");
    let error = from_str_as::<Value>("Topology", "a.yaml", text).unwrap_err();
    assert_eq!(
        (error.message.as_str(), error.line, error.column),
        ("expected `kind: Topology`, found `kind: Scenario`", Some(2), Some(7))
    );
    assert!(from_str_as::<Value>("Scenario", "a.yaml", text).is_ok());
}

#[test]
fn another_version_is_named_newer_older_or_foreign() {
    for (version, says) in [
        ("aftershock.dev/v1alpha2", "the newer `aftershock.dev/v1alpha2`: this file needs a newer aftershock"),
        ("aftershock.dev/v1beta1", "the newer"),
        ("aftershock.dev/v1", "the newer"),
        ("aftershock.dev/v2alpha1", "the newer"),
        ("aftershock.dev/v1alpha0", "the older `aftershock.dev/v1alpha0`, which this aftershock no longer reads"),
        ("aftershock.dev/v0", "the older"),
        ("aftershock.dev/v1gamma1", "which is no version"),
        ("aftershock.dev/", "which is no version"),
        ("chaos-mesh.org/v1alpha1", "not a file of aftershock"),
        ("v1", "not a file of aftershock"),
    ] {
        let text = format!("apiVersion: {version}\nkind: Scenario\n");
        let error = kind("a.yaml", &text).unwrap_err();
        assert!(error.message.contains(says), "{version}: {}", error.message);
        assert!(error.message.starts_with("expected `apiVersion: aftershock.dev/v1alpha1`"));
        assert_eq!((error.line, error.column), (Some(1), Some(13)));
    }
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_panics_and_every_error_can_be_shown(text in "([a-z:\\-{}\\[\\]&*!\"'|># \n\r\t\u{e9}\u{1f600}]|name|steps|call){0,40}") {
            let one = from_str::<Script>("p.yaml", &text).err();
            for error in one.into_iter().chain(from_str_all::<Value>("p.yaml", &text).err()) {
                prop_assert!(error.to_string().contains("--> p.yaml"));
            }
        }

        #[test]
        fn the_underline_starts_under_the_column(before in "[ -~\u{e9}]{0,300}", after in "[ -~]{0,300}", length in 0u32..9) {
            let text = format!("{before}X{after}");
            let column = before.chars().count() as u32 + 1;
            let error = Located::at("f", &text, Some(Location { line: 1, column, length }), "m");
            let (start, _) = error.underline;
            prop_assert_eq!(error.excerpt.chars().nth(start), Some('X'));
        }

        #[test]
        fn a_location_outside_the_text_does_no_harm(text in "\\PC*", line in 0u32..9, column: u32, length: u32) {
            let error = Located::at("f", &text, Some(Location { line, column, length }), "m");
            prop_assert!(error.to_string().len() < 16 * (text.len() + 200));
        }
    }
}
