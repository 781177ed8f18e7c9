//! Who may speak to the controller, and how it is known: bearer tokens and TLS of the control connection (design §3.8).
//!
//! Sidecars, the command line and the controller share this crate, so that both ends read the same files by the same
//! rules. [`Endpoint`] is the client's side, [`Tokens`] and [`ServerTls`] are the controller's.
//!
//! Invariants:
//! * No secret is in an error, in a log or in `Debug`. Errors name files and lines.
//! * A token leaves over TLS, or to a loopback address, or because somebody said that the way is safe.
//! * Only TLS 1.3, and only the authorities that were configured: the system's are not asked.

mod endpoint;
mod server;
mod stream;
mod token;
mod vanished;

use std::io;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use endpoint::{Credentials, Endpoint, TokenSource};
pub use server::ServerTls;
pub use stream::Stream;
pub use token::{MIN_TOKEN, Tokens};
pub use vanished::notice_vanished;

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file cannot be read.
    #[error("cannot read the {what} in {file}: {source}", file = file.display())]
    Read {
        /// `token`, `certificate`, …
        what: &'static str,
        /// As it was named.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("expected a {what} in PEM form in {file}", file = file.display())]
    Pem {
        /// `certificate` or `private key`.
        what: &'static str,
        /// As it was named.
        file: PathBuf,
    },
    /// A token is none.
    #[error("{place}: expected a token of at least {MIN_TOKEN} characters of A-Z a-z 0-9 - . _ ~ + / =")]
    Token {
        /// File and line, or the name of a variable.
        place: String,
    },
    /// A file of tokens has none.
    #[error("expected a token, one a line, in {file}", file = file.display())]
    NoToken {
        /// As it was named.
        file: PathBuf,
    },
    /// Certificates and keys are not usable, alone or together.
    #[error("the certificate in {file} cannot be used: {source}", file = file.display())]
    Certificate {
        /// The certificate's file.
        file: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// An address is none.
    #[error("expected `http://host:port` or `https://host:port`, found {found}")]
    Url {
        /// What was there, without what may be a secret.
        found: String,
    },
    /// What was given does not go together.
    #[error("{0}")]
    Combination(&'static str),
    /// A token would be readable on its way.
    #[error(
        "a token must not travel unencrypted to {host}: use `https://`, a loopback address, or say that the way is safe \
         (`insecure_plaintext`)"
    )]
    Plaintext {
        /// Where it would go.
        host: String,
    },
}

/// The certificates in a file.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let text = read("certificate", file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let wrong = || TrustError::Pem { what: "certificate", file: file.to_owned() };
    all.map_err(|_| wrong()).and_then(|all| if all.is_empty() { Err(wrong()) } else { Ok(all) })
}

/// The private key in a file.
fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TrustError> {
    let text = read("private key", file)?;
    token::warn_if_readable("private key", file);
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| TrustError::Pem { what: "private key", file: file.to_owned() })
}

/// The authorities in a file.
fn authorities(file: &Path) -> Result<rustls::RootCertStore, TrustError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|source| TrustError::Certificate { file: file.to_owned(), source })?;
    }
    Ok(roots)
}

fn read(what: &'static str, file: &Path) -> Result<Vec<u8>, TrustError> {
    std::fs::read(file).map_err(|source| TrustError::Read { what, file: file.to_owned(), source })
}

fn provider() -> std::sync::Arc<rustls::crypto::CryptoProvider> {
    std::sync::Arc::new(rustls::crypto::ring::default_provider())
}

/// Whether a host as written in a URL can only be this machine.
fn is_loopback(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
