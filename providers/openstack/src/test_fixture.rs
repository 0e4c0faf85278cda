//! A project on the local cloud with a network, a router and servers, for tests in process and in
//! virtual time.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    k8s::{AddressType, NodeAddress, NodeView},
    provider::Op,
    write_gate::WriteGate,
};
use openstack_local::api::{
    neutron::{InterfaceRequest, NetworkCreate, QuotaUpdate, Router, RouterCreate, SubnetCreate},
    nova::{NetworkRequest, Networks, ServerCreate},
};
use openstack_local::{
    neutron,
    nova::{self, Microversion},
    server::{Fault, FaultKind, LocalCloud, Settings as CloudSettings},
    state::{ApiError, CloudState, RequestContext},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::client::{
    Client,
    in_process::{self, InProcess},
};

/// Makes the operation of a test.
pub(crate) fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

/// A project with a network.
pub(crate) struct ProjectFixture {
    pub(crate) cloud: LocalCloud,
    pub(crate) client: Client,
    pub(crate) network: String,
    pub(crate) router: String,
    project: Box<str>,
}

/// A server as it was made.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
}

impl Server {
    /// Returns its Node as it is once it is initialised.
    pub(crate) fn node(&self) -> Arc<NodeView> {
        let addresses = [NodeAddress::new(AddressType::InternalIp, self.ip.to_string())].into();
        let provider_id = Some(format!("openstack:///{}", self.id).into());
        Arc::new(NodeView { addresses, provider_id, ..NodeView::named(&self.name) })
    }

    /// Returns its Node as the kubelet registers it.
    pub(crate) fn new_node(&self) -> Arc<NodeView> {
        Arc::new(NodeView::named(&self.name))
    }
}

impl ProjectFixture {
    pub(crate) async fn new() -> Self {
        Self::with(CloudSettings::default()).await
    }

    pub(crate) async fn with(settings: CloudSettings) -> Self {
        let cloud = LocalCloud::in_memory(settings);
        let client = Client::connect(&in_process::settings(&cloud), InProcess::new(&cloud))
            .await
            .expect("a token");
        let client = client.with_limits(None);
        let project: Box<str> = cloud.cloud().store.peek(|state| {
            let mut projects = state.keystone.projects.iter();
            projects
                .find(|project| project.name == "demo")
                .map(|project| project.id.as_str().into())
                .unwrap()
        });
        let mut stage = Self {
            cloud,
            client,
            network: String::new(),
            router: String::new(),
            project,
        };
        (stage.network, stage.router) = stage.change_as_admin(build).await;
        stage
    }

    /// Changes the cloud behind the provider's back, as an administrator in the project.
    pub(crate) async fn change_as_admin<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut CloudState, &RequestContext) -> Result<T, ApiError> + Send + 'static,
    ) -> T {
        let now = self.cloud.cloud().clock.now();
        let ctx = RequestContext {
            now,
            project: self.project.clone(),
            user: "operator".into(),
            admin: true,
        };
        self.cloud
            .cloud()
            .store
            .change(move |state| change(state, &ctx))
            .await
            .unwrap()
    }

    /// Makes a server on the network.
    pub(crate) async fn server(&self, name: &str) -> Server {
        self.servers(vec![name.to_owned()]).await.remove(0)
    }

    /// Makes servers on the network.
    pub(crate) async fn servers(&self, names: Vec<String>) -> Vec<Server> {
        let network = self.network.clone();
        self.change_as_admin(move |state, ctx| {
            let mut made = Vec::new();
            for name in names {
                let on =
                    NetworkRequest { uuid: Some(network.clone()), ..NetworkRequest::default() };
                let request = ServerCreate {
                    name: name.clone(),
                    flavor_ref: "2".to_owned(),
                    networks: Some(Networks::These(vec![on])),
                    ..ServerCreate::default()
                };
                let id = nova::create::create(state, ctx, Microversion(60), &request)?;
                let ip = neutron::ports::of_device(state, &id)[0].fixed_ips[0].ip_address;
                made.push(Server { id, name, ip });
            }
            Ok(made)
        })
        .await
    }

    /// Sets a server's status.
    pub(crate) async fn set_status(&self, server: &Server, status: &'static str) {
        let id = server.id.clone();
        self.change_as_admin(move |state, _| nova::servers::set_status(state, &id, status, None))
            .await;
    }

    /// Deletes a server.
    pub(crate) async fn delete(&self, server: &Server) {
        let id = server.id.clone();
        self.change_as_admin(move |state, ctx| nova::servers::delete(state, ctx, &id))
            .await;
    }

    /// Returns the router.
    pub(crate) fn router(&self) -> Router {
        self.cloud
            .cloud()
            .store
            .peek(|state| Router::clone(state.neutron.routers.get(&self.router).unwrap()))
    }

    /// Has requests whose path begins so go wrong from now on.
    pub(crate) fn fail(&self, path: &str, kind: FaultKind) {
        self.cloud.cloud().faults.add(Fault::new(path, kind));
    }

    /// Lets requests succeed again.
    pub(crate) fn clear_faults(&self) {
        self.cloud.cloud().faults.clear();
    }

    /// Forgets the requests so far.
    pub(crate) fn reset_requests(&self) {
        self.cloud.cloud().journal.clear();
    }

    /// Returns the requests since the last [`forget`](Self::forget), method and path, without those
    /// that open a service: tokens and versions.
    pub(crate) fn requests(&self) -> Vec<String> {
        let entries = self.cloud.cloud().journal.entries();
        let opens = |path: &str| path.starts_with("/identity") || path.ends_with("/v2.1");
        let paths = entries.iter().filter(|entry| !opens(&entry.path));
        paths
            .map(|entry| format!("{} {}", entry.method, entry.path))
            .collect()
    }
}

fn build(state: &mut CloudState, ctx: &RequestContext) -> Result<(String, String), ApiError> {
    let more = QuotaUpdate { port: Some(-1), ..QuotaUpdate::default() };
    neutron::quotas::update(state, ctx, &ctx.project, &more)?;
    let network = NetworkCreate { name: Some("nodes".into()), ..NetworkCreate::default() };
    let network = neutron::networks::create(state, ctx, network)?;
    let subnet = SubnetCreate {
        network_id: network.id.clone(),
        ip_version: 4,
        cidr: Some("10.0.0.0/16".into()),
        ..SubnetCreate::default()
    };
    let subnet = neutron::subnets::create(state, ctx, subnet)?;
    let router = neutron::routers::create(state, ctx, RouterCreate::default())?;
    let interface = InterfaceRequest { subnet_id: Some(subnet.id), port_id: None };
    neutron::router_interfaces::add(state, ctx, &router.id, &interface)?;
    Ok((network.id, router.id))
}

/// Returns an object as a service sends it with each field in turn absent, null, an unknown word, and
/// of another type; and what that is.
pub(crate) fn odd_variants(object: &Value) -> Vec<(String, Value)> {
    let mut variants = Vec::new();
    for name in object.as_object().expect("an object").keys() {
        let mut without = object.clone();
        without.as_object_mut().expect("an object").remove(name);
        variants.push((format!("{name} absent"), without));
        for odd in [Value::Null, "SOMETHING_NEW".into(), vec![7].into()] {
            let mut with = object.clone();
            with[name.as_str()] = odd.clone();
            variants.push((format!("{name} {odd}"), with));
        }
    }
    variants
}
