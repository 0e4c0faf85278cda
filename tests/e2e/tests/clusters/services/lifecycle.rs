//! From the wish for a load balancer to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::watcher::{has_finalizer, ingress_addresses};
use ccm_mock::cloud::Operation;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde_json::json;

use super::FLAGS;
use crate::call_breakpoint::{At, CallBreakpoint};
use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(
            "life",
            EVERYWHERE,
            a_service_gets_an_address_with_two_writes_and_leaves_nothing_behind
        ),
        case!(
            "types",
            EVERYWHERE,
            a_service_that_becomes_cluster_ip_and_back_gives_its_balancer_up_and_gets_a_new_one
        ),
        case!("ports", EVERYWHERE, changed_ports_reach_the_balancer_and_keep_the_address),
        case!(
            "modes",
            EVERYWHERE,
            the_ip_mode_is_the_providers_or_the_servers_and_stays_with_other_ports
        ),
        case!("midst", EVERYWHERE, a_service_deleted_while_its_balancer_is_made_leaves_none),
        case!("slow", EVERYWHERE, a_service_deleted_while_its_balancer_is_provisioned_leaves_none),
        case!("name", EVERYWHERE, a_namesake_gets_a_balancer_of_its_own_and_the_old_one_goes),
    ]
}

async fn a_service_gets_an_address_with_two_writes_and_leaves_nothing_behind(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, name) = (s.names(3), s.name(0));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    s.create(&Scenario::manifest(&name)).await?;
    s.served(&[name.clone()], SOON).await?;
    s.service_event(&name, "EnsuredLoadBalancer").await?;
    let service = s.service(&name).map_err(anyhow::Error::msg)?;
    anyhow::ensure!(ip_modes(&service) == [Some("VIP".to_owned())], "{:?}", ip_modes(&service));
    let writes: Vec<_> = s
        .service_writes("a")
        .await?
        .into_iter()
        .map(|w| (w.verb, w.resource, w.code))
        .collect();
    let patch = ("patch".to_owned(), "services/status".to_owned(), 200);
    anyhow::ensure!(writes == [patch.clone(), patch], "finalizer, then status: {writes:?}");
    s.delete_service(&name).await?;
    s.vanished(&name).await?;
    s.in_line().map_err(anyhow::Error::msg)?;
    s.service_event(&name, "DeletedLoadBalancer").await?;
    let calls = s.cloud.calls();
    let made = (calls.create_load_balancer, calls.modify_load_balancer, calls.delete_load_balancer);
    anyhow::ensure!(made == (1, 0, 1), "{calls}");
    ccm.terminate().await
}

fn ip_modes(service: &Service) -> Vec<Option<String>> {
    let status = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let ingress = status
        .and_then(|balancer| balancer.ingress.as_ref())
        .into_iter()
        .flatten();
    ingress.map(|ingress| ingress.ip_mode.clone()).collect()
}

async fn a_service_that_becomes_cluster_ip_and_back_gives_its_balancer_up_and_gets_a_new_one(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(3), s.names(2));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    s.create_all(&names).await?;
    s.served(&names, SOON).await?;
    let first = balancer_ids(s);
    let changed = s
        .change(&names[0], json!({"spec": {"type": "ClusterIP"}}))
        .await?;
    s.caught_up(&changed).await?;
    s.served(&names[1..], SOON).await?;
    let left: Vec<_> = s
        .service(&names[0])
        .map_err(anyhow::Error::msg)?
        .annotations()
        .keys()
        .cloned()
        .collect();
    anyhow::ensure!(left.is_empty(), "annotations of the old balancer stay: {left:?}");
    let changed = s
        .change(&names[0], json!({"spec": {"type": "LoadBalancer"}}))
        .await?;
    s.caught_up(&changed).await?;
    s.served(&names, SOON).await?;
    // Once more, and back before anybody had the time to do much about it.
    s.change(&names[0], json!({"spec": {"type": "NodePort"}}))
        .await?;
    let changed = s
        .change(&names[0], json!({"spec": {"type": "LoadBalancer"}}))
        .await?;
    s.caught_up(&changed).await?;
    s.served(&names, SOON).await?;
    let last = balancer_ids(s);
    anyhow::ensure!(
        first
            .values()
            .filter(|id| last.values().any(|last| last == *id))
            .count()
            == 1,
        "{first:?} {last:?}"
    );
    ccm.terminate().await
}

/// IDs of the balancers by Service.
fn balancer_ids(s: &Scenario) -> BTreeMap<String, String> {
    s.cloud
        .load_balancers()
        .into_iter()
        .map(|balancer| (balancer.service, balancer.id))
        .collect()
}

