//! Conformance tests for cloud providers.
//!
//! The kit has one suite per capability: [`check_instances`], [`check_load_balancers`] (with the
//! inventory) and [`check_routes`]. Each runs a provider against a scriptable cloud, checks a list
//! of rules and returns a [`Report`]. Provider authors write an async constructor of the provider,
//! and adapters that inspect and change the cloud behind it: [`InstanceCloud`] for instances,
//! [`FaultyCloud`] with [`LoadBalancerCloud`] or [`RouteCloud`] for the other two. If all requests
//! pass one [`CallScript`], as those to a simulated REST cloud do through [`ScriptedRest`], an
//! adapter returns the script, and has nothing else to do about faults and call counts.
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
//! The suites for load balancers and routes inject an error, a lost answer and a cancellation at
//! each cloud call, in the same process and in a new one. A provider or an adapter that hangs or
//! panics breaks the current rule, and the run continues with the next one. [`Limits`] bounds the
//! run. [`runner::run`] builds a test program from suites. Such a program also survives code that
//! blocks its thread, and reports panics in tasks that nobody awaits.
//!
//! Code that blocks its thread (a blocking client, a sleep or a lock without await) cannot be
//! stopped from inside. If a rule has not ended ten seconds after its limit (sooner if the limit is
//! less than a second) and does not react when it is woken, the three functions print the report so
//! far and abort the process with all its tests. They detect blocking in the rule's own task and,
//! on a single-threaded runtime, in any task. Neither they nor the runner detect code that blocks
//! for less than the limit: paused time does not show it.
//!
//! Only the rules about [`CloudProvider::start`] call it. All others use the provider as its
//! constructor returned it.
//!
//! Rules are independent: each creates its own instances, and its own providers if a provider could
//! cache answers. A rule that cannot be judged because another rule is broken names that rule
//! instead of failing as well.

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
mod simulated_rest;
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
use call_script::required_script;
pub use faults::{CallCount, CallFaultKind, FaultyCloud, InjectedCallFault};
pub use instances::INSTANCE_RULES;
pub use load_balancers::{
    AllowedSources, CloudLoadBalancer, LOAD_BALANCER_RULES, LoadBalancerCloud,
};
pub use progress::SuiteProgress;
pub use report::{Case, Outcome, Report};
pub use routes::{CloudRoute, ROUTE_RULES, RouteCloud};
pub use rule::Rule;
pub use simulated_rest::{
    MutantTransport, ScriptedRest, SimulatedApi, TransportMutant, edit_json, json_response,
};
pub use time_limit::Limits;

/// Changes the cloud behind the provider under test.
///
/// A change is complete when its function returns: for example, a stopped instance no longer runs.
/// An error fails the rule that called the function.
#[async_trait]
pub trait InstanceCloud: Send + Sync + 'static {
    /// Creates a running instance for the node `node`. Names consist of lower-case letters, digits
    /// and dashes, and are unique in the run.
    async fn create(&self, node: &str) -> anyhow::Result<()>;

    /// Shuts an instance down. It can be started again.
    async fn stop(&self, node: &str) -> anyhow::Result<()>;

    /// Starts a stopped instance.
    async fn start(&self, node: &str) -> anyhow::Result<()>;

    /// Terminates an instance. If the cloud has such a state, it still lists the instance;
    /// otherwise the same as [`delete`](Self::delete).
    async fn terminate(&self, node: &str) -> anyhow::Result<()>;

    /// Deletes an instance completely. Succeeds if it does not exist.
    async fn delete(&self, node: &str) -> anyhow::Result<()>;

    /// Returns the Node as its kubelet registers it: without provider ID, and with the fields that
    /// the provider requests in [`CloudProvider::node_fields`].
    fn node(&self, name: &str) -> NodeView {
        NodeView::named(name)
    }

    /// Returns the script that all calls follow, if there is one. It implements
    /// [`inject`](Self::inject), [`slow_down`](Self::slow_down), [`restore`](Self::restore) and
    /// [`calls`](Self::calls). The default is `None`.
    fn call_script(&self) -> Option<&CallScript> {
        None
    }

    /// Makes all calls about instances fail until [`restore`](Self::restore). Returns `false` if
    /// the adapter cannot inject this fault.
    async fn inject(&self, fault: InjectedFault) -> anyhow::Result<bool> {
        required_script(self.call_script())?
            .start(Some(InjectedCallFault::fail(1, fault).lasting()));
        Ok(true)
    }

    /// Delays every answer of the cloud by `latency` until [`restore`](Self::restore). Returns
    /// `false` if the adapter cannot.
    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        required_script(self.call_script())?.slow_down(latency);
        Ok(true)
    }

    /// Returns true if the cloud's throttling errors carry a retry delay. If they do not, the rule
    /// `retry-after` is not checked.
    fn reports_retry_after(&self) -> bool {
        true
    }

    /// Returns the secrets that the provider knows, such as passwords and tokens. They must not
    /// appear in any error or event. None by default.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns how long a run may take.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Returns the maximum duration of one cloud call. Zero, the default, is right if tokio's time
    /// is paused.
    fn answer_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the number of instances for the rule `all-of-many`: more than fit on one page of the
    /// cloud's listings. 120 by default.
    fn many(&self) -> usize {
        120
    }

    /// Removes injected faults and delays.
    async fn restore(&self) -> anyhow::Result<()> {
        required_script(self.call_script())?.reset();
        Ok(())
    }

    /// Returns the number of calls about instances that the cloud has received.
    async fn calls(&self) -> anyhow::Result<u64> {
        Ok(required_script(self.call_script())?.tally().calls())
    }

    /// Returns a text that changes when anything in the cloud changes, except call counts.
    async fn fingerprint(&self) -> anyhow::Result<String>;

    /// Returns malformed provider IDs that have the provider's own scheme.
    fn malformed_provider_ids(&self) -> Vec<String>;

    /// Returns provider IDs of other clouds. The default lists well-known clouds; override it to
    /// leave out your own.
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

