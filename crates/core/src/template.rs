//! Operations of HTTP requests: `METHOD /path/{template}` (design §2, §3.10).
//!
//! A [`Matcher`] holds the templates of one callee. Literal beats variable, segment by segment from the left, with
//! backtracking; a longer literal part of a segment beats a shorter one, a single segment beats the tail. Where no
//! template matches, segments that look like ids become `{id}`, so that the number of operations stays small.
//!
//! Invariants of every operation: it parses as [`crate::name::Operation`]; it names itself, so the operation of an
//! operation's own path is that operation. Segments are split first and decoded then: `%2F` does not split. A trailing
//! slash and empty segments count. The query is not part of an operation.

mod segment;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest template, as long as an operation may be.
const MAX_LENGTH: usize = 512;
/// The longest method that is kept.
const MAX_METHOD: usize = 32;
/// The most segments of an operation without a template.
const MAX_SEGMENTS: usize = 12;
/// The most characters of the path of an operation without a template, but for a last `/...`.
const MAX_GUESSED: usize = 400;
/// The method of requests whose method is none (as OpenTelemetry names it).
const OTHER_METHOD: &str = "_OTHER";

/// Why a text is not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseTemplateError {
    /// Not a method and a path.
    #[error("expected `METHOD /path/{{name}}`, up to 512 visible ASCII characters without query, found {0:?}")]
    Form(String),
    /// A segment with braces that are no variable.
    #[error(
        "expected at most one variable in a segment, `{{name}}`, with letters, digits, `_`, `-` or `.` in its name, found {0:?}"
    )]
    Variable(String),
    /// A tail that is not the last segment, or has text beside it.
    #[error("expected `{{name=**}}` only as the whole last segment, found {0:?}")]
    Tail(String),
    /// A literal segment that cannot be decoded, or that only encoding keeps from being a variable.
    #[error("expected percent-encoded octets, and no braces, in a literal segment, found {0:?}")]
    Escape(String),
}

/// What a segment of a path must be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Segment {
    /// These octets, decoded.
    Literal(Vec<u8>),
    /// Anything between the two, at least one octet: `{id}`, `{id}:cancel`, `v{n}.json`.
    Variable { prefix: Vec<u8>, suffix: Vec<u8> },
    /// This segment and all after it; at least one, which may be empty.
    Tail,
}

/// An HTTP method with a path in which some segments are variable.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Template {
    method: String,
    path: String,
    segments: Vec<Segment>,
}

impl Template {
    /// Reads `METHOD /path`, where a segment is literal, holds one `{name}`, or, as the last, is `{name=**}` or
    /// `{name...}` for the rest of the path.
    pub fn parse(text: &str) -> Result<Self, ParseTemplateError> {
        let form = || ParseTemplateError::Form(excerpt(text));
        let (method, path) = text.split_once(' ').ok_or_else(form)?;
        let visible = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#');
        if text.len() > MAX_LENGTH || !is_method(method.as_bytes()) || !visible {
            return Err(form());
        }
        let inner = path.strip_prefix('/').ok_or_else(form)?;
        let segments = inner.split('/').map(segment).collect::<Result<Vec<_>, _>>()?;
        if segments[..segments.len() - 1].contains(&Segment::Tail) {
            return Err(ParseTemplateError::Tail(excerpt(text)));
        }
        Ok(Template { method: method.to_owned(), path: path.to_owned(), segments })
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The path with its variables, as configured.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// Reads one segment of a template.
fn segment(text: &str) -> Result<Segment, ParseTemplateError> {
    let literal = |text: &str| {
        let decoded = decode(text.as_bytes()).filter(|octets| !octets.iter().any(|octet| b"{}".contains(octet)));
        decoded.map(Cow::into_owned).ok_or_else(|| ParseTemplateError::Escape(excerpt(text)))
    };
    let variable = || ParseTemplateError::Variable(excerpt(text));
    let Some(open) = text.find('{') else {
        return if text.contains('}') { Err(variable()) } else { literal(text).map(Segment::Literal) };
    };
    let close = text.find('}').filter(|close| *close > open).ok_or_else(variable)?;
    let (prefix, inner, suffix) = (&text[..open], &text[open + 1..close], &text[close + 1..]);
    if suffix.contains(['{', '}']) {
        return Err(variable());
    }
    let tail = inner.strip_suffix("=**").or_else(|| inner.strip_suffix("..."));
    let name = tail.or_else(|| inner.strip_suffix("=*")).unwrap_or(inner);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)) {
        return Err(variable());
    }
    match (tail, prefix, suffix) {
        (Some(_), "", "") => Ok(Segment::Tail),
        (Some(_), _, _) => Err(ParseTemplateError::Tail(excerpt(text))),
        (None, prefix, suffix) => Ok(Segment::Variable { prefix: literal(prefix)?, suffix: literal(suffix)? }),
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A token (RFC 9110 §5.6.2) that is short enough.
fn is_method(method: &[u8]) -> bool {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    (1..=MAX_METHOD).contains(&method.len()) && method.iter().all(token)
}

/// The octets that a segment stands for; none if an escape in it is broken.
fn decode(segment: &[u8]) -> Option<Cow<'_, [u8]>> {
    let escapes = segment.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    for (at, _) in escapes {
        match segment.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => {}
            _ => return None,
        }
    }
    Some(percent_decode(segment).into())
}

