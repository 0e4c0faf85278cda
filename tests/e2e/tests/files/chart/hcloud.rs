//! Another manager's chart, hcloud-cloud-controller-manager's: each of its values has a place in
//! ours, and our manager accepts its flags. The page about migration says where.
//!
//! Its chart is in no Go module that the proxy has, so that its values and arguments are written
//! here, as version 1.35.0 has them (hetznercloud/hcloud-cloud-controller-manager:
//! chart/values.yaml, and what helm renders).

use ccm_core::config::{self, Invocation, Product};
use serde_json::{Value, json};

use super::workload;
use crate::cases;
use crate::docs;
use crate::helm::{Helm, chart, container, strings};
use crate::plain::Case;

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![every_value_of_hclouds_chart_has_its_effect_here]
}

/// What only reads.
pub(crate) fn read() -> Vec<Case> {
    cases![
        the_page_about_migration_names_every_value_of_hclouds_chart,
        arguments_that_hclouds_chart_renders_are_accepted,
    ]
}

/// Arguments with the default values; with networking and replicas; and of a DaemonSet, which has
/// them in its command.
const ARGUMENTS: [&str; 3] = [
    "--allow-untagged-cloud --cloud-provider=hcloud \
     --feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=true --route-reconciliation-period=30s \
     --webhook-secure-port=0 --leader-elect=false",
    "--allow-untagged-cloud --cloud-provider=hcloud \
     --feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=true --route-reconciliation-period=30s \
     --webhook-secure-port=0 --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16",
    "/bin/hcloud-cloud-controller-manager --allow-untagged-cloud --cloud-provider=hcloud \
     --feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=true --route-reconciliation-period=30s \
     --webhook-secure-port=0 --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16",
];

/// A value of hcloud's chart.
struct Place {
    theirs: &'static str,
    /// The same in our values.
    ours: Value,
    /// Kind of an object, and what it has then.
    effect: (&'static str, Value),
}

fn place(theirs: &'static str, ours: Value, kind: &'static str, effect: Value) -> Place {
    Place { theirs, ours, effect: (kind, effect) }
}

/// A value with an effect on the pod.
fn of_pod(theirs: &'static str, ours: Value, pod: &Value) -> Place {
    place(theirs, ours, "Deployment", json!({"spec": {"template": {"spec": pod}}}))
}

/// A value with an effect on the container.
fn of_container(theirs: &'static str, ours: Value, container: &Value) -> Place {
    of_pod(theirs, ours, &json!({"containers": [container]}))
}

/// Its values that say what runs, and with what.
fn of_the_manager() -> Vec<Place> {
    let gate = "CloudControllerManagerWatchBasedRoutesReconciliation";
    let args = json!({
        "provider": "custom", "customProviderName": "hcloud", "featureGates": {gate: true},
        "extraArgs": {"allow-untagged-cloud": true, "route-reconciliation-period": "30s"},
    });
    let rendered = json!({"args": [
        "--cloud-provider=hcloud", format!("--feature-gates={gate}=true"), "--allow-untagged-cloud=true",
        "--route-reconciliation-period=30s",
    ]});
    let token = json!([{"name": "HCLOUD_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hcloud", "key": "token"}}}]);
    let network = json!([{"name": "HCLOUD_NETWORK", "value": "nodes"}]);
    let robot = json!([{"name": "ROBOT_ENABLED", "value": "true"}]);
    let image = json!({"image": "registry.example.org/ccm-hcloud:1.2.3"});
    vec![
        of_container("args", args, &rendered),
        of_container("env", json!({"extraEnv": token}), &json!({"env": token})),
        of_container(
            "image.repository",
            json!({"image": {"repository": "registry.example.org/ccm-hcloud"}}),
            &image,
        ),
        of_container("image.tag", json!({"image": {"tag": "1.2.3"}}), &image),
        of_pod(
            "image.pullSecrets",
            json!({"imagePullSecrets": [{"name": "pull"}]}),
            &json!({"imagePullSecrets": [{"name": "pull"}]}),
        ),
        of_pod(
            "networking.enabled",
            json!({"routes": {"enabled": true}, "hostNetwork": true}),
            &json!({"hostNetwork": true, "containers": [{"args": ["--configure-cloud-routes=true"]}]}),
        ),
        of_container(
            "networking.clusterCIDR",
            json!({"cluster": {"cidr": "10.244.0.0/16"}}),
            &json!({"args": ["--cluster-cidr=10.244.0.0/16"]}),
        ),
        of_container("networking.network", json!({"extraEnv": network}), &json!({"env": network})),
        of_container("robot.enabled", json!({"extraEnv": robot}), &json!({"env": robot})),
    ]
}

