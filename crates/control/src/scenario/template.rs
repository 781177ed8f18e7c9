//! Texts with variables.
//!
//! A variable is a name in braces, `{key}`; `{env:NAME}` is a secret from the environment. Values are put in as they are:
//! where a value could change what surrounds it, a JSON document is written as YAML ([`JsonTemplate`]) and a SQL query has
//! parameters.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use aftershock_core::name::nearest;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::text::text_serde;

/// A text with variables: `{name}` is replaced by the variable's value. What is in braces and no name (JSON, say) stays
/// as it is; `{{name}}` is `{name}` itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Template(String);

/// A template speaks of a variable that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown variable `{{{name}}}`, expected one of {known}{hint}")]
pub struct UnknownVariable {
    name: String,
    known: String,
    hint: String,
}

impl UnknownVariable {
    fn new(name: &str, known: &[&str]) -> Self {
        let hint = match (nearest(name, known.iter().copied()), name.strip_prefix(SECRET)) {
            (Some(near), _) => format!("; did you mean `{{{near}}}`?"),
            (None, Some(secret)) => format!("; a secret is declared with `secrets: [{secret}]`"),
            (None, None) => String::new(),
        };
        let known = known.iter().map(|name| format!("`{{{name}}}`")).collect::<Vec<_>>().join(", ");
        UnknownVariable { name: name.to_owned(), known, hint }
    }
}

/// What a variable's name begins with whose value is a secret of the environment.
pub(crate) const SECRET: &str = "env:";

/// A part of a template.
enum Part<'a> {
    Text(&'a str),
    Variable(&'a str),
}

impl Template {
    /// The template as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let mut rest = self.0.as_str();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            if let Some(name) = variable(rest) {
                rest = &rest[name.len() + 2..];
                return Some(Part::Variable(name));
            }
            if let Some(name) = rest.strip_prefix('{').and_then(variable)
                && rest[name.len() + 3..].starts_with('}')
            {
                let (escaped, after) = rest.split_at(name.len() + 4);
                rest = after;
                return Some(Part::Text(&escaped[1..escaped.len() - 1]));
            }
            let first = rest.chars().next().map_or(0, char::len_utf8);
            let end = rest[first..].find('{').map_or(rest.len(), |at| first + at);
            let (text, after) = rest.split_at(end);
            rest = after;
            Some(Part::Text(text))
        })
    }

    /// Checks that every variable is one of `known`.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check<'n>(&self, known: impl IntoIterator<Item = &'n str>) -> Result<(), UnknownVariable> {
        let known: Vec<&str> = known.into_iter().collect();
        match self.variables().find(|name| !known.contains(name)) {
            Some(name) => Err(UnknownVariable::new(name, &known)),
            None => Ok(()),
        }
    }

    /// Its variables, in order, as often as they stand there.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.parts().filter_map(|part| match part {
            Part::Variable(name) => Some(name),
            Part::Text(_) => None,
        })
    }

    /// Whether it has this variable.
    pub fn mentions(&self, variable: &str) -> bool {
        self.variables().any(|name| name == variable)
    }

    /// The text with its variables replaced. A variable without a value stays: [`Template::check`] refuses it first.
    pub fn fill(&self, values: &BTreeMap<String, String>) -> String {
        let mut text = String::with_capacity(self.0.len());
        for part in self.parts() {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Variable(name) => match values.get(name) {
                    Some(value) => text.push_str(value),
                    None => {
                        text.push('{');
                        text.push_str(name);
                        text.push('}');
                    }
                },
            }
        }
        text
    }
}

/// The name in `{name}…`.
fn variable(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('{')?;
    let name = &inner[..inner.find('}')?];
    is_name(name.strip_prefix(SECRET).unwrap_or(name)).then_some(name)
}

/// A name of a variable: a letter or `_`, then letters, digits, `_` and `-`.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

impl FromStr for Template {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Template(text.to_owned()))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_serde!(
    Template,
    "a text in which `{key}` is the round's business key, `{NAME}` a variable or the URL of a ledger, `{env:NAME}` a secret"
);

/// A JSON document whose texts are templates. What stands in a variable stays inside its text.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct JsonTemplate(Value);

