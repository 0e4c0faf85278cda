//! Records of the cloud's answers about instances since the process started. The deletion of Nodes
//! relies on them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use tokio::time::Instant;

use super::{CloudError, InstanceStatus, PowerState};
use crate::k8s::{MachineId, NodeView};

/// The records of the cloud's answers about instances, by provider ID. The
/// [`InstanceBatcher`](super::InstanceBatcher) records every answer; the node-lifecycle controller
/// reads them.
#[derive(Debug, Default)]
pub(crate) struct InstanceRecords {
    by_provider_id: Mutex<HashMap<Arc<str>, InstanceRecord>>,
    /// The last answer about each node, by its name, for explanations alone.
    last_answers: Mutex<HashMap<Arc<str>, LastAnswer>>,
}

/// The last answer of the cloud about a node.
#[derive(Clone, Debug)]
pub(crate) struct LastAnswer {
    pub(crate) at: Instant,
    pub(crate) content: AnswerContent,
}

/// The content of an answer of the cloud, without the metadata.
#[derive(Clone, Debug)]
pub(crate) enum AnswerContent {
    NotFound,
    Found(PowerState),
    /// The query failed.
    Failed(Box<CloudError>),
}

impl AnswerContent {
    fn of(answer: &Result<InstanceStatus, CloudError>) -> Self {
        match answer {
            Ok(InstanceStatus::NotFound) => Self::NotFound,
            Ok(InstanceStatus::Found { power_state, .. }) => Self::Found(*power_state),
            Err(error) => Self::Failed(Box::new(error.clone())),
        }
    }
}

/// The record of the answers about one provider ID. Errors do not change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstanceRecord {
    /// True if the cloud has found the instance at least once since this process started.
    pub(crate) was_found: bool,
    /// The machine ID that the Node reported when the instance was last found.
    pub(crate) machine: Option<MachineId>,
    /// The time since which the cloud no longer finds an instance that it found before.
    pub(crate) lost_since: Option<Instant>,
    /// True if the last answer was that the instance is shut down.
    pub(crate) is_stopped: bool,
    /// The machine ID that the Node reported when it was Ready and the cloud said that the instance
    /// runs, for the first time. It is never replaced: if another machine reports later, nobody
    /// knows which of them the instance is.
    pub(crate) proved_machine: Option<MachineId>,
    /// The time since which the cloud says that the instance is shut down while its Node is Ready.
    pub(crate) stopped_while_ready_since: Option<Instant>,
    /// True once the cloud has said so for [`STOPPED_WHILE_READY_COUNTS_AFTER`]. It stays true.
    pub(crate) was_stopped_while_ready: bool,
}

/// The time after which a Ready node contradicts the cloud's answer that its instance is shut down.
/// A node stays Ready for about 50 s after its machine is switched off.
pub(crate) const STOPPED_WHILE_READY_COUNTS_AFTER: Duration = Duration::from_secs(120);

impl InstanceRecord {
    /// Returns true if the last answer was that the instance exists.
    pub(crate) fn is_found(&self) -> bool {
        self.was_found && self.lost_since.is_none()
    }

    /// Returns true if the cloud says that the instance is shut down, and has said so for long while
    /// its Node was Ready. The caller knows whether the Node is Ready now.
    pub(crate) fn is_stopped_while_ready(&self) -> bool {
        self.stopped_while_ready_since
            .is_some_and(|since| since.elapsed() >= STOPPED_WHILE_READY_COUNTS_AFTER)
    }

    /// Records the power state of an instance that was found.
    fn record_power(&mut self, node: &NodeView, power: PowerState) {
        self.is_stopped = power == PowerState::Stopped;
        if self.is_stopped && node.is_ready() {
            self.stopped_while_ready_since
                .get_or_insert_with(Instant::now);
            self.was_stopped_while_ready |= self.is_stopped_while_ready();
        } else {
            self.stopped_while_ready_since = None;
        }
        if power == PowerState::Running && node.is_ready() && self.proved_machine.is_none() {
            self.proved_machine = node.machine;
        }
        // After a termination, another machine may already use the node's name.
        if power != PowerState::Terminated {
            self.machine = node.machine;
        }
    }
}

