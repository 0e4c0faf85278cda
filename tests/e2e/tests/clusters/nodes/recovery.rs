//! Broken watches, lost history, refused requests: the work is done all the same, and in the right
//! order.

use std::time::Duration;

use ccm_e2e::ccm::Signal;
use ccm_e2e::scenario::{SOON, Scenario, each, is_initialized};
use ccm_e2e::server::ServerKind;
use ccm_e2e::watcher::is_tainted;
use ccm_testkit::apiserver::{Action, Match, Options};
use ccm_testkit::kubelet::Ready;
use http::StatusCode;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::case;
use crate::run::Case;

pub(crate) fn cases() -> Vec<Case> {
    let own = |case: Case| Case { own_server: Some(Options::default), ..case };
    vec![
        own(case!("cut", &[ServerKind::Embedded], a_cut_watch_goes_on_where_it_was)),
        own(case!("expired", &[ServerKind::Embedded], after_410_everything_is_listed_again)),
        Case {
            own_server: Some(|| Options { streaming_lists: false, ..Options::default() }),
            ..case!(
                "paged",
                &[ServerKind::Embedded],
                a_server_that_refuses_streaming_lists_is_enough
            )
        },
        own(case!(
            "refused",
            &[ServerKind::Embedded],
            conflicts_and_overload_delay_nodes_and_spoil_none
        )),
        Case {
            alone: true,
            ..case!(
                "restart",
                &[ServerKind::Real, ServerKind::RealWithoutWatchList],
                a_sleeper_catches_up_after_the_api_server_was_restarted
            )
        },
    ]
}

/// Requests of the process under test for nodes.
fn its(resource: &str) -> Match {
    Match::resource(resource).user_agent("ccm-mock/")
}

async fn a_cut_watch_goes_on_where_it_was(s: &Scenario) -> anyhow::Result<()> {
    let (names, server) = (s.names(6), s.server.as_embedded()?);
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&names[..2]).await?;
    for (turn, name) in names[2..].iter().enumerate() {
        let cut = match turn % 2 {
            0 => server.faults().cut_watches(&its("nodes")),
            _ => server.faults().close_watches(&its("nodes")),
        };
        anyhow::ensure!(cut == 1, "{cut} watches cut");
        s.register_initialized(std::slice::from_ref(name)).await?;
    }
    anyhow::ensure!(!ccm.log().contains("listing everything"), "a cut watch lost its place");
    ccm.terminate().await
}

async fn after_410_everything_is_listed_again(s: &Scenario) -> anyhow::Result<()> {
    let (names, server) = (s.names(6), s.server.as_embedded()?);
    let mut ccm = s.start("a", &[]).await?;
    s.register_initialized(&names[..4]).await?;
    // While the process hears nothing, nodes come and go, and the history of it all is dropped.
    let freeze = server.faults().freeze_watches(its("nodes"));
    s.register(&names[4..]).await?;
    s.delete_node(&names[0]).await?;
    s.cloud.delete_instance(&names[1]);
    s.may_go([&names[1]]);
    s.kubelets.set_ready(&names[1], Ready::Unknown).await?;
    server.store().compact();
    let cut = server.faults().cut_watches(&its("nodes"));
    anyhow::ensure!(cut == 1, "{cut} watches cut");
    server.faults().thaw(freeze);
    ccm.logged("listing everything", SOON).await?;
    s.initialized(&names[4..], SOON).await?;
    s.only(&names[2..], SOON).await?;
    ccm.terminate().await
}

async fn a_server_that_refuses_streaming_lists_is_enough(s: &Scenario) -> anyhow::Result<()> {
    let names = s.names(12);
    s.register(&names[..10]).await?;
    let ccm = s.start("a", &[]).await?;
    s.initialized(&names[..10], SOON).await?;
    s.register_initialized(&names[10..]).await?;
    let lists = s
        .server
        .as_embedded()?
        .log()
        .count(&its("nodes").verb("list"));
    anyhow::ensure!(lists >= 1, "nothing was listed: the server did not refuse");
    s.may_go([&names[0]]);
    s.cloud.delete_instance(&names[0]);
    s.kubelets.set_ready(&names[0], Ready::Unknown).await?;
    s.only(&names[1..], SOON).await?;
    ccm.terminate().await
}

/// How often somebody else adds a taint to every node, and the pause after each time.
const ROUNDS: usize = 30;
const ROUND: Duration = Duration::from_millis(250);

