//! HTTP operations of mock services: `METHOD /path/{template}`.

use std::fmt;

/// An HTTP method with a path whose `{variable}` segments match any one non-empty segment.
///
/// The mock services route by this and not by the sidecar's matcher, so that a mistake there cannot hide itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    method: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Variable(String),
}

impl Route {
    /// Reads `METHOD /path/{template}`.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (method, path) = text.split_once(' ').ok_or("expected `METHOD /path/{template}`")?;
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err("expected an upper-case method before the path");
        }
        let rest = path.strip_prefix('/').ok_or("expected a path that begins with `/`")?;
        if rest.contains(['?', '#', ' ']) {
            return Err("a path template has no query, fragment or blank");
        }
        let segments = rest.split('/').map(Segment::parse).collect::<Result<_, _>>()?;
        Ok(Self { method: method.to_owned(), segments })
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Whether a request's method and raw path are of this operation.
    pub(crate) fn matches(&self, method: &str, path: &str) -> bool {
        let Some(rest) = path.strip_prefix('/') else { return false };
        let mut segments = self.segments.iter();
        method == self.method
            && rest.split('/').all(|part| match segments.next() {
                Some(Segment::Literal(literal)) => literal == part,
                Some(Segment::Variable(_)) => !part.is_empty(),
                None => false,
            })
            && segments.next().is_none()
    }

    /// Order of precedence: at the first difference a literal comes before a variable.
    pub(crate) fn precedence(&self) -> Vec<bool> {
        self.segments.iter().map(|segment| matches!(segment, Segment::Variable(_))).collect()
    }

    /// A path of this operation: each variable becomes its name and this number.
    pub fn example_path(&self, number: usize) -> String {
        let mut path = String::new();
        for segment in &self.segments {
            path.push('/');
            match segment {
                Segment::Literal(literal) => path.push_str(literal),
                Segment::Variable(name) => path.push_str(&format!("{name}-{number}")),
            }
        }
        path
    }

    /// Whether some path belongs to both.
    pub(crate) fn is_ambiguous_with(&self, other: &Self) -> bool {
        let shape = |route: &Self| {
            route
                .segments
                .iter()
                .map(|segment| match segment {
                    Segment::Literal(literal) => Some(literal.clone()),
                    Segment::Variable(_) => None,
                })
                .collect::<Vec<_>>()
        };
        self.method == other.method && shape(self) == shape(other)
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, &'static str> {
        match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some("") => Err("a template variable needs a name, `{id}`"),
            Some(name) if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') => {
                Ok(Self::Variable(name.to_owned()))
            }
            None if !text.contains(['{', '}']) => Ok(Self::Literal(text.to_owned())),
            _ => Err("a template variable is a whole segment, `{id}`"),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.method)?;
        for segment in &self.segments {
            match segment {
                Segment::Literal(literal) => write!(f, "/{literal}")?,
                Segment::Variable(name) => write!(f, "/{{{name}}}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_matches_its_own_method_and_shape_only() {
        let route = Route::parse("GET /product/{id}").unwrap();
        assert!(route.matches("GET", "/product/7"));
        for (method, path) in
            [("POST", "/product/7"), ("GET", "/product/"), ("GET", "/product"), ("GET", "/product/7/x"), ("GET", "*")]
        {
            assert!(!route.matches(method, path), "{method} {path}");
        }
        assert!(Route::parse("GET /").unwrap().matches("GET", "/"));
        assert!(route.matches("GET", &route.example_path(3)));
        assert_eq!(route.to_string(), "GET /product/{id}");
    }

    #[test]
    fn malformed_routes_are_refused() {
        for text in ["", "GET", "get /", "GET product", "GET /{}", "GET /a{b}", "GET /a?b", " /", "GET /{a-b}"] {
            assert!(Route::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn templates_that_differ_only_in_variable_names_are_ambiguous() {
        let route = |text| Route::parse(text).unwrap();
        assert!(route("GET /a/{x}").is_ambiguous_with(&route("GET /a/{y}")));
        assert!(!route("GET /a/{x}").is_ambiguous_with(&route("GET /a/b")));
        assert!(!route("GET /a").is_ambiguous_with(&route("POST /a")));
    }
}
