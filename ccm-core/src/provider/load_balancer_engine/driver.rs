//! What a provider implements for load balancers that consist of several cloud objects.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    k8s::{LbStatus, ServiceView},
    provider::{
        BackendKind, Backends, CloudError, FieldError, LbRef, LbSupport, NodeTarget, Op,
        PlannedChange, ReadMode, ServiceNotice,
    },
};

/// One kind of cloud load balancer: how a Service is parsed, what exists in the cloud, which
/// requests are missing, and how each is sent.
///
/// [`LoadBalancerEngine`](super::LoadBalancerEngine) decides when: what is remembered of a Service
/// and for how long it is believed, in which order things are read and changed, what happens after
/// an error, and when a call answers that it is pending.
///
/// All methods but [`observe`](Self::observe), [`members`](Self::members) and
/// [`execute`](Self::execute) are pure.
#[async_trait]
pub trait LoadBalancerDriver: Send + Sync {
    /// What a Service requests, with defaults filled in and in canonical order. Equal values need
    /// no cloud call.
    type Desired: PartialEq + std::hash::Hash + Send + Sync;
    /// The backends as the cloud names them: members or targets.
    type Members: PartialEq + Send + Sync;
    /// What is known of the objects of one Service. The default knows nothing.
    type Observed: Default + Send + Sync;
    /// One request that changes something, without any choice left.
    type Action: PartialEq + Send + Sync;
    /// What the provider has to remember of a Service and cannot read from the cloud. Unlike
    /// [`Observed`](Self::Observed) it survives errors.
    type Memory: Default + Clone + Send + Sync;

    /// Returns the features that the load balancers support. Constant.
    fn supports(&self) -> LbSupport;

    /// Returns the values of `spec.loadBalancerClass` that are served. Constant; none by default.
    fn classes(&self) -> Vec<Box<str>> {
        Vec::new()
    }

    /// Returns whether a Service may have endpoints as backends. Constant; `false` by default.
    fn supports_endpoint_backends(&self) -> bool {
        false
    }

    /// Returns what load balancers address nodes by. Constant; addresses by default.
    fn node_target(&self) -> NodeTarget {
        NodeTarget::Address
    }

    /// Parses a Service.
    fn parse(&self, service: &ServiceView) -> ParsedService<Self::Desired>;

    /// Returns which backends a desired load balancer takes.
    fn backend_kind(&self, desired: &Self::Desired) -> BackendKind;

    /// Translates backends into the cloud's terms. It may read what that depends on, such as
    /// whether an instance runs; `read_mode` says how old the answer may be.
    ///
    /// # Errors
    /// Those of the requests.
    async fn members(
        &self,
        op: &Op,
        desired: &Self::Desired,
        backends: &Backends,
        read_mode: ReadMode,
    ) -> Result<Self::Members, CloudError>;

    /// Marks what is observed as outdated: [`observe`](Self::observe) has to verify it. The default
    /// forgets it.
    fn expire(&self, observed: &mut Self::Observed) {
        *observed = Self::Observed::default();
    }

    /// Reads what `observed` lacks for this goal, and nothing else. Called before each
    /// [`plan`](Self::plan), so it must cost nothing when everything is known.
    ///
    /// # Errors
    /// Those of the requests. What was read before the error may stay in `observed`.
    async fn observe(
        &self,
        op: &Op,
        target: &Target<'_, Self>,
        observed: &mut Self::Observed,
        memory: &Self::Memory,
    ) -> Result<Readiness, CloudError>;

    /// Returns whether the load balancer exists.
    fn exists(&self, observed: &Self::Observed) -> bool;

    /// Returns the requests that lead from `observed` to the goal, in the order in which they have
    /// to be sent. Empty when the goal is reached. It is called again after each request, so it
    /// need not foresee what a request returns.
    ///
    /// # Errors
    /// The goal cannot be reached: an address that is in use, a name that belongs to another owner.
    fn plan(
        &self,
        target: &Target<'_, Self>,
        observed: &Self::Observed,
        memory: &Self::Memory,
    ) -> Result<Vec<Self::Action>, CloudError>;

    /// Sends one request through [`Op::mutate`], and updates `observed` by its answer.
    ///
    /// # Errors
    /// Those of the request. The engine then forgets `observed`, unless the request was not sent.
    async fn execute(
        &self,
        op: &Op,
        target: &Target<'_, Self>,
        action: &Self::Action,
        observed: &mut Self::Observed,
        memory: &mut Self::Memory,
    ) -> Result<Executed, CloudError>;

