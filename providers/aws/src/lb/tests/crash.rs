//! A process may die at any request. Whoever goes on reaches the same end, and leaks nothing.

use ccm_core::{k8s::ServiceView, provider::Progress};

use super::rig::{Rig, published, service, with};
use crate::{
    config::Settings,
    fake::{Crash, Everything},
};

type Case = (&'static str, Settings, Vec<ServiceView>);

fn cases() -> Vec<Case> {
    let two = || service("web", &[80, 443]);
    let managed = || Settings { managed_security_groups: true, ..Settings::default() };
    let attributes = || {
        let web = with(two(), "attributes", "load_balancing.cross_zone.enabled=true");
        with(web, "target-group-attributes", "proxy_protocol_v2.enabled=true")
    };
    let udp = |port: usize, mut service: ServiceView| {
        service.ports[port].protocol = ccm_core::k8s::Protocol::Udp;
        service
    };
    let node_port = |number: u16, mut service: ServiceView| {
        service.ports[0].node_port = number.try_into().ok();
        service
    };
    let pods = |service| with(service, "nlb-target-type", "ip");
    let unmanaged = |service| with(service, "manage-backend-security-group-rules", "false");
    let without_rules = || Settings { disable_security_group_ingress: true, ..Settings::default() };
    vec![
        ("protocols", Settings::default(), vec![two(), udp(1, two()), udp(0, udp(1, two()))]),
        ("node ports", without_rules(), vec![two(), node_port(31111, two())]),
        ("ranges", managed(), vec![two(), ServiceView { source_ranges: ["10.1.0.0/16".into()].into(), ..two() }]),
        ("two ports", Settings::default(), vec![two(), service("web", &[443, 8443])]),
        ("pods", Settings::default(), vec![pods(two()), two(), pods(two())]),
        ("pods and groups", managed(), vec![pods(two()), two(), unmanaged(pods(two()))]),
        ("managed groups", managed(), vec![two(), service("web", &[80])]),
        (
            "attributes and tags",
            Settings::default(),
            vec![two(), with(with(attributes(), "additional-resource-tags", "team=a"), "healthcheck-interval", "10")],
        ),
    ]
}

/// What is there after each state of a Service was reached in peace; the last is that of its deletion.
async fn peace(settings: &Settings, states: &[ServiceView]) -> Vec<Everything> {
    let mut rig = Rig::with(3, settings.clone());
    let mut ends = vec![rig.aws.everything()];
    for state in states {
        rig = rig.restart();
        rig.settle(state).await;
        ends.push(rig.aws.everything());
    }
    ends
}

/// Reaches a state with a crash at a change; tells whether there was one.
async fn with_crash(rig: Rig, state: &ServiceView, n: usize, crash: Crash) -> (Rig, bool) {
    let rig = rig.restart();
    rig.aws.crash_at_write(n, crash);
    let outcome = rig.ensure(state, ccm_core::provider::Depth::Verify).await;
    let crashed = rig.aws.is_dead();
    assert_eq!(crashed, !matches!(outcome.result, Ok(Progress::Done)), "change {n}: {outcome:?}");
    let rig = rig.restart();
    rig.settle(state).await;
    (rig, crashed)
}

// OU3
#[tokio::test(start_paused = true)]
async fn a_crash_at_any_change_while_creating_and_changing_leads_to_the_same_end() {
    for (case, settings, states) in cases() {
        let ends = peace(&settings, &states).await;
        for crash in [Crash::Before, Crash::After] {
            for at in 0..states.len() {
                for n in 1.. {
                    let rig = Rig::with(3, settings.clone());
                    for state in &states[..at] {
                        rig.settle(state).await;
                    }
                    let (rig, crashed) = with_crash(rig, &states[at], n, crash).await;
                    let there = rig.aws.everything();
                    assert!(
                        there == ends[at + 1],
                        "{case}: state {at}, crash {crash:?} change {n}:\n{}",
                        ends[at + 1].diff(&there)
                    );
                    if !crashed {
                        assert!(n > 1, "{case}: nothing changed in state {at}");
                        break;
                    }
                    rig.remove(&states[at]).await;
                    let there = rig.aws.everything();
                    assert!(there == ends[0], "{case}: left behind:\n{}", ends[0].diff(&there));
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_change_while_deleting_leaves_nothing() {
    for (case, settings, states) in cases() {
        let end = peace(&settings, &[]).await.remove(0);
        for crash in [Crash::Before, Crash::After] {
            for n in 1.. {
                let rig = Rig::with(3, settings.clone());
                let mut state = states[0].clone();
                state = published(&state, &rig.settle(&state).await);
                let rig = rig.restart();
                rig.aws.crash_at_write(n, crash);
                let deleted = rig.delete(&state).await;
                let crashed = rig.aws.is_dead();
                assert_eq!(crashed, deleted.is_err(), "{case}: change {n}: {deleted:?}");
                let rig = rig.restart();
                rig.remove(&state).await;
                let there = rig.aws.everything();
                assert!(there == end, "{case}: crash {crash:?} change {n}:\n{}", end.diff(&there));
                if !crashed {
                    assert!(n > 1, "{case}: nothing was deleted");
                    break;
                }
            }
        }
    }
}

/// A Service that is given up after a crash, before it was ever finished.
#[tokio::test(start_paused = true)]
async fn what_was_never_finished_is_deleted_whole() {
    for (case, settings, states) in cases() {
        let end = peace(&settings, &[]).await.remove(0);
        for crash in [Crash::Before, Crash::After] {
            for n in 1.. {
                let rig = Rig::with(3, settings.clone());
                rig.aws.crash_at_write(n, crash);
                drop(rig.ensure(&states[0], ccm_core::provider::Depth::Verify).await);
                let crashed = rig.aws.is_dead();
                let rig = rig.restart();
                rig.remove(&states[0]).await;
                let there = rig.aws.everything();
                assert!(there == end, "{case}: crash {crash:?} change {n}:\n{}", end.diff(&there));
                if !crashed {
                    break;
                }
            }
        }
    }
}

/// The answer of one change is lost, and the process lives on.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_leads_to_the_same_end() {
    for (case, settings, states) in cases() {
        let ends = peace(&settings, &states).await;
        for crash in [Crash::Before, Crash::After] {
            for n in 1..25 {
                let rig = Rig::with(3, settings.clone());
                rig.aws.fail_nth_write(n, crash);
                for (state, end) in states.iter().zip(&ends[1..]) {
                    rig.settle(state).await;
                    let there = rig.aws.everything();
                    assert!(there == *end, "{case}: lost {crash:?} change {n}:\n{}", end.diff(&there));
                }
                rig.remove(&states[states.len() - 1]).await;
                let there = rig.aws.everything();
                assert!(there == ends[0], "{case}: lost {crash:?} change {n}:\n{}", ends[0].diff(&there));
            }
        }
    }
}

/// Nodes change while the process dies.
#[tokio::test(start_paused = true)]
async fn a_crash_while_nodes_change_leads_to_the_same_end() {
    let web = service("web", &[80, 443]);
    for crash in [Crash::Before, Crash::After] {
        for n in 1..=5 {
            let mut rig = Rig::new(3);
            let status = rig.settle(&web).await;
            let web = published(&web, &status);
            rig.add_node();
            rig.nodes.remove(0);
            rig.aws.crash_at_write(n, crash);
            let updated = rig.update(&web).await;
            assert_eq!(rig.aws.is_dead(), n <= 4, "{updated:?}");
            let rig = rig.restart();
            if !rig.plan(&web).await.unwrap().is_empty() {
                rig.settle(&web).await;
            }
            assert_eq!(rig.plan(&web).await.unwrap(), []);
            for group in rig.aws.target_groups() {
                assert_eq!(rig.aws.targets(&group.arn).len(), 3, "crash {crash:?} change {n}");
            }
        }
    }
}
