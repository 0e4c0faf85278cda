//! A cloud that can be started: by the binary, and in tests.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::api::Secret;
use axum::Router;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Cloud, Settings, listen, router};
use crate::{
    dataplane::DataPlane,
    keystone::{
        KeyContainer, KeySecret, random_secret,
        seed::{self, Passwords},
    },
    octavia::dataplane_sync,
    servers::{self, Cluster},
    state::{ApiError, CloudState, new_id},
    store::{Store, StoreError},
};

/// How long requests may take after shutdown was requested.
const GRACE: Duration = Duration::from_secs(5);

const FILE: &str = "credentials.json";

/// A local cloud.
#[derive(Clone, Debug)]
pub struct LocalCloud {
    cloud: Arc<Cloud>,
    credentials: Credentials,
    /// Cluster whose nodes servers can be.
    cluster: Option<Arc<dyn Cluster>>,
}

/// Why a cloud cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The state cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file with the passwords cannot be used.
    #[error("cannot use the passwords in {path}")]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// Passwords of the users that a new cloud has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Credentials {
    /// Region of the endpoints.
    pub region: String,
    /// Passwords by name of the user: `admin`, and `demo` with no special permissions. Each has a
    /// project of the same name, and both are in the domain with the ID `default`.
    pub passwords: BTreeMap<String, Secret>,
    /// True when the passwords were generated at random.
    #[serde(default)]
    random: bool,
}

impl Credentials {
    fn new(settings: &Settings) -> Self {
        let password = |given: &Option<Secret>| given.clone().unwrap_or_else(random_secret);
        let admin = (seed::ADMIN.to_owned(), password(&settings.admin_password));
        let member = (seed::MEMBER.to_owned(), password(&settings.member_password));
        let random = settings.admin_password.is_none() && settings.member_password.is_none();
        Self {
            region: settings.region.clone(),
            passwords: [admin, member].into(),
            random,
        }
    }

    /// Reads the passwords in a state directory.
    ///
    /// # Errors
    /// They do not exist yet, or cannot be read.
    pub fn read(dir: &Path) -> Result<Self, StartError> {
        let path = dir.join(FILE);
        let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        read.map_err(|source| StartError::Credentials { path, source })
    }

    fn write(&self, dir: &Path) -> Result<(), StartError> {
        let path = dir.join(FILE);
        write_private(&path, self).map_err(|source| StartError::Credentials { path, source })
    }

    /// Returns the password of a user.
    pub fn password(&self, user: &str) -> Option<&Secret> {
        self.passwords.get(user)
    }

    /// Returns the shell commands that set the variables of the `openstack` command for this user,
    /// for a cloud that listens on `address`.
    pub fn exports(&self, user: &str, address: &str) -> Option<String> {
        let password = self.password(user)?.expose().to_owned();
        let mut lines = String::new();
        for (name, value) in [
            ("OS_AUTH_TYPE", "password".to_owned()),
            ("OS_AUTH_URL", format!("http://{address}/identity/v3")),
            ("OS_IDENTITY_API_VERSION", "3".to_owned()),
            ("OS_USERNAME", user.to_owned()),
            ("OS_PASSWORD", password),
            ("OS_PROJECT_NAME", user.to_owned()),
            ("OS_USER_DOMAIN_ID", seed::DOMAIN.to_owned()),
            ("OS_PROJECT_DOMAIN_ID", seed::DOMAIN.to_owned()),
            ("OS_REGION_NAME", self.region.clone()),
            ("OS_INTERFACE", "public".to_owned()),
        ] {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "export {name}='{}'", value.replace('\'', r"'\''"));
        }
        Some(lines)
    }

    fn seed(&self) -> Passwords {
        let password = |user: &str| self.password(user).cloned().unwrap_or_else(random_secret);
        Passwords {
            admin: password(seed::ADMIN),
            member: password(seed::MEMBER),
            random: self.random,
        }
    }
}

/// Writes a file that only its owner may read, completely or not at all.
fn write_private(path: &Path, content: &impl Serialize) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;

    let new = path.with_extension("new");
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    serde_json::to_writer_pretty(&file, content)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

impl LocalCloud {
    /// Creates a cloud in memory. It never waits for a disk, and works under paused time.
    pub fn in_memory(settings: Settings) -> Self {
        let credentials = Credentials::new(&settings);
        let prepare = |state: &mut CloudState| {
            seed::seed(state, &credentials.region, &credentials.seed());
            settings.apply(state);
        };
        let store = Store::in_memory_with(prepare);
        Self {
            cloud: Arc::new(Cloud::new(store, settings)),
            credentials,
            cluster: None,
        }
    }

