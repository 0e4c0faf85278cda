//! The Helm chart as far as it needs no server: linted, rendered, compared, and refused where
//! values are wrong.

mod alerts;
mod hcloud;
mod image;
mod migration;
mod objects;
mod package;
mod pod;
mod rights;
mod values;

use std::path::PathBuf;

use ccm_core::config::{self, ControllerInfo, Flag, Invocation, Product};
use serde_json::Value;

use crate::cases;
use crate::helm::{self, Helm, chart, container, only, strings};
use crate::plain::{Case, needing};

pub(crate) fn cases() -> Vec<Case> {
    let mut rendered = cases![
        the_chart_is_clean_in_helms_eyes,
        examples_render_as_checked_in,
        the_mock_needs_no_other_value,
        the_binary_accepts_every_rendered_argument,
    ];
    rendered.extend(alerts::rendered());
    rendered.extend(hcloud::rendered());
    rendered.extend(image::rendered());
    rendered.extend(migration::rendered());
    rendered.extend(objects::rendered());
    rendered.extend(package::rendered());
    rendered.extend(pod::rendered());
    rendered.extend(rights::rendered());
    rendered.extend(values::rendered());
    let mut cases = needing(ccm_testkit::control_plane::helm().err(), rendered);
    cases.extend(alerts::cases());
    cases.extend(alerts::read());
    cases.extend(hcloud::read());
    cases.extend(objects::read());
    cases.extend(package::read());
    cases.extend(values::read());
    cases
}

/// Names of the example values.
fn examples() -> Vec<String> {
    let files = std::fs::read_dir(chart().join("examples")).unwrap();
    let mut names: Vec<_> = files
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn example(name: &str) -> PathBuf {
    chart().join("examples").join(format!("{name}.yaml"))
}

fn render(helm: &Helm, name: &str) -> String {
    helm.template(helm::RELEASE, &["--values", example(name).to_str().unwrap()])
        .unwrap()
}

/// The Deployment or DaemonSet.
fn workload(objects: &[Value]) -> &Value {
    only(objects, "Deployment")
        .or_else(|_| only(objects, "DaemonSet"))
        .unwrap()
}

fn the_chart_is_clean_in_helms_eyes() {
    let helm = Helm::find().unwrap();
    let chart = chart();
    // Whoever lints a folder of charts has no values for each.
    let mut values = vec![vec![], vec!["--set".to_owned(), "provider=mock".to_owned()]];
    values.extend(
        examples()
            .iter()
            .map(|name| vec!["--values".to_owned(), example(name).display().to_string()]),
    );
    for values in values {
        let mut args = vec!["lint".to_owned(), "--strict".to_owned(), chart.display().to_string()];
        args.extend(values);
        let said = helm.run(args).unwrap();
        assert!(said.contains("0 chart(s) failed") && !said.contains("[WARNING]"), "{said}");
    }
}

/// Refreshed with `CCM_UPDATE_REFERENCE=1`.
fn examples_render_as_checked_in() {
    let helm = Helm::find().unwrap();
    let refresh = std::env::var_os("CCM_UPDATE_REFERENCE").is_some();
    let names = examples();
    for wanted in ["aws", "hosted-control-plane", "k3s", "kops", "kubeadm", "openstack"] {
        assert!(names.iter().any(|name| name == wanted), "{wanted} is not among {names:?}");
    }
    for name in &names {
        let rendered = render(&helm, name);
        let file = chart()
            .join("examples/rendered")
            .join(format!("{name}.yaml"));
        if refresh {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &rendered).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        let first = rendered
            .lines()
            .zip(kept.lines())
            .find(|(new, old)| new != old);
        assert!(
            rendered == kept,
            "{name} renders otherwise than {} says, first in {first:?}; CCM_UPDATE_REFERENCE=1 refreshes",
            file.display()
        );
    }
    let kept = std::fs::read_dir(chart().join("examples/rendered"))
        .unwrap()
        .count();
    assert_eq!(kept, names.len(), "one file for each example");
}

fn the_mock_needs_no_other_value() {
    let helm = Helm::find().unwrap();
    let objects = helm.objects(&["--set", "provider=mock"]).unwrap();
    let workload = workload(&objects);
    assert_eq!(workload["spec"]["replicas"], 2);
    let pod = &workload["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["dnsPolicy"], "Default");
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert_eq!(workload["spec"]["strategy"]["rollingUpdate"]["maxSurge"], 0);
    assert_eq!(container(workload)["livenessProbe"]["httpGet"]["path"], "/livez");
    assert_eq!(container(workload)["readinessProbe"]["httpGet"]["path"], "/readyz");
    let hard = &container(workload)["securityContext"];
    assert_eq!(hard["readOnlyRootFilesystem"], true);
    assert_eq!(hard["capabilities"]["drop"][0], "ALL");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let tolerated = pod["tolerations"].as_array().unwrap();
    for key in [
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cluster.x-k8s.io/uninitialized",
        "node.kubernetes.io/not-ready",
        "node-role.kubernetes.io/control-plane",
        "CriticalAddonsOnly",
    ] {
        assert!(tolerated.iter().any(|toleration| toleration["key"] == key), "{key}");
    }
}

/// Arguments of examples and of the defaults, parsed as the binary would.
fn the_binary_accepts_every_rendered_argument() {
    let helm = Helm::find().unwrap();
    let mut renderings: Vec<_> = examples()
        .iter()
        .map(|name| (name.clone(), render(&helm, name)))
        .collect();
    let default = helm
        .template(helm::RELEASE, &["--set", "provider=mock"])
        .unwrap();
    renderings.push(("default".to_owned(), default));
    let guide = std::fs::read_to_string(helm::root().join("docs/install.md")).unwrap();
    let block = guide
        .split("```yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    renderings.push(("docs/install.md".to_owned(), block.to_owned()));
    let mut product = Product::new("ccm-test", "v0.0.0", &["aws", "openstack", "mock", "example"]);
    // The AWS provider's own, of which its crate tests the values.
    let (name, client_name) = ("tagging", "tagging-controller");
    product.controllers.push(ControllerInfo {
        name,
        aliases: &[],
        client_name,
        enabled_by_default: false,
    });
    product.extra_flags = ["tags", "resources"]
        .map(|name| Flag::provider(name, "", ""))
        .into();
    for (name, rendered) in renderings {
        let objects = helm::objects(&rendered).unwrap();
        let args = strings(&container(workload(&objects))["args"]);
        assert!(args.len() > 4, "{name}: {args:?}");
        match config::parse(&product, args.iter().cloned()) {
            Ok(Invocation::Run(_)) => {}
            Ok(other) => panic!("{name}: {args:?} would only print: {other:?}"),
            Err(error) => panic!("{name}: {args:?}: {error}"),
        }
    }
}
