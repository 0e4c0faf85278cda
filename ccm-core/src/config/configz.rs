//! The configuration as `/configz` of a Go cloud-controller-manager shows it (`cloud-provider`
//! v0.37, `config/v1alpha1`): with Go's field names, except where the types of `component-base`
//! define JSON names of their own.

use std::path::Path;

use serde_json::{Value, json};

use super::{Config, ControllerInfo, duration, leader_migration::LeaderMigration};

const GROUP: &str = "cloudcontrollermanager.config.k8s.io";

impl Config {
    /// Returns the content of `/configz`. It contains no secrets: files are named, not shown.
    pub(crate) fn configz(&self, known: &[ControllerInfo]) -> Value {
        json!({GROUP: {
            "kind": "CloudControllerManagerConfiguration",
            "apiVersion": format!("{GROUP}/v1alpha1"),
            "Generic": self.generic_part(known),
            "KubeCloudShared": self.shared_part(),
            "NodeController": {
                "ConcurrentNodeSyncs": self.node.concurrent_syncs,
                "ConcurrentNodeStatusUpdates": self.node.concurrent_status_updates,
            },
            "NodeLifecycleController": {
                "NodeMonitorPeriod": duration::format(self.node_lifecycle.monitor_period),
                "ConcurrentNodeLifecycleSyncs": self.node_lifecycle.concurrent_syncs,
            },
            "ServiceController": {"ConcurrentServiceSyncs": self.service.concurrent_syncs},
            "NodeStatusUpdateFrequency": duration::format(self.node.status_update_frequency),
            "Webhook": {"Webhooks": list(&self.webhook.enabled)},
        }})
    }

    fn generic_part(&self, known: &[ControllerInfo]) -> Value {
        let election = &self.leader_election;
        let client = &self.kube_client;
        json!({
            // Both belong to a port without TLS that was removed long ago; upstream still shows
            // them.
            "Port": 0,
            "Address": "0.0.0.0",
            "MinResyncPeriod": duration::format(self.generic.min_resync_period),
            "ClientConnection": {
                "kubeconfig": path(client.kubeconfig.as_deref()),
                "acceptContentTypes": "",
                "contentType": client.content_type,
                "qps": number(client.qps),
                "burst": client.burst,
            },
            "ControllerStartInterval": duration::format(self.generic.controller_start_interval),
            "LeaderElection": {
                "leaderElect": election.enabled,
                "leaseDuration": duration::format(election.lease_duration),
                "renewDeadline": duration::format(election.renew_deadline),
                "retryPeriod": duration::format(election.retry_period),
                "resourceLock": self.raw.resource_lock,
                "resourceName": election.resource_name,
                "resourceNamespace": election.resource_namespace,
            },
            "Controllers": list(self.generic.controllers.entries()),
            "Debugging": {
                "enableProfiling": self.debugging.profiling,
                "enableContentionProfiling": self.debugging.contention_profiling,
            },
            "LeaderMigrationEnabled": self.leader_migration.enabled,
            "LeaderMigration": LeaderMigration::configz(self, known),
        })
    }

    fn shared_part(&self) -> Value {
        let cidrs: Vec<_> = self
            .generic
            .cluster_cidrs
            .iter()
            .map(ToString::to_string)
            .collect();
        json!({
            "CloudProvider": {
                "Name": self.generic.cloud_provider,
                "CloudConfigFile": path(self.generic.cloud_config.as_deref()),
            },
            "ExternalCloudVolumePlugin": self.generic.external_cloud_volume_plugin,
            "UseServiceAccountCredentials": self.generic.use_service_account_credentials,
            "AllowUntaggedCloud": self.generic.allow_untagged_cloud,
            "RouteReconciliationPeriod": duration::format(self.route.reconciliation_period),
            "ClusterName": self.generic.cluster_name,
            "ClusterCIDR": cidrs.join(","),
            "AllocateNodeCIDRs": self.node_ipam.allocate_node_cidrs,
            "CIDRAllocatorType": self.node_ipam.allocator_type,
            "ConfigureCloudRoutes": self.route.configure_cloud_routes,
            "NodeSyncPeriod": duration::format(self.generic.node_sync_period),
        })
    }
}

fn path(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string())
        .unwrap_or_default()
}

/// Go encodes a list that was never set as null.
fn list(values: &[String]) -> Value {
    if values.is_empty() {
        Value::Null
    } else {
        json!(values)
    }
}

