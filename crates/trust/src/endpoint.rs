//! A controller as its clients find it: address, authorities, credentials.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderValue;
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::token::{self, Secret};
use crate::{Stream, TrustError, is_loopback};

/// Where a client's token comes from.
#[derive(Clone)]
pub enum TokenSource {
    /// The first one in this file. It is read for each connection, so that the file can be replaced.
    File(PathBuf),
    /// This one, that stood in the variable of that name.
    Given {
        /// The variable.
        name: &'static str,
        /// The token.
        token: String,
    },
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenSource::File(file) => f.debug_tuple("File").field(file).finish(),
            TokenSource::Given { name, .. } => f.debug_tuple("Given").field(name).finish(),
        }
    }
}

impl TokenSource {
    fn read(&self) -> Result<Secret, TrustError> {
        match self {
            TokenSource::File(file) => Ok(token::read_file(file)?.swap_remove(0)),
            TokenSource::Given { name, token } => Secret::parse(token.trim(), || (*name).to_owned()),
        }
    }
}

/// What a client shows, and whom it believes.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// Its token.
    pub token: Option<TokenSource>,
    /// The authorities that sign the controller's certificate, in PEM form; needed for `https://`.
    pub ca: Option<PathBuf>,
    /// The client's own certificate chain.
    pub certificate: Option<PathBuf>,
    /// The key of that.
    pub key: Option<PathBuf>,
    /// The token may travel unencrypted: the way is safe, because it is a tunnel or a mesh.
    pub insecure_plaintext: bool,
}

/// A controller.
#[derive(Clone)]
pub struct Endpoint {
    authority: String,
    host: String,
    port: u16,
    /// Where it is, if that is not to be found out by its name.
    address: Option<SocketAddr>,
    token: Option<TokenSource>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.to_string()).finish()
    }
}

impl Endpoint {
    /// What can be said without reading files: whether `url` is one and the credentials fit it. The address in it, if its
    /// host is none to be looked up.
    ///
    /// # Errors
    /// When not.
    pub fn check(url: &str, credentials: &Credentials) -> Result<Option<SocketAddr>, TrustError> {
        let (encrypted, authority) = parse(url)?;
        let host = authority.host();
        let Credentials { token, ca, certificate, key, insecure_plaintext } = credentials;
        if token.is_some() && !encrypted && !insecure_plaintext && !is_loopback(host) {
            return Err(TrustError::Plaintext { host: host.to_owned() });
        }
        if certificate.is_some() != key.is_some() {
            return Err(TrustError::Combination("a client's certificate and its key go together"));
        }
        if !encrypted && (ca.is_some() || certificate.is_some()) {
            return Err(TrustError::Combination("certificates are used with `https://` only"));
        }
        if encrypted && ca.is_none() {
            let needs = "`https://` needs the authority that signs the controller's certificate: `ca`";
            return Err(TrustError::Combination(needs));
        }
        let ip = bare(host).parse::<IpAddr>().ok();
        Ok(ip.map(|ip| SocketAddr::new(ip, port(encrypted, &authority))))
    }

    /// The controller at `url`. All files are read, to tell early what is wrong with them.
    ///
    /// # Errors
    /// When the URL is none, a file is not usable, or the credentials do not fit the URL.
    pub fn new(url: &str, credentials: Credentials) -> Result<Self, TrustError> {
        Endpoint::check(url, &credentials)?;
        let (encrypted, authority) = parse(url)?;
        let host = authority.host().to_owned();
        let port = port(encrypted, &authority);
        let Credentials { token, ca, certificate, key, .. } = credentials;
        if let Some(token) = &token {
            token.read()?;
            if let TokenSource::File(file) = token {
                token::warn_if_readable("token file", file);
            }
        }
        let identity = certificate.zip(key);
        let tls = match ca {
            None => None,
            Some(ca) => {
                let unusable = |file: &PathBuf| {
                    let file = file.clone();
                    move |source| TrustError::Certificate { file, source }
                };
                let builder = ClientConfig::builder_with_provider(crate::provider())
                    .with_safe_default_protocol_versions()
                    .map_err(unusable(&ca))?
                    .with_root_certificates(crate::authorities(&ca)?);
                let mut config = match identity {
                    None => builder.with_no_client_auth(),
                    Some((certificate, key)) => builder
                        .with_client_auth_cert(crate::certificates(&certificate)?, crate::private_key(&key)?)
                        .map_err(unusable(&certificate))?,
                };
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                let name =
                    ServerName::try_from(bare(&host).to_owned()).map_err(|_| TrustError::Url { found: quoted(url) })?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
        };
        Ok(Endpoint { authority: authority.as_str().to_owned(), host, port, address: None, token, tls })
    }

    /// The same, found at `address`: its name is not looked up, its certificate is still to carry it.
    #[must_use]
    pub fn at(self, address: SocketAddr) -> Self {
        Endpoint { address: Some(address), ..self }
    }

    /// Where it is now: of the addresses of its name the first that takes a connection, or else the first.
    ///
    /// # Errors
    /// When its name has no address.
    pub async fn resolve(&self) -> io::Result<SocketAddr> {
        if let Some(address) = self.address {
            return Ok(address);
        }
        let found: Vec<SocketAddr> = tokio::net::lookup_host((bare(&self.host), self.port)).await?.collect();
        match TcpStream::connect(&found[..]).await.and_then(|stream| stream.peer_addr()) {
            Ok(address) => Ok(address),
            Err(error) => found.first().copied().ok_or(error),
        }
    }

    /// `host:port`, as the URL says it.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The `authorization` field of a request, marked as sensitive; none without a token.
    ///
    /// # Errors
    /// When the token cannot be read any more.
    pub fn authorization(&self) -> Result<Option<HeaderValue>, TrustError> {
        self.token.as_ref().map(|token| token.read().map(|secret| secret.authorization())).transpose()
    }

    /// A connection to it, encrypted if the URL says so.
    ///
    /// # Errors
    /// When it cannot be connected to, or is not who it should be.
    pub async fn connect(&self) -> io::Result<Stream> {
        let stream = match self.address {
            Some(address) => TcpStream::connect(address).await?,
            None => TcpStream::connect((bare(&self.host), self.port)).await?,
        };
        crate::notice_vanished(&stream)?;
        match &self.tls {
            None => Ok(Stream::Plain(stream)),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await?;
                Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
            }
        }
    }
}

