//! The IAM documents against what the processes of all cases asked for.

use std::{collections::BTreeSet, path::Path};

use anyhow::Context as _;
use ccm_testkit::moto::{fault_proxy::Recorded, query_api::CLASSIC};
use libtest_mimic::Completion;
use serde_json::Value;

use super::fixture::SharedServers;

/// What is granted and was not asked for, with the reason.
const NEVER: [(&str, &str); 4] = [
    ("ec2:ModifyNetworkInterfaceAttribute", "routes to instances with several interfaces"),
    ("ec2:ReplaceRoute", "a route that leads to another instance"),
    (
        "elasticloadbalancing:DescribeListenerCertificates",
        "certificates of listeners that another process made",
    ),
    ("iam:CreateServiceLinkedRole", "AWS itself, at the first load balancer of an account"),
];

/// Says that fewer cases passed than have to, so that nothing can be said about rights.
pub(crate) fn too_few(passed: usize, all: usize) -> Completion {
    Completion::ignored_with(format!(
        "{passed} of {all} cases of `cluster` passed in this run: most was not asked for"
    ))
}

/// Every request that any case has made is granted, and whatever is granted was made by some case,
/// or there is a reason. Ignored when not `all` cases passed before.
pub(crate) fn match_what_was_asked(
    house: &SharedServers,
    all: usize,
) -> anyhow::Result<Completion> {
    let passed = house.successes();
    if passed < all {
        return Ok(too_few(passed, all));
    }
    // Who gives credentials is asked before there are any, or with rights that are the role's to
    // grant. Whose credentials they are, AWS says to all.
    let of_credentials = |request: &&Recorded| {
        request.action.is_empty()
            || request.action.starts_with("AssumeRole")
            || request.action == "GetCallerIdentity"
    };
    let recorded = house.recorded();
    // Some actions have one name for both kinds of load balancers. The version tells them apart.
    let (for_classics, others): (Vec<_>, Vec<_>) = recorded
        .iter()
        .filter(|request| !of_credentials(request))
        .partition(|request| request.version == CLASSIC.version);
    let permissions = |requests: Vec<&Recorded>| -> BTreeSet<String> {
        requests.into_iter().map(Recorded::permission).collect()
    };
    compare("all.json", &permissions(others), &NEVER)?;
    compare("classic-load-balancers.json", &permissions(for_classics), &[])?;
    Ok(Completion::Completed)
}

/// Fails unless a document grants what was asked for, and nothing else but what is `never` asked for.
fn compare(document: &str, asked: &BTreeSet<String>, never: &[(&str, &str)]) -> anyhow::Result<()> {
    let granted = granted_by(document)?;
    let refused: Vec<_> = asked.difference(&granted).collect();
    anyhow::ensure!(refused.is_empty(), "{document}: not granted: {refused:?}");
    let unused: BTreeSet<_> = granted.difference(asked).map(String::as_str).collect();
    let known: BTreeSet<_> = never.iter().map(|(action, _)| *action).collect();
    let surplus: Vec<_> = unused.difference(&known).collect();
    anyhow::ensure!(
        surplus.is_empty(),
        "{document}: granted, never asked for, and without a reason here: {surplus:?}"
    );
    let wrong: Vec<_> = known.difference(&unused).collect();
    anyhow::ensure!(
        wrong.is_empty(),
        "{document}: asked for, or not granted, though a reason says that it is not: {wrong:?}"
    );
    Ok(())
}

/// Returns the actions that a document grants.
fn granted_by(document: &str) -> anyhow::Result<BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/iam");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(folder.join(document))?)?;
    let statements = document["Statement"]
        .as_array()
        .context("a policy has statements")?;
    let actions = statements
        .iter()
        .filter_map(|statement| statement["Action"].as_array())
        .flatten();
    Ok(actions
        .filter_map(|action| action.as_str().map(str::to_owned))
        .collect())
}
