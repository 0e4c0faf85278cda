//! Load balancers for clouds where each load balancer is one object, which is created, changed and
//! deleted as a whole.
//!
//! In many clouds one request creates the load balancer with its listeners, members and labels, and
//! another one changes any of them at once. A provider for such a cloud implements
//! [`SimpleLoadBalancers`], which consists of requests and a few pure functions, and gets
//! [`LoadBalancers`] and [`Inventory`] from it. The order of actions, the ownership checks, the
//! waiting for pending load balancers and the plans are implemented here, once for all such clouds.
//! If listeners and members are changed one by one, [`steps`] has what such a cloud needs besides. If a
//! load balancer consists of several objects with owners of their own, implement [`LoadBalancers`]
//! directly.
//!
//! No state is kept between calls. Each call first reads the load balancer, so it continues an
//! interrupted call, and a load balancer that is up to date costs one read.

pub mod steps;

use std::{collections::BTreeSet, hash::Hash, net::IpAddr};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    BackendKind, CloudError, Digest, ErrorKind, FieldError, Inventory, LbOutcome, LbRef, LbSpec,
    LbSupport, LoadBalancers, Mutation, NodeTarget, Op, OwnedObject, Owner, PlannedChange,
    Progress, ReadMode, ServiceInterpretation,
};
use crate::k8s::{LbStatus, NodeView, ServiceView};

/// The operation of mutations that create a load balancer. A provider must list it, and the next
/// two, in [`CloudProvider::mutation_operations`](super::CloudProvider::mutation_operations).
pub const CREATE: &str = "create_load_balancer";
/// The operation of mutations that change a load balancer.
pub const CHANGE: &str = "change_load_balancer";
/// The operation of mutations that delete a load balancer.
pub const DELETE: &str = "delete_load_balancer";

/// The requests to a cloud where a load balancer is one object.
#[async_trait]
pub trait SimpleLoadBalancers: Send + Sync {
    /// The settings of a load balancer that its Service determines, without the members: ports,
    /// allowed clients, settings from annotations. They must be in a canonical form, with sorted
    /// sets and explicit defaults, because they are compared with the observed settings.
    type Settings: Clone + PartialEq + Hash + Send + Sync;

    /// Returns the features that the load balancers support. The result must not change. The
    /// default is TCP over IPv4 without source ranges.
    fn support(&self) -> LbSupport {
        LbSupport::default()
    }

    /// Returns the property of nodes from which [`member`](Self::member) derives. The result must
    /// not change. The default is [`NodeTarget::Address`].
    fn node_target(&self) -> NodeTarget {
        NodeTarget::Address
    }

    /// Parses the settings that a Service requests. Must be pure.
    ///
    /// # Errors
    /// Returns all validation errors that prevent the Service from being served as requested.
    fn settings(&self, service: &ServiceView) -> Result<Self::Settings, Vec<FieldError>>;

    /// Returns the cloud's identifier of a node as a member, or `None` for a node that cannot be a
    /// member yet, such as one without a provider ID. Must be pure.
    fn member(&self, node: &NodeView) -> Option<Box<str>>;

    /// Lists the load balancers whose ownership tags contain this cluster ([`Op::cluster_name`])
    /// and, if given, this UID. May list more, because the caller compares the tags again.
    ///
    /// # Errors
    /// Must return an error if the list would be incomplete.
    async fn list_load_balancers(
        &self,
        op: &Op,
        uid: Option<&str>,
    ) -> Result<Vec<SimpleLoadBalancer<Self::Settings>>, CloudError>;

    /// Creates a load balancer with its ownership tags in one request, through [`Op::mutate`] with
    /// this mutation. Its name must contain the UID and be unique in the cloud, so that the cloud
    /// rejects a second request after the response to the first one was lost. What the created one
    /// lacks is [updated](Self::update_load_balancer) then.
    async fn create_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        mark: &OwnershipTags,
        desired: &SimpleLoadBalancerSpec<Self::Settings>,
    ) -> Result<SimpleLoadBalancer<Self::Settings>, CloudError>;

    /// Updates the settings and members of an active load balancer in one request, or with
    /// [`steps::update_in_steps`] in several ones. Returns the load balancer as it is then, with
    /// [`ProvisioningStatus::Pending`] if the cloud completes the change later.
    async fn update_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        observed: SimpleLoadBalancer<Self::Settings>,
        desired: &SimpleLoadBalancerSpec<Self::Settings>,
    ) -> Result<SimpleLoadBalancer<Self::Settings>, CloudError>;

    /// Starts the deletion of a load balancer, whatever its status. It counts as deleted when it is
    /// no longer listed. After [`ErrorKind::Conflict`] (it is locked) the deletion is pending and
    /// started again later.
    async fn delete_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        id: &str,
    ) -> Result<(), CloudError>;
}

