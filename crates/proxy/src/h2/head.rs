//! Header lists as heads of messages (RFC 9113 §8.2, §8.3), and the edits of a part.

use smallvec::SmallVec;

use crate::exchange::{Edit, Edits, Fields, Protocol, RequestHead, ResponseHead};
use crate::hpack::HeaderList;

/// A message that an intermediary must not forward (RFC 9113 §8.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

const NO: u8 = 0;
const OK: u8 = 1;

/// Octets of a field name: visible, not upper case, no colon (RFC 9113 §8.2.1).
static NAME: [u8; 256] = {
    let mut table = [NO; 256];
    let mut octet = 0x21;
    while octet < 0x7f {
        if !(octet as u8).is_ascii_uppercase() && octet != b':' as usize {
            table[octet] = OK;
        }
        octet += 1;
    }
    table
};

/// Split `list` into pseudo-header fields, given to `pseudo`, and the others. Connection-specific fields (§8.2.2) are left
/// for the receiver to judge, as without a sidecar.
fn split<'a>(
    list: &'a HeaderList,
    mut pseudo: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Malformed>,
) -> Result<Fields<'a>, Malformed> {
    let mut fields = Fields::default();
    for (name, value) in list.iter() {
        // Without early exit: the compiler makes vectors of it.
        let broken = value.iter().fold(false, |bad, b| bad | (*b == 0) | (*b == b'\r') | (*b == b'\n'));
        // gRPC peers that agreed on it (a setting of theirs, which passes) send the values of `-bin` fields raw behind a NUL.
        let raw = || value.first() == Some(&0) && name.ends_with(b"-bin");
        if name.is_empty() || (broken && !raw()) {
            return Err(Malformed);
        }
        if name[0] == b':' {
            if !fields.0.is_empty() {
                return Err(Malformed);
            }
            pseudo(name, value)?;
            continue;
        }
        if name.iter().fold(OK, |ok, b| ok & NAME[*b as usize]) == NO {
            return Err(Malformed);
        }
        fields.0.push((name, value));
    }
    Ok(fields)
}

fn once<'a>(slot: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), Malformed> {
    if slot.replace(value).is_some() { Err(Malformed) } else { Ok(()) }
}

fn text(octets: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(octets).map_err(|_| Malformed)
}

/// The head of a request.
pub(crate) fn request(list: &HeaderList, ends: bool) -> Result<RequestHead<'_>, Malformed> {
    let (mut method, mut scheme, mut path, mut authority, mut protocol) = (None, None, None, None, None);
    let fields = split(list, |name, value| {
        let slot = match name {
            b":method" => &mut method,
            b":scheme" => &mut scheme,
            b":path" => &mut path,
            b":authority" => &mut authority,
            b":protocol" => &mut protocol,
            _ => return Err(Malformed),
        };
        once(slot, value)
    })?;
    let method = text(method.filter(|m| !m.is_empty()).ok_or(Malformed)?)?;
    let authority = match authority {
        Some(authority) => text(authority)?,
        None => fields.text("host").unwrap_or(""),
    };
    let path = if method == "CONNECT" && protocol.is_none() {
        if scheme.is_some() || path.is_some() || authority.is_empty() {
            return Err(Malformed);
        }
        authority
    } else {
        scheme.ok_or(Malformed)?;
        text(path.filter(|p| !p.is_empty()).ok_or(Malformed)?)?
    };
    Ok(RequestHead { protocol: Protocol::Http2, method, path, authority, fields, ends })
}

/// The head of a response, informational ones included.
pub(crate) fn response(list: &HeaderList, ends: bool) -> Result<ResponseHead<'_>, Malformed> {
    let mut status = None;
    let fields = split(list, |name, value| if name == b":status" { once(&mut status, value) } else { Err(Malformed) })?;
    let status = match status.ok_or(Malformed)? {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
        }
        _ => return Err(Malformed),
    };
    Ok(ResponseHead { status, fields, ends })
}

/// Trailers of either direction.
pub(crate) fn trailers(list: &HeaderList) -> Result<Fields<'_>, Malformed> {
    split(list, |_, _| Err(Malformed))
}

/// A field line of an edited list: one of the list, or the value of an [`Edit::Set`], by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Kept(usize),
    Set(usize),
}

/// The lines of an edited list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Edited {
    pub(crate) lines: SmallVec<[Line; 32]>,
    /// A [`Edit::Set`] was left out because the list would have exceeded its limit.
    pub(crate) oversized: bool,
}

