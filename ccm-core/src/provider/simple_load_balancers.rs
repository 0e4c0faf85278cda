//! Load balancers for clouds where each load balancer is one object, which is created, changed and
//! deleted as a whole.
//!
//! In many clouds one request creates the load balancer with its listeners, members and labels, and
//! another one changes any of them at once. A provider for such a cloud implements
//! [`SimpleLoadBalancers`], which consists of requests and a few pure functions, and gets
//! [`LoadBalancers`] and [`Inventory`] from it. It is the smallest case of the
//! [engine](super::load_balancer_engine). If a load balancer consists of several objects, implement
//! a [`LoadBalancerDriver`].
//!
//! No state is kept between calls. Each call first reads the load balancer, so it continues an
//! interrupted call, and a load balancer that is up to date costs one read.

use std::{collections::BTreeSet, hash::Hash, net::IpAddr};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    BackendKind, Backends, CloudError, ErrorKind, FieldError, Inventory, LbOutcome, LbRef, LbSpec,
    LbSupport, LoadBalancers, Mutation, NodeTarget, Op, OwnedObject, Owner, PlannedChange,
    Progress, ReadMode, ServiceInterpretation,
    load_balancer_engine::{
        Executed, Goal, LoadBalancerDriver, LoadBalancerEngine, ParsedService, Readiness, Target,
    },
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
    type Settings: PartialEq + Hash + Send + Sync;

    /// Returns the features that the load balancers support. The result must not change.
    fn support(&self) -> LbSupport;

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
    /// rejects a second request after the response to the first one was lost.
    async fn create_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        mark: &OwnershipTags,
        desired: &SimpleLoadBalancerSpec<Self::Settings>,
    ) -> Result<SimpleLoadBalancer<Self::Settings>, CloudError>;

    /// Updates the settings and members of an active load balancer in one request.
    async fn update_load_balancer(
        &self,
        op: &Op,
        mutation: Mutation,
        id: &str,
        desired: &SimpleLoadBalancerSpec<Self::Settings>,
    ) -> Result<SimpleLoadBalancer<Self::Settings>, CloudError>;

    /// Starts the deletion of a load balancer, whatever its status. It counts as deleted when it is
    /// no longer listed.
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

/// What is known of the load balancer of a Service.
#[derive(Debug, Default)]
enum Observed<S> {
    /// It has to be read.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    Present(SimpleLoadBalancer<S>),
}

impl<S> Observed<S> {
    fn load_balancer(&self) -> Option<&SimpleLoadBalancer<S>> {
        match self {
            Self::Present(load_balancer) => Some(load_balancer),
            Self::Unknown | Self::Absent => None,
        }
    }
}

/// One request.
#[derive(Debug, PartialEq)]
enum Action<S> {
    Create(SimpleLoadBalancerSpec<S>),
    Update { reason: &'static str, desired: SimpleLoadBalancerSpec<S> },
    UpdateMembers(BTreeSet<Box<str>>),
    Delete,
}

/// The driver of these load balancers.
struct SimpleDriver<'a, T>(&'a T);

