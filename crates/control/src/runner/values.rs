//! The variables of a round, and what must not be shown of them.

use std::collections::BTreeMap;
use std::fmt;

use crate::scenario::{Extraction, Place, Request, Scenario, Secrets, Template};

use super::cookies;
use super::send::Sent;

/// The variables that have values so far.
#[derive(Clone, Default)]
pub(crate) struct Values {
    values: BTreeMap<String, String>,
    /// Texts that are never shown, with the name to show in their place; the longest first.
    hidden: Vec<(String, String)>,
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

impl Values {
    /// Those of a round of `scenario` before its first request. `random` and `n` are its own, `key` follows from them.
    pub(crate) fn new(scenario: &Scenario, secrets: &Secrets, random: u32, n: u32) -> Self {
        let mut values = Values::default();
        values.set("random", format!("{random:08x}"), false);
        values.set("n", n.to_string(), false);
        values.set("key", scenario.key.fill(&values.values), false);
        for (name, url) in &scenario.ledgers {
            values.set(name, url.to_string(), false);
        }
        for (name, value) in secrets.values() {
            values.set(&name, value.to_owned(), true);
        }
        for (name, template) in &scenario.variables {
            let secret = values.carries_secret(template);
            values.set(name, template.fill(&values.values), secret);
        }
        values
    }

    /// The business key.
    pub(crate) fn key(&self) -> &str {
        self.values.get("key").map_or("", String::as_str)
    }

    /// Every value, for filling.
    pub(crate) fn all(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// The first variable of `templates` that has no value yet.
    pub(crate) fn missing<'t>(&self, templates: impl IntoIterator<Item = &'t Template>) -> Option<String> {
        let mut names = templates.into_iter().flat_map(|template| template.variables());
        names.find(|name| !self.values.contains_key(*name)).map(str::to_owned)
    }

    fn carries_secret(&self, template: &Template) -> bool {
        let filled = template.fill(&self.values);
        self.hide(&filled) != filled
    }

    fn set(&mut self, name: &str, value: String, secret: bool) {
        if secret {
            self.conceal(name, &value);
        }
        self.values.insert(name.to_owned(), value);
    }

    fn conceal(&mut self, name: &str, value: &str) {
        let shown = format!("{{{name}}}");
        // As it stands in texts of ours: as it is, inside JSON or quotes, inside a URL.
        let json = serde_json::Value::from(value).to_string();
        let quoted = format!("{value:?}");
        let url = percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC).to_string();
        for form in [value, &json[1..json.len() - 1], &quoted[1..quoted.len() - 1], &url] {
            if !form.is_empty() && !self.hidden.iter().any(|(hidden, _)| hidden == form) {
                self.hidden.push((form.to_owned(), shown.clone()));
            }
        }
        self.hidden.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    }

    /// `text` with the names of secrets in place of their values.
    pub(crate) fn hide(&self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        'text: while let Some(first) = rest.chars().next() {
            for (hidden, name) in &self.hidden {
                if let Some(after) = rest.strip_prefix(hidden.as_str()) {
                    shown.push_str(name);
                    rest = after;
                    continue 'text;
                }
            }
            shown.push(first);
            rest = &rest[first.len_utf8()..];
        }
        shown
    }

    /// Sets what `request` extracts from its last answer. Returns what was not found, a sentence each.
    pub(crate) fn extract(&mut self, request: &Request, answer: &Sent) -> Vec<String> {
        let mut missing = Vec::new();
        for (name, extraction) in &request.extract {
            match found(extraction, answer) {
                Some(value) => self.set(name, value, extraction.secret),
                None => missing.push(format!("expected `{name}` at {}, found nothing", extraction.from)),
            }
        }
        missing
    }
}

fn found(extraction: &Extraction, answer: &Sent) -> Option<String> {
    let (headers, body) = answer.parts()?;
    match &extraction.from {
        Place::Header(name) => headers?.get(name)?.to_str().ok().map(str::to_owned),
        Place::Cookie(name) => cookies::set_by(headers?, name),
        place => place.in_body(body),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(secret: &str) -> Values {
        let mut values = Values::default();
        values.set("env:S", secret.to_owned(), true);
        values
    }

    #[test]
    fn a_secret_is_shown_by_its_name_in_every_form_that_texts_of_ours_give_it() {
        let values = values("a\"b/ü c");
        for text in ["a\"b/ü c", r#"{"x":"a\"b/ü c"}"#, "http://h/a%22b%2F%C3%BC%20c", &format!("{:?}", "a\"b/ü c")]
        {
            let shown = values.hide(text);
            assert!(shown.contains("{env:S}") && !shown.contains("b/") && !shown.contains("%2F"), "{shown}");
        }
        assert_eq!(format!("{values:?}"), "{\"env:S\"}");
    }

    #[test]
    fn a_variable_made_of_a_secret_is_one() {
        let text = "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {name: s}\nspec:\n  entry: http://h\n  \
                    secrets: [PASS]\n  variables: {auth: \"{login}:{env:PASS}\", login: \"u-{key}\"}\n  requests:\n    \
                    - {name: r, http: {method: GET, path: /}}\n";
        let scenario = Scenario::parse("s.yaml", text).unwrap();
        let secrets = Secrets::read(&scenario, |_| Some("hunter2".to_owned())).unwrap();
        let values = Values::new(&scenario, &secrets, 7, 1);
        assert_eq!(values.all()["auth"], "u-key-00000007:hunter2");
        assert_eq!(values.hide("x u-key-00000007:hunter2 hunter2 y"), "x {auth} {env:PASS} y");
    }

    proptest! {
        #[test]
        fn no_secret_is_left_in_a_text(before in "[ab{}]{0,6}", secret in "[xyz\"]{1,5}", after in "[ab{}]{0,6}") {
            let shown = values(&secret).hide(&format!("{before}{secret}{after}{secret}"));
            prop_assert_eq!(shown, format!("{before}{{env:S}}{after}{{env:S}}"));
        }

        #[test]
        fn without_secrets_a_text_is_shown_as_it_is(text in "\\PC{0,40}") {
            prop_assert_eq!(Values::default().hide(&text), text);
        }
    }
}
