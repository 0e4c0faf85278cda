//! Load balancers for clouds where each is one object, made, changed and deleted whole.
//!
//! Many clouds have such: a request creates the balancer with its listeners, members and labels, another one changes any of
//! that at once. A provider of such a cloud implements [`SimpleLoadBalancers`], which is five requests and one pure function, and
//! has [`LoadBalancers`] and [`Inventory`] by that: what has to be done, in which order, whose things are left alone, what
//! is waited for, and what a plan says is decided here, alike for all of them. Where a balancer is made of several objects,
//! implement [`LoadBalancers`] itself.
//!
//! Nothing is remembered between calls. Each reads the balancer first, so that one that was interrupted is taken up by the
//! next, and a balancer that is as it shall be costs one read.

use std::{collections::BTreeSet, hash::Hash, net::IpAddr};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    BackendKind, CloudError, Digest, ErrorKind, FieldError, Inventory, LbOutcome, LbRef, LbSpec, LbSupport,
    LoadBalancers, Mutation, NodeTarget, Op, OwnedObject, Owner, PlannedChange, Progress, ReadMode,
    ServiceInterpretation,
};
use crate::k8s::{LbStatus, NodeView, ServiceView};

/// Operation of the mutations that create a balancer; as the next two for
/// [`CloudProvider::mutations`](super::CloudProvider::mutations).
pub const CREATE: &str = "create_load_balancer";
/// Operation of the mutations that change a balancer.
pub const CHANGE: &str = "change_load_balancer";
/// Operation of the mutations that delete a balancer.
pub const DELETE: &str = "delete_load_balancer";

/// The requests of a cloud where a load balancer is one object.
#[async_trait]
pub trait SimpleLoadBalancers: Send + Sync {
    /// Everything of a balancer that its Service decides, besides the members: ports, clients, what annotations say. In a
    /// canonical form (sorted sets, defaults filled in), because it is compared with what the cloud has.
    type Settings: PartialEq + Hash + Send + Sync;

    /// Returns what the balancers can do. Constant.
    fn support(&self) -> LbSupport;

    /// Tells what [`member`](Self::member) names nodes by. Constant; [`NodeTarget::Address`] by default.
    fn node_target(&self) -> NodeTarget {
        NodeTarget::Address
    }

    /// Reads what a Service asks for. Pure.
    ///
    /// # Errors
    /// Everything that is wrong with it, so that it cannot be served as it asks.
    fn settings(&self, service: &ServiceView) -> Result<Self::Settings, Vec<FieldError>>;

    /// Returns how the cloud names a node as a member; `None` for one that can be none yet, such as a node without provider
    /// ID. Pure.
    fn member(&self, node: &NodeView) -> Option<Box<str>>;

    /// Lists the balancers whose mark has this cluster ([`Op::cluster_name`]) and, if there is one, this UID. Complete, or an
    /// error. More than that does no harm: marks are compared again.
    async fn list_load_balancers(
        &self,
        op: &Op,
        uid: Option<&str>,
    ) -> Result<Vec<SimpleLoadBalancer<Self::Settings>>, CloudError>;

    /// Creates a balancer in one request, with its mark, by way of [`Op::mutate`] with this mutation. Its name must have
    /// the UID in it and be unique in the cloud, so that a request whose answer was lost is not carried out twice.
    async fn create_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        mark: &OwnershipTags,
        wanted: &SimpleLoadBalancerSpec<Self::Settings>,
    ) -> Result<SimpleLoadBalancer<Self::Settings>, CloudError>;

    /// Brings a balancer that is ready in line, settings and members in one request.
    async fn update_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        id: &str,
        wanted: &SimpleLoadBalancerSpec<Self::Settings>,
    ) -> Result<SimpleLoadBalancer<Self::Settings>, CloudError>;

    /// Begins to delete a balancer, whatever state it is in. It is deleted when it is no longer listed.
    async fn delete_load_balancer(&self, op: &Op, mutation: Mutation, id: &str) -> Result<(), CloudError>;
}

/// Whose a balancer is: what its labels say, from the request on that creates it. Labels that are missing are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnershipTags {
    /// Name of the cluster.
    pub cluster: Box<str>,
    /// Namespace of the Service.
    pub namespace: Box<str>,
    /// Name of the Service.
    pub service: Box<str>,
    /// UID of the Service.
    pub uid: Box<str>,
}

/// What a balancer shall be, or is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SimpleLoadBalancerSpec<S> {
    /// What the Service decides; its fields stand beside the members where this is sent as it is.
    #[serde(flatten)]
    pub settings: S,
    /// Members, each as [`SimpleLoadBalancers::member`] names it.
    pub members: BTreeSet<Box<str>>,
}

/// State of a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvisioningStatus {
    /// The cloud is busy with it; it cannot be changed now.
    Pending,
    /// It serves and may be changed.
    Active,
    /// It is being deleted.
    Deleting,
}

