//! Values that are wrong are refused, with their name.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{examples, workload};
use crate::cases;
use crate::helm::{Helm, chart, container, only, strings};
use crate::plain::Case;

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![
        values_of_the_wrong_type_are_refused_with_their_name,
        values_that_contradict_each_other_are_told_together,
        values_that_would_do_harm_are_refused,
        values_that_fit_together_are_accepted,
        flags_that_the_chart_sets_are_refused_as_further_ones,
        names_of_digits_stay_text,
        the_cloud_config_is_written_as_the_provider_reads_it,
        values_that_are_all_null_are_no_cloud_config,
        a_changed_cloud_config_makes_new_pods,
    ]
}

/// What is read as it is.
pub(crate) fn read() -> Vec<Case> {
    cases![
        refused_flags_and_what_is_used_instead_exist,
        every_value_has_a_schema_and_every_schema_a_value,
    ]
}

/// What helm says about values that it must refuse.
fn refused(helm: &Helm, values: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), values).unwrap();
    let args =
        ["template", "x", chart().to_str().unwrap(), "--values", file.path().to_str().unwrap()]
            .map(str::to_owned);
    let output = helm.output(args).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "accepted:\n{values}");
    assert!(output.stdout.is_empty(), "half a chart came out");
    said
}

/// Every one of these values is refused with all of its words.
fn refused_with_words(helm: &Helm, cases: &[(&str, &[&str])]) {
    for (values, words) in cases {
        let said = refused(helm, values);
        for word in *words {
            assert!(said.contains(word), "{values}: no {word:?} in\n{said}");
        }
    }
}

