//! Load balancers. Their parts are added and removed one by one, and each change locks the load
//! balancer for a while.

use std::{collections::BTreeMap, num::NonZeroU16};

use ccm_core::provider::prelude::*;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Quarry,
    instances::{PublicNet, instance_id},
};

const BALANCERS: &str = "v1/load_balancers";
/// Annotation with the type of the load balancer: `small` (default) or `large`.
const TYPE: &str = "quarry.example/load-balancer-type";

/// The type, and the services by port.
type Settings = SteppedSettings<String, Listener>;

/// What Quarry calls a service.
#[derive(Clone, PartialEq, Hash, Serialize, Deserialize)]
pub struct Listener {
    listen_port: NonZeroU16,
    destination_port: Option<NonZeroU16>,
    proxy_protocol: bool,
}

#[derive(Deserialize)]
struct Created {
    load_balancer: LoadBalancer,
}

#[derive(Deserialize)]
struct LoadBalancer {
    id: u64,
    labels: OwnershipTags,
    load_balancer_type: Type,
    services: Vec<Listener>,
    targets: Vec<Target>,
    locked: bool,
    public_net: PublicNet,
    created: Timestamp,
}

#[derive(Deserialize)]
struct Type {
    name: String,
}

#[derive(Deserialize)]
struct Target {
    server: ServerId,
}

#[derive(Deserialize)]
struct ServerId {
    id: u64,
}

fn by_port(listeners: impl IntoIterator<Item = Listener>) -> BTreeMap<ListenerKey, Listener> {
    listeners
        .into_iter()
        .map(|listener| ((listener.listen_port, Protocol::Tcp), listener))
        .collect()
}

impl From<LoadBalancer> for SimpleLoadBalancer<Settings> {
    fn from(found: LoadBalancer) -> Self {
        let members = found
            .targets
            .iter()
            .map(|target| target.server.id.to_string().into());
        let settings = Settings {
            whole: found.load_balancer_type.name,
            listeners: by_port(found.services),
        };
        Self {
            id: found.id.to_string().into(),
            owner: found.labels,
            status: if found.locked {
                ProvisioningStatus::Pending
            } else {
                ProvisioningStatus::Active
            },
            addresses: found
                .public_net
                .ipv4
                .map(|address| address.ip)
                .into_iter()
                .collect(),
            created: Some(found.created),
            current: SimpleLoadBalancerSpec { settings, members: members.collect() },
        }
    }
}

#[async_trait]
impl SimpleLoadBalancers for Quarry {
    type Settings = Settings;

    fn support(&self) -> LbSupport {
        LbSupport::default()
    }

    fn node_target(&self) -> NodeTarget {
        NodeTarget::Instance
    }

    fn settings(&self, service: &ServiceView) -> Result<Settings, Vec<FieldError>> {
        let mut mistakes = Vec::new();
        let kind = service
            .annotations
            .get(TYPE)
            .map_or("small", |kind| &**kind);
        if !matches!(kind, "small" | "large") {
            mistakes.push(FieldError::new(TYPE, format!("{kind:?} is neither small nor large")));
        }
        if service.ip_families.contains(&IpFamily::V6) {
            mistakes.push(FieldError::new(
                "spec.ipFamilies",
                "load balancers have IPv4 addresses only",
            ));
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let listener = |port: &ServicePort| Listener {
            listen_port: port.port,
            destination_port: port.node_port,
            proxy_protocol: false,
        };
        Ok(Settings {
            whole: kind.to_owned(),
            listeners: by_port(service.ports.iter().map(listener)),
        })
    }

    fn member(&self, node: &NodeView) -> Option<Box<str>> {
        Some(instance_id(node).ok()??.into())
    }

    async fn list_load_balancers(
        &self,
        op: &Op,
        uid: Option<&str>,
    ) -> Result<Vec<SimpleLoadBalancer<Settings>>, CloudError> {
        let mut selector = format!("cluster={}", op.cluster_name());
        if let Some(uid) = uid {
            selector = format!("{selector},uid={uid}");
        }
        let found: Vec<LoadBalancer> = self
            .list(op, BALANCERS, ("label_selector", &selector))
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
            "name": format!("k8s-{}", mark.uid),
            "labels": mark,
            "load_balancer_type": desired.settings.whole,
        });
        let created: Created = self
            .api
            .mutate(op, mutation, Method::POST, BALANCERS, &new)
            .await?;
        Ok(created.load_balancer.into())
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
    type Whole = String;
    type Listener = Listener;

    async fn apply_step(
        &self,
        op: &Op,
        mutation: Mutation,
        id: &str,
        step: LoadBalancerStep<'_, String, Listener>,
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
        self.act(op, mutation, &path, &body).await
    }
}
