//! Checks alerts with promtool: their syntax, and when they fire.

use std::{path::Path, process::Command};

use serde_json::Value;

/// Test cases of the chart's alerts, for a job and a Lease with the chart's own names in namespace
/// `kube-system` of the cluster `ours`.
const TESTS: &str = include_str!("../pinned/alerts.yaml");

/// Checks the `spec` of a `PrometheusRule` with
/// [`GoProgram::Promtool`](crate::control_plane::GoProgram::Promtool), and tests its alerts. The
/// chart must have rendered it with its own names of job and Lease. Every alert must have a test.
///
/// # Errors
/// Returns promtool's output, or the name of an alert without a test.
pub fn check(promtool: &Path, spec: &Value) -> Result<(), String> {
    check_with(promtool, spec, TESTS)
}

fn check_with(promtool: &Path, spec: &Value, tests: &str) -> Result<(), String> {
    let untested = untested(spec, tests)?;
    if !untested.is_empty() {
        return Err(format!(
            "tests/control-plane/promtool/alerts.yaml does not have {}",
            untested.join(", ")
        ));
    }
    let folder = tempfile::tempdir().map_err(|error| format!("make a folder: {error}"))?;
    // Prometheus reads YAML, of which JSON is a part.
    for (name, text) in [("rules.yaml", spec.to_string()), ("tests.yaml", tests.to_owned())] {
        std::fs::write(folder.path().join(name), text)
            .map_err(|error| format!("write {name}: {error}"))?;
    }
    run(promtool, folder.path(), &["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"])?;
    run(promtool, folder.path(), &["test", "rules", "tests.yaml"])
}

/// Returns the alerts without a test.
fn untested<'a>(spec: &'a Value, tests: &str) -> Result<Vec<&'a str>, String> {
    let groups = spec["groups"].as_array().into_iter().flatten();
    let rules = groups.flat_map(|group| group["rules"].as_array().into_iter().flatten());
    let alerts: Vec<&str> = rules.filter_map(|rule| rule["alert"].as_str()).collect();
    if alerts.is_empty() {
        return Err("there is no alert to check".to_owned());
    }
    Ok(alerts
        .into_iter()
        .filter(|alert| !tests.contains(&format!("alertname=\"{alert}\"")))
        .collect())
}

fn run(promtool: &Path, folder: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(promtool)
        .current_dir(folder)
        .args(arguments)
        .output();
    let output = output.map_err(|error| format!("run {}: {error}", promtool.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [&*output.stdout, &*output.stderr]
        .map(String::from_utf8_lossy)
        .concat();
    Err(format!("promtool {}: {}\n{text}", arguments.join(" "), output.status))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_alert_is_tested() {
        let spec =
            json!({"groups": [{"rules": [{"alert": "Known"}, {"record": "x"}, {"alert": "New"}]}]});
        let tests = r#"exp_samples: [{labels: '{alertname="Known"}', value: 1}]"#;
        assert_eq!(untested(&spec, tests).unwrap(), ["New"]);
        let wrong = check_with(Path::new("promtool"), &spec, tests).unwrap_err();
        assert_eq!(wrong, "tests/control-plane/promtool/alerts.yaml does not have New");
    }

    #[test]
    fn nothing_to_check_is_a_mistake() {
        assert!(
            check(Path::new("promtool"), &json!({"groups": []}))
                .unwrap_err()
                .contains("no alert")
        );
    }
}
