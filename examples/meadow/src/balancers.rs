//! Load balancers. Each carries cluster and Service as labels, from the request on that creates it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU16,
};

use ccm_core::provider::prelude::*;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Meadow, instances::instance_id};

pub(crate) const CREATE: &str = "create_balancer";
pub(crate) const CHANGE: &str = "change_balancer";
pub(crate) const DELETE: &str = "delete_balancer";
const BALANCERS: &str = "v1/balancers";
const READY: &str = "ready";
/// Annotation: how much the balancer can carry, `small` (default) or `large`.
const SIZE: &str = "meadow.example/size";

/// What a Service asks for. Body of a request that creates or changes a balancer.
#[derive(Clone, PartialEq, Hash, Serialize, Deserialize)]
struct Wanted {
    name: String,
    labels: BTreeMap<String, String>,
    size: String,
    /// Port, node port and protocol, such as `80:30080/tcp`.
    listeners: BTreeSet<String>,
    /// Clients that may connect.
    sources: BTreeSet<IpNet>,
    /// Where instances say whether they are well; on the node ports when there is none.
    health_port: Option<NonZeroU16>,
    members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Balancer {
    id: String,
    state: String,
    address: IpAddr,
    created: Timestamp,
    #[serde(flatten)]
    has: Wanted,
}

#[async_trait]
impl LoadBalancers for Meadow {
    fn supports(&self) -> LbSupport {
        LbSupport { source_ranges: true, udp: true, mixed_protocols: true, ..LbSupport::default() }
    }

    fn interpret(&self, service: &ServiceView) -> Claim {
        match wanted("", service) {
            Ok(wanted) => Claim::Ours { backends: Backends::Nodes(Vec::new()), digest: Digest::of(&wanted) },
            Err(mistakes) => Claim::Refused(mistakes),
        }
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, _: Depth) -> LbOutcome {
        let ensured = async {
            let wanted = complete(op, want)?;
            match self.find(op, &want.service.uid).await? {
                Some(seen) => self.bring(op, seen, wanted).await,
                None => {
                    let mutation = Mutation::new(CREATE, &*wanted.name).because("there is none");
                    self.api.change(op, mutation, Method::POST, BALANCERS, &wanted).await
                }
            }
        };
        outcome(op, ensured.await)
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let updated = async {
            let missing =
                || CloudError::new(ErrorKind::NotFound, format!("{} has no load balancer", want.service.key()));
            let seen = self.find(op, &want.service.uid).await?.ok_or_else(missing)?;
            let wanted = Wanted { members: members(want)?, ..seen.has.clone() };
            self.bring(op, seen, wanted).await
        };
        outcome(op, updated.await)
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let seen = self.find(op, &lb.uid).await?;
        self.remove(op, seen).await
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let wanted = complete(op, want)?;
        let mut shown = want.service.status.ingress.iter().filter_map(|entry| entry.ip);
        let (operation, reason) = match self.find(op, &want.service.uid).await? {
            None => (CREATE, "there is none".to_owned()),
            Some(seen) if seen.state != READY => ("wait", format!("it is {}", seen.state)),
            Some(seen) if seen.has != wanted => (CHANGE, seen.difference(&wanted).to_owned()),
            Some(seen) if !shown.by_ref().eq([seen.address]) => ("publish", format!("its address is {}", seen.address)),
            Some(_) => return Ok(Vec::new()),
        };
        Ok(vec![PlannedChange { operation: operation.into(), object: wanted.name.into(), reason: reason.into() }])
    }
}

#[async_trait]
impl Inventory for Meadow {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        Ok(self.own_balancers(op, "").await?.iter().map(Balancer::owned).collect())
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        let own = self.own_balancers(op, "").await?;
        self.remove(op, own.into_iter().find(|balancer| balancer.owned() == *object)).await
    }
}

