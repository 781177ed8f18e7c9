//! The cookies of one round's client (RFC 6265 §5).

use cookie_store::{CookieStore, RawCookie};
use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderValue};
use url::Url;

/// The cookies that a client was given and gives back: by host, path, expiry and `Secure` as a browser does.
#[derive(Debug, Default)]
pub(crate) struct Jar(CookieStore);

impl Jar {
    /// Keeps what the answer to a request to `url` sets.
    pub(crate) fn take(&mut self, url: &str, answer: &HeaderMap) {
        let Ok(url) = Url::parse(url) else { return };
        let cookies = set_cookies(answer).map(RawCookie::into_owned);
        self.0.store_response_cookies(cookies, &url);
    }

    /// Adds the cookies that belong to `url` to those that a request sets itself.
    pub(crate) fn give(&self, url: &str, request: &mut HeaderMap) {
        let Ok(url) = Url::parse(url) else { return };
        let own = request.get(COOKIE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut kept: Vec<String> =
            self.0.get_request_values(&url).map(|(name, value)| format!("{name}={value}")).collect();
        // The store has no order of its own.
        kept.sort();
        let all: Vec<String> = own.into_iter().chain(kept).collect();
        if let Some(value) = (!all.is_empty()).then(|| HeaderValue::from_str(&all.join("; ")).ok()).flatten() {
            request.insert(COOKIE, value);
        }
    }
}

/// The value of the cookie `name` that an answer sets; the last one counts.
pub(crate) fn set_by(answer: &HeaderMap, name: &str) -> Option<String> {
    set_cookies(answer).filter(|cookie| cookie.name() == name).last().map(|cookie| cookie.value().to_owned())
}

fn set_cookies(answer: &HeaderMap) -> impl Iterator<Item = RawCookie<'_>> {
    let texts = answer.get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
    texts.filter_map(|text| RawCookie::parse(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(fields: &[&str]) -> HeaderMap {
        fields.iter().map(|field| (SET_COOKIE, HeaderValue::from_str(field).unwrap())).collect()
    }

    fn given(jar: &Jar, url: &str) -> Option<String> {
        let mut request = HeaderMap::new();
        jar.give(url, &mut request);
        request.get(COOKIE).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_cookie_goes_back_where_it_belongs_and_nowhere_else() {
        let mut jar = Jar::default();
        let fields =
            ["sid=1; HttpOnly", "cart=2; Path=/cart", "tls=3; Secure", "other=4; Domain=elsewhere.test", "broken"];
        jar.take("http://shop.test:8080/login", &answer(&fields));
        assert_eq!(given(&jar, "http://shop.test:8080/").as_deref(), Some("sid=1"));
        // RFC 6265 §8.5: ports do not tell cookies apart.
        assert_eq!(given(&jar, "http://shop.test:9/cart/x").as_deref(), Some("cart=2; sid=1"));
        assert_eq!(given(&jar, "http://pay.test:8080/"), None);
        assert_eq!(given(&jar, "http://elsewhere.test/"), None);
        jar.take("http://shop.test:8080/", &answer(&["sid=5", "cart=; Path=/cart; Max-Age=0"]));
        assert_eq!(given(&jar, "http://shop.test:8080/cart").as_deref(), Some("sid=5"));
    }

    #[test]
    fn a_request_keeps_its_own_cookies() {
        let mut jar = Jar::default();
        jar.take("http://h/", &answer(&["a=1"]));
        let mut request = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static("own=x"))]);
        jar.give("http://h/", &mut request);
        assert_eq!(request[COOKIE], "own=x; a=1");
    }

    #[test]
    fn the_last_value_of_a_cookie_is_extracted() {
        let headers = answer(&["a=1", "b=2", "a=3; Path=/x"]);
        assert_eq!(set_by(&headers, "a").as_deref(), Some("3"));
        assert_eq!(set_by(&headers, "c"), None);
    }
}