/// Its values that say how the pods are.
fn of_the_pods() -> Vec<Place> {
    let same = |name: &'static str, value: Value| {
        of_pod(name, json!({name: value}), &json!({name: value}))
    };
    let in_container = |name: &'static str, of: &'static str, value: Value| {
        of_container(name, json!({name: value}), &json!({of: value}))
    };
    let metadata = |theirs: &'static str, ours: Value, metadata: Value| {
        place(theirs, ours, "Deployment", json!({"spec": {"template": {"metadata": metadata}}}))
    };
    let strategy =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}});
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]});
    let affinity = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
    }});
    let tolerations = json!([{"key": "example", "operator": "Exists", "effect": "NoSchedule"}]);
    let volume = json!([{"name": "token", "secret": {"secretName": "hcloud-token"}}]);
    let mount =
        json!([{"name": "token", "mountPath": "/var/run/secrets/hcloud", "readOnly": true}]);
    vec![
        place("kind", json!({"kind": "Deployment"}), "Deployment", json!({"kind": "Deployment"})),
        place(
            "replicaCount",
            json!({"replicaCount": 3}),
            "Deployment",
            json!({"spec": {"replicas": 3}}),
        ),
        place(
            "nameOverride",
            json!({"nameOverride": "hccm"}),
            "Deployment",
            json!({"metadata": {"labels": {"app.kubernetes.io/name": "hccm"}}}),
        ),
        place(
            "strategy",
            json!({"updateStrategy": strategy}),
            "Deployment",
            json!({"spec": {"strategy": strategy}}),
        ),
        metadata(
            "selectorLabels",
            json!({"podLabels": {"app": "hccm"}}),
            json!({"labels": {"app": "hccm"}}),
        ),
        metadata("podLabels", json!({"podLabels": {"a": "b"}}), json!({"labels": {"a": "b"}})),
        metadata(
            "podAnnotations",
            json!({"podAnnotations": {"c": "d"}}),
            json!({"annotations": {"c": "d"}}),
        ),
        of_pod(
            "additionalTolerations",
            json!({"tolerations": tolerations}),
            &json!({"tolerations": tolerations}),
        ),
        of_pod(
            "podSecurityContext",
            json!({"podSecurityContext": {"runAsUser": 1234}}),
            &json!({"securityContext": {"runAsUser": 1234}}),
        ),
        same("nodeSelector", json!({"node-role.kubernetes.io/control-plane": ""})),
        same("affinity", affinity),
        same("priorityClassName", json!("system-node-critical")),
        same("dnsPolicy", json!("None")),
        same("dnsConfig", json!({"nameservers": ["192.0.2.53"]})),
        in_container("resources", "resources", json!({"requests": {"cpu": "123m"}})),
        in_container("securityContext", "securityContext", json!({"runAsGroup": 4321})),
        in_container("extraVolumeMounts", "volumeMounts", mount),
        of_pod("extraVolumes", json!({"extraVolumes": volume}), &json!({"volumes": volume})),
    ]
}

/// Its values that say what there is beside the pods.
fn of_other_objects() -> Vec<Place> {
    let monitor = |theirs: &'static str, ours: Value, effect: Value| {
        let ours = json!({"metrics": {"serviceMonitor": ours}});
        place(theirs, ours, "ServiceMonitor", effect)
    };
    let endpoint =
        json!({"interval": "45s", "scrapeTimeout": "40s", "tlsConfig": {"serverName": "hccm"}});
    vec![
        place(
            "rbac.create",
            json!({"rbac": {"create": true}}),
            "ClusterRoleBinding",
            json!({"roleRef": {"kind": "ClusterRole"}}),
        ),
        place(
            "serviceAccount.annotations",
            json!({"serviceAccount": {"annotations": {"e": "f"}}}),
            "ServiceAccount",
            json!({"metadata": {"annotations": {"e": "f"}}}),
        ),
        place(
            "monitoring.enabled",
            json!({"metrics": {"service": {"enabled": true}}}),
            "Service",
            json!({"spec": {"ports": [{"port": 10258}]}}),
        ),
        monitor(
            "monitoring.podMonitor.enabled",
            json!({"enabled": true}),
            json!({"apiVersion": "monitoring.coreos.com/v1"}),
        ),
        monitor(
            "monitoring.podMonitor.labels",
            json!({"labels": {"g": "h"}}),
            json!({"metadata": {"labels": {"g": "h"}}}),
        ),
        place(
            "monitoring.podMonitor.annotations",
            json!({"commonAnnotations": {"i": "j"}}),
            "ServiceMonitor",
            json!({"metadata": {"annotations": {"i": "j"}}}),
        ),
        monitor(
            "monitoring.podMonitor.spec",
            endpoint.clone(),
            json!({"spec": {"endpoints": [endpoint]}}),
        ),
    ]
}

