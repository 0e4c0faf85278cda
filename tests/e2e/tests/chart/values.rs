//! Values that are wrong are refused, with their name.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::helm::{Helm, chart, container, only, strings};
use crate::{helm_or_return, workload};

/// What helm says about values that it must refuse.
fn refused(helm: &Helm, values: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), values).unwrap();
    let args =
        ["template", "x", chart().to_str().unwrap(), "--values", file.path().to_str().unwrap()].map(str::to_owned);
    let output = helm.output(args).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "accepted:\n{values}");
    assert!(output.stdout.is_empty(), "half a chart came out");
    said
}

#[test]
fn values_of_the_wrong_type_are_refused_with_their_name() {
    let helm = helm_or_return!();
    let cases: &[(&str, &[&str])] = &[
        ("{}", &["/provider", "'aws', 'openstack', 'mock', 'custom'"]),
        ("provider: azure", &["/provider", "'aws', 'openstack', 'mock', 'custom'"]),
        ("{provider: mock, replicas: two}", &["/replicas", "got string, want integer"]),
        ("{provider: mock, replicas: -1}", &["/replicas", "minimum"]),
        ("{provider: mock, kind: StatefulSet}", &["/kind", "'Deployment', 'DaemonSet'"]),
        ("{provider: mock, replica: 3}", &["'replica' not allowed"]),
        (
            "{provider: mock, metrics: {serviceMonitor: {enable: true}}}",
            &["/metrics/serviceMonitor", "'enable' not allowed"],
        ),
        ("{provider: mock, hostNetwork: 'yes'}", &["/hostNetwork", "got string, want boolean"]),
        ("{provider: mock, serving: {port: 70000}}", &["/serving/port", "maximum"]),
        ("{provider: mock, serving: {bindAddress: everywhere}}", &["/serving/bindAddress", "pattern"]),
        ("{provider: mock, tolerations: {key: x}}", &["/tolerations", "want array"]),
        ("{provider: mock, extraArgs: {--v: 4}}", &["/extraArgs", "'--v' not allowed"]),
        ("{provider: mock, extraArgs: {v: {level: 4}}}", &["/extraArgs/v"]),
        ("{provider: mock, controllers: [Route]}", &["/controllers/0", "pattern"]),
        ("{provider: mock, controllers: []}", &["/controllers", "minItems"]),
        ("{provider: mock, cluster: {cidr: 10.0.0.0}}", &["/cluster/cidr", "pattern"]),
        ("{provider: mock, featureGates: {X: 'on'}}", &["/featureGates/X", "want boolean"]),
        ("{provider: mock, image: {digest: sha256:abc}}", &["/image/digest", "pattern"]),
        ("{provider: mock, logging: {format: xml}}", &["/logging/format", "'text', 'json'"]),
        ("{provider: mock, serviceAccount: {annotations: {a: 1}}}", &["/serviceAccount/annotations/a", "want string"]),
        ("provider: custom", &["/customProviderName", "/image/repository"]),
        // Several at once are told at once.
        ("{provider: mock, replicas: x, kind: y, z: 1}", &["/replicas", "/kind", "'z' not allowed"]),
    ];
    for (values, words) in cases {
        let said = refused(&helm, values);
        for word in *words {
            assert!(said.contains(word), "{values}: no {word:?} in\n{said}");
        }
    }
}

#[test]
fn values_that_contradict_each_other_are_told_together() {
    let helm = helm_or_return!();
    let cases: &[(&str, &[&str])] = &[
        (
            "{provider: mock, cloudConfig: {content: 'a: b', existingSecret: {name: s}}}",
            &["cloudConfig: set one of values, content and existingSecret.name"],
        ),
        ("provider: openstack", &["cloudConfig: provider openstack needs one of"]),
        (
            "{provider: aws, cloudConfig: {values: {Zone: a}}}",
            &["cloudConfig.values.Zone: a section of keys is needed"],
        ),
        (
            "{provider: aws, cloudConfig: {values: {Global: {Zone: {a: b}}}}}",
            &["cloudConfig.values.Global.Zone: a value of one line is needed"],
        ),
        (
            "{provider: mock, leaderElection: {enabled: false}}",
            &["leaderElection.enabled: is needed with more than one"],
        ),
        (
            "{provider: mock, kind: DaemonSet, leaderElection: {enabled: false}}",
            &["leaderElection.enabled: is needed with kind DaemonSet"],
        ),
        (
            "{provider: mock, routes: {enabled: true}, nodeIPAM: {enabled: true}, networkPolicy: {enabled: true}}",
            &[
                "cluster.cidr: is needed with routes.enabled",
                "cluster.cidr: is needed with nodeIPAM.enabled",
                "networkPolicy.enabled: does nothing for a pod with hostNetwork",
            ],
        ),
        (
            "{provider: mock, apiServer: {host: h}, kubeconfig: {existingSecret: {name: s}}}",
            &["apiServer.host: has no effect"],
        ),
        (
            "{provider: mock, metrics: {service: {enabled: false}, serviceMonitor: {enabled: true}, reader: {create: true}}}",
            &["metrics.service.enabled: is needed", "metrics.reader.subjects: is needed"],
        ),
        (
            "{provider: mock, customProviderName: x}",
            &["customProviderName: is for provider custom, but provider is mock"],
        ),
    ];
    for (values, words) in cases {
        let said = refused(&helm, values);
        for word in *words {
            assert!(said.contains(word), "{values}: no {word:?} in\n{said}");
        }
    }
}

