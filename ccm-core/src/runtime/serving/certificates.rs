//! Certificates of the server: created, loaded, selected by server name, and reloaded when their
//! files change.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rustls::{
    client::verify_server_name,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::{ClientHello, ParsedCertificate, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::self_signed;
use crate::{config::ServingConfig, error::chain};

/// File name, without extension, of the pair in `--cert-dir`.
const PAIR_NAME: &str = "cloud-controller-manager";

/// The error of a certificate that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("--{flag}: {action} {}", path.display())]
pub struct CertificateError {
    flag: &'static str,
    action: &'static str,
    path: PathBuf,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// All certificates of a server.
#[derive(Debug)]
pub(super) struct Certificates {
    /// For clients that send no server name, or one that matches no other certificate.
    default: ServingCertificate,
    /// For certain server names, in the order of the flags.
    named: Vec<ServingCertificate>,
}

/// A certificate with its key, and the files that contain them.
#[derive(Debug)]
struct ServingCertificate {
    /// `None` for a certificate that was created in memory.
    files: Option<CertificateFiles>,
    names: Vec<String>,
    state: Mutex<LoadedCertificate>,
}

/// The files of a pair, and the flag that names them.
#[derive(Debug, Clone)]
struct CertificateFiles {
    flag: &'static str,
    certificate: PathBuf,
    key: PathBuf,
}

#[derive(Debug)]
struct LoadedCertificate {
    served: Arc<CertifiedKey>,
    /// Contents that were last read, valid or not, so that an invalid pair is logged only once.
    read: Option<FileContents>,
}

#[derive(PartialEq, Eq, Clone)]
struct FileContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Does not show the key.
impl fmt::Debug for FileContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileContents")
            .field("certificate", &self.certificate.len())
            .finish_non_exhaustive()
    }
}

impl Certificates {
    /// Loads or creates the certificates that the flags request.
    ///
    /// # Errors
    /// Every certificate that cannot be used.
    pub(super) fn load(
        config: &ServingConfig,
        provider: &CryptoProvider,
    ) -> Result<Self, Vec<CertificateError>> {
        let mut errors = Vec::new();
        let mut named = Vec::new();
        for pair in &config.tls_sni_certificates {
            let files = CertificateFiles {
                flag: "tls-sni-cert-key",
                certificate: pair.certificate.clone(),
                key: pair.key.clone(),
            };
            match ServingCertificate::read(files, pair.names.clone(), provider) {
                Ok(pair) => named.push(pair),
                Err(error) => errors.push(error),
            }
        }
        match ServingCertificate::default(config, provider) {
            Ok(default) if errors.is_empty() => Ok(Self { default, named }),
            Ok(_) => Err(errors),
            Err(error) => {
                errors.insert(0, error);
                Err(errors)
            }
        }
    }

    /// Reloads the files. If a new pair cannot be used, the previous one stays.
    pub(super) fn refresh(&self, provider: &CryptoProvider) {
        self.named
            .iter()
            .chain([&self.default])
            .for_each(|pair| pair.refresh(provider));
    }

    /// Selects a certificate in the order of Go's framework (k8s.io/apiserver): first a pair whose
    /// flag names the server exactly, then one whose flag has a matching wildcard, then one whose
    /// certificate is valid for the name, then the default.
    pub(super) fn choose(&self, name: &str) -> Arc<CertifiedKey> {
        let named = &self.named;
        let certificate = named
            .iter()
            .find(|pair| pair.is_named(name))
            .or_else(|| named.iter().find(|pair| pair.has_wildcard_for(name)))
            .or_else(|| {
                named
                    .iter()
                    .find(|pair| pair.names.is_empty() && pair.is_valid_for(name))
            })
            .unwrap_or(&self.default);
        certificate.state.lock().served.clone()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.choose(client_hello.server_name().unwrap_or_default()))
    }
}

