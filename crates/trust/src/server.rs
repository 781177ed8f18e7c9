//! The controller's certificate, and those it asks its clients for.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::{Stream, TrustError};

/// TLS as the controller speaks it.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
    asks: bool,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("asks_for_certificates", &self.asks).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// With the certificate chain in `certificate` and its key; with `client_ca`, clients must have a certificate of one
    /// of its authorities.
    ///
    /// # Errors
    /// When a file cannot be read or holds something else, or certificate and key do not fit.
    pub fn load(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self, TrustError> {
        let unusable = |source| TrustError::Certificate { file: certificate.to_owned(), source };
        let builder = ServerConfig::builder_with_provider(crate::provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let roots = Arc::new(crate::authorities(file)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, crate::provider()).build();
                let verifier = verifier.map_err(|_| TrustError::Pem { what: "certificate", file: file.to_owned() })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            builder.with_single_cert(crate::certificates(certificate)?, crate::private_key(key)?).map_err(unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(ServerTls { acceptor: TlsAcceptor::from(Arc::new(config)), asks: client_ca.is_some() })
    }

    /// Whether clients must have a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.asks
    }

    /// The handshake with a client.
    ///
    /// # Errors
    /// When it is broken off, the client's certificate that was asked for being missing or none of ours included.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        Ok(Stream::Tls(Box::new(TlsStream::Server(self.acceptor.accept(stream).await?))))
    }
}
