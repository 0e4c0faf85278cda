//! Objects that are there only if they are asked for.

use std::collections::BTreeSet;

use serde_json::Value;

use super::workload;
use crate::cases;
use crate::helm::{Helm, chart, container, only, root, strings};
use crate::plain::Case;

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![
        optional_objects_are_off_by_default_and_there_when_asked_for,
        selectors_find_the_pods,
        host_network_and_rollouts_fit_together,
        without_an_election_the_old_pod_is_gone_before_the_new_one_starts,
        labels_of_pods_win,
        another_api_server_reaches_the_process_by_environment_or_kubeconfig,
        alerts_are_complete_and_can_be_left_out,
        alerts_and_dashboard_ask_for_the_job_that_is_scraped,
        the_dashboard_is_one,
        scrapes_verify_whom_they_send_a_token,
    ]
}

/// What is read as it is.
pub(crate) fn read() -> Vec<Case> {
    cases![
        alerts_and_dashboard_ask_for_metrics_that_exist,
        alerts_and_dashboard_select_labels_that_exist,
        windows_of_alerts_hold_several_tries,
        the_guide_lists_every_alert,
    ]
}

fn kinds(objects: &[Value]) -> BTreeSet<&str> {
    objects
        .iter()
        .filter_map(|object| object["kind"].as_str())
        .collect()
}

fn optional_objects_are_off_by_default_and_there_when_asked_for() {
    let helm = Helm::find().unwrap();
    let default = helm.objects(&["--set", "provider=mock"]).unwrap();
    let extra =
        ["ServiceMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy", "Secret", "DaemonSet"];
    for kind in extra {
        assert!(!kinds(&default).contains(kind), "{kind}");
    }
    let cases = [
        ("metrics.serviceMonitor.enabled=true,serving.tls.existingSecret=t", "ServiceMonitor"),
        ("metrics.prometheusRule.enabled=true,metrics.job=x", "PrometheusRule"),
        ("metrics.dashboard.enabled=true", "ConfigMap"),
        ("networkPolicy.enabled=true,hostNetwork=false", "NetworkPolicy"),
        ("cloudConfig.values.region=r", "Secret"),
        ("kind=DaemonSet", "DaemonSet"),
    ];
    for (set, kind) in cases {
        let objects = helm
            .objects(&["--set", &format!("provider=mock,{set}")])
            .unwrap();
        let object = only(&objects, kind).unwrap();
        assert_eq!(object["metadata"]["namespace"], "kube-system", "{kind}");
    }
    let without = [
        ("metrics.service.enabled=false", "Service"),
        ("podDisruptionBudget.enabled=false", "PodDisruptionBudget"),
        ("replicas=1", "PodDisruptionBudget"),
        ("kind=DaemonSet", "PodDisruptionBudget"),
        ("serviceAccount.create=false,serviceAccount.name=x", "ServiceAccount"),
    ];
    for (set, kind) in without {
        let objects = helm
            .objects(&["--set", &format!("provider=mock,{set}")])
            .unwrap();
        assert!(kinds(&default).contains(kind) && !kinds(&objects).contains(kind), "{set}: {kind}");
    }
}

fn selectors_find_the_pods() {
    let helm = Helm::find().unwrap();
    let set = "provider=mock,hostNetwork=false,networkPolicy.enabled=true,metrics.serviceMonitor.enabled=true,\
               serving.tls.existingSecret=t";
    let objects = helm.objects(&["--set", set]).unwrap();
    let pod = &workload(&objects)["spec"]["template"]["metadata"]["labels"];
    let covers = |selector: &Value, labels: &Value| {
        let selector = selector.as_object().unwrap();
        assert!(
            !selector.is_empty() && selector.iter().all(|(key, value)| labels[key] == *value),
            "{selector:?} {labels}"
        );
    };
    let service = only(&objects, "Service").unwrap();
    covers(&workload(&objects)["spec"]["selector"]["matchLabels"], pod);
    covers(&only(&objects, "PodDisruptionBudget").unwrap()["spec"]["selector"]["matchLabels"], pod);
    covers(&only(&objects, "NetworkPolicy").unwrap()["spec"]["podSelector"]["matchLabels"], pod);
    covers(&service["spec"]["selector"], pod);
    let monitor = only(&objects, "ServiceMonitor").unwrap();
    covers(&monitor["spec"]["selector"]["matchLabels"], &service["metadata"]["labels"]);
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], service["spec"]["ports"][0]["name"]);
    assert_eq!(
        container(workload(&objects))["ports"][0]["name"],
        service["spec"]["ports"][0]["targetPort"]
    );
    // Alerts ask for the job by this name.
    let job = monitor["spec"]["jobLabel"].as_str().unwrap();
    assert_eq!(service["metadata"]["labels"][job], "cloud-controller-manager");
}

