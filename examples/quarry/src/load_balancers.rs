//! Load balancers. Their parts are added and removed one by one, and each change locks the load
//! balancer for a while.

use std::num::NonZeroU16;

use ccm_core::provider::prelude::*;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    ACTIONS, PAGES, Quarry, Wrapped,
    instances::{Named, PublicNet, instance_id},
};

const BALANCERS: &str = "v1/load_balancers";
/// Annotation with the type of the load balancer: `small` (default) or `large`.
const TYPE: &str = "quarry.example/load-balancer-type";

/// The type, and the services by port.
type Settings = SteppedSettings<Box<str>, Listener>;

/// What Quarry calls a service.
#[derive(Clone, PartialEq, Hash, Serialize, Deserialize)]
pub struct Listener {
    listen_port: NonZeroU16,
    destination_port: Option<NonZeroU16>,
    proxy_protocol: bool,
}

#[derive(Deserialize)]
struct LoadBalancer {
    id: u64,
    labels: OwnershipTags,
    #[serde(rename = "load_balancer_type")]
    size: Named,
    services: Vec<Listener>,
    targets: Vec<Wrapped<ServerId>>,
    locked: bool,
    public_net: PublicNet,
    created: Timestamp,
}

#[derive(Deserialize)]
struct ServerId {
    id: u64,
}

fn settings(kind: &str, listeners: impl IntoIterator<Item = Listener>) -> Settings {
    let by_port = |listener: Listener| ((listener.listen_port, Protocol::Tcp), listener);
    let listeners = listeners.into_iter().map(by_port).collect();
    Settings { whole: kind.into(), listeners }
}

impl From<LoadBalancer> for SimpleLoadBalancer<Settings> {
    fn from(found: LoadBalancer) -> Self {
        let member = |target: Wrapped<ServerId>| target.object.id.to_string().into();
        let members = found.targets.into_iter().map(member).collect();
        let settings = settings(&found.size.name, found.services);
        Self {
            id: found.id.to_string().into(),
            owner: found.labels,
            status: match found.locked {
                true => ProvisioningStatus::Pending,
                false => ProvisioningStatus::Active,
            },
            addresses: Vec::from_iter(found.public_net.ipv4.map(|address| address.ip)),
            created: Some(found.created),
            current: SimpleLoadBalancerSpec { settings, members },
        }
    }
}

#[async_trait]
impl SimpleLoadBalancers for Quarry {
    type Settings = Settings;

    fn support(&self) -> LbSupport {
        LbSupport { ipv6: false, ..LbSupport::default() }
    }

    fn settings(&self, service: &ServiceView) -> Result<Settings, Vec<FieldError>> {
        let kind = service.annotation(TYPE).unwrap_or("small");
        if !matches!(kind, "small" | "large") {
            return Err(vec![FieldError::new(
                TYPE,
                format!("{kind:?} is neither small nor large"),
            )]);
        }
        let listener = |port: &ServicePort| Listener {
            listen_port: port.port,
            destination_port: port.node_port,
            proxy_protocol: false,
        };
        Ok(settings(kind, service.ports.iter().map(listener)))
    }

    fn member(&self, node: &NodeView) -> Option<Box<str>> {
        Some(instance_id(node).ok()??.into())
    }

    async fn list_load_balancers(
        &self,
        op: &Op,
        uid: Option<&str>,
    ) -> Result<Vec<SimpleLoadBalancer<Settings>>, CloudError> {
        let of_service = uid.map(|uid| format!(",uid={uid}")).unwrap_or_default();
        let selector = format!("cluster={}{of_service}", op.cluster_name());
        let path = path(BALANCERS, &[], &[("label_selector", &selector)]);
        let found: Vec<LoadBalancer> = self
            .api
            .list_numbered(op, &path, "/load_balancers", PAGES)
            .await?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    async fn create_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        mark: &OwnershipTags,
        desired: &SimpleLoadBalancerSpec<Settings>,
    ) -> Result<SimpleLoadBalancer<Settings>, CloudError> {
        let new = json!({
            "name": format!("k8s-{}", mark.uid), "labels": mark,
            "load_balancer_type": desired.settings.whole,
        });
        let created: Wrapped<LoadBalancer> = self
            .api
            .mutate(op, mutation, Method::POST, BALANCERS, &new)
            .await?;
        Ok(created.object.into())
    }

    /// Each step is recorded as a change of its own.
    async fn update_load_balancer(
        &self,
        op: &Op,
        _: Mutation,
        observed: SimpleLoadBalancer<Settings>,
        desired: &SimpleLoadBalancerSpec<Settings>,
    ) -> Result<SimpleLoadBalancer<Settings>, CloudError> {
        update_in_steps(self, op, observed, desired).await
    }

    async fn delete_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        id: &str,
    ) -> Result<(), CloudError> {
        self.api
            .delete(op, mutation, &path(BALANCERS, &[id], &[]))
            .await
    }
}

#[async_trait]
impl LoadBalancerSteps for Quarry {
    type Whole = Box<str>;
    type Listener = Listener;

    async fn apply_step(
        &self,
        op: &Op,
        mutation: Mutation,
        id: &str,
        step: LoadBalancerStep<'_, Box<str>, Listener>,
    ) -> Result<Progress, CloudError> {
        // Members are IDs of servers, so each is a number.
        let target = |id: &str| json!({"type": "server", "server": {"id": id.parse::<u64>().ok()}});
        let (action, body) = match step {
            LoadBalancerStep::ChangeWhole(kind) => {
                ("change_type", json!({ "load_balancer_type": kind }))
            }
            LoadBalancerStep::AddListener(_, listener) => ("add_service", json!(listener)),
            LoadBalancerStep::ChangeListener(_, listener) => ("update_service", json!(listener)),
            LoadBalancerStep::RemoveListener((port, _)) => {
                ("delete_service", json!({ "listen_port": port }))
            }
            LoadBalancerStep::AddMember(id) => ("add_target", target(id)),
            LoadBalancerStep::RemoveMember(id) => ("remove_target", target(id)),
        };
        let path = path(BALANCERS, &[id, "actions", action], &[]);
        self.api
            .mutate_and_poll(op, mutation, Method::POST, &path, &body, &ACTIONS)
            .await
    }
}