async fn changed_ports_reach_the_balancer_and_keep_the_address(s: &Scenario) -> anyhow::Result<()> {
    let (nodes, name) = (s.names(2), s.name(0));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    s.create(&Scenario::manifest(&name)).await?;
    s.served(&[name.clone()], SOON).await?;
    let before = s.service(&name).map_err(anyhow::Error::msg)?;
    let ports = json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 8443}]);
    let changed = s.change(&name, json!({"spec": {"ports": ports}})).await?;
    s.caught_up(&changed).await?;
    s.served(&[name.clone()], SOON).await?;
    let after = s.service(&name).map_err(anyhow::Error::msg)?;
    anyhow::ensure!(ingress_addresses(&before) == ingress_addresses(&after), "{after:?}");
    anyhow::ensure!(ip_modes(&before) == ip_modes(&after), "{after:?}");
    let calls = s.cloud.calls();
    let made = (calls.create_load_balancer, calls.modify_load_balancer, calls.delete_load_balancer);
    anyhow::ensure!(made == (1, 1, 0), "{calls}");
    ccm.terminate().await
}

/// The integration case of the upstream test suite.
async fn the_ip_mode_is_the_providers_or_the_servers_and_stays_with_other_ports(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(2), s.names(3));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    let modes = [("VIP", "VIP"), ("Proxy", "Proxy"), ("unset", "VIP")];
    for (name, (given, _)) in names.iter().zip(modes) {
        let mut manifest = Scenario::manifest(name);
        manifest["metadata"]["annotations"] = json!({"mock.cloud-provider.example/ip-mode": given});
        s.create(&manifest).await?;
    }
    s.served(&names, SOON).await?;
    let stored = || -> anyhow::Result<()> {
        for (name, (given, wanted)) in names.iter().zip(modes) {
            let modes = ip_modes(&*s.service(name).map_err(anyhow::Error::msg)?);
            anyhow::ensure!(modes == [Some(wanted.to_owned())], "{given} is stored as {modes:?}");
        }
        Ok(())
    };
    stored()?;
    for name in &names {
        let ports = json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 8443}]);
        let changed = s.change(name, json!({"spec": {"ports": ports}})).await?;
        s.caught_up(&changed).await?;
    }
    s.served(&names, SOON).await?;
    s.stays("it stays so", Duration::from_secs(1), || stored().map_err(|wrong| wrong.to_string()))
        .await?;
    // What the server chose is no difference: nothing is written for it.
    let writes = s.service_writes("a").await?;
    anyhow::ensure!(writes.len() == 2 * names.len(), "{writes:?}");
    ccm.terminate().await
}

async fn a_service_deleted_while_its_balancer_is_made_leaves_none(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(2), s.names(3));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    for (name, at) in names.iter().zip([At::Arrival, At::Answer]) {
        let gate = CallBreakpoint::shut(s, Operation::CreateLoadBalancer, at);
        s.create(&Scenario::manifest(name)).await?;
        gate.holds().await?;
        s.delete_service(name).await?;
        // It may not go before its balancer: one is on its way.
        s.stays("the service stays", Duration::from_secs(1), || s.service(name).map(drop))
            .await?;
        let held = s.service(name).map_err(anyhow::Error::msg)?;
        anyhow::ensure!(has_finalizer(&held), "{:?}", held.finalizers());
        gate.open();
        s.vanished(name).await?;
        anyhow::ensure!(s.cloud.load_balancers().is_empty(), "{at:?}: {:?}", balancer_ids(s));
    }
    let calls = s.cloud.calls();
    anyhow::ensure!((calls.create_load_balancer, calls.delete_load_balancer) == (2, 2), "{calls}");
    // And the next one is served as ever.
    s.create(&Scenario::manifest(&names[2])).await?;
    s.served(&names[2..], SOON).await?;
    ccm.terminate().await
}

async fn a_service_deleted_while_its_balancer_is_provisioned_leaves_none(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(2), s.names(3));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    for name in &names {
        let mut manifest = Scenario::manifest(name);
        let delay = if *name == names[2] { "2s" } else { "10m" };
        manifest["metadata"]["annotations"] =
            json!({"mock.cloud-provider.example/activation-delay": delay});
        s.create(&manifest).await?;
    }
    s.until("all are being made", SOON, || s.cloud.load_balancers().len() == 3)
        .await?;
    s.delete_service(&names[0]).await?;
    s.change(&names[1], json!({"spec": {"type": "ClusterIP"}}))
        .await?;
    s.vanished(&names[0]).await?;
    s.served(&names[2..], SOON).await?;
    ccm.terminate().await
}

async fn a_namesake_gets_a_balancer_of_its_own_and_the_old_one_goes(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(2), s.names(2));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    s.create_all(&names).await?;
    s.served(&names, SOON).await?;
    // In order: deleted, gone, and there again at once.
    s.delete_service(&names[0]).await?;
    s.vanished(&names[0]).await?;
    let second = s.create(&Scenario::manifest(&names[0])).await?;
    s.caught_up(&second).await?;
    s.served(&names, SOON).await?;
    // By force: somebody takes the finalizer off, so that the Service goes before its balancer.
    s.delete_by_force(&names[0]).await?;
    let third = s.create(&Scenario::manifest(&names[0])).await?;
    s.caught_up(&third).await?;
    s.served(&names, SOON).await?;
    // By force, and no namesake comes.
    s.delete_by_force(&names[0]).await?;
    s.vanished(&names[0]).await?;
    s.served(&names[1..], SOON).await?;
    let calls = s.cloud.calls();
    anyhow::ensure!((calls.create_load_balancer, calls.delete_load_balancer) == (4, 3), "{calls}");
    ccm.terminate().await
}
