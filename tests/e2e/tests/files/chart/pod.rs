//! What a pod gets of the values, and how pods are replaced.

use serde_json::{Value, json};

use super::workload;
use crate::cases;
use crate::helm::{self, Helm, RELEASE, chart, container, only, strings};
use crate::plain::Case;

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![
        replicas_are_counted_by_either_name,
        pods_are_replaced_as_asked,
        pods_get_what_a_pod_may_have,
        pods_are_spread_over_their_own_kind,
        annotations_of_all_objects_are_on_all_and_an_objects_own_win,
        further_objects_are_rendered,
        the_test_checks_with_what_the_manager_has,
        the_test_runs_where_the_manager_may,
        the_notes_find_nodes_with_several_taints,
        the_notes_read_the_logs_of_all_pods,
        the_notes_name_a_leader_if_there_is_one_and_what_is_deprecated,
    ]
}

fn with(helm: &Helm, values: &Value) -> Vec<Value> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), values.to_string()).unwrap();
    helm.objects(&["--values", file.path().to_str().unwrap()])
        .unwrap()
}

fn replicas_are_counted_by_either_name() {
    let helm = Helm::find().unwrap();
    for (set, wanted) in [
        ("replicaCount=3", 3),
        ("replicas=3", 3),
        ("replicas=0", 0),
        ("replicas=4,replicaCount=3", 4),
    ] {
        let objects = helm
            .objects(&["--set", &format!("provider=mock,{set}")])
            .unwrap();
        assert_eq!(workload(&objects)["spec"]["replicas"], wanted, "{set}");
        assert_eq!(only(&objects, "PodDisruptionBudget").is_ok(), wanted > 1, "{set}");
    }
}

fn pods_are_replaced_as_asked() {
    let helm = Helm::find().unwrap();
    for (kind, field, strategy) in [
        ("Deployment", "strategy", json!({"type": "Recreate"})),
        (
            "Deployment",
            "strategy",
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}),
        ),
        ("DaemonSet", "updateStrategy", json!({"type": "OnDelete"})),
    ] {
        let values = json!({"provider": "mock", "kind": kind, "updateStrategy": strategy});
        assert_eq!(workload(&with(&helm, &values))["spec"][field], strategy);
    }
}

fn pods_get_what_a_pod_may_have() {
    let helm = Helm::find().unwrap();
    let wanted = json!({
        "dnsConfig": {"nameservers": ["10.0.0.10"], "options": [{"name": "ndots", "value": "1"}]},
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["cloud.example.org"]}],
        "initContainers": [{"name": "wait", "image": "registry.example.org/wait:1"}],
    });
    let mut values = wanted.clone();
    values["provider"] = "mock".into();
    let objects = with(&helm, &values);
    let pod = &workload(&objects)["spec"]["template"]["spec"];
    let default = with(&helm, &json!({"provider": "mock"}));
    let default = &workload(&default)["spec"]["template"]["spec"];
    for (name, value) in wanted.as_object().unwrap() {
        assert_eq!(pod[name], *value, "{name}");
        assert!(default[name].is_null(), "{name}");
    }
}

/// Without a selector a constraint counts no pods, and has no effect.
fn pods_are_spread_over_their_own_kind() {
    let helm = Helm::find().unwrap();
    let constraint =
        json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
    let mut own = constraint.clone();
    own["labelSelector"] = json!({"matchLabels": {"a": "b"}});
    let objects =
        with(&helm, &json!({"provider": "mock", "topologySpreadConstraints": [constraint, own]}));
    let workload = workload(&objects);
    let spread = &workload["spec"]["template"]["spec"]["topologySpreadConstraints"];
    assert_eq!(spread[0]["labelSelector"], workload["spec"]["selector"]);
    assert_eq!(spread[0]["topologyKey"], "zone");
    assert_eq!(spread[1], own);
}

