//! Requests that change something in AWS, by the Service that they are for.

use std::fmt::Write as _;

use ccm_testkit::moto::{fault_proxy::Recorded, query_api::CLASSIC};

use crate::table::Changes;

/// What in a request tells its Service.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceIndex {
    /// Texts that requests for a Service hold, with its name.
    pub(crate) texts: Vec<(String, String)>,
}

impl ServiceIndex {
    /// The Service that a request is for.
    pub(crate) fn service(&self, request: &Recorded) -> String {
        let holds = |text: &str| {
            request
                .parameters
                .iter()
                .any(|(_, value)| value.contains(text))
        };
        self.texts
            .iter()
            .find(|(text, _)| holds(text))
            .map(|(_, name)| name.clone())
            .unwrap_or_default()
    }
}

/// Whether a request changes something.
pub(crate) fn changes(request: &Recorded) -> bool {
    !["Describe", "Get", "List"]
        .iter()
        .any(|read| request.action.starts_with(read))
}

/// Name of the action; those of classic load balancers are told apart.
pub(crate) fn action(request: &Recorded) -> String {
    let classic = if request.version == CLASSIC.version {
        "classic "
    } else {
        ""
    };
    format!("{classic}{}", request.action)
}

/// Counts the requests that change something.
pub(crate) fn count(requests: &[Recorded], whose: &ServiceIndex) -> Changes {
    let mut counts = Changes::new();
    for request in requests.iter().filter(|request| changes(request)) {
        *counts
            .entry((whose.service(request), action(request)))
            .or_default() += 1;
    }
    counts
}

/// The last actions, reads included, with their Services and HTTP statuses.
pub(crate) fn last_actions(requests: &[Recorded], whose: &ServiceIndex) -> String {
    let last = requests.iter().rev().take(20).map(|request| {
        let status = request.status.unwrap_or_default();
        format!("{} {} {status}", whose.service(request), action(request))
    });
    last.collect::<Vec<_>>().join(", ")
}

/// One line for each request that changes something.
pub(crate) fn lines(requests: &[Recorded], whose: &ServiceIndex) -> String {
    let mut lines = String::new();
    for request in requests.iter().filter(|request| changes(request)) {
        let parameters: Vec<_> = request
            .parameters
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let (service, action) = (whose.service(request), action(request));
        let status = request.status.unwrap_or_default();
        // Writing into a text does not fail.
        let _ = writeln!(lines, "  {service:9} {action} {status} {}", parameters.join(" "));
    }
    lines
}
