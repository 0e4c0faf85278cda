//! CA bundle, client certificate, client key and token from files that a kubeconfig or a pod's
//! ServiceAccount names. They are reloaded at runtime.

use std::{fmt, fs, path::PathBuf, str, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;
use kube::{client::ConfigExt as _, config::AuthInfo};
use parking_lot::Mutex;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::time::Instant;

use crate::crypto;

/// Minimum interval between two reads of the files, which happen when a request is sent. client-go
/// reads certificates every five minutes and tokens every minute.
pub(super) const RELOAD_INTERVAL: Duration = Duration::from_secs(20);

/// The configuration of an API client. Clones share the last read contents of the files.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The configuration, which still names files instead of containing their contents.
    pub kube: kube::Config,
    files: Arc<CredentialFiles>,
}

/// The decision whether a server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerVerification {
    Verify,
    Skip,
}

/// The source of a configuration, as errors and logs name it.
pub(super) struct Origin {
    /// The flag with its value, or the ServiceAccount.
    pub(super) source: String,
    pub(super) cluster: String,
    pub(super) user: String,
}

/// The error of a file that cannot be used. Contains no part of the file's contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {path} of {owner} {reason}")]
pub(super) struct UnusableFile {
    what: &'static str,
    path: String,
    owner: String,
    reason: String,
}

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    CaBundle,
    ClientCertificate,
    ClientKey,
    Token,
}

#[derive(Clone, Debug)]
struct File {
    role: Role,
    path: PathBuf,
    /// The cluster or user of the kubeconfig that names the file.
    owner: String,
}

struct CredentialFiles {
    source: String,
    files: Vec<File>,
    /// The configuration for testing the files' contents, since one part may be in-line: a key
    /// without its certificate, for example.
    base: kube::Config,
    state: Mutex<State>,
}

struct State {
    last_good: Arc<Credentials>,
    /// When the files were last read.
    checked: Instant,
    /// What was last logged, so that the same problem is logged only once.
    problem: Option<UnusableFile>,
}

/// Contents of the files, in the form of the in-line fields of a configuration.
#[derive(Default)]
pub(super) struct Credentials {
    contents: Vec<Vec<u8>>,
    ca_bundle: Option<Vec<Vec<u8>>>,
    client_certificate: Option<String>,
    client_key: Option<String>,
    token: Option<String>,
}

impl ClientConfig {
    /// Reads the files that a configuration names. As in client-go, a token file takes precedence
    /// over an in-line token, which is used only if the file cannot be read now.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(super) fn new(mut kube: kube::Config, origin: Origin) -> Result<Self, UnusableFile> {
        let Origin { source, cluster, user } = origin;
        let token = kube.auth_info.token_file.clone();
        if let Some(path) =
            token.filter(|path| kube.auth_info.token.is_some() && fs::metadata(path).is_err())
        {
            tracing::warn!(
                kubeconfig = source,
                file = path,
                "token file is not there, the token beside it is used"
            );
            kube.auth_info.token_file = None;
        }
        let mut base = kube.clone();
        // A credential plug-in does not depend on these files.
        base.auth_info.exec = None;
        base.auth_info.auth_provider = None;
        // kube would read the file again by itself whenever there is no TLS session to resume.
        let ca_bundle = kube.root_cert_file.take();
        let files = files(ca_bundle, &kube.auth_info, &cluster, &user);
        let mut files = CredentialFiles::unread(source, files, base);
        let read = files.try_out(files.read()?)?;
        files.state.get_mut().last_good = Arc::new(read);
        Ok(Self { kube, files: Arc::new(files) })
    }

    /// Creates a configuration that names no files.
    pub(super) fn without_files(kube: kube::Config) -> Self {
        let files = CredentialFiles::unread(String::new(), Vec::new(), kube.clone());
        Self { kube, files: Arc::new(files) }
    }

    /// Returns a configuration with the user of this one and another server, whose certificate is
    /// verified with this CA bundle, or with the system's if there is none, or not at all. Uses no
    /// proxy and does not read files again.
    ///
    /// # Errors
    /// The reason why the CA bundle cannot be used.
    pub(crate) fn for_server(
        &self,
        address: http::Uri,
        ca_bundle: Option<&[u8]>,
        verification: ServerVerification,
    ) -> Result<Self, String> {
        let mut kube = self.filled(&self.credentials());
        kube.cluster_url = address;
        kube.proxy_url = None;
        kube.tls_server_name = None;
        kube.accept_invalid_certs = verification == ServerVerification::Skip;
        kube.root_cert = match ca_bundle {
            Some(pem) => {
                let certificates = certificates(pem)?;
                Some(
                    certificates
                        .iter()
                        .map(|certificate| certificate.to_vec())
                        .collect(),
                )
            }
            None => None,
        };
        Ok(Self::without_files(kube))
    }

    /// Returns the contents of the files; reads them again if that is due. Returns the same `Arc`
    /// as long as the contents are unchanged.
    pub(super) fn credentials(&self) -> Arc<Credentials> {
        self.files.current()
    }

    /// Returns the configuration with these credentials in place of files. Credentials whose file
    /// the configuration no longer names are left out.
    pub(super) fn filled(&self, credentials: &Credentials) -> kube::Config {
        fill(self.kube.clone(), credentials)
    }

    /// Returns the flag with its value, or the ServiceAccount.
    pub(super) fn source(&self) -> &str {
        &self.files.source
    }
}