fn annotations_of_all_objects_are_on_all_and_an_objects_own_win() {
    let helm = Helm::find().unwrap();
    let values = json!({
        "provider": "mock", "hostNetwork": false, "commonAnnotations": {"a": "all", "b": "all"},
        "serviceAccount": {"annotations": {"b": "own"}},
        "cloudConfig": {"values": {"c": "d"}}, "networkPolicy": {"enabled": true},
        "leaderMigration": {"enabled": true, "controllerLeaders": [{"name": "x", "component": "*"}]},
        "metrics": {
            "job": "x", "prometheusRule": {"enabled": true}, "dashboard": {"enabled": true},
            "reader": {"create": true, "subjects": [{"kind": "User", "name": "u"}]},
        },
    });
    let mut objects = with(&helm, &values);
    assert!(objects.len() > 18, "{}", objects.len());
    assert!(workload(&objects)["spec"]["template"]["metadata"]["annotations"]["a"].is_null());
    let mut shadow = values;
    shadow["shadow"] = json!({"enabled": true});
    objects.extend(with(&helm, &shadow));
    for object in objects {
        let annotations = &object["metadata"]["annotations"];
        let own = if object["kind"] == "ServiceAccount" {
            "own"
        } else {
            "all"
        };
        assert_eq!(
            *annotations,
            json!({"a": "all", "b": own}),
            "{} {}",
            object["kind"],
            object["metadata"]["name"]
        );
    }
}

fn further_objects_are_rendered() {
    let helm = Helm::find().unwrap();
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: '{{ .Release.Name }}-two'}\n";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ include \"ccm.fullname\" . }}-one"}});
    let objects = with(&helm, &json!({"provider": "mock", "extraObjects": [map, text]}));
    for (kind, name) in [("ConfigMap", "one"), ("Secret", "two")] {
        let object = only(&objects, kind).unwrap();
        assert_eq!(object["metadata"]["name"], format!("cloud-controller-manager-{name}"));
    }
}

/// What helm prints after an installation.
fn notes(set: &str) -> String {
    let helm = Helm::find().unwrap();
    let folder = chart();
    let args = ["install", "x", folder.to_str().unwrap(), "--dry-run=client", "--set", set];
    let printed = helm.run(args).unwrap();
    printed.split_once("\nNOTES:\n").unwrap().1.to_owned()
}

fn the_notes_name_a_leader_if_there_is_one_and_what_is_deprecated() {
    let (leader, lease, deprecated) = ("\nThe leader:\n", "the Lease", "`replicas` is deprecated");
    let default = notes("provider=mock");
    assert!(default.contains(leader) && default.contains(lease), "{default}");
    assert!(!default.contains(deprecated), "{default}");
    let alone = notes("provider=mock,replicas=1,leaderElection.enabled=false");
    assert!(!alone.contains(leader) && !alone.contains(lease), "{alone}");
    assert!(alone.contains(deprecated), "{alone}");
}

/// kubectl's jsonpath compares one value: a filter on the keys of two taints fails.
fn the_notes_find_nodes_with_several_taints() {
    let notes = notes("provider=mock");
    let command = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("kubectl get nodes "))
        .unwrap();
    assert!(!command.contains("[?("), "{command}");
    let (path, key) = command.split_once(" | grep ").unwrap();
    assert_eq!(key, "node.cloudprovider.kubernetes.io/uninitialized");
    assert!(path.contains(".metadata.name") && path.contains(".spec.taints[*].key"), "{path}");
}

/// `kubectl logs deployment/NAME` would read one pod, maybe the one that has no problem.
fn the_notes_read_the_logs_of_all_pods() {
    let set = "provider=mock,nameOverride=blue";
    let notes = notes(set);
    let selector = notes.split(" --selector ").nth(1).unwrap();
    let selector = selector.split(' ').next().unwrap();
    let helm = Helm::find().unwrap();
    let objects = helm::objects(&helm.template("x", &["--set", set]).unwrap()).unwrap();
    let labels = &workload(&objects)["spec"]["template"]["metadata"]["labels"];
    let chosen: Vec<_> = selector.split(',').collect();
    assert_eq!(chosen.len(), 2, "{notes}");
    for label in chosen {
        let (name, value) = label.split_once('=').unwrap();
        assert_eq!(labels[name], value, "{notes}");
    }
}