/// The name of the line of `list` that an edit of `name` means: the host of a request stands in `:authority` (§8.3.1).
pub(crate) fn line_name(list: &HeaderList, name: &'static str) -> &'static str {
    let has_authority =
        || list.iter().take_while(|(name, _)| name.starts_with(b":")).any(|(name, _)| name == b":authority");
    if name == "host" && has_authority() { ":authority" } else { name }
}

/// Apply `edits` to `list` in order. What would lift the list above `limit` (SETTINGS_MAX_HEADER_LIST_SIZE of the
/// receiver) is left out; a list that is above it anyway passes as it is.
pub(crate) fn edit(list: &HeaderList, edits: &Edits, limit: Option<u32>) -> Edited {
    let mut edited = Edited { lines: (0..list.len()).map(Line::Kept).collect(), oversized: false };
    let mut size = list.size();
    let line_of = |line: &Line| match line {
        Line::Kept(index) => list.get(*index),
        Line::Set(index) => match &edits[*index] {
            Edit::Set(name, value) => (line_name(list, name).as_bytes(), &value[..]),
            Edit::Remove(name) => (line_name(list, name).as_bytes(), &[][..]),
        },
    };
    let cost = |line: &Line| {
        let (name, value) = line_of(line);
        name.len() + value.len() + 32
    };
    for (index, edit) in edits.iter().enumerate() {
        let name = match edit {
            Edit::Set(name, _) | Edit::Remove(name) => line_name(list, name).as_bytes(),
        };
        let is_named = |line: &Line| line_of(line).0.eq_ignore_ascii_case(name);
        let freed: usize = edited.lines.iter().filter(|line| is_named(line)).map(cost).sum();
        if let Edit::Set(..) = edit {
            let line = Line::Set(index);
            let becomes = size - freed + cost(&line);
            if limit.is_some_and(|limit| becomes > limit as usize && becomes > size) {
                edited.oversized = true;
                continue;
            }
            size = becomes;
            let place = edited.lines.iter().position(is_named);
            match place {
                Some(place) => {
                    edited.lines[place] = line;
                    let mut at = 0;
                    edited.lines.retain(|other| {
                        at += 1;
                        at - 1 <= place || !is_named(other)
                    });
                }
                None => edited.lines.push(line),
            }
        } else {
            size -= freed;
            edited.lines.retain(|line| !is_named(line));
        }
    }
    edited
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smallvec::smallvec;

    use super::*;
    use crate::hpack::Indexing;

    fn list(fields: &[(&str, &str)]) -> HeaderList {
        let mut list = HeaderList::default();
        for (name, value) in fields {
            list.push(name.as_bytes(), value.as_bytes(), Indexing::Incremental);
        }
        list
    }

    const GET: [(&str, &str); 3] = [(":method", "GET"), (":scheme", "http"), (":path", "/a?b")];

    #[test]
    fn requests_are_split_into_pseudo_headers_and_fields() {
        let fields = list(&[&GET[..], &[("host", "h"), ("te", "trailers")]].concat());
        let head = request(&fields, true).unwrap();
        assert_eq!((head.method, head.path, head.authority, head.ends), ("GET", "/a?b", "h", true));
        assert_eq!(head.fields.0[..], [(&b"host"[..], &b"h"[..]), (b"te", b"trailers")]);
        let connect = list(&[(":method", "CONNECT"), (":authority", "db:5432")]);
        assert_eq!(request(&connect, false).unwrap().path, "db:5432");
        let extended = list(
            &[&[(":method", "CONNECT"), (":protocol", "websocket")], &GET[1..], &[(":authority", "chat")]].concat(),
        );
        assert_eq!(request(&extended, false).unwrap().path, "/a?b");
    }

    #[test]
    fn malformed_heads_are_refused() {
        let bad: &[&[(&str, &str)]] = &[
            &[],
            &GET[1..],
            &GET[..2],
            &[GET[0], GET[0], GET[1], GET[2]],
            &[GET[0], GET[1], ("a", "b"), GET[2]],
            &[GET[0], GET[1], GET[2], (":status", "200")],
            &[GET[0], GET[1], GET[2], ("A", "b")],
            &[GET[0], GET[1], GET[2], ("a b", "b")],
            &[GET[0], GET[1], GET[2], ("", "b")],
            &[GET[0], GET[1], GET[2], ("a", "b\r\nc: d")],
            &[GET[0], GET[1], GET[2], ("a", "\0")],
            &[GET[0], GET[1], (":path", "")],
            &[(":method", "CONNECT"), (":authority", "x"), (":path", "/")],
            &[(":method", "CONNECT")],
        ];
        for fields in bad {
            assert!(request(&list(fields), false).is_err(), "{fields:?}");
        }
        for status in ["", "20", "2000", "0x1", "099", "+20"] {
            assert!(response(&list(&[(":status", status)]), false).is_err(), "{status}");
        }
        assert_eq!(response(&list(&[(":status", "299")]), false).unwrap().status, 299);
        assert!(trailers(&list(&[(":status", "200")])).is_err());
        assert!(trailers(&list(&[("grpc-status", "0")])).is_ok());
    }

    #[test]
    fn raw_binary_values_of_grpc_are_no_malformed_fields() {
        assert!(trailers(&list(&[("x-bin", "\0\r\n\0")])).is_ok());
        assert!(trailers(&list(&[("x-bin", "a\0")])).is_err());
        assert!(trailers(&list(&[("x", "\0\r\n")])).is_err());
    }

    fn lines(list: &HeaderList, edits: &Edits, edited: &Edited) -> Vec<(String, String)> {
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        let line = |line: &Line| match line {
            Line::Kept(index) => {
                let (name, value) = list.get(*index);
                (text(name), text(value))
            }
            Line::Set(index) => match &edits[*index] {
                Edit::Set(name, value) => ((*name).to_owned(), text(value)),
                Edit::Remove(_) => unreachable!(),
            },
        };
        edited.lines.iter().map(line).collect()
    }

    /// The definition of [`Edit`], on owned strings.
    fn reference(fields: &[(String, String)], edits: &Edits) -> Vec<(String, String)> {
        let mut lines = fields.to_vec();
        for edit in edits {
            match edit {
                Edit::Remove(name) => lines.retain(|(n, _)| n != name),
                Edit::Set(name, value) => {
                    let place = lines.iter().position(|(n, _)| n == name);
                    let mut first = true;
                    lines.retain(|(n, _)| n != name || std::mem::take(&mut first));
                    let line = ((*name).to_owned(), String::from_utf8(value.clone()).unwrap());
                    match place {
                        Some(place) => lines[place] = line,
                        None => lines.push(line),
                    }
                }
            }
        }
        lines
    }

    fn name() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["a", "b", "c", "d"])
    }

    proptest! {
        #[test]
        fn edits_apply_in_order_and_leave_other_lines_alone(
            fields in prop::collection::vec((name(), "[a-z]{0,3}"), 0..10),
            edits in prop::collection::vec((name(), prop::option::of("[a-z]{0,3}")), 0..6),
        ) {
            let fields: Vec<(String, String)> = fields.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
            let mut headers = HeaderList::default();
            for (name, value) in &fields {
                headers.push(name.as_bytes(), value.as_bytes(), Indexing::Without);
            }
            let edits: Edits = edits.into_iter().map(|(n, v)| v.map_or(Edit::Remove(n), |v: String| Edit::Set(n, v.into()))).collect();
            let edited = edit(&headers, &edits, None);
            prop_assert_eq!(lines(&headers, &edits, &edited), reference(&fields, &edits));
        }
    }

    #[test]
    fn the_host_of_a_request_is_its_authority_where_it_has_one() {
        let edits: Edits = smallvec![Edit::Set("host", "there".into())];
        for (given, expected) in [(":authority", ":authority"), ("host", "host"), ("x-other", "host")] {
            let mut fields = vec![(":method", "GET"), (given, "here"), ("accept", "*/*")];
            if given == "x-other" {
                fields.swap(1, 2);
            }
            let headers = list(&fields);
            let edited = edit(&headers, &edits, None);
            let at = edited.lines.iter().position(|line| matches!(line, Line::Set(_))).unwrap();
            assert_eq!(at, if given == "x-other" { 3 } else { 1 }, "in its place");
            assert_eq!(edited.lines.len(), if given == "x-other" { 4 } else { 3 });
            assert_eq!(line_name(&headers, "host"), expected);
        }
    }

    #[test]
    fn additions_beyond_the_receivers_limit_are_left_out_and_removals_stay() {
        let headers = list(&[("a", "1"), ("b", "2"), ("b", "3")]);
        assert_eq!(headers.size(), 102);
        let edits: Edits = smallvec![
            Edit::Remove("b"),
            Edit::Set("aft", b"x".repeat(40)),
            Edit::Set("z", "1".into()),
            Edit::Set("a", "9".into())
        ];
        let edited = edit(&headers, &edits, Some(100));
        assert!(edited.oversized);
        let expected = [("a", "9"), ("z", "1")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(lines(&headers, &edits, &edited), expected);
        let edited = edit(&headers, &edits, Some(143));
        assert!(!edited.oversized);
        assert_eq!(edited.lines.len(), 3);
    }
}
