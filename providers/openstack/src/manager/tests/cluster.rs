//! The whole manager: its controllers against an API server and the local cloud, in virtual time.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    manager::{ClientFactory, Manager, ManagerError, ManagerExit},
    runtime::events::WallClock,
};
use ccm_testkit::{
    apiserver::{ApiServer, Options},
    kubelet::{KubeletOptions, Kubelets, NodeSpec, Ready, UNINITIALIZED_TAINT},
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use openstack_local::api::neutron::{
    GatewayRequest, NetworkCreate, QuotaUpdate, RouterUpdate, SubnetCreate,
};
use openstack_local::{neutron, octavia};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    client::in_process,
    test_fixture::{ProjectFixture, Server},
};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// A cluster on the local cloud.
pub(super) struct Cluster {
    pub(super) stage: ProjectFixture,
    pub(super) servers: Vec<Server>,
    pub(super) kubelets: Kubelets,
    api: ApiServer,
    settings: Settings,
}

/// A running manager. Dropping it stops it at once.
pub(super) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<ManagerExit, ManagerError>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

impl Cluster {
    /// Makes servers and networks. Kubelets say nothing after they registered, so that a long time
    /// is short work.
    pub(super) async fn new(nodes: usize) -> Self {
        let stage = ProjectFixture::new().await;
        let router = stage.router.clone();
        let (external, subnet) = stage
            .change_as_admin(move |state, ctx| {
                let more = QuotaUpdate {
                    floatingip: Some(-1),
                    security_group: Some(-1),
                    ..QuotaUpdate::default()
                };
                neutron::quotas::update(state, ctx, &ctx.project, &more)?;
                neutron::Limits { routes: 1000, ..neutron::Limits::default() }.set(state);
                let public = NetworkCreate {
                    name: Some("public".into()),
                    external: Some(true),
                    ..NetworkCreate::default()
                };
                let public = neutron::networks::create(state, ctx, public)?;
                let addresses = SubnetCreate {
                    network_id: public.id.clone(),
                    ip_version: 4,
                    cidr: Some("203.0.112.0/20".into()),
                    ..SubnetCreate::default()
                };
                neutron::subnets::create(state, ctx, addresses)?;
                let gateway = GatewayRequest {
                    network_id: Some(public.id.clone()),
                    ..GatewayRequest::default()
                };
                let gateway = RouterUpdate {
                    external_gateway_info: Some(Some(gateway)),
                    ..RouterUpdate::default()
                };
                neutron::routers::update(state, ctx, &router, gateway)?;
                let inner = state
                    .neutron
                    .subnets
                    .iter()
                    .find(|subnet| subnet.cidr == "10.0.0.0/16");
                Ok((public.id, inner.map(|subnet| subnet.id.clone()).unwrap_or_default()))
            })
            .await;
        let mut settings = in_process::settings(&stage.cloud);
        let mut balancers = config::LoadBalancer::default();
        balancers.network.floating_network = Some(external.into());
        balancers.network.subnet = Some(subnet.into());
        settings.load_balancer = Some(balancers);
        settings.router = Some(stage.router.as_str().into());
        let servers = stage
            .servers((0..nodes).map(|n| format!("n{n}")).collect())
            .await;
        let api = ApiServer::new(Options::default());
        let options = KubeletOptions { report_period: 1000 * MINUTE, ..KubeletOptions::default() };
        let kubelets = Kubelets::new(api.client(), options);
        Self { stage, servers, kubelets, api, settings }
    }

    /// Sets how long load balancers stay in a PENDING state.
    pub(super) async fn pending(&self, pending: Duration) {
        let millis = u64::try_from(pending.as_millis()).unwrap();
        let change = move |settings: &mut octavia::settings::Settings| settings.pending_ms = millis;
        self.stage
            .change_as_admin(move |state, _| {
                octavia::settings::Settings::change(state, change);
                Ok(())
            })
            .await;
    }

