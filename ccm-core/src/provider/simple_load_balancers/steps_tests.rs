use std::{collections::BTreeSet, time::Duration};

use parking_lot::Mutex;
use proptest::prelude::*;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    k8s::{LbStatus, NodeView, ServiceView},
    provider::{
        FieldError, LbSupport,
        simple_load_balancers::{OwnershipTags, SimpleLoadBalancer},
    },
    write_gate::WriteGate,
};

type Spec = SimpleLoadBalancerSpec<SteppedSettings<u8, u8>>;

fn key(port: u16) -> ListenerKey {
    (NonZeroU16::new(port).unwrap(), Protocol::Tcp)
}

fn spec(whole: u8, listeners: &[(u16, u8)], members: &[&str]) -> Spec {
    SimpleLoadBalancerSpec {
        settings: SteppedSettings {
            whole,
            listeners: listeners
                .iter()
                .map(|(port, settings)| (key(*port), *settings))
                .collect(),
        },
        members: members.iter().map(|id| Box::from(*id)).collect(),
    }
}

fn describe(observed: &Spec, desired: &Spec) -> Vec<String> {
    plan_steps(observed, desired)
        .iter()
        .map(LoadBalancerStep::describe)
        .collect()
}

#[test]
fn members_come_before_listeners_and_leave_last() {
    let observed = spec(1, &[(80, 1), (81, 1)], &["a", "b"]);
    let desired = spec(2, &[(80, 2), (443, 1)], &["b", "c"]);
    assert_eq!(
        describe(&observed, &desired),
        [
            "remove listener 81/TCP",
            "change the settings",
            "change listener 80/TCP",
            "add member c",
            "add listener 443/TCP",
            "remove member a",
        ]
    );
    assert!(describe(&desired, &desired).is_empty());
}

fn specs() -> impl Strategy<Value = Spec> {
    let listeners = proptest::collection::btree_map(1..6_u16, 0..3_u8, 0..5);
    let members = proptest::collection::btree_set(0..6_u8, 0..6);
    (0..3_u8, listeners, members).prop_map(|(whole, listeners, members)| SimpleLoadBalancerSpec {
        settings: SteppedSettings {
            whole,
            listeners: listeners
                .into_iter()
                .map(|(port, settings)| (key(port), settings))
                .collect(),
        },
        members: members
            .into_iter()
            .map(|id| id.to_string().into())
            .collect::<BTreeSet<Box<str>>>(),
    })
}

proptest! {
    /// Wherever a call is interrupted, the next one needs exactly the remaining steps.
    #[test]
    fn every_step_brings_the_load_balancer_closer(observed in specs(), desired in specs()) {
        let steps = plan_steps(&observed, &desired);
        let mut current = observed.clone();
        for (index, step) in steps.iter().enumerate() {
            prop_assert_eq!(&plan_steps(&current, &desired)[..], &steps[index..]);
            record_step(&mut current, step);
        }
        prop_assert_eq!(current, desired);
    }
}

/// A cloud that answers each step with the next of these.
#[derive(Default)]
struct FakeCloud {
    answers: Mutex<Vec<Result<Progress, CloudError>>>,
    steps: Mutex<usize>,
    /// The load balancers, and the answer to a deletion, if not "done".
    listed: Vec<SimpleLoadBalancer<SteppedSettings<u8, u8>>>,
    deletion: Option<CloudError>,
}

#[async_trait]
impl SimpleLoadBalancers for FakeCloud {
    type Settings = SteppedSettings<u8, u8>;

    fn support(&self) -> LbSupport {
        LbSupport::default()
    }

    fn settings(&self, _: &ServiceView) -> Result<Self::Settings, Vec<FieldError>> {
        Ok(spec(1, &[(80, 1)], &[]).settings)
    }

    fn member(&self, node: &NodeView) -> Option<Box<str>> {
        Some((&*node.name).into())
    }

    async fn list_load_balancers(
        &self,
        _: &Op,
        _: Option<&str>,
    ) -> Result<Vec<SimpleLoadBalancer<Self::Settings>>, CloudError> {
        Ok(self.listed.clone())
    }

    async fn create_load_balancer(
        &self,
        _: &Op,
        _: Mutation,
        _: &OwnershipTags,
        _: &Spec,
    ) -> Result<SimpleLoadBalancer<Self::Settings>, CloudError> {
        Ok(created())
    }

    async fn update_load_balancer(
        &self,
        op: &Op,
        _: Mutation,
        observed: SimpleLoadBalancer<Self::Settings>,
        desired: &Spec,
    ) -> Result<SimpleLoadBalancer<Self::Settings>, CloudError> {
        update_in_steps(self, op, observed, desired).await
    }

    async fn delete_load_balancer(&self, _: &Op, _: Mutation, _: &str) -> Result<(), CloudError> {
        self.deletion.clone().map_or(Ok(()), Err)
    }
}

#[async_trait]
impl LoadBalancerSteps for FakeCloud {
    type Whole = u8;
    type Listener = u8;

