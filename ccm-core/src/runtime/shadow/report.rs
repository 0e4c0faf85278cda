//! Differences that have persisted for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::Serialize;
use tokio::time::Instant;

use super::{Difference, DryRunFindings, NotCompared, Notice, ObjectKind, Verdict};

type Key = (ObjectKind, String, String, &'static str);

/// All differences. One that a leader resolves within seconds, as for a node that has just joined,
/// is never shown.
#[derive(Debug)]
pub struct ShadowReport {
    settle: Duration,
    differences: StableItems<Difference>,
    uncompared: StableItems<NotCompared>,
    notices: BTreeSet<Notice>,
    compared: BTreeMap<&'static str, usize>,
    unsettled_objects: BTreeSet<Object>,
    awaited: PendingVerdict,
    reported: bool,
}

/// An object, by kind and name.
type Object = (ObjectKind, String);

/// The objects that must settle before there is a verdict. These are the objects that were pending
/// when all objects had been compared once. Later differences do not delay the verdict, because
/// then a cluster that constantly gets new nodes would never get one.
#[derive(Debug)]
enum PendingVerdict {
    /// Not everything was compared yet.
    Everything,
    /// These objects are still pending.
    Objects(BTreeSet<Object>),
}

/// The numbers of compared objects and of differences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The objects that were compared, by kind.
    pub compared: BTreeMap<&'static str, usize>,
    /// The differences that have persisted.
    pub differences: usize,
    /// The objects that could not be compared for a while.
    pub not_compared: usize,
    /// Differences, and objects that cannot be compared, which have not persisted long enough to be
    /// shown.
    pub settling: usize,
}

impl ShadowReport {
    /// Creates an empty report. What has not persisted for `settle` is not shown.
    pub fn new(settle: Duration) -> Self {
        let differences = StableItems::default();
        let uncompared = StableItems::default();
        let compared = BTreeMap::new();
        let unsettled_objects = BTreeSet::new();
        Self {
            settle,
            differences,
            uncompared,
            notices: BTreeSet::new(),
            compared,
            unsettled_objects,
            awaited: PendingVerdict::Everything,
            reported: false,
        }
    }

    /// Replaces the findings of all controllers. Returns the lines to print: what is new, what is
    /// resolved, and the summary.
    pub(super) fn update(&mut self, found: Vec<DryRunFindings>) -> Vec<String> {
        self.unsettled_objects = found
            .iter()
            .flat_map(|findings| findings.unsettled.iter().cloned())
            .collect();
        self.compared.clear();
        let mut notices = BTreeSet::new();
        let mut differences = BTreeMap::new();
        let mut uncompared = BTreeMap::new();
        for findings in found {
            for (what, count) in findings.compared {
                // Two controllers may compare the same objects.
                let most = self.compared.entry(what).or_default();
                *most = count.max(*most);
            }
            notices.extend(findings.notices);
            differences.extend(
                findings
                    .differences
                    .into_iter()
                    .map(|(item, at)| (item.key(), (item, at))),
            );
            uncompared.extend(
                findings
                    .uncompared
                    .into_iter()
                    .map(|(item, at)| (item.key(), (item, at))),
            );
        }
        let settle = self.settle;
        let differs = self.differences.update(differences, self.settle);
        let unknown = self.uncompared.update(uncompared, settle);
        let mut lines: Vec<String> = differs
            .new
            .iter()
            .map(|item| format!("difference: {item}"))
            .collect();
        lines.extend(
            differs
                .removed
                .iter()
                .map(|item| format!("resolved: {item}")),
        );
        lines.extend(
            unknown
                .new
                .iter()
                .map(|item| format!("not compared: {item}")),
        );
        lines.extend(
            unknown
                .removed
                .iter()
                .map(|item| format!("compared again: {item}")),
        );
        lines.extend(
            notices
                .difference(&self.notices)
                .map(|notice| format!("notice: {notice}")),
        );
        self.notices = notices;
        self.drop_settled();
        let first = !self.reported && self.is_settled();
        self.reported |= first;
        if !lines.is_empty() || first {
            lines.push(self.summary().to_string());
        }
        lines
    }

    /// Removes from the awaited objects those that are no longer pending.
    fn drop_settled(&mut self) {
        let settle = self.settle;
        let differences = self
            .differences
            .pending(settle)
            .map(|item| (item.kind, item.object.clone()));
        let uncompared = self
            .uncompared
            .pending(settle)
            .map(|item| (item.kind, item.object.clone()));
        let mut pending: BTreeSet<Object> = differences
            .chain(uncompared)
            .chain(self.unsettled_objects.iter().cloned())
            .collect();
        match &mut self.awaited {
            // If a whole kind could not be compared, its differences are unknown until it is
            // compared.
            PendingVerdict::Everything if pending.iter().any(|(_, name)| name.is_empty()) => {}
            PendingVerdict::Everything => self.awaited = PendingVerdict::Objects(pending),
            PendingVerdict::Objects(objects) => objects.retain(|object| pending.remove(object)),
        }
    }

