use serde_json::json;

use super::*;
use crate::lb::{model::ServiceKey, ownership::service_ownership};

const NAME: &str = "kube_service_c1_ns_web";
const RETAINED: &str = "retained_kube_service_c1_ns_web";

fn balancer(name: &str, tags: &[&str]) -> LoadBalancer {
    serde_json::from_value(json!({
        "id": "lb", "name": name, "provisioning_status": "ACTIVE", "operating_status": "ONLINE", "tags": tags,
    }))
    .unwrap()
}

fn owner() -> ServiceKey {
    ServiceKey { namespace: "ns".into(), name: "web".into(), uid: "u1".into() }
}

/// Plans to let go of a load balancer that is certainly the Service's alone, but for `change`.
fn plan_for(
    load_balancer: &LoadBalancer,
    change: impl FnOnce(&mut RetainInput<'_>),
) -> Result<PlannedAction, CloudError> {
    let ownership = service_ownership("c1", &owner(), false, load_balancer);
    let mut input = RetainInput {
        load_balancer,
        ownership: &ownership,
        uid: "u1",
        is_proven: true,
        has_other_services: false,
        tags: true,
    };
    change(&mut input);
    plan_retain(&input)
}

#[test]
fn a_service_lets_go_only_of_what_is_certainly_its_alone() {
    let own = balancer(NAME, &[NAME, "team-a"]);
    let action = plan_for(&own, |_| {}).unwrap();
    let ActionKind::UpdateLoadBalancer(update) = action.kind else {
        panic!("it is one update")
    };
    let tags = ["team-a", MARK, "retained-by-uid-u1"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!((update.name, update.tags), (Patch::Set(RETAINED.to_owned()), Patch::Set(tags)));
    assert!(update.description.is_keep() && update.admin_state_up.is_keep());
    // Without tags of its own, as from an older manager, it is the Service's by its name.
    assert!(plan_for(&balancer(NAME, &[]), |_| {}).is_ok());
    assert!(plan_for(&own, |input| input.tags = false).is_err());
    assert!(plan_for(&own, |input| input.is_proven = false).is_err());
    assert!(plan_for(&own, |input| input.has_other_services = true).is_err());
    for (name, tags) in [
        (NAME, vec![NAME, "kube_service_c1_ns_other"]),
        ("kube_service_c1_ns_other", vec![NAME]),
        ("kube_service_c2_ns_web", vec![]),
        ("mine", vec![NAME]),
    ] {
        assert!(plan_for(&balancer(name, &tags), |_| {}).is_err(), "{name} {tags:?}");
    }
}

#[test]
fn a_load_balancer_is_used_by_its_service_or_by_the_one_that_adopts_it() {
    let by_uid = "retained-by-uid-u1";
    type Case<'a> = (&'a str, Vec<&'a str>, Option<&'a str>, bool);
    let cases: [Case<'_>; 11] = [
        // Without a mark and without an adoption, other rules decide.
        (NAME, vec![NAME], None, true),
        ("mine", vec![], None, true),
        // With a mark it has to be adopted by its ID.
        (RETAINED, vec![MARK, by_uid], None, false),
        (RETAINED, vec![MARK, by_uid], Some("other"), false),
        (RETAINED, vec![MARK, by_uid], Some("lb"), true),
        // An adoption has begun: by this Service, or by another one.
        (NAME, vec![MARK, by_uid, NAME], Some("lb"), true),
        (NAME, vec![MARK, by_uid, NAME], None, false),
        ("kube_service_c9_ns_web", vec![MARK], Some("lb"), false),
        // It has ended.
        (NAME, vec![NAME], Some("lb"), true),
        // Nobody has let go.
        ("kube_service_c9_ns_web", vec![], Some("lb"), false),
        ("mine", vec![], Some("lb"), false),
    ];
    for (name, tags, adopted, is_allowed) in cases {
        let found = check_use(&balancer(name, &tags), NAME, adopted);
        assert_eq!(found.is_ok(), is_allowed, "{name} {tags:?} {adopted:?}: {found:?}");
    }
}

#[test]
fn only_a_mark_tells_who_let_go() {
    assert_eq!(former_uid(&balancer(RETAINED, &[MARK, "retained-by-uid-u1"])), Some("u1"));
    assert_eq!(former_uid(&balancer(RETAINED, &[MARK])), None);
    assert_eq!(former_uid(&balancer(NAME, &["retained-by-uid-u1"])), None);
    assert!(!is_retained(&balancer(RETAINED, &["retained-load-balancers"])));
}

#[test]
fn children_get_the_name_of_their_new_load_balancer() {
    for (child, moved) in [
        ("listener_0_kube_service_c1_ns_web", Some("listener_0_kube_service_c2_ns_shop")),
        ("pool_12_kube_service_c1_ns_web", Some("pool_12_kube_service_c2_ns_shop")),
        ("pool_0_kube_service_c2_ns_shop", None),
        ("mine", None),
    ] {
        assert_eq!(moved_name(child, "kube_service_c2_ns_shop").as_deref(), moved, "{child}");
    }
    let long = format!("kube_service_c2_ns_{}", "x".repeat(236));
    let moved = moved_name("listener_0_kube_service_c1_ns_web", &long).unwrap();
    assert_eq!((moved.len(), moved_name(&moved, &long)), (255, None));
}
