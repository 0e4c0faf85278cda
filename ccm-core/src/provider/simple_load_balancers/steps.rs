//! Load balancers whose listeners and members are added, changed and removed one by one.

use std::{collections::BTreeMap, num::NonZeroU16, time::Duration};

use async_trait::async_trait;

use super::{
    CHANGE, ProvisioningStatus, SimpleLoadBalancer, SimpleLoadBalancerSpec, SimpleLoadBalancers,
};
use crate::{
    k8s::Protocol,
    provider::{CloudError, ErrorKind, Mutation, Op, Progress},
};

/// The time for which a conflict counts as a lock of the load balancer.
const MAX_LOCKED: Duration = Duration::from_secs(300);

/// The port and the protocol of a listener.
pub type ListenerKey = (NonZeroU16, Protocol);

/// The settings of a load balancer whose listeners are changed one by one, for
/// [`SimpleLoadBalancers::Settings`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SteppedSettings<W, L> {
    /// The settings that concern the whole load balancer, such as its size or the clients that may
    /// connect. `()` if there are none.
    pub whole: W,
    /// The listeners.
    pub listeners: BTreeMap<ListenerKey, L>,
}

/// A change that takes one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadBalancerStep<'a, W, L> {
    /// Set the settings that concern the whole load balancer.
    ChangeWhole(&'a W),
    /// Add a listener.
    AddListener(ListenerKey, &'a L),
    /// Change the settings of a listener.
    ChangeListener(ListenerKey, &'a L),
    /// Remove a listener.
    RemoveListener(ListenerKey),
    /// Add a member, as [`SimpleLoadBalancers::member`] returns it.
    AddMember(&'a str),
    /// Remove a member.
    RemoveMember(&'a str),
}

/// The request for one step, for a provider whose
/// [`update_load_balancer`](SimpleLoadBalancers::update_load_balancer) calls [`update_in_steps`].
#[async_trait]
pub trait LoadBalancerSteps:
    SimpleLoadBalancers<Settings = SteppedSettings<Self::Whole, Self::Listener>>
{
    /// The settings that concern the whole load balancer.
    type Whole: Clone + PartialEq + Send + Sync;
    /// The settings of a listener.
    type Listener: Clone + PartialEq + Send + Sync;

    /// Applies one step to a load balancer, through [`Op::mutate`] with this mutation. If it was
    /// applied already, must succeed or return [`ErrorKind::Conflict`]. Returns
    /// [`Progress::Pending`] if the cloud completes it later.
    ///
    /// # Errors
    /// Must return [`ErrorKind::Conflict`] if the load balancer is locked. The update is then
    /// pending, and the next call reads the load balancer again.
    async fn apply_step(
        &self,
        op: &Op,
        mutation: Mutation,
        id: &str,
        step: LoadBalancerStep<'_, Self::Whole, Self::Listener>,
    ) -> Result<Progress, CloudError>;
}

impl<W, L> LoadBalancerStep<'_, W, L> {
    /// Describes the step in log records.
    fn describe(&self) -> String {
        let listener =
            |(port, protocol): &ListenerKey| format!("listener {port}/{}", protocol.as_str());
        match self {
            Self::ChangeWhole(_) => "change the settings".to_owned(),
            Self::AddListener(key, _) => format!("add {}", listener(key)),
            Self::ChangeListener(key, _) => format!("change {}", listener(key)),
            Self::RemoveListener(key) => format!("remove {}", listener(key)),
            Self::AddMember(id) => format!("add member {id}"),
            Self::RemoveMember(id) => format!("remove member {id}"),
        }
    }
}

/// Returns the steps from the observed to the desired state, in the order in which clients notice
/// them least: no client may connect that the Service excludes, and no member leaves before its
/// replacement is there.
pub fn plan_steps<'a, W: PartialEq, L: PartialEq>(
    observed: &'a SimpleLoadBalancerSpec<SteppedSettings<W, L>>,
    desired: &'a SimpleLoadBalancerSpec<SteppedSettings<W, L>>,
) -> Vec<LoadBalancerStep<'a, W, L>> {
    let (is, wanted) = (&observed.settings, &desired.settings);
    let mut steps = Vec::new();
    // A removed listener may use what another one needs, and must not meet wider settings.
    for key in is.listeners.keys() {
        if !wanted.listeners.contains_key(key) {
            steps.push(LoadBalancerStep::RemoveListener(*key));
        }
    }
    // A new or changed listener must not meet the earlier settings.
    if is.whole != wanted.whole {
        steps.push(LoadBalancerStep::ChangeWhole(&wanted.whole));
    }
    for (key, listener) in &wanted.listeners {
        let current = is.listeners.get(key);
        if current.is_some_and(|current| current != listener) {
            steps.push(LoadBalancerStep::ChangeListener(*key, listener));
        }
    }
    // A new listener finds all its members.
    for member in desired.members.difference(&observed.members) {
        steps.push(LoadBalancerStep::AddMember(member));
    }
    for (key, listener) in &wanted.listeners {
        if !is.listeners.contains_key(key) {
            steps.push(LoadBalancerStep::AddListener(*key, listener));
        }
    }
    for member in observed.members.difference(&desired.members) {
        steps.push(LoadBalancerStep::RemoveMember(member));
    }
    steps
}

/// Applies the steps from the observed to the desired state, until one is pending or the load
/// balancer is locked. Returns the load balancer as it is then.
///
/// # Errors
/// Returns the error of the first step that fails. The steps before it are applied, and the next
/// call continues, because it reads the load balancer again.
pub async fn update_in_steps<T: LoadBalancerSteps + ?Sized>(
    cloud: &T,
    op: &Op,
    mut observed: SimpleLoadBalancer<T::Settings>,
    desired: &SimpleLoadBalancerSpec<T::Settings>,
) -> Result<SimpleLoadBalancer<T::Settings>, CloudError> {
    let current = observed.current.clone();
    for step in plan_steps(&current, desired) {
        let mutation = Mutation::new(CHANGE, &*observed.id).with_detail(step.describe());
        match cloud
            .apply_step(op, mutation, &observed.id, step.clone())
            .await
        {
            Ok(Progress::Done) => record_step(&mut observed.current, &step),
            Ok(Progress::Pending { .. }) => {
                observed.status = ProvisioningStatus::Pending;
                return Ok(observed);
            }
            // An earlier change runs on, or somebody else changes the load balancer. If that lasts,
            // it is another conflict, such as a port that is in use.
            Err(error) if error.kind() == ErrorKind::Conflict && op.pending_for() < MAX_LOCKED => {
                observed.status = ProvisioningStatus::Pending;
                return Ok(observed);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(observed)
}

/// Updates the observed state after a step.
fn record_step<W: Clone, L: Clone>(
    observed: &mut SimpleLoadBalancerSpec<SteppedSettings<W, L>>,
    step: &LoadBalancerStep<'_, W, L>,
) {
    let SimpleLoadBalancerSpec { settings, members } = observed;
    match step {
        LoadBalancerStep::ChangeWhole(whole) => settings.whole = (*whole).clone(),
        LoadBalancerStep::AddListener(key, listener)
        | LoadBalancerStep::ChangeListener(key, listener) => {
            settings.listeners.insert(*key, (*listener).clone());
        }
        LoadBalancerStep::RemoveListener(key) => drop(settings.listeners.remove(key)),
        LoadBalancerStep::AddMember(id) => drop(members.insert((*id).into())),
        LoadBalancerStep::RemoveMember(id) => drop(members.remove(*id)),
    }
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
