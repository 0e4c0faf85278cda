//! Beside another manager: leader migration and shadow mode.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use ccm_core::config::{
    self, Invocation, Product, ReportFormat, leader_migration::LeaderMigration,
};
use serde_json::{Value, json};

use super::workload;
use crate::cases;
use crate::helm::{Helm, RELEASE, chart, container, objects, only, root, strings};
use crate::plain::Case;

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![
        a_migration_by_the_built_in_list_is_a_flag,
        a_migration_of_ones_own_is_a_file_and_its_lock_is_in_the_role,
        a_shadow_is_a_job_that_compares_once,
        a_shadow_may_read_what_the_controllers_read_and_nothing_else,
        a_report_names_the_lease_and_may_read_it,
        a_shadow_of_another_cluster_makes_no_roles,
        a_shadow_never_takes_the_place_of_its_releases_manager,
        a_shadow_may_go_on_comparing,
    ]
}

fn locks(objects: &[Value]) -> Vec<String> {
    let role = only(objects, "Role").unwrap();
    strings(&role["rules"][1]["resourceNames"])
}

fn a_migration_by_the_built_in_list_is_a_flag() {
    let helm = Helm::find().unwrap();
    let objects = helm
        .objects(&["--set", "provider=mock,leaderMigration.enabled=true"])
        .unwrap();
    let args = strings(&container(workload(&objects))["args"]);
    assert!(args.contains(&"--enable-leader-migration=true".to_owned()), "{args:?}");
    assert!(
        !args
            .iter()
            .any(|arg| arg.contains("leader-migration-config")),
        "{args:?}"
    );
    assert!(only(&objects, "ConfigMap").is_err());
    assert_eq!(
        locks(&objects),
        ["cloud-controller-manager", LeaderMigration::default().leader_name.as_str()]
    );
    let without = helm.objects(&["--set", "provider=mock"]).unwrap();
    assert_eq!(
        locks(&without),
        ["cloud-controller-manager"],
        "nothing of what it takes no part in"
    );
    let args = strings(&container(workload(&without))["args"]);
    assert!(!args.iter().any(|arg| arg.contains("migration")), "{args:?}");
}

/// The file is read by the binary's own parser.
fn a_migration_of_ones_own_is_a_file_and_its_lock_is_in_the_role() {
    let helm = Helm::find().unwrap();
    let values = |component: &str| {
        json!({"provider": "mock", "leaderMigration": {
            "enabled": true, "leaseName": "moving",
            "controllerLeaders": [{"name": "service-controller", "component": component}],
        }})
    };
    let render = |component: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), values(component).to_string()).unwrap();
        helm.objects(&["--values", file.path().to_str().unwrap()])
            .unwrap()
    };
    let objects = render("*");
    assert_eq!(locks(&objects), ["cloud-controller-manager", "moving"]);
    let template = &workload(&objects)["spec"]["template"];
    assert_ne!(*template, workload(&render("cloud-controller-manager"))["spec"]["template"]);

    let map = only(&objects, "ConfigMap").unwrap();
    let (volume, mount) =
        (&template["spec"]["volumes"][0], &container(workload(&objects))["volumeMounts"][0]);
    assert_eq!(volume["configMap"]["name"], map["metadata"]["name"]);
    assert_eq!(volume["name"], mount["name"]);
    let path = mount["mountPath"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in map["data"].as_object().unwrap() {
        std::fs::write(folder.path().join(name), text.as_str().unwrap()).unwrap();
    }
    let args = strings(&container(workload(&objects))["args"]);
    let args = args
        .iter()
        .map(|arg| arg.replace(path, folder.path().to_str().unwrap()));
    let product = Product::new("ccm-test", "v0.0.0", &["mock"]);
    let Ok(Invocation::Run(config)) = config::parse(&product, args) else {
        panic!("the arguments are refused");
    };
    let migration = LeaderMigration::load(&config, &product.controllers)
        .unwrap()
        .unwrap();
    assert_eq!(migration.leader_name, "moving");
}

fn shadow(helm: &Helm, set: &str) -> Vec<Value> {
    helm.objects(&["--set", &format!("shadow.enabled=true,{set}")])
        .unwrap()
}