impl FromStr for Template {
    type Err = ParseTemplateError;

    fn from_str(text: &str) -> Result<Self, ParseTemplateError> {
        Template::parse(text)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Template {
    fn schema_name() -> Cow<'static, str> {
        "Template".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "an HTTP operation, `METHOD /path/{name}`; `{name=**}` as the last segment takes the rest",
            "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} /[!-~]*$",
            "examples": ["GET /product/{id}", "POST /v1/{name}:cancel", "GET /static/{rest=**}"],
        })
    }
}

/// A place in the tree of segments of one method.
#[derive(Debug, Clone, Default)]
struct Node {
    literals: BTreeMap<Vec<u8>, Node>,
    /// Variables with literal text, the longest text first.
    affixed: Vec<(Vec<u8>, Vec<u8>, Node)>,
    variable: Option<Box<Node>>,
    /// The template that takes all that is left.
    tail: Option<usize>,
    /// The template that ends here.
    end: Option<usize>,
}

impl Node {
    /// The slot for the template with these segments.
    fn slot(&mut self, segments: &[Segment]) -> &mut Option<usize> {
        let Some((first, rest)) = segments.split_first() else { return &mut self.end };
        let child = match first {
            Segment::Tail => return &mut self.tail,
            Segment::Literal(octets) => self.literals.entry(octets.clone()).or_default(),
            Segment::Variable { prefix, suffix } if prefix.is_empty() && suffix.is_empty() => {
                self.variable.get_or_insert_default()
            }
            Segment::Variable { prefix, suffix } => {
                // Of two that match one segment and are equally long, the prefixes differ in length or not at all.
                let rank = |prefix: &[u8], suffix: &[u8]| Reverse((prefix.len() + suffix.len(), prefix.len()));
                let key = (rank(prefix, suffix), &prefix[..], &suffix[..]);
                let found = self.affixed.binary_search_by(|(p, s, _)| (rank(p, s), &p[..], &s[..]).cmp(&key));
                let at = found.unwrap_or_else(|at| {
                    self.affixed.insert(at, (prefix.clone(), suffix.clone(), Node::default()));
                    at
                });
                &mut self.affixed[at].2
            }
        };
        child.slot(rest)
    }

    /// The best template for `path`, what is left of it after the slash that led here. No node is visited twice.
    fn find(&self, path: Option<&[u8]>) -> Option<usize> {
        let Some(path) = path else { return self.end };
        let end = path.iter().position(|byte| *byte == b'/');
        let (raw, rest) = (&path[..end.unwrap_or(path.len())], end.map(|end| &path[end + 1..]));
        let octets = decode(raw).unwrap_or(Cow::Borrowed(raw));
        let affixed = || {
            let between = |prefix: &[u8], suffix: &[u8]| {
                octets.len() > prefix.len() + suffix.len() && octets.starts_with(prefix) && octets.ends_with(suffix)
            };
            let matching = self.affixed.iter().filter(|(prefix, suffix, _)| between(prefix, suffix));
            matching.into_iter().find_map(|(_, _, node)| node.find(rest))
        };
        let variable = || self.variable.as_ref().filter(|_| !octets.is_empty()).and_then(|node| node.find(rest));
        let literal = self.literals.get(&octets[..]).and_then(|node| node.find(rest));
        literal.or_else(affixed).or_else(variable).or(self.tail)
    }
}

