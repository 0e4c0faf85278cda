//! Load balancers. Each is one object, labelled with cluster and Service by the request that
//! creates it.

use std::{collections::BTreeSet, net::IpAddr, num::NonZeroU16};

use ccm_core::provider::prelude::*;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Meadow, instances::instance_id};

const BALANCERS: &str = "v1/balancers";
/// Annotation with the size of the load balancer: `small` (default) or `large`.
const SIZE: &str = "meadow.example/size";

/// Desired settings of a load balancer, in the format of the API.
#[derive(Clone, PartialEq, Hash, Serialize, Deserialize)]
pub struct Settings {
    size: String,
    /// Port, node port and protocol, such as `80:30080/tcp`.
    listeners: BTreeSet<String>,
    /// Networks of clients that may connect.
    sources: BTreeSet<IpNet>,
    /// Port of the instances' health check; without it, each node port is checked.
    health_port: Option<NonZeroU16>,
}

#[derive(Serialize)]
struct NewLoadBalancer<'a> {
    name: String,
    labels: &'a OwnershipTags,
    #[serde(flatten)]
    wanted: &'a SimpleLoadBalancerSpec<Settings>,
}

#[derive(Deserialize)]
struct LoadBalancer {
    id: Box<str>,
    state: String,
    address: IpAddr,
    created: Timestamp,
    labels: OwnershipTags,
    #[serde(flatten)]
    is: SimpleLoadBalancerSpec<Settings>,
}

impl From<LoadBalancer> for SimpleLoadBalancer<Settings> {
    fn from(LoadBalancer { id, state, address, created, labels, is }: LoadBalancer) -> Self {
        let state = match &*state {
            "ready" => ProvisioningStatus::Active,
            "deleting" => ProvisioningStatus::Deleting,
            _ => ProvisioningStatus::Pending,
        };
        Self {
            id,
            owner: labels,
            status: state,
            addresses: vec![address],
            created: Some(created),
            current: is,
        }
    }
}

#[async_trait]
impl SimpleLoadBalancers for Meadow {
    type Settings = Settings;

    fn support(&self) -> LbSupport {
        LbSupport {
            source_ranges: true,
            udp: true,
            mixed_protocols: true,
            ipv6: false,
            ..LbSupport::default()
        }
    }

    fn settings(&self, service: &ServiceView) -> Result<Settings, Vec<FieldError>> {
        let mut mistakes = Vec::new();
        let size = service.annotation(SIZE).unwrap_or("small");
        if !matches!(size, "small" | "large") {
            mistakes.push(FieldError::new(SIZE, format!("{size:?} is neither small nor large")));
        }
        let sources = SourceRanges::of(service).unwrap_or_else(|more| {
            mistakes.extend(more);
            SourceRanges::Unset
        });
        let listener = |port: &ServicePort| {
            let protocol = if port.protocol == Protocol::Udp {
                "udp"
            } else {
                "tcp"
            };
            format!("{}:{}/{protocol}", port.port, port.node_port.map_or(0, NonZeroU16::get))
        };
        let settings = Settings {
            size: size.to_owned(),
            listeners: service.ports.iter().map(listener).collect(),
            sources: sources.or_any_source(&[IpFamily::V4]).into_iter().collect(),
            health_port: service.health_check_node_port,
        };
        if mistakes.is_empty() {
            Ok(settings)
        } else {
            Err(mistakes)
        }
    }

    fn member(&self, node: &NodeView) -> Option<Box<str>> {
        Some(instance_id(node).ok()??.into())
    }

    async fn list_load_balancers(
        &self,
        op: &Op,
        uid: Option<&str>,
    ) -> Result<Vec<SimpleLoadBalancer<Settings>>, CloudError> {
        let labels = [("cluster", op.cluster_name()), ("uid", uid.unwrap_or_default())];
        let balancers: Vec<LoadBalancer> = self.list(op, BALANCERS, &labels).await?;
        Ok(balancers.into_iter().map(Into::into).collect())
    }

    async fn create_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        mark: &OwnershipTags,
        desired: &SimpleLoadBalancerSpec<Settings>,
    ) -> Result<SimpleLoadBalancer<Settings>, CloudError> {
        let new = NewLoadBalancer {
            name: format!("k8s-{}", mark.uid),
            labels: mark,
            wanted: desired,
        };
        self.api
            .mutate::<LoadBalancer>(op, mutation, Method::POST, BALANCERS, &new)
            .await
            .map(Into::into)
    }

    async fn update_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        observed: SimpleLoadBalancer<Settings>,
        desired: &SimpleLoadBalancerSpec<Settings>,
    ) -> Result<SimpleLoadBalancer<Settings>, CloudError> {
        let load_balancer = path(BALANCERS, &[&observed.id], &[]);
        self.api
            .mutate::<LoadBalancer>(op, mutation, Method::PATCH, &load_balancer, desired)
            .await
            .map(Into::into)
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