#[async_trait]
impl<T: SimpleLoadBalancers> LoadBalancerDriver for SimpleDriver<'_, T> {
    type Desired = T::Settings;
    type Members = BTreeSet<Box<str>>;
    type Observed = Observed<T::Settings>;
    type Action = Action<T::Settings>;
    type Memory = ();

    fn supports(&self) -> LbSupport {
        self.0.support()
    }

    fn node_target(&self) -> NodeTarget {
        SimpleLoadBalancers::node_target(self.0)
    }

    fn parse(&self, service: &ServiceView) -> ParsedService<T::Settings> {
        self.0.settings(service).into()
    }

    fn backend_kind(&self, _: &T::Settings) -> BackendKind {
        BackendKind::Nodes(Vec::new())
    }

    async fn members(
        &self,
        _: &Op,
        _: &T::Settings,
        backends: &Backends,
        _: ReadMode,
    ) -> Result<BTreeSet<Box<str>>, CloudError> {
        Ok(members(self.0, backends))
    }

    async fn observe(
        &self,
        op: &Op,
        target: &Target<'_, Self>,
        observed: &mut Self::Observed,
        (): &(),
    ) -> Result<Readiness, CloudError> {
        if matches!(observed, Observed::Unknown) {
            let found = find(self.0, op, &target.owner.uid).await?;
            *observed = found.map_or(Observed::Absent, Observed::Present);
        }
        let Some(load_balancer) = observed.load_balancer() else {
            return Ok(Readiness::Ready);
        };
        let is_ready = match target.goal {
            Goal::Delete { .. } => load_balancer.status != ProvisioningStatus::Deleting,
            _ => load_balancer.status == ProvisioningStatus::Active,
        };
        if is_ready {
            return Ok(Readiness::Ready);
        }
        Ok(Readiness::Busy {
            after: op.poll_interval(),
            reason: load_balancer.pending_reason().into(),
        })
    }

    fn exists(&self, observed: &Self::Observed) -> bool {
        observed.load_balancer().is_some()
    }

    fn plan(
        &self,
        target: &Target<'_, Self>,
        observed: &Self::Observed,
        (): &(),
    ) -> Result<Vec<Self::Action>, CloudError> {
        let existing = observed.load_balancer();
        let action = match (&target.goal, existing) {
            (Goal::Ensure { members, .. }, existing) => {
                let desired = SimpleLoadBalancerSpec {
                    settings: self.0.settings(target.service)?,
                    members: (*members).clone(),
                };
                match existing {
                    None => Some(Action::Create(desired)),
                    Some(existing) if existing.current == desired => None,
                    Some(existing) => {
                        let reason = existing.diff_reason(&desired);
                        Some(Action::Update { reason, desired })
                    }
                }
            }
            // Other changes that the Service requests may not have been applied yet.
            (Goal::UpdateMembers { members, .. }, Some(existing))
                if existing.current.members != **members =>
            {
                Some(Action::UpdateMembers((*members).clone()))
            }
            (Goal::Delete { .. }, Some(_)) => Some(Action::Delete),
            (Goal::UpdateMembers { .. } | Goal::Delete { .. }, _) => None,
        };
        Ok(action.into_iter().collect())
    }

    async fn execute(
        &self,
        op: &Op,
        target: &Target<'_, Self>,
        action: &Self::Action,
        observed: &mut Self::Observed,
        (): &mut (),
    ) -> Result<Executed, CloudError> {
        let cloud = self.0;
        let changed = match (action, &mut *observed) {
            (Action::Create(desired), _) => {
                let mark = OwnershipTags::new(op, target.service);
                let mutation =
                    Mutation::new(CREATE, target.service.key()).with_detail("there is none");
                cloud
                    .create_load_balancer(op, mutation, &mark, desired)
                    .await?
            }
            (Action::Update { reason, desired }, Observed::Present(existing)) => {
                let mutation = Mutation::new(CHANGE, &*existing.id).with_detail(*reason);
                cloud
                    .update_load_balancer(op, mutation, &existing.id, desired)
                    .await?
            }
            (Action::UpdateMembers(members), Observed::Present(existing)) => {
                let mutation = Mutation::new(CHANGE, &*existing.id).with_detail("members differ");
                existing.current.members.clone_from(members);
                cloud
                    .update_load_balancer(op, mutation, &existing.id, &existing.current)
                    .await?
            }
            (Action::Delete, Observed::Present(existing)) => {
                let mutation = Mutation::new(DELETE, &*existing.id);
                cloud
                    .delete_load_balancer(op, mutation, &existing.id)
                    .await?;
                existing.status = ProvisioningStatus::Deleting;
                return Ok(Executed::Done);
            }
            (_, Observed::Unknown | Observed::Absent) => return Ok(Executed::Done),
        };
        *observed = Observed::Present(changed);
        Ok(Executed::Done)
    }

    fn describe(&self, target: &Target<'_, Self>, action: &Self::Action) -> PlannedChange {
        let (operation, reason) = match action {
            Action::Create(_) => (CREATE, "there is none"),
            Action::Update { reason, .. } => (CHANGE, *reason),
            Action::UpdateMembers(_) => (CHANGE, "members differ"),
            Action::Delete => (DELETE, "the service needs none"),
        };
        PlannedChange {
            operation: operation.into(),
            object: target.service.key().into(),
            reason: reason.into(),
        }
    }

    fn status(
        &self,
        _: &Target<'_, Self>,
        observed: &Self::Observed,
    ) -> Result<Option<LbStatus>, CloudError> {
        let status = observed
            .load_balancer()
            .filter(|existing| existing.status == ProvisioningStatus::Active)
            .filter(|existing| !existing.addresses.is_empty())
            .map(|existing| LbStatus::of_addresses(existing.addresses.iter().copied()));
        Ok(status)
    }
}

/// The engine remembers nothing here, because it is made for each call.
#[async_trait]
impl<T: SimpleLoadBalancers> LoadBalancers for T {
    fn supports(&self) -> LbSupport {
        self.support()
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        LoadBalancerEngine::new(SimpleDriver(self)).interpret(service)
    }

    fn node_target(&self) -> NodeTarget {
        SimpleLoadBalancers::node_target(self)
    }

    /// Returns all nodes, as for a valid Service.
    fn backends_of_invalid(&self, _: &ServiceView) -> Option<BackendKind> {
        Some(BackendKind::Nodes(Vec::new()))
    }

    async fn ensure(&self, op: &Op, spec: &LbSpec, read_mode: ReadMode) -> LbOutcome {
        LoadBalancerEngine::new(SimpleDriver(self))
            .ensure(op, spec, read_mode)
            .await
    }

    async fn update_backends(&self, op: &Op, spec: &LbSpec) -> LbOutcome {
        LoadBalancerEngine::new(SimpleDriver(self))
            .update_backends(op, spec)
            .await
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        LoadBalancerEngine::new(SimpleDriver(self))
            .delete(op, lb)
            .await
    }

    async fn plan(&self, op: &Op, spec: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        LoadBalancerEngine::new(SimpleDriver(self))
            .plan(op, spec)
            .await
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

fn members<T: SimpleLoadBalancers>(cloud: &T, backends: &Backends) -> BTreeSet<Box<str>> {
    backends
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
        cloud
            .delete_load_balancer(op, Mutation::new(DELETE, &*observed.id), &observed.id)
            .await?;
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