fn a_shadow_is_a_job_that_compares_once() {
    let helm = Helm::find().unwrap();
    let all = "provider=aws,image.registry=r,hostNetwork=false,networkPolicy.enabled=true,serving.tls.existingSecret=t,\
               useServiceAccountCredentials=true,leaderMigration.enabled=true,metrics.dashboard.enabled=true,\
               metrics.prometheusRule.enabled=true,metrics.job=x,metrics.reader.create=true,\
               metrics.reader.subjects[0].kind=User,metrics.reader.subjects[0].name=u";
    let objects = shadow(&helm, all);
    let kinds: BTreeSet<_> = objects
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        ["ClusterRole", "ClusterRoleBinding", "Job", "Secret", "ServiceAccount"],
        "nothing that a manager in service needs"
    );
    let job = only(&objects, "Job").unwrap();
    assert_eq!(job["spec"]["backoffLimit"], 0, "exit code 2 is a result");
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 900);
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Never");
    let container = container(job);
    for served in ["ports", "livenessProbe", "readinessProbe"] {
        assert!(container[served].is_null(), "{served}: nothing is served");
    }
    let args = strings(&container["args"]);
    let about = |word: &str| args.iter().filter(|arg| arg.contains(word)).count();
    assert_eq!(about("--shadow-once"), 1, "{args:?}");
    for word in ["leader", "tls", "secure-port", "credentials"] {
        assert_eq!(about(word), 0, "{word} has no effect: {args:?}");
    }
    let product = Product::new("ccm-test", "v0.0.0", &["aws"]);
    match config::parse(&product, args.iter().cloned()) {
        Ok(Invocation::Run(config)) => assert!(config.shadow.once),
        other => panic!("{other:?}"),
    }
}

/// `get`, `list` and `watch` of what `rbac/` grants to controllers.
fn a_shadow_may_read_what_the_controllers_read_and_nothing_else() {
    let helm = Helm::find().unwrap();
    let rights = |rules: &Value| {
        let mut rights = BTreeSet::new();
        for rule in rules.as_array().unwrap() {
            for resource in strings(&rule["resources"]) {
                for verb in strings(&rule["verbs"]) {
                    rights.insert((rule["apiGroups"].to_string(), resource.clone(), verb));
                }
            }
        }
        rights
    };
    let mut wanted = BTreeSet::new();
    for manifest in
        ["20-node", "21-lifecycle", "22-route", "23-service", "24-ipam", "optional/endpoints"]
    {
        let path = root().join(format!("rbac/{manifest}.yaml"));
        for role in objects(&std::fs::read_to_string(path).unwrap()).unwrap() {
            wanted.extend(rights(&role["rules"]));
        }
    }
    wanted.retain(|(_, _, verb)| ["get", "list", "watch"].contains(&verb.as_str()));
    let ours = shadow(&helm, "provider=mock,rbac.capabilities.endpoints=true");
    assert_eq!(rights(&only(&ours, "ClusterRole").unwrap()["rules"]), wanted);
    let ours = shadow(&helm, "provider=mock");
    wanted.retain(|(_, resource, _)| resource != "endpointslices");
    let role = only(&ours, "ClusterRole").unwrap();
    assert_eq!(rights(&role["rules"]), wanted);
    let binding = only(&ours, "ClusterRoleBinding").unwrap();
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    assert_eq!(
        binding["subjects"][0]["name"],
        only(&ours, "ServiceAccount").unwrap()["metadata"]["name"]
    );
    assert!(
        role["metadata"]["labels"]
            .as_object()
            .unwrap()
            .keys()
            .all(|key| !key.contains("aggregate"))
    );
}

