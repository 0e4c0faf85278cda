//! What a kubelet and a container runtime do with a Pod, as far as the process can tell: root file
//! system of the image, volumes at their paths, user and group, environment. Nothing is added that
//! they would not add.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ccm_e2e::ccm::Ccm;
use ccm_e2e::image::{self, ContainerMethod};
use ccm_e2e::scenario::Scenario;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVar, KeyToPath, Pod, Secret, ServiceAccount, Volume, VolumeProjection,
};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};

use crate::helm::root;

/// A pod of the chart on its way to become a process.
pub(super) struct Kubelet<'a> {
    scenario: &'a Scenario,
    means: ContainerMethod,
    pod: &'a Pod,
    container: &'a Container,
    /// Where volumes are made.
    volumes: PathBuf,
    /// Group that volumes belong to.
    group: i64,
}

impl<'a> Kubelet<'a> {
    /// Starts the pod's only container as a process of this machine. `service` is the address of
    /// the `kubernetes` Service that is injected.
    pub(super) async fn start(
        scenario: &'a Scenario,
        means: ContainerMethod,
        pod: &'a Pod,
        service: &str,
    ) -> anyhow::Result<Ccm> {
        let spec = pod.spec.as_ref().context("a pod without spec")?;
        let [container] = &spec.containers[..] else {
            anyhow::bail!("not exactly one container")
        };
        let directory = scenario.directory().join(pod.name_any());
        let security = spec.security_context.clone().unwrap_or_default();
        let group = security
            .fs_group
            .context("no fsGroup, so volumes could not be read")?;
        let kubelet = Self {
            scenario,
            means,
            pod,
            container,
            volumes: directory.join("volumes"),
            group,
        };

        let [entrypoint] = &entrypoint()?[..] else {
            anyhow::bail!("the entrypoint is more than a path")
        };
        let mut made = image::Container::new(means, &directory, scenario.program(), entrypoint)?;
        // What the kubelet writes into every container.
        for file in ["/etc/hosts", "/etc/resolv.conf"] {
            made.mount_file(Path::new(file), file)?;
        }
        for volume in spec.volumes.iter().flatten() {
            kubelet
                .make(volume, &mut made)
                .await
                .with_context(|| format!("volume {}", volume.name))?;
        }
        let hard = container.security_context.clone().unwrap_or_default();
        anyhow::ensure!(
            hard.allow_privilege_escalation == Some(false),
            "what follows runs without new privileges"
        );
        made.user = security.run_as_user.context("runAsUser is not set")?;
        made.group = security.run_as_group.context("runAsGroup is not set")?;
        made.extra_group = Some(group);
        made.read_only = hard.read_only_root_filesystem == Some(true);
        made.environment = kubelet.environment(service)?;
        let arguments = made.arguments(&kubelet.command()?)?;
        scenario
            .start_program("pod", Path::new(image::RUNTIME), arguments)
            .await
    }

    /// Entrypoint or command, and arguments. Variables in them are not expanded: the chart has
    /// none.
    fn command(&self) -> anyhow::Result<Vec<String>> {
        let mut command = self.container.command.clone().unwrap_or_default();
        if command.is_empty() {
            command = entrypoint()?;
        }
        command.extend(self.container.args.iter().flatten().cloned());
        anyhow::ensure!(
            !command.iter().any(|argument| argument.contains("$(")),
            "{command:?} is to be expanded"
        );
        Ok(command)
    }

    /// Makes a volume and mounts it wherever the container wants it.
    async fn make(&self, volume: &Volume, made: &mut image::Container) -> anyhow::Result<()> {
        let folder = self.volumes.join(&volume.name);
        std::fs::create_dir_all(&folder)?;
        self.own(&folder, 0o750)?;
        if let Some(source) = &volume.secret {
            let data = self
                .secret(source.secret_name.as_deref().unwrap_or_default())
                .await?;
            self.write(&folder, &data, source.items.as_deref(), source.default_mode)?;
        } else if let Some(source) = &volume.config_map {
            let data = self.config_map(&source.name).await?;
            self.write(&folder, &data, source.items.as_deref(), source.default_mode)?;
        } else if let Some(source) = &volume.projected {
            for part in source.sources.iter().flatten() {
                self.project(&folder, part, source.default_mode).await?;
            }
        } else if volume.empty_dir.is_none() {
            anyhow::bail!("a kind of volume that the chart does not use: {volume:?}");
        }
        for mount in self
            .container
            .volume_mounts
            .iter()
            .flatten()
            .filter(|mount| mount.name == volume.name)
        {
            made.mount_folder(&folder, &mount.mount_path)?;
        }
        Ok(())
    }

    /// One part of a projected volume.
    async fn project(
        &self,
        folder: &Path,
        part: &VolumeProjection,
        mode: Option<i32>,
    ) -> anyhow::Result<()> {
        if let Some(token) = &part.service_account_token {
            let content = self
                .token(token.audience.clone(), token.expiration_seconds)
                .await?;
            let file = KeyToPath {
                key: "token".to_owned(),
                path: token.path.clone(),
                mode: None,
            };
            let data = BTreeMap::from([("token".to_owned(), content.into_bytes())]);
            self.write(folder, &data, Some(&[file]), mode)?;
        }
        if let Some(source) = &part.config_map {
            self.write(
                folder,
                &self.config_map(&source.name).await?,
                source.items.as_deref(),
                mode,
            )?;
        }
        for item in part
            .downward_api
            .iter()
            .flat_map(|source| source.items.iter().flatten())
        {
            let field = item
                .field_ref
                .as_ref()
                .context("a downward item without field")?;
            let data =
                BTreeMap::from([(item.path.clone(), self.field(&field.field_path)?.into_bytes())]);
            self.write(folder, &data, None, mode)?;
        }
        Ok(())
    }

