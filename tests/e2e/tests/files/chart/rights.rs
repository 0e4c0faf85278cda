//! The chart's rules are those of `rbac/`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cases;
use crate::helm::{Helm, objects, root};
use crate::plain::Case;

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![
        rules_are_those_of_the_plain_manifests,
        rules_with_an_account_for_each_controller_are_those_of_the_plain_manifests,
        only_what_runs_gets_rights_and_every_part_is_summed_up,
        a_provider_whose_services_choose_their_targets_may_read_endpoints,
        capabilities_can_be_taken_from_every_provider,
        the_lease_is_named_in_the_role_and_in_the_arguments,
    ]
}

/// Roles and bindings by kind and name.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let about_rights = |object: &Value| {
        object["apiVersion"]
            .as_str()
            .is_some_and(|version| version.starts_with("rbac."))
    };
    let named = objects.into_iter().filter(about_rights).map(|object| {
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
        (name, object)
    });
    named.collect()
}

/// Everything below these folders of `rbac/`.
fn manifests(folders: &[&str]) -> BTreeMap<String, Value> {
    let mut all = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                all.extend(objects(&std::fs::read_to_string(&path).unwrap()).unwrap());
            }
        }
    }
    by_name(all)
}

/// Compares what a role allows and a binding binds; labels and annotations are helm's business.
fn assert_same(chart: &BTreeMap<String, Value>, manifests: &BTreeMap<String, Value>) {
    let names = |all: &BTreeMap<String, Value>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(chart), names(manifests));
    for (name, ours) in chart {
        let theirs = &manifests[name];
        for field in ["rules", "roleRef", "subjects"] {
            assert_eq!(ours[field], theirs[field], "{field} of {name}");
        }
        assert_eq!(ours["metadata"]["namespace"], theirs["metadata"]["namespace"], "{name}");
        assert_eq!(
            ours["aggregationRule"].is_null(),
            theirs["aggregationRule"].is_null(),
            "{name}"
        );
    }
}

fn rules_are_those_of_the_plain_manifests() {
    let helm = Helm::find().unwrap();
    let values = [
        "provider=mock",
        "cluster.cidr=10.0.0.0/8",
        "routes.enabled=true",
        "nodeIPAM.enabled=true",
        "rbac.capabilities.endpoints=true",
        "leaderMigration.enabled=true",
    ];
    let args: Vec<_> = values.iter().flat_map(|value| ["--set", value]).collect();
    let ours = by_name(helm.objects(&args).unwrap());
    assert_same(&ours, &manifests(&["rbac", "rbac/optional"]));
}

fn rules_with_an_account_for_each_controller_are_those_of_the_plain_manifests() {
    let helm = Helm::find().unwrap();
    let set = "provider=mock,useServiceAccountCredentials=true,leaderMigration.enabled=true";
    let args = ["--set", set];
    let ours = by_name(helm.objects(&args).unwrap());
    let mut theirs = manifests(&["rbac", "rbac/service-account-credentials"]);
    // As rbac/README.md says, the controllers' own roles stay away.
    for controller in ["node", "lifecycle", "route", "service", "ipam"] {
        theirs
            .remove(&format!("ClusterRole cloud-controller-manager:{controller}"))
            .unwrap();
    }
    assert_same(&ours, &theirs);
}

fn only_what_runs_gets_rights_and_every_part_is_summed_up() {
    let helm = Helm::find().unwrap();
    let roles = by_name(helm.objects(&["--set", "provider=mock"]).unwrap());
    let parts: Vec<_> = roles
        .keys()
        .filter_map(|name| name.strip_prefix("ClusterRole cloud-controller-manager:"))
        .collect();
    assert_eq!(parts, ["lifecycle", "node", "service", "serving"]);
    let sum = &roles["ClusterRole cloud-controller-manager"];
    assert!(sum.get("rules").is_none(), "an update would empty the sum: {sum}");
    let wanted = sum["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"]
        .as_object()
        .unwrap();
    for part in parts {
        let labels =
            roles[&format!("ClusterRole cloud-controller-manager:{part}")]["metadata"]["labels"]
                .clone();
        assert!(wanted.iter().all(|(key, value)| labels[key] == *value), "{part}: {labels}");
    }
    let none = by_name(
        helm.objects(&["--set", "provider=mock,rbac.create=false"])
            .unwrap(),
    );
    assert!(none.is_empty(), "{none:?}");
}

fn a_provider_whose_services_choose_their_targets_may_read_endpoints() {
    let helm = Helm::find().unwrap();
    for (set, may) in [
        ("provider=aws,image.registry=r", true),
        ("provider=aws,image.registry=r,useServiceAccountCredentials=true", true),
        ("provider=aws,image.registry=r,rbac.create=false", false),
        ("provider=aws,image.registry=r,rbac.capabilities.endpoints=false", false),
        (
            "provider=aws,image.registry=r,useServiceAccountCredentials=true,rbac.capabilities.endpoints=false",
            false,
        ),
        ("provider=mock", false),
        ("provider=mock,rbac.capabilities.endpoints=true", true),
    ] {
        let roles = by_name(helm.objects(&["--set", set]).unwrap());
        assert_eq!(
            roles.contains_key("ClusterRole cloud-controller-manager:endpoints"),
            may,
            "{set}"
        );
    }
}

/// Only what serving needs remains.
fn capabilities_can_be_taken_from_every_provider() {
    let helm = Helm::find().unwrap();
    let none = ["node", "lifecycle", "route", "service", "ipam", "endpoints"]
        .map(|capability| format!("rbac.capabilities.{capability}=false"))
        .join(",");
    for provider in ["aws", "openstack", "mock", "custom"] {
        let set = format!(
            "provider={provider},image.registry=r,image.repository=i,cloudConfig.content=c,cluster.cidr=10.0.0.0/8,\
             routes.enabled=true,nodeIPAM.enabled=true,{none}"
        );
        let custom = if provider == "custom" {
            ",customProviderName=x"
        } else {
            ""
        };
        let roles = by_name(helm.objects(&["--set", &format!("{set}{custom}")]).unwrap());
        let parts: Vec<_> = roles
            .keys()
            .filter_map(|name| name.strip_prefix("ClusterRole cloud-controller-manager:"))
            .collect();
        assert_eq!(parts, ["serving"], "{provider}");
    }
}

fn the_lease_is_named_in_the_role_and_in_the_arguments() {
    let helm = Helm::find().unwrap();
    let set = "provider=mock,leaderElection.leaseName=mine,leaderElection.leaseNamespace=cloud";
    let objects = helm.objects(&["--set", set]).unwrap();
    let roles = by_name(objects.clone());
    let role = &roles["Role cloud-controller-manager:leader-election"];
    assert_eq!(role["metadata"]["namespace"], "cloud");
    assert_eq!(role["rules"][1]["resourceNames"][0], "mine");
    let args = crate::helm::strings(&crate::helm::container(super::workload(&objects))["args"]);
    for wanted in ["--leader-elect-resource-name=mine", "--leader-elect-resource-namespace=cloud"] {
        assert!(args.iter().any(|argument| argument == wanted), "{args:?}");
    }
}