/// The cluster and the Service that own a load balancer. They are written to its labels by the
/// request that creates it. A field is empty if the label is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnershipTags {
    /// The name of the cluster.
    pub cluster: Box<str>,
    /// The namespace of the Service.
    pub namespace: Box<str>,
    /// The name of the Service.
    pub service: Box<str>,
    /// The UID of the Service.
    pub uid: Box<str>,
}

/// The desired or observed state of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SimpleLoadBalancerSpec<S> {
    /// The settings that the Service determines. They are serialized as fields beside the members.
    #[serde(flatten)]
    pub settings: S,
    /// The members, each as [`SimpleLoadBalancers::member`] returns it.
    pub members: BTreeSet<Box<str>>,
}

/// The status of a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvisioningStatus {
    /// The cloud is still working on it; it cannot be changed now.
    Pending,
    /// It serves and can be changed.
    Active,
    /// It is being deleted.
    Deleting,
}

/// The observed state of a load balancer in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleLoadBalancer<S> {
    /// Its identifier in the cloud.
    pub id: Box<str>,
    /// The cluster and the Service that own it.
    pub owner: OwnershipTags,
    /// Its status.
    pub status: ProvisioningStatus,
    /// The addresses at which clients reach it. Empty while it has none.
    pub addresses: Vec<IpAddr>,
    /// The time of its creation, if the cloud reports it.
    pub created: Option<Timestamp>,
    /// The observed settings and members.
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
            Err(errors) => ServiceInterpretation::Invalid(errors),
        }
    }

    fn node_target(&self) -> NodeTarget {
        SimpleLoadBalancers::node_target(self)
    }

    /// Returns all nodes, as for a valid Service.
    fn backends_of_invalid(&self, _: &ServiceView) -> Option<BackendKind> {
        Some(BackendKind::Nodes(Vec::new()))
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, _: ReadMode) -> LbOutcome {
        let ensured = async {
            let desired = SimpleLoadBalancerSpec {
                settings: self.settings(&want.service)?,
                members: members(self, want),
            };
            let observed = match find(self, op, &want.service.uid).await? {
                Some(observed) => observed,
                None => {
                    let mark = OwnershipTags::new(op, &want.service);
                    let mutation =
                        Mutation::new(CREATE, want.service.key()).with_detail("there is none");
                    self.create_load_balancer(op, mutation, &mark, &desired)
                        .await?
                }
            };
            reconcile(self, op, observed, desired).await
        };
        ensured
            .await
            .map_or_else(LbOutcome::from, |balancer| balancer.outcome(op))
    }

    /// Keeps the observed settings: other changes that the Service requests may not have been
    /// applied yet.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let updated = async {
            let Some(observed) = find(self, op, &want.service.uid).await? else {
                let message = format!("service {} has no load balancer", want.service.key());
                return Err(CloudError::new(ErrorKind::NotFound, message));
            };
            let desired = SimpleLoadBalancerSpec {
                settings: observed.current.settings.clone(),
                members: members(self, want),
            };
            reconcile(self, op, observed, desired).await
        };
        updated
            .await
            .map_or_else(LbOutcome::from, |balancer| balancer.outcome(op))
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let observed = find(self, op, &lb.uid).await?;
        delete_and_wait(self, op, observed).await
    }

    async fn plan(&self, op: &Op, spec: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let service = &spec.service;
        let desired = SimpleLoadBalancerSpec {
            settings: self.settings(service)?,
            members: members(self, spec),
        };
        let published = service.status.ingress.iter().filter_map(|entry| entry.ip);
        let (operation, reason) = match find(self, op, &service.uid).await? {
            None => (CREATE, "there is none".to_owned()),
            Some(observed) if observed.status != ProvisioningStatus::Active => {
                ("wait", observed.pending_reason())
            }
            Some(observed) if observed.current != desired => {
                (CHANGE, observed.diff_reason(&desired).to_owned())
            }
            Some(observed) if !published.eq(observed.addresses.iter().copied()) => (
                "publish_status",
                format!("the service shows other addresses than {:?}", observed.addresses),
            ),
            Some(_) => return Ok(Vec::new()),
        };
        Ok(vec![PlannedChange {
            operation: operation.into(),
            object: service.key().into(),
            reason: reason.into(),
        }])
    }
}

