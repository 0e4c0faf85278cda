//! The way to the account, on which faults happen as AWS words them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_testkit::explore::{Call as Point, FaultKind, ScenarioRun};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::account::InvariantChecker;
use crate::{
    api::{Action, AwsError, Call, Reply, RequestClass, Service, Transport},
    fake::FakeAws,
    iam_tests,
};

/// How long nothing is heard of a request whose answer never comes.
const SILENCE: Duration = Duration::from_secs(60);
/// How long an answer takes that comes late.
const LATE: Duration = Duration::from_secs(40);
/// How long a service refuses everything that throttles or is down: longer than quick retries go
/// on.
const REFUSING: Duration = Duration::from_secs(3);
/// How long reads lag behind: a second longer than what was just made is waited for.
const LAGGING: Duration = Duration::from_secs(3);
/// After this time a change shows everywhere.
const SHOWN: Duration = Duration::from_secs(20);

/// Marks calls to which AWS may say that there is no such thing although there is.
const MAY_BE_ABSENT: &str = ", of something young";

/// The way to the account.
pub(super) struct FaultyTransport {
    aws: FakeAws,
    journey: Arc<ScenarioRun>,
    guard: Mutex<InvariantChecker>,
    /// True if the IAM documents have to allow each call.
    is_policy_checked: bool,
    /// The account before its last change, and when that was made; kept when a fault asks for it.
    past: Mutex<Option<(Instant, FakeAws)>>,
    /// Which service refuses everything until when, and how.
    refusing: Mutex<Option<(Instant, Service, FaultKind)>>,
    /// What all reads show until when.
    lagging: Mutex<Option<(Instant, FakeAws)>>,
}

impl FaultyTransport {
    pub(super) fn new(
        aws: FakeAws,
        journey: Arc<ScenarioRun>,
        guard: InvariantChecker,
        is_policy_checked: bool,
    ) -> Self {
        let (past, refusing, lagging) = Default::default();
        Self {
            aws,
            journey,
            guard: Mutex::new(guard),
            is_policy_checked,
            past,
            refusing,
            lagging,
        }
    }

    pub(super) fn guard(&self, change: impl FnOnce(&mut InvariantChecker)) {
        change(&mut self.guard.lock());
    }

    /// Changes the account as somebody else does, whom reads that lag behind do not show either.
    pub(super) fn elsewhere(&self, change: impl FnOnce(&FakeAws)) {
        self.keep_past();
        change(&self.aws);
    }

    fn keep_past(&self) {
        if self.journey.faults().0.values().any(|kind| kind.is_past()) {
            *self.past.lock() = Some((Instant::now(), self.aws.copy()));
        }
    }

    /// Sends a call whose turn it is, unless its service refuses everything.
    async fn done(&self, call: Call) -> Result<Reply, AwsError> {
        let action = call.action();
        let refusing = self
            .refusing
            .lock()
            .filter(|(until, of, _)| *until > Instant::now() && *of == action.service());
        if let Some((_, _, kind)) = refusing {
            return Err(refusal(action, kind));
        }
        if self.is_policy_checked
            && let Some(denied) = iam_tests::denial(&call, &self.aws)
        {
            self.guard.lock().denied(&denied);
        }
        if action.class() == RequestClass::Read {
            let lagging = self
                .lagging
                .lock()
                .as_ref()
                .filter(|(until, _)| *until > Instant::now())
                .cloned();
            return lagging
                .map_or_else(|| self.aws.clone(), |(_, past)| past)
                .transport()
                .send(call)
                .await;
        }
        self.keep_past();
        let what = format!("{call:?}");
        let answer = self.aws.transport().send(call).await;
        self.guard.lock().inspect(&self.aws, &what);
        answer
    }

    async fn past_answer(&self, call: Call, lasts: bool) -> Result<Reply, AwsError> {
        let past = self
            .past
            .lock()
            .as_ref()
            .filter(|(at, _)| at.elapsed() < SHOWN)
            .map(|(_, past)| past.clone());
        let Some(past) = past.filter(|_| call.action().class() == RequestClass::Read) else {
            return self.done(call).await;
        };
        if lasts {
            *self.lagging.lock() = Some((Instant::now() + LAGGING, past.clone()));
        }
        past.transport().send(call).await
    }

