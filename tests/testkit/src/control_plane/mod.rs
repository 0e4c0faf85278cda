//! A real etcd and kube-apiserver (and optionally kube-controller-manager) on loopback, for tests.
//!
//! RBAC is on, and service-account tokens are signed and checked. Each control plane has its own
//! directory, keys, certificates and tokens. The programs end with the process that started them,
//! even if that is killed. The binaries come from `cargo xtask control-plane`. A Unix with `/bin/sh`
//! is required.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use ccm_testkit::control_plane::{Binaries, ControlPlane, Options};
//!
//! let binaries = Binaries::find()?;
//! let control_plane = ControlPlane::start(&binaries, Options::default()).await?;
//! let client = control_plane.client().await?;
//! println!("{}", client.apiserver_version().await?.git_version);
//! control_plane.stop().await?;
//! # Ok(())
//! # }
//! ```

mod access;
mod assets;
mod audit;
mod binaries;
mod components;
mod pki;
mod start;
mod usage;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use tokio::process::Child;

pub use access::{Token, User};
pub use audit::{AuditEvent, AuditKey, AuditLog};
pub use binaries::{Binaries, GoProgram, Missing, helm, kubernetes_version};
pub use pki::{Identity, PkiError};
pub use usage::{Usage, usage};

use access::Endpoint;

use crate::supervised::{CommandLine, Supervised};

/// Options of a control plane. The default is etcd and kube-apiserver with all defaults of
/// Kubernetes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Feature gates, for instance `WatchList` off.
    pub feature_gates: BTreeMap<String, bool>,
    /// True if requests are logged, for [`ControlPlane::audit_log`]. Off by default.
    pub audit: bool,
    /// Options of kube-controller-manager, if it runs. Off by default.
    pub controller_manager: Option<ControllerManager>,
    /// More arguments for kube-apiserver, `--name=value` each; they come last and so win.
    pub apiserver_args: Vec<String>,
    /// Users beside the administrator.
    pub users: Vec<User>,
    /// Timeout of the whole start. Two minutes by default: it takes seconds, but test machines are
    /// busy.
    pub start_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            feature_gates: BTreeMap::new(),
            audit: false,
            controller_manager: None,
            apiserver_args: Vec::new(),
            users: Vec::new(),
            start_timeout: Duration::from_mins(2),
        }
    }
}

impl Options {
    /// Turns a feature gate on or off.
    #[must_use]
    pub fn feature_gate(mut self, name: impl Into<String>, on: bool) -> Self {
        self.feature_gates.insert(name.into(), on);
        self
    }

    /// Adds an argument for kube-apiserver, `--name=value`.
    #[must_use]
    pub fn apiserver_arg(mut self, argument: impl Into<String>) -> Self {
        self.apiserver_args.push(argument.into());
        self
    }

    /// Logs requests.
    #[must_use]
    pub fn audit(mut self) -> Self {
        self.audit = true;
        self
    }

    /// Adds a user.
    #[must_use]
    pub fn user(mut self, user: User) -> Self {
        self.users.push(user);
        self
    }

    /// Runs kube-controller-manager.
    #[must_use]
    pub fn controller_manager(mut self, wanted: ControllerManager) -> Self {
        self.controller_manager = Some(wanted);
        self
    }
}

/// Options of kube-controller-manager.
#[derive(Debug, Clone, Default)]
pub struct ControllerManager {
    /// Value of `--controllers`; empty means its default.
    pub controllers: Vec<String>,
    /// More arguments.
    pub args: Vec<String>,
}

