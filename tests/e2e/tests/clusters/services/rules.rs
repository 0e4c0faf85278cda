//! Which Services are served, and what the server has to say in it.

use std::collections::BTreeSet;
use std::time::Duration;

use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::watcher::{NAMESPACE, has_finalizer, ingress_addresses};
use ccm_mock::cloud::{FaultError, FaultSpec, Operation};
use kube::ResourceExt as _;
use serde_json::json;

use super::FLAGS;
use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!("class", EVERYWHERE, a_class_of_somebody_else_costs_no_call_and_cannot_be_changed),
        case!("mixed", EVERYWHERE, two_protocols_on_one_number_are_served),
        case!("refusal", EVERYWHERE, a_service_that_cannot_be_served_is_told_and_delays_no_other),
    ]
}

const OURS: &str = "e2e.example/ours";
const THEIRS: &str = "e2e.example/theirs";

async fn a_class_of_somebody_else_costs_no_call_and_cannot_be_changed(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(2), s.names(3));
    let (theirs, ours, none) = (&names[0], &names[1], &names[2]);
    let ccm = s
        .start_with(&format!("loadBalancerClasses: [{OURS}]\n"), "a", &FLAGS)
        .await?;
    s.register_initialized(&nodes).await?;
    for (name, class) in [(theirs, THEIRS), (ours, OURS)] {
        let mut manifest = Scenario::manifest(name);
        manifest["spec"]["loadBalancerClass"] = json!(class);
        s.create(&manifest).await?;
    }
    s.create(&Scenario::manifest(none)).await?;
    // Who judges all Services knows nothing of classes.
    s.becomes("those of our class and of none are served", SOON, || {
        let balancers = s.cloud.load_balancers();
        let served: BTreeSet<_> = balancers
            .iter()
            .map(|balancer| balancer.service.clone())
            .collect();
        let wanted = [ours, none].map(|name| format!("{NAMESPACE}/{name}"));
        let addresses =
            [ours, none].map(|name| s.service(name).map(|service| ingress_addresses(&service)));
        let have_address = addresses
            .iter()
            .all(|found| found.as_ref().is_ok_and(|found| !found.is_empty()));
        match served == BTreeSet::from(wanted) && have_address {
            true => Ok(()),
            false => Err(format!("{served:?} are served, with {addresses:?}")),
        }
    })
    .await?;
    // A class may neither change nor come later, as long as the type stays.
    for (name, class) in [(theirs, OURS), (ours, THEIRS), (none, THEIRS)] {
        let changed = s
            .change(name, json!({"spec": {"loadBalancerClass": class}}))
            .await;
        match changed {
            Err(kube::Error::Api(status)) if status.code == 422 => {}
            changed => anyhow::bail!("{name} got the class {class}: {changed:?}"),
        }
    }
    s.stays("it is left alone", Duration::from_secs(2), || {
        let service = s.service(theirs)?;
        match has_finalizer(&service) || !service.annotations().is_empty() {
            true => Err("somebody wrote to it".to_owned()),
            false => Ok(()),
        }
    })
    .await?;
    let calls = s.cloud.calls();
    // A node that the cache shows late leads to an update of those two.
    anyhow::ensure!(
        (calls.writes() - calls.update_load_balancer, calls.create_load_balancer) == (2, 2),
        "{calls}"
    );
    let writes = s.service_writes("a").await?;
    anyhow::ensure!(writes.iter().all(|write| write.name != *theirs), "{writes:?}");
    let told = s.service_events().await?;
    anyhow::ensure!(
        told.iter()
            .all(|event| event.involved_object.name.as_ref() != Some(theirs)),
        "{told:?}"
    );
    // It goes without anybody's help.
    s.delete_service(theirs).await?;
    s.vanished(theirs).await?;
    s.delete_service(ours).await?;
    s.vanished(ours).await?;
    s.served(&names[2..], SOON).await?;
    ccm.terminate().await
}

async fn two_protocols_on_one_number_are_served(s: &Scenario) -> anyhow::Result<()> {
    let (nodes, name) = (s.names(2), s.name(0));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    let mut manifest = Scenario::manifest(&name);
    manifest["spec"]["ports"] = json!([
        {"name": "udp", "port": 53, "protocol": "UDP"},
        {"name": "tcp", "port": 53, "protocol": "TCP"},
    ]);
    s.create(&manifest).await?;
    s.served(&[name.clone()], SOON).await?;
    // Written without anything to choose between: the order alone.
    let swapped = json!({"spec": {"ports": [
        {"name": "tcp", "port": 53, "protocol": "TCP"},
        {"name": "sctp", "port": 53, "protocol": "SCTP"},
        {"name": "udp", "port": 53, "protocol": "UDP"},
    ]}});
    let changed = s.change(&name, swapped).await?;
    s.caught_up(&changed).await?;
    s.served(&[name], SOON).await?;
    ccm.terminate().await
}

async fn a_service_that_cannot_be_served_is_told_and_delays_no_other(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(2), s.names(12));
    let (wrong, failing, others) = (&names[0], &names[1], &names[2..]);
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    s.set_faults([FaultSpec {
        operation: Some(Operation::EnsureLoadBalancer),
        error: Some(FaultError::QuotaExceeded),
        object: Some(failing.clone()),
        ..FaultSpec::default()
    }])?;
    let mut manifest = Scenario::manifest(wrong);
    manifest["metadata"]["annotations"] = json!({"mock.cloud-provider.example/scheme": "public"});
    s.create(&manifest).await?;
    let failure = s.service_event(wrong, "SyncLoadBalancerFailed").await?;
    let note = failure.message.clone().unwrap_or_default();
    anyhow::ensure!(
        note.contains("mock.cloud-provider.example/scheme") && note.contains("\"public\""),
        "{note}"
    );
    anyhow::ensure!(failure.type_.as_deref() == Some("Warning"), "{failure:?}");
    anyhow::ensure!(
        s.cloud.calls().reads() == s.cloud.calls().describe_instances,
        "{}",
        s.cloud.calls()
    );
    s.create(&Scenario::manifest(failing)).await?;
    let failure = s.service_event(failing, "SyncLoadBalancerFailed").await?;
    anyhow::ensure!(
        failure
            .message
            .as_deref()
            .is_some_and(|note| note.contains("quota")),
        "{failure:?}"
    );
    s.create_all(others).await?;
    let others_are_served = || {
        let served = s.cloud.load_balancers().len();
        if served == others.len() {
            Ok(())
        } else {
            Err(format!("{served} are served"))
        }
    };
    s.becomes("the others are served", SOON, others_are_served)
        .await?;
    // What cannot succeed is not tried hotly.
    let calls = s.cloud.calls();
    s.stays("nothing changes", Duration::from_secs(4), others_are_served)
        .await?;
    let since = s.cloud.calls().since(&calls);
    anyhow::ensure!(since.of(Operation::EnsureLoadBalancer) <= 2, "{since}");
    // Mended, both are served: the one at once, the other when its back-off ends or something
    // changes.
    s.set_faults([])?;
    let mended =
        json!({"metadata": {"annotations": {"mock.cloud-provider.example/scheme": "internal"}}});
    s.change(wrong, mended).await?;
    s.change(failing, json!({"spec": {"sessionAffinity": "ClientIP"}}))
        .await?;
    s.served(&names, SOON).await?;
    ccm.terminate().await
}