    async fn spoilt(&self, call: Call, kind: FaultKind) -> Result<Reply, AwsError> {
        let action = call.action();
        match kind {
            FaultKind::DiesBefore => match self.journey.die().await {},
            FaultKind::DiesAfter => {
                drop(self.done(call).await);
                match self.journey.die().await {}
            }
            FaultKind::AnswerLost | FaultKind::CutShort => {
                drop(self.done(call).await);
                Err(AwsError::no_response(action, "the connection broke (ordered by the test)"))
            }
            FaultKind::TimesOut | FaultKind::Garbage => {
                tokio::time::sleep(SILENCE).await;
                Err(AwsError::no_response(action, "nothing was heard (ordered by the test)"))
            }
            FaultKind::Delayed => {
                tokio::time::sleep(LATE).await;
                self.done(call).await
            }
            FaultKind::Throttled | FaultKind::Unavailable => {
                *self.refusing.lock() = Some((Instant::now() + REFUSING, action.service(), kind));
                self.done(call).await
            }
            FaultKind::StrangeAbsence => match absence(&call) {
                Some(code) => Err(answer(action, 400, code)),
                None => self.done(call).await,
            },
            FaultKind::Unauthorized | FaultKind::Busy | FaultKind::Broken => {
                Err(refusal(action, kind))
            }
            FaultKind::Stale => self.past_answer(call, false).await,
            FaultKind::Lagging => self.past_answer(call, true).await,
            FaultKind::OverLimit => self.done(call).await,
        }
    }
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn send(&self, call: Call) -> Result<Reply, AwsError> {
        let point = point(&call);
        match self.journey.begin(point.clone()) {
            // The second fault of a pair can land on a call to which it cannot happen.
            Some(kind) if applies(kind, &point) => self.spoilt(call, kind).await,
            _ => self.done(call).await,
        }
    }
}

/// What the provider can do without (`AccessDeniedCache`).
const DETAILS: [Action; 8] = [
    Action::DescribeClassicAttributes,
    Action::DescribeClassicTags,
    Action::DescribeNetworkInterfaces,
    Action::DescribeLoadBalancerAttributes,
    Action::DescribeCapacityReservation,
    Action::DescribeTargetGroupAttributes,
    Action::DescribeListenerAttributes,
    Action::DescribeListenerCertificates,
];

fn point(call: &Call) -> Point {
    let action = call.action();
    let young = if absence(call).is_some() {
        MAY_BE_ABSENT
    } else {
        ""
    };
    let what = format!("{} {}{young}", action.name(), crate::api::object_of(call));
    Point { writes: action.class() == RequestClass::Write, what }
}

/// Tells whether a kind of fault can happen to a call. The SDK takes answers that are none, or not
/// whole, for no answer, and AWS has one way to throttle. A right to read details that is lacking
/// is lived with until the next comparison.
pub(super) fn applies(kind: FaultKind, call: &Point) -> bool {
    match kind {
        FaultKind::CutShort | FaultKind::Garbage | FaultKind::OverLimit => false,
        FaultKind::Busy => call.writes,
        FaultKind::Unauthorized => !DETAILS
            .iter()
            .any(|action| call.what.starts_with(action.name())),
        FaultKind::StrangeAbsence => call.what.ends_with(MAY_BE_ABSENT),
        FaultKind::Stale | FaultKind::Lagging => !call.writes,
        _ => true,
    }
}

/// Ends a run's part with faults, and waits until reads show what was changed: a process that took
/// over cannot know it before, and would do it again, without effect.
pub(super) async fn stop_counting(journey: &ScenarioRun) {
    journey.count(false);
    tokio::time::sleep(LAGGING).await;
}

fn answer(action: Action, status: u16, code: &str) -> AwsError {
    AwsError::response(action, status, code, "ordered by the test")
}

