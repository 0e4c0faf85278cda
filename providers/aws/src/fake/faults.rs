//! Faults that a test injects, and the log of requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::error::ApiRejection;
use crate::api::{Action, AwsError, Call, RequestClass, Service};

/// Whether a request is carried out before its answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The request is not carried out.
    Before,
    /// The request is carried out.
    After,
}

/// Injected faults, and the log of requests.
#[derive(Clone, Default)]
pub(super) struct Faults {
    /// Error codes of the next requests.
    next: BTreeMap<Action, VecDeque<String>>,
    /// Error codes of all requests.
    always: BTreeMap<Action, String>,
    throttled: BTreeMap<Action, usize>,
    denied: BTreeSet<Action>,
    /// True if objects that exist may not be tagged.
    pub(super) tags_only_at_creation: bool,
    /// Actions that are carried out despite `DryRun`.
    pub(super) without_dry_run: BTreeSet<Action>,
    /// The requests about which was asked whether they would be allowed.
    pub(super) asked: Vec<Call>,
    /// Number of writes since faults were last cleared.
    writes: usize,
    /// Writes whose answer is lost, by number.
    lost_responses: BTreeMap<usize, Crash>,
    /// Number of writes after which no request is answered any more.
    dead_after: Option<usize>,
    pub(super) crashed: bool,
    pub(super) log: Vec<Call>,
}

/// Effect of the faults on a request.
pub(super) enum RequestOutcome {
    /// It is carried out; `answered` says whether the answer arrives.
    Served { answered: bool },
    /// It fails without being carried out.
    Failed(AwsError),
}

impl Faults {
    /// Determines the effect of the faults on a request, and logs the request.
    pub(super) fn decide(&mut self, call: &Call) -> RequestOutcome {
        let action = call.action();
        if self.crashed {
            return RequestOutcome::Failed(lost(action));
        }
        self.log.push(call.clone());
        let crash = if action.class() == RequestClass::Write {
            self.count()
        } else {
            None
        };
        if crash == Some(Crash::Before) {
            return RequestOutcome::Failed(lost(action));
        }
        if let Some(refusal) = self.refusal(call) {
            return RequestOutcome::Failed(refusal.into_error(action));
        }
        RequestOutcome::Served { answered: crash.is_none() }
    }

    /// Counts a write, and returns how its answer is lost, if it is.
    fn count(&mut self) -> Option<Crash> {
        self.writes += 1;
        self.crashed = self.dead_after.is_some_and(|after| self.writes >= after);
        self.lost_responses.remove(&self.writes)
    }

    pub(super) fn refusal(&mut self, call: &Call) -> Option<ApiRejection> {
        let action = call.action();
        if let Some(left) = self.throttled.get_mut(&action).filter(|left| **left > 0) {
            *left -= 1;
            return Some(throttled(action));
        }
        if self.denied.contains(&action) {
            return Some(denied(action));
        }
        // A group that is created with tags needs both permissions.
        let tags_new =
            matches!(call, Call::CreateSecurityGroup(request) if !request.tags.is_empty());
        let tags_existing = action == Action::CreateTags && self.tags_only_at_creation;
        if tags_existing || tags_new && self.denied.contains(&Action::CreateTags) {
            return Some(denied(Action::CreateTags));
        }
        let next = self.next.get_mut(&action).and_then(VecDeque::pop_front);
        let code = next.or_else(|| self.always.get(&action).cloned())?;
        Some(ApiRejection::new(code, "ordered by the test"))
    }

    pub(super) fn fail_next(&mut self, action: Action, code: String) {
        self.next.entry(action).or_default().push_back(code);
    }

    pub(super) fn fail_always(&mut self, action: Action, code: String) {
        self.always.insert(action, code);
    }

    pub(super) fn throttle(&mut self, action: Action, count: usize) {
        *self.throttled.entry(action).or_default() += count;
    }

    pub(super) fn deny(&mut self, action: Action) {
        self.denied.insert(action);
    }

    pub(super) fn lose(&mut self, n: usize, crash: Crash) {
        self.lost_responses.insert(self.writes + n, crash);
    }

    pub(super) fn dead_after(&mut self, n: usize) {
        match n {
            0 => self.crashed = true,
            n => self.dead_after = Some(self.writes + n),
        }
    }

    /// Clears all faults; the log stays.
    pub(super) fn heal(&mut self) {
        *self = Self { log: std::mem::take(&mut self.log), ..Self::default() };
    }
}

fn lost(action: Action) -> AwsError {
    AwsError::no_response(action, "connection lost (ordered by the test)")
}

fn throttled(action: Action) -> ApiRejection {
    match action.service() {
        Service::Ec2 => ApiRejection::new("RequestLimitExceeded", "Request limit exceeded."),
        Service::Elb => ApiRejection::new("ThrottlingException", "Rate exceeded"),
        Service::Classic | Service::Sts => ApiRejection::new("Throttling", "Rate exceeded"),
    }
}

fn denied(action: Action) -> ApiRejection {
    let role = format!("arn:aws:sts::{}:assumed-role/nodes/i-0", super::ACCOUNT);
    let right = format!("{}:{}", action.service().iam_prefix(), action.name());
    let message = format!(
        "User: {role} is not authorized to perform: {right} because no identity-based policy allows the {right} action"
    );
    match action.service() {
        Service::Ec2 => ApiRejection::new(
            "UnauthorizedOperation",
            format!("You are not authorized to perform this operation. {message}"),
        ),
        Service::Elb | Service::Classic | Service::Sts => {
            ApiRejection::new("AccessDenied", message)
        }
    }
}