fn values_of_the_wrong_type_are_refused_with_their_name() {
    let helm = Helm::find().unwrap();
    let cases: &[(&str, &[&str])] = &[
        ("provider: azure", &["/provider", "'aws', 'openstack', 'mock', 'custom'"]),
        ("{provider: mock, replicas: two}", &["/replicas", "got string, want integer"]),
        ("{provider: mock, replicaCount: two}", &["/replicaCount", "got string, want integer"]),
        ("{provider: mock, updateStrategy: {type: Fast}}", &["/updateStrategy/type"]),
        ("{provider: mock, hostAliases: [{ip: 10.0.0.1}]}", &["/hostAliases/0", "hostnames"]),
        ("{provider: mock, dnsConfig: {servers: []}}", &["/dnsConfig", "'servers' not allowed"]),
        ("{provider: mock, initContainers: [{name: x}]}", &["/initContainers/0", "image"]),
        (
            "{provider: mock, topologySpreadConstraints: [{maxSkew: 1}]}",
            &["/topologySpreadConstraints/0", "topologyKey"],
        ),
        ("{provider: mock, commonAnnotations: {a: 1}}", &["/commonAnnotations/a", "want string"]),
        ("{provider: mock, extraObjects: [1]}", &["/extraObjects/0"]),
        (
            "{provider: mock, leaderMigration: {controllerLeaders: [{name: x}]}}",
            &["/leaderMigration/controllerLeaders/0", "component"],
        ),
        (
            "{provider: mock, shadow: {activeDeadlineSeconds: 0}}",
            &["/shadow/activeDeadlineSeconds", "minimum"],
        ),
        (
            "{provider: mock, rbac: {capabilities: {endpoints: 'yes'}}}",
            &["/rbac/capabilities/endpoints"],
        ),
        ("{provider: mock, replicas: -1}", &["/replicas", "minimum"]),
        ("{provider: mock, kind: StatefulSet}", &["/kind", "'Deployment', 'DaemonSet'"]),
        ("{provider: mock, replica: 3}", &["'replica' not allowed"]),
        (
            "{provider: mock, metrics: {serviceMonitor: {enable: true}}}",
            &["/metrics/serviceMonitor", "'enable' not allowed"],
        ),
        ("{provider: mock, hostNetwork: 'yes'}", &["/hostNetwork", "got string, want boolean"]),
        ("{provider: mock, serving: {port: 70000}}", &["/serving/port", "maximum"]),
        (
            "{provider: mock, serving: {bindAddress: everywhere}}",
            &["/serving/bindAddress", "pattern"],
        ),
        ("{provider: mock, tolerations: {key: x}}", &["/tolerations", "want array"]),
        ("{provider: mock, extraArgs: {--v: 4}}", &["/extraArgs", "'--v' not allowed"]),
        ("{provider: mock, extraArgs: {v: {level: 4}}}", &["/extraArgs/v"]),
        (
            "{provider: mock, podLabels: {app.kubernetes.io/name: x}}",
            &["/podLabels/app.kubernetes.io~1name"],
        ),
        (
            "{provider: mock, podLabels: {app.kubernetes.io/instance: x}}",
            &["/podLabels/app.kubernetes.io~1instance"],
        ),
        ("{provider: mock, metrics: {job: 'a\"b'}}", &["/metrics/job", "pattern"]),
        ("{provider: mock, metrics: {namespace: 'a\"'}}", &["/metrics/namespace", "pattern"]),
        ("{provider: mock, metrics: {cluster: 'a\"'}}", &["/metrics/cluster", "pattern"]),
        (
            "{provider: mock, metrics: {prometheusRule: {runbookURL: 'operating.md#x'}}}",
            &["/metrics/prometheusRule/runbookURL", "pattern"],
        ),
        (
            "{provider: mock, metrics: {serviceMonitor: {authorization: {token: x}, scrapeTimeout: 5}}}",
            &["'token' not allowed", "/metrics/serviceMonitor/scrapeTimeout"],
        ),
        (
            "{provider: mock, metrics: {serviceMonitor: {authorization: {type: Bearer}}}}",
            &["/metrics/serviceMonitor/authorization", "'credentials' required"],
        ),
        (
            "{provider: mock, metrics: {serviceMonitor: {authorization: {credentials: {name: s}}}}}",
            &["/metrics/serviceMonitor/authorization/credentials", "'key'"],
        ),
        ("{provider: mock, controllers: [Route]}", &["/controllers/0", "pattern"]),
        ("{provider: mock, controllers: []}", &["/controllers", "minItems"]),
        ("{provider: mock, cluster: {cidr: 10.0.0.0}}", &["/cluster/cidr", "pattern"]),
        ("{provider: mock, featureGates: {X: 'on'}}", &["/featureGates/X", "want boolean"]),
        ("{provider: aws, image: {registry: /}}", &["/image/registry", "pattern"]),
        ("{provider: aws, image: {registry: r.example//infra}}", &["/image/registry", "pattern"]),
        (
            "{provider: aws, image: {repository: r.example/infra//ccm}}",
            &["/image/repository", "pattern"],
        ),
        ("{provider: mock, image: {digest: sha256:abc}}", &["/image/digest", "pattern"]),
        ("{provider: mock, logging: {format: xml}}", &["/logging/format", "'text', 'json'"]),
        (
            "{provider: mock, serviceAccount: {annotations: {a: 1}}}",
            &["/serviceAccount/annotations/a", "want string"],
        ),
        ("provider: custom", &["/customProviderName", "/image/repository"]),
        // Several at once are told at once.
        (
            "{provider: mock, replicas: x, kind: y, z: 1}",
            &["/replicas", "/kind", "'z' not allowed"],
        ),
    ];
    refused_with_words(&helm, cases);
}