fn refusal(action: Action, kind: FaultKind) -> AwsError {
    let ec2 = action.service() == Service::Ec2;
    let (status, code) = match kind {
        FaultKind::Unauthorized if ec2 => (403, "UnauthorizedOperation"),
        FaultKind::Unauthorized => (403, "AccessDenied"),
        FaultKind::Throttled if ec2 => (503, "RequestLimitExceeded"),
        FaultKind::Throttled => (400, "Throttling"),
        FaultKind::Unavailable => (503, "ServiceUnavailable"),
        FaultKind::Busy => match action {
            Action::DeleteSecurityGroup => (400, "DependencyViolation"),
            Action::DeleteLoadBalancer | Action::DeleteTargetGroup | Action::DeleteListener => {
                (400, "ResourceInUse")
            }
            _ if ec2 => (400, "IncorrectState"),
            _ => (429, "PriorRequestNotComplete"),
        },
        _ if ec2 => (500, "InternalError"),
        _ => (500, "InternalFailure"),
    };
    answer(action, status, code)
}

/// Returns how AWS says of something that is there, but young, that there is no such thing; `None`
/// for what names nothing, for proof that a single instance is gone, and for deletions, which do
/// not say it while there is something.
fn absence(call: &Call) -> Option<&'static str> {
    Some(match call {
        Call::DescribeLoadBalancers(c) if c.names.is_empty() && c.arns.is_empty() => return None,
        Call::DescribeTargetGroups(c) if c.names.is_empty() && c.arns.is_empty() => return None,
        Call::DescribeSecurityGroups(c) if c.ids.is_empty() => return None,
        Call::DescribeInstances(c) if c.ids.len() < 2 => return None,
        Call::DescribeClassic(c) if c.names.is_empty() => return None,
        Call::DescribeLoadBalancers(_)
        | Call::DescribeClassic(_)
        | Call::DescribeClassicAttributes(_)
        | Call::CreateClassicListeners(_)
        | Call::DeleteClassicListeners(_)
        | Call::ConfigureClassicHealthCheck(_)
        | Call::ModifyClassicAttributes(_)
        | Call::SetClassicSecurityGroups(_)
        | Call::CreateClassicPolicy(_)
        | Call::SetClassicListenerPolicies(_)
        | Call::SetClassicBackendPolicies(_)
        | Call::AddClassicTags(_)
        | Call::RegisterClassic(_)
        | Call::DeregisterClassic(_)
        | Call::DescribeLoadBalancerAttributes(_)
        | Call::DescribeListeners(_)
        | Call::ModifyLoadBalancerAttributes(_)
        | Call::DescribeCapacityReservation(_)
        | Call::ModifyCapacityReservation(_)
        | Call::SetSubnets(_)
        | Call::SetIpAddressType(_)
        | Call::SetSecurityGroups(_)
        | Call::CreateListener(_)
        | Call::AddElbTags(_)
        | Call::RemoveElbTags(_)
        | Call::DescribeElbTags(_) => "LoadBalancerNotFound",
        Call::DescribeTargetGroups(_)
        | Call::DescribeTargetGroupAttributes(_)
        | Call::DescribeTargetHealth(_)
        | Call::ModifyTargetGroup(_)
        | Call::ModifyTargetGroupAttributes(_)
        | Call::RegisterTargets(_)
        | Call::DeregisterTargets(_) => "TargetGroupNotFound",
        Call::DescribeListenerAttributes(_)
        | Call::DescribeListenerCertificates(_)
        | Call::ModifyListener(_)
        | Call::ModifyListenerAttributes(_)
        | Call::AddListenerCertificates(_)
        | Call::RemoveListenerCertificates(_) => "ListenerNotFound",
        Call::DescribeSecurityGroups(_)
        | Call::AuthorizeSecurityGroupIngress(_)
        | Call::RevokeSecurityGroupIngress(_) => "InvalidGroup.NotFound",
        Call::CreateRoute(_) | Call::ReplaceRoute(_) => "InvalidRouteTableID.NotFound",
        Call::CreateTags(c) if c.resources.iter().any(|id| id.starts_with("sg-")) => {
            "InvalidGroup.NotFound"
        }
        Call::DescribeInstances(_) | Call::ModifyInstanceAttribute(_) | Call::CreateTags(_) => {
            "InvalidInstanceID.NotFound"
        }
        _ => return None,
    })
}
