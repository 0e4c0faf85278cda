//! Situations in which a Node, a Service or a route is not ready, one row each: the explanation and
//! the event name the true cause and its next step.
//!
//! Every cause of the table in `docs/operating.md` has a situation. What an explanation shows beside
//! its causes is tested in `explain`, `explain_network` and `explain_services`.

mod network;
mod nodes;
mod services;

use std::collections::BTreeSet;

use ccm_core::explain::{Cause, ExplainedCause, ObjectName};
use futures::future::LocalBoxFuture;

use crate::cluster::{Ccm, TestCluster};

/// A row of the table.
struct Situation {
    /// What is wrong, for a person.
    name: &'static str,
    object: Object,
    /// The causes that the explanation must have, in order.
    causes: &'static [Cause],
    /// The reason of the event on the object, which must name the next step of the last
    /// cause. `None` if nothing has to be done about the object, or others must do it: then no event
    /// may name a next step.
    event: Option<&'static str>,
    arrange: fn() -> LocalBoxFuture<'static, Arranged>,
}

/// A situation that has come about. Everything in it runs on until it is dropped.
struct Arranged {
    cluster: TestCluster,
    ccm: Ccm,
}

/// The object that is not ready.
#[derive(Clone, Copy)]
enum Object {
    Node(&'static str),
    /// A Service of the default namespace.
    Service(&'static str),
}

/// Makes rows: what is wrong, the object, the event, the causes, and what brings it about.
macro_rules! situations {
    ($($name:literal => $object:expr, $event:expr, [$($cause:ident),+], $arrange:expr;)+) => {
        vec![$($crate::situations::Situation {
            name: $name,
            object: $object,
            causes: &[$(ccm_core::explain::Cause::$cause),+],
            event: $event,
            arrange: || Box::pin($arrange),
        }),+]
    };
}
pub(crate) use situations;

impl Object {
    fn kind_and_name(self) -> (&'static str, &'static str) {
        match self {
            Self::Node(name) => ("Node", name),
            Self::Service(name) => ("Service", name),
        }
    }

    fn name(self) -> ObjectName {
        match self {
            Self::Node(name) => ObjectName::Node(name.to_owned()),
            Self::Service(name) => {
                ObjectName::Service { namespace: "default".to_owned(), name: name.to_owned() }
            }
        }
    }
}

impl Arranged {
    /// The events on an object that name a next step: reason and text, the last one last.
    fn events(&self, object: Object) -> Vec<(String, String)> {
        let (kind, name) = object.kind_and_name();
        let (events, _) = self.cluster.server.store().list(("", "events"), None);
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        events
            .iter()
            .map(|event| event.value())
            .filter(|event| {
                let about = &event["involvedObject"];
                about["kind"] == kind && about["name"] == name
            })
            .map(|event| (text(&event["reason"]), text(&event["message"])))
            .filter(|(_, note)| note.contains("next step: "))
            .collect()
    }
}

impl Situation {
    /// Brings the situation about, and says what is explained wrongly.
    async fn check(&self) -> Result<(), String> {
        let arranged = (self.arrange)().await;
        let explanation = arranged
            .ccm
            .explanations
            .explain(&self.object.name())
            .map_err(|error| error.to_string())?;
        // The node controller of a real cluster removes the taint that every new node has here.
        let is_counted = |explained: &&ExplainedCause| {
            explained.cause != Cause::TaintedByOthers
                || self.causes.contains(&Cause::TaintedByOthers)
        };
        let explained: Vec<_> = explanation.causes().iter().filter(is_counted).collect();
        let causes: Vec<Cause> = explained.iter().map(|explained| explained.cause).collect();
        if causes != self.causes {
            return Err(format!("explained as {explained:#?}"));
        }
        let (_, name) = self.object.kind_and_name();
        let text = explanation.text()?;
        for explained in explained {
            let step = format!("\n  next step: {}\n", explained.cause.next_step());
            if !explained.message.contains(name) || !text.contains(&step) {
                return Err(format!("object or next step are missing: {text}"));
            }
        }
        let events = arranged.events(self.object);
        let Some(reason) = self.event else {
            return match events.last() {
                None => Ok(()),
                Some((reason, note)) => Err(format!("an event: {reason}: {note}")),
            };
        };
        let last_cause = self.causes.last().ok_or("no cause")?;
        let ending = format!("; next step: {}", last_cause.next_step());
        match events.last() {
            Some((found, note)) if found == reason && note.ends_with(&ending) => Ok(()),
            other => Err(format!("no event {reason} with the next step, but {other:?}")),
        }
    }
}

/// Checks all rows, and fails with all that are wrong.
async fn check_all(situations: Vec<Situation>) {
    let mut wrong = Vec::new();
    for situation in &situations {
        if let Err(reason) = situation.check().await {
            wrong.push(format!("{}: {reason}", situation.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} situations:\n{}",
        wrong.len(),
        situations.len(),
        wrong.join("\n")
    );
}

#[tokio::test(start_paused = true)]
async fn the_causes_and_next_steps_of_nodes_are_true() {
    check_all(nodes::situations()).await;
}

#[tokio::test(start_paused = true)]
async fn the_causes_and_next_steps_of_pod_cidrs_and_routes_are_true() {
    check_all(network::situations()).await;
}

#[tokio::test(start_paused = true)]
async fn the_causes_and_next_steps_of_services_are_true() {
    check_all(services::situations()).await;
}

#[test]
fn every_cause_has_a_situation() {
    let mut situations = nodes::situations();
    situations.extend(network::situations());
    situations.extend(services::situations());
    let shown: BTreeSet<Cause> = situations
        .iter()
        .flat_map(|situation| situation.causes.iter().copied())
        .collect();
    let missing: Vec<_> = Cause::all()
        .filter(|cause| !shown.contains(cause))
        .map(Cause::name)
        .collect();
    assert!(missing.is_empty(), "no situation shows {missing:?}");
    assert!(situations.len() >= 30, "{}", situations.len());
    let names: BTreeSet<_> = situations.iter().map(|situation| situation.name).collect();
    assert_eq!(names.len(), situations.len(), "two situations have one name");
}
