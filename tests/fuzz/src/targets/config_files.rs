//! The framework's own files: leader migration and traces.

use ccm_core::{
    config::{ControllerInfo, controller_names, leader_migration::ControllerLock},
    fuzz::{leader_migration, traces},
};
use serde_json::Value;

use crate::input::text_of;

/// Words of the files.
pub const WORDS: &[&str] = &[
    "apiVersion: controllermanager.config.k8s.io/v1\n",
    "apiVersion: controllermanager.config.k8s.io/v1alpha1\n",
    "kind: LeaderMigrationConfiguration\n",
    "leaderName: moving\n",
    "resourceLock: leases\n",
    "controllerLeaders:\n",
    "  - name: route\n",
    "    component: kube-controller-manager\n",
    "    component: '*'\n",
    "    component: cloud-controller-manager\n",
    "service-controller",
    "cloud-node-lifecycle",
    "apiVersion: apiserver.config.k8s.io/v1\n",
    "kind: TracingConfiguration\n",
    "endpoint: localhost:4317\n",
    "samplingRatePerMillion: 1000000\n",
    "&a ",
    "*a",
    "{}",
    "~",
];

/// Reads the bytes as each of the files.
pub fn run(data: &[u8]) {
    let text = text_of(data);
    let known = controller_names::standard();
    match leader_migration(&text, &known) {
        Ok(migration) => {
            assert!(!migration.leader_name.is_empty());
            assert_eq!(migration.unknown(&known).count(), migration.unknown(&known).count());
            let document: Value = serde_saphyr::from_str(&text).expect("it was read");
            for controller in &known {
                let lock = migration.lock(controller.name, &known);
                assert_eq!(
                    lock,
                    expected(&document, controller),
                    "{} of {document}",
                    controller.name
                );
            }
        }
        Err(problems) => report(&problems),
    }
    match traces(&text) {
        Ok(traces) => {
            assert!(
                traces.endpoint.contains(':') && traces.sampling_rate_per_million <= 1_000_000,
                "{traces:?}"
            );
        }
        Err(problems) => report(&problems),
    }
}

fn report(problems: &[String]) {
    assert!(
        !problems.is_empty() && problems.iter().all(|problem| !problem.is_empty()),
        "{problems:?}"
    );
}

/// Which lock the file says, by a look at it that knows nothing of how it is read.
fn expected(document: &Value, controller: &ControllerInfo) -> ControllerLock {
    let old = [
        ("service-controller", controller_names::SERVICE_LB),
        ("route-controller", controller_names::NODE_ROUTE),
    ];
    let means = |name: &str| {
        let renamed = old
            .iter()
            .find(|(old, _)| *old == name)
            .map(|(_, new)| *new);
        renamed.map_or_else(
            || name == controller.name || controller.aliases.contains(&name),
            |new| new == controller.name,
        )
    };
    let leaders = document["controllerLeaders"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let leader = leaders
        .iter()
        .find(|leader| leader["name"].as_str().is_some_and(means));
    match leader.and_then(|leader| leader["component"].as_str()) {
        None => ControllerLock::Main,
        Some("cloud-controller-manager" | "*") => ControllerLock::Migration,
        Some(_) => ControllerLock::OtherManager,
    }
}
