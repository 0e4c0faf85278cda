//! Certificates and keys, generated for each control plane.

use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// Paths of the files that kube-apiserver and kube-controller-manager are given, and the CA that
/// clients trust.
#[derive(Debug, Clone)]
pub(super) struct Pki {
    /// The CA's certificate as PEM, for clients.
    pub(super) ca_pem: String,
    /// File with the CA's certificate.
    pub(super) ca: PathBuf,
    /// File with the serving certificate.
    pub(super) certificate: PathBuf,
    /// File with the serving certificate's key.
    pub(super) key: PathBuf,
    /// File with the key that signs service-account tokens.
    pub(super) service_account_key: PathBuf,
    /// File with the public half of it.
    pub(super) service_account_public_key: PathBuf,
    /// File with the CA of front proxies.
    pub(super) proxy_ca: PathBuf,
    /// Certificate authorities.
    pub(super) authorities: Authorities,
}

/// The two CAs whose client certificates the API server believes: of clients, and of proxies that
/// name the user in headers.
#[derive(Clone)]
pub(super) struct Authorities {
    clients: Arc<CertifiedIssuer<'static, KeyPair>>,
    proxies: Arc<CertifiedIssuer<'static, KeyPair>>,
}

/// A client certificate with its key, both as PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorities")
    }
}

impl Authorities {
    fn create() -> Result<Self, PkiError> {
        Ok(Self {
            clients: Arc::new(authority("ccm-test-ca")?),
            proxies: Arc::new(authority("ccm-test-proxy-ca")?),
        })
    }

    /// Returns a client's certificate: the user's name, and perhaps a group.
    pub(super) fn client(&self, name: &str, group: Option<&str>) -> Result<Identity, PkiError> {
        identity(&self.clients, name, group)
    }

    /// Returns a front proxy's certificate.
    pub(super) fn proxy(&self, name: &str) -> Result<Identity, PkiError> {
        identity(&self.proxies, name, None)
    }
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>, PkiError> {
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name.push(DnType::CommonName, name);
    Ok(CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?)
}

fn identity(
    issuer: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    group: Option<&str>,
) -> Result<Identity, PkiError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    Ok(Identity {
        certificate: params.signed_by(&key, issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

/// Names the serving certificate is valid for: loopback, and the names and first service address
/// that the API server has inside a cluster, whose absence it would warn about.
const SERVING_NAMES: [&str; 5] =
    ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc", "10.96.0.1"];

impl Pki {
    /// Creates keys and certificates and writes them to `directory`.
    pub(super) fn create(directory: &Path) -> Result<Self, PkiError> {
        let authorities = Authorities::create()?;
        let ca = &authorities.clients;

        let mut serving = CertificateParams::new(SERVING_NAMES.map(String::from))?;
        serving
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        serving.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = serving.signed_by(&key, ca)?;
        let service_account = KeyPair::generate()?;

        let ca_pem = ca.pem();
        Ok(Self {
            ca: write_private(directory, "ca.crt", &ca_pem)?,
            certificate: write_private(directory, "apiserver.crt", &certificate.pem())?,
            key: write_private(directory, "apiserver.key", &key.serialize_pem())?,
            service_account_key: write_private(
                directory,
                "sa.key",
                &service_account.serialize_pem(),
            )?,
            service_account_public_key: write_private(
                directory,
                "sa.pub",
                &service_account.public_key_pem(),
            )?,
            proxy_ca: write_private(directory, "proxy-ca.crt", &authorities.proxies.pem())?,
            ca_pem,
            authorities,
        })
    }
}

/// Reason why keys and certificates could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A key or certificate could not be generated.
    #[error("generate a key or certificate")]
    Generate(#[from] rcgen::Error),
    /// A file could not be written.
    #[error("write a key or certificate")]
    Write(#[from] io::Error),
}

/// Writes a file that only its owner can read, as keys and tokens must be.
pub(super) fn write_private(directory: &Path, name: &str, content: &str) -> io::Result<PathBuf> {
    let path = directory.join(name);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)?;
    file.write_all(content.as_bytes())?;
    Ok(path)
}
