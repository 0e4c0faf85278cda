//! The IAM documents against the requests that the provider can make: which actions they list, and, with
//! a small evaluator of policies, on which objects they allow them.

mod authorization;
mod evaluation;
mod policy;
mod rows;

use std::{collections::BTreeSet, path::PathBuf};

use serde_json::Value;

pub(crate) use self::evaluation::denial;

use crate::api::{Action, RequestClass};

const CAPABILITIES: [&str; 8] = [
    "nodes",
    "routes",
    "load-balancers",
    "load-balancer-extras",
    "load-balancer-capacity",
    "security-groups",
    "classic-load-balancers",
    "tagging",
];
/// The capabilities that have no room in the document for all: a policy has at most 6,144 characters.
const APART: [&str; 2] = ["classic-load-balancers", "load-balancer-capacity"];
/// What AWS asks for beside the requests: the first load balancer of an account makes a role.
const IMPLIED: &str = "iam:CreateServiceLinkedRole";

/// Says which capabilities make a request. A new kind of request does not compile without an
/// answer.
// length: one table
fn capabilities(action: Action) -> &'static [&'static str] {
    use Action as A;
    match action {
        A::DescribeInstances => &["nodes", "routes", "load-balancers"],
        A::DescribeAvailabilityZones | A::DescribeNetworkInterfaces => &["nodes", "load-balancers"],
        A::DescribeInstanceTopology => &["nodes"],
        A::DescribeRouteTables => &["routes", "load-balancers"],
        A::CreateRoute
        | A::ReplaceRoute
        | A::DeleteRoute
        | A::ModifyInstanceAttribute
        | A::ModifyNetworkInterfaceAttribute => &["routes"],
        A::CreateSecurityGroup
        | A::DeleteSecurityGroup
        | A::AuthorizeSecurityGroupIngress
        | A::RevokeSecurityGroupIngress => &["security-groups"],
        A::CreateTags | A::DeleteTags => &["security-groups", "tagging"],
        A::DescribeSubnets
        | A::DescribeVpcs
        | A::DescribeSecurityGroups
        | A::DescribeLoadBalancers
        | A::DescribeLoadBalancerAttributes
        | A::DescribeTargetGroups
        | A::DescribeTargetGroupAttributes
        | A::DescribeTargetHealth
        | A::DescribeListeners
        | A::DescribeElbTags
        | A::CreateLoadBalancer
        | A::DeleteLoadBalancer
        | A::ModifyLoadBalancerAttributes
        | A::CreateTargetGroup
        | A::ModifyTargetGroup
        | A::ModifyTargetGroupAttributes
        | A::DeleteTargetGroup
        | A::RegisterTargets
        | A::DeregisterTargets
        | A::CreateListener
        | A::ModifyListener
        | A::DeleteListener
        | A::AddElbTags
        | A::RemoveElbTags => &["load-balancers"],
        A::DescribeListenerAttributes
        | A::DescribeListenerCertificates
        | A::SetSubnets
        | A::SetIpAddressType
        | A::SetSecurityGroups
        | A::ModifyListenerAttributes
        | A::AddListenerCertificates
        | A::RemoveListenerCertificates => &["load-balancer-extras"],
        A::DescribeCapacityReservation | A::ModifyCapacityReservation => {
            &["load-balancer-capacity"]
        }
        A::DescribeClassic
        | A::DescribeClassicTags
        | A::DescribeClassicAttributes
        | A::CreateClassic
        | A::CreateClassicListeners
        | A::DeleteClassicListeners
        | A::ConfigureClassicHealthCheck
        | A::ModifyClassicAttributes
        | A::SetClassicSecurityGroups
        | A::AttachClassicSubnets
        | A::DetachClassicSubnets
        | A::CreateClassicPolicy
        | A::SetClassicListenerPolicies
        | A::SetClassicBackendPolicies
        | A::AddClassicTags
        | A::RegisterClassic
        | A::DeregisterClassic
        | A::DeleteClassic => &["classic-load-balancers"],
        // AWS needs no permission for it, and allows it even if a policy denies it.
        A::GetCallerIdentity => &[],
    }
}