fn values_that_contradict_each_other_are_told_together() {
    let helm = Helm::find().unwrap();
    let cases: &[(&str, &[&str])] = &[
        ("{}", &["provider: is required: aws, openstack, mock or custom"]),
        ("provider: aws", &["image.registry: is needed with provider aws"]),
        (
            "provider: openstack",
            &["image.registry: is needed with provider openstack", "image.repository"],
        ),
        (
            "{provider: mock, cloudConfig: {content: 'a: b', existingSecret: {name: s}}}",
            &["cloudConfig: set one of values, content and existingSecret.name"],
        ),
        (
            "{provider: mock, useServiceAccountCredentials: true, rbac: {capabilities: {node: false, ipam: false}}}",
            &[
                "rbac.capabilities.ipam: has no effect with useServiceAccountCredentials",
                "rbac.capabilities.node: ",
            ],
        ),
        ("provider: openstack", &["cloudConfig: provider openstack needs one of"]),
        (
            "{provider: openstack, image: {registry: r}, cloudConfig: {values: {Global: null}}}",
            &["cloudConfig: provider openstack needs one of"],
        ),
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
            "{provider: mock, updateStrategy: {type: OnDelete}}",
            &["updateStrategy.type: OnDelete is for kind DaemonSet"],
        ),
        (
            "{provider: mock, kind: DaemonSet, updateStrategy: {type: Recreate}}",
            &["updateStrategy.type: Recreate is for kind Deployment"],
        ),
        (
            "{provider: mock, updateStrategy: {type: Recreate, rollingUpdate: {maxSurge: 1}}}",
            &["updateStrategy.rollingUpdate: is for type RollingUpdate, but the type is Recreate"],
        ),
        (
            "{provider: mock, updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0%}}}",
            &["updateStrategy.rollingUpdate: maxSurge and maxUnavailable are both 0"],
        ),
        (
            "{provider: mock, kind: DaemonSet, updateStrategy: {rollingUpdate: {maxUnavailable: 0}}}",
            &["updateStrategy.rollingUpdate: maxSurge and maxUnavailable are both 0"],
        ),
        (
            "{provider: mock, kind: DaemonSet, updateStrategy: {rollingUpdate: {maxSurge: 1}}}",
            &[
                "updateStrategy.rollingUpdate: a DaemonSet with maxSurge needs maxUnavailable 0",
                "updateStrategy.rollingUpdate.maxSurge: must be 0 with kind DaemonSet and hostNetwork",
            ],
        ),
        ("{provider: mock, dnsPolicy: None}", &["dnsConfig.nameservers: is needed"]),
        (
            "{provider: mock, replicaCount: 1, leaderElection: {enabled: false}, leaderMigration: {enabled: true, leaseName: x}}",
            &[
                "leaderElection.enabled: is needed with leaderMigration.enabled",
                "leaderMigration.controllerLeaders: is needed with a leaseName of your own",
            ],
        ),
        (
            "{provider: mock, leaderMigration: {enabled: true, leaseName: cloud-controller-manager}}",
            &["leaderMigration.leaseName: is also leaderElection.leaseName"],
        ),
        (
            "{provider: mock, leaderMigration: {controllerLeaders: [{name: a, component: b}]}}",
            &["leaderMigration.enabled: is needed with leaderMigration.controllerLeaders"],
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
    refused_with_words(&helm, cases);
}

/// Each of them would render, and be found out late: by probes, alerts, or whoever uses the rights.
fn values_that_would_do_harm_are_refused() {
    let helm = Helm::find().unwrap();
    let cases: &[(&str, &[&str])] = &[
        (
            "{provider: mock, metrics: {prometheusRule: {enabled: true}}}",
            &["metrics.job: is needed"],
        ),
        (
            "{provider: mock, metrics: {serviceMonitor: {enabled: true}}}",
            &["serving.tls.existingSecret: is needed with metrics.serviceMonitor.enabled"],
        ),
        (
            "{provider: mock, metrics: {serviceMonitor: {enabled: true, tlsConfig: {insecureSkipVerify: true}}}}",
            &["metrics.serviceMonitor.tlsConfig.insecureSkipVerify: would send Prometheus' token"],
        ),
        (
            "{provider: mock, metrics: {serviceMonitor: {enabled: true, bearerTokenFile: '', authorization: {credentials: {name: s, key: k}}, tlsConfig: {insecureSkipVerify: true}}}}",
            &["metrics.serviceMonitor.tlsConfig.insecureSkipVerify: would send Prometheus' token"],
        ),
        (
            "{provider: mock, metrics: {job: x, serviceMonitor: {enabled: true}}}",
            &["metrics.job: is for metrics that are scraped without"],
        ),
        (
            "{provider: mock, serviceAccount: {create: false}}",
            &["serviceAccount.name: is needed with rbac.create"],
        ),
        // A second pod would work while the first still does.
        (
            "{provider: mock, replicaCount: 1, leaderElection: {enabled: false}, updateStrategy: {type: RollingUpdate}}",
            &["updateStrategy.type: Recreate is needed without leaderElection.enabled"],
        ),
        (
            "{provider: mock, hostNetwork: false, serving: {bindAddress: 127.0.0.1}}",
            &["serving.bindAddress: at 127.0.0.1 nothing reaches a pod without hostNetwork"],
        ),
        (
            "{provider: mock, hostNetwork: false, serving: {bindAddress: '::1'}}",
            &["serving.bindAddress: at ::1 nothing"],
        ),
        (
            "{provider: mock, hostNetwork: false, serving: {bindAddress: '0:0::0001'}}",
            &["serving.bindAddress: at 0:0::0001 nothing"],
        ),
        (
            "{provider: mock, extraArgs: {leader_elect: false, secure-port: 1, master: x}}",
            &[
                "extraArgs.leader_elect: is for the chart to set; use leaderElection.enabled",
                "extraArgs.secure-port: is for the chart to set; use serving.port",
                "extraArgs.master: is for the chart to set; use apiServer.host",
            ],
        ),
    ];
    refused_with_words(&helm, cases);
}

/// Combinations that are next to those that are refused.
fn values_that_fit_together_are_accepted() {
    let helm = Helm::find().unwrap();
    let cases = [
        "hostNetwork=true,serving.bindAddress=127.0.0.1",
        "hostNetwork=false,serving.bindAddress=::",
        "hostNetwork=false,serving.bindAddress=10.0.127.1",
        "hostNetwork=false,serving.bindAddress=fd00::1",
        "serviceAccount.create=false,serviceAccount.name=default",
        "serviceAccount.create=false,rbac.create=false",
        "metrics.prometheusRule.enabled=true,metrics.job=cloud/manager",
        "metrics.prometheusRule.enabled=true,metrics.prometheusRule.disabled={CloudControllerManagerDown}",
        "leaderElection.enabled=false,replicas=1",
        "leaderElection.enabled=false,replicaCount=1,updateStrategy.type=Recreate",
        "kind=DaemonSet,updateStrategy.type=OnDelete",
        "updateStrategy.rollingUpdate.maxUnavailable=0",
        "updateStrategy.rollingUpdate.maxSurge=0,updateStrategy.rollingUpdate.maxUnavailable=50%",
        "kind=DaemonSet,hostNetwork=false,updateStrategy.rollingUpdate.maxSurge=1,updateStrategy.rollingUpdate.maxUnavailable=0",
        "dnsPolicy=None,dnsConfig.nameservers={10.0.0.10}",
        "extraArgs.leader-elect-lease-duration=30s,extraArgs.kube_api_qps=50",
    ];
    for set in cases {
        helm.objects(&["--set", &format!("provider=mock,{set}")])
            .unwrap_or_else(|error| panic!("{set}: {error}"));
    }
}

/// Whatever comes from another value would be overruled, since further flags come last.
fn flags_that_the_chart_sets_are_refused_as_further_ones() {
    let helm = Helm::find().unwrap();
    let mut set = BTreeSet::new();
    for name in examples() {
        let example =
            std::fs::read_to_string(chart().join("examples").join(format!("{name}.yaml"))).unwrap();
        let mut values: Value = serde_saphyr::from_str(&example).unwrap();
        values["extraArgs"] = Value::Null;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), values.to_string()).unwrap();
        let objects = helm
            .objects(&["--values", file.path().to_str().unwrap()])
            .unwrap();
        for argument in strings(&container(workload(&objects))["args"]) {
            set.insert(
                argument
                    .trim_start_matches("--")
                    .split('=')
                    .next()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    assert!(set.len() > 20, "{set:?}");
    for underscores in [false, true] {
        let written = |flag: &String| {
            if underscores {
                flag.replace('-', "_")
            } else {
                flag.clone()
            }
        };
        let flags: serde_json::Map<_, _> =
            set.iter().map(|flag| (written(flag), "x".into())).collect();
        let said = refused(
            &helm,
            &serde_json::json!({"provider": "mock", "extraArgs": flags}).to_string(),
        );
        let accepted: Vec<_> = flags
            .keys()
            .filter(|flag| !said.contains(&format!("- extraArgs.{flag}: is for the chart")))
            .collect();
        assert!(
            accepted.is_empty(),
            "{accepted:?} would overrule the chart's own values; told was\n{said}"
        );
    }
}

/// The values that are named in place of refused flags exist, and so do the flags.
fn refused_flags_and_what_is_used_instead_exist() {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    let template = read(chart().join("templates/_validate.tpl"));
    let list = template
        .split("define \"ccm.ownFlags\" -}}")
        .nth(1)
        .unwrap()
        .split("{{-")
        .next()
        .unwrap();
    let values: Value = serde_saphyr::from_str(&read(chart().join("values.yaml"))).unwrap();
    let mut known = BTreeSet::new();
    paths(&values, "", &mut known, |value| Some(value));
    let page = read(crate::helm::root().join("docs/reference/flags.md"));
    for line in list.lines().filter(|line| !line.is_empty()) {
        let (flag, instead) = line.split_once(": ").unwrap();
        assert!(page.contains(&format!("`--{flag}` |")), "{flag}");
        assert!(instead.split(" or ").all(|path| known.contains(path)), "{line}");
    }
}

/// YAML reads digits without quotes as a number, which the API server refuses.
fn names_of_digits_stay_text() {
    let helm = Helm::find().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let values = serde_json::json!({
        "provider": "mock",
        "leaderElection": {"leaseName": "11", "leaseNamespace": "12"},
        "serviceAccount": {"name": "13"},
        "cloudConfig": {"existingSecret": {"name": "14"}},
        "kubeconfig": {"existingSecret": {"name": "15"}},
        "serving": {"tls": {"existingSecret": "16"}},
        "podLabels": {"build": "17"},
    });
    std::fs::write(file.path(), values.to_string()).unwrap();
    let objects = helm
        .objects(&["--values", file.path().to_str().unwrap()])
        .unwrap();
    let all = serde_json::to_string(&objects).unwrap();
    for name in 11..=17 {
        assert!(all.contains(&format!("\"{name}\"")), "{name} is nowhere");
        for before in [':', '['] {
            assert!(!all.contains(&format!("{before}{name},")), "{name} is a number");
            assert!(!all.contains(&format!("{before}{name}}}")), "{name} is a number");
        }
    }
}

fn the_cloud_config_is_written_as_the_provider_reads_it() {
    let helm = Helm::find().unwrap();
    let config = |values: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), values).unwrap();
        let objects = helm
            .objects(&["--values", file.path().to_str().unwrap()])
            .unwrap();
        let args = strings(&container(workload(&objects))["args"]);
        assert!(
            args.contains(
                &"--cloud-config=/etc/cloud-controller-manager/config/cloud.conf".to_owned()
            ),
            "{args:?}"
        );
        only(&objects, "Secret").unwrap()["stringData"]["cloud.conf"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        config("{provider: aws, image: {registry: r}}"),
        "[Global]\nDefaultLoadBalancerType = \"nlb\"\n"
    );
    assert_eq!(
        config(
            "{provider: aws, image: {registry: r}, cloudConfig: {values: {Global: {DefaultLoadBalancerType: none, Zone: z}}}}"
        ),
        "[Global]\nDefaultLoadBalancerType = \"none\"\nZone = \"z\"\n"
    );
    assert_eq!(
        config(
            r#"{provider: openstack, image: {registry: r}, cloudConfig: {values: {Global: {password: 'a"\b', count: 10000000}, 'LoadBalancerClass "x"': {subnet-id: [s, t]}}}}"#
        ),
        "[Global]\ncount = \"10000000\"\npassword = \"a\\\"\\\\b\"\n[LoadBalancerClass \"x\"]\nsubnet-id = \"s\"\nsubnet-id = \"t\"\n"
    );
    assert_eq!(
        config("{provider: aws, image: {registry: r}, cloudConfig: {content: '[Global]'}}"),
        "[Global]\n"
    );
    assert_eq!(
        config("{provider: mock, cloudConfig: {values: {zones: [a, b]}}}"),
        "zones:\n- a\n- b\n"
    );
    // What is null is left out: so a value of an earlier file is taken back.
    assert_eq!(
        config(
            "{provider: openstack, image: {registry: r}, cloudConfig: {values: {Route: null, Global: {region: null, secret: s, ids: [a, null, b]}}}}"
        ),
        "[Global]\nids = \"a\"\nids = \"b\"\nsecret = \"s\"\n"
    );
    assert_eq!(
        config(
            "{provider: aws, image: {registry: r}, cloudConfig: {values: {Global: {DefaultLoadBalancerType: null}}}}"
        ),
        "[Global]\nDefaultLoadBalancerType = \"nlb\"\n"
    );
    assert_eq!(
        config(
            "{provider: mock, cloudConfig: {values: {a: null, zones: [{b: null, c: 10000000}, null]}}}"
        ),
        "zones:\n- c: 10000000\n"
    );
}