impl ServingCertificate {
    fn default(
        config: &ServingConfig,
        provider: &CryptoProvider,
    ) -> Result<Self, CertificateError> {
        if let (Some(certificate), Some(key)) =
            (&config.tls_cert_file, &config.tls_private_key_file)
        {
            let files = CertificateFiles {
                flag: "tls-cert-file",
                certificate: certificate.clone(),
                key: key.clone(),
            };
            return Self::read(files, Vec::new(), provider);
        }
        if let Some(directory) = &config.cert_dir {
            return Self::from_directory(directory, config.bind_address, provider);
        }
        let pair =
            self_signed::generate(config.bind_address).map_err(|error| CertificateError {
                flag: "cert-dir",
                action: "make a certificate in place of one from a directory",
                path: PathBuf::new(),
                source: error.into(),
            })?;
        let contents = FileContents {
            certificate: pair.certificate.into_bytes(),
            key: pair.key.into_bytes(),
        };
        let files = CertificateFiles {
            flag: "cert-dir",
            certificate: "(memory)".into(),
            key: "(memory)".into(),
        };
        let served = contents.to_certified_key(&files, provider)?;
        Ok(Self {
            files: None,
            names: Vec::new(),
            state: Mutex::new(LoadedCertificate { served, read: None }),
        })
    }

    /// Loads the pair from a directory. Creates it if neither file can be read. If only one file
    /// exists, that is an operator error, and nothing is overwritten.
    fn from_directory(
        directory: &Path,
        bind: IpAddr,
        provider: &CryptoProvider,
    ) -> Result<Self, CertificateError> {
        let files = CertificateFiles {
            flag: "cert-dir",
            certificate: directory.join(format!("{PAIR_NAME}.crt")),
            key: directory.join(format!("{PAIR_NAME}.key")),
        };
        if std::fs::File::open(&files.certificate).is_err()
            && std::fs::File::open(&files.key).is_err()
        {
            files.create_self_signed(directory, bind)?;
        }
        Self::read(files, Vec::new(), provider)
    }

    fn read(
        files: CertificateFiles,
        names: Vec<String>,
        provider: &CryptoProvider,
    ) -> Result<Self, CertificateError> {
        let contents = files.read()?;
        let served = contents.to_certified_key(&files, provider)?;
        let state = Mutex::new(LoadedCertificate { served, read: Some(contents) });
        Ok(Self { files: Some(files), names, state })
    }

    fn refresh(&self, provider: &CryptoProvider) {
        let Some(files) = &self.files else { return };
        let mut result = files.read_changed(self.state.lock().read.as_ref(), provider);
        if result.is_error() {
            // The two files are written one after the other, and the first read may have happened
            // between the two writes.
            result = files.read_changed(self.state.lock().read.as_ref(), provider);
        }
        let mut state = self.state.lock();
        let certificate = files.certificate.display();
        let error = match result {
            ReloadResult::Unchanged => return,
            ReloadResult::Changed(contents, served) => {
                state.read = Some(contents);
                state.served = served;
                tracing::info!(%certificate, "certificate was read again");
                return;
            }
            // The files could not be read last time either; already logged.
            ReloadResult::Unreadable(_) if state.read.is_none() => return,
            ReloadResult::Unreadable(error) => {
                state.read = None;
                error
            }
            ReloadResult::Unusable(contents, error) => {
                state.read = Some(contents);
                error
            }
        };
        tracing::warn!(%certificate, error = chain(&error), "new certificate is not usable, the old one stays");
    }

