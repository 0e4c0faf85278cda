//! The cells of a pod, whose status column sums up the state of all its containers.

use jiff::Timestamp;
use serde_json::Value;

use super::age::since;
use super::cells::{age, integer, list, name, text, text_or};

/// Combined state of the containers.
#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = summarise(pod);
    let restarts = match summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, since(Some(&last.to_string()), now))
        }
        _ => summary.restarts.to_string(),
    };
    vec![
        name(pod),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        age(pod, now),
        text_or(pod, "/status/podIPs/0/ip", "<none>").into(),
        text_or(pod, "/spec/nodeName", "<none>").into(),
        text_or(pod, "/status/nominatedNodeName", "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

fn summarise(pod: &Value) -> Summary {
    let sidecars = list(pod, "/spec/initContainers")
        .iter()
        .filter(|c| is_sidecar(c))
        .count();
    let mut summary = Summary {
        reason: text_or(pod, "/status/reason", text(pod, "/status/phase")).to_owned(),
        total: list(pod, "/spec/containers").len() + sidecars,
        ..Summary::default()
    };
    if list(pod, "/status/conditions")
        .iter()
        .any(|c| text(c, "/reason") == "SchedulingGated")
    {
        summary.reason = "SchedulingGated".into();
    }
    let initializing = add_init_containers(pod, &mut summary);
    if !initializing || condition_is_true(pod, "Initialized") {
        // Restarts of init containers that are done no longer matter; those of sidecars do.
        let done = std::mem::take(&mut summary.restarts);
        summary.restarts = if sidecars == 0 { 0 } else { done };
        summary.last_restart = summary.last_restart.filter(|_| sidecars != 0);
        add_containers(pod, &mut summary);
    }
    if pod
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(Value::is_string)
    {
        match text(pod, "/status/phase") {
            _ if text(pod, "/status/reason") == "NodeLost" => summary.reason = "Unknown".into(),
            "Succeeded" | "Failed" => {}
            _ => summary.reason = "Terminating".into(),
        }
    }
    summary
}

/// Returns true if an init container runs beside the others for the pod's whole life.
fn is_sidecar(container: &Value) -> bool {
    text(container, "/restartPolicy") == "Always"
}

/// Counts init containers up to the first one that is not done; true if there is such a one.
fn add_init_containers(pod: &Value, summary: &mut Summary) -> bool {
    let specs = list(pod, "/spec/initContainers");
    for (index, status) in list(pod, "/status/initContainerStatuses")
        .iter()
        .enumerate()
    {
        count_restarts(status, summary);
        let sidecar = specs
            .iter()
            .any(|c| is_sidecar(c) && text(c, "/name") == text(status, "/name"));
        let terminated = status.pointer("/state/terminated");
        if terminated.is_some_and(|t| integer(t, "/exitCode") == 0) {
            continue;
        }
        if sidecar && flag(status, "/started") {
            summary.ready += usize::from(flag(status, "/ready"));
            continue;
        }
        let waiting = text(status, "/state/waiting/reason");
        summary.reason = match terminated {
            Some(terminated) => format!("Init:{}", termination(terminated)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => {
                format!("Init:{waiting}")
            }
            None => format!("Init:{index}/{}", specs.len()),
        };
        return true;
    }
    false
}

/// Adds the containers. The last one with a reason sets it; a running one turns `Completed` back
/// into `Running`.
fn add_containers(pod: &Value, summary: &mut Summary) {
    let (mut running, mut failure) = (false, None);
    for status in list(pod, "/status/containerStatuses").iter().rev() {
        count_restarts(status, summary);
        let waiting = text(status, "/state/waiting/reason");
        if !waiting.is_empty() {
            waiting.clone_into(&mut summary.reason);
        } else if let Some(terminated) = status.pointer("/state/terminated") {
            summary.reason = termination(terminated);
            if integer(terminated, "/exitCode") != 0 {
                failure = Some(summary.reason.clone());
            }
        } else if flag(status, "/ready") && status.pointer("/state/running").is_some() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" {
        match failure {
            _ if running && condition_is_true(pod, "Ready") => summary.reason = "Running".into(),
            Some(failure) => summary.reason = failure,
            None if running => summary.reason = "NotReady".into(),
            None => {}
        }
    }
}

fn count_restarts(status: &Value, summary: &mut Summary) {
    summary.restarts += integer(status, "/restartCount").clamp(0, i64::from(i32::MAX));
    let finished = text(status, "/lastState/terminated/finishedAt")
        .parse::<Timestamp>()
        .ok();
    summary.last_restart = summary.last_restart.max(finished);
}

fn termination(terminated: &Value) -> String {
    match (text(terminated, "/reason"), integer(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", integer(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn flag(object: &Value, pointer: &str) -> bool {
    object
        .pointer(pointer)
        .and_then(Value::as_bool)
        .unwrap_or_default()
}

fn condition_is_true(pod: &Value, kind: &str) -> bool {
    let condition = list(pod, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == kind);
    condition.is_some_and(|c| text(c, "/status") == "True")
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates
        .iter()
        .filter(|gate| condition_is_true(pod, text(gate, "/conditionType")))
        .count();
    format!("{open}/{}", gates.len())
}