/// All values of its chart that can be set.
fn places() -> Vec<Place> {
    let mut places = of_the_manager();
    places.extend(of_the_pods());
    places.extend(of_other_objects());
    places
}

/// Adds values to values: maps by key, lists one behind the other.
fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(more)) => into.extend(more),
        (into, more) => *into = more,
    }
}

/// Whether everything that is wanted is found: of maps these keys, of lists these items.
fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|found| holds(found, value))),
        (Value::Array(found), Value::Array(wanted)) => wanted
            .iter()
            .all(|item| found.iter().any(|found| holds(found, item))),
        (found, wanted) => found == wanted,
    }
}

/// Rendered with all values at once: none keeps another from its effect.
fn every_value_of_hclouds_chart_has_its_effect_here() {
    let mut values = json!({});
    for place in places() {
        merge(&mut values, place.ours);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), values.to_string()).unwrap();
    let helm = Helm::find().unwrap();
    let set = ["--values", file.path().to_str().unwrap()];
    let objects = helm.objects(&set).unwrap();
    for place in places() {
        let (kind, effect) = place.effect;
        let found = objects.iter().filter(|object| object["kind"] == kind);
        assert!(
            found.clone().any(|object| holds(object, &effect)),
            "{}: no {kind} with {effect} in {:#?}",
            place.theirs,
            found.collect::<Vec<_>>()
        );
    }
    let args = strings(&container(workload(&objects))["args"]);
    accepted(&args.join(" "));
}

fn accepted(arguments: &str) {
    let product = Product::new("ccm-test", "v0.0.0", &["hcloud"]);
    match config::parse(&product, arguments.split_whitespace().map(str::to_owned)) {
        Ok(Invocation::Run(_)) => {}
        Ok(other) => panic!("{arguments} would only print: {other:?}"),
        Err(error) => panic!("{arguments}: {error}"),
    }
}

fn arguments_that_hclouds_chart_renders_are_accepted() {
    for arguments in ARGUMENTS {
        accepted(arguments);
    }
}

/// What is at a path such as `image.tag`.
fn at<'a>(values: &'a Value, path: &str) -> &'a Value {
    values
        .pointer(&format!("/{}", path.replace('.', "/")))
        .unwrap_or(&Value::Null)
}

/// Every value has one row, which names values that are used for it above and that our chart has.
fn the_page_about_migration_names_every_value_of_hclouds_chart() {
    let page = docs::read("docs/migration.md").unwrap();
    let (_, section) = page.split_once("\n#### Values of another chart\n").unwrap();
    let (section, _) = section.split_once("\n### ").unwrap();
    let defaults = std::fs::read_to_string(chart().join("values.yaml")).unwrap();
    let defaults: Value = serde_saphyr::from_str(&defaults).unwrap();
    let mut places = places();
    for row in docs::rows(section, 2) {
        for theirs in docs::quoted(row[0]) {
            let found = places.iter().position(|place| place.theirs == theirs);
            let place =
                places.remove(found.unwrap_or_else(|| panic!("{theirs} is no value, or twice")));
            let mut ours: Vec<_> = docs::quoted(row[1]).collect();
            if ours.is_empty() {
                ours.push(theirs);
            }
            for path in ours {
                assert!(!at(&place.ours, path).is_null(), "{path} is not used for {theirs}");
                assert!(!at(&defaults, path).is_null(), "our chart has no {path}");
            }
        }
    }
    let left: Vec<_> = places.iter().map(|place| place.theirs).collect();
    assert!(left.is_empty(), "the page does not name {left:?}");
}