impl InstanceRecords {
    /// Records the cloud's answer about a node. If the node has no provider ID, the answer is
    /// recorded for the provider ID that it contains.
    pub(crate) fn record(&self, node: &NodeView, answer: &Result<InstanceStatus, CloudError>) {
        let last = LastAnswer { at: Instant::now(), content: AnswerContent::of(answer) };
        self.last_answers.lock().insert(node.name.clone(), last);
        match answer {
            Err(_) => {}
            Ok(InstanceStatus::NotFound) => {
                let Some(id) = &node.provider_id else { return };
                let mut records = self.by_provider_id.lock();
                let record = records.entry(id.clone()).or_default();
                record.is_stopped = false;
                record.stopped_while_ready_since = None;
                if record.was_found {
                    record.lost_since.get_or_insert_with(Instant::now);
                }
            }
            // A terminated instance that the cloud still lists counts as found.
            Ok(InstanceStatus::Found { power_state: power, meta }) => {
                let id = node
                    .provider_id
                    .clone()
                    .or_else(|| meta.provider_id.as_deref().map(Arc::from));
                let Some(id) = id else { return };
                let mut records = self.by_provider_id.lock();
                let record = records.entry(id).or_default();
                record.was_found = true;
                record.lost_since = None;
                record.record_power(node, *power);
            }
        }
    }

    /// Returns the record of a node's instance, or `None` if the cloud has not answered about it
    /// yet.
    pub(crate) fn of(&self, node: &NodeView) -> Option<InstanceRecord> {
        self.by_provider_id
            .lock()
            .get(node.provider_id.as_ref()?)
            .copied()
    }

    /// Returns the last answer about a node of this name.
    pub(crate) fn last_answer(&self, node: &str) -> Option<LastAnswer> {
        self.last_answers.lock().get(node).cloned()
    }

    /// Returns for how long the cloud has not found the node's instance, which it found before.
    /// Returns `None` if the cloud finds the instance or has never found it.
    pub(crate) fn lost_for(&self, node: &NodeView) -> Option<Duration> {
        self.of(node)?.lost_since.map(|since| since.elapsed())
    }