/// A balancer as the cloud has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleLoadBalancer<S> {
    /// Identifier in the cloud.
    pub id: Box<str>,
    /// Whose it is.
    pub owner: OwnershipTags,
    /// State.
    pub status: ProvisioningStatus,
    /// Addresses at which clients find it; empty while it has none.
    pub addresses: Vec<IpAddr>,
    /// When it was created, if the cloud says so.
    pub created: Option<Timestamp>,
    /// What it is.
    pub current: SimpleLoadBalancerSpec<S>,
}

#[async_trait]
impl<T: SimpleLoadBalancers> LoadBalancers for T {
    fn supports(&self) -> LbSupport {
        self.support()
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        match self.settings(service) {
            Ok(settings) => ServiceInterpretation::Valid {
                backends: BackendKind::Nodes(Vec::new()),
                digest: Digest::of(&(&service.namespace, &service.name, &service.uid, settings)),
            },
            Err(mistakes) => ServiceInterpretation::Invalid(mistakes),
        }
    }

    fn node_target(&self) -> NodeTarget {
        SimpleLoadBalancers::node_target(self)
    }

    /// Every node, as for a valid one.
    fn backends_of_invalid(&self, _: &ServiceView) -> Option<BackendKind> {
        Some(BackendKind::Nodes(Vec::new()))
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, _: ReadMode) -> LbOutcome {
        let ensured = async {
            let wanted =
                SimpleLoadBalancerSpec { settings: self.settings(&want.service)?, members: members(self, want) };
            match find(self, op, &want.service.uid).await? {
                Some(seen) => reconcile(self, op, seen, wanted).await,
                None => {
                    let mark = OwnershipTags::new(op, &want.service);
                    let mutation = Mutation::new(CREATE, want.service.key()).with_detail("there is none");
                    self.create_load_balancer(op, mutation, &mark, &wanted).await
                }
            }
        };
        ensured.await.map_or_else(LbOutcome::from, |balancer| balancer.outcome(op))
    }

    /// Takes the settings as they are: what the Service asks for besides may not have been ensured yet.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let updated = async {
            let Some(mut seen) = find(self, op, &want.service.uid).await? else {
                let message = format!("service {} has no load balancer", want.service.key());
                return Err(CloudError::new(ErrorKind::NotFound, message));
            };
            let members = members(self, want);
            if seen.status != ProvisioningStatus::Active || seen.current.members == members {
                return Ok(seen);
            }
            let mutation = Mutation::new(CHANGE, &*seen.id).with_detail("members differ");
            seen.current.members = members;
            self.update_load_balancer(op, mutation, &seen.id, &seen.current).await
        };
        updated.await.map_or_else(LbOutcome::from, |balancer| balancer.outcome(op))
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let seen = find(self, op, &lb.uid).await?;
        delete_and_wait(self, op, seen).await
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let service = &want.service;
        let wanted = SimpleLoadBalancerSpec { settings: self.settings(service)?, members: members(self, want) };
        let shown = service.status.ingress.iter().filter_map(|entry| entry.ip);
        let (operation, reason) = match find(self, op, &service.uid).await? {
            None => (CREATE, "there is none".to_owned()),
            Some(seen) if seen.status != ProvisioningStatus::Active => ("wait", seen.pending_reason()),
            Some(seen) if seen.current != wanted => (CHANGE, seen.diff_reason(&wanted).to_owned()),
            Some(seen) if !shown.eq(seen.addresses.iter().copied()) => {
                ("publish_status", format!("the service shows other addresses than {:?}", seen.addresses))
            }
            Some(_) => return Ok(Vec::new()),
        };
        Ok(vec![PlannedChange { operation: operation.into(), object: service.key().into(), reason: reason.into() }])
    }
}

#[async_trait]
impl<T: SimpleLoadBalancers> Inventory for T {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        Ok(list_owned_load_balancers(self, op, None).await?.iter().map(SimpleLoadBalancer::to_owned_object).collect())
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        let seen =
            list_owned_load_balancers(self, op, None).await?.into_iter().find(|balancer| balancer.id == object.id);
        match seen {
            Some(seen) if seen.to_owned_object().owner != object.owner => {
                let message = format!("load balancer {} belongs to another service by now", seen.id);
                Err(CloudError::new(ErrorKind::Conflict, message))
            }
            seen => delete_and_wait(self, op, seen).await,
        }
    }
}

impl OwnershipTags {
    fn new(op: &Op, service: &ServiceView) -> Self {
        Self {
            cluster: op.cluster_name().into(),
            namespace: (&*service.namespace).into(),
            service: (&*service.name).into(),
            uid: service.uid.clone(),
        }
    }
}