    /// Opens the cloud in a state directory, or creates one there.
    ///
    /// Passwords are in `credentials.json` beside the state. If that file was deleted, the users
    /// get new ones.
    ///
    /// # Errors
    /// The directory is used by another process, contains something else, or cannot be read or
    /// written.
    pub fn open(dir: &Path, settings: Settings) -> Result<Self, StartError> {
        let path = dir.join(FILE);
        let is_there = path.try_exists();
        let is_there = is_there.map_err(|source| StartError::Credentials { path, source })?;
        let credentials = if is_there {
            Credentials::read(dir)?
        } else {
            Credentials::new(&settings)
        };
        let mut failed = None;
        let store = Store::open_with(dir, |state| {
            // The file comes first: after a crash in between, the next start uses it.
            if !is_there && let Err(error) = credentials.write(dir) {
                failed = Some(error);
                return;
            }
            if seed::is_new(state) {
                seed::seed(state, &credentials.region, &credentials.seed());
            } else if !is_there {
                tracing::warn!(dir = %dir.display(), "the passwords were missing, so the users got new ones");
                seed::set_passwords(state, &credentials.seed());
            }
            settings.apply(state);
        })?;
        match failed {
            Some(error) => Err(error),
            None => Ok(Self {
                cloud: Arc::new(Cloud::new(store, settings)),
                credentials,
                cluster: None,
            }),
        }
    }

    /// Lets servers be nodes of this cluster, if their metadata says so.
    #[must_use]
    pub fn with_cluster(self, cluster: Arc<dyn Cluster>) -> Self {
        Self { cluster: Some(cluster), ..self }
    }

    /// Returns what all requests share: state, settings, clock, request log, faults.
    pub fn cloud(&self) -> &Arc<Cloud> {
        &self.cloud
    }

    /// Returns the passwords.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Stores a secret in the key manager: its project, name, kind (`certificate`, `private`,
    /// `opaque`) and content, such as a PEM file. Returns its ID.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn put_secret(
        &self,
        project: &str,
        name: &str,
        kind: &str,
        payload: Secret,
    ) -> Result<String, ApiError> {
        let secret = KeySecret {
            id: new_id(),
            name: name.to_owned(),
            project_id: project.to_owned(),
            created_at: self.cloud.clock.now(),
            kind: kind.to_owned(),
            payload,
            content_type: "text/plain".to_owned(),
            is_base64: false,
            algorithm: None,
            bit_length: None,
            mode: None,
            expiration: None,
            creator_id: String::new(),
            metadata: BTreeMap::new(),
        };
        let id = secret.id.clone();
        let put = |state: &mut CloudState| {
            state.keystone.key_secrets.put(secret);
            Ok(id)
        };
        self.cloud.store.change(put).await
    }

    /// Stores a container in the key manager: its project, name, and IDs of secrets by role
    /// (`certificate`, `private_key`, `intermediates`). Returns its ID.
    ///
    /// # Errors
    /// A secret does not exist; the disk fails.
    pub async fn put_container(
        &self,
        project: &str,
        name: &str,
        secrets: &[(&str, &str)],
    ) -> Result<String, ApiError> {
        let container = KeyContainer {
            id: new_id(),
            name: name.to_owned(),
            project_id: project.to_owned(),
            created_at: self.cloud.clock.now(),
            kind: "certificate".to_owned(),
            secrets: secrets
                .iter()
                .map(|(name, id)| ((*name).to_owned(), (*id).to_owned()))
                .collect(),
        };
        let id = container.id.clone();
        let put = |state: &mut CloudState| {
            let mut ids = container.secrets.values();
            if let Some(missing) = ids.find(|id| state.keystone.key_secrets.get(id).is_none()) {
                return Err(ApiError::not_found("", format!("Secret {missing} not found.")));
            }
            state.keystone.key_containers.put(container);
            Ok(id)
        };
        self.cloud.store.change(put).await
    }

    /// Returns the router of all services, to be called without a socket.
    pub fn router(&self) -> Router {
        router(self.cloud.clone())
    }

    /// Carries the traffic of load balancers until cancelled, and ends their changes when they are
    /// due. Without it, the next request ends them, and everything that is enabled counts as
    /// working.
    pub async fn run_data_plane(&self, cancel: CancellationToken) {
        let plane = DataPlane::default();
        dataplane_sync::run(&self.cloud, Some(&plane), cancel).await;
        plane.shutdown().await;
    }

    /// Runs the servers whose metadata says so until cancelled; see [`servers`].
    pub async fn run_servers(&self, cancel: CancellationToken) {
        servers::run(&self.cloud, self.cluster.clone(), cancel).await;
    }

    /// Serves until cancelled; meanwhile [carries traffic](Self::run_data_plane) and [runs
    /// servers](Self::run_servers). When this returns, all connections are closed and no request is
    /// in flight; requests that were had five seconds to be answered.
    ///
    /// # Errors
    /// The listener fails, or the state cannot be written.
    pub async fn serve(&self, listener: TcpListener, cancel: CancellationToken) -> io::Result<()> {
        dataplane_sync::begin(&self.cloud, true)
            .await
            .map_err(io::Error::other)?;
        // Requests end before the traffic does, so that each sees the real state until then.
        let stop = CancellationToken::new();
        let serve = async {
            let served = listen::serve(listener, self.router(), GRACE, &cancel).await;
            stop.cancel();
            served
        };
        tokio::join!(serve, self.run_data_plane(stop.clone()), self.run_servers(stop.clone())).0
    }
}
