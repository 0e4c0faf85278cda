//! A cluster in OpenStack, and the provider as the subcommand builds it.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use ccm_core::{
    check::not_built as finding_of,
    config::{Config, Invocation, parse},
    error::BoxError,
    k8s::ServiceView,
    provider::{CheckedCluster, CloudProvider, Finding, Op},
    write_gate::WriteGate,
};
use openstack_local::api::neutron::{NetworkCreate, SubnetCreate};
use openstack_local::{
    neutron,
    server::FaultKind,
    state::{ApiError, CloudState, RequestContext},
};
use tokio_util::sync::CancellationToken;

use crate::{
    client::{
        Transport,
        in_process::{HOST, InProcess},
    },
    config::{Cloud, Environment},
    manager,
    provider::OpenStackProvider,
    test_fixture::ProjectFixture,
};

pub(super) const CLUSTER: &str = "kubernetes";

type CloudChange = Box<dyn FnOnce(&mut CloudState, &RequestContext) -> Result<(), ApiError> + Send>;

/// A cluster in OpenStack, with what of it a row changes.
pub(super) struct Fixture {
    pub(super) stage: ProjectFixture,
    pub(super) global: BTreeMap<&'static str, String>,
    pub(super) load_balancer: BTreeMap<&'static str, String>,
    /// More sections of the cloud config.
    pub(super) more: String,
    /// Changes of the cloud before the provider is created.
    changes: Vec<CloudChange>,
    /// A fault of requests whose path begins so, after the provider was created.
    pub(super) fault: Option<(&'static str, u16)>,
    /// True if the requests go over sockets instead of to the local cloud.
    pub(super) uses_sockets: bool,
    pub(super) subnet: String,
    pub(super) external: String,
}

impl Fixture {
    pub(super) async fn new() -> Self {
        let stage = ProjectFixture::new().await;
        let (external, subnet) = stage.change_as_admin(build_networks).await;
        let password = stage
            .cloud
            .credentials()
            .password("demo")
            .unwrap()
            .expose()
            .to_owned();
        let global = [
            ("auth-url", format!("http://{HOST}/identity")),
            ("username", "demo".to_owned()),
            ("password", password),
            ("tenant-name", "demo".to_owned()),
            ("domain-id", "default".to_owned()),
            ("region", "RegionOne".to_owned()),
        ];
        let load_balancer = [
            ("floating-network-id", external.clone()),
            ("subnet-id", subnet.clone()),
            ("manage-security-groups", "true".to_owned()),
        ];
        Self {
            more: format!("[Route]\nrouter-id={}\n", stage.router),
            stage,
            global: global.into(),
            load_balancer: load_balancer.into(),
            changes: Vec::new(),
            fault: None,
            uses_sockets: false,
            subnet,
            external,
        }
    }

    pub(super) fn change(
        &mut self,
        change: impl FnOnce(&mut CloudState, &RequestContext) -> Result<(), ApiError> + Send + 'static,
    ) {
        self.changes.push(Box::new(change));
    }

    fn conf(&self) -> String {
        let section = |name: &str, keys: &BTreeMap<&str, String>| {
            let lines = keys
                .iter()
                .map(|(key, value)| format!("{key}=\"{value}\"\n"));
            format!("[{name}]\n{}", lines.collect::<String>())
        };
        let sections =
            [section("Global", &self.global), section("LoadBalancer", &self.load_balancer)];
        format!("{}{}", sections.concat(), self.more)
    }

    /// Builds the provider as the subcommand does, and checks.
    pub(super) async fn check(&mut self) -> Vec<Finding> {
        for change in std::mem::take(&mut self.changes) {
            self.stage.change_as_admin(change).await;
        }
        let provider = match self.build().await {
            Ok(provider) => provider,
            Err(error) => return vec![finding_of(&error)],
        };
        if let Some((path, code)) = self.fault {
            let kind = FaultKind::Status { code, retry_after: None, message: None };
            self.stage.fail(path, kind);
        }
        self.stage.reset_requests();
        let service = Arc::new(ServiceView::named("shop", "web"));
        let cluster = CheckedCluster {
            nodes: &[],
            services: Some(std::slice::from_ref(&service)),
            creates_routes: true,
        };
        let op = Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_closed());
        provider.check(&op, cluster).await
    }

    async fn build(&self) -> Result<OpenStackProvider, BoxError> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("cloud.conf");
        std::fs::write(&file, self.conf())?;
        let connect = |cloud: &Cloud, agents: &[String]| {
            if self.uses_sockets {
                return manager::connect(cloud, agents);
            }
            Ok(InProcess::new(&self.stage.cloud) as Arc<dyn Transport>)
        };
        manager::build(config(&file)?, Environment::default(), connect).await
    }
}

/// Makes an external network, and returns its ID and that of the subnet of the nodes.
fn build_networks(
    state: &mut CloudState,
    ctx: &RequestContext,
) -> Result<(String, String), ApiError> {
    let public = NetworkCreate {
        name: Some("public".into()),
        external: Some(true),
        ..Default::default()
    };
    let public = neutron::networks::create(state, ctx, public)?;
    let addresses = SubnetCreate {
        network_id: public.id.clone(),
        ip_version: 4,
        cidr: Some("203.0.112.0/20".into()),
        ..SubnetCreate::default()
    };
    neutron::subnets::create(state, ctx, addresses)?;
    let inner = state
        .neutron
        .subnets
        .iter()
        .find(|subnet| subnet.cidr == "10.0.0.0/16");
    Ok((public.id, inner.map(|subnet| subnet.id.clone()).unwrap_or_default()))
}

/// Parses the flags, and does not wait for the cloud, like the subcommand `check`.
fn config(file: &Path) -> Result<Config, BoxError> {
    let conf = format!("--cloud-config={}", file.display());
    let args = ["--cloud-provider=openstack".to_owned(), conf];
    match parse(&manager::product(), args)? {
        Invocation::Run(mut config) => {
            config.wait_for_cloud = false;
            Ok(*config)
        }
        other => Err(format!("{other:?}").into()),
    }
}
