//! When a node is tainted, untainted or deleted: pure state and decisions.
//!
//! Deleting a Node that lives is the worst thing this software can do, so a deletion needs proof: the cloud answered
//! "not found" twice, at least one monitor period apart, the second time asked fresh and in one batch with nodes that
//! are known to be alive. If the cloud does not find those either, the question is wrong (credentials, region, outage)
//! and nothing is deleted.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    k8s::NodeView,
    provider::{Power, Presence},
};

/// Most control nodes asked about together with suspects.
pub(crate) const MAX_CONTROLS: usize = 5;
/// How long the proof must last, without any other answer in between, when no Ready node can vouch for the question; and
/// how old a node that was never initialised must be, because a cloud may take minutes to show a new instance.
pub(crate) const LONG_PROOF: Duration = Duration::from_secs(300);
/// A node that stays as it is, is asked about less and less often, up to every so many periods.
const MAX_PERIODS_BETWEEN_QUESTIONS: u32 = 6;

/// How much proof a deletion needs (`--node-deletion-safety`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Safety {
    /// Confirmed and controlled, as described at the top.
    Strict,
    /// One negative answer is enough, as in Go's framework.
    Upstream,
}

/// What is known about nodes that are not Ready. Time is counted from the start of the controller.
#[derive(Debug)]
pub(crate) struct Tracker {
    period: Duration,
    safety: Safety,
    suspects: HashMap<Arc<str>, Track>,
}

#[derive(Clone, Debug)]
struct Track {
    uid: Box<str>,
    /// When this controller first saw the node not Ready.
    since: Duration,
    /// When the cloud first said that the instance is not there; `None` while it is.
    absent_since: Option<Duration>,
    /// When to ask next.
    next: Duration,
    /// Periods between the last question and the next.
    wait: u32,
    /// Whether the last confirmation was refused because the controls were not found.
    refused: bool,
}

/// Questions of one pass.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Questions {
    /// Nodes to ask about for the first time, or again.
    pub(crate) ordinary: Vec<Arc<NodeView>>,
    /// Nodes whose absence is to be confirmed.
    pub(crate) confirm: Vec<Arc<NodeView>>,
}

/// What to do about one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Add the shutdown taint.
    Taint(Arc<NodeView>),
    /// Remove the shutdown taint.
    Untaint(Arc<NodeView>),
    /// Delete the Node object.
    Delete(Arc<NodeView>),
    /// A deletion was refused.
    Refuse {
        /// The node.
        node: Arc<NodeView>,
        /// Whether it is the first refusal in a row, worth an event.
        first: bool,
    },
}

/// What the cloud said about a node, as far as this controller cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Absent,
    Stopped,
    Running,
    /// Between states or unknown: nothing is done, but it is there.
    Present,
    /// An error: nothing is learnt.
    Doubt,
}

impl Seen {
    pub(crate) fn of<E>(answer: &Result<Presence, E>) -> Self {
        match answer {
            Err(_) => Self::Doubt,
            Ok(Presence::NotFound | Presence::Found { power: Power::Terminated, .. }) => Self::Absent,
            Ok(Presence::Found { power: Power::Stopped, .. }) => Self::Stopped,
            Ok(Presence::Found { power: Power::Running, .. }) => Self::Running,
            Ok(Presence::Found { power: Power::Transitional | Power::Unknown, .. }) => Self::Present,
        }
    }
}

impl Tracker {
    pub(crate) fn new(period: Duration, safety: Safety) -> Self {
        Self { period, safety, suspects: HashMap::new() }
    }

    /// Begins a pass over all nodes of ours: forgets nodes that are Ready or gone, and says whom to ask about.
    pub(crate) fn questions(&mut self, ours: &[Arc<NodeView>], now: Duration) -> (Questions, Vec<Action>) {
        let mut actions = Vec::new();
        let mut questions = Questions::default();
        let mut known = HashSet::new();
        for node in ours {
            if node.is_ready() {
                if node.has_shutdown_taint() {
                    actions.push(Action::Untaint(node.clone()));
                }
                continue;
            }
            if node.deleting {
                continue;
            }
            known.insert(node.name.clone());
            let track = self.track(node, now);
            if now < track.next {
                continue;
            }
            match track.absent_since {
                Some(_) => questions.confirm.push(node.clone()),
                None => questions.ordinary.push(node.clone()),
            }
        }
        self.suspects.retain(|name, _| known.contains(name));
        (questions, actions)
    }

    /// Returns the nodes whose absence is being proved. One for which that was refused is none of them.
    pub(crate) fn doubted(&self) -> impl Iterator<Item = &Arc<str>> {
        self.suspects.iter().filter(|(_, track)| track.absent_since.is_some() && !track.refused).map(|(name, _)| name)
    }

    fn track(&mut self, node: &NodeView, now: Duration) -> &mut Track {
        let fresh =
            || Track { uid: node.uid.clone(), since: now, absent_since: None, next: now, wait: 1, refused: false };
        let track = self.suspects.entry(node.name.clone()).or_insert_with(fresh);
        if track.uid != node.uid {
            // Deleted and registered again: what was known is about another machine.
            *track = fresh();
        }
        track
    }

