use super::*;
use crate::config::controller_names::*;

fn parse(text: &str) -> Result<LeaderMigration, String> {
    LeaderMigration::parse(text, &standard()).map_err(|problems| problems.join("; "))
}

/// A file of this version, with these entries.
fn file(version: &str, entries: &[(&str, &str)]) -> String {
    let entries: Vec<String> = entries
        .iter()
        .map(|(name, component)| format!("  - name: {name}\n    component: {component:?}\n"))
        .collect();
    let list = if entries.is_empty() {
        " []\n".to_owned()
    } else {
        format!("\n{}", entries.concat())
    };
    format!(
        "apiVersion: controllermanager.config.k8s.io/{version}\nkind: LeaderMigrationConfiguration\n\
         leaderName: m\ncontrollerLeaders:{list}"
    )
}

fn locks(migration: &LeaderMigration, component: &str) -> [ControllerLock; 5] {
    [CLOUD_NODE, CLOUD_NODE_LIFECYCLE, SERVICE_LB, NODE_ROUTE, NODE_IPAM]
        .map(|name| migration.lock_in(component, name, &standard()))
}

const CCM: &str = "cloud-controller-manager";
const KCM: &str = "kube-controller-manager";

#[test]
fn each_controller_has_its_lock() {
    use ControllerLock::{Main, Migration, OtherManager};
    let moving = |component: &'static str| {
        file(
            "v1",
            &[
                ("route-controller", component),
                ("service-controller", component),
                (CLOUD_NODE_LIFECYCLE, component),
            ],
        )
    };
    for (what, text, in_kcm, in_ccm) in [
        (
            "before the migration",
            moving(KCM),
            [Main, Migration, Migration, Migration, Main],
            [Main, OtherManager, OtherManager, OtherManager, Main],
        ),
        (
            "after the migration",
            moving(CCM),
            [Main, OtherManager, OtherManager, OtherManager, Main],
            [Main, Migration, Migration, Migration, Main],
        ),
        (
            "wherever they run",
            moving("*"),
            [Main, Migration, Migration, Migration, Main],
            [Main, Migration, Migration, Migration, Main],
        ),
        ("nothing moves", file("v1", &[]), [Main; 5], [Main; 5]),
        (
            "pod networks",
            file("v1", &[("nodeipam", CCM)]),
            [Main, Main, Main, Main, OtherManager],
            [Main, Main, Main, Main, Migration],
        ),
    ] {
        let migration = parse(&text).unwrap();
        assert_eq!(locks(&migration, KCM), in_kcm, "{what}");
        assert_eq!(locks(&migration, CCM), in_ccm, "{what}");
    }
}

/// Upstream compares names as they are, so that its own default protects one controller of three
/// (W19).
#[test]
fn the_built_in_list_protects_all_three_controllers() {
    let migration = LeaderMigration::default();
    assert_eq!(migration.leader_name, "cloud-provider-extraction-migration");
    assert_eq!(
        locks(&migration, CCM),
        [
            ControllerLock::Main,
            ControllerLock::Migration,
            ControllerLock::Migration,
            ControllerLock::Migration,
            ControllerLock::Main
        ]
    );
    assert_eq!(migration.unknown(&standard()).count(), 0);
}

#[test]
fn old_names_new_names_and_aliases_mean_the_same() {
    for (name, controller) in [
        ("service", SERVICE_LB),
        ("service-controller", SERVICE_LB),
        ("service-lb-controller", SERVICE_LB),
        ("route", NODE_ROUTE),
        ("route-controller", NODE_ROUTE),
        ("node-route-controller", NODE_ROUTE),
        ("cloud-node-lifecycle", CLOUD_NODE_LIFECYCLE),
        ("cloud-node", CLOUD_NODE),
        ("nodeipam", NODE_IPAM),
    ] {
        let migration = parse(&file("v1beta1", &[(name, "*")])).unwrap();
        assert_eq!(migration.lock(controller, &standard()), ControllerLock::Migration, "{name}");
    }
}

#[test]
fn every_version_is_read_and_resource_lock_only_where_it_is() {
    for version in ["v1", "v1beta1", "v1alpha1"] {
        let text = file(version, &[("service-controller", CCM)]);
        let migration = parse(&text).unwrap();
        assert_eq!(migration.leader_name, "m", "{version}");
        assert_eq!(migration.lock(SERVICE_LB, &standard()), ControllerLock::Migration, "{version}");
        let with_lock = parse(&format!("resourceLock: leases\n{text}"));
        if version == "v1" {
            assert_eq!(with_lock.unwrap_err(), "resourceLock: there is no such field in v1");
        } else {
            assert_eq!(with_lock.unwrap(), migration, "{version}");
        }
    }
}

#[test]
fn mistakes_are_named_with_their_fields() {
    let good = file("v1alpha1", &[("service-controller", "*")]);
    let with = |line: &str| format!("{line}\n{good}");
    for (what, text, words) in [
        ("empty", String::new(), vec!["is empty"]),
        ("a list", "- a".to_owned(), vec!["line 1"]),
        (
            "another kind",
            good.replace("kind: LeaderMigrationConfiguration", "kind: KubeletConfiguration"),
            vec!["kind", "KubeletConfiguration"],
        ),
        (
            "another group",
            good.replace(GROUP, "kubelet.config.k8s.io"),
            vec!["apiVersion", "kubelet.config.k8s.io"],
        ),
        ("another version", good.replace("v1alpha1", "v2"), vec!["apiVersion", "/v2"]),
        ("unknown field", with("colour: red"), vec!["colour", "line 1"]),
        (
            "unknown field of an entry",
            good.replace("component:", "komponent:"),
            vec!["komponent", "line 6"],
        ),
        ("field in other letters", good.replace("leaderName", "LeaderName"), vec!["LeaderName"]),
        ("a field twice", with("leaderName: other"), vec!["duplicate", "leaderName"]),
        (
            "no leader name",
            good.replace("leaderName: m", "leaderName: \"\""),
            vec!["leaderName: must be set"],
        ),
        ("endpoints", with("resourceLock: endpoints"), vec!["resourceLock", "endpoints"]),
        ("a lock of no kind", with("resourceLock: invalid"), vec!["resourceLock", "invalid"]),
        ("no name", file("v1", &[("\"\"", "*")]), vec!["controllerLeaders[0].name: must be set"]),
        (
            "no component",
            file("v1", &[("route", "*"), ("service", "")]),
            vec!["controllerLeaders[1].component: must be set"],
        ),
        (
            "two homes of one controller",
            file("v1", &[("service", KCM), ("route", "*"), ("service-controller", CCM)]),
            vec!["controllerLeaders[2].component", "controllerLeaders[0]", KCM, CCM],
        ),
    ] {
        let problem = parse(&text).unwrap_err();
        for word in words {
            assert!(problem.contains(word), "{what}: {word:?} is not in {problem:?}");
        }
    }
    let all = parse("kind: K\nresourceLock: no\ncontrollerLeaders: [{name: a}]").unwrap_err();
    assert_eq!(all.matches("; ").count(), 4, "{all}");
}

#[test]
fn one_controller_may_be_named_twice_for_the_same_component() {
    assert!(parse(&file("v1", &[("service", CCM), ("service-controller", CCM)])).is_ok());
}

#[test]
fn names_that_mean_nothing_here_are_told() {
    let text = file("v1", &[("sevice", "*"), ("ttl-controller", KCM), ("route", CCM)]);
    assert_eq!(
        parse(&text)
            .unwrap()
            .unknown(&standard())
            .collect::<Vec<_>>(),
        ["sevice"]
    );
}
