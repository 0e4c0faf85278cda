//! Explanations: why a Node or a Service is as it is, what it waits for, and what to do.
//!
//! Each controller contributes to the explanation of an object through an `Explainer`, from the
//! state that it already holds. Nothing is sent to the cloud or the API server for an explanation.
//!
//! [`NodeExplanation`], [`ServiceExplanation`] and [`RoutesExplanation`] are what the endpoints
//! below `/explain` show, as JSON or as text.

mod attempt;
pub mod cause;
mod node;
pub(crate) mod page;
mod routes;
mod service;

use jiff::{Timestamp, Unit};
use serde::Serialize;
use tokio::time::Instant;

pub(crate) use self::attempt::{
    AttemptLog, AttemptRecord, api_attempt, api_cause, cloud_attempt, cloud_cause,
};
pub use self::{
    cause::Cause,
    node::{
        ExplainedAbsence, ExplainedAddress, ExplainedLabel, ExplainedPodCidr, ExplainedTaint,
        InstanceAnswer, NodeExplanation,
    },
    routes::{FailedRoute, RoutePass, RoutesExplanation},
    service::{
        ExistingLoadBalancer, ExplainedAnnotation, ExplainedBackends, ExplainedMember,
        ExplainedPlan, RequestedLoadBalancer, ServiceExplanation,
    },
};
use crate::{k8s::NodeView, percent, runtime::events::WallClock};

/// What one controller contributes to explanations. Implementations only read what the controller
/// holds anyway.
pub(crate) trait Explainer: Send + Sync {
    /// Adds what the controller has to say about a node.
    fn explain_node(&self, node: &NodeView, time: ExplainTime, explanation: &mut NodeExplanation) {
        let _ = (node, time, explanation);
    }

    /// Explains a Service by its key `namespace/name`; `None` if the controller has no such
    /// Service.
    fn explain_service(&self, key: &str, time: ExplainTime) -> Option<ServiceExplanation> {
        let _ = (key, time);
        None
    }

    /// Returns the keys of the Services that the controller can explain, in any order.
    fn service_keys(&self) -> Vec<String> {
        Vec::new()
    }

    /// Explains the routes; `None` if the controller manages none.
    fn explain_routes(&self, time: ExplainTime) -> Option<RoutesExplanation> {
        let _ = time;
        None
    }
}

/// The name of an object to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectName {
    /// A Node.
    Node(String),
    /// A Service.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The routes of all nodes.
    Routes,
}

impl ObjectName {
    /// Returns the path of the endpoint that explains the object.
    pub fn path(&self) -> String {
        match self {
            Self::Node(name) => format!("/explain/nodes/{}", percent::encode(name)),
            Self::Service { namespace, name } => format!(
                "/explain/services/{}/{}",
                percent::encode(namespace),
                percent::encode(name)
            ),
            Self::Routes => "/explain/routes".to_owned(),
        }
    }
}

/// The explanation of any object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Explanation {
    /// Of a Node.
    Node(Box<NodeExplanation>),
    /// Of a Service.
    Service(Box<ServiceExplanation>),
    /// Of the routes.
    Routes(Box<RoutesExplanation>),
}

impl Explanation {
    /// Returns the explanation in one sentence.
    pub fn summary(&self) -> &str {
        match self {
            Self::Node(node) => &node.summary,
            Self::Service(service) => &service.summary,
            Self::Routes(routes) => &routes.summary,
        }
    }

    /// Returns what is wrong.
    pub fn causes(&self) -> &[ExplainedCause] {
        match self {
            Self::Node(node) => &node.causes,
            Self::Service(service) => &service.causes,
            Self::Routes(routes) => &routes.causes,
        }
    }

    /// Removes the causes that only say what this process has not done yet.
    pub(crate) fn forget_process(&mut self) {
        let causes = match self {
            Self::Node(node) => &mut node.causes,
            Self::Service(service) => &mut service.causes,
            Self::Routes(routes) => &mut routes.causes,
        };
        causes.retain(|cause| !cause.cause.is_about_process());
    }

    /// Formats the explanation as text.
    ///
    /// # Errors
    /// Returns the reason why the details cannot be formatted.
    pub fn text(&self) -> Result<String, String> {
        text(self.summary(), self.causes(), self)
    }
}

/// An explanation without a leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShadowExplanation {
    /// What the caches show.
    pub explanation: Explanation,
    /// What a manager with the same flags would change.
    pub would_change: Vec<String>,
    /// What could not be compared, and why.
    pub not_compared: Vec<String>,
}

