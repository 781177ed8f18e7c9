//! Authorities and certificates of the tests, in files.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// An authority that signs what a test asks for.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
    pub(crate) ca: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, certificate.pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), folder, ca }
    }

    /// A certificate for `host`, and its key.
    pub(crate) fn sign(&self, host: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (cert_file, key_file) = (self.folder.path().join("cert.pem"), self.folder.path().join("key.pem"));
        let at = |path: &PathBuf| match path.exists() {
            true => path.with_extension("second.pem"),
            false => path.clone(),
        };
        let (cert_file, key_file) = (at(&cert_file), at(&key_file));
        std::fs::write(&cert_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        (cert_file, key_file)
    }
}