#[async_trait]
impl<T: SimpleLoadBalancers> Inventory for T {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        Ok(list_owned_load_balancers(self, op, None)
            .await?
            .iter()
            .map(SimpleLoadBalancer::to_owned_object)
            .collect())
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        let observed = list_owned_load_balancers(self, op, None)
            .await?
            .into_iter()
            .find(|load_balancer| load_balancer.id == object.id);
        if let Some(load_balancer) = &observed
            && load_balancer.to_owned_object().owner != object.owner
        {
            let message =
                format!("load balancer {} now belongs to another service", load_balancer.id);
            return Err(CloudError::new(ErrorKind::Conflict, message));
        }
        delete_and_wait(self, op, observed).await
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
            ProvisioningStatus::Pending => "is being created or changed",
            ProvisioningStatus::Active => "has no address yet",
            ProvisioningStatus::Deleting => "is being deleted",
        };
        format!("load balancer {} {what}", self.id)
    }

    fn diff_reason(&self, desired: &SimpleLoadBalancerSpec<S>) -> &'static str {
        if self.current.settings == desired.settings {
            "members differ"
        } else if self.current.members == desired.members {
            "settings differ"
        } else {
            "settings and members differ"
        }
    }

    fn to_owned_object(&self) -> OwnedObject {
        let OwnershipTags { namespace, service, uid, .. } = self.owner.clone();
        // An object whose labels do not name its Service is not treated as an orphan.
        let owner = if [&namespace, &service, &uid]
            .iter()
            .any(|label| label.is_empty())
        {
            Owner::Cluster
        } else {
            Owner::Service { namespace, name: service, uid: Some(uid) }
        };
        OwnedObject {
            kind: "load balancer".into(),
            id: self.id.clone(),
            owner,
            created: self.created,
        }
    }
}

fn members<T: SimpleLoadBalancers>(cloud: &T, want: &LbSpec) -> BTreeSet<Box<str>> {
    want.backends
        .nodes()
        .iter()
        .filter_map(|node| cloud.member(node))
        .collect()
}

/// Lists the load balancers with this cluster's ownership tags.
async fn list_owned_load_balancers<T: SimpleLoadBalancers>(
    cloud: &T,
    op: &Op,
    uid: Option<&str>,
) -> Result<Vec<SimpleLoadBalancer<T::Settings>>, CloudError> {
    let mut balancers = cloud.list_load_balancers(op, uid).await?;
    balancers.retain(|balancer| *balancer.owner.cluster == *op.cluster_name());
    Ok(balancers)
}

/// Finds the load balancer of a Service.
async fn find<T: SimpleLoadBalancers>(
    cloud: &T,
    op: &Op,
    uid: &str,
) -> Result<Option<SimpleLoadBalancer<T::Settings>>, CloudError> {
    Ok(list_owned_load_balancers(cloud, op, Some(uid))
        .await?
        .into_iter()
        .find(|balancer| *balancer.owner.uid == *uid))
}

/// Updates the load balancer if it differs from the desired state and can be changed now.
async fn reconcile<T: SimpleLoadBalancers>(
    cloud: &T,
    op: &Op,
    observed: SimpleLoadBalancer<T::Settings>,
    desired: SimpleLoadBalancerSpec<T::Settings>,
) -> Result<SimpleLoadBalancer<T::Settings>, CloudError> {
    if observed.status != ProvisioningStatus::Active || observed.current == desired {
        return Ok(observed);
    }
    let mutation = Mutation::new(CHANGE, &*observed.id).with_detail(observed.diff_reason(&desired));
    cloud
        .update_load_balancer(op, mutation, observed, &desired)
        .await
}

/// Starts the deletion if necessary. Returns [`Progress::Done`] when the load balancer is no longer
/// listed.
async fn delete_and_wait<T: SimpleLoadBalancers>(
    cloud: &T,
    op: &Op,
    observed: Option<SimpleLoadBalancer<T::Settings>>,
) -> Result<Progress, CloudError> {
    let Some(observed) = observed else {
        return Ok(Progress::Done);
    };
    if observed.status != ProvisioningStatus::Deleting {
        let mutation = Mutation::new(DELETE, &*observed.id);
        match cloud.delete_load_balancer(op, mutation, &observed.id).await {
            // An earlier change runs on, or somebody else changes the load balancer.
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let after = error.retry_after().unwrap_or_else(|| op.poll_interval());
                let reason = format!("load balancer {} is locked: {}", observed.id, error.chain());
                return Ok(Progress::Pending { after, reason: reason.into() });
            }
            result => result?,
        }
    }
    Ok(Progress::pending(op, format!("load balancer {} is being deleted", observed.id)))
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
        let web = Owner::Service {
            namespace: "default".into(),
            name: "web".into(),
            uid: Some("u1".into()),
        };
        assert_eq!(of("default", "web", "u1"), web);
        for (namespace, service, uid) in
            [("", "", ""), ("default", "web", ""), ("default", "", "u1"), ("", "web", "u1")]
        {
            assert_eq!(of(namespace, service, uid), Owner::Cluster, "{namespace}/{service} {uid}");
        }
    }
}