/// The templates of one callee.
#[derive(Debug, Clone, Default)]
pub struct Matcher {
    templates: Vec<Template>,
    methods: BTreeMap<String, Node>,
    conflicts: Vec<(usize, usize)>,
}

impl Matcher {
    /// Of templates that differ only in the names of their variables the first counts; see [`Matcher::conflicts`].
    pub fn new(templates: Vec<Template>) -> Self {
        let mut matcher = Matcher { templates, ..Matcher::default() };
        for (index, template) in matcher.templates.iter().enumerate() {
            let root = matcher.methods.entry(template.method.clone()).or_default();
            match root.slot(&template.segments) {
                Some(first) => matcher.conflicts.push((*first, index)),
                slot => *slot = Some(index),
            }
        }
        matcher
    }

    /// The templates, in the order in which they were given.
    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    /// Pairs of templates that match the same requests: the one that counts, and the one that never does.
    pub fn conflicts(&self) -> impl Iterator<Item = (&Template, &Template)> {
        self.conflicts.iter().map(|(first, second)| (&self.templates[*first], &self.templates[*second]))
    }

    /// The template for a request, if there is one. `target` is as in the request line or `:path`.
    pub fn template(&self, method: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Option<&Template> {
        let method = std::str::from_utf8(method.as_ref()).ok()?;
        let path = path(target.as_ref())?;
        let root = self.methods.get(method)?;
        // A template names itself, also where as a path it would match another one.
        let is_this = |template: &&Template| template.method == method && template.path.as_bytes() == path;
        let named = if path.contains(&b'{') { self.templates.iter().find(is_this) } else { None };
        named.or_else(|| root.find(Some(&path[1..])).map(|index| &self.templates[index]))
    }

    /// The operation of a request: its template, or else its path with what looks like an id replaced by `{id}`.
    pub fn operation(&self, method: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> String {
        let (method, target) = (method.as_ref(), target.as_ref());
        if let Some(template) = self.template(method, target) {
            return template.to_string();
        }
        let known = match &method[..method.len().min(MAX_METHOD)] {
            method if is_method(method) => String::from_utf8_lossy(method),
            _ => OTHER_METHOD.into(),
        };
        // `OPTIONS *`, and CONNECT, whose target is an address and no name.
        let Some(path) = path(target) else { return format!("{known} *") };
        let guessed = guess(path);
        // Without its path parameters, `/cart;v=1/items` may be what a template means.
        match self.template(method, &guessed) {
            Some(template) => template.to_string(),
            None => format!("{known} {guessed}"),
        }
    }
}

/// The path of a request target (RFC 9112 §3.2), with its leading slash; none if the target has none.
fn path(target: &[u8]) -> Option<&[u8]> {
    let end = target.iter().position(|byte| b"?#".contains(byte)).unwrap_or(target.len());
    let target = &target[..end];
    if target.first() == Some(&b'/') {
        return Some(target);
    }
    let scheme = target.windows(3).position(|window| window == b"://")?;
    let authority = &target[scheme + 3..];
    Some(authority.iter().position(|byte| *byte == b'/').map_or(b"/", |slash| &authority[slash..]))
}

/// A path without a template, with bounded length and its ids replaced.
fn guess(path: &[u8]) -> String {
    let mut guessed = String::new();
    for (index, raw) in path[1..].split(|byte| *byte == b'/').enumerate() {
        let segment = segment::guess(raw);
        if index == MAX_SEGMENTS || guessed.len() + 1 + segment.len() > MAX_GUESSED {
            guessed.push_str("/...");
            break;
        }
        guessed.push('/');
        guessed.push_str(&segment);
    }
    guessed
}

/// The operation of a gRPC request, `package.Service/Method`; none if `path` is not `/package.Service/Method`.
pub fn grpc_operation<P: AsRef<[u8]> + ?Sized>(path: &P) -> Option<&str> {
    let operation = std::str::from_utf8(path.as_ref()).ok()?.strip_prefix('/')?;
    let (service, method) = operation.split_once('/')?;
    let name = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?');
    (operation.len() <= MAX_LENGTH && name(service) && name(method) && !method.contains('/')).then_some(operation)
}

#[cfg(test)]
mod tests;
