//! The mock cloud as the kit's suite for instances drives it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_mock::{
    MockCloud,
    cloud::{CallHook, Fault, FaultError, FaultSpec, InstanceSpec, Operation, PowerState},
};
use ccm_testkit::conformance::{InjectedFault, InstanceCloud};

/// What a careless provider gives away. The mock itself has no secrets.
pub(crate) const SECRET: &str = "correct-horse-battery";

/// The mock cloud as the kit drives it.
pub(crate) struct Scripted(pub(crate) MockCloud);

impl Scripted {
    fn power(&self, node: &str, power: PowerState) -> anyhow::Result<()> {
        let instance = self
            .0
            .instance(node)
            .ok_or_else(|| anyhow::anyhow!("there is no instance {node}"))?;
        self.0
            .put_instance(node, InstanceSpec { power_state: Some(power), ..instance.into() })?;
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
        self.0.put_instance(
            node,
            InstanceSpec { additional_labels: Some(labels), ..InstanceSpec::default() },
        )?;
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

    async fn inject(&self, kind: InjectedFault) -> anyhow::Result<bool> {
        self.0
            .set_faults(vec![fault(Operation::DescribeInstances, kind, false)]);
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

    fn secrets(&self) -> Vec<String> {
        vec![SECRET.to_owned()]
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        [
            "mock://",
            "mock:///node",
            "mock://region",
            "mock://mock-region/",
            "mock://mock-region/a/b",
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

/// Makes the mock's fault that the kit means.
pub(crate) fn fault(operation: Operation, fault: InjectedFault, answer_lost: bool) -> Fault {
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
