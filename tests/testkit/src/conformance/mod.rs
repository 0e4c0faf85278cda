//! Provider conformance kit: the rules that every provider must keep, checked against a cloud that
//! can be scripted.
//!
//! Three suites, one per capability: [`check_instances`], [`check_load_balancers`] (with what the
//! inventory says of them) and [`check_routes`]. An author brings an async constructor of the
//! provider and adapters that look at the cloud behind it and change it, [`InstanceCloud`] for the
//! first and [`FaultyCloud`] with [`LoadBalancerCloud`] and [`RouteCloud`] for the others; each
//! suite answers a [`Report`]:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use ccm_core::provider::CloudProvider;
//! # use ccm_testkit::conformance::{InstanceCloud, check_instances};
//! # async fn new_provider() -> anyhow::Result<Arc<dyn CloudProvider>> { anyhow::bail!("yours") }
//! # async fn example(cloud: impl InstanceCloud) {
//! let report = check_instances(new_provider, &cloud).await;
//! assert!(report.passed(), "{report}");
//! # }
//! ```
//!
//! What is changed in the cloud is tried at every step: an error, a lost answer and a cancellation
//! at each call, in the same process and in a new one. A provider or an adapter that hangs or
//! panics breaks the rule at hand and does not end the run, whose time is bounded ([`Limits`]).
//! [`runner::run`] makes a program of suites, which also outlives code that keeps its thread, and
//! panics in tasks that nobody awaits.
//!
//! Code that keeps its thread (a blocking client, a sleep or a lock without await) cannot be
//! stopped from within. When a rule that one of the three functions checks has not ended ten
//! seconds after its limit (less, where the limit is less than a second), and does not even notice
//! that it is woken, they print the report as far as it goes and abort the process, with all tests
//! in it. They see it where it is the rule's own task that keeps its thread and, on a runtime of
//! one thread, where any task does. Code that keeps it for less than the limit is not found,
//! neither here nor by the runner: time that is paused does not show it.
//!
//! [`CloudProvider::start`] is called by the rules about it alone. All others see a provider as its
//! constructor made it.
//!
//! Rules are judged apart: each uses instances and, where answers could be remembered, providers of
//! its own, and a rule that cannot be judged because another one is broken names that one instead
//! of failing too.

mod call_script;
mod context;
mod faults;
mod instances;
mod load_balancers;
mod progress;
mod report;
mod routes;
mod rule;
pub mod runner;
mod syntax;
mod time_limit;

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudProvider, ErrorKind},
};
use futures::future::BoxFuture;

pub use call_script::CallScript;
pub use faults::{CallCount, CallFaultKind, FaultyCloud, InjectedCallFault};
pub use instances::INSTANCE_RULES;
pub use load_balancers::{
    AllowedSources, CloudLoadBalancer, LOAD_BALANCER_RULES, LoadBalancerCloud,
};
pub use progress::SuiteProgress;
pub use report::{Case, Outcome, Report};
pub use routes::{CloudRoute, ROUTE_RULES, RouteCloud};
pub use rule::Rule;
pub use time_limit::Limits;