    /// Drops the records of instances that no node has any more, once there are many of them.
    pub(crate) fn prune(&self, nodes: &[Arc<NodeView>]) {
        /// Avoids repeated scans in a small cluster.
        const SLACK: usize = 100;
        let mut answers = self.last_answers.lock();
        if answers.len() > 2 * nodes.len() + SLACK {
            let names: std::collections::HashSet<&Arc<str>> =
                nodes.iter().map(|node| &node.name).collect();
            answers.retain(|name, _| names.contains(name));
            answers.shrink_to_fit();
        }
        drop(answers);
        let mut records = self.by_provider_id.lock();
        if records.len() > 2 * nodes.len() + SLACK {
            let used: std::collections::HashSet<&Arc<str>> = nodes
                .iter()
                .filter_map(|node| node.provider_id.as_ref())
                .collect();
            records.retain(|id, _| used.contains(id));
            records.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        k8s::{ConditionStatus, NodeCondition},
        provider::InstanceMetadata,
    };

    fn node(id: Option<&str>) -> NodeView {
        NodeView {
            provider_id: id.map(Arc::from),
            machine: MachineId::of("machine"),
            ..NodeView::named("n")
        }
    }

    fn found(power: PowerState, id: Option<&str>) -> InstanceStatus {
        let meta = InstanceMetadata {
            provider_id: id.map(Into::into),
            ..InstanceMetadata::default()
        };
        InstanceStatus::Found { power_state: power, meta }
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_says_what_was_last_answered_and_whether_it_was_ever_found() {
        let records = InstanceRecords::default();
        let asked = node(Some("a"));
        records.record(&asked, &Err(CloudError::transient("no answer")));
        assert_eq!(records.of(&asked), None, "an error says nothing");

        records.record(&asked, &Ok(InstanceStatus::NotFound));
        assert_eq!(records.of(&asked), Some(InstanceRecord::default()));
        assert!(!InstanceRecord::default().is_found());

        records.record(&asked, &Ok(found(PowerState::Stopped, None)));
        let there = InstanceRecord {
            was_found: true,
            machine: asked.machine,
            ..InstanceRecord::default()
        };
        let stopped = InstanceRecord { is_stopped: true, ..there };
        assert_eq!(records.of(&asked), Some(stopped));
        assert!(there.is_found());
        records.record(&asked, &Err(CloudError::transient("no answer")));
        assert_eq!(records.of(&asked), Some(stopped), "an error says nothing");

        records.record(&asked, &Ok(found(PowerState::Terminated, None)));
        assert_eq!(records.of(&asked), Some(there), "the cloud knows it");
        let lost_since = Some(Instant::now());
        for _ in 0..2 {
            records.record(&asked, &Ok(InstanceStatus::NotFound));
            let lost = InstanceRecord { lost_since, ..there };
            assert_eq!(records.of(&asked), Some(lost));
            assert!(!lost.is_found());
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        records.record(&asked, &Ok(found(PowerState::Running, None)));
        assert_eq!(records.of(&asked), Some(there), "it runs, and the node is not Ready");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ready_node_proves_its_machine_for_good_and_contradicts_the_word_that_it_is_off() {
        let ready = |machine: &str| NodeView {
            ready: Some(NodeCondition { status: ConditionStatus::True, reason: "".into() }),
            machine: MachineId::of(machine),
            ..node(Some("a"))
        };
        let records = InstanceRecords::default();
        let record = || records.of(&node(Some("a"))).unwrap();
        let minutes = |minutes: u64| tokio::time::advance(Duration::from_secs(60 * minutes));
        // The first machine stays, whatever is reported later.
        for machine in ["machine", "", "other"] {
            records.record(&ready(machine), &Ok(found(PowerState::Running, None)));
            assert_eq!(record().proved_machine, MachineId::of("machine"), "{machine}");
        }
        // A node is Ready for a while after its machine is switched off.
        let off = Ok(found(PowerState::Stopped, None));
        records.record(&ready("machine"), &off);
        minutes(1).await;
        records.record(&ready("machine"), &off);
        assert!(!record().is_stopped_while_ready());
        records.record(&node(Some("a")), &off);
        minutes(10).await;
        records.record(&ready("machine"), &off);
        assert!(!record().is_stopped_while_ready() && !record().was_stopped_while_ready);
        // If it stays Ready, that is remembered when the instance runs again.
        minutes(2).await;
        assert!(record().is_stopped_while_ready());
        records.record(&ready("machine"), &off);
        records.record(&ready("machine"), &Ok(found(PowerState::Running, None)));
        assert!(!record().is_stopped_while_ready() && record().was_stopped_while_ready);
    }

    #[test]
    fn a_node_that_was_asked_about_by_name_counts_for_the_instance_that_the_answer_names() {
        let records = InstanceRecords::default();
        records.record(&node(None), &Ok(InstanceStatus::NotFound));
        records.record(&node(None), &Ok(found(PowerState::Running, None)));
        assert!(records.by_provider_id.lock().is_empty());
        records.record(&node(None), &Ok(found(PowerState::Running, Some("a"))));
        assert!(
            records
                .of(&node(Some("a")))
                .is_some_and(|record| record.was_found)
        );
        assert_eq!(records.of(&node(None)), None);
    }

    #[test]
    fn instances_that_no_node_has_are_forgotten() {
        let records = InstanceRecords::default();
        for number in 0..103 {
            records.record(&node(Some(&format!("i{number}"))), &Ok(InstanceStatus::NotFound));
        }
        records.prune(&[Arc::new(node(Some("i0"))), Arc::new(node(Some("i1")))]);
        assert_eq!(records.by_provider_id.lock().len(), 103, "not too many yet");
        records.prune(&[Arc::new(node(Some("i0")))]);
        assert_eq!(records.by_provider_id.lock().len(), 1);
        assert!(records.of(&node(Some("i0"))).is_some());
    }

    #[test]
    fn the_last_answer_about_each_node_is_kept_and_forgotten_with_the_node() {
        let records = InstanceRecords::default();
        records.record(&node(None), &Ok(found(PowerState::Stopped, None)));
        records.record(&node(None), &Err(CloudError::transient("no answer")));
        let last = records.last_answer("n").unwrap();
        assert!(
            matches!(last.content, AnswerContent::Failed(error) if error.chain() == "no answer")
        );
        for number in 0..102 {
            records.record(&NodeView::named(&format!("n{number}")), &Ok(InstanceStatus::NotFound));
        }
        records.prune(&[Arc::new(node(None))]);
        assert!(records.last_answer("n").is_some() && records.last_answer("n5").is_none());
    }
}
