//! The one reader of YAML: strict, bounded, and every complaint located.
//!
//! Files are read straight into typed values. An unknown or repeated key, an unknown tag, a second document, a file
//! over [`MAX_BYTES`] or nested deeper than [`MAX_DEPTH`] is an error. An error names file, line and column, says what
//! was expected, and shows the line. Checks that come after parsing point at their place too: wrap the field in
//! [`Spanned`] and build the error with [`Located::at`].
//!
//! JSON is a subset of YAML, so JSON files are read by the same functions.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, MessageFormatter as _, Options, UserMessageFormatter};

use crate::name::nearest;

/// The largest file that is read.
pub const MAX_BYTES: usize = 1 << 20;
/// The deepest nesting of lists and mappings.
pub const MAX_DEPTH: usize = 64;
/// The version of our file formats that this build reads and writes.
pub const API_VERSION: &str = "aftershock.dev/v1alpha1";

/// How much of a long source line is shown.
const SHOWN_COLUMNS: usize = 120;

/// A place in a file: 1-based line and column, and the length of what stands there, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// 1-based.
    pub line: u32,
    /// 1-based, in characters.
    pub column: u32,
    /// In characters; 0 if unknown.
    pub length: u32,
}

impl Location {
    /// The library's location, unless it stands for "nowhere".
    fn known(location: serde_saphyr::Location) -> Option<Self> {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        (location.line() > 0).then(|| Location {
            line: narrow(location.line()),
            column: narrow(location.column().max(1)),
            length: narrow(location.span().len()),
        })
    }
}

/// What is wrong with a file, and where.
///
/// Displayed as the message, then `--> file:line:column`, then the line with the place underlined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Located {
    /// The file as the user named it.
    pub file: String,
    /// 1-based, where it is known.
    pub line: Option<u32>,
    /// 1-based, in characters, where it is known.
    pub column: Option<u32>,
    /// What was expected and what was found, on one line.
    pub message: String,
    /// The source line, cut to what is shown; empty if unknown.
    excerpt: String,
    /// Where in the excerpt the underline starts, and how long it is.
    underline: (usize, usize),
}

impl Located {
    /// An error about `location` in `text`, the contents of `file`; about the whole file without a location.
    pub fn at(file: &str, text: &str, location: Option<Location>, message: impl fmt::Display) -> Self {
        let mut located = Located {
            file: file.to_owned(),
            line: None,
            column: None,
            message: one_line(&message.to_string()),
            excerpt: String::new(),
            underline: (0, 0),
        };
        if let Some(location) = location {
            located.line = Some(location.line);
            located.column = Some(location.column);
            (located.excerpt, located.underline) = excerpt(text, location);
        }
        located
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(line) = self.line else {
            return write!(f, "{}\n --> {}", self.message, self.file);
        };
        let number = line.to_string();
        let gutter = number.len();
        write!(f, "{}\n{:gutter$}--> {}:{line}", self.message, "", self.file)?;
        if let Some(column) = self.column {
            write!(f, ":{column}")?;
        }
        if !self.excerpt.is_empty() {
            let (start, length) = self.underline;
            write!(f, "\n{:gutter$} |\n{number} | {}\n{:gutter$} | ", "", self.excerpt, "")?;
            write!(f, "{:start$}{:^<length$}", "", "")?;
        }
        Ok(())
    }
}

/// The line of `location` as it can be printed, and where in it to underline (start, length), in characters.
fn excerpt(text: &str, location: Location) -> (String, (usize, usize)) {
    let Some(line) = lines(text).nth((location.line as usize).saturating_sub(1)) else {
        return (String::new(), (0, 0));
    };
    let total = line.chars().count();
    // One past the end is where something is missing.
    let column = (location.column as usize).saturating_sub(1).min(total);
    let from = if total <= SHOWN_COLUMNS { 0 } else { column.saturating_sub(SHOWN_COLUMNS / 2) };
    let mut shown = String::new();
    let mut start = column - from;
    if from > 0 {
        shown.push('…');
        start += 1;
    }
    // One character for one, so that the underline stays where it belongs.
    shown.extend(line.chars().skip(from).take(SHOWN_COLUMNS).map(|c| match c {
        c if c.is_control() => ' ',
        c => c,
    }));
    if from + SHOWN_COLUMNS < total {
        shown.push('…');
    }
    let room = shown.chars().count().saturating_sub(start);
    (shown.trim_end().to_owned(), (start, (location.length as usize).min(room).max(1)))
}

/// The lines of `text`, ended as YAML ends them: LF, CR LF or CR.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\n', '\r']) else {
            rest = None;
            return Some(text);
        };
        let width = if text[end..].starts_with("\r\n") { 2 } else { 1 };
        rest = Some(&text[end + width..]);
        Some(&text[..end])
    })
}