impl Meadow {
    async fn own_balancers(&self, op: &Op, uid: &str) -> Result<Vec<Balancer>, CloudError> {
        let labels = [("cluster", op.cluster_name()), ("uid", uid)];
        let mut balancers: Vec<Balancer> = self.list(op, BALANCERS, &labels).await?;
        balancers.retain(|balancer| balancer.label("cluster") == op.cluster_name());
        Ok(balancers)
    }

    async fn find(&self, op: &Op, uid: &str) -> Result<Option<Balancer>, CloudError> {
        let own = self.own_balancers(op, uid).await?;
        Ok(own.into_iter().find(|balancer| balancer.label("uid") == uid))
    }

    /// Changes what differs, once the balancer may be changed.
    async fn bring(&self, op: &Op, seen: Balancer, wanted: Wanted) -> Result<Balancer, CloudError> {
        if seen.state != READY || seen.has == wanted {
            return Ok(seen);
        }
        let mutation = Mutation::new(CHANGE, &*seen.id).because(seen.difference(&wanted));
        self.api.change(op, mutation, Method::PATCH, &path(BALANCERS, &[&seen.id], &[]), &wanted).await
    }

    /// Deletes, and is done when it is no longer listed.
    async fn remove(&self, op: &Op, seen: Option<Balancer>) -> Result<Progress, CloudError> {
        let Some(seen) = seen else { return Ok(Progress::Done) };
        if seen.state != "deleting" {
            self.api.delete(op, Mutation::new(DELETE, &*seen.id), &path(BALANCERS, &[&seen.id], &[])).await?;
        }
        Ok(Progress::pending(op, format!("load balancer {} is being deleted", seen.id)))
    }
}

impl Balancer {
    fn difference(&self, wanted: &Wanted) -> &'static str {
        if self.has.members == wanted.members { "settings differ" } else { "members differ" }
    }

    fn label(&self, key: &str) -> &str {
        self.has.labels.get(key).map_or("", String::as_str)
    }

    fn owned(&self) -> OwnedObject {
        let [namespace, name, uid] = ["namespace", "service", "uid"].map(|key| self.label(key).into());
        let owner = Owner::Service { namespace, name, uid: Some(uid) };
        OwnedObject { kind: "load balancer".into(), id: self.id.as_str().into(), owner, created: Some(self.created) }
    }
}

fn outcome(op: &Op, balancer: Result<Balancer, CloudError>) -> LbOutcome {
    match balancer {
        Ok(balancer) if balancer.state == READY => LbOutcome::done(LbStatus::of_addresses([balancer.address])),
        Ok(Balancer { id, state, .. }) => Progress::pending(op, format!("load balancer {id} is {state}")).into(),
        Err(error) => error.into(),
    }
}

fn members(want: &LbSpec) -> Result<BTreeSet<String>, CloudError> {
    // A node that is new has no provider ID yet, and is a member when it has.
    want.backends
        .nodes()
        .iter()
        .filter_map(|node| instance_id(node).map(|id| id.map(str::to_owned)).transpose())
        .collect()
}

fn complete(op: &Op, want: &LbSpec) -> Result<Wanted, CloudError> {
    Ok(Wanted { members: members(want)?, ..wanted(op.cluster_name(), &want.service)? })
}

/// Reads what a Service asks for, without members, or everything that is wrong with it.
fn wanted(cluster: &str, service: &ServiceView) -> Result<Wanted, Vec<InvalidInput>> {
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
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let listener = |port: &ServicePort| {
        let protocol = if port.protocol == Protocol::Udp { "udp" } else { "tcp" };
        format!("{}:{}/{protocol}", port.port, port.node_port.map_or(0, NonZeroU16::get))
    };
    let (namespace, name, uid) = (&*service.namespace, &*service.name, &*service.uid);
    let labels = [("cluster", cluster), ("namespace", namespace), ("service", name), ("uid", uid)];
    Ok(Wanted {
        name: format!("k8s-{uid}"),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        size: size.to_owned(),
        listeners: service.ports.iter().map(listener).collect(),
        sources: sources.or_everybody(&[IpFamily::V4]).into_iter().collect(),
        health_port: service.health_check_node_port,
        members: BTreeSet::new(),
    })
}