async fn conflicts_and_overload_delay_nodes_and_spoil_none(s: &Scenario) -> anyhow::Result<()> {
    let (names, server) = (s.names(30), s.server.as_embedded()?);
    let error = |code, retry_after| Action::Error { code, retry_after };
    let bursts = [
        (error(StatusCode::CONFLICT, None), 12),
        (error(StatusCode::UNPROCESSABLE_ENTITY, None), 12),
        (error(StatusCode::INTERNAL_SERVER_ERROR, None), 12),
        (error(StatusCode::SERVICE_UNAVAILABLE, Some(1)), 12),
        (Action::TooManyRequests { retry_after: 1 }, 12),
        (Action::Drop, 12),
        (Action::DropReply, 12),
    ];
    // Slow, so that others come in between.
    let slow = Action::Delay(Duration::from_millis(200));
    let mut faults = vec![
        server
            .faults()
            .add_times(its("nodes").verb("patch"), slow, 150),
    ];
    for subresource in ["status", ""] {
        for (action, times) in bursts.clone() {
            let writes = its("nodes").verb("patch").subresource(subresource);
            // A failed test is known by a JSON Patch alone; on the status it would be a rejection.
            let is_test_failure = matches!(&action, Action::Error { code, .. } if *code == StatusCode::UNPROCESSABLE_ENTITY);
            if !(is_test_failure && subresource == "status") {
                faults.push(server.faults().add_times(writes, action, times));
            }
        }
    }
    let ccm = s.start("a", &[]).await?;
    s.register(&names).await?;
    // Others write to the same nodes meanwhile, to the very list of taints that is patched by
    // position.
    let mut foreign = Vec::new();
    while foreign.len() < ROUNDS && each(&s.nodes(), &names, is_initialized).is_err() {
        let taint = format!("e2e/{}", foreign.len());
        for name in &names {
            add_taint_in_front(s, name, &taint).await?;
        }
        foreign.push(taint);
        tokio::time::sleep(ROUND).await;
    }
    anyhow::ensure!(foreign.len() > 3, "all were initialised before anybody came in between");
    s.initialized(&names, Duration::from_secs(90)).await?;
    let unmet = faults
        .iter()
        .filter(|fault| server.faults().met(**fault) == 0)
        .count();
    anyhow::ensure!(unmet == 0, "{unmet} bursts met nothing");
    each(&s.nodes(), &names, |node| match foreign.iter().find(|taint| !is_tainted(node, taint)) {
        None => Ok(()),
        Some(lost) => Err(format!("it lost the taint {lost}")),
    })
    .map_err(anyhow::Error::msg)?;
    ccm.terminate().await
}

/// Adds a taint as a controller does that reads, changes and writes, and tries again when it comes
/// too late.
async fn add_taint_in_front(s: &Scenario, name: &str, taint: &str) -> anyhow::Result<()> {
    loop {
        let node = s.nodes_api().get(name).await?;
        let mut taints =
            serde_json::to_value(node.spec.and_then(|spec| spec.taints).unwrap_or_default())?;
        if let Some(list) = taints.as_array_mut() {
            list.insert(0, json!({"key": taint, "effect": "NoSchedule"}));
        }
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": taints},
        });
        match s
            .nodes_api()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            patched => return Ok(patched.map(drop)?),
        }
    }
}

async fn a_sleeper_catches_up_after_the_api_server_was_restarted(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(6);
    // The nap must not cost the lease: that is another scenario's subject.
    let lease = ["--leader-elect-lease-duration=120s", "--leader-elect-renew-deadline=110s"];
    let mut ccm = s.start("a", &lease).await?;
    s.register_initialized(&names[..3]).await?;
    ccm.signal(Signal::Stop).await?;
    // The first restart cuts the watch, so that what follows reaches nobody; the second one forgets
    // it.
    s.server.restart_apiserver().await?;
    s.register(&names[3..]).await?;
    s.delete_node(&names[0]).await?;
    s.server.restart_apiserver().await?;
    ccm.signal(Signal::Continue).await?;
    ccm.logged("listing everything", SOON).await?;
    s.initialized(&names[3..], SOON).await?;
    s.cloud.delete_instance(&names[1]);
    s.may_go([&names[1]]);
    s.kubelets.set_ready(&names[1], Ready::Unknown).await?;
    s.only(&names[2..], SOON).await?;
    ccm.terminate().await
}
