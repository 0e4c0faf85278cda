//! The IAM documents, evaluated for every request of the provider: on objects of the cluster, on those
//! of others, and for what must never be allowed.

use std::{cell::Cell, collections::BTreeSet, path::PathBuf, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    APART, CAPABILITIES, IMPLIED,
    authorization::{self, Objects, authorization_requests},
    capabilities,
    policy::{AuthorizationRequest, Decision, Policy, evaluate},
    rows::{self, Limit, Owner},
    text,
};
use crate::{
    api::{Action, Call, EniId, InstanceId, Tags},
    fake::{CLUSTER, FakeAws},
};

/// The policy for the control plane in `docs/prerequisites.md` of kubernetes/cloud-provider-aws, as of
/// July 2026.
const UPSTREAM: &str = include_str!("upstream-policy.json");

/// What upstream's policy lacks.
const NOT_IN_UPSTREAMS: [&str; 17] = [
    "ec2:DeleteTags",
    "ec2:DescribeNetworkInterfaces",
    "ec2:ModifyNetworkInterfaceAttribute",
    "ec2:ReplaceRoute",
    "elasticloadbalancing:AddListenerCertificates",
    "elasticloadbalancing:DescribeCapacityReservation",
    "elasticloadbalancing:DescribeListenerAttributes",
    "elasticloadbalancing:DescribeListenerCertificates",
    "elasticloadbalancing:DescribeTags",
    "elasticloadbalancing:DescribeTargetGroupAttributes",
    "elasticloadbalancing:ModifyCapacityReservation",
    "elasticloadbalancing:ModifyListenerAttributes",
    "elasticloadbalancing:ModifyTargetGroupAttributes",
    "elasticloadbalancing:RemoveListenerCertificates",
    "elasticloadbalancing:RemoveTags",
    "elasticloadbalancing:SetIpAddressType",
    "elasticloadbalancing:SetSubnets",
];

fn json_of(name: &str) -> Value {
    serde_json::from_str(&text(name).replace("CLUSTER_ID", CLUSTER)).unwrap()
}

/// Returns a document for the cluster of the in-memory AWS.
fn policy(name: &str) -> Policy {
    Policy::parse(&json_of(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The documents that allow everything together.
static FULL: LazyLock<[Policy; 3]> =
    LazyLock::new(|| [policy("all"), policy(APART[0]), policy(APART[1])]);

/// Returns what the documents deny of a request that the provider really sends. `None` also if one of its
/// objects is gone: AWS does not say whether it asks the policies before it looks for the object.
pub(crate) fn denial(call: &Call, aws: &FakeAws) -> Option<String> {
    let objects = ExistingObjects { aws, is_one_gone: Cell::new(false) };
    let denied = authorization_requests(call, &objects)
        .into_iter()
        .find(|request| !allows(&FULL.each_ref(), request))?;
    if objects.is_one_gone.get() {
        None
    } else {
        Some(format!("{} on {} in {call:?}", denied.action, denied.resource))
    }
}

/// The objects of an account, and whether one of those that were asked for does not exist.
struct ExistingObjects<'a> {
    aws: &'a FakeAws,
    is_one_gone: Cell<bool>,
}

impl Objects for ExistingObjects<'_> {
    fn tags(&self, object: &str) -> Tags {
        if !self.aws.exists(object) && !object.starts_with("eni-") {
            self.is_one_gone.set(true);
        }
        let (_, classic) = self.aws.classic_settings(object);
        if classic.is_empty() {
            self.aws.tags(object)
        } else {
            classic
        }
    }

    fn instance_of(&self, interface: &EniId) -> Option<InstanceId> {
        self.aws.instance_of(interface)
    }
}

/// Returns the document for each capability that makes a request.
fn documents_of(call: &Call) -> &'static [&'static str] {
    match call {
        Call::CreateTags(c) if c.resources.iter().any(|id| id.starts_with("sg-")) => {
            &["security-groups"]
        }
        Call::DeleteTags(c) if c.resources.iter().any(|id| id.starts_with("sg-")) => {
            &["security-groups"]
        }
        Call::CreateTags(_) | Call::DeleteTags(_) => &["tagging"],
        call => capabilities(call.action()),
    }
}