fn a_report_names_the_lease_and_may_read_it() {
    let helm = Helm::find().unwrap();
    let objects =
        shadow(&helm, "provider=mock,shadow.report=json,leaderElection.leaseName=upstream");
    let args = strings(&container(only(&objects, "Job").unwrap())["args"]);
    match config::parse(&Product::new("ccm-test", "v0.0.0", &["mock"]), args) {
        Ok(Invocation::Run(config)) => {
            assert_eq!(config.shadow.report, ReportFormat::Json);
            assert_eq!(config.leader_election.resource_name, "upstream");
            let warnings = config.warnings();
            assert!(
                !warnings
                    .iter()
                    .any(|warning| warning.contains("leader-elect")),
                "{warnings:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    let rules = only(&objects, "ClusterRole").unwrap()["rules"].clone();
    let of_leases = rules
        .as_array()
        .unwrap()
        .iter()
        .find(|rule| rule["resources"][0] == "leases");
    let of_leases = of_leases.unwrap();
    assert_eq!(strings(&of_leases["verbs"]), ["get"]);
    assert_eq!(strings(&of_leases["resourceNames"]), ["upstream"]);
}

fn a_shadow_of_another_cluster_makes_no_roles() {
    let helm = Helm::find().unwrap();
    let objects = shadow(&helm, "provider=mock,rbac.create=false,kubeconfig.existingSecret.name=k");
    assert!(only(&objects, "ClusterRole").is_err());
    let args = strings(&container(only(&objects, "Job").unwrap())["args"]);
    assert!(args.iter().any(|arg| arg.starts_with("--kubeconfig=")), "{args:?}");
}

/// What an API server answers whose only object is the Deployment of the release [`RELEASE`].
fn answer(path: &str) -> Option<Value> {
    let resource = |name: &str, kind: &str| json!({"name": name, "kind": kind, "namespaced": true, "verbs": ["get"]});
    Some(match path {
        "/version" => json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"}),
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
        "/api/v1" => json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": []}),
        "/apis" => {
            let version = json!({"groupVersion": "apps/v1", "version": "v1"});
            let group = json!({"name": "apps", "versions": [version], "preferredVersion": version});
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})
        }
        "/apis/apps/v1" => json!({
            "kind": "APIResourceList",
            "groupVersion": "apps/v1",
            "resources": [resource("deployments", "Deployment"), resource("daemonsets", "DaemonSet")],
        }),
        "/apis/apps/v1/namespaces/kube-system/deployments/cloud-controller-manager" => json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": "cloud-controller-manager",
                "annotations": {"meta.helm.sh/release-name": RELEASE},
            },
        }),
        _ => return None,
    })
}

/// Answers one request.
fn serve(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let target = first.split(' ').nth(1).unwrap_or_default();
    let found = answer(target.split('?').next().unwrap_or_default());
    let status = if found.is_some() {
        "200 OK"
    } else {
        "404 Not Found"
    };
    let body = found
        .unwrap_or_else(|| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}))
        .to_string();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// An update that only sets `shadow.enabled` would leave the cluster without a manager.
fn a_shadow_never_takes_the_place_of_its_releases_manager() {
    let helm = Helm::find().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    // Ends with the program.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that hung up asks again.
            let _ = serve(&stream);
        }
    });
    let said = |release: &str, upgrade: bool| {
        let chart = chart();
        let mut args = vec!["template", release, chart.to_str().unwrap()];
        args.extend(["--namespace", "kube-system", "--dry-run=server"]);
        args.extend(["--kube-apiserver", &server, "--set", "provider=mock,shadow.enabled=true"]);
        // So that both releases have a manager of this name, and it is the first's.
        args.extend(["--set", "fullnameOverride=cloud-controller-manager"]);
        if upgrade {
            args.push("--is-upgrade");
        }
        // Beyond the templates the server knows too little.
        let output = helm.output(args).unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let refusal = "- shadow.enabled: would remove Deployment cloud-controller-manager, the manager of this release";
    let live = said(RELEASE, true);
    assert!(live.contains(refusal), "{live}");
    for other in [said("shadow", true), said(RELEASE, false)] {
        assert!(!other.contains("would remove") && !other.contains("template"), "{other}");
    }
}

fn a_shadow_may_go_on_comparing() {
    let helm = Helm::find().unwrap();
    let objects = helm
        .objects(&["--set", "provider=mock,replicaCount=1,extraArgs.shadow=true"])
        .unwrap();
    let args = strings(&container(workload(&objects))["args"]);
    let product = Product::new("ccm-test", "v0.0.0", &["mock"]);
    match config::parse(&product, args.iter().cloned()) {
        Ok(Invocation::Run(config)) => assert!(config.shadow.is_on() && !config.shadow.once),
        other => panic!("{other:?}"),
    }
}
