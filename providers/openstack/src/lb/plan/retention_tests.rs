use serde_json::json;

use super::*;
use crate::lb::{model::ServiceKey, ownership::service_ownership, retention_tags::former_uids};

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
    let tags = ["team-a", MARK, "retained-by-uid-u1", "retained-from-kube_service_c1_ns_web"]
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
    let by_uid = "retained-by-uid-u0";
    let (own, other) = ("adopted-by-uid-u1", "adopted-by-uid-u9");
    type Case<'a> = (&'a str, Vec<&'a str>, Option<&'a str>, bool, bool);
    let cases: [Case<'_>; 19] = [
        // Without a mark and without an adoption, other rules decide.
        (NAME, vec![NAME], None, false, true),
        ("mine", vec![], None, false, true),
        // With a mark it has to be adopted by its ID.
        (RETAINED, vec![MARK, by_uid], None, true, false),
        (RETAINED, vec![MARK, by_uid], Some("other"), true, false),
        (RETAINED, vec![MARK, by_uid], Some("lb"), false, true),
        // An adoption has begun: by this Service, or by another one, whatever its name is.
        (NAME, vec![MARK, by_uid, NAME, own], Some("lb"), false, true),
        (NAME, vec![MARK, by_uid, NAME, own], None, true, false),
        ("kube_service_c9_ns_web", vec![MARK, own], Some("lb"), false, true),
        ("kube_service_c9_ns_web", vec![MARK, other], Some("lb"), true, false),
        (NAME, vec![MARK, NAME, other], Some("lb"), true, false),
        (NAME, vec![MARK, NAME, other], None, true, false),
        // It has ended.
        (NAME, vec![NAME, own], Some("lb"), false, true),
        (NAME, vec![NAME, own], None, false, true),
        (NAME, vec![NAME, other], Some("lb"), true, false),
        (NAME, vec![NAME, other], None, true, false),
        // Others may share it by its ID.
        ("kube_service_c9_ns_shop", vec![other], None, false, true),
        // Nobody has let go. It may be this Service's, which the status shows and the name does not.
        ("kube_service_c9_ns_web", vec![], Some("lb"), false, false),
        (NAME, vec![NAME], Some("lb"), false, false),
        (NAME, vec![NAME], Some("lb"), true, true),
    ];
    for (name, tags, adopted, shows_address, is_allowed) in cases {
        let load_balancer = &balancer(name, &tags);
        let input = UseInput {
            load_balancer,
            ownership: &service_ownership("c1", &owner(), shows_address, load_balancer),
            service: &owner(),
            adopted,
            shows_address,
            tags: true,
        };
        let found = check_use(&input);
        assert_eq!(found.is_ok(), is_allowed, "{name} {tags:?} {adopted:?}: {found:?}");
        if tags.contains(&MARK) {
            assert!(check_use(&UseInput { tags: false, ..input }).is_err());
        }
    }
}

#[test]
fn only_a_mark_tells_who_let_go() {
    let uids = |name: &str, tags: &[&str]| {
        let found = balancer(name, tags);
        former_uids(&found).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(uids(RETAINED, &[MARK, "retained-by-uid-u1", "retained-by-uid-u2"]), ["u1", "u2"]);
    assert_eq!(uids(RETAINED, &[MARK]), [""; 0]);
    assert_eq!(uids(NAME, &["retained-by-uid-u1"]), [""; 0]);
    assert!(!is_retained(&balancer(RETAINED, &["retained-load-balancers"])));
}

#[test]
fn only_the_tags_tell_whose_an_adopted_one_is() {
    let relation =
        |name: &str, tags: &[&str]| service_ownership("c1", &owner(), true, &balancer(name, tags));
    assert!(relation(NAME, &[NAME, "adopted-by-uid-u1"]).owner);
    assert!(relation("mine", &["adopted-by-uid-u1"]).owner);
    // Neither its name, nor its name in a cluster that may have been renamed, is proof against a tag.
    for name in [NAME, "kube_service_c2_ns_web"] {
        assert!(relation(name, &[name]).owner, "{name}");
        for tag in ["adopted-by-uid-u2", MARK] {
            let found = relation(name, &[name, tag]);
            assert!(!found.owner && found.former_names.is_none(), "{name} {tag}");
        }
    }
}

#[test]
fn what_the_former_services_had_is_the_adopting_ones() {
    let tags = [MARK, "retained-from-kube_service_c1_ns_web", "adopted-by-uid-u9"];
    let kept = balancer(RETAINED, &tags);
    let shop = ServiceKey { name: "shop".into(), ..owner() };
    let ownership = service_ownership("c2", &shop, false, &kept).adopting(&kept);
    for (name, is_own) in [
        ("kube_service_c1_ns_web", true),
        ("kube_service_c2_ns_shop", true),
        ("kube_service_c1_ns_web2", false),
        ("team", false),
    ] {
        assert_eq!(ownership.is_own_tag(name), is_own, "{name}");
    }
    assert_eq!(
        ownership.with_own_tag(&["team".into(), NAME.into()]),
        ["team", "kube_service_c2_ns_shop"]
    );
    for (child, moved) in [
        ("listener_0_kube_service_c1_ns_web", Some("listener_0_kube_service_c2_ns_shop")),
        ("pool_12_kube_service_c1_ns_web", Some("pool_12_kube_service_c2_ns_shop")),
        ("pool_0_kube_service_c1_ns_other", None),
        ("pool_0_kube_service_c2_ns_shop", None),
        ("mine", None),
    ] {
        assert_eq!(ownership.new_name(child).as_deref(), moved, "{child}");
    }
    // Once it is adopted completely, the name of another is another's.
    let adopted = balancer("kube_service_c2_ns_shop", &tags[1..]);
    let ownership = service_ownership("c2", &shop, false, &adopted).adopting(&adopted);
    assert!(!ownership.is_own_tag(NAME));
}

#[test]
fn an_adoption_that_is_given_up_protects_the_groups_of_both() {
    let tags = [MARK, "retained-by-uid-u0", "retained-from-x", NAME, "adopted-by-uid-u1"];
    let ActionKind::UpdateLoadBalancer(update) =
        plan_return(&balancer(NAME, &tags), NAME, "u1").kind
    else {
        panic!("it is one update")
    };
    let tags = [
        MARK,
        "retained-by-uid-u0",
        "retained-from-x",
        "retained-by-uid-u1",
        "retained-from-kube_service_c1_ns_web",
    ];
    assert_eq!(update.tags, Patch::Set(tags.map(str::to_owned).to_vec()));
    assert_eq!(update.name, Patch::Set(RETAINED.to_owned()));
}
