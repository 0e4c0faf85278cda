//! Nodes go when, and only when, their instances are gone.

use std::time::Duration;

use ccm_e2e::scenario::{SOON, Scenario, each};
use ccm_e2e::server::ServerKind;
use ccm_e2e::watcher::is_tainted;
use ccm_mock::cloud::{FaultError, FaultSpec, InstanceSpec, Operation};
use ccm_testkit::kubelet::{Ready, UNINITIALIZED_TAINT};

use crate::case;
use crate::run::{Case, EVERYWHERE};

/// The real server without WatchList, too.
const EVERYWHERE_AND_WITHOUT_WATCHLIST: &[ServerKind] =
    &[ServerKind::Embedded, ServerKind::Real, ServerKind::RealWithoutWatchList];

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!("again", EVERYWHERE, a_node_that_registered_again_does_not_inherit_suspicion),
        case!("errors", EVERYWHERE, errors_of_the_cloud_delete_nothing_and_end_without_a_trace),
        case!(
            "gone",
            EVERYWHERE_AND_WITHOUT_WATCHLIST,
            the_node_of_a_deleted_instance_goes_and_others_stay
        ),
        case!("wrong", EVERYWHERE, nothing_is_deleted_when_the_cloud_denies_living_nodes_too),
        case!("mass", EVERYWHERE, a_real_mass_loss_deletes_exactly_the_lost),
        case!("young", EVERYWHERE, a_young_node_that_was_never_initialised_is_not_deleted),
        case!("upstream", EVERYWHERE, one_answer_deletes_with_the_safety_of_upstream),
    ]
}

async fn the_node_of_a_deleted_instance_goes_and_others_stay(s: &Scenario) -> anyhow::Result<()> {
    let names = s.names(5);
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&names).await?;
    // One is merely not Ready: its instance exists.
    s.kubelets.set_ready(&names[1], Ready::Unknown).await?;
    s.may_go([&names[0]]);
    s.cloud.delete_instance(&names[0]);
    s.kubelets.set_ready(&names[0], Ready::Unknown).await?;
    s.only(&names[1..], SOON).await?;
    s.event(&names[0], "DeletingNode", SOON).await?;
    s.none_deleted(&names[1..], 5).await?;
    ccm.terminate().await
}

async fn nothing_is_deleted_when_the_cloud_denies_living_nodes_too(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(8);
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&names).await?;
    s.set_faults([FaultSpec {
        operation: Some(Operation::DescribeInstances),
        error: Some(FaultError::NotFound),
        ..FaultSpec::default()
    }])?;
    for name in &names[..3] {
        s.kubelets.set_ready(name, Ready::Unknown).await?;
    }
    let event = s.event(&names[0], "NodeDeletionRefused", SOON).await?;
    anyhow::ensure!(event.type_.as_deref() == Some("Warning"), "{:?}", event.type_);
    s.none_deleted(&names, 8).await?;
    ccm.terminate().await
}

async fn a_real_mass_loss_deletes_exactly_the_lost(s: &Scenario) -> anyhow::Result<()> {
    let names = s.names(20);
    let (lost, kept) = names.split_at(10);
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&names).await?;
    s.may_go(lost);
    for name in lost {
        s.cloud.delete_instance(name);
        s.kubelets.set_ready(name, Ready::Unknown).await?;
    }
    s.only(kept, SOON).await?;
    s.none_deleted(kept, 3).await?;
    ccm.terminate().await
}

/// Errors that say nothing about an instance.
const ERRORS: [FaultError; 5] = [
    FaultError::Throttled,
    FaultError::RetryAfter,
    FaultError::PermissionDenied,
    FaultError::Invalid,
    FaultError::Transient,
];