/// Taken back by null, one after the other.
fn values_that_are_all_null_are_no_cloud_config() {
    let helm = Helm::find().unwrap();
    let objects = helm
        .objects(&["--set", "provider=mock,cloudConfig.values.region=null"])
        .unwrap();
    assert!(only(&objects, "Secret").is_err());
    let args = strings(&container(workload(&objects))["args"]);
    assert!(
        !args
            .iter()
            .any(|argument| argument.starts_with("--cloud-config")),
        "{args:?}"
    );
}

fn a_changed_cloud_config_makes_new_pods() {
    let helm = Helm::find().unwrap();
    let template = |region: &str| {
        let set = format!("provider=mock,cloudConfig.values.region={region}");
        workload(&helm.objects(&["--set", &set]).unwrap())["spec"]["template"].clone()
    };
    assert_ne!(template("a"), template("b"));
    assert_eq!(template("a"), template("a"));
}

/// Paths of all values, with a dot between names.
fn paths(
    value: &Value,
    prefix: &str,
    into: &mut BTreeSet<String>,
    children: fn(&Value) -> Option<&Value>,
) {
    for (name, child) in children(value)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let path = format!("{prefix}{name}");
        paths(child, &format!("{path}."), into, children);
        into.insert(path);
    }
}

fn every_value_has_a_schema_and_every_schema_a_value() {
    let read = |name: &str| std::fs::read_to_string(chart().join(name)).unwrap();
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let (mut known, mut allowed) = (BTreeSet::new(), BTreeSet::new());
    paths(&values, "", &mut known, |value| Some(value));
    paths(&schema, "", &mut allowed, |schema| schema.get("properties"));
    // Free maps have entries that a schema need not name; lists of objects, helm's own `global` and
    // the old name of `replicaCount` have no default.
    let free = |path: &str| {
        [
            "podSecurityContext.",
            "securityContext.",
            "resources.",
            "metrics.serviceMonitor.tlsConfig.",
            "metrics.serviceMonitor.authorization.",
            "metrics.dashboard.labels.",
            "affinity.",
            "dnsConfig.",
            "updateStrategy.",
        ]
        .iter()
        .any(|prefix| path.starts_with(prefix))
    };
    let differences: Vec<_> = known
        .symmetric_difference(&allowed)
        .filter(|path| !free(path) && !["global", "replicas"].contains(&path.as_str()))
        .collect();
    assert!(differences.is_empty(), "only in one of values and schema: {differences:?}");
    // An object without this lets misspelt keys pass.
    let loose = |schema: &Value| {
        schema.get("properties").is_some() && schema["additionalProperties"] != false
    };
    assert!(!loose(&schema), "the schema itself");
}