/// Control characters escaped: messages quote what was found.
fn one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for c in message.chars() {
        match c {
            c if c.is_control() => {
                let _ = write!(line, "{}", c.escape_default());
            }
            c => line.push(c),
        }
    }
    line
}

/// A value and where it stands in its file.
///
/// Equality, order and hash are those of the value: the same plan in another layout is the same plan.
/// Inside `#[serde(flatten)]`, untagged and internally tagged types, and outside YAML, the location is not known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it stands; for an alias, where the alias stands.
    pub location: Option<Location>,
}

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> From<T> for Spanned<T> {
    fn from(value: T) -> Self {
        Spanned { value, location: None }
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Spanned<T> {}

impl<T: PartialOrd> PartialOrd for Spanned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl<T: Ord> Ord for Spanned<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.value.cmp(&other.value)
    }
}

impl<T: Hash> Hash for Spanned<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.value.hash(state);
    }
}

impl<T: fmt::Display> fmt::Display for Spanned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: Serialize> Serialize for Spanned<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(s)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let spanned = serde_saphyr::Spanned::<T>::deserialize(d)?;
        Ok(Spanned { value: spanned.value, location: Location::known(spanned.referenced) })
    }
}

impl<T: JsonSchema> JsonSchema for Spanned<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
}

/// Reads the one document of `text`, the contents of `file`.
pub fn from_str<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, Located> {
    admit(file, text)?;
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| locate(file, text, &error))
}

/// Reads every document of `text`, the contents of `file`; at least one.
pub fn from_str_all<T: DeserializeOwned>(file: &str, text: &str) -> Result<Vec<T>, Located> {
    admit(file, text)?;
    let documents = serde_saphyr::from_multiple_with_options(text, options());
    let documents: Vec<T> = documents.map_err(|error| locate(file, text, &error))?;
    if documents.is_empty() { Err(Located::at(file, text, None, EMPTY)) } else { Ok(documents) }
}

/// `value` as a document that [`from_str`] reads back, in block style, keys in the order of their fields.
///
/// # Errors
/// When the value cannot be written as YAML: a mapping with keys that are no scalars.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, WriteError> {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: false,
        // Folding would write long texts over several lines that look like something else.
        prefer_block_scalars: false,
    };
    serde_saphyr::to_string_with_options(value, options).map_err(|error| WriteError(error.to_string()))
}

/// A value that has no YAML form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to write YAML: {0}")]
pub struct WriteError(String);

const EMPTY: &str = "expected a document, the file is empty";

/// Refuses what is not worth parsing: too large, or nothing there.
fn admit(file: &str, text: &str) -> Result<(), Located> {
    if text.len() > MAX_BYTES {
        let message = format!("expected a file of at most {MAX_BYTES} bytes, found {} bytes", text.len());
        return Err(Located::at(file, "", None, message));
    }
    // The library reads a stream without documents as an empty mapping.
    let blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if lines(text.strip_prefix('\u{feff}').unwrap_or(text)).all(blank) {
        return Err(Located::at(file, text, None, EMPTY));
    }
    Ok(())
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_events: 200_000,
            max_nodes: 100_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_recorded_anchor_events: 100_000,
            max_recorded_anchor_bytes: 4 * MAX_BYTES,
            max_documents: 256,
            max_total_scalar_bytes: MAX_BYTES,
            max_merge_keys: 1_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 16,
        },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
        reject_tagged_field_names: true,
        with_snippet: false,
    }
}

fn locate(file: &str, text: &str, error: &Error) -> Located {
    let location = error.location().and_then(Location::known);
    Located::at(file, text, location, describe(error))
}

/// The message, in our words where the library's speak to programmers.
fn describe(error: &Error) -> String {
    match error.without_snippet() {
        Error::AliasError { error, .. } => describe(error),
        Error::SerdeUnknownField { field, expected, .. } => {
            expected_names(&format!("unknown key `{field}`"), field, expected)
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            expected_names(&format!("unknown value `{variant}`"), variant, expected)
        }
        Error::SerdeMissingField { field, .. } => format!("expected the key `{field}`, it is missing here"),
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("expected each key once, found `{key}` again")
        }
        Error::DuplicateMappingKey { key: None, .. } => "expected each key once, found one again".to_owned(),
        Error::MultipleDocuments { .. } => "expected one document in this file, found another after it".to_owned(),
        Error::NullIntoString { .. } => "expected text, found nothing; write `\"\"` for an empty text".to_owned(),
        Error::Unexpected { expected: "sequence start", .. } => "expected a list, e.g. `- item` or `[item]`".to_owned(),
        Error::Unexpected { expected: "mapping start", .. } => "expected a mapping, `key: value`".to_owned(),
        Error::Unexpected { expected: "string scalar", .. } => "expected text".to_owned(),
        Error::InvalidScalar { ty, .. } => format!("expected {}", scalar(ty)),
        Error::InvalidBooleanStrict { .. } => "expected `true` or `false`".to_owned(),
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => format!("expected {expected}, found {unexpected}"),
        Error::SerdeInvalidLength { len, expected, .. } => format!("expected {expected}, found {len} elements"),
        Error::UnsupportedTag { tag, .. } => format!("expected no tag here, found `{tag}`"),
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("expected at most {MAX_DEPTH} levels of nesting, found more")
        }
        Error::Budget { breach, .. } => format!("expected a smaller file: over the limit of {breach:?}"),
        other => UserMessageFormatter.format_message(other).into_owned(),
    }
}

