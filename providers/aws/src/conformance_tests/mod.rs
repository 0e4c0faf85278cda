//! The provider keeps the rules of the conformance kit on the in-memory AWS, in virtual time.

#[path = "../../tests/moto/conformance/adapter/mod.rs"]
mod stage;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_testkit::conformance::{
    CallFaultKind, Outcome, Report, check_instances, check_load_balancers, check_routes,
};
use parking_lot::Mutex;

use self::stage::{
    AwsAdapter,
    account::{AccountBackend, InstanceChange, OURS, SharedVpc, THEIRS, refusal},
};
use ccm_testkit::suite::sized;

use crate::{
    api::{AwsError, Call, InstanceId, Reply, Transport, ec2::InstanceState},
    fake::{FakeAws, FakeOptions},
};

/// The in-memory AWS, another one after each reset.
struct Memory {
    aws: Mutex<FakeAws>,
    knobs: FakeOptions,
}

impl Memory {
    fn new(knobs: FakeOptions) -> Self {
        Self { aws: Mutex::new(FakeAws::new()), knobs }
    }

    fn aws(&self) -> FakeAws {
        self.aws.lock().clone()
    }
}

#[async_trait]
impl AccountBackend for Memory {
    fn transport(&self) -> Arc<dyn Transport> {
        self.aws().transport()
    }

    async fn clear(&self) -> anyhow::Result<SharedVpc> {
        let aws = FakeAws::new();
        aws.configure(|knobs| *knobs = self.knobs.clone());
        // As many as a large cluster asks AWS for.
        aws.quotas(|quotas| {
            quotas.routes_per_table = 1000;
            quotas.rules_per_security_group = 1000;
        });
        *self.aws.lock() = aws.clone();
        let tag = |id: &str| format!("kubernetes.io/cluster/{id}");
        let (ours, theirs) = (tag(OURS), tag(THEIRS));
        let shared = [(&*ours, "shared"), (&*theirs, "shared")];
        let vpc = aws.vpc("10.0.0.0/16");
        let front = [&shared[..], &[("kubernetes.io/role/elb", "1")]].concat();
        let public = [("a", 0), ("b", 16)].map(|(zone, third)| {
            let subnet = aws.public_subnet(&vpc, zone, &format!("10.0.{third}.0/20"), &front);
            aws.add_ipv6(&subnet, &format!("2001:db8:0:{third}::/64"));
            subnet
        });
        let private = aws.subnet(&vpc, "a", "10.0.128.0/17", &shared);
        let group = aws.security_group(&vpc, "nodes", &shared);
        let tables = [&[(&*ours, "owned")][..], &[(&*theirs, "owned")], &[]];
        let tables = tables.map(|tags| aws.route_table(&vpc, std::slice::from_ref(&private), tags));
        Ok(SharedVpc { vpc, public: public.to_vec(), private, group, tables })
    }

    async fn launch(&self, place: &SharedVpc, ip: Ipv4Addr) -> anyhow::Result<InstanceId> {
        let instance = self
            .aws()
            .instance(&place.private)
            .private_ip(ip)
            .group(&place.group);
        let tag = |id: &str| format!("kubernetes.io/cluster/{id}");
        Ok(instance
            .tag(&tag(OURS), "shared")
            .tag(&tag(THEIRS), "shared")
            .launch())
    }

    async fn turn(&self, id: &InstanceId, turn: InstanceChange) -> anyhow::Result<()> {
        match turn {
            InstanceChange::Stop => self.aws().set_state(id, InstanceState::Stopped),
            InstanceChange::Start => self.aws().set_state(id, InstanceState::Running),
            InstanceChange::Terminate => self.aws().terminate(id),
            InstanceChange::Vanish => self.aws().forget_instance(id),
        }
        Ok(())
    }

    async fn spoil(&self, call: Call, trouble: CallFaultKind) -> Result<Reply, AwsError> {
        let action = call.action();
        match trouble {
            CallFaultKind::Fails(fault) => {
                let (status, code) = refusal(action, fault);
                Err(AwsError::response(action, status, code, "ordered by the test"))
            }
            CallFaultKind::AnswerLost => {
                self.transport().send(call).await?;
                Err(AwsError::no_response(action, "connection lost (ordered by the test)"))
            }
        }
    }

    /// Each call in its turn, but for the quick tier.
    fn stride(&self) -> usize {
        sized(3, 1).unwrap()
    }

    async fn activate_after(&self, time: Duration) -> bool {
        self.aws().configure(|knobs| knobs.provisioning = time);
        // The name is published at once, as upstream does: nothing waits until it serves.
        false
    }
}

/// Rules that need something which AWS does not have.
const NOT_IN_AWS: [&str; 3] = ["retry-after", "slow-change", "late-failure"];

/// Checks that every rule is kept, but for those that cannot be checked.
fn all_kept(report: &Report) {
    let expected = |rule: &str| {
        if NOT_IN_AWS.contains(&rule) {
            Outcome::Unsupported
        } else {
            Outcome::Passed
        }
    };
    assert!(
        report
            .cases()
            .iter()
            .all(|case| case.outcome == expected(case.rule)),
        "{report}"
    );
}

async fn stage(knobs: FakeOptions, config: &'static str) -> AwsAdapter {
    AwsAdapter::new(Arc::new(Memory::new(knobs)), config)
        .await
        .unwrap()
}

macro_rules! provider_on {
    ($stage:expr) => {{
        let stage = $stage.clone();
        move || {
            let stage = stage.clone();
            async move { stage.provider(OURS).await }
        }
    }};
}

#[tokio::test(start_paused = true)]
async fn rules_about_instances_are_kept() {
    let stage = stage(FakeOptions::default(), "").await;
    all_kept(&check_instances(provider_on!(stage), &stage).await);
}

#[tokio::test(start_paused = true)]
async fn rules_about_routes_are_kept() {
    let stage = stage(FakeOptions::default(), "").await;
    all_kept(&check_routes(provider_on!(stage), &stage).await);
}

#[tokio::test(start_paused = true)]
async fn rules_about_load_balancers_are_kept() {
    let stage = stage(FakeOptions::default(), "").await;
    all_kept(&check_load_balancers(provider_on!(stage), &stage).await);
}

#[tokio::test(start_paused = true)]
async fn rules_about_load_balancers_are_kept_with_security_groups_of_their_own() {
    let stage = stage(FakeOptions::default(), "NLBSecurityGroupMode = Managed").await;
    all_kept(&check_load_balancers(provider_on!(stage), &stage).await);
}