impl JsonTemplate {
    /// Its texts, each with its variables.
    pub fn texts(&self) -> Vec<Template> {
        fn walk(value: &Value, found: &mut Vec<Template>) {
            match value {
                Value::String(text) => found.push(Template(text.clone())),
                Value::Array(values) => values.iter().for_each(|value| walk(value, found)),
                Value::Object(fields) => fields.values().for_each(|value| walk(value, found)),
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        let mut found = Vec::new();
        walk(&self.0, &mut found);
        found
    }

    /// The document with the variables of its texts replaced.
    pub fn fill(&self, values: &BTreeMap<String, String>) -> Value {
        fn filled(value: &Value, values: &BTreeMap<String, String>) -> Value {
            match value {
                Value::String(text) => Template(text.clone()).fill(values).into(),
                Value::Array(list) => list.iter().map(|value| filled(value, values)).collect(),
                Value::Object(fields) => {
                    fields.iter().map(|(name, value)| (name.clone(), filled(value, values))).collect()
                }
                other => other.clone(),
            }
        }
        filled(&self.0, values)
    }
}

impl JsonSchema for JsonTemplate {
    fn schema_name() -> Cow<'static, str> {
        "JsonTemplate".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"description": "a JSON document, in whose texts variables are replaced"})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values() -> BTreeMap<String, String> {
        BTreeMap::from([
            ("key".to_owned(), "k1".to_owned()),
            ("pay".to_owned(), "http://p:1".to_owned()),
            ("env:TOKEN".to_owned(), "s3cret".to_owned()),
        ])
    }

    #[test]
    fn variables_are_replaced_and_other_braces_stay() {
        for (template, expected) in [
            ("{pay}/ledgers?key={key}", "http://p:1/ledgers?key=k1"),
            (r#"{"key":"{key}","n":{"a":1}}"#, r#"{"key":"k1","n":{"a":1}}"#),
            ("a{3}b{}", "a{3}b{}"),
            ("{{key}}", "{key}"),
            ("{{key}", "{k1"),
            ("{key", "{key"),
            ("{", "{"),
            ("é{key}é", "ék1é"),
            ("{unknown}", "{unknown}"),
            ("{env:TOKEN}{env:}{env:1}", "s3cret{env:}{env:1}"),
            ("", ""),
        ] {
            assert_eq!(Template(template.to_owned()).fill(&values()), expected, "{template}");
        }
    }

    #[test]
    fn an_unknown_variable_is_named_with_the_nearest_known_one() {
        let error = Template("{paay}/{key}".to_owned()).check(["key", "pay"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown variable `{paay}`, expected one of `{key}`, `{pay}`; did you mean `{pay}`?"
        );
        let error = Template("{env:PASS}".to_owned()).check(["key"]).unwrap_err().to_string();
        assert!(error.ends_with("; a secret is declared with `secrets: [PASS]`"), "{error}");
        assert!(Template(r#"{"kye": "{{kye}}"}"#.to_owned()).check(["key"]).is_ok());
    }

    #[test]
    fn a_value_stays_inside_its_text_of_a_json_document() {
        let template: JsonTemplate =
            serde_json::from_value(serde_json::json!({"a": ["{key}", 1], "{key}": null})).unwrap();
        let values = BTreeMap::from([("key".to_owned(), "\", \"b\": \"".to_owned())]);
        assert_eq!(template.fill(&values), serde_json::json!({"a": ["\", \"b\": \"", 1], "{key}": null}));
        assert_eq!(template.texts().len(), 1);
    }

    proptest! {
        #[test]
        fn a_template_without_known_variables_is_its_own_text(text in "([{}a-z_ \"é]){0,20}") {
            let template = Template(text.clone());
            let escaped = text.contains("{{");
            prop_assert!(escaped || template.fill(&BTreeMap::new()) == text);
        }

        #[test]
        fn filling_puts_the_value_where_the_name_stood(before in "[a-z{ ]{0,9}", after in "[a-z }]{0,9}", value in "\\PC{0,9}") {
            prop_assume!(!before.ends_with('{'));
            let template = Template(format!("{before}{{key}}{after}"));
            let values = BTreeMap::from([("key".to_owned(), value.clone())]);
            prop_assert_eq!(template.fill(&values), format!("{before}{value}{after}"));
        }
    }
}
