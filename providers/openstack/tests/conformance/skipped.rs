//! What cannot be kept, or not be checked, and why.

use ccm_testkit::conformance::{Outcome, Report};

/// Suite, rule, and why. One that turns out to be kept is a failure, too.
const SKIPPED: &[(&str, &str, &str)] = &[
    (
        "routes",
        "blackhole-is-told",
        "a router does not say whether a next hop is there, and to ask for every node's port with each listing costs too \
         much; the route is left over once the Node is gone: what_a_node_left_behind_is_listed_without_a_node",
    ),
    (
        "load balancers",
        "both-families-served",
        "of two families the first is served, with a remark, as upstream does: a Service that it serves must go on",
    ),
    (
        "load balancers",
        "foreign-untouched",
        "names are not unique, and the name alone is whose a balancer is, as upstream has it; others' are never touched: \
         explore_tests",
    ),
];

/// Compares a report with what is expected of each rule; the error says what is otherwise.
pub(crate) fn judge(suite: &str, report: &Report) -> Result<(), String> {
    let skipped = |rule: &str| SKIPPED.iter().any(|(of, skipped, _)| *of == suite && *skipped == rule);
    let wrong = report.cases().iter().filter(|case| (case.outcome == Outcome::Passed) == skipped(case.rule));
    let wrong: Vec<_> = wrong.map(|case| case.rule).collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("otherwise than expected: {wrong:?}\n{report}")),
    }
}
