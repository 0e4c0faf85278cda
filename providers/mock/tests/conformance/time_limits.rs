//! The kit ends, and says what is wrong, whatever a provider or an adapter does.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{NodeView, ServiceView},
    provider::CloudProvider,
};
use ccm_mock::{CloudConfig, MockCloud, MockProvider};
use ccm_testkit::conformance::{
    CallCount, CloudLoadBalancer, CloudRoute, FaultyCloud, InjectedCallFault, InjectedFault,
    InstanceCloud, Limits, LoadBalancerCloud, Report, RouteCloud, check_instances,
    check_load_balancers, check_routes,
};
use ipnet::IpNet;

use crate::{
    adapter::MockAdapter,
    misbehaving::{MisbehavingMethod, MisbehavingProvider, Misbehaviour},
    scripted::Scripted,
    separate_process::{self, SeparateProcess},
};

const SUITES: [&str; 3] = ["instances", "load balancers", "routes"];
/// For what ends by itself, or when the virtual time is over.
const LONG: Limits = Limits {
    rule: Duration::from_secs(60),
    suite: Duration::from_secs(120),
};
/// For what only the wall clock ends.
const SHORT: Limits = Limits {
    rule: Duration::from_millis(100),
    suite: Duration::from_millis(400),
};

/// An adapter that goes wrong in one of its methods.
#[derive(Clone)]
pub(crate) struct Adapter<C> {
    inner: C,
    at: &'static str,
    how: AdapterFailure,
    limits: Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdapterFailure {
    Fails,
    Hangs,
    Panics,
}

impl<C> Adapter<C> {
    /// One that does what it should, within limits.
    pub(crate) fn sound(inner: C, limits: Limits) -> Self {
        Self { inner, at: "nowhere", how: AdapterFailure::Fails, limits }
    }

    async fn meets(&self, method: &str) -> anyhow::Result<()> {
        if self.at != method {
            return Ok(());
        }
        match self.how {
            AdapterFailure::Fails => anyhow::bail!("planted in {method}"),
            AdapterFailure::Hangs => std::future::pending().await,
            AdapterFailure::Panics => panic!("planted in {method}"),
        }
    }
}

#[async_trait]
impl InstanceCloud for Adapter<Scripted> {
    async fn create(&self, node: &str) -> anyhow::Result<()> {
        self.meets("create").await?;
        self.inner.create(node).await
    }

    async fn stop(&self, node: &str) -> anyhow::Result<()> {
        self.meets("stop").await?;
        self.inner.stop(node).await
    }

    async fn start(&self, node: &str) -> anyhow::Result<()> {
        self.meets("start").await?;
        self.inner.start(node).await
    }

    async fn terminate(&self, node: &str) -> anyhow::Result<()> {
        self.meets("terminate").await?;
        self.inner.terminate(node).await
    }

    async fn delete(&self, node: &str) -> anyhow::Result<()> {
        self.meets("delete").await?;
        self.inner.delete(node).await
    }

    async fn inject(&self, fault: InjectedFault) -> anyhow::Result<bool> {
        self.meets("inject").await?;
        self.inner.inject(fault).await
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        self.meets("slow_down").await?;
        self.inner.slow_down(latency).await
    }

    async fn restore(&self) -> anyhow::Result<()> {
        self.meets("restore").await?;
        self.inner.restore().await
    }

    async fn calls(&self) -> anyhow::Result<u64> {
        self.meets("calls").await?;
        self.inner.calls().await
    }

