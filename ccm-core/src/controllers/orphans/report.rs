//! The report of the subcommand `orphans`, as a table for people and as JSON for programs.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    plan::Orphan,
    scanner::{CollectOutcome, OrphanScanError},
};
use crate::{config::duration, error::chain, provider::Owner};

/// The number of columns of the table.
const COLUMNS: usize = 6;

/// The orphans of a cluster, and what was done about each.
#[derive(Debug)]
pub struct OrphanReport {
    /// The name of the cluster (`--cluster-name`).
    pub cluster: String,
    /// The cluster ID in the cloud, which the user has to confirm before orphans are deleted.
    pub cluster_id: Box<str>,
    /// The number of objects that the cluster owns.
    pub owned: usize,
    /// The time of the scan.
    pub at: Timestamp,
    /// The orphans, and what was done about each.
    pub orphans: Vec<(Orphan, OrphanAction)>,
}

/// The action that was taken on an orphan.
#[derive(Debug)]
pub enum OrphanAction {
    /// None, because no deletion was requested.
    Listed,
    /// None, because the orphan is younger than the minimum age, or its age is unknown.
    TooYoung,
    /// An attempt to delete the orphan.
    Collected(Result<CollectOutcome, OrphanScanError>),
}

impl OrphanAction {
    /// Returns true if the orphan still exists and still is an orphan.
    fn is_remaining(&self) -> bool {
        !matches!(self, Self::Collected(Ok(CollectOutcome::Deleted | CollectOutcome::StillInUse)))
    }

    fn as_str(&self) -> &'static str {
        match self {
            Self::Listed => "left",
            Self::TooYoung => "too-young",
            Self::Collected(Ok(CollectOutcome::Deleted)) => "deleted",
            Self::Collected(Ok(CollectOutcome::Pending(_))) => "pending",
            Self::Collected(Ok(CollectOutcome::StillInUse)) => "wanted",
            Self::Collected(Err(_)) => "failed",
        }
    }

    /// Returns the reason for the state, if there is one.
    fn detail(&self) -> Option<String> {
        match self {
            Self::Collected(Ok(CollectOutcome::Pending(reason))) => Some(reason.to_string()),
            Self::Collected(Err(error)) => Some(chain(error)),
            _ => None,
        }
    }
}

impl OrphanReport {
    /// Counts the orphans that still exist.
    pub fn remaining(&self) -> usize {
        self.orphans
            .iter()
            .filter(|(_, action)| action.is_remaining())
            .count()
    }

    /// Counts the orphans that could not be deleted.
    pub fn failed(&self) -> usize {
        self.orphans
            .iter()
            .filter(|(_, action)| matches!(action, OrphanAction::Collected(Err(_))))
            .count()
    }

    /// Formats the report as a table with a summary below.
    pub fn table(&self) -> String {
        // Format the orphans, if there are any.
        let mut rows = vec![["KIND", "ID", "MADE FOR", "AGE", "WHY", "STATE"].map(str::to_owned)];
        rows.extend(
            self.orphans
                .iter()
                .map(|(orphan, action)| self.format_row(orphan, action)),
        );
        let mut text = String::new();
        if rows.len() > 1 {
            let widths = column_widths(&rows);
            for row in &rows {
                let cells: Vec<String> = row
                    .iter()
                    .zip(widths)
                    .map(|(cell, width)| format!("{cell:<width$}"))
                    .collect();
                text.push_str(cells.join("  ").trim_end());
                text.push('\n');
            }
        }
        // Add the summary.
        let cluster_id = if *self.cluster_id == *self.cluster {
            String::new()
        } else {
            format!(", in the cloud {:?}", self.cluster_id)
        };
        let _ = writeln!(
            text,
            "cluster {:?}{cluster_id}: {} of {} cloud objects are orphans, {} left",
            self.cluster,
            self.orphans.len(),
            self.owned,
            self.remaining()
        );
        if self
            .orphans
            .iter()
            .any(|(_, action)| matches!(action, OrphanAction::Listed))
        {
            let _ = writeln!(
                text,
                "to delete those that are old enough, add --delete --confirm={}",
                self.cluster_id
            );
        }
        text
    }

    fn format_row(
        &self,
        Orphan { object, reason }: &Orphan,
        action: &OrphanAction,
    ) -> [String; COLUMNS] {
        let age = match object.created {
            Some(created) => format_age(self.at, created),
            None => "unknown".to_owned(),
        };
        let state = match action.detail() {
            Some(detail) => format!("{}: {detail}", action.as_str()),
            None => action.as_str().to_owned(),
        };
        [
            object.kind.to_string(),
            object.id.to_string(),
            format_owner(&object.owner),
            age,
            reason.to_string(),
            state,
        ]
    }