fn host_network_and_rollouts_fit_together() {
    let helm = Helm::find().unwrap();
    let surge = |set: &str| {
        let objects = helm
            .objects(&["--set", &format!("provider=mock,{set}")])
            .unwrap();
        let pod = workload(&objects)["spec"].clone();
        let strategy = if pod["strategy"].is_null() {
            &pod["updateStrategy"]
        } else {
            &pod["strategy"]
        };
        (
            strategy["rollingUpdate"]["maxSurge"].clone(),
            pod["template"]["spec"]["dnsPolicy"].clone(),
        )
    };
    assert_eq!(surge("hostNetwork=true"), (0.into(), "Default".into()));
    assert_eq!(surge("hostNetwork=false"), (1.into(), "ClusterFirst".into()));
    assert_eq!(surge("kind=DaemonSet"), (0.into(), "Default".into()));
    assert_eq!(
        surge("dnsPolicy=ClusterFirstWithHostNet"),
        (0.into(), "ClusterFirstWithHostNet".into())
    );
}

/// Two managers without an election would both change the cloud.
fn without_an_election_the_old_pod_is_gone_before_the_new_one_starts() {
    let helm = Helm::find().unwrap();
    for network in ["hostNetwork=true", "hostNetwork=false"] {
        let set = format!("provider=mock,replicas=1,leaderElection.enabled=false,{network}");
        let objects = helm.objects(&["--set", &set]).unwrap();
        assert_eq!(
            workload(&objects)["spec"]["strategy"],
            serde_json::json!({"type": "Recreate"}),
            "{network}"
        );
        let objects = helm
            .objects(&["--set", &format!("provider=mock,replicas=1,{network}")])
            .unwrap();
        assert_eq!(workload(&objects)["spec"]["strategy"]["type"], "RollingUpdate", "{network}");
    }
}

/// Labels of all objects and labels of pods may have the same key, and then the pod's wins.
fn labels_of_pods_win() {
    let helm = Helm::find().unwrap();
    let objects = helm
        .objects(&["--set", "provider=mock,commonLabels.team=a,podLabels.team=b"])
        .unwrap();
    let workload = workload(&objects);
    assert_eq!(workload["metadata"]["labels"]["team"], "a");
    assert_eq!(workload["spec"]["template"]["metadata"]["labels"]["team"], "b");
}

fn another_api_server_reaches_the_process_by_environment_or_kubeconfig() {
    let helm = Helm::find().unwrap();
    let objects = helm
        .objects(&["--set", "provider=mock,apiServer.host=10.0.0.1,apiServer.port=443"])
        .unwrap();
    let env = container(workload(&objects))["env"].as_array().unwrap();
    let value = |name: &str| {
        env.iter()
            .find(|variable| variable["name"] == name)
            .unwrap()["value"]
            .clone()
    };
    assert_eq!(
        (value("KUBERNETES_SERVICE_HOST"), value("KUBERNETES_SERVICE_PORT")),
        ("10.0.0.1".into(), "443".into())
    );

    let objects = helm
        .objects(&["--set", "provider=mock,kubeconfig.existingSecret.name=k"])
        .unwrap();
    let pod = &workload(&objects)["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "k");
    let args = strings(&container(workload(&objects))["args"]);
    let path = pod["containers"][0]["volumeMounts"][0]["mountPath"]
        .as_str()
        .unwrap();
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        assert!(args.contains(&format!("--{flag}={path}/kubeconfig")), "{flag}: {args:?}");
    }
}

/// Names that look like metrics.
fn metrics(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let ours = [
        "ccm_",
        "leader_election_",
        "node_controller_",
        "rest_client_",
        "route_controller_",
        "service_controller_",
        "workqueue_",
    ];
    let words = text
        .split(|c| !is_part(c))
        .filter(|word| ours.iter().any(|prefix| word.starts_with(prefix)));
    words
        .map(|word| word.trim_end_matches("_bucket").to_owned())
        .collect()
}

