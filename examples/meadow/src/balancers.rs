//! Load balancers. Each is one object, labelled with cluster and Service by the request that creates it.

use std::{collections::BTreeSet, net::IpAddr, num::NonZeroU16};

use ccm_core::provider::prelude::*;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Meadow, instances::instance_id};

const BALANCERS: &str = "v1/balancers";
/// Annotation: how much the balancer can carry, `small` (default) or `large`.
const SIZE: &str = "meadow.example/size";

/// What a Service asks for, as the API spells it.
#[derive(PartialEq, Hash, Serialize, Deserialize)]
pub struct Settings {
    size: String,
    /// Port, node port and protocol, such as `80:30080/tcp`.
    listeners: BTreeSet<String>,
    /// Clients that may connect.
    sources: BTreeSet<IpNet>,
    /// Where instances say whether they are well; without it each node port is tried.
    health_port: Option<NonZeroU16>,
}

#[derive(Serialize)]
struct NewBalancer<'a> {
    name: String,
    labels: &'a Mark,
    #[serde(flatten)]
    wanted: &'a Wanted<Settings>,
}

#[derive(Deserialize)]
struct Balancer {
    id: Box<str>,
    state: String,
    address: IpAddr,
    created: Timestamp,
    labels: Mark,
    #[serde(flatten)]
    is: Wanted<Settings>,
}

impl From<Balancer> for SimpleBalancer<Settings> {
    fn from(Balancer { id, state, address, created, labels, is }: Balancer) -> Self {
        let state = match &*state {
            "ready" => BalancerState::Ready,
            "deleting" => BalancerState::Deleting,
            _ => BalancerState::Busy,
        };
        Self { id, mark: labels, state, addresses: vec![address], created: Some(created), is }
    }
}

#[async_trait]
impl SimpleBalancers for Meadow {
    type Settings = Settings;

    fn support(&self) -> LbSupport {
        LbSupport { source_ranges: true, udp: true, mixed_protocols: true, ..LbSupport::default() }
    }

    fn settings(&self, service: &ServiceView) -> Result<Settings, Vec<InvalidInput>> {
        let mut mistakes = Vec::new();
        let size = service.annotations.get(SIZE).map_or("small", |size| &**size);
        if !matches!(size, "small" | "large") {
            mistakes.push(InvalidInput::new(SIZE, format!("{size:?} is neither small nor large")));
        }
        if service.ip_families.contains(&IpFamily::V6) {
            mistakes.push(InvalidInput::new("spec.ipFamilies", "load balancers have IPv4 addresses only"));
        }
        let sources = SourceRanges::of(service).unwrap_or_else(|more| {
            mistakes.extend(more);
            SourceRanges::Unset
        });
        let listener = |port: &ServicePort| {
            let protocol = if port.protocol == Protocol::Udp { "udp" } else { "tcp" };
            format!("{}:{}/{protocol}", port.port, port.node_port.map_or(0, NonZeroU16::get))
        };
        let settings = Settings {
            size: size.to_owned(),
            listeners: service.ports.iter().map(listener).collect(),
            sources: sources.or_everybody(&[IpFamily::V4]).into_iter().collect(),
            health_port: service.health_check_node_port,
        };
        if mistakes.is_empty() { Ok(settings) } else { Err(mistakes) }
    }

    fn member(&self, node: &NodeView) -> Option<Box<str>> {
        Some(instance_id(node).ok()??.into())
    }

    async fn list_balancers(&self, op: &Op, uid: Option<&str>) -> Result<Vec<SimpleBalancer<Settings>>, CloudError> {
        let labels = [("cluster", op.cluster_name()), ("uid", uid.unwrap_or_default())];
        let balancers: Vec<Balancer> = self.list(op, BALANCERS, &labels).await?;
        Ok(balancers.into_iter().map(Into::into).collect())
    }

    async fn create_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        mark: &Mark,
        wanted: &Wanted<Settings>,
    ) -> Result<SimpleBalancer<Settings>, CloudError> {
        let new = NewBalancer { name: format!("k8s-{}", mark.uid), labels: mark, wanted };
        self.api.change::<Balancer>(op, mutation, Method::POST, BALANCERS, &new).await.map(Into::into)
    }

    async fn change_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        id: &str,
        wanted: &Wanted<Settings>,
    ) -> Result<SimpleBalancer<Settings>, CloudError> {
        let balancer = path(BALANCERS, &[id], &[]);
        self.api.change::<Balancer>(op, mutation, Method::PATCH, &balancer, wanted).await.map(Into::into)
    }

    async fn delete_balancer(&self, op: &Op, mutation: Mutation, id: &str) -> Result<(), CloudError> {
        self.api.delete(op, mutation, &path(BALANCERS, &[id], &[])).await
    }
}
