//! Rewriting single field lines of a head or a trailer section.
//!
//! Invariant: every byte of a line that no edit names is written as it came, in its place.

use bytes::BytesMut;
use smallvec::SmallVec;

use crate::exchange::{Edit, Edits, Fields};

/// What the edits make of the lines of one name.
enum Outcome<'e> {
    /// The first line gets this value, the others go.
    Replace(&'e [u8]),
    /// All lines go.
    Remove,
}

/// Writes `raw`, a block of lines that ends in an empty line, with `edits` applied in order. `fields` are the field lines
/// in `raw`, borrowed from it; what stands before the first is copied.
pub(super) fn write(raw: &[u8], fields: &Fields<'_>, edits: &Edits, out: &mut BytesMut) {
    let end = raw.len() - 2;
    let mut copied = 0;
    // Of each edit, whether there is a line of its name.
    let mut there: SmallVec<[bool; 8]> = edits.iter().map(|_| false).collect();
    if !edits.is_empty() {
        for (at, (name, value)) in fields.0.iter().enumerate() {
            let Some(edit) = edits.iter().position(|e| name_of(e).as_bytes().eq_ignore_ascii_case(name)) else {
                continue;
            };
            let known = name_of(&edits[edit]);
            let first = !there[edit];
            there.iter_mut().zip(edits).for_each(|(there, other)| *there |= name_of(other) == known);
            let start = offset(raw, name);
            let next = fields.0.get(at + 1).map_or(end, |(name, _)| offset(raw, name));
            match in_place(known, edits) {
                Outcome::Replace(new) if first => {
                    // An empty value may have been trimmed away to nothing; then its place is behind the colon.
                    let until = if value.is_empty() { start + name.len() + 1 } else { offset(raw, value) };
                    out.extend_from_slice(&raw[copied..until]);
                    if value.is_empty() {
                        out.extend_from_slice(b" ");
                    }
                    out.extend_from_slice(new);
                    out.extend_from_slice(b"\r\n");
                }
                Outcome::Replace(_) | Outcome::Remove => out.extend_from_slice(&raw[copied..start]),
            }
            copied = next;
        }
    }
    out.extend_from_slice(&raw[copied..end]);
    append(&there, edits, out);
    out.extend_from_slice(&raw[end..]);
}

/// What becomes of the lines that are there. A `Set` behind a `Remove` writes a new line at the end, see [`append`].
fn in_place<'e>(name: &str, edits: &'e Edits) -> Outcome<'e> {
    let mut value = None;
    for edit in edits.iter().filter(|e| name_of(e) == name) {
        match edit {
            Edit::Set(_, new) => value = Some(&new[..]),
            Edit::Remove(_) => return Outcome::Remove,
        }
    }
    value.map_or(Outcome::Remove, Outcome::Replace)
}

/// Writes the lines that were not there, in the order in which they were first set.
fn append(there: &[bool], edits: &Edits, out: &mut BytesMut) {
    for (at, edit) in edits.iter().enumerate() {
        let Edit::Set(name, _) = edit else { continue };
        let of_name = || edits.iter().enumerate().filter(|(_, e)| name_of(e) == *name);
        let last_remove = of_name().filter(|(_, e)| matches!(e, Edit::Remove(_))).map(|(at, _)| at).next_back();
        let first_set = of_name().find(|(i, e)| matches!(e, Edit::Set(..)) && last_remove.is_none_or(|r| *i > r));
        if first_set.map(|(i, _)| i) != Some(at) || (there[at] && last_remove.is_none()) {
            continue;
        }
        if let Some((_, Edit::Set(_, value))) = of_name().next_back() {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }
}

fn name_of(edit: &Edit) -> &'static str {
    match edit {
        Edit::Set(name, _) | Edit::Remove(name) => name,
    }
}

/// Where `part`, a slice of `whole`, starts in it.
fn offset(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edited(raw: &str, edits: &[Edit]) -> String {
        let mut out = BytesMut::new();
        let parsed = super::super::head::request(raw.as_bytes()).expect("a well-formed head");
        write(raw.as_bytes(), &parsed.head.fields, &edits.iter().cloned().collect(), &mut out);
        String::from_utf8(out.to_vec()).expect("text")
    }

    fn set(name: &'static str, value: &str) -> Edit {
        Edit::Set(name, value.into())
    }

    const RAW: &str = "GET /  HTTP/1.1\r\n";

    #[test]
    fn only_named_lines_change() {
        let raw =
            format!("{}A:1\r\nTraceState:   x=1  \r\nB:\t2 \r\ntracestate: y=2\r\nC:\r\n\r\n", &RAW.replace("  ", " "));
        let start = "GET / HTTP/1.1\r\nA:1\r\n";
        assert_eq!(edited(&raw, &[]), raw);
        assert_eq!(
            edited(&raw, &[set("tracestate", "new")]),
            format!("{start}TraceState:   new\r\nB:\t2 \r\nC:\r\n\r\n")
        );
        assert_eq!(edited(&raw, &[Edit::Remove("tracestate")]), format!("{start}B:\t2 \r\nC:\r\n\r\n"));
        assert_eq!(edited(&raw, &[set("c", "v")]), raw.replace("C:\r\n", "C: v\r\n"));
        assert_eq!(edited(&raw, &[set("new", "1"), Edit::Remove("absent")]), raw.replace("C:\r\n", "C:\r\nnew: 1\r\n"));
    }

    #[test]
    fn a_head_without_fields_gets_its_first() {
        assert_eq!(edited("GET / HTTP/1.0\r\n\r\n", &[set("a", "b")]), "GET / HTTP/1.0\r\na: b\r\n\r\n");
    }

    /// The edits applied one by one to a list of lines: what the documentation of [`Edit`] says, word by word.
    fn model(lines: &[(String, String)], edits: &[Edit]) -> Vec<(String, String)> {
        let mut lines = lines.to_vec();
        for edit in edits {
            let name = name_of(edit);
            let first = lines.iter().position(|(n, _)| n.eq_ignore_ascii_case(name));
            match (edit, first) {
                (Edit::Set(_, value), Some(first)) => {
                    lines[first].1 = String::from_utf8(value.clone()).unwrap();
                    let mut at = 0;
                    lines.retain(|(n, _)| {
                        at += 1;
                        at - 1 <= first || !n.eq_ignore_ascii_case(name)
                    });
                }
                (Edit::Set(_, value), None) => lines.push((name.into(), String::from_utf8(value.clone()).unwrap())),
                (Edit::Remove(_), _) => lines.retain(|(n, _)| !n.eq_ignore_ascii_case(name)),
            }
        }
        lines
    }

    fn name() -> impl Strategy<Value = &'static str> {
        prop_oneof![Just("a"), Just("b"), Just("c")]
    }

    proptest! {
        #[test]
        fn edits_do_what_they_say(
            lines in prop::collection::vec((prop_oneof![Just("A"), Just("a"), Just("b"), Just("x")], "[a-z]{0,3}"), 0..6),
            edits in prop::collection::vec(
                prop_oneof![(name(), "[0-9]{1,2}").prop_map(|(n, v)| set(n, &v)), name().prop_map(Edit::Remove)], 0..5),
        ) {
            let lines: Vec<_> = lines.into_iter().map(|(n, v)| (n.to_string(), v)).collect();
            let text = |lines: &[(String, String)]| {
                let lines: String = lines.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
                format!("GET / HTTP/1.1\r\n{lines}\r\n")
            };
            prop_assert_eq!(edited(&text(&lines), &edits), text(&model(&lines, &edits)));
        }
    }
}