fn alerts_and_dashboard_ask_for_metrics_that_exist() {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    let page = read(root().join("docs/reference/metrics.md"));
    let known: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect();
    for file in ["alerts.yaml", "dashboard.json"] {
        let used = metrics(&read(chart().join("files").join(file)));
        assert!(used.len() > 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(
            unknown.is_empty(),
            "{file} asks for {unknown:?}, which docs/reference/metrics.md does not list"
        );
    }
}

/// `metric{label="value"}` with every value of a `label=~"a|b"`.
fn selected(text: &str) -> Vec<(String, String, String)> {
    let mut selected = Vec::new();
    for (at, _) in text.match_indices('{') {
        let name: String = metrics(&text[..at])
            .into_iter()
            .find(|name| text[..at].ends_with(name.as_str()))
            .unwrap_or_default();
        let matchers = text[at + 1..]
            .split('}')
            .next()
            .unwrap_or_default()
            .replace('\\', "");
        // SELECTOR has no value yet.
        let matchers = matchers.split(',').filter(|matcher| matcher.contains('"'));
        for matcher in matchers.filter(|_| !name.is_empty()) {
            // `=`, `!=`, `=~` or `!~` in between.
            let label = matcher
                .trim_end_matches(|c| c != '=' && c != '~')
                .trim_end_matches(['=', '~', '!']);
            let values = matcher.split('"').nth(1).unwrap_or_default().split('|');
            selected.extend(values.map(|value| (name.clone(), label.to_owned(), value.to_owned())));
        }
    }
    selected
}

fn alerts_and_dashboard_select_labels_that_exist() {
    let page = std::fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let mut seen = 0;
    for file in ["alerts.yaml", "dashboard.json"] {
        let text = std::fs::read_to_string(chart().join("files").join(file)).unwrap();
        // The scrape adds job, namespace and cluster, and the chart's values name the Lease.
        for (name, label, value) in selected(&text).into_iter().filter(|(_, label, _)| {
            !["job", "namespace", "cluster", "name"].contains(&label.as_str())
        }) {
            let row = page
                .lines()
                .find(|line| line.starts_with(&format!("| `{name}` ")))
                .unwrap();
            let values = row
                .split_once(&format!("`{label}`: "))
                .unwrap()
                .1
                .split([';', '|'])
                .next()
                .unwrap();
            for value in value.split('|') {
                assert!(
                    values.contains(&format!("`{value}`")),
                    "{file}: {name} has no {label} {value:?}, only {values}"
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 8, "{seen}");
}

fn alerts_are_complete_and_can_be_left_out() {
    let helm = Helm::find().unwrap();
    let set = "provider=mock,metrics.prometheusRule.enabled=true,metrics.prometheusRule.alertLabels.team=infra,\
               leaderElection.leaseName=mine,metrics.prometheusRule.disabled={CloudControllerManagerDown}";
    let objects = helm.objects(&["--set", set]).unwrap();
    let rules = &only(&objects, "PrometheusRule").unwrap()["spec"]["groups"][0]["rules"];
    let rules = rules.as_array().unwrap();
    assert!(rules.len() >= 8, "{}", rules.len());
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert_ne!(name, "CloudControllerManagerDown");
        for annotation in ["summary", "description"] {
            assert!(rule["annotations"][annotation].is_string(), "{name}: {annotation}");
        }
        assert!(
            ["warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()),
            "{name}"
        );
        assert_eq!(rule["labels"]["team"], "infra", "{name}");
        for placeholder in ["LEASE_NAME", "SELECTOR"] {
            assert!(!rule.to_string().contains(placeholder), "{name}: {placeholder}");
        }
    }
    let alone = "provider=mock,replicas=1,leaderElection.enabled=false,metrics.prometheusRule.enabled=true,\
                 metrics.job=x";
    let objects = helm.objects(&["--set", alone]).unwrap();
    let text = only(&objects, "PrometheusRule").unwrap().to_string();
    assert!(!text.contains("HasNoLeader"), "nobody leads without an election");
}

/// The longest time between two tries of something that keeps failing is 300 s and a tenth of that.
fn windows_of_alerts_hold_several_tries() {
    let alerts = std::fs::read_to_string(chart().join("files/alerts.yaml")).unwrap();
    let alerts: Vec<Value> = serde_saphyr::from_str(&alerts).unwrap();
    let mut seen = 0;
    for alert in &alerts {
        for rest in alert["expr"].as_str().unwrap().split('[').skip(1) {
            let window = rest.split(']').next().unwrap();
            let minutes = match window.split_at(window.len() - 1) {
                (n, "m") => n.parse::<u32>().unwrap(),
                (n, "h") => n.parse::<u32>().unwrap() * 60,
                _ => panic!("{window}"),
            };
            assert!(minutes >= 15, "{}: {window}", alert["alert"]);
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}

/// Otherwise the alert that nothing answers would ring for ever.
fn alerts_and_dashboard_ask_for_the_job_that_is_scraped() {
    let helm = Helm::find().unwrap();
    let jobs = |set: &str| {
        let set = format!(
            "provider=mock,metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true,{set}"
        );
        let objects = helm.objects(&["--set", &set]).unwrap();
        let dashboard =
            only(&objects, "ConfigMap").unwrap()["data"]["cloud-controller-manager.json"].clone();
        let dashboard: Value = serde_json::from_str(dashboard.as_str().unwrap()).unwrap();
        let mut jobs = BTreeSet::new();
        for part in [only(&objects, "PrometheusRule").unwrap().to_string(), dashboard.to_string()] {
            assert!(part.contains("job="), "{part}");
            jobs.extend(
                part.split("job=\\\"")
                    .skip(1)
                    .map(|rest| rest.split('\\').next().unwrap().to_owned()),
            );
        }
        jobs.into_iter().collect::<Vec<_>>()
    };
    // The ServiceMonitor's, see `selectors_find_the_pods`.
    assert_eq!(
        jobs("metrics.serviceMonitor.enabled=true,serving.tls.existingSecret=t"),
        ["cloud-controller-manager"]
    );
    assert_eq!(jobs("metrics.job=kube-system/ccm"), ["kube-system/ccm"]);
}

fn the_dashboard_is_one() {
    let helm = Helm::find().unwrap();
    let objects = helm
        .objects(&["--set", "provider=mock,metrics.dashboard.enabled=true"])
        .unwrap();
    let map = only(&objects, "ConfigMap").unwrap();
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard: Value = serde_json::from_str(
        map["data"]["cloud-controller-manager.json"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids.len(), panels.len());
    let targets: Vec<_> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(targets.len() >= panels.len());
    for expr in targets {
        let selected = expr
            .matches(r#"{cluster=~"$cluster",namespace=~"$namespace",job=~"$job""#)
            .count();
        assert_eq!(selected, metrics(expr).len(), "{expr} shows what others measure");
        assert_eq!(selected, expr.matches('{').count(), "{expr}");
    }
    let variables: Vec<_> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert_eq!(variables, ["datasource", "cluster", "namespace", "job"]);
    assert_eq!(dashboard["templating"]["list"][3]["current"]["value"], "cloud-controller-manager");
}

fn scrapes_verify_whom_they_send_a_token() {
    let helm = Helm::find().unwrap();
    let endpoint = |set: &str| {
        let set = format!("provider=mock,metrics.serviceMonitor.enabled=true,{set}");
        let objects = helm.objects(&["--set", &set]).unwrap();
        only(&objects, "ServiceMonitor").unwrap()["spec"]["endpoints"][0].clone()
    };
    let default = endpoint("serving.tls.existingSecret=t");
    assert_eq!(
        default["tlsConfig"],
        serde_json::json!({
            "ca": {"secret": {"name": "t", "key": "ca.crt"}},
            "serverName": "cloud-controller-manager-metrics.kube-system.svc",
        })
    );
    assert!(default["bearerTokenFile"].is_string());
    let secret = "metrics.serviceMonitor.authorization.credentials.name=s,\
                  metrics.serviceMonitor.authorization.credentials.key=k";
    let other = endpoint(&format!(
        "{secret},metrics.serviceMonitor.tlsConfig.serverName=x,metrics.serviceMonitor.scrapeTimeout=5s,\
         metrics.serviceMonitor.relabelings[0].targetLabel=cluster,\
         metrics.serviceMonitor.metricRelabelings[0].action=drop"
    ));
    assert_eq!(other["authorization"]["credentials"], serde_json::json!({"name": "s", "key": "k"}));
    assert!(other["bearerTokenFile"].is_null());
    assert_eq!(other["tlsConfig"], serde_json::json!({"serverName": "x"}));
    assert_eq!(other["scrapeTimeout"], "5s");
    assert_eq!(other["relabelings"][0]["targetLabel"], "cluster");
    assert_eq!(other["metricRelabelings"][0]["action"], "drop");
    let unverified = "metrics.serviceMonitor.tlsConfig.insecureSkipVerify=true,metrics.serviceMonitor.bearerTokenFile=";
    let without = endpoint(unverified);
    assert!(
        without["bearerTokenFile"].is_null() && without["authorization"].is_null(),
        "{without}"
    );
}

fn the_guide_lists_every_alert() {
    let alerts: Vec<Value> = serde_saphyr::from_str(
        &std::fs::read_to_string(chart().join("files/alerts.yaml")).unwrap(),
    )
    .unwrap();
    let guide = std::fs::read_to_string(root().join("docs/install.md")).unwrap();
    let listed: BTreeSet<_> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `CloudControllerManager"))
        .collect();
    let missing: Vec<_> = alerts
        .iter()
        .filter(|alert| !guide.contains(&format!("| `{}` |", alert["alert"].as_str().unwrap())))
        .collect();
    assert!(missing.is_empty() && listed.len() == alerts.len(), "{missing:?} {listed:?}");
}
