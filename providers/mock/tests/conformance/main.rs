//! The mock keeps the rules of the provider conformance kit, those for instances also over `endpoint`; each planted bug
//! breaks exactly the rules that are about it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test, and one planted bug panics")]

mod load_balancers;
mod planted;
mod planted_balancers;
mod planted_routes;
mod routes;
mod stage;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::provider::CloudProvider;
use ccm_mock::{
    CloudConfig, MockCloud, MockProvider, bind_admin,
    cloud::{CallHook, Fault, FaultError, FaultSpec, InstanceSpec, Operation, PowerState},
    serve_admin,
};
use ccm_testkit::conformance::{InjectedFault, InstanceCloud, Report, check_instances};
use tokio_util::sync::CancellationToken;

use planted::{Bug, Planted};

/// The mock cloud as the kit drives it.
struct Scripted(MockCloud);

impl Scripted {
    fn power(&self, node: &str, power: PowerState) -> anyhow::Result<()> {
        let instance = self.0.instance(node).ok_or_else(|| anyhow::anyhow!("there is no instance {node}"))?;
        self.0.put_instance(node, InstanceSpec { power_state: Some(power), ..instance.into() })?;
        Ok(())
    }
}

struct Slow(Duration);

#[async_trait]
impl CallHook for Slow {
    async fn before(&self, _: u64, _: Operation) {
        tokio::time::sleep(self.0).await;
    }

    async fn after(&self, _: u64, _: Operation) {}
}

#[async_trait]
impl InstanceCloud for Scripted {
    async fn create(&self, node: &str) -> anyhow::Result<()> {
        let labels = [("example.com/rack".to_owned(), "r1".to_owned())].into();
        self.0.put_instance(node, InstanceSpec { additional_labels: Some(labels), ..InstanceSpec::default() })?;
        Ok(())
    }

    async fn stop(&self, node: &str) -> anyhow::Result<()> {
        self.power(node, PowerState::Stopped)
    }

    async fn start(&self, node: &str) -> anyhow::Result<()> {
        self.power(node, PowerState::Running)
    }

    async fn terminate(&self, node: &str) -> anyhow::Result<()> {
        self.power(node, PowerState::Terminated)
    }

    async fn delete(&self, node: &str) -> anyhow::Result<()> {
        self.0.delete_instance(node);
        Ok(())
    }

    async fn inject(&self, fault: InjectedFault) -> anyhow::Result<bool> {
        self.0.set_faults(vec![crate::fault(Operation::DescribeInstances, fault, false)]);
        Ok(true)
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        self.0.set_hook(Some(Arc::new(Slow(latency))));
        Ok(true)
    }

    async fn restore(&self) -> anyhow::Result<()> {
        self.0.set_faults(Vec::new());
        self.0.set_hook(None);
        Ok(())
    }

    async fn calls(&self) -> anyhow::Result<u64> {
        Ok(self.0.calls().describe_instances)
    }

    async fn fingerprint(&self) -> anyhow::Result<String> {
        Ok(format!("{:?}", (self.0.instances(), self.0.load_balancers(), self.0.routes())))
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        ["mock://", "mock:///node", "mock://region", "mock://mock-region/", "mock://mock-region/a/b"]
            .map(str::to_owned)
            .to_vec()
    }
}

/// Makes the mock's fault that the kit means.
fn fault(operation: Operation, fault: InjectedFault, answer_lost: bool) -> Fault {
    let (error, after) = match fault {
        InjectedFault::Denied => (FaultError::PermissionDenied, None),
        InjectedFault::Throttled(after) => (FaultError::Throttled, Some(after.as_secs_f64())),
        InjectedFault::Invalid => (FaultError::Invalid, None),
        InjectedFault::Transient => (FaultError::Transient, None),
    };
    let spec = FaultSpec {
        operation: Some(operation),
        error: Some(error),
        retry_after_seconds: after,
        answer_lost,
        ..FaultSpec::default()
    };
    Fault::new(spec).unwrap()
}

fn cloud() -> MockCloud {
    MockCloud::new(&CloudConfig::default()).unwrap()
}

/// Runs the kit on the mock with a bug in it, in virtual time.
async fn check_planted(bug: Option<Bug>) -> Report {
    let cloud = cloud();
    let make = {
        let cloud = cloud.clone();
        move || {
            let provider = MockProvider::over(cloud.clone());
            async move {
                Ok(match bug {
                    Some(bug) => Arc::new(Planted::new(provider, bug)) as Arc<dyn CloudProvider>,
                    None => Arc::new(provider),
                })
            }
        }
    };
    let report = check_instances(make, &Scripted(cloud.clone())).await;
    assert!(cloud.instances().is_empty(), "the kit leaves nothing behind: {:?}", cloud.instances());
    report
}

#[tokio::test(start_paused = true)]
async fn the_mock_keeps_every_rule() {
    let report = check_planted(None).await;
    assert!(report.passed(), "{report}");
    assert!(report.cases().iter().all(|case| case.outcome == ccm_testkit::conformance::Outcome::Passed), "{report}");
    assert!(report.junit().contains("failures=\"0\" skipped=\"0\""), "{}", report.junit());
}

#[tokio::test]
async fn the_mock_keeps_every_rule_at_an_endpoint() {
    let cloud = cloud();
    let listener = bind_admin(&":0".parse().unwrap()).await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    let cancel = CancellationToken::new();
    let server = tokio::spawn(serve_admin(cloud.clone(), listener, cancel.clone()));
    let config = CloudConfig { endpoint: Some(endpoint), ..CloudConfig::default() };
    let make = move || {
        let config = config.clone();
        async move { Ok(Arc::new(MockProvider::new(&config).await?) as Arc<dyn CloudProvider>) }
    };
    let report = check_instances(make, &Scripted(cloud)).await;
    assert!(report.passed(), "{report}");
    cancel.cancel();
    server.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_planted_bug_breaks_exactly_its_rules() {
    let mut wrong = Vec::new();
    for (bug, rules) in Bug::ALL {
        let report = check_planted(Some(bug)).await;
        let broken: Vec<_> = report.failures().map(|case| case.rule).collect();
        if broken != rules {
            wrong.push(format!("{bug:?}: expected {rules:?}\n{report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_has_a_bug_that_breaks_it() {
    let broken: Vec<_> = Bug::ALL.iter().flat_map(|(_, rules)| rules.iter().copied()).collect();
    for rule in &ccm_testkit::conformance::INSTANCE_RULES {
        assert!(broken.contains(&rule.id), "nothing shows that {} can fail", rule.id);
    }
}