fn text(path: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("docs/iam/{path}.json"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn document(path: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(&text(path)).unwrap();
    assert_eq!(document["Version"], "2012-10-17", "{path}");
    document["Statement"].as_array().unwrap().clone()
}

/// The statements of the documents that allow everything together.
fn in_full() -> Vec<Value> {
    let names = ["all"].into_iter().chain(APART);
    names.flat_map(document).collect()
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values
            .iter()
            .map(|value| value.as_str().unwrap().to_owned())
            .collect(),
        value => vec![value.as_str().unwrap().to_owned()],
    }
}

fn actions(path: &str) -> BTreeSet<String> {
    document(path)
        .iter()
        .flat_map(|statement| texts(&statement["Action"]))
        .collect()
}

fn only_reads(statement: &Value) -> bool {
    texts(&statement["Action"])
        .iter()
        .all(|action| action.contains(":Describe"))
}

/// What a capability needs.
fn needed(capability: &str) -> BTreeSet<String> {
    let own = Action::ALL
        .iter()
        .copied()
        .filter(|action| capabilities(*action).contains(&capability))
        .map(authorization::name);
    own.chain((capability == "load-balancers").then(|| IMPLIED.to_owned()))
        .collect()
}

#[test]
fn each_document_allows_exactly_what_its_capability_asks_for() {
    for capability in CAPABILITIES {
        assert_eq!(actions(capability), needed(capability), "{capability}");
    }
}

#[test]
fn all_documents_together_allow_exactly_what_the_provider_can_ask_for() {
    let mut expected: BTreeSet<String> = Action::ALL
        .iter()
        .copied()
        .filter(|action| !capabilities(*action).is_empty())
        .map(authorization::name)
        .collect();
    expected.insert(IMPLIED.to_owned());
    assert_eq!(
        CAPABILITIES
            .iter()
            .flat_map(|capability| actions(capability))
            .collect::<BTreeSet<_>>(),
        expected
    );
    // One statement for all reads, so that the document stays within the size of a policy.
    let statements = CAPABILITIES
        .iter()
        .filter(|capability| !APART.contains(capability))
        .flat_map(|capability| document(capability));
    let (reads, writes): (Vec<_>, Vec<_>) = statements.partition(only_reads);
    let all = document("all");
    assert_eq!(all[1..], writes);
    let reads: BTreeSet<_> = reads
        .iter()
        .flat_map(|statement| texts(&statement["Action"]))
        .collect();
    assert_eq!(texts(&all[0]["Action"]), reads.into_iter().collect::<Vec<_>>());
}

#[test]
fn documents_without_conditions_allow_the_same() {
    for name in CAPABILITIES.into_iter().chain(["all"]) {
        let simple = format!("simple/{name}");
        assert_eq!(actions(&simple), actions(name), "{name}");
        for statement in document(&simple)
            .iter()
            .filter(|statement| texts(&statement["Action"]) != [IMPLIED])
        {
            assert_eq!(
                (&statement["Resource"], statement.get("Condition")),
                (&Value::from("*"), None),
                "{name}"
            );
        }
    }
}

#[test]
fn statements_are_well_formed_and_use_no_wildcards_for_actions() {
    let mut sids = BTreeSet::new();
    for statement in in_full() {
        let sid = statement["Sid"].as_str().unwrap().to_owned();
        assert!(sid.chars().all(|c| c.is_ascii_alphanumeric()), "{sid}");
        assert_eq!(statement["Effect"], "Allow", "{sid}");
        assert!(
            texts(&statement["Action"])
                .iter()
                .all(|action| !action.contains('*')),
            "{sid}"
        );
        assert!(sids.insert(sid.clone()), "{sid} is there twice");
    }
}

#[test]
fn changes_name_the_kinds_of_objects_that_they_are_for() {
    let writes: BTreeSet<String> = Action::ALL
        .iter()
        .copied()
        .filter(|action| action.class() == RequestClass::Write)
        .map(authorization::name)
        .collect();
    for statement in in_full() {
        let (actions, resources) = (texts(&statement["Action"]), texts(&statement["Resource"]));
        let changes = actions.iter().any(|action| writes.contains(action));
        assert!(!changes || resources != ["*"], "{}", statement["Sid"]);
        // A statement that reads has neither resource nor condition: AWS supports none.
        if only_reads(&statement) {
            assert_eq!((resources, statement.get("Condition")), (vec!["*".to_owned()], None));
        }
    }
}

#[test]
fn each_document_fits_into_one_managed_policy() {
    // AWS does not count white space. A cluster's ID is longer than its placeholder.
    const MOST: usize = 6144;
    for name in CAPABILITIES
        .into_iter()
        .chain(["all"])
        .flat_map(|name| [name.to_owned(), format!("simple/{name}")])
    {
        let text = text(&name).replace("CLUSTER_ID", &"x".repeat(40));
        let size = text.chars().filter(|c| !c.is_whitespace()).count();
        assert!(size <= MOST, "{name} has {size} characters");
    }
}