fn allows(policies: &[&Policy], request: &AuthorizationRequest) -> bool {
    let decision = evaluate(policies, request).unwrap_or_else(|error| panic!("{error}"));
    matches!(decision, Decision::Allowed(_))
}

/// Each request with its limit and the owner of its objects.
fn table() -> Vec<(Limit, Owner, Call)> {
    let requests = |owner| {
        let all = Action::ALL.iter().copied();
        let rows = all.flat_map(move |action| rows::requests(action, owner));
        rows.map(move |(limit, call)| (limit, owner, call))
    };
    Owner::ALL.into_iter().flat_map(requests).collect()
}

/// Returns what policies allow or deny other than they should, among the requests that concern them.
fn deviations(policies: &[&Policy], concerns: impl Fn(&[&str]) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (limit, owner, call) in table() {
        if !concerns(documents_of(&call)) {
            continue;
        }
        let requests = authorization_requests(&call, &owner);
        let denied: Vec<_> = requests
            .iter()
            .filter(|request| !allows(policies, request))
            .map(|request| format!("{} on {}", request.action, request.resource))
            .collect();
        if denied.is_empty() != limit.allows(owner) {
            wrong.push(format!("{call:?}, {limit:?}, of {owner:?}: denied {denied:?}"));
        }
    }
    let role = rows::service_linked_role("elasticloadbalancing.amazonaws.com");
    if concerns(&["load-balancers"]) && !allows(policies, &role) {
        wrong.push(format!("{IMPLIED} is denied"));
    }
    let escapes = rows::escapes().into_iter();
    let allowed = escapes.filter(|request| allows(policies, request));
    wrong.extend(allowed.map(|request| format!("allowed: {request:?}")));
    wrong
}

/// The documents with the capabilities that they are for.
fn documents() -> Vec<(&'static str, Vec<&'static str>)> {
    let alone = CAPABILITIES.iter().map(|name| (*name, vec![*name]));
    let in_all = CAPABILITIES
        .iter()
        .copied()
        .filter(|name| !APART.contains(name));
    alone.chain([("all", in_all.collect())]).collect()
}

fn deviations_of(document: &Policy, capabilities: &[&str]) -> Vec<String> {
    deviations(&[document], |needed| needed.iter().any(|name| capabilities.contains(name)))
}

#[test]
fn the_table_has_each_request() {
    for action in Action::ALL {
        let rows = rows::requests(*action, Owner::Cluster);
        assert!(!rows.is_empty(), "{action:?}");
        assert!(rows.iter().all(|(_, call)| call.action() == *action), "{action:?}");
    }
}

#[test]
fn each_document_allows_requests_on_objects_of_the_cluster_and_denies_them_on_those_of_others() {
    for (name, capabilities) in documents() {
        assert_eq!(deviations_of(&policy(name), &capabilities), Vec::<String>::new(), "{name}");
    }
    assert_eq!(deviations(&FULL.each_ref(), |_| true), Vec::<String>::new());
}

#[test]
fn documents_without_conditions_allow_requests_on_all_objects() {
    for (name, capabilities) in documents() {
        let simple = policy(&format!("simple/{name}"));
        for (_, owner, call) in table() {
            if !documents_of(&call)
                .iter()
                .any(|name| capabilities.contains(name))
            {
                continue;
            }
            for request in authorization_requests(&call, &owner) {
                assert!(allows(&[&simple], &request), "{name}: {request:?}");
            }
        }
    }
}

/// A condition on a key that AWS does not provide for an action would make its permission useless.
#[test]
fn each_permission_of_each_statement_is_used() {
    for (name, _) in documents() {
        let policy = policy(name);
        let mut used = BTreeSet::new();
        let mut requests = vec![rows::service_linked_role("elasticloadbalancing.amazonaws.com")];
        for (_, owner, call) in table() {
            requests.extend(authorization_requests(&call, &owner));
        }
        for request in requests {
            for sid in policy.matching(&request).unwrap() {
                used.insert((sid.to_owned(), request.action.clone()));
            }
        }
        assert_eq!(policy.grants(), used, "{name}");
    }
}

