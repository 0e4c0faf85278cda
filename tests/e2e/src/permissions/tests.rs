use super::*;

fn role(name: &str, rules: &Value) -> Vec<Grant> {
    grants(&json!({"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}))
        .expect("rules")
}

fn rule(resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [""], "resources": [resource], "verbs": verbs})
}

fn request(verb: &str, resource: &str, name: &str, code: u16) -> AuditEvent {
    let event = json!({
        "auditID": "1", "verb": verb, "requestURI": "/x", "user": {"username": "ccm"},
        "objectRef": {"resource": resource, "name": name}, "responseStatus": {"code": code},
    });
    serde_json::from_value(event).expect("an event")
}

fn shown(grants: &[Grant]) -> Vec<String> {
    grants.iter().map(ToString::to_string).collect()
}

#[test]
fn a_role_is_taken_apart() {
    let manifest = json!({
        "kind": "Role", "metadata": {"name": "r", "namespace": "n"},
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["a", "b"], "verbs": ["get"]},
            rule("events", &["create", "patch"]),
        ],
    });
    let expected = [
        "r: get leases.coordination.k8s.io a in n",
        "r: get leases.coordination.k8s.io b in n",
        "r: create events in n",
        "r: patch events in n",
    ];
    assert_eq!(shown(&grants(&manifest).expect("rules")), expected);
    assert_eq!(
        grants(&json!({"kind": "ServiceAccount", "metadata": {"name": "a"}})).expect("none"),
        []
    );
    let empty =
        json!({"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [rule("nodes", &[])]});
    assert!(grants(&empty).is_err());
    let misspelt =
        json!({"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [{"verb": ["get"]}]});
    assert!(grants(&misspelt).is_err());
}

#[test]
fn only_what_all_grant_is_common() {
    let one = role("one", &json!([rule("nodes", &["*"]), rule("services", &["list", "watch"])]));
    let two = role(
        "two",
        &json!([
            rule("nodes", &["get", "list"]),
            rule("services", &["list"]),
            rule("pods", &["get"])
        ]),
    );
    let mut named = rule("nodes", &["list"]);
    named["resourceNames"] = json!(["a"]);
    assert_eq!(
        shown(&common(&[one.clone(), two])),
        ["one: get nodes", "one: list nodes", "one: list services"]
    );
    assert_eq!(shown(&common(&[one, role("three", &json!([named]))])), ["three: list nodes a"]);
}

#[test]
fn what_is_forbidden_and_what_is_not_needed_is_wrong() {
    let grants = role("r", &json!([rule("nodes", &["list", "patch"])]));
    let (list, patch) = (request("list", "nodes", "", 200), request("patch", "nodes", "a", 200));
    assert!(judge(&grants, &[list.clone(), patch.clone()], &[]).is_ok());

    let told = |requests: &[AuditEvent], exceptions: &[Exception]| {
        judge(&grants, requests, exceptions)
            .expect_err("it is wrong")
            .to_string()
    };
    assert_eq!(told(&[list.clone()], &[]), "granted and never used: r: patch nodes");
    let failed = request("patch", "nodes", "a", 422);
    assert_eq!(told(&[list.clone(), failed], &[]), "granted and never used: r: patch nodes");
    let refused = request("delete", "nodes", "a", 403);
    assert_eq!(
        told(&[list.clone(), patch.clone(), refused], &[]),
        "forbidden to ccm: delete nodes /a"
    );

    let exception = |grant| [Exception { grant, reason: "of a test" }];
    assert!(judge(&grants, &[list.clone()], &exception("r: patch nodes")).is_ok());
    assert_eq!(
        told(&[list.clone(), patch.clone()], &exception("r: patch nodes")),
        "used, hence no exception: r: patch nodes"
    );
    assert_eq!(
        told(&[list, patch], &exception("r: get nodes")),
        "an exception that nothing grants: r: get nodes"
    );
}