/// Go encodes a whole number without a fraction.
fn number(value: f32) -> Value {
    let whole = format!("{value}");
    whole
        .parse::<i64>()
        .map_or_else(|_| json!(value), Value::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::{Invocation, Product, parse};

    fn configz(args: &[&str]) -> serde_json::Value {
        let product = Product::new("ccm-test", "v1.0.0", &["mock"]);
        match parse(&product, args).unwrap() {
            Invocation::Run(config) => config.configz(&product.controllers),
            other => panic!("{other:?}"),
        }
    }

    /// Recorded from a manager built on `cloud-provider` v0.36.3, with what v0.37 added and moved.
    #[test]
    fn it_has_the_shape_of_go_s() {
        let mut recorded: serde_json::Value =
            serde_json::from_str(include_str!("tests/configz.json")).unwrap();
        let ours = configz(&["--cloud-provider=mock", "--cloud-config=cloud", "--kubeconfig=kc"]);
        let part = &mut recorded["cloudcontrollermanager.config.k8s.io"];
        let period = part["KubeCloudShared"]
            .as_object_mut()
            .unwrap()
            .remove("NodeMonitorPeriod")
            .unwrap();
        part["NodeLifecycleController"] =
            json!({"NodeMonitorPeriod": period, "ConcurrentNodeLifecycleSyncs": 1});
        assert_eq!(ours, recorded);
    }

    #[test]
    fn it_shows_what_is_set() {
        let ours = configz(&[
            "--cloud-provider=mock",
            "--kube-api-qps=2.5",
            "--controllers=*,-service",
            "--cluster-cidr=10.0.0.0/8,fd00::/64",
            "--leader-elect=false",
            "--node-monitor-period=90s",
        ]);
        let part = &ours["cloudcontrollermanager.config.k8s.io"];
        assert_eq!(part["Generic"]["ClientConnection"]["qps"], json!(2.5));
        assert_eq!(part["Generic"]["Controllers"], json!(["*", "-service-lb-controller"]));
        assert_eq!(part["Generic"]["LeaderElection"]["leaderElect"], json!(false));
        assert_eq!(part["KubeCloudShared"]["ClusterCIDR"], "10.0.0.0/8,fd00::/64");
        assert_eq!(part["NodeLifecycleController"]["NodeMonitorPeriod"], "1m30s");
    }

    #[test]
    fn it_shows_a_migration() {
        let shown = |flags: &[&str]| {
            let ours = configz(&[&["--cloud-provider=mock"], flags].concat());
            let generic = &ours["cloudcontrollermanager.config.k8s.io"]["Generic"];
            (generic["LeaderMigrationEnabled"].clone(), generic["LeaderMigration"].clone())
        };
        let list = ["route-controller", "service-controller", "cloud-node-lifecycle-controller"];
        let built_in = json!({
            "leaderName": "cloud-provider-extraction-migration",
            "resourceLock": "leases",
            "controllerLeaders": list.map(|name| json!({"name": name, "component": "*"})),
        });
        assert_eq!(shown(&["--enable-leader-migration"]), (json!(true), built_in.clone()));
        assert_eq!(
            shown(&["--enable-leader-migration", "--leader-elect=false"]),
            (json!(true), built_in)
        );
        let file = std::env::temp_dir().join(format!("ccm-configz-{}.yaml", std::process::id()));
        let flag = format!("--leader-migration-config={}", file.display());
        let header = "apiVersion: controllermanager.config.k8s.io/v1\nkind: LeaderMigrationConfiguration\nleaderName: moving\n";
        std::fs::write(
            &file,
            format!(
                "{header}controllerLeaders: [{{name: route, component: kube-controller-manager}}]"
            ),
        )
        .unwrap();
        let leaders = json!([{"name": "route", "component": "kube-controller-manager"}]);
        let wanted =
            json!({"leaderName": "moving", "resourceLock": "leases", "controllerLeaders": leaders});
        assert_eq!(shown(&["--enable-leader-migration", &flag]), (json!(true), wanted));
        // Go does not read it either.
        let empty = json!({"leaderName": "", "resourceLock": "", "controllerLeaders": null});
        assert_eq!(shown(&[&flag]), (json!(false), empty));
        std::fs::remove_file(&file).unwrap();
    }
}
