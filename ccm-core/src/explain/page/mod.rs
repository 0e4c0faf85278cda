//! The page of explanations at `/explain/`: its data, and in `html` its form.
//!
//! It needs no script, and loads nothing but its style sheet. Everything in it is escaped by maud.

mod html;

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    ExplainedCause, NodeExplanation, ObjectName, RoutesExplanation, ServiceExplanation,
    cause::Cause,
};

pub(crate) use self::html::render;

/// The style sheet of the page.
pub(crate) const STYLE: &str = include_str!("style.css");
/// The seconds after which the page loads itself again.
pub(crate) const REFRESH_SECONDS: u32 = 30;
/// The maximum number of rows of a table. The rest is counted, and a filter finds it.
const MAX_ROWS: usize = 100;

/// What a reader chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageOptions {
    /// Text that the name of an object or of one of its causes must contain, in lower case; empty
    /// for all.
    pub(crate) filter: String,
    /// True if the page must not load itself again.
    pub(crate) keep: bool,
}

/// All that the page shows.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) at: Timestamp,
    pub(crate) options: PageOptions,
    /// The objects, or the reason why there are none.
    pub(crate) objects: Result<Arc<PageObjects>, String>,
    pub(crate) queues: Vec<QueueRow>,
    pub(crate) checks: Vec<CheckRow>,
    pub(crate) calls: CallTable,
}

/// The explained objects.
#[derive(Debug, Default)]
pub(crate) struct PageObjects {
    /// The name of the provider.
    pub(crate) provider: String,
    /// The time at which they were explained.
    pub(crate) at: Timestamp,
    pub(crate) waiting: Rows<Waiting>,
    pub(crate) nodes: Rows<NodeRow>,
    pub(crate) services: Rows<ServiceRow>,
    /// The routes, if this manager has any to do with them.
    pub(crate) routes: Option<RoutesExplanation>,
}

/// The first rows of a table that the filter lets through.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    pub(crate) shown: Vec<T>,
    /// The number of rows that the filter lets through.
    pub(crate) matching: usize,
    /// The number of all rows.
    pub(crate) all: usize,
}

/// A cause for which an object waits.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Waiting {
    pub(crate) object: Link,
    pub(crate) cause: Cause,
    pub(crate) message: String,
    pub(crate) until: Option<Timestamp>,
}

/// An object with the address of its explanation, relative to the page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) text: String,
    pub(crate) path: String,
}

/// A Node.
#[derive(Debug)]
pub(crate) struct NodeRow {
    pub(crate) link: Link,
    pub(crate) name: String,
    /// Such as `is initialised and Ready`.
    pub(crate) state: String,
    /// The last answer of the cloud.
    pub(crate) instance: &'static str,
    pub(crate) provider_id: String,
    pub(crate) causes: Vec<Cause>,
}

/// A Service.
#[derive(Debug)]
pub(crate) struct ServiceRow {
    pub(crate) link: Link,
    pub(crate) key: String,
    /// The addresses and host names; empty if there are none.
    pub(crate) ingress: String,
    /// Such as `3 of 5 nodes`; empty if the Service has no load balancer of this manager.
    pub(crate) backends: String,
    /// What is done next.
    pub(crate) action: &'static str,
    pub(crate) causes: Vec<Cause>,
}

/// A work queue.
#[derive(Debug, PartialEq)]
pub(crate) struct QueueRow {
    pub(crate) name: String,
    pub(crate) queued: f64,
    pub(crate) delayed: f64,
    pub(crate) oldest_seconds: f64,
    pub(crate) retries: f64,
}

/// A health check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CheckRow {
    pub(crate) name: String,
    /// The reason of a failure.
    pub(crate) failure: Option<String>,
}

/// The calls of the cloud.
#[derive(Debug, PartialEq)]
pub(crate) struct CallTable {
    /// The number of seconds that the recent calls cover; `None` for those since the start.
    pub(crate) seconds: Option<u64>,
    /// One for each operation that was ever called.
    pub(crate) rows: Vec<CallRow>,
}

/// The calls of one operation.
#[derive(Debug, PartialEq)]
pub(crate) struct CallRow {
    pub(crate) operation: String,
    pub(crate) recent: CallCounts,
    pub(crate) since_start: CallCounts,
}

/// Counts of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CallCounts {
    pub(crate) calls: f64,
    pub(crate) failed: f64,
    /// The sum of their durations.
    pub(crate) seconds: f64,
}