    /// Returns true if nothing is pending that the verdict waits for.
    fn is_settled(&self) -> bool {
        matches!(&self.awaited, PendingVerdict::Objects(objects) if objects.is_empty())
    }

    /// Returns the verdict, once everything was compared and what was found then has either
    /// persisted or been resolved.
    pub fn verdict(&self) -> Option<Verdict> {
        if !self.is_settled() {
            return None;
        }
        let Summary { differences, not_compared, .. } = self.summary();
        // Without any controller nothing was compared.
        let is_complete = not_compared == 0 && !self.compared.is_empty();
        Some(if differences > 0 {
            Verdict::Different
        } else if is_complete {
            Verdict::Same
        } else {
            Verdict::Incomplete
        })
    }

    /// Returns the differences that have persisted, in order.
    pub fn differences(&self) -> impl Iterator<Item = &Difference> {
        self.differences.settled(self.settle)
    }

    /// Returns what could not be compared for a while, in order.
    pub fn uncompared(&self) -> impl Iterator<Item = &NotCompared> {
        self.uncompared.settled(self.settle)
    }

    /// Returns the notices, in order.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter()
    }

    /// Counts objects and findings.
    pub fn summary(&self) -> Summary {
        let differences = self.differences().count();
        let not_compared = self.uncompared().count();
        let settling = self.differences.entries.len() + self.uncompared.entries.len()
            - differences
            - not_compared
            + self.unsettled_objects.len();
        Summary {
            compared: self.compared.clone(),
            differences,
            not_compared,
            settling,
        }
    }

    /// Returns everything that has persisted as text: one line for each finding and notice, and the
    /// summary.
    pub fn lines(&self) -> Vec<String> {
        let differences = self.differences().map(|item| format!("difference: {item}"));
        let uncompared = self
            .uncompared()
            .map(|item| format!("not compared: {item}"));
        let notices = self.notices().map(|notice| format!("notice: {notice}"));
        differences
            .chain(uncompared)
            .chain(notices)
            .chain([self.summary().to_string()])
            .collect()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.differences {
            0 => write!(f, "no differences: ")?,
            1 => write!(f, "1 difference: ")?,
            more => write!(f, "{more} differences: ")?,
        }
        let mut counts = Vec::new();
        for (what, count) in &self.compared {
            if *count == 1 {
                counts.push(format!("1 {}", what.trim_end_matches('s')));
            } else {
                counts.push(format!("{count} {what}"));
            }
        }
        if counts.is_empty() {
            write!(f, "nothing compared")?;
        } else {
            write!(f, "{} compared", counts.join(", "))?;
        }
        if self.not_compared > 0 {
            write!(f, ", {} not compared", self.not_compared)?;
        }
        if self.settling > 0 {
            write!(f, ", {} not settled yet", self.settling)?;
        }
        Ok(())
    }
}

/// Findings by what they concern, with the time since when each exists.
#[derive(Debug)]
struct StableItems<T> {
    entries: BTreeMap<Key, StableItem<T>>,
}

#[derive(Debug)]
struct StableItem<T> {
    item: T,
    first: Instant,
    last: Instant,
    reported: bool,
}

impl<T> Default for StableItems<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new() }
    }
}

impl<T> StableItem<T> {
    fn is_settled(&self, settle: Duration) -> bool {
        self.last.duration_since(self.first) >= settle
    }
}

/// Changes among the findings that have persisted, in order.
struct StableChanges<T> {
    new: Vec<T>,
    removed: Vec<T>,
}

impl<T: Clone + PartialEq> StableItems<T> {
    /// Replaces all findings; each comes with the time at which it was last observed.
    fn update(
        &mut self,
        mut items: BTreeMap<Key, (T, Instant)>,
        settle: Duration,
    ) -> StableChanges<T> {
        let mut new = Vec::new();
        let mut removed = Vec::new();
        let keys: BTreeSet<Key> = self.entries.keys().chain(items.keys()).cloned().collect();
        for key in keys {
            let Some((item, at)) = items.remove(&key) else {
                if let Some(entry) = self.entries.remove(&key)
                    && entry.reported
                {
                    removed.push(entry.item);
                }
                continue;
            };
            let entry = self.entries.entry(key).or_insert_with(|| StableItem {
                item: item.clone(),
                first: at,
                last: at,
                reported: false,
            });
            entry.last = at;
            let changed = entry.item != item;
            entry.item = item;
            if entry.is_settled(settle) && (changed || !entry.reported) {
                entry.reported = true;
                new.push(entry.item.clone());
            }
        }
        StableChanges { new, removed }
    }

    fn pending(&self, settle: Duration) -> impl Iterator<Item = &T> {
        self.entries
            .values()
            .filter(move |entry| !entry.is_settled(settle))
            .map(|entry| &entry.item)
    }

    fn settled(&self, settle: Duration) -> impl Iterator<Item = &T> {
        self.entries
            .values()
            .filter(move |entry| entry.is_settled(settle))
            .map(|entry| &entry.item)
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
