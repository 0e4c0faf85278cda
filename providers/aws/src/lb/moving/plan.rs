//! Decides how a move from a classic to a Network Load Balancer, or back, goes on. Pure.

use std::{fmt, time::Duration};

use jiff::Timestamp;

/// How far a move is, as the annotation `move-state` of the Service says. It is written together with the
/// status, so that both say the same after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lb) enum MoveState {
    /// The Network Load Balancer may exist. Its host name was never published.
    Started,
    /// The host name of the Network Load Balancer has been published since then.
    Switched(Timestamp),
    /// The host name of the classic load balancer has been published again since then.
    Returned(Timestamp),
    /// Somebody changed the annotation. It says that there is a move, and proves nothing else.
    Unreadable,
}

impl MoveState {
    /// Parses the annotation.
    pub(in crate::lb) fn parse(text: &str) -> Self {
        if text == "started" {
            return Self::Started;
        }
        match text.split_once(' ') {
            Some(("switched", since)) => since.parse().map_or(Self::Unreadable, Self::Switched),
            Some(("returned", since)) => since.parse().map_or(Self::Unreadable, Self::Returned),
            _ => Self::Unreadable,
        }
    }
}

impl fmt::Display for MoveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("started"),
            Self::Switched(since) => write!(f, "switched {since:.0}"),
            Self::Returned(since) => write!(f, "returned {since:.0}"),
            Self::Unreadable => f.write_str("unreadable"),
        }
    }
}

/// What a Service says about its move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lb) struct MoveRequest {
    /// True if the Service asks for the move, or tries to: the value may be invalid.
    pub(in crate::lb) is_requested: bool,
    /// The time for which both load balancers serve after a switch.
    pub(in crate::lb) drain: Duration,
    /// How far the move is; `None` if there is none.
    pub(in crate::lb) state: Option<MoveState>,
}

/// The load balancer whose host name the status of the Service shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lb) enum Shown {
    Classic,
    Network,
    /// None of both.
    Neither,
}

/// The facts that decide about a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lb) struct MoveFacts {
    /// True towards the Network Load Balancer, false back to the classic one.
    pub(in crate::lb) is_forward: bool,
    pub(in crate::lb) state: Option<MoveState>,
    /// True if the Service's classic load balancer exists.
    pub(in crate::lb) has_classic: bool,
    pub(in crate::lb) shown: Shown,
    /// The reason for which the load balancer in the direction of the move cannot serve all clients;
    /// `None` if it can, as far as is known: of the classic one, only whether it follows the nodes and
    /// has an instance.
    pub(in crate::lb) unready: Option<String>,
    pub(in crate::lb) drain: Duration,
    pub(in crate::lb) now: Timestamp,
}

/// The next step of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lb) enum MoveStep {
    /// Record on the Service that it moves, before anything is created.
    Record,
    /// Publish this load balancer, and wait.
    Wait {
        publish: Shown,
        /// The rest of the drain time; `None` if something else is awaited.
        until_drained: Option<Duration>,
        reason: String,
    },
    /// Publish the Network Load Balancer, and record the time.
    Switch,
    /// Delete the classic load balancer.
    DeleteClassic,
    /// Publish the classic load balancer again, and record the time.
    Return,
    /// Delete the Network Load Balancer.
    DeleteNetwork,
    /// The classic load balancer does not exist: end the move, whatever its direction.
    Finish {
        /// False if the other load balancer cannot serve yet: then the status stays. It is the Service's
        /// next sync that looks once more for a load balancer with that host name.
        is_ready: bool,
    },
}

impl MoveStep {
    /// Returns what the step does, for shadow mode.
    pub(in crate::lb) fn describe(&self) -> String {
        match self {
            Self::Record => "a network load balancer will be created beside the classic one".into(),
            Self::Wait { reason, .. } => reason.clone(),
            Self::Switch => {
                "the network load balancer serves: its host name will be published".into()
            }
            Self::DeleteClassic => "the classic load balancer is not needed any more".into(),
            Self::Return => {
                "the host name of the classic load balancer will be published again".into()
            }
            Self::DeleteNetwork => "the network load balancer is not needed any more".into(),
            Self::Finish { .. } => {
                "there is no classic load balancer: the move will be ended".into()
            }
        }
    }
}

/// Decides about the next step. A load balancer is deleted only if the status shows the other one, has
/// shown it for the drain time, and the other one serves: the Network Load Balancer has healthy targets,
/// or the classic one follows the nodes and has an instance, whose health is not known.
pub(in crate::lb) fn plan(facts: &MoveFacts) -> MoveStep {
    let Some(state) = facts.state else {
        return MoveStep::Record;
    };
    if !facts.has_classic {
        return MoveStep::Finish { is_ready: facts.unready.is_none() };
    }
    match (facts.is_forward, facts.shown, state) {
        (true, Shown::Network, MoveState::Switched(since)) if since <= facts.now => {
            if let Some(rest) = rest_of_drain(facts, since) {
                let reason = "the classic load balancer serves until clients use the host name of the new one";
                return wait(Shown::Network, Some(rest), reason.to_owned());
            }
            match &facts.unready {
                None => MoveStep::DeleteClassic,
                Some(reason) => wait(Shown::Network, None, reason.clone()),
            }
        }
        (true, Shown::Network, _) => MoveStep::Switch,
        (true, Shown::Classic | Shown::Neither, _) => match &facts.unready {
            None => MoveStep::Switch,
            Some(reason) => wait(Shown::Classic, None, reason.clone()),
        },
        (false, Shown::Classic, MoveState::Started) => delete_network(facts),
        (false, Shown::Classic, MoveState::Returned(since)) if since <= facts.now => {
            match rest_of_drain(facts, since) {
                None => delete_network(facts),
                Some(rest) => {
                    let reason = "the network load balancer serves until clients use the host name of the classic one";
                    wait(Shown::Classic, Some(rest), reason.to_owned())
                }
            }
        }
        (false, _, _) => MoveStep::Return,
    }
}

fn delete_network(facts: &MoveFacts) -> MoveStep {
    match &facts.unready {
        None => MoveStep::DeleteNetwork,
        Some(reason) => wait(Shown::Classic, None, reason.clone()),
    }
}

fn wait(publish: Shown, until_drained: Option<Duration>, reason: String) -> MoveStep {
    MoveStep::Wait { publish, until_drained, reason }
}

/// Returns how much of the drain time is left; `None` if it is over.
fn rest_of_drain(facts: &MoveFacts, since: Timestamp) -> Option<Duration> {
    let drained = Duration::try_from(facts.now.duration_since(since)).unwrap_or_default();
    let rest = facts.drain.saturating_sub(drained);
    (!rest.is_zero()).then_some(rest)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