    async fn apply_step(
        &self,
        _: &Op,
        _: Mutation,
        _: &str,
        _: LoadBalancerStep<'_, u8, u8>,
    ) -> Result<Progress, CloudError> {
        *self.steps.lock() += 1;
        let mut answers = self.answers.lock();
        if answers.is_empty() {
            return Ok(Progress::Done);
        }
        answers.remove(0)
    }
}

/// A load balancer right after its creation, without listeners and members.
fn created() -> SimpleLoadBalancer<SteppedSettings<u8, u8>> {
    SimpleLoadBalancer {
        id: "lb".into(),
        owner: OwnershipTags::default(),
        status: ProvisioningStatus::Active,
        addresses: vec!["203.0.113.1".parse().unwrap()],
        created: None,
        current: spec(1, &[], &[]),
    }
}

#[tokio::test]
async fn an_update_ends_at_the_step_that_is_not_done() {
    let op = Op::new("blue", CancellationToken::new(), WriteGate::always_open());
    let pending = Progress::Pending { after: Duration::from_secs(1), reason: "it runs on".into() };
    let locked = CloudError::new(ErrorKind::Conflict, "locked");
    let desired = spec(1, &[(80, 1)], &["a", "b"]);
    for (answer, steps) in [(Ok(Progress::Done), 3), (Ok(pending), 2), (Err(locked), 2)] {
        let is_done = matches!(answer, Ok(Progress::Done));
        let cloud = FakeCloud {
            answers: Mutex::new(vec![Ok(Progress::Done), answer]),
            ..FakeCloud::default()
        };
        let updated = update_in_steps(&cloud, &op, created(), &desired)
            .await
            .unwrap();
        assert_eq!(*cloud.steps.lock(), steps);
        let status = if is_done {
            ProvisioningStatus::Active
        } else {
            ProvisioningStatus::Pending
        };
        assert_eq!((updated.status, updated.current == desired), (status, is_done));
    }
    // A conflict that lasts is no lock.
    let cloud = FakeCloud {
        answers: Mutex::new(vec![Err(CloudError::new(ErrorKind::Conflict, "port in use"))]),
        ..FakeCloud::default()
    };
    let late = op.clone().with_pending_for(Duration::from_secs(301));
    let failed = update_in_steps(&cloud, &late, created(), &desired).await;
    assert_eq!(failed.unwrap_err().to_string(), "port in use");
    // Another error ends the call.
    let cloud = FakeCloud {
        answers: Mutex::new(vec![Err(CloudError::transient("no"))]),
        ..FakeCloud::default()
    };
    let failed = update_in_steps(&cloud, &op, created(), &desired).await;
    assert_eq!(failed.unwrap_err().to_string(), "no");
}

/// A load balancer that is active at once, but empty, must not be answered as done.
#[tokio::test]
async fn a_created_load_balancer_gets_what_it_lacks() {
    use crate::provider::{Backends, LbSpec, LoadBalancers, ReadMode, SourceRanges};
    let op = Op::new("blue", CancellationToken::new(), WriteGate::always_open());
    let cloud = FakeCloud::default();
    let want = LbSpec {
        cluster: "blue".into(),
        service: std::sync::Arc::new(ServiceView::named("default", "web")),
        sources: SourceRanges::Unset,
        backends: Backends::Nodes(vec![std::sync::Arc::new(NodeView::named("a"))]),
    };
    let outcome = cloud.ensure(&op, &want, ReadMode::Cached).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{:?}", outcome.result);
    assert_eq!(*cloud.steps.lock(), 2, "a listener and a member");
}

/// A deletion meets a load balancer that is locked, because an earlier change runs on.
#[tokio::test]
async fn the_deletion_of_a_locked_load_balancer_is_pending() {
    use crate::provider::{LbRef, LoadBalancers};
    let op = Op::new("blue", CancellationToken::new(), WriteGate::always_open());
    let reference = LbRef {
        uid: "u1".into(),
        namespace: "default".into(),
        name: "web".into(),
        class: None,
        annotations: BTreeMap::new(),
        status: LbStatus::default(),
        last_observed: None,
    };
    let owner = OwnershipTags {
        cluster: "blue".into(),
        uid: "u1".into(),
        ..OwnershipTags::default()
    };
    let locked = CloudError::new(ErrorKind::Conflict, "423 Locked");
    let minute = Duration::from_secs(60);
    let pending = |after, reason: &str| Ok(Progress::Pending { after, reason: reason.into() });
    let is_locked = "load balancer lb is locked: 423 Locked";
    let answers = [
        (None, pending(Duration::from_secs(1), "load balancer lb is being deleted")),
        (Some(locked.clone()), pending(Duration::from_secs(1), is_locked)),
        (Some(locked.with_retry_after(minute)), pending(minute, is_locked)),
        (Some(CloudError::transient("no")), Err("no".to_owned())),
    ];
    for (deletion, expected) in answers {
        let listed = vec![SimpleLoadBalancer { owner: owner.clone(), ..created() }];
        let cloud = FakeCloud { listed, deletion, ..FakeCloud::default() };
        let deleted = cloud.delete(&op, &reference).await;
        assert_eq!(deleted.map_err(|error| error.to_string()), expected);
    }
}