    /// Takes an answer to an ordinary question.
    pub(crate) fn ordinary(&mut self, node: &Arc<NodeView>, seen: Seen, now: Duration) -> Option<Action> {
        let (period, safety) = (self.period, self.safety);
        let track = self.track(node, now);
        match seen {
            Seen::Absent if safety == Safety::Upstream => {
                track.next = now;
                return Some(Action::Delete(node.clone()));
            }
            Seen::Absent => {
                track.absent_since = Some(now);
                track.wait = 1;
            }
            // Learning nothing keeps the pace: the next answer may matter.
            Seen::Doubt => track.wait = 1,
            Seen::Stopped | Seen::Running | Seen::Present => {
                track.wait = (track.wait * 2).min(MAX_PERIODS_BETWEEN_QUESTIONS);
            }
        }
        track.next = now + period * track.wait;
        (seen == Seen::Stopped && !node.has_shutdown_taint()).then(|| Action::Taint(node.clone()))
    }

    /// Takes an answer to a confirming question, asked fresh and together with `controls`.
    pub(crate) fn confirm(
        &mut self,
        node: &Arc<NodeView>,
        seen: Seen,
        controls: &Controls,
        now: Duration,
        wall: Timestamp,
    ) -> Option<Action> {
        let period = self.period;
        let track = self.track(node, now);
        track.next = now + period;
        track.wait = 1;
        let since = match seen {
            Seen::Absent => *track.absent_since.get_or_insert(now),
            Seen::Doubt => {
                // An outage may have made the first answer, too: everything starts over.
                track.absent_since = None;
                return None;
            }
            Seen::Stopped | Seen::Running | Seen::Present => {
                // The first answer was wrong, or the instance came back: everything starts over.
                track.absent_since = None;
                track.refused = false;
                let taint = seen == Seen::Stopped && !node.has_shutdown_taint();
                return taint.then(|| Action::Taint(node.clone()));
            }
        };
        let proved_for = now.saturating_sub(since);
        if proved_for < period || is_too_young(node, now.saturating_sub(track.since), wall) {
            return None;
        }
        // Controls were initialised and are asked about by provider ID: they cannot vouch for a question by name.
        let vouched_for = node.provider_id.is_some();
        match controls.verdict() {
            ControlVerdict::Trusted if vouched_for || proved_for >= LONG_PROOF => Some(Action::Delete(node.clone())),
            ControlVerdict::NobodyToAsk if proved_for >= LONG_PROOF => Some(Action::Delete(node.clone())),
            ControlVerdict::Trusted | ControlVerdict::NobodyToAsk => None,
            ControlVerdict::Distrusted => {
                // What was "proved" was the wrong question; the proof starts over.
                track.absent_since = Some(now);
                let first = !std::mem::replace(&mut track.refused, true);
                Some(Action::Refuse { node: node.clone(), first })
            }
        }
    }
}

/// A node that was never initialised may belong to an instance that the cloud does not show yet. Its age must hold by the
/// wall clock and by what this controller has itself watched, because the wall clock may be wrong.
fn is_too_young(node: &NodeView, watched: Duration, wall: Timestamp) -> bool {
    let age = wall.duration_since(node.created);
    let limit = SignedDuration::try_from(LONG_PROOF).unwrap_or(SignedDuration::MAX);
    let never_initialised = node.is_uninitialized() || node.provider_id.is_none();
    never_initialised && (age < limit || watched < LONG_PROOF)
}

/// Answers about the control nodes of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Controls {
    /// Control nodes asked about.
    pub(crate) asked: usize,
    /// Those that the cloud knows.
    pub(crate) found: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlVerdict {
    Trusted,
    Distrusted,
    NobodyToAsk,
}

impl Controls {
    pub(crate) fn tally(seen: impl IntoIterator<Item = Seen>) -> Self {
        seen.into_iter().fold(Self::default(), |sum, seen| Self {
            asked: sum.asked + 1,
            // An error about a control is doubt as well: only a found one speaks for the question.
            found: sum.found + usize::from(!matches!(seen, Seen::Absent | Seen::Doubt)),
        })
    }

    fn verdict(self) -> ControlVerdict {
        match self {
            Self { asked: 0, .. } => ControlVerdict::NobodyToAsk,
            Self { asked, found } if found * 2 < asked => ControlVerdict::Distrusted,
            Self { .. } => ControlVerdict::Trusted,
        }
    }
}

/// Chooses up to [`MAX_CONTROLS`] Ready, initialised nodes of ours: those that share a zone with a suspect first, because a
/// zone or cell may fail alone, and others than in the last pass where there are enough.
pub(crate) fn choose_controls(ours: &[Arc<NodeView>], suspects: &[Arc<NodeView>], turn: usize) -> Vec<Arc<NodeView>> {
    let zones: HashSet<_> = suspects.iter().filter_map(|n| zone(n)).collect();
    let can_vouch = |n: &&Arc<NodeView>| n.is_ready() && !n.is_uninitialized() && !n.deleting;
    let (mut near, mut far): (Vec<_>, Vec<_>) =
        ours.iter().filter(can_vouch).partition(|node| zone(node).is_some_and(|z| zones.contains(z)));
    for nodes in [&mut near, &mut far] {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let start = turn.wrapping_mul(MAX_CONTROLS).checked_rem(nodes.len()).unwrap_or(0);
        nodes.rotate_left(start);
    }
    near.into_iter().chain(far).take(MAX_CONTROLS).cloned().collect()
}

fn zone(node: &NodeView) -> Option<&str> {
    node.labels.get(crate::k8s::well_known::LABEL_ZONE)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
