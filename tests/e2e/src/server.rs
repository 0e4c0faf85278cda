//! The servers that scenarios run on, behind one face.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use ccm_testkit::apiserver::{Access, ApiServer, Rule, Serving, User as EmbeddedUser};
use ccm_testkit::control_plane::{
    AuditLog, Binaries, Component, ControlPlane, ControllerManager, Identity, Options, User,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::task::AbortHandle;

use crate::watcher::ClusterWatcher;

/// Group of the users that a cloud-controller-manager runs as, and the name of its role.
const GROUP: &str = "e2e:cloud-controller-managers";

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerKind {
    /// The embedded API server, over TLS on loopback.
    Embedded,
    /// A real etcd and kube-apiserver with their defaults.
    Real,
    /// The same with the feature WatchList off.
    RealWithoutWatchList,
    /// The same with kube-controller-manager: Deployments get Pods, aggregated roles their rules.
    RealWithControllers,
}

impl ServerKind {
    /// Prefix of the scenarios' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Real => "real",
            Self::RealWithoutWatchList => "real-without-watchlist",
            Self::RealWithControllers => "real-with-controllers",
        }
    }
}

/// One request that changed something, or tried to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// Resource with subresource.
    pub resource: String,
    /// Object; empty for creations on a real server.
    pub name: String,
    /// HTTP status.
    pub code: u16,
}

impl Write {
    /// Whether it had an effect.
    pub fn succeeded(&self) -> bool {
        self.code < 300
    }
}

/// A running server with its observer. Dropping it ends both.
pub struct Server {
    /// What it is.
    pub kind: ServerKind,
    /// Watches its nodes.
    pub observer: ClusterWatcher,
    /// Held for reading by scenarios that bear others beside them, for writing by those that break
    /// the server.
    pub peace: RwLock<()>,
    /// What really serves.
    backend: Backend,
    client: kube::Client,
    watcher: AbortHandle,
}

enum Backend {
    Embedded(Serving, ApiServer),
    Real(Box<RwLock<ControlPlane>>),
}

impl Drop for Server {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Controllers of [`ServerKind::RealWithControllers`]: those that an installation is left to, and
/// none that judges nodes.
const CONTROLLERS: [&str; 7] = [
    "clusterrole-aggregation-controller",
    "daemonset-controller",
    "deployment-controller",
    "garbage-collector-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
];

/// What the role of a cloud-controller-manager grants, and no more: Services are written through
/// their status alone.
fn rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
        {"nonResourceURLs": ["/healthz"], "verbs": ["get"]},
    ])
}

impl Server {
    /// Starts an embedded server.
    pub async fn embedded(options: ccm_testkit::apiserver::Options) -> anyhow::Result<Arc<Self>> {
        let server = ApiServer::new(options);
        let serving = server.serve(([127, 0, 0, 1], 0).into()).await?;
        let client = server.client();
        Ok(Self::new(ServerKind::Embedded, Backend::Embedded(serving, server), client))
    }

    /// Starts a real control plane with these users beside the administrator.
    pub async fn real(
        kind: ServerKind,
        binaries: &Binaries,
        users: &[String],
    ) -> anyhow::Result<Arc<Self>> {
        let mut options = Options::default().audit().user(User::new(NOBODY));
        if kind == ServerKind::RealWithoutWatchList {
            options = options.feature_gate("WatchList", false);
        }
        if kind == ServerKind::RealWithControllers {
            let controllers = CONTROLLERS.map(str::to_owned).to_vec();
            options =
                options.controller_manager(ControllerManager { controllers, args: Vec::new() });
        }
        for user in users {
            options = options.user(User::new(user.as_str()).group(GROUP));
        }
        let control_plane = ControlPlane::start(binaries, options).await?;
        let client = control_plane.client().await?;
        grant(&client)
            .await
            .context("grant the rights of a cloud-controller-manager")?;
        Ok(Self::new(kind, Backend::Real(Box::new(RwLock::new(control_plane))), client))
    }

    fn new(kind: ServerKind, backend: Backend, client: kube::Client) -> Arc<Self> {
        let observer = ClusterWatcher::new();
        let watcher = tokio::spawn(observer.clone().run(client.clone())).abort_handle();
        Arc::new(Self {
            kind,
            observer,
            peace: RwLock::default(),
            backend,
            client,
            watcher,
        })
    }

    /// A client with all rights.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The embedded server itself.
    ///
    /// # Errors
    /// It is a real one.
    pub fn as_embedded(&self) -> anyhow::Result<&ApiServer> {
        match &self.backend {
            Backend::Embedded(_, server) => Ok(server),
            Backend::Real(_) => anyhow::bail!("this scenario needs the embedded server"),
        }
    }

    /// Restarts the API server: every connection breaks, and watch positions from before get 410.
    ///
    /// # Errors
    /// It is the embedded server, or it does not come back.
    pub async fn restart_apiserver(&self) -> anyhow::Result<()> {
        Ok(self
            .as_real()?
            .write()
            .await
            .restart_program(Component::Apiserver)
            .await?)
    }