/// What a Rust scalar type is to the writer of a file.
fn scalar(ty: &str) -> Cow<'_, str> {
    let unsigned = |max: u128| Cow::Owned(format!("a whole number from 0 to {max}"));
    let signed = |min: i128, max: i128| Cow::Owned(format!("a whole number from {min} to {max}"));
    match ty {
        "u8" => unsigned(u8::MAX.into()),
        "u16" => unsigned(u16::MAX.into()),
        "u32" => unsigned(u32::MAX.into()),
        "u64" | "usize" => unsigned(u64::MAX.into()),
        "i8" => signed(i8::MIN.into(), i8::MAX.into()),
        "i16" => signed(i16::MIN.into(), i16::MAX.into()),
        "i32" => signed(i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => signed(i64::MIN.into(), i64::MAX.into()),
        "f32" | "f64" => "a number".into(),
        "bool" | "boolean" => "`true` or `false`".into(),
        other => Cow::Owned(format!("a value of type {other}")),
    }
}

fn expected_names(found: &str, name: &str, expected: &[&'static str]) -> String {
    let listed = expected.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let mut message = match expected {
        [] => return format!("{found}, expected none here"),
        [_] => format!("{found}, expected {listed}"),
        _ => format!("{found}, expected one of {listed}"),
    };
    if let Some(near) = nearest(name, expected.iter().copied()) {
        let _ = write!(message, "; did you mean `{near}`?");
    }
    message
}

/// What every file of ours begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The version of the format, [`API_VERSION`].
    #[serde(rename = "apiVersion")]
    pub api_version: Spanned<String>,
    /// What the file describes.
    pub kind: Spanned<String>,
}

/// The kind of the document in `text`, once its `apiVersion` is one that this build reads.
///
/// Other keys are left to the typed reader of that kind.
pub fn kind(file: &str, text: &str) -> Result<String, Located> {
    let envelope: Envelope = from_str(file, text)?;
    check_version(file, text, &envelope)?;
    Ok(envelope.kind.value)
}

/// [`from_str`], once `apiVersion` and `kind` are what the caller expects.
///
/// So a file of another kind is called that, and not a file with unknown keys.
pub fn from_str_as<T: DeserializeOwned>(kind: &str, file: &str, text: &str) -> Result<T, Located> {
    let envelope: Envelope = from_str(file, text)?;
    check_version(file, text, &envelope)?;
    if *envelope.kind != kind {
        let message = format!("expected `kind: {kind}`, found `kind: {}`", envelope.kind);
        return Err(Located::at(file, text, envelope.kind.location, message));
    }
    from_str(file, text)
}

fn check_version(file: &str, text: &str, envelope: &Envelope) -> Result<(), Located> {
    let found = envelope.api_version.as_str();
    if found == API_VERSION {
        return Ok(());
    }
    let (group, ours) = API_VERSION.split_once('/').expect("our version has a group");
    let message = match found.split_once('/') {
        Some((found_group, version)) if found_group == group => match (stability(version), stability(ours)) {
            (Some(theirs), Some(ours)) if theirs > ours => format!(
                "expected `apiVersion: {API_VERSION}`, found the newer `{found}`: this file needs a newer aftershock"
            ),
            (Some(_), Some(_)) => format!(
                "expected `apiVersion: {API_VERSION}`, found the older `{found}`, which this aftershock no longer reads"
            ),
            _ => format!("expected `apiVersion: {API_VERSION}`, found `{found}`, which is no version"),
        },
        _ => format!("expected `apiVersion: {API_VERSION}`, found `{found}`: not a file of aftershock"),
    };
    Err(Located::at(file, text, envelope.api_version.location, message))
}

/// `v2beta3` as (2, 1, 3): versions in the order in which Kubernetes names them.
fn stability(version: &str) -> Option<(u32, u8, u32)> {
    let rest = version.strip_prefix('v')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = (rest[..end].parse().ok()?, &rest[end..]);
    let (level, minor) = match (rest.strip_prefix("alpha"), rest.strip_prefix("beta")) {
        (Some(minor), _) => (0, minor),
        (_, Some(minor)) => (1, minor),
        _ if rest.is_empty() => return Some((major, 2, 0)),
        _ => return None,
    };
    Some((major, level, minor.parse().ok()?))
}

#[cfg(test)]
mod tests;