/// Returns the files to watch. A file whose contents are also in-line is ignored.
fn files(
    ca_bundle: Option<PathBuf>,
    user: &AuthInfo,
    cluster_name: &str,
    user_name: &str,
) -> Vec<File> {
    let mut files = Vec::new();
    if let Some(path) = ca_bundle {
        files.push(File { role: Role::CaBundle, path, owner: cluster_name.to_owned() });
    }
    if let Some(path) = &user.client_certificate
        && user.client_certificate_data.is_none()
    {
        files.push(File::of_user(Role::ClientCertificate, path, user_name));
    }
    if let Some(path) = &user.client_key
        && user.client_key_data.is_none()
    {
        files.push(File::of_user(Role::ClientKey, path, user_name));
    }
    if let Some(path) = &user.token_file {
        files.push(File::of_user(Role::Token, path, user_name));
    }
    files
}

fn fill(mut config: kube::Config, credentials: &Credentials) -> kube::Config {
    let user = &mut config.auth_info;
    if let Some(bundle) = &credentials.ca_bundle {
        config.root_cert = Some(bundle.clone());
        config.root_cert_file = None;
    }
    if let Some(certificate) = &credentials.client_certificate
        && user.client_certificate.is_some()
    {
        user.client_certificate_data = Some(certificate.clone());
    }
    if let Some(key) = &credentials.client_key
        && user.client_key.is_some()
    {
        user.client_key_data = Some(key.clone().into());
    }
    if let Some(token) = &credentials.token
        && user.token_file.is_some()
    {
        user.token = Some(token.clone().into());
    }
    config
}

impl CredentialFiles {
    /// Creates the files before they are read for the first time.
    fn unread(source: String, files: Vec<File>, base: kube::Config) -> Self {
        let state = State {
            last_good: Arc::default(),
            checked: Instant::now(),
            problem: None,
        };
        Self { source, files, base, state: Mutex::new(state) }
    }

    fn current(&self) -> Arc<Credentials> {
        let mut state = self.state.lock();
        if !self.files.is_empty() && state.checked.elapsed() >= RELOAD_INTERVAL {
            state.checked = Instant::now();
            self.check(&mut state);
        }
        state.last_good.clone()
    }

    fn check(&self, state: &mut State) {
        match self.read_changed(&state.last_good) {
            Ok(None) => state.problem = None,
            Ok(Some(credentials)) => {
                self.log_changes(&state.last_good, &credentials);
                state.last_good = Arc::new(credentials);
                state.problem = None;
            }
            Err(problem) if state.problem.as_ref() == Some(&problem) => {}
            Err(problem) => {
                let UnusableFile { what, path, owner, reason } = &problem;
                tracing::warn!(
                    kubeconfig = self.source,
                    owner,
                    file = path,
                    reason,
                    "{what} cannot be used, what was last read stays in use"
                );
                state.problem = Some(problem);
            }
        }
    }