/// Returns variants of a document that lack one statement, resource, or key of a condition.
fn mutants(document: &Value) -> Vec<(String, Value)> {
    let mut mutants = Vec::new();
    let statements = document["Statement"].as_array().unwrap();
    for (at, statement) in statements.iter().enumerate() {
        let sid = statement["Sid"].as_str().unwrap();
        let mut add = |what: String, statement: Option<Value>| {
            let mut mutant = document.clone();
            let statements = mutant["Statement"].as_array_mut().unwrap();
            match statement {
                Some(changed) => statements[at] = changed,
                None => drop(statements.remove(at)),
            }
            mutants.push((format!("{sid} without {what}"), mutant));
        };
        if statements.len() > 1 {
            add("itself".to_owned(), None);
        }
        for resource in statement["Resource"].as_array().into_iter().flatten() {
            let mut changed = statement.clone();
            let resources = changed["Resource"].as_array_mut().unwrap();
            resources.retain(|other| other != resource);
            add(resource.to_string(), Some(changed));
        }
        for (operator, keys) in statement["Condition"].as_object().into_iter().flatten() {
            for key in keys.as_object().unwrap().keys() {
                let mut changed = statement.clone();
                let keys = changed["Condition"][operator].as_object_mut().unwrap();
                keys.remove(key);
                add(format!("{operator} {key}"), Some(changed));
            }
        }
    }
    mutants
}

#[test]
fn each_statement_resource_and_condition_matters() {
    for (name, capabilities) in documents() {
        let document = json_of(name);
        let mutants = mutants(&document);
        for (what, mutant) in mutants {
            let mutant = Policy::parse(&mutant).unwrap();
            let deviations = deviations_of(&mutant, &capabilities);
            assert!(!deviations.is_empty(), "{name}: nothing is noticed of {what}");
        }
    }
}

/// Network interfaces need no tag. What keeps those of others safe is the tag of their instance, if AWS
/// asks about it, and that nothing else than the check can be turned off.
#[test]
fn of_an_interface_without_instance_the_check_alone_can_be_turned_off() {
    let all = policy("all");
    let call = rows::requests(Action::ModifyNetworkInterfaceAttribute, Owner::Nobody);
    let requests = authorization_requests(&call[0].1, &Owner::Nobody);
    let verdicts: Vec<_> = requests
        .iter()
        .map(|request| (&*request.resource, allows(&[&all], request)))
        .collect();
    assert!(matches!(verdicts[..], [(_, true), (_, false)]), "{verdicts:?}");
    assert!(verdicts[0].0.contains(":network-interface/"), "{verdicts:?}");
}

#[test]
fn upstreams_published_policy_lacks_what_the_documentation_says() {
    let upstream = Policy::parse(&serde_json::from_str(UPSTREAM).unwrap()).unwrap();
    let mut denied = BTreeSet::new();
    for (_, owner, call) in table() {
        let requests = authorization_requests(&call, &owner).into_iter();
        let lacking = requests.filter(|request| !allows(&[&upstream], request));
        denied.extend(lacking.map(|request| request.action));
    }
    let expected: BTreeSet<_> = NOT_IN_UPSTREAMS.map(str::to_owned).into();
    assert_eq!(denied, expected);
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/providers/aws.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, step) = page.split_once("2. **IAM.**").unwrap();
    let (step, _) = step.split_once("3. **cloud.conf.**").unwrap();
    for action in NOT_IN_UPSTREAMS {
        assert!(step.contains(&format!("`{action}`")), "the page does not name {action}");
    }
    let words = step.split('`').filter(|word| word.contains(':'));
    let named: BTreeSet<_> = words.filter(|word| !word.contains(' ')).collect();
    assert_eq!(named, NOT_IN_UPSTREAMS.into());
}

/// The names of the requests are those of the policies.
#[test]
fn a_request_without_permission_is_denied() {
    let none = Policy::parse(&json!({"Version": "2012-10-17", "Statement": []})).unwrap();
    for (_, owner, call) in table() {
        let requests = authorization_requests(&call, &owner);
        for request in &requests {
            assert!(!allows(&[&none], request), "{request:?}");
        }
        let first = requests.into_iter().next().map(|request| request.action);
        let is_asked_about = call.action() != Action::GetCallerIdentity;
        assert_eq!(first, is_asked_about.then(|| authorization::name(call.action())));
    }
}