/// The pod of `helm test`.
fn test_pod(helm: &Helm, set: &str) -> Value {
    let chart = chart().display().to_string();
    let file = "templates/tests/check.yaml";
    let test = helm
        .run(["template", RELEASE, &chart, "--set", set, "--show-only", file])
        .unwrap();
    let test = helm::objects(&test).unwrap();
    only(&test, "Pod").unwrap().clone()
}

/// On the manager's nodes, with the labels that policies look at; and its log can be read.
fn the_test_runs_where_the_manager_may() {
    let helm = Helm::find().unwrap();
    let terms =
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let among = "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    let set = format!(
        "provider=mock,{terms}[0].matchExpressions[0].key=pool,{terms}[0].matchExpressions[0].operator=Exists,\
         {among}[0].topologyKey=kubernetes.io/hostname,podLabels.team=cloud,podAnnotations.mesh=off"
    );
    let test = test_pod(&helm, &set);
    let objects = helm.objects(&["--set", &set]).unwrap();
    let pod = &workload(&objects)["spec"]["template"];
    let affinity = &pod["spec"]["affinity"];
    assert!(affinity["nodeAffinity"].is_object() && affinity["podAntiAffinity"].is_object());
    // Beside the manager's pods it would not be started.
    assert_eq!(test["spec"]["affinity"], json!({"nodeAffinity": affinity["nodeAffinity"]}));
    assert_eq!(test["metadata"]["labels"]["team"], "cloud");
    let annotations = &test["metadata"]["annotations"];
    assert_eq!(annotations["mesh"], "off");
    // Helm 3 reads the log after it has deleted what is to be deleted.
    assert_eq!(annotations["helm.sh/hook-delete-policy"], "before-hook-creation");
    assert!(test_pod(&helm, "provider=mock")["spec"]["affinity"].is_null());
}

/// Same image, arguments, account and files; and no Service or disruption budget counts the pod.
fn the_test_checks_with_what_the_manager_has() {
    let helm = Helm::find().unwrap();
    let set = "provider=openstack,image.registry=r,cloudConfig.existingSecret.name=cloud-config,extraEnvFrom[0].secretRef.name=s";
    let test = test_pod(&helm, set);
    let objects = helm.objects(&["--set", set]).unwrap();
    let workload = workload(&objects);
    let pod = &workload["spec"]["template"]["spec"];
    for field in [
        "serviceAccountName",
        "hostNetwork",
        "dnsPolicy",
        "tolerations",
        "volumes",
        "securityContext",
    ] {
        assert!(!pod[field].is_null(), "{field}");
        assert_eq!(test["spec"][field], pod[field], "{field}");
    }
    assert_eq!(test["spec"]["restartPolicy"], "Never");
    let (ours, theirs) = (&test["spec"]["containers"][0], container(workload));
    for field in ["image", "envFrom", "volumeMounts", "securityContext", "resources"] {
        assert!(!theirs[field].is_null(), "{field}");
        assert_eq!(ours[field], theirs[field], "{field}");
    }
    for served in ["ports", "startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(!theirs[served].is_null() && ours[served].is_null(), "{served}: nothing is served");
    }
    let args = strings(&ours["args"]);
    assert_eq!(args[0], "check");
    assert_eq!(args[1..], strings(&theirs["args"]));
    assert_eq!(test["metadata"]["annotations"]["helm.sh/hook"], "test");
    let selector = workload["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap();
    let labels = &test["metadata"]["labels"];
    assert!(selector.iter().any(|(name, value)| labels[name] != *value), "{labels}");
}