/// A host without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

fn port(encrypted: bool, authority: &http::uri::Authority) -> u16 {
    authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 })
}

/// Whether it is encrypted, and where it is.
fn parse(url: &str) -> Result<(bool, http::uri::Authority), TrustError> {
    let wrong = || TrustError::Url { found: quoted(url) };
    let (encrypted, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Err(wrong()),
    };
    let authority: http::uri::Authority = rest.strip_suffix('/').unwrap_or(rest).parse().map_err(|_| wrong())?;
    if authority.host().is_empty() || authority.as_str().contains('@') || authority.port_u16() == Some(0) {
        return Err(wrong());
    }
    // `host:` has a colon and no port.
    if authority.as_str().len() > authority.host().len() && authority.port_u16().is_none() {
        return Err(wrong());
    }
    Ok((encrypted, authority))
}

/// What may be shown of a URL: not what stands before an `@`.
fn quoted(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, host)) => format!("one with credentials, …@{host}"),
        None => format!("{:?}", url.chars().take(80).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(url: &str, credentials: Credentials) -> String {
        Endpoint::new(url, credentials).unwrap_err().to_string()
    }

    fn token(text: &str) -> Credentials {
        let token = TokenSource::Given { name: "AFTERSHOCK_TOKEN", token: text.to_owned() };
        Credentials { token: Some(token), ..Credentials::default() }
    }

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_port() {
        for (url, authority) in [
            ("http://127.0.0.1:4700", "127.0.0.1:4700"),
            ("http://[::1]:4700/", "[::1]:4700"),
            ("http://controller.test", "controller.test"),
        ] {
            let endpoint = Endpoint::new(url, Credentials::default()).unwrap();
            assert_eq!((endpoint.authority(), endpoint.to_string()), (authority, format!("http://{authority}")));
        }
        for url in [
            "",
            "127.0.0.1:4700",
            "ftp://a:1",
            "http://",
            "http://:80",
            "http://a:",
            "http://a:0",
            "http://a:99999",
            "http://a/b",
        ] {
            assert!(complaint(url, Credentials::default()).starts_with("expected `http://host:port`"), "{url}");
        }
        let error = complaint("http://me:secret@host:80", Credentials::default());
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn only_a_url_with_an_address_says_where_it_is() {
        for (url, address) in [
            ("http://127.0.0.1", Some("127.0.0.1:80")),
            ("http://[::1]:4700", Some("[::1]:4700")),
            ("http://localhost:4700", None),
            ("http://127.0.0.1.test", None),
        ] {
            let found = Endpoint::check(url, &Credentials::default()).unwrap();
            assert_eq!(found.map(|found| found.to_string()).as_deref(), address, "{url}");
        }
    }

    #[test]
    fn a_token_does_not_travel_unencrypted_to_other_hosts() {
        for url in ["http://127.0.0.1:1", "http://127.9.9.9:1", "http://[::1]:1", "http://localhost:1"] {
            let endpoint = Endpoint::new(url, token(TOKEN)).unwrap();
            let value = endpoint.authorization().unwrap().unwrap();
            assert_eq!(value.to_str().unwrap(), format!("Bearer {TOKEN}"));
            assert!(value.is_sensitive() && !format!("{endpoint:?} {value:?}").contains(TOKEN));
        }
        for url in ["http://10.0.0.1:1", "http://controller:1", "http://localhost.test:1", "http://127.0.0.1.test:1"] {
            let error = complaint(url, token(TOKEN));
            assert!(error.starts_with("a token must not travel unencrypted") && !error.contains(TOKEN), "{error}");
            let safe = Credentials { insecure_plaintext: true, ..token(TOKEN) };
            assert!(Endpoint::new(url, safe).is_ok());
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let path = || Some(PathBuf::from("/nowhere"));
        let none = Credentials::default;
        for (url, credentials, says) in [
            ("https://a:1", none(), "`https://` needs the authority"),
            ("http://a:1", Credentials { ca: path(), ..none() }, "`https://` only"),
            ("https://a:1", Credentials { ca: path(), certificate: path(), ..none() }, "go together"),
            ("https://a:1", Credentials { ca: path(), ..none() }, "cannot read the certificate in /nowhere"),
            ("http://127.0.0.1:1", token("secret"), "AFTERSHOCK_TOKEN: expected a token of at least 32"),
        ] {
            let error = complaint(url, credentials);
            assert!(error.contains(says) && !error.contains("secret"), "{error}");
        }
    }
}