    /// Formats the report as JSON.
    pub fn json(&self) -> Value {
        let orphans = self
            .orphans
            .iter()
            .map(|(Orphan { object, reason }, action)| {
                let made_for = match &object.owner {
                    Owner::Cluster => json!({"kind": "Cluster"}),
                    Owner::Service { namespace, name, uid } => {
                        json!({"kind": "Service", "namespace": namespace, "name": name, "uid": uid})
                    }
                    Owner::Node { name } => json!({"kind": "Node", "name": name}),
                };
                json!({
                    "kind": &*object.kind,
                    "id": object.id,
                    "madeFor": made_for,
                    "created": object.created,
                    "why": reason.to_string(),
                    "state": action.as_str(),
                    "detail": action.detail(),
                })
            });
        json!({
            "cluster": self.cluster,
            "identity": self.cluster_id,
            "at": self.at,
            "owned": self.owned,
            "left": self.remaining(),
            "orphans": orphans.collect::<Vec<_>>(),
        })
    }
}

fn column_widths(rows: &[[String; COLUMNS]]) -> [usize; COLUMNS] {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

/// Formats an owner for people.
pub(crate) fn format_owner(owner: &Owner) -> String {
    match owner {
        Owner::Cluster => "the cluster".to_owned(),
        Owner::Service { namespace, name, .. } => format!("Service {namespace}/{name}"),
        Owner::Node { name } => format!("Node {name}"),
    }
}

/// Formats the time since the creation in whole seconds. A time in the future counts as now.
fn format_age(now: Timestamp, created: Timestamp) -> String {
    let seconds = now
        .duration_since(created)
        .as_secs()
        .try_into()
        .unwrap_or_default();
    duration::format(std::time::Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controllers::orphans::OrphanReason,
        provider::{CloudError, OwnedObject},
    };

    fn orphan(id: &str, owner: Owner, created: Option<i64>) -> Orphan {
        let created = created.map(|second| Timestamp::from_second(second).unwrap());
        Orphan {
            object: OwnedObject { kind: "load balancer".into(), id: id.into(), owner, created },
            reason: OrphanReason::NoService,
        }
    }

    fn web() -> Owner {
        Owner::Service {
            namespace: "default".into(),
            name: "web".into(),
            uid: Some("u1".into()),
        }
    }

    fn report(treatments: Vec<OrphanAction>) -> OrphanReport {
        let orphans = treatments
            .into_iter()
            .enumerate()
            .map(|(index, treatment)| {
                (orphan(&format!("lb-{index}"), web(), (index == 0).then_some(100)), treatment)
            });
        let at = Timestamp::from_second(3820).unwrap();
        OrphanReport {
            cluster: "blue".into(),
            cluster_id: "blue-7".into(),
            owned: 9,
            at,
            orphans: orphans.collect(),
        }
    }

    fn failed() -> OrphanAction {
        OrphanAction::Collected(Err(CloudError::transient("no answer").into()))
    }

    #[test]
    fn a_person_reads_a_table() {
        let text = report(vec![OrphanAction::Listed, failed()]).table();
        let expected = "\
KIND           ID    MADE FOR             AGE      WHY                     STATE
load balancer  lb-0  Service default/web  1h2m0s   no Service asks for it  left
load balancer  lb-1  Service default/web  unknown  no Service asks for it  failed: no answer
cluster \"blue\", in the cloud \"blue-7\": 2 of 9 cloud objects are orphans, 2 left
to delete those that are old enough, add --delete --confirm=blue-7
";
        assert_eq!(text, expected);
        let plain = OrphanReport { cluster_id: "blue".into(), ..report(Vec::new()) };
        assert_eq!(plain.table(), "cluster \"blue\": 0 of 9 cloud objects are orphans, 0 left\n");
    }

    #[test]
    fn a_program_reads_json() {
        let json =
            report(vec![OrphanAction::Collected(Ok(CollectOutcome::Pending("it is busy".into())))])
                .json();
        assert_eq!((&json["identity"], &json["owned"]), (&json!("blue-7"), &json!(9)));
        assert_eq!(json["left"], 1);
        let orphan = &json["orphans"][0];
        assert_eq!(
            orphan["madeFor"],
            json!({"kind": "Service", "namespace": "default", "name": "web", "uid": "u1"})
        );
        assert_eq!(orphan["created"], "1970-01-01T00:01:40Z");
        assert_eq!(
            (&orphan["state"], &orphan["detail"]),
            (&json!("pending"), &json!("it is busy"))
        );
    }

    #[test]
    fn what_is_gone_or_wanted_is_not_left() {
        let gone = |fate| OrphanAction::Collected(Ok(fate));
        let report = report(vec![
            gone(CollectOutcome::Deleted),
            gone(CollectOutcome::StillInUse),
            gone(CollectOutcome::Pending("busy".into())),
            failed(),
            OrphanAction::Listed,
            OrphanAction::TooYoung,
        ]);
        assert_eq!((report.remaining(), report.failed()), (4, 1));
    }
}