async fn errors_of_the_cloud_delete_nothing_and_end_without_a_trace(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(2 * ERRORS.len() + 1);
    let (old, rest) = names.split_at(ERRORS.len());
    let (new, control) = rest.split_at(ERRORS.len());
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&[old, control].concat()).await?;
    let fault = |(name, error): (&String, FaultError)| FaultSpec {
        operation: Some(Operation::DescribeInstances),
        error: Some(error),
        object: Some(name.clone()),
        ..FaultSpec::default()
    };
    s.set_faults(
        old.iter()
            .zip(ERRORS)
            .chain(new.iter().zip(ERRORS))
            .map(fault),
    )?;
    for name in old {
        s.kubelets.set_ready(name, Ready::Unknown).await?;
    }
    s.register(new).await?;
    s.throughout("nothing is deleted, nothing initialised", 3, |nodes| {
        each(nodes, old, |_| Ok(()))?;
        each(nodes, new, |node| match is_tainted(node, UNINITIALIZED_TAINT) {
            true => Ok(()),
            false => Err("was initialised".to_owned()),
        })
    })
    .await?;
    s.set_faults([])?;
    // What the cloud calls invalid is not asked again for minutes: a person has to mend it, and
    // does by a restart.
    let (mended, invalid): (Vec<_>, Vec<_>) = new
        .iter()
        .cloned()
        .zip(ERRORS)
        .partition(|(_, error)| *error != FaultError::Invalid);
    let names_of = |list: Vec<(String, FaultError)>| {
        list.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    s.initialized(&names_of(mended), Duration::from_secs(31))
        .await?;
    ccm.terminate().await?;
    let ccm = s.start("a", &[]).await?;
    s.initialized(&names_of(invalid), SOON).await?;
    ccm.terminate().await
}

async fn a_node_that_registered_again_does_not_inherit_suspicion(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(3);
    let ccm = s
        .start("a", &["--node-monitor-period=4s", "--node-status-update-frequency=10m"])
        .await?;
    s.register_initialized(&names[1..]).await?;
    // Initialised long ago, so that its age protects neither the node nor its successor.
    let instance = s.cloud.put_instance(&names[0], InstanceSpec::default())?;
    s.register_one(
        s.spec(&names[0])
            .provider_id(&instance.provider_id)
            .initialized(),
    )
    .await?;
    s.cloud.delete_instance(&names[0]);
    let asked = s.cloud.calls().describe_instances;
    s.kubelets.set_ready(&names[0], Ready::Unknown).await?;
    s.until("suspected", SOON, || s.cloud.calls().describe_instances > asked)
        .await?;
    s.delete_node(&names[0]).await?;
    s.only(&names[1..], SOON).await?;
    s.kubelets.restart(&names[0]).await?;
    s.seen(&names).await?;
    s.kubelets.set_ready(&names[0], Ready::Unknown).await?;
    // The next pass would complete the predecessor's proof.
    let asked = s.cloud.calls().describe_instances;
    s.until("asked again", SOON, || s.cloud.calls().describe_instances > asked)
        .await?;
    let all_stay = || each(&s.nodes(), &names, |_| Ok(()));
    s.stays("one answer is no proof", Duration::from_secs(1), all_stay)
        .await?;
    s.cloud.put_instance(&names[0], InstanceSpec::default())?;
    s.none_deleted(&names, 1).await?;
    s.stays("its instance is there", Duration::from_secs(1), all_stay)
        .await?;
    ccm.terminate().await
}

async fn a_young_node_that_was_never_initialised_is_not_deleted(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(4);
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&names[1..]).await?;
    s.register_one(s.spec(&names[0])).await?;
    s.kubelets.set_ready(&names[0], Ready::False).await?;
    s.event(&names[0], "InstanceNotFound", SOON).await?;
    s.none_deleted(&names, 8).await?;
    ccm.terminate().await
}

async fn one_answer_deletes_with_the_safety_of_upstream(s: &Scenario) -> anyhow::Result<()> {
    let names = s.names(4);
    let ccm = s.start("a", &["--node-deletion-safety=upstream"]).await?;
    s.register_initialized(&names).await?;
    s.set_faults([FaultSpec {
        operation: Some(Operation::DescribeInstances),
        error: Some(FaultError::NotFound),
        ..FaultSpec::default()
    }])?;
    s.may_go([&names[0]]);
    s.kubelets.set_ready(&names[0], Ready::Unknown).await?;
    s.only(&names[1..], SOON).await?;
    ccm.terminate().await
}