/// An error that the cloud returns, with the [`ErrorKind`] that the provider must map it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// Credentials that are rejected or lack a permission: [`ErrorKind::Denied`].
    Denied,
    /// Throttling with this retry delay: [`ErrorKind::Throttled`] with a
    /// [`retry_after`](ccm_core::provider::CloudError::retry_after) of at least this delay.
    Throttled(Duration),
    /// A request that the cloud rejects as invalid: [`ErrorKind::InvalidInput`].
    Invalid,
    /// A 5xx response or a broken connection: [`ErrorKind::Transient`].
    Transient,
}

impl InjectedFault {
    /// Every fault.
    pub const ALL: [Self; 4] =
        [Self::Denied, Self::Throttled(Duration::from_secs(7)), Self::Invalid, Self::Transient];

    /// Returns the error kind that the provider must report for this fault.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Denied => ErrorKind::Denied,
            Self::Throttled(_) => ErrorKind::Throttled,
            Self::Invalid => ErrorKind::InvalidInput,
            Self::Transient => ErrorKind::Transient,
        }
    }
}

/// Boxed constructor of the provider under test.
type Make =
    Box<dyn Fn() -> BoxFuture<'static, anyhow::Result<Arc<dyn CloudProvider>>> + Send + Sync>;

/// Checks every rule for instances. This takes some hundred cloud calls. Instances are deleted
/// afterwards.
///
/// `make` is called at least once per rule and must return a provider with empty caches.
pub async fn check_instances<F, Fut>(make: F, cloud: &dyn InstanceCloud) -> Report
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
{
    SuiteProgress::unwatched().instances(make, cloud).await
}

/// Checks every rule for load balancers. Several rules inject a fault into each cloud call in turn,
/// so this takes some thousand cloud calls; in paused time, that is seconds.
///
/// `make` is called many times per rule and must return a provider with empty caches.
pub async fn check_load_balancers<F, Fut>(make: F, cloud: &dyn LoadBalancerCloud) -> Report
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
{
    SuiteProgress::unwatched().load_balancers(make, cloud).await
}

/// Checks every rule for routes, like [`check_load_balancers`].
pub async fn check_routes<F, Fut>(make: F, cloud: &dyn RouteCloud) -> Report
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
{
    SuiteProgress::unwatched().routes(make, cloud).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders rules as the table that the guide must contain.
    fn rows<C: ?Sized>(rules: &[Rule<C>]) -> String {
        let row =
            |rule: &Rule<C>| format!("| `{}` | {} |", rule.id, rule.expected.replace('<', "\\<"));
        rules.iter().map(row).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_guide_lists_the_rules_as_they_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/provider-guide.md");
        let guide = std::fs::read_to_string(path).unwrap();
        for table in [rows(&INSTANCE_RULES), rows(&LOAD_BALANCER_RULES), rows(&ROUTE_RULES)] {
            assert!(guide.contains(&table), "docs/provider-guide.md lacks this table:\n{table}");
        }
    }
}