    /// Returns true if the flag has exactly this server name.
    fn is_named(&self, name: &str) -> bool {
        self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Returns true if the flag has a wildcard that matches this server name.
    fn has_wildcard_for(&self, name: &str) -> bool {
        self.names.iter().any(|own| matches_wildcard(name, own))
    }

    /// Returns true if the certificate is valid for this server name.
    fn is_valid_for(&self, name: &str) -> bool {
        let served = self.state.lock().served.clone();
        let (Some(certificate), Ok(name)) = (served.cert.first(), ServerName::try_from(name))
        else {
            return false;
        };
        ParsedCertificate::try_from(certificate)
            .is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
    }
}

/// The result of reading a pair again.
enum ReloadResult {
    /// The files are as they were last read.
    Unchanged,
    /// The files have a new pair, which can be served.
    Changed(FileContents, Arc<CertifiedKey>),
    /// The files could not be read.
    Unreadable(CertificateError),
    /// The files have changed, but they contain no pair that can be served.
    Unusable(FileContents, CertificateError),
}

impl ReloadResult {
    fn is_error(&self) -> bool {
        matches!(self, Self::Unreadable(_) | Self::Unusable(..))
    }
}

impl CertificateFiles {
    fn read(&self) -> Result<FileContents, CertificateError> {
        let certificate = std::fs::read(&self.certificate)
            .map_err(|error| self.error("read the certificate", &self.certificate, error))?;
        let key = std::fs::read(&self.key)
            .map_err(|error| self.error("read the key", &self.key, error))?;
        Ok(FileContents { certificate, key })
    }

    /// Creates a self-signed pair in a directory.
    fn create_self_signed(&self, directory: &Path, bind: IpAddr) -> Result<(), CertificateError> {
        let pair = self_signed::generate(bind)
            .map_err(|error| self.error("make a pair in", directory, error))?;
        std::fs::create_dir_all(directory)
            .map_err(|error| self.error("make the directory", directory, error))?;
        self_signed::write(&self.key, &pair.key, 0o600)
            .map_err(|error| self.error("write the key", &self.key, error))?;
        self_signed::write(&self.certificate, &pair.certificate, 0o644).map_err(|error| {
            // A key without certificate would be treated as an operator error at the next start.
            let _ = std::fs::remove_file(&self.key);
            self.error("write the certificate", &self.certificate, error)
        })?;
        tracing::info!(directory = %directory.display(), "made a certificate");
        Ok(())
    }

    /// Reads the pair, and compares it with the contents that were last read.
    fn read_changed(
        &self,
        before: Option<&FileContents>,
        provider: &CryptoProvider,
    ) -> ReloadResult {
        let contents = match self.read() {
            Ok(contents) if before == Some(&contents) => return ReloadResult::Unchanged,
            Ok(contents) => contents,
            Err(error) => return ReloadResult::Unreadable(error),
        };
        match contents.to_certified_key(self, provider) {
            Ok(served) => ReloadResult::Changed(contents, served),
            Err(error) => ReloadResult::Unusable(contents, error),
        }
    }

    fn error(
        &self,
        action: &'static str,
        path: &Path,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> CertificateError {
        CertificateError {
            flag: self.flag,
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}

impl FileContents {
    /// Parses the pair. `files` are named in errors.
    fn to_certified_key(
        &self,
        files: &CertificateFiles,
        provider: &CryptoProvider,
    ) -> Result<Arc<CertifiedKey>, CertificateError> {
        let certificates = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| {
                files.error("use the certificate", &files.certificate, error.to_string())
            })?;
        if certificates.is_empty() {
            let error = "there is none in the file";
            return Err(files.error("use the certificate", &files.certificate, error));
        }
        // The library's error message may repeat contents of the file.
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| {
            files.error("use the key", &files.key, "there is no private key in the file")
        })?;
        CertifiedKey::from_der(certificates, key, provider)
            .map(Arc::new)
            .map_err(|error| {
                files.error("use the certificate with its key", &files.certificate, error)
            })
    }
}

/// Returns true if `name` is one label below the wildcard `pattern`.
fn matches_wildcard(name: &str, pattern: &str) -> bool {
    let Some(parent) = pattern.strip_prefix("*.") else {
        return false;
    };
    name.split_once('.')
        .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent))
}