impl PageOptions {
    /// Returns true if the filter lets through an object with this name and these causes.
    fn matches<'a>(&self, name: &str, causes: impl IntoIterator<Item = &'a Cause>) -> bool {
        name.to_lowercase().contains(&self.filter)
            || causes
                .into_iter()
                .any(|cause| cause.name().to_lowercase().contains(&self.filter))
    }
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { shown: Vec::new(), matching: 0, all: 0 }
    }
}

impl<T> Rows<T> {
    /// Counts a row, and keeps it if the filter lets it through.
    fn push(&mut self, row: T, matches: bool) {
        self.all += 1;
        if matches {
            self.matching += 1;
            self.shown.push(row);
        }
    }

    fn sort_and_limit<K: Ord>(&mut self, key: impl FnMut(&T) -> K) {
        self.shown.sort_by_cached_key(key);
        self.shown.truncate(MAX_ROWS);
    }
}

impl Link {
    /// Returns the link to the text about an object.
    fn to(object: &ObjectName, text: &str) -> Self {
        let path = object.path();
        let path = path.strip_prefix("/explain/").unwrap_or(&path);
        Self { text: text.to_owned(), path: format!("{path}?format=text") }
    }
}

impl PageObjects {
    /// Adds a Node.
    pub(crate) fn add_node(&mut self, node: NodeExplanation, options: &PageOptions) {
        let link = Link::to(&ObjectName::Node(node.node.clone()), &format!("Node {}", node.node));
        let causes: Vec<Cause> = node.causes.iter().map(|cause| cause.cause).collect();
        let matches = options.matches(&node.node, &causes);
        self.add_causes(&link, &node.node, node.causes, options);
        let state = node.summary.strip_prefix(&*link.text);
        let row = NodeRow {
            state: state.unwrap_or(&node.summary).trim_start().to_owned(),
            link,
            name: node.node,
            instance: node
                .instance
                .map_or("not asked about yet", |instance| instance.answer),
            provider_id: node.provider_id.unwrap_or_default(),
            causes,
        };
        self.nodes.push(row, matches);
    }

    /// Adds a Service.
    pub(crate) fn add_service(&mut self, service: ServiceExplanation, options: &PageOptions) {
        let key = service.service;
        let (namespace, name) = key.split_once('/').unwrap_or(("", &key));
        let object = ObjectName::Service { namespace: namespace.to_owned(), name: name.to_owned() };
        let link = Link::to(&object, &format!("Service {key}"));
        let causes: Vec<Cause> = service.causes.iter().map(|cause| cause.cause).collect();
        let matches = options.matches(&key, &causes);
        self.add_causes(&link, &key, service.causes, options);
        let row = ServiceRow {
            link,
            ingress: service.existing.ingress.join(", "),
            backends: service.backends.map_or_else(String::new, |backends| {
                format!("{} of {} {}", backends.members, backends.candidates.len(), backends.kind)
            }),
            action: service.plan.action,
            causes,
            key,
        };
        self.services.push(row, matches);
    }

    /// Adds the routes.
    pub(crate) fn add_routes(&mut self, routes: RoutesExplanation) {
        self.routes = Some(routes);
    }

    /// Sorts all rows, those with a cause first, and leaves out what is too much for a page.
    pub(crate) fn finish(&mut self) {
        self.nodes
            .sort_and_limit(|row| (row.causes.is_empty(), row.name.clone()));
        self.services
            .sort_and_limit(|row| (row.causes.is_empty(), row.key.clone()));
        self.waiting
            .sort_and_limit(|row| (row.object.clone(), row.cause, row.message.clone()));
    }

    fn add_causes(
        &mut self,
        object: &Link,
        name: &str,
        causes: Vec<ExplainedCause>,
        options: &PageOptions,
    ) {
        for ExplainedCause { cause, message, until, .. } in causes {
            // Nothing waits for the taints of others, and control planes always have some.
            if cause == Cause::TaintedByOthers {
                continue;
            }
            let matches = options.matches(name, [&cause]);
            self.waiting
                .push(Waiting { object: object.clone(), cause, message, until }, matches);
        }
    }
}

impl CallCounts {
    /// Returns the calls since an earlier count.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            failed: self.failed - earlier.failed,
            seconds: self.seconds - earlier.seconds,
        }
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