    fn log_changes(&self, old: &Credentials, new: &Credentials) {
        for ((file, old), new) in self.files.iter().zip(&old.contents).zip(&new.contents) {
            if new != old {
                let what = file.role.what();
                let path = file.path.display();
                tracing::info!(kubeconfig = self.source, owner = file.owner, file = %path, "{what} was read again");
            }
        }
    }

    /// Reads the files; `None` if their contents are unchanged.
    fn read_changed(&self, last_good: &Credentials) -> Result<Option<Credentials>, UnusableFile> {
        let contents = self.read()?;
        if contents == last_good.contents {
            return Ok(None);
        }
        self.try_out(contents).map(Some)
    }

    fn read(&self) -> Result<Vec<Vec<u8>>, UnusableFile> {
        self.files.iter().map(File::read).collect()
    }

    /// Checks that a client can be made from these contents.
    fn try_out(&self, contents: Vec<Vec<u8>>) -> Result<Credentials, UnusableFile> {
        let mut credentials = Credentials::default();
        for (file, content) in self.files.iter().zip(&contents) {
            credentials
                .take(file.role, content)
                .map_err(|reason| file.unusable(reason))?;
        }
        // kube's error message may repeat contents of the file.
        if let Some(file) = self.files.iter().rfind(|file| file.is_of_client_pair())
            && !can_set_up_tls(&fill(self.base.clone(), &credentials))
        {
            return Err(file.unusable("cannot be used: certificate and key are no pair".to_owned()));
        }
        Ok(Credentials { contents, ..credentials })
    }
}

impl Credentials {
    fn take(&mut self, role: Role, content: &[u8]) -> Result<(), String> {
        match role {
            Role::CaBundle => {
                let mut roots = RootCertStore::empty();
                let certificates = certificates(content)?;
                for certificate in certificates.clone() {
                    roots
                        .add(certificate)
                        .map_err(|error| format!("holds a certificate that is none: {error}"))?;
                }
                self.ca_bundle = Some(
                    certificates
                        .iter()
                        .map(|certificate| certificate.to_vec())
                        .collect(),
                );
            }
            Role::ClientCertificate => {
                certificates(content)?;
                self.client_certificate = Some(STANDARD.encode(content));
            }
            Role::ClientKey => {
                PrivateKeyDer::from_pem_slice(content).map_err(|_| "holds no private key")?;
                self.client_key = Some(STANDARD.encode(content));
            }
            Role::Token => {
                let token = str::from_utf8(content).map(str::trim).unwrap_or_default();
                if token.is_empty() || HeaderValue::from_str(token).is_err() {
                    return Err("holds no token that can be sent".to_owned());
                }
                self.token = Some(token.to_owned());
            }
        }
        Ok(())
    }
}

/// Returns true if TLS can be set up with the certificates of this configuration.
fn can_set_up_tls(config: &kube::Config) -> bool {
    crypto::install().is_ok() && config.rustls_client_config().is_ok()
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err("holds no certificate, or one that is cut".to_owned()),
    }
}

impl File {
    fn of_user(role: Role, path: &str, user_name: &str) -> Self {
        Self { role, path: path.into(), owner: user_name.to_owned() }
    }

    fn is_of_client_pair(&self) -> bool {
        matches!(self.role, Role::ClientCertificate | Role::ClientKey)
    }

    fn read(&self) -> Result<Vec<u8>, UnusableFile> {
        fs::read(&self.path).map_err(|error| self.unusable(format!("cannot be read: {error}")))
    }

    fn unusable(&self, reason: String) -> UnusableFile {
        let what = self.role.what();
        let path = self.path.display().to_string();
        UnusableFile { what, path, owner: self.owner.clone(), reason }
    }
}

impl Role {
    fn what(self) -> &'static str {
        match self {
            Self::CaBundle => "CA bundle",
            Self::ClientCertificate => "client certificate",
            Self::ClientKey => "client key",
            Self::Token => "token file",
        }
    }
}

/// Does not show the contents of the files.
impl fmt::Debug for CredentialFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialFiles")
            .field("source", &self.source)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