    /// Starts the manager as the binary does, with these flags.
    pub(super) async fn start(&self, flags: &[&str]) -> Running {
        let always = ["--leader-elect=false", "--kube-api-qps=10000", "--kube-api-burst=10000"];
        let config = try_config(&[&always, flags].concat()).unwrap();
        let settings = self.settings.clone();
        let client = Client::new(
            &settings,
            Arc::new(settings.cloud.auth.clone()),
            InProcess::new(&self.stage.cloud),
        );
        let provider = connect_with_retries(settings, client, &config)
            .await
            .unwrap();
        let server = self.api.clone();
        let clients: ClientFactory =
            Arc::new(move |name| server.client_builder().user_agent(name).build());
        let clock = self.api.clock().clone();
        let manager =
            Manager::with_clients(product(), config, Arc::new(provider), clients, "api.test")
                .with_clock(WallClock::new(move || clock.now()));
        let stop = CancellationToken::new();
        let task = tokio::spawn(manager.run(stop.clone()));
        Running { stop, task }
    }

    /// Has the kubelet of each server register its node.
    pub(super) async fn join(&self, shape: impl Fn(usize, NodeSpec) -> NodeSpec) {
        let specs = self
            .servers
            .iter()
            .enumerate()
            .map(|(n, server)| shape(n, NodeSpec::new(&*server.name)));
        self.kubelets.register_all(specs).await.unwrap();
    }

    /// Makes a server more, whose kubelet registers its node.
    pub(super) async fn grow(&mut self) {
        let server = self.stage.server(&format!("n{}", self.servers.len())).await;
        self.kubelets
            .register(NodeSpec::new(&*server.name))
            .await
            .unwrap();
        self.servers.push(server);
    }

    /// Deletes a server, whose kubelet falls silent.
    pub(super) async fn end(&self, server: &Server) {
        self.kubelets
            .set_ready(&server.name, Ready::Unknown)
            .await
            .unwrap();
        self.stage.delete(server).await;
    }

    pub(super) fn nodes(&self) -> Api<Node> {
        Api::all(self.api.client())
    }

    pub(super) fn services(&self) -> Api<Service> {
        Api::namespaced(self.api.client(), "default")
    }

    /// Creates a Service with one port.
    pub(super) async fn serve(&self, name: &str) {
        let service = serde_json::json!({
            "metadata": {"name": name},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": name}},
        });
        self.services()
            .create(&PostParams::default(), &serde_json::from_value(service).unwrap())
            .await
            .unwrap();
    }

    /// Waits until so many Services show an address.
    pub(super) async fn until_served(&self, wanted: usize) {
        let wait = async {
            loop {
                let services = self
                    .services()
                    .list(&ListParams::default())
                    .await
                    .unwrap()
                    .items;
                let shown = services
                    .iter()
                    .filter_map(|s| s.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref());
                if shown.filter(|ingress| !ingress.is_empty()).count() == wanted {
                    break;
                }
                tokio::time::sleep(MINUTE).await;
            }
        };
        assert!(
            tokio::time::timeout(120 * MINUTE, wait).await.is_ok(),
            "{wanted} Services are not served"
        );
        tokio::time::sleep(MINUTE).await;
    }

    /// Deletes Services and waits until they are gone.
    pub(super) async fn withdraw(&self, names: &[String]) {
        for name in names {
            self.services()
                .delete(name, &DeleteParams::default())
                .await
                .unwrap();
        }
        let wait = async {
            for name in names {
                while self.services().get_opt(name).await.unwrap().is_some() {
                    tokio::time::sleep(MINUTE).await;
                }
            }
        };
        assert!(tokio::time::timeout(60 * MINUTE, wait).await.is_ok(), "not gone within an hour");
    }

    /// Waits for a state of the nodes.
    pub(super) async fn until(&self, what: &str, mut is_so: impl FnMut(&[Node]) -> bool) {
        let api = self.nodes();
        let wait = async {
            while !is_so(&api.list(&ListParams::default()).await.unwrap().items) {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        };
        assert!(
            tokio::time::timeout(10 * MINUTE, wait).await.is_ok(),
            "not within ten minutes: {what}"
        );
    }

    pub(super) async fn until_initialized(&self) {
        self.until("nodes are initialised", |nodes| nodes.iter().all(is_initialized))
            .await;
    }
}

fn is_initialized(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    !taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == UNINITIALIZED_TAINT))
}