    /// Writes the keys, or those of them that are asked for.
    fn write(
        &self,
        folder: &Path,
        data: &BTreeMap<String, Vec<u8>>,
        items: Option<&[KeyToPath]>,
        mode: Option<i32>,
    ) -> anyhow::Result<()> {
        let all: Vec<_> = data.keys().map(|key| (key.clone(), key.clone())).collect();
        let wanted = items.map_or(all, |items| {
            items
                .iter()
                .map(|i| (i.key.clone(), i.path.clone()))
                .collect()
        });
        for (key, path) in wanted {
            let file = folder.join(path);
            std::fs::write(&file, data.get(&key).with_context(|| format!("no key {key}"))?)?;
            // With an fsGroup, the group may read whatever the owner may.
            self.own(&file, u32::try_from(mode.unwrap_or(0o644))? | 0o440)?;
        }
        Ok(())
    }

    /// Gives a file to root and to the pod's group, as a volume with an fsGroup has it.
    fn own(&self, path: &Path, mode: u32) -> anyhow::Result<()> {
        // In a user namespace our files are the process's own.
        if self.means == ContainerMethod::Root {
            std::os::unix::fs::chown(path, Some(0), Some(u32::try_from(self.group)?))?;
        }
        Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
    }

    async fn secret(&self, name: &str) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let secret = self
            .api::<Secret>()?
            .get(name)
            .await
            .with_context(|| format!("Secret {name}"))?;
        Ok(secret
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(key, ByteString(value))| (key, value))
            .collect())
    }

    async fn config_map(&self, name: &str) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let map = self
            .api::<ConfigMap>()?
            .get(name)
            .await
            .with_context(|| format!("ConfigMap {name}"))?;
        Ok(map
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key, value.into_bytes()))
            .collect())
    }

    /// A token of the pod's ServiceAccount, bound to the pod.
    async fn token(
        &self,
        audience: Option<String>,
        seconds: Option<i64>,
    ) -> anyhow::Result<String> {
        let spec = self.pod.spec.as_ref().context("a pod without spec")?;
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: self.pod.metadata.name.clone(),
            uid: self.pod.metadata.uid.clone(),
        };
        let request = TokenRequestSpec {
            audiences: audience.map(|audience| vec![audience]),
            bound_object_ref: Some(bound),
            expiration_seconds: seconds,
        };
        let request = TokenRequest { spec: Some(request), ..TokenRequest::default() };
        let account = spec
            .service_account_name
            .as_deref()
            .context("a pod without ServiceAccount")?;
        let accounts = self.api::<ServiceAccount>()?;
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        answer
            .status
            .and_then(|status| status.token)
            .context("no token")
    }

    /// A field that the downward API offers.
    fn field(&self, path: &str) -> anyhow::Result<String> {
        Ok(match path {
            "metadata.name" => self.pod.name_any(),
            "metadata.namespace" => self.pod.namespace().unwrap_or_default(),
            "metadata.uid" => self.pod.uid().unwrap_or_default(),
            "spec.nodeName" => "some-node".to_owned(),
            "status.podIP" | "status.hostIP" => "127.0.0.1".to_owned(),
            other => anyhow::bail!("a field that the chart does not use: {other}"),
        })
    }

    /// What a kubelet injects, then what the container asks for, which wins.
    fn environment(&self, service: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let (host, port) = service.rsplit_once(':').context("no port in the address")?;
        let mut all = BTreeMap::from([
            (
                "PATH".to_owned(),
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            ),
            ("HOSTNAME".to_owned(), self.pod.name_any()),
            ("KUBERNETES_SERVICE_HOST".to_owned(), host.to_owned()),
            ("KUBERNETES_SERVICE_PORT".to_owned(), port.to_owned()),
            ("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), port.to_owned()),
        ]);
        for variable in self.container.env.iter().flatten() {
            all.insert(variable.name.clone(), self.value(variable)?);
        }
        anyhow::ensure!(
            self.container.env_from.iter().flatten().next().is_none(),
            "envFrom is not used here"
        );
        Ok(all)
    }

    fn value(&self, variable: &EnvVar) -> anyhow::Result<String> {
        let Some(from) = &variable.value_from else {
            return Ok(variable.value.clone().unwrap_or_default());
        };
        self.field(
            &from
                .field_ref
                .as_ref()
                .context("a variable from something else than a field")?
                .field_path,
        )
    }

    fn api<K>(&self) -> anyhow::Result<Api<K>>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        let namespace = self.pod.namespace().context("a pod without namespace")?;
        Ok(Api::namespaced(self.scenario.server.client(), &namespace))
    }
}

/// What the image starts, from its Dockerfile.
fn entrypoint() -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(root().join("images/Dockerfile"))
        .context("read images/Dockerfile")?;
    let line = text
        .lines()
        .filter_map(|line| line.strip_prefix("ENTRYPOINT "))
        .next_back();
    Ok(serde_json::from_str(line.context("no ENTRYPOINT")?)?)
}