/// Changes the cloud behind the provider under test.
///
/// A change is complete when its function returns: an instance that was stopped no longer runs. An
/// error fails the rule that asked for the change.
#[async_trait]
pub trait InstanceCloud: Send + Sync + 'static {
    /// Creates a running instance for the node of this name (lower-case letters, digits, dashes;
    /// unique in the run).
    async fn create(&self, node: &str) -> anyhow::Result<()>;

    /// Shuts an instance down, so that it can be started again.
    async fn stop(&self, node: &str) -> anyhow::Result<()>;

    /// Starts a stopped instance.
    async fn start(&self, node: &str) -> anyhow::Result<()>;

    /// Ends an instance for good, still listed if the cloud has that state; otherwise the same as
    /// `delete`.
    async fn terminate(&self, node: &str) -> anyhow::Result<()>;

    /// Removes every trace of an instance; succeeds on nothing.
    async fn delete(&self, node: &str) -> anyhow::Result<()>;

    /// Makes the node as its kubelet registers it: without provider ID, with the facts that the
    /// provider asks for in [`CloudProvider::node_fields`].
    fn node(&self, name: &str) -> NodeView {
        NodeView::named(name)
    }

    /// Makes the cloud answer questions about instances with an error until
    /// [`restore`](Self::restore); `false` when it cannot.
    async fn inject(&self, fault: InjectedFault) -> anyhow::Result<bool>;

    /// Makes the cloud take this long for an answer until [`restore`](Self::restore); `false` when
    /// it cannot.
    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool>;

    /// Tells whether an answer that throttles says when to come again. Where no answer of the cloud
    /// does, there is nothing to hand on, and the rule about that is not checked.
    fn names_pauses(&self) -> bool {
        true
    }

    /// Returns secrets that the provider knows, such as passwords and tokens, none of which may be
    /// read anywhere; none by default.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns how long a run may take.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Longest time that one call takes by itself. Zero, the default, is right where tokio's time
    /// is paused.
    fn answer_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns how many instances are made to show that none is overlooked: more than a page of the
    /// cloud's listings has. 120 by default.
    fn many(&self) -> usize {
        120
    }

    /// Ends injected faults and slowness.
    async fn restore(&self) -> anyhow::Result<()>;

    /// Returns how many calls about instances the cloud has seen.
    async fn calls(&self) -> anyhow::Result<u64>;

    /// Returns a text that changes when anything in the cloud does, other than call counts.
    async fn fingerprint(&self) -> anyhow::Result<String>;

    /// Returns provider IDs of the provider's own scheme that mean nothing.
    fn malformed_provider_ids(&self) -> Vec<String>;

    /// Returns provider IDs of other clouds. The default has those of well-known ones; a provider
    /// leaves out its own.
    fn foreign_provider_ids(&self) -> Vec<String> {
        [
            "aws:///eu-1a/i-0123456789abcdef0",
            "gce://project/zone/name",
            "openstack:///8f9e5b3a",
            "kind://a/b/c",
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

/// A failure of the cloud, and the kind of error that the provider must make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// Credentials are refused or not allowed to do this: [`ErrorKind::Denied`].
    Denied,
    /// Called too often, come again after this time: [`ErrorKind::Throttled`] with
    /// [`retry_after`](ccm_core::provider::CloudError::retry_after), at least as long.
    Throttled(Duration),
    /// The cloud calls the request invalid: [`ErrorKind::InvalidInput`].
    Invalid,
    /// A 5xx answer or a broken connection: [`ErrorKind::Transient`].
    Transient,
}

impl InjectedFault {
    /// Every fault.
    pub const ALL: [Self; 4] =
        [Self::Denied, Self::Throttled(Duration::from_secs(7)), Self::Invalid, Self::Transient];

    /// Returns the kind that belongs to it.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Denied => ErrorKind::Denied,
            Self::Throttled(_) => ErrorKind::Throttled,
            Self::Invalid => ErrorKind::InvalidInput,
            Self::Transient => ErrorKind::Transient,
        }
    }
}

/// Constructor of the provider under test, boxed.
type Make =
    Box<dyn Fn() -> BoxFuture<'static, anyhow::Result<Arc<dyn CloudProvider>>> + Send + Sync>;

/// Checks every rule about instances. Takes some hundred calls; instances are deleted afterwards.
///
/// `make` is called once or more per rule and must give a provider that remembers nothing.
pub async fn check_instances<F, Fut>(make: F, cloud: &dyn InstanceCloud) -> Report
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
{
    SuiteProgress::alone().instances(make, cloud).await
}

/// Checks every rule about load balancers, several of which spoil each cloud call in turn: some
/// thousand calls, under paused time within seconds.
///
/// `make` is called many times per rule and must give a provider that remembers nothing.
pub async fn check_load_balancers<F, Fut>(make: F, cloud: &dyn LoadBalancerCloud) -> Report
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
{
    SuiteProgress::alone().load_balancers(make, cloud).await
}

/// Checks every rule about routes. Otherwise as [`check_load_balancers`].
pub async fn check_routes<F, Fut>(make: F, cloud: &dyn RouteCloud) -> Report
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
{
    SuiteProgress::alone().routes(make, cloud).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDE: &str = include_str!("../../../../docs/provider-guide.md");

    /// Makes the table that the guide shall have.
    fn rows<C: ?Sized>(rules: &[Rule<C>]) -> String {
        let row =
            |rule: &Rule<C>| format!("| `{}` | {} |", rule.id, rule.expected.replace('<', "\\<"));
        rules.iter().map(row).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_guide_lists_the_rules_as_they_are() {
        for table in [rows(&INSTANCE_RULES), rows(&LOAD_BALANCER_RULES), rows(&ROUTE_RULES)] {
            assert!(GUIDE.contains(&table), "docs/provider-guide.md lacks this table:\n{table}");
        }
    }
}
