//! The AWS that the kit is run on, and the way to it on which calls go wrong.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_aws::api::{
    Action, AwsError, Call, InstanceId, Metadata, Reply, RequestClass, RouteTableId,
    SecurityGroupId, SubnetId, Transport, VpcId,
};
use ccm_testkit::conformance::{CallCount, CallFaultKind, InjectedCallFault, InjectedFault};
use parking_lot::Mutex;

/// Cluster that the provider under test works for, and another one beside it, by their tags.
pub(crate) const OURS: &str = "ours";
pub(crate) const THEIRS: &str = "theirs";

/// An account of AWS.
#[async_trait]
pub(crate) trait AccountBackend: Send + Sync + 'static {
    /// The way to it.
    fn transport(&self) -> Arc<dyn Transport>;

    /// Removes everything and makes a place for clusters.
    async fn clear(&self) -> anyhow::Result<SharedVpc>;

    /// Launches an instance with this address in the place's subnet for nodes, of both clusters.
    async fn launch(&self, place: &SharedVpc, ip: Ipv4Addr) -> anyhow::Result<InstanceId>;

    /// Does something to an instance.
    async fn turn(&self, id: &InstanceId, turn: InstanceChange) -> anyhow::Result<()>;

    /// Sends a call that goes wrong.
    async fn spoil(&self, call: Call, trouble: CallFaultKind) -> Result<Reply, AwsError>;

    /// Returns how many routes a large cluster has.
    fn many(&self) -> usize {
        200
    }

    /// Tells at how many calls troubles are tried: each, or fewer where that takes too long.
    fn stride(&self) -> usize {
        1
    }

    /// Makes new load balancers take this long; tells whether that is waited for.
    async fn activate_after(&self, time: Duration) -> bool;
}

/// What is done to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstanceChange {
    Stop,
    Start,
    Terminate,
    /// Terminates it, and lets time pass until it is not described any more.
    Vanish,
}

/// A VPC with what two clusters share in it.
#[derive(Clone, Debug)]
pub(crate) struct SharedVpc {
    pub(crate) vpc: VpcId,
    pub(crate) public: Vec<SubnetId>,
    /// For nodes, in zone a.
    pub(crate) private: SubnetId,
    /// Security group of the nodes.
    pub(crate) group: SecurityGroupId,
    /// Route tables of this cluster, of the other one, and of none.
    pub(crate) tables: [RouteTableId; 3],
}

/// Returns code and status with which AWS answers when this goes wrong.
pub(crate) fn refusal(action: Action, fault: InjectedFault) -> (u16, &'static str) {
    let ec2 = action.service() == ccm_aws::api::Service::Ec2;
    match fault {
        InjectedFault::Denied if ec2 => (403, "UnauthorizedOperation"),
        InjectedFault::Denied => (403, "AccessDenied"),
        InjectedFault::Throttled(_) if ec2 => (503, "RequestLimitExceeded"),
        InjectedFault::Throttled(_) => (400, "Throttling"),
        InjectedFault::Invalid if ec2 => (400, "InvalidParameterValue"),
        InjectedFault::Invalid => (400, "ValidationError"),
        InjectedFault::Transient => (503, "ServiceUnavailable"),
    }
}

/// Reads that the provider can do without when a policy denies them: the search for a classic load
/// balancer that no status shows. The details that `AccessDeniedCache` does without are followed by
/// calls that it needs.
const OPTIONAL: [Action; 1] = [Action::DescribeClassic];

/// The provider's way to AWS: counts calls, slows them down and spoils them.
pub(crate) struct FaultyTransport {
    ground: Arc<dyn AccountBackend>,
    page: Mutex<FaultScript>,
    /// Calls that were started since the script.
    started: Mutex<Vec<Action>>,
}

/// What is ordered, and what happened since.
#[derive(Clone, Copy, Debug, Default)]
struct FaultScript {
    trouble: Option<InjectedCallFault>,
    tally: CallCount,
    latency: Duration,
    /// Calls ever.
    total: u64,
}

impl FaultyTransport {
    pub(crate) fn new(ground: Arc<dyn AccountBackend>) -> Self {
        let (page, started) = Default::default();
        Self { ground, page, started }
    }

    pub(crate) fn script(&self, trouble: Option<InjectedCallFault>) {
        self.started.lock().clear();
        let mut page = self.page.lock();
        *page = FaultScript { trouble, tally: CallCount::default(), ..*page };
    }

    pub(crate) fn slow_down(&self, latency: Duration) {
        self.page.lock().latency = latency;
    }

    pub(crate) fn tally(&self) -> CallCount {
        self.page.lock().tally
    }

    pub(crate) fn total(&self) -> u64 {
        self.page.lock().total
    }

    /// Returns true if the provider can do without all calls from this one on, counted from 1.
    pub(crate) fn are_optional_since(&self, first: u64) -> bool {
        let started = self.started.lock();
        let mut calls = (1..).zip(&*started).skip_while(|(call, _)| *call < first);
        calls.all(|(_, action)| OPTIONAL.contains(action))
    }

    pub(crate) fn clear(&self) {
        self.started.lock().clear();
        let mut page = self.page.lock();
        *page = FaultScript { total: page.total, ..FaultScript::default() };
    }

    /// Notes that a call begins; returns what happens to it, and how slow it is.
    fn begin(&self, action: Action) -> (Option<CallFaultKind>, Duration) {
        self.started.lock().push(action);
        let mut page = self.page.lock();
        match action.class() {
            RequestClass::Read => page.tally.reads += 1,
            RequestClass::Write => page.tally.writes += 1,
        }
        page.total += 1;
        let call = page.tally.calls();
        let hit = |trouble: &InjectedCallFault| {
            trouble.call == call || trouble.lasts && trouble.call < call
        };
        (page.trouble.filter(hit).map(|trouble| trouble.kind), page.latency)
    }
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn send(&self, call: Call) -> Result<Reply, AwsError> {
        let (trouble, latency) = self.begin(call.action());
        pause(latency).await;
        let answer = match trouble {
            Some(trouble) => self.ground.spoil(call, trouble).await,
            None => self.ground.transport().send(call).await,
        };
        pause(latency).await;
        answer
    }
}

/// A sleep of no time would be an await point all the same.
async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Nothing answers, as outside EC2.
pub(crate) struct NoMetadata;

#[async_trait]
impl Metadata for NoMetadata {
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError> {
        let fault = ccm_aws::api::AwsErrorCause::NoResponse(Arc::from(Box::from(format!(
            "no route to {path}"
        ))));
        Err(AwsError { action: None, cause: fault })
    }
}