    /// Describes a request for dry runs.
    fn describe(&self, target: &Target<'_, Self>, action: &Self::Action) -> PlannedChange;

    /// Returns the status to publish; `None` while there is nothing to publish.
    ///
    /// # Errors
    /// The cloud's answer has no usable address.
    fn status(
        &self,
        target: &Target<'_, Self>,
        observed: &Self::Observed,
    ) -> Result<Option<LbStatus>, CloudError>;

    /// Returns annotations to persist on the Service; `None` removes one. None by default.
    fn annotations(
        &self,
        target: &Target<'_, Self>,
        observed: &Self::Observed,
    ) -> BTreeMap<Box<str>, Option<Box<str>>> {
        let _ = (target, observed);
        BTreeMap::new()
    }

    /// Returns the annotations to remove from a Service whose load balancer was deleted because its
    /// type changed. None by default.
    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        let _ = lb;
        Vec::new()
    }

    /// Returns the delay if `error` says that the provider's own rate limit kept the request from
    /// being sent. The call is then pending instead of failed.
    fn rate_limit_delay(&self, error: &CloudError) -> Option<Duration> {
        let _ = error;
        None
    }
}

/// A parsed Service.
#[derive(Debug)]
pub struct ParsedService<T> {
    /// What the Service requests.
    pub spec: ParsedSpec<T>,
    /// For an invalid Service: what its existing load balancer is assumed to be, with something
    /// harmless in place of what is invalid. Only members are updated by it. `None` when too little
    /// is valid.
    pub tolerant: Option<Arc<T>>,
    /// What the owner of the Service should know although it is served.
    pub notices: Vec<ServiceNotice>,
}

/// What a Service requests.
#[derive(Debug)]
pub enum ParsedSpec<T> {
    /// A load balancer of ours.
    Valid(Arc<T>),
    /// Another controller's load balancer.
    ImplementedElsewhere,
    /// Something that can never succeed.
    Invalid(Vec<FieldError>),
}

impl<T> From<Result<T, Vec<FieldError>>> for ParsedService<T> {
    /// Without notices, and without a reading of invalid Services.
    fn from(parsed: Result<T, Vec<FieldError>>) -> Self {
        let spec = match parsed {
            Ok(desired) => ParsedSpec::Valid(Arc::new(desired)),
            Err(errors) => ParsedSpec::Invalid(errors),
        };
        Self { spec, tolerant: None, notices: Vec::new() }
    }
}

/// The Service that owns a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOwner {
    /// UID of the Service.
    pub uid: Box<str>,
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub name: Arc<str>,
}

/// What a call works on, and what it aims at.
pub struct Target<'a, D: LoadBalancerDriver + ?Sized> {
    /// Owner of the load balancer.
    pub owner: &'a ServiceOwner,
    /// The Service as last observed.
    pub service: &'a ServiceView,
    /// What is to be reached.
    pub goal: Goal<'a, D>,
}

/// What a call aims at.
pub enum Goal<'a, D: LoadBalancerDriver + ?Sized> {
    /// A load balancer exactly as requested.
    Ensure {
        /// What the Service requests.
        desired: &'a D::Desired,
        /// Members of the load balancer.
        members: &'a D::Members,
    },
    /// An existing load balancer with these members. Everything else stays as it is.
    UpdateMembers {
        /// What the Service requests. It may not have been applied.
        desired: &'a D::Desired,
        /// Members of the load balancer.
        members: &'a D::Members,
        /// False when the Service is invalid: `desired` is then the tolerant reading, and nothing
        /// may be opened to clients because of it.
        is_valid: bool,
    },
    /// No load balancer, and nothing else that this cluster owns for the Service.
    Delete {
        /// What the Service requested, if it is valid.
        desired: Option<&'a D::Desired>,
    },
}

impl<D: LoadBalancerDriver + ?Sized> Clone for Goal<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: LoadBalancerDriver + ?Sized> Copy for Goal<'_, D> {}

/// Whether a load balancer can be changed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can be changed, or does not exist.
    Ready,
    /// The cloud is still working on it.
    Busy {
        /// Delay before the next call.
        after: Duration,
        /// What the call waits for.
        reason: Box<str>,
    },
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executed {
    /// It was carried out, or accepted and will be.
    Done,
    /// It cannot be carried out yet. The requests after it are sent nevertheless.
    Deferred {
        /// Delay before it is tried again.
        after: Duration,
        /// What it waits for.
        reason: Box<str>,
    },
}
