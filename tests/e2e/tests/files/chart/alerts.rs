//! Alerts: what they select, where they link to, and what Prometheus' own tool says of them.

use ccm_testkit::control_plane::GoProgram;
use ccm_testkit::promtool;
use ccm_testkit::suite::Tier;
use serde_json::Value;

use crate::cases;
use crate::helm::{Helm, chart, only, root};
use crate::plain::{Case, needing};

/// What Prometheus' own tool judges.
pub(crate) fn cases() -> Vec<Case> {
    let missing = ccm_testkit::control_plane::helm()
        .err()
        .or_else(|| GoProgram::Promtool.find().err());
    let judged = needing(missing, cases![promtool_takes_the_alerts_and_they_ring_when_they_should]);
    judged
        .into_iter()
        .map(|case| Case { tier: Tier::Full, ..case })
        .collect()
}

/// What has to be rendered.
pub(crate) fn rendered() -> Vec<Case> {
    cases![alerts_select_this_manager_alone, alerts_link_to_what_is_to_be_done]
}

/// What is read as it is.
pub(crate) fn read() -> Vec<Case> {
    cases![the_guide_to_operating_has_every_alert_as_it_is]
}

fn rules(set: &str) -> Vec<Value> {
    let set = format!("provider=mock,metrics.prometheusRule.enabled=true,{set}");
    let objects = Helm::find().unwrap().objects(&["--set", &set]).unwrap();
    let rule = only(&objects, "PrometheusRule").unwrap();
    rule["spec"]["groups"][0]["rules"]
        .as_array()
        .unwrap()
        .clone()
}

/// Cluster and namespace are those of the tests in tests/control-plane/promtool.
fn promtool_takes_the_alerts_and_they_ring_when_they_should() {
    let set = "provider=mock,metrics.prometheusRule.enabled=true,metrics.serviceMonitor.enabled=true,\
               serving.tls.existingSecret=t,metrics.cluster=ours";
    let objects = Helm::find().unwrap().objects(&["--set", set]).unwrap();
    let rule = only(&objects, "PrometheusRule").unwrap();
    promtool::check(&GoProgram::Promtool.find().unwrap(), &rule["spec"]).unwrap();
}

fn alerts_select_this_manager_alone() {
    let monitor = "metrics.serviceMonitor.enabled=true,serving.tls.existingSecret=t";
    for (set, wanted) in [
        (monitor.to_owned(), r#"{job="cloud-controller-manager",namespace="kube-system""#),
        (
            format!("{monitor},metrics.cluster=a,metrics.namespace=b"),
            r#"{job="cloud-controller-manager",namespace="b",cluster="a""#,
        ),
        // Other scrapers may know no namespace.
        ("metrics.job=x".to_owned(), r#"{job="x""#),
        ("metrics.job=x,metrics.namespace=y".to_owned(), r#"{job="x",namespace="y""#),
    ] {
        let rules = rules(&set);
        assert!(rules.len() >= 8);
        for rule in rules {
            let expr = rule["expr"].as_str().unwrap();
            let selected = expr
                .match_indices('{')
                .map(|(at, _)| expr[at..].strip_prefix(wanted));
            for rest in selected {
                let rest = rest.unwrap_or_else(|| panic!("{set}: {expr}"));
                // Nothing but what the alert itself asks for.
                let more = rest.split('}').next().unwrap();
                for label in ["job=", "namespace=", "cluster="] {
                    assert!(!more.contains(label), "{set}: {expr}");
                }
            }
            // What is summed up keeps apart what several clusters have.
            let sums = ["sum", "max"].map(|word| {
                expr.matches(&format!("{word} by (")).count()
                    + expr.matches(&format!("{word}(")).count()
            });
            assert_eq!(
                sums.iter().sum::<usize>(),
                expr.matches("by (cluster, namespace").count(),
                "{expr}"
            );
        }
    }
}

/// Anchors of the headings of a page.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    headings.map(str::to_lowercase).collect()
}

fn alerts_link_to_what_is_to_be_done() {
    let page = std::fs::read_to_string(root().join("docs/operating.md")).unwrap();
    let anchors = anchors(&page);
    for (set, annotation, start) in [
        ("metrics.job=x", "runbook", "docs/operating.md"),
        (
            "metrics.job=x,metrics.prometheusRule.runbookURL=https://docs.example.org/operating",
            "runbook_url",
            "https://docs.example.org/operating",
        ),
    ] {
        for rule in rules(set) {
            let link = rule["annotations"][annotation].as_str().unwrap();
            let (address, anchor) = link.split_once('#').unwrap();
            assert_eq!(address, start);
            assert!(anchors.iter().any(|known| known == anchor), "{link}");
            assert_eq!(rule["annotations"].as_object().unwrap().len(), 3, "{rule}");
        }
    }
}

fn the_guide_to_operating_has_every_alert_as_it_is() {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    let page = read(root().join("docs/operating.md"));
    let alerts: Vec<Value> =
        serde_saphyr::from_str(&read(chart().join("files/alerts.yaml"))).unwrap();
    for alert in &alerts {
        let name = alert["alert"].as_str().unwrap();
        let section = page
            .split(&format!("### {name}\n"))
            .nth(1)
            .unwrap_or_else(|| panic!("no section {name}"));
        let section = section
            .split("\n## ")
            .next()
            .unwrap()
            .split("\n### ")
            .next()
            .unwrap();
        let expr = alert["expr"].as_str().unwrap().trim();
        assert!(section.contains(&format!("```promql\n{expr}\n```")), "{name}: not {expr}");
        let lasts = match alert["for"].as_str() {
            None => "at once".to_owned(),
            Some(time) => format!("for {}", time.replace('m', " min").replace('h', " h")),
        };
        let wanted =
            format!("Severity {}, {lasts}. ", alert["labels"]["severity"].as_str().unwrap());
        assert!(section.contains(&wanted), "{name}: not {wanted}");
    }
    let sections = page.matches("\n### CloudControllerManager").count();
    assert_eq!(sections, alerts.len(), "sections about alerts that do not exist");
}