impl ShadowExplanation {
    /// Formats the explanation as text.
    ///
    /// # Errors
    /// Returns the reason why the details cannot be formatted.
    pub fn text(&self) -> Result<String, String> {
        let headline = format!("{} (explained without a leader)", self.explanation.summary());
        text(&headline, self.explanation.causes(), self)
    }
}

/// The time of an explanation on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExplainTime {
    pub(crate) now: Instant,
    wall: Timestamp,
}

impl ExplainTime {
    /// Returns the current time.
    pub(crate) fn new(clock: &WallClock) -> Self {
        Self { now: Instant::now(), wall: clock.now() }
    }

    /// Returns the current wall-clock time, in seconds.
    pub(crate) fn wall(self) -> Timestamp {
        whole_seconds(self.wall)
    }

    /// Converts a time of the monotonic clock to wall-clock time, in seconds.
    pub(crate) fn at(self, instant: Instant) -> Timestamp {
        let time = match instant.checked_duration_since(self.now) {
            Some(ahead) => self.wall.checked_add(ahead),
            None => self.wall.checked_sub(self.now.duration_since(instant)),
        };
        whole_seconds(time.unwrap_or(self.wall))
    }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    time.round(Unit::Second).unwrap_or(time)
}

/// A cause as it concerns one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedCause {
    /// The cause.
    pub cause: Cause,
    /// What is wrong with which object.
    pub message: String,
    /// What to do about it.
    pub next_step: &'static str,
    /// When this is looked at again without a change, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl ExplainedCause {
    /// Creates a cause with its next step.
    pub(crate) fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self {
            cause,
            message: message.into(),
            next_step: cause.next_step(),
            until: None,
        }
    }

    /// Creates the cause of an attempt that did not succeed, for an object named like `node a`.
    pub(crate) fn of_attempt(object: &str, attempt: &AttemptRecord, time: ExplainTime) -> Self {
        let message = format!("{object}: {}", attempt.error);
        Self {
            until: attempt.retry_at.map(|at| time.at(at)),
            ..Self::new(attempt.cause, message)
        }
    }

    /// Sets the time at which this is looked at again.
    pub(crate) fn until(self, until: Option<Timestamp>) -> Self {
        Self { until, ..self }
    }
}

/// An attempt that failed or is not finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The controller that made it.
    pub controller: &'static str,
    /// What was attempted.
    pub operation: &'static str,
    /// When it ended.
    pub at: Timestamp,
    /// How it ended.
    pub error: String,
    /// The ID of the request in the cloud's own logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The number of failures in a row; 0 for an attempt that is only not finished.
    pub failures: u32,
    /// When it is retried, unless a change of the object comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
}

/// Formats an explanation as text: a headline, the causes with their next steps, and all details
/// as YAML.
fn text(
    headline: &str,
    causes: &[ExplainedCause],
    details: &impl Serialize,
) -> Result<String, String> {
    let mut lines = vec![headline.to_owned(), String::new()];
    if causes.is_empty() {
        lines.push("Nothing is wrong as far as this manager knows.".to_owned());
    }
    for ExplainedCause { cause, message, next_step, until } in causes {
        lines.push(format!("{}: {message}", cause.name()));
        lines.push(format!("  {}", cause.meaning()));
        if let Some(until) = until {
            lines.push(format!("  until: {until}, unless something changes"));
        }
        lines.push(format!("  next step: {next_step}"));
    }
    let details = serde_saphyr::to_string(details).map_err(|error| error.to_string())?;
    lines.push(format!("\n{details}"));
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn times_before_and_after_the_explanation_are_converted() {
        let earlier = Instant::now();
        let clock = WallClock::tokio_from("2026-01-01T00:00:00Z".parse().unwrap());
        tokio::time::advance(Duration::from_secs(60)).await;
        let time = ExplainTime::new(&clock);
        assert_eq!(time.at(earlier).to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(time.wall().to_string(), "2026-01-01T00:01:00Z");
        let later = Instant::now() + Duration::from_secs(90);
        assert_eq!(time.at(later).to_string(), "2026-01-01T00:02:30Z");
    }

    #[test]
    fn the_text_has_the_next_step_of_each_cause_before_the_details() {
        let causes = [ExplainedCause::new(Cause::CloudThrottled, "node a: slow down")];
        let text = text("Node a is not initialised", &causes, &[1]).unwrap();
        let expected = "Node a is not initialised\n\n\
            CloudThrottled: node a: slow down\n  The cloud throttles the requests of this account.\n  \
            next step: wait; if it lasts, find out who else sends requests for this account, or raise its limit\n\n- 1\n";
        assert_eq!(text, expected);
    }
}