impl<S: PartialEq> SimpleLoadBalancer<S> {
    fn outcome(&self, op: &Op) -> LbOutcome {
        match self.status {
            ProvisioningStatus::Active if !self.addresses.is_empty() => {
                LbOutcome::done(LbStatus::of_addresses(self.addresses.iter().copied()))
            }
            _ => Progress::pending(op, self.pending_reason()).into(),
        }
    }

    fn pending_reason(&self) -> String {
        let what = match self.status {
            ProvisioningStatus::Pending => "is being built or changed",
            ProvisioningStatus::Active => "has no address yet",
            ProvisioningStatus::Deleting => "is being deleted",
        };
        format!("load balancer {} {what}", self.id)
    }

    fn diff_reason(&self, wanted: &SimpleLoadBalancerSpec<S>) -> &'static str {
        match (self.current.settings == wanted.settings, self.current.members == wanted.members) {
            (true, _) => "members differ",
            (false, true) => "settings differ",
            (false, false) => "settings and members differ",
        }
    }

    fn to_owned_object(&self) -> OwnedObject {
        let OwnershipTags { namespace, service, uid, .. } = self.owner.clone();
        // What does not say which Service it was made for is nobody's orphan.
        let owner = match [&namespace, &service, &uid].iter().any(|label| label.is_empty()) {
            true => Owner::Cluster,
            false => Owner::Service { namespace, name: service, uid: Some(uid) },
        };
        OwnedObject { kind: "load balancer".into(), id: self.id.clone(), owner, created: self.created }
    }
}

fn members<T: SimpleLoadBalancers>(cloud: &T, want: &LbSpec) -> BTreeSet<Box<str>> {
    want.backends.nodes().iter().filter_map(|node| cloud.member(node)).collect()
}

/// Lists what carries this cluster's mark.
async fn list_owned_load_balancers<T: SimpleLoadBalancers>(
    cloud: &T,
    op: &Op,
    uid: Option<&str>,
) -> Result<Vec<SimpleLoadBalancer<T::Settings>>, CloudError> {
    let mut balancers = cloud.list_load_balancers(op, uid).await?;
    balancers.retain(|balancer| *balancer.owner.cluster == *op.cluster_name());
    Ok(balancers)
}

/// Finds the balancer of a Service.
async fn find<T: SimpleLoadBalancers>(
    cloud: &T,
    op: &Op,
    uid: &str,
) -> Result<Option<SimpleLoadBalancer<T::Settings>>, CloudError> {
    Ok(list_owned_load_balancers(cloud, op, Some(uid)).await?.into_iter().find(|balancer| *balancer.owner.uid == *uid))
}

/// Changes what differs, if the balancer may be changed.
async fn reconcile<T: SimpleLoadBalancers>(
    cloud: &T,
    op: &Op,
    seen: SimpleLoadBalancer<T::Settings>,
    wanted: SimpleLoadBalancerSpec<T::Settings>,
) -> Result<SimpleLoadBalancer<T::Settings>, CloudError> {
    if seen.status != ProvisioningStatus::Active || seen.current == wanted {
        return Ok(seen);
    }
    let mutation = Mutation::new(CHANGE, &*seen.id).with_detail(seen.diff_reason(&wanted));
    cloud.update_load_balancer(op, mutation, &seen.id, &wanted).await
}

/// Deletes, and is done when the balancer is no longer listed.
async fn delete_and_wait<T: SimpleLoadBalancers>(
    cloud: &T,
    op: &Op,
    seen: Option<SimpleLoadBalancer<T::Settings>>,
) -> Result<Progress, CloudError> {
    let Some(seen) = seen else { return Ok(Progress::Done) };
    if seen.status != ProvisioningStatus::Deleting {
        cloud.delete_load_balancer(op, Mutation::new(DELETE, &*seen.id), &seen.id).await?;
    }
    Ok(Progress::pending(op, format!("load balancer {} is being deleted", seen.id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_service_is_nobodys_orphan() {
        let of = |namespace: &str, service: &str, uid: &str| {
            let mark = OwnershipTags {
                cluster: "blue".into(),
                namespace: namespace.into(),
                service: service.into(),
                uid: uid.into(),
            };
            let is = SimpleLoadBalancerSpec { settings: (), members: BTreeSet::new() };
            let state = ProvisioningStatus::Active;
            SimpleLoadBalancer {
                id: "lb".into(),
                owner: mark,
                status: state,
                addresses: Vec::new(),
                created: None,
                current: is,
            }
            .to_owned_object()
            .owner
        };
        let web = Owner::Service { namespace: "default".into(), name: "web".into(), uid: Some("u1".into()) };
        assert_eq!(of("default", "web", "u1"), web);
        for (namespace, service, uid) in
            [("", "", ""), ("default", "web", ""), ("default", "", "u1"), ("", "web", "u1")]
        {
            assert_eq!(of(namespace, service, uid), Owner::Cluster, "{namespace}/{service} {uid}");
        }
    }
}