    async fn fingerprint(&self) -> anyhow::Result<String> {
        self.meets("fingerprint").await?;
        self.inner.fingerprint().await
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        self.inner.malformed_provider_ids()
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

#[async_trait]
impl FaultyCloud for Adapter<MockAdapter> {
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView> {
        self.meets("add_node").await?;
        self.inner.add_node(name).await
    }

    async fn remove_node(&self, name: &str) -> anyhow::Result<()> {
        self.meets("remove_node").await?;
        self.inner.remove_node(name).await
    }

    async fn script(&self, trouble: Option<InjectedCallFault>) -> anyhow::Result<()> {
        self.meets("script").await?;
        self.inner.script(trouble).await
    }

    async fn call_count(&self) -> anyhow::Result<CallCount> {
        self.meets("tally").await?;
        self.inner.call_count().await
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        self.meets("slow_down").await?;
        self.inner.slow_down(latency).await
    }

    async fn reset(&self) -> anyhow::Result<()> {
        self.meets("reset").await?;
        self.inner.reset().await
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

#[async_trait]
impl LoadBalancerCloud for Adapter<MockAdapter> {
    async fn load_balancers(&self) -> anyhow::Result<Vec<CloudLoadBalancer>> {
        self.meets("balancers").await?;
        self.inner.load_balancers().await
    }

    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>> {
        self.meets("objects").await?;
        self.inner.objects().await
    }

    async fn add_foreign(&self, service: &ServiceView) -> anyhow::Result<bool> {
        self.meets("add_foreign").await?;
        LoadBalancerCloud::add_foreign(&self.inner, service).await
    }

    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        self.meets("other_cluster").await?;
        Ok(None)
    }

    async fn damage(&self, id: &str) -> anyhow::Result<bool> {
        self.meets("damage").await?;
        self.inner.damage(id).await
    }

    async fn activate_after(&self, time: Duration) -> anyhow::Result<bool> {
        self.meets("activate_after").await?;
        self.inner.activate_after(time).await
    }
}

#[async_trait]
impl RouteCloud for Adapter<MockAdapter> {
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>> {
        self.meets("routes").await?;
        self.inner.routes().await
    }

    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        self.meets("add_foreign").await?;
        RouteCloud::add_foreign(&self.inner, node, destination).await
    }

    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        self.meets("other_cluster").await?;
        Ok(None)
    }
}

/// Runs a suite on a provider that is wicked in one place.
async fn check_wicked(
    suite: &str,
    place: MisbehavingMethod,
    manner: Misbehaviour,
    limits: Limits,
) -> Report {
    if suite == "instances" {
        let cloud = MockCloud::new(&CloudConfig::default()).unwrap();
        let made = cloud.clone();
        let make = move || {
            let inner = MockProvider::new_in_process(made.clone());
            async move {
                Ok(Arc::new(MisbehavingProvider::new(inner, place, manner).await)
                    as Arc<dyn CloudProvider>)
            }
        };
        return check_instances(make, &Adapter::sound(Scripted(cloud), limits)).await;
    }
    let stage = MockAdapter::new(CloudConfig::default());
    let made = stage.clone();
    let make = move || {
        let inner = made.provider();
        async move {
            Ok(Arc::new(MisbehavingProvider::new(inner, place, manner).await)
                as Arc<dyn CloudProvider>)
        }
    };
    match suite {
        "routes" => check_routes(make, &Adapter::sound(stage, limits)).await,
        _ => check_load_balancers(make, &Adapter::sound(stage, limits)).await,
    }
}

/// Checks that the run says what it should, and how long it took.
async fn breaks(
    place: MisbehavingMethod,
    manner: Misbehaviour,
    rules: &[(&str, &str)],
    limits: Limits,
) {
    for (suite, rule) in rules {
        let began = Instant::now();
        let report = check_wicked(suite, place, manner, limits).await;
        let took = began.elapsed();
        let broken: Vec<_> = report.failures().map(|case| case.rule).collect();
        assert!(
            broken.contains(rule),
            "{place:?} {manner:?} does not break {rule} of {suite}:\n{report}"
        );
        assert!(
            took < limits.suite + 2 * limits.rule + GRACE,
            "{place:?} {manner:?}: {suite} took {took:?}"
        );
    }
}

/// What a loaded machine may take longer.
const GRACE: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn a_provider_that_hangs_or_panics_is_reported_in_virtual_time() {
    for place in MisbehavingMethod::ASYNC {
        for manner in [Misbehaviour::Hangs, Misbehaviour::Panics] {
            breaks(place, manner, place.rules(), LONG).await;
        }
    }
    for place in [
        MisbehavingMethod::Name,
        MisbehavingMethod::ClaimsNode,
        MisbehavingMethod::Limits,
        MisbehavingMethod::Supports,
        MisbehavingMethod::Interpret,
    ] {
        breaks(place, Misbehaviour::Panics, place.rules(), LONG).await;
    }
}

/// Nothing is ever idle there, so that the paused clock stands still.
#[tokio::test(start_paused = true)]
async fn a_provider_whose_pages_never_end_is_reported_in_virtual_time() {
    for place in MisbehavingMethod::ASYNC {
        let rules = match place {
            // Later rules may not be begun in time.
            MisbehavingMethod::Constructor
            | MisbehavingMethod::Describe
            | MisbehavingMethod::List
            | MisbehavingMethod::Apply
            | MisbehavingMethod::Start => place.rules(),
            _ => &[],
        };
        for (suite, rule) in rules {
            breaks(place, Misbehaviour::Pages, &[(suite, rule)], SHORT).await;
        }
        if rules.is_empty() {
            let report = check_wicked("load balancers", place, Misbehaviour::Pages, SHORT).await;
            assert!(!report.passed(), "{place:?}: {report}");
        }
    }
}

#[tokio::test]
async fn a_provider_that_hangs_is_reported_in_real_time() {
    for place in MisbehavingMethod::ASYNC {
        for suite in SUITES
            .iter()
            .filter(|suite| place.rules().iter().any(|(of, _)| of == *suite))
        {
            let began = Instant::now();
            let report = check_wicked(suite, place, Misbehaviour::Hangs, SHORT).await;
            let took = began.elapsed();
            assert!(!report.passed(), "{place:?}: {report}");
            assert!(
                took < SHORT.suite + 2 * SHORT.rule + GRACE,
                "{place:?}: {suite} took {took:?}"
            );
        }
    }
}

/// A plain test has no runner that could report it, so its process is aborted.
#[tokio::test]
async fn a_provider_that_keeps_its_thread_is_reported_before_the_process_ends() {
    let output = match separate_process::run(
        "time_limits::a_provider_that_keeps_its_thread_is_reported_before_the_process_ends",
    )
    .await
    {
        SeparateProcess::Here => {
            let report =
                check_wicked("instances", MisbehavingMethod::Describe, Misbehaviour::Blocks, SHORT)
                    .await;
            panic!("its process goes on: {report}");
        }
        SeparateProcess::Ended(output) => output,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code().is_none(),
        "it is aborted, and not by a failed test: {:?}\n{said}",
        output.status
    );
    assert!(
        said.contains("one-answer-per-query of instances: the rule blocks its thread"),
        "{said}"
    );
    assert!(
        said.contains("BROKEN   one-answer-per-query") && said.contains("observed: not started"),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_lies_is_found_out() {
    let lies = [
        (MisbehavingMethod::Describe, Misbehaviour::Lies, "instances", "found-by-name"),
        (MisbehavingMethod::Describe, Misbehaviour::TooFew, "instances", "one-answer-per-query"),
        (MisbehavingMethod::Describe, Misbehaviour::Others, "instances", "answers-in-order"),
        (MisbehavingMethod::Ensure, Misbehaviour::Lies, "load balancers", "ensure-makes-one"),
        (MisbehavingMethod::Ensure, Misbehaviour::Waits, "load balancers", "ensure-makes-one"),
        (MisbehavingMethod::Update, Misbehaviour::Lies, "load balancers", "update-members-only"),
        (MisbehavingMethod::Update, Misbehaviour::Waits, "load balancers", "update-members-only"),
        (
            MisbehavingMethod::Delete,
            Misbehaviour::Lies,
            "load balancers",
            "delete-removes-everything",
        ),
        (
            MisbehavingMethod::Delete,
            Misbehaviour::Waits,
            "load balancers",
            "delete-removes-everything",
        ),
        (MisbehavingMethod::Plan, Misbehaviour::Lies, "load balancers", "plan-names-changes"),
        (MisbehavingMethod::ListOwned, Misbehaviour::Lies, "load balancers", "owned-is-listed"),
        (MisbehavingMethod::ListOwned, Misbehaviour::TooFew, "load balancers", "owned-is-listed"),
        (
            MisbehavingMethod::DeleteOwned,
            Misbehaviour::Lies,
            "load balancers",
            "only-owned-is-deleted",
        ),
        (
            MisbehavingMethod::DeleteOwned,
            Misbehaviour::Waits,
            "load balancers",
            "only-owned-is-deleted",
        ),
        (MisbehavingMethod::List, Misbehaviour::Lies, "routes", "listed-as-made"),
        (MisbehavingMethod::List, Misbehaviour::TooFew, "routes", "listed-as-made"),
        (MisbehavingMethod::Apply, Misbehaviour::Lies, "routes", "listed-as-made"),
        (MisbehavingMethod::Apply, Misbehaviour::TooFew, "routes", "answers-in-order"),
        (MisbehavingMethod::Apply, Misbehaviour::Others, "routes", "answers-in-order"),
    ];
    for (place, manner, suite, rule) in lies {
        breaks(place, manner, &[(suite, rule)], LONG).await;
    }
}

/// Runs a suite on a sound provider with an adapter that goes wrong.
async fn check_adapter(suite: &str, at: &'static str, how: AdapterFailure) -> Report {
    let limits = LONG;
    if suite == "instances" {
        let cloud = MockCloud::new(&CloudConfig::default()).unwrap();
        let made = cloud.clone();
        let make = move || {
            let provider = MockProvider::new_in_process(made.clone());
            async move { Ok(Arc::new(provider) as Arc<dyn CloudProvider>) }
        };
        return check_instances(make, &Adapter { inner: Scripted(cloud), at, how, limits }).await;
    }
    let stage = MockAdapter::new(CloudConfig::default());
    let made = stage.clone();
    let make = move || {
        let provider = made.provider();
        async move { Ok(Arc::new(provider) as Arc<dyn CloudProvider>) }
    };
    let adapter = Adapter { inner: stage, at, how, limits };
    match suite {
        "routes" => check_routes(make, &adapter).await,
        _ => check_load_balancers(make, &adapter).await,
    }
}

// length: a table
#[tokio::test(start_paused = true)]
async fn an_adapter_that_goes_wrong_is_reported() {
    let methods: [(&str, &[&str]); 3] = [
        (
            "instances",
            &[
                "create",
                "stop",
                "start",
                "terminate",
                "delete",
                "inject",
                "slow_down",
                "restore",
                "calls",
                "fingerprint",
            ],
        ),
        (
            "load balancers",
            &[
                "add_node",
                "script",
                "tally",
                "slow_down",
                "reset",
                "balancers",
                "objects",
                "add_foreign",
                "other_cluster",
                "damage",
                "activate_after",
            ],
        ),
        (
            "routes",
            &[
                "add_node",
                "remove_node",
                "script",
                "tally",
                "slow_down",
                "reset",
                "routes",
                "add_foreign",
                "other_cluster",
            ],
        ),
    ];
    for (suite, methods) in methods {
        for method in methods {
            for how in [AdapterFailure::Fails, AdapterFailure::Hangs, AdapterFailure::Panics] {
                let began = Instant::now();
                let report = check_adapter(suite, method, how).await;
                let said = match how {
                    AdapterFailure::Fails => {
                        format!("the cloud's adapter failed: planted in {method}")
                    }
                    AdapterFailure::Hangs => "did not end within".to_owned(),
                    AdapterFailure::Panics => format!("panicked: planted in {method}"),
                };
                assert!(
                    report.failures().any(|case| case.observed.contains(&said)),
                    "{suite}, {method} {how:?}: {report}"
                );
                assert!(began.elapsed() < LONG.suite + 2 * LONG.rule, "{suite}, {method} {how:?}");
            }
        }
    }
}