/// Reason why a control plane did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// kube-controller-manager was asked for and is not there.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A directory, file, port or process could not be made.
    #[error("prepare the control plane")]
    Io(#[from] io::Error),
    /// Keys and certificates could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The client could not be made.
    #[error("make a client for the control plane")]
    Client(#[from] ClientError),
    /// The program was not part of the control plane's options.
    #[error("the control plane was started without {0:?}")]
    NotPrepared(Component),
    /// A program ended by itself.
    #[error("{program} ended during start; the end of its log:\n{log}")]
    Exited {
        /// Its name.
        program: &'static str,
        /// The end of what it printed.
        log: String,
    },
    /// The API server did not become ready in time.
    #[error("{program} is not ready after {after:?}: {last}; the end of its log:\n{log}")]
    NotReady {
        /// Name of the program.
        program: &'static str,
        /// The time it was given.
        after: Duration,
        /// The last answer.
        last: String,
        /// The end of what it printed.
        log: String,
    },
}

/// Reason why a client or a token could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The client's configuration is wrong.
    #[error("read the client configuration")]
    Config(#[from] kube::config::KubeconfigError),
    /// The client could not be made, or a request failed.
    #[error("talk to the API server")]
    Client(#[from] kube::Error),
    /// The answer holds no token.
    #[error("the API server answered without a token")]
    NoToken,
}

/// The programs of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    Apiserver,
    /// kube-controller-manager.
    ControllerManager,
}

/// A running control plane. Dropping it kills the programs and removes their directory;
/// [`stop`](Self::stop) also waits until they are gone.
#[derive(Debug)]
pub struct ControlPlane {
    endpoint: Endpoint,
    /// Address of kube-controller-manager, if it runs.
    controller_manager: Endpoint,
    admin: User,
    users: Vec<User>,
    authorities: pki::Authorities,
    audit_log: Option<PathBuf>,
    start_timeout: Duration,
    /// Command line of each program, also for a restart.
    commands: BTreeMap<Component, CommandLine>,
    /// Dropped before the directory they write into.
    programs: BTreeMap<Component, Supervised>,
    directory: tempfile::TempDir,
    /// Removes the directory when we are killed; lives as long as its pipe to us.
    _janitor: Child,
}

impl ControlPlane {
    /// Finds the binaries.
    ///
    /// # Errors
    /// [`Missing`] when etcd or kube-apiserver is not there.
    pub fn available() -> Result<Binaries, Missing> {
        Binaries::find()
    }

    /// Starts a control plane and waits until it is ready: every check of `/readyz` passes and the
    /// system's namespaces exist.
    ///
    /// # Errors
    /// See [`StartError`]; a port that somebody else took in between is tried again with others.
    ///
    /// # Cancellation
    /// Dropping the future kills what was started.
    pub async fn start(binaries: &Binaries, options: Options) -> Result<Self, StartError> {
        start::start(binaries, options).await
    }

    /// Address of the API server, `https://127.0.0.1:port`.
    pub fn url(&self) -> &str {
        &self.endpoint.url
    }

    /// Returns the CA that signed the API server's certificate, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.endpoint.ca_pem
    }

    /// Returns the administrator, a member of `system:masters`.
    pub fn admin(&self) -> &User {
        &self.admin
    }

    /// Returns a user given in [`Options::users`].
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }

    /// Returns a client with all permissions.
    pub async fn client(&self) -> Result<kube::Client, ClientError> {
        self.client_as(&self.admin.token).await
    }

    /// Returns a client with the permissions of the token's user.
    pub async fn client_as(&self, token: &Token) -> Result<kube::Client, ClientError> {
        Ok(kube::Client::try_from(self.kube_config_as(token).await?)?)
    }

    /// Returns a client with all permissions and this `user_agent`, which distinguishes it in the
    /// audit log.
    pub async fn client_named(&self, user_agent: &str) -> Result<kube::Client, ClientError> {
        let mut config = self.kube_config().await?;
        let value = http::HeaderValue::from_str(user_agent)
            .map_err(|error| kube::Error::HttpError(error.into()))?;
        config.headers.push((http::header::USER_AGENT, value));
        Ok(kube::Client::try_from(config)?)
    }

    /// Returns the configuration of a client with all permissions, to be changed before use
    /// (timeouts, headers).
    pub async fn kube_config(&self) -> Result<kube::Config, ClientError> {
        self.kube_config_as(&self.admin.token).await
    }

    /// Returns the configuration of a client with the permissions of the token's user.
    pub async fn kube_config_as(&self, token: &Token) -> Result<kube::Config, ClientError> {
        Ok(self.endpoint.config(token).await?)
    }

    /// Writes a kubeconfig with the permissions of the token's user, readable only by its owner.
    pub fn write_kubeconfig(&self, path: &Path, token: &Token) -> io::Result<()> {
        write_kubeconfig(&self.endpoint, path, token)
    }

    /// Returns a client certificate of the cluster: the user's name, and perhaps a group.
    pub fn client_identity(&self, name: &str, group: Option<&str>) -> Result<Identity, PkiError> {
        self.authorities.client(name, group)
    }

    /// Returns the certificate of the front proxy that may name users in headers `X-Remote-User`
    /// and so on.
    pub fn proxy_identity(&self) -> Result<Identity, PkiError> {
        self.authorities.proxy(components::PROXY_NAME)
    }

    /// Returns a token of a service account, which must exist; valid for an hour.
    pub async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Token, ClientError> {
        let accounts: kube::Api<ServiceAccount> =
            kube::Api::namespaced(self.client().await?, namespace);
        let spec = TokenRequestSpec {
            expiration_seconds: Some(3600),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let answer = accounts
            .create_token_request(name, &kube::api::PostParams::default(), &request)
            .await?;
        answer
            .status
            .and_then(|status| status.token)
            .map(Token::new)
            .ok_or(ClientError::NoToken)
    }

    /// Returns the requests answered so far.
    ///
    /// # Errors
    /// `NotFound` when [`Options::audit`] is off; others when the log cannot be read.
    pub fn audit_log(&self) -> io::Result<AuditLog> {
        match &self.audit_log {
            Some(path) => AuditLog::read(path),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the control plane runs without an audit log",
            )),
        }
    }

    /// Returns the resources that a program has used; `None` if it does not run, or on a system
    /// without `/proc`.
    pub fn usage(&self, component: Component) -> Option<Usage> {
        usage(self.pid(component)?)
    }

    /// Returns the process id of a program; `None` when it was not asked for.
    pub fn pid(&self, component: Component) -> Option<u32> {
        self.programs.get(&component).map(Supervised::pid)
    }

    /// Returns the output of a program.
    pub fn log(&self, component: Component) -> Option<String> {
        self.programs.get(&component).map(Supervised::log)
    }

    /// Returns the directory with data, keys and logs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Kills one program and waits until it has ended, for tests of outages.
    ///
    /// # Errors
    /// When it does not end within ten seconds. Nothing happens when it does not run.
    pub async fn stop_program(&mut self, component: Component) -> io::Result<()> {
        match self.programs.remove(&component) {
            Some(program) => program.stop(KILL_DEADLINE).await,
            None => Ok(()),
        }
    }

    /// Starts or restarts one program and waits until it is ready. etcd keeps its data. A restarted
    /// API server has closed all watches and answers `410 Gone` to clients that resume from an
    /// earlier version, because its watch cache is new.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn restart_program(&mut self, component: Component) -> Result<(), StartError> {
        self.stop_program(component).await?;
        let deadline = tokio::time::Instant::now() + self.start_timeout;
        start::launch(self, component).await?;
        start::wait_until_ready(self, component, deadline).await
    }

    /// Stops the programs, waits until they are gone and removes their directory.
    ///
    /// # Errors
    /// When a program does not end within a minute of being killed, or the directory cannot be
    /// removed.
    pub async fn stop(mut self) -> io::Result<()> {
        // etcd last: the others would only complain about its absence.
        while let Some((_, program)) = self.programs.pop_last() {
            program.stop(KILL_DEADLINE).await?;
        }
        self.directory.close()
    }
}

/// A killed program is gone at once, but for a machine that is overloaded.
const KILL_DEADLINE: Duration = Duration::from_mins(1);

fn write_kubeconfig(endpoint: &Endpoint, path: &Path, token: &Token) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    pki::write_private(directory, name, &endpoint.kubeconfig("user", token).to_string()).map(drop)
}
