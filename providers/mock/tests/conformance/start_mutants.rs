//! Bugs in the start of a provider.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ccm_core::{
    k8s::NodeView,
    provider::{
        CloudError, CloudProvider as _, ErrorKind, InstanceQuery, Instances, MetadataScope, Op,
        ProviderContext,
    },
};
use ccm_mock::{
    MockCloud, MockProvider,
    cloud::{
        CloudApi, InstanceSpec, LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec, Members,
    },
};

use tokio::time::Instant;

use crate::{
    instance_mutants::{Bug, MutantProvider},
    scripted::SECRET,
};

/// What a start gives the cloud.
const PATIENCE: Duration = Duration::from_secs(10);

impl MutantProvider {
    /// Starts; the mock itself needs no start.
    // length: one arm for each bug
    pub(crate) async fn begin(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        let cloud = self.inner.cloud().unwrap();
        match self.bug {
            Bug::StartWaitsForCloud => {
                while let Err(error) = self.asks(&ctx).await {
                    tokio::time::sleep(error.retry_after().unwrap_or(Duration::from_secs(1))).await;
                }
                Ok(())
            }
            Bug::StartFails => Err(CloudError::invalid_input("there is no section [Start]")),
            Bug::StartFailsForGood => self.asks(&ctx).await.map_err(|error| {
                CloudError::invalid_input("the cloud is not there").with_source(error)
            }),
            Bug::StartTellsSecrets => {
                let told = |error: CloudError| {
                    CloudError::new(error.kind(), format!("log in with {SECRET}"))
                };
                self.asks(&ctx).await.map_err(told)
            }
            Bug::StartRegistersAgain => {
                let gauge =
                    prometheus::Gauge::new("planted_started", "Whether it started.").unwrap();
                let refused = |error| {
                    CloudError::invalid_input("metrics cannot be offered").with_source(error)
                };
                ctx.metrics.register(Box::new(gauge)).map_err(refused)?;
                self.asks(&ctx).await
            }
            Bug::StartRemembersFailure => {
                if self.broken.load(Ordering::Relaxed) {
                    return Err(CloudError::transient("it did not work before"));
                }
                let answer = self.asks(&ctx).await;
                self.broken.store(answer.is_err(), Ordering::Relaxed);
                answer
            }
            Bug::StartMakesAnother => match ctx.write_gate.may_write() {
                Ok(()) => makes(cloud, cloud.load_balancers().len()).await,
                Err(_) => Ok(()),
            },
            Bug::StartWritesInShadow => {
                // Without asking the gate.
                let nodes = ctx.nodes.list();
                for node in nodes
                    .iter()
                    .filter(|node| cloud.instance(&node.name).is_some())
                {
                    let spec = InstanceSpec {
                        zone: Some("elsewhere".to_owned()),
                        ..InstanceSpec::default()
                    };
                    cloud.put_instance(&node.name, spec).unwrap();
                }
                Ok(())
            }
            Bug::StartNeedsLeadership => ctx
                .write_gate
                .may_write()
                .map_err(|error| CloudError::new(ErrorKind::NotLeader, error.to_string())),
            Bug::StartLeavesLoop => {
                let provider = MockProvider::new_in_process(cloud.clone());
                // Nobody ends it, which is the bug.
                drop(tokio::spawn(async move {
                    loop {
                        tokio::time::sleep(Duration::from_secs(30)).await;
                        asks(provider.instances().unwrap(), &ctx).await.ok();
                    }
                }));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Asks the cloud for something, as a start does that looks whether the cloud is there.
    async fn asks(&self, ctx: &ProviderContext) -> Result<(), CloudError> {
        asks(self.real(), ctx).await
    }
}

async fn asks(instances: &dyn Instances, ctx: &ProviderContext) -> Result<(), CloudError> {
    let op = Op::new(ctx.cluster_name.clone(), ctx.cancel.clone(), ctx.write_gate.clone());
    let op = op.with_deadline(Instant::now() + PATIENCE);
    let node = Arc::new(NodeView::named("myself"));
    let query = InstanceQuery {
        node,
        scope: MetadataScope::PowerState,
        max_age: Duration::ZERO,
    };
    let answers = instances.describe(&op, &[query]).await?;
    answers
        .into_iter()
        .next()
        .map_or(Ok(()), |answer| answer.map(drop))
}

/// Makes something for all Services to share.
async fn makes(cloud: &MockCloud, number: usize) -> Result<(), CloudError> {
    let key = LoadBalancerKey {
        cluster: "conformance".to_owned(),
        uid: format!("shared-{number}"),
        name: format!("shared-{number}"),
        service: "none/none".to_owned(),
    };
    let settings = LoadBalancerSettings::default();
    let spec = LoadBalancerSpec {
        key,
        settings,
        members: Members::nodes(["n1"]),
        activation: None,
    };
    let made = tokio::time::timeout(PATIENCE, cloud.create_load_balancer(&spec)).await;
    made.unwrap_or_else(|_| Err(CloudError::transient("make something for all Services")))
        .map(drop)
}