    /// Writes the kubeconfig of a user with the rights of a cloud-controller-manager.
    pub async fn write_kubeconfig(&self, path: &Path, user: &str) -> anyhow::Result<()> {
        match &self.backend {
            Backend::Embedded(serving, server) => {
                let token = format!("token-of-{user}");
                server
                    .users()
                    .add(&token, EmbeddedUser::new(user, &[GROUP]));
                let rules = if user == NOBODY {
                    Vec::new()
                } else {
                    Rule::of_role(&json!({"rules": rules()}))?
                };
                server.users().set_access(user, Access::Rules(rules));
                serving.write_kubeconfig_for(path, &token)?;
            }
            Backend::Real(control_plane) => {
                let control_plane = control_plane.read().await;
                let user = control_plane
                    .user(user)
                    .with_context(|| format!("no user {user}"))?;
                control_plane.write_kubeconfig(path, &user.token)?;
            }
        }
        Ok(())
    }

    /// Writes the kubeconfig of a service account, whose token it asks for.
    ///
    /// # Errors
    /// It is the embedded server, which has none, or there is no such account.
    pub async fn write_account_kubeconfig(
        &self,
        path: &Path,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<()> {
        let control_plane = self.as_real()?.read().await;
        let token = control_plane.service_account_token(namespace, name).await?;
        Ok(control_plane.write_kubeconfig(path, &token)?)
    }

    /// A token of a service account.
    ///
    /// # Errors
    /// It is the embedded server, which has none, or there is no such account.
    pub async fn account_token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let token = self
            .as_real()?
            .read()
            .await
            .service_account_token(namespace, name)
            .await?;
        Ok(token.reveal().to_owned())
    }

    /// Writes the administrator's kubeconfig.
    ///
    /// # Errors
    /// It is the embedded server.
    pub async fn write_admin_kubeconfig(&self, path: &Path) -> anyhow::Result<()> {
        let control_plane = self.as_real()?.read().await;
        Ok(control_plane.write_kubeconfig(path, &control_plane.admin().token)?)
    }

    /// Address of the API server.
    ///
    /// # Errors
    /// It is the embedded server.
    pub async fn url(&self) -> anyhow::Result<String> {
        Ok(self.as_real()?.read().await.url().to_owned())
    }

    /// The requests that were answered so far.
    ///
    /// # Errors
    /// It is the embedded server.
    pub async fn audit_log(&self) -> anyhow::Result<AuditLog> {
        Ok(self.as_real()?.read().await.audit_log()?)
    }

    fn as_real(&self) -> anyhow::Result<&RwLock<ControlPlane>> {
        match &self.backend {
            Backend::Real(control_plane) => Ok(control_plane),
            Backend::Embedded(..) => anyhow::bail!("this scenario needs a real control plane"),
        }
    }

    /// A client certificate of the cluster, in a group.
    ///
    /// # Errors
    /// It is the embedded server, which has no CA of clients.
    pub async fn client_identity(&self, name: &str, group: &str) -> anyhow::Result<Identity> {
        match &self.backend {
            Backend::Real(control_plane) => Ok(control_plane
                .read()
                .await
                .client_identity(name, Some(group))?),
            Backend::Embedded(..) => anyhow::bail!("this scenario needs a real control plane"),
        }
    }

    /// The certificate of the cluster's front proxy.
    ///
    /// # Errors
    /// It is the embedded server, which has none.
    pub async fn proxy_identity(&self) -> anyhow::Result<Identity> {
        match &self.backend {
            Backend::Real(control_plane) => Ok(control_plane.read().await.proxy_identity()?),
            Backend::Embedded(..) => anyhow::bail!("this scenario needs a real control plane"),
        }
    }

    /// Gives a user the rights of a cloud-controller-manager.
    pub async fn grant(&self, user: &str) -> anyhow::Result<()> {
        match &self.backend {
            Backend::Embedded(_, server) => {
                let rules = Rule::of_role(&json!({"rules": rules()}))?;
                server.users().set_access(user, Access::Rules(rules));
                Ok(())
            }
            Backend::Real(_) => bind(&self.client, "User", user).await,
        }
    }

    /// The writes of a user so far, refused ones included.
    pub async fn writes(&self, user: &str) -> anyhow::Result<Vec<Write>> {
        let writes = match &self.backend {
            Backend::Embedded(_, server) => {
                let entries = server.log().entries();
                let ours = entries
                    .iter()
                    .filter(|entry| entry.user == user && entry.request.is_write());
                ours.map(|entry| Write {
                    verb: entry.request.verb.clone(),
                    resource: entry.request.target(),
                    name: entry.request.name.clone(),
                    code: entry.status.unwrap_or(0),
                })
                .collect()
            }
            Backend::Real(control_plane) => {
                let is_write = |verb: &str| ["create", "update", "patch", "delete"].contains(&verb);
                let log = control_plane
                    .read()
                    .await
                    .audit_log()?
                    .filter(|event| event.user == user && is_write(&event.verb));
                let write = |event: ccm_testkit::control_plane::AuditEvent| Write {
                    verb: event.verb,
                    resource: event.resource,
                    name: event.name,
                    code: event.code,
                };
                log.events.into_iter().map(write).collect()
            }
        };
        Ok(writes)
    }
}

/// A user that is known and has no rights.
pub const NOBODY: &str = "e2e-nobody";

async fn grant(client: &kube::Client) -> anyhow::Result<()> {
    let role = json!({"metadata": {"name": GROUP}, "rules": rules()});
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles
        .create(&PostParams::default(), &serde_json::from_value(role)?)
        .await?;
    bind(client, "Group", GROUP).await
}

async fn bind(client: &kube::Client, kind: &str, name: &str) -> anyhow::Result<()> {
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": GROUP},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding)?)
        .await?;
    Ok(())
}