#[test]
fn the_cloud_config_is_written_as_the_provider_reads_it() {
    let helm = helm_or_return!();
    let config = |values: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), values).unwrap();
        let objects = helm.objects(&["--values", file.path().to_str().unwrap()]).unwrap();
        let args = strings(&container(workload(&objects))["args"]);
        assert!(
            args.contains(&"--cloud-config=/etc/cloud-controller-manager/config/cloud.conf".to_owned()),
            "{args:?}"
        );
        only(&objects, "Secret").unwrap()["stringData"]["cloud.conf"].as_str().unwrap().to_owned()
    };
    assert_eq!(config("provider: aws"), "[Global]\nDefaultLoadBalancerType = \"nlb\"\n");
    assert_eq!(
        config("{provider: aws, cloudConfig: {values: {Global: {DefaultLoadBalancerType: none, Zone: z}}}}"),
        "[Global]\nDefaultLoadBalancerType = \"none\"\nZone = \"z\"\n"
    );
    assert_eq!(
        config(
            r#"{provider: openstack, cloudConfig: {values: {Global: {password: 'a"\b', count: 10000000}, 'LoadBalancerClass "x"': {subnet-id: [s, t]}}}}"#
        ),
        "[Global]\ncount = \"10000000\"\npassword = \"a\\\"\\\\b\"\n[LoadBalancerClass \"x\"]\nsubnet-id = \"s\"\nsubnet-id = \"t\"\n"
    );
    assert_eq!(config("{provider: aws, cloudConfig: {content: '[Global]'}}"), "[Global]\n");
    assert_eq!(config("{provider: mock, cloudConfig: {values: {zones: [a, b]}}}"), "zones:\n- a\n- b\n");
}

#[test]
fn a_changed_cloud_config_makes_new_pods() {
    let helm = helm_or_return!();
    let template = |region: &str| {
        let set = format!("provider=mock,cloudConfig.values.region={region}");
        workload(&helm.objects(&["--set", &set]).unwrap())["spec"]["template"].clone()
    };
    assert_ne!(template("a"), template("b"));
    assert_eq!(template("a"), template("a"));
}

/// Paths of all values, with a dot between names.
fn paths(value: &Value, prefix: &str, into: &mut BTreeSet<String>, children: fn(&Value) -> Option<&Value>) {
    for (name, child) in children(value).and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{prefix}{name}");
        paths(child, &format!("{path}."), into, children);
        into.insert(path);
    }
}

#[test]
fn every_value_has_a_schema_and_every_schema_a_value() {
    let read = |name: &str| std::fs::read_to_string(chart().join(name)).unwrap();
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let (mut known, mut allowed) = (BTreeSet::new(), BTreeSet::new());
    paths(&values, "", &mut known, |value| Some(value));
    paths(&schema, "", &mut allowed, |schema| schema.get("properties"));
    // Free maps have entries that a schema need not name; lists of objects and helm's own `global` have no default.
    let free = |path: &str| {
        [
            "podSecurityContext.",
            "securityContext.",
            "resources.",
            "metrics.serviceMonitor.tlsConfig.",
            "metrics.dashboard.labels.",
            "affinity.",
        ]
        .iter()
        .any(|prefix| path.starts_with(prefix))
    };
    let differences: Vec<_> =
        known.symmetric_difference(&allowed).filter(|path| !free(path) && *path != "global").collect();
    assert!(differences.is_empty(), "only in one of values and schema: {differences:?}");
    // An object without this lets misspelt keys pass.
    let loose = |schema: &Value| schema.get("properties").is_some() && schema["additionalProperties"] != false;
    assert!(!loose(&schema), "the schema itself");
}
