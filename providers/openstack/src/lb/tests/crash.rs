//! A process may die at any request. Whoever goes on reaches the same end, and leaks nothing.

use ccm_core::{
    k8s::ServiceView,
    provider::{Depth, Progress},
};

use super::rig::{Crash, Rig, internal, published, service, with};
use crate::lb::settings::Settings;

struct Case {
    name: &'static str,
    change: fn(&mut Settings),
    states: Vec<ServiceView>,
}

fn cases() -> Vec<Case> {
    let two = || service("web", &[80, 443]);
    let checked = |service| with(service, "enable-health-monitor", "true");
    let plain: fn(&mut Settings) = |_| {};
    vec![
        Case { name: "ports", change: plain, states: vec![two(), service("web", &[443, 8443])] },
        Case { name: "protocol", change: plain, states: vec![checked(two()), with(two(), "x-forwarded-for", "true")] },
        Case { name: "internal", change: plain, states: vec![two(), internal(two())] },
        Case {
            name: "groups",
            change: |settings| settings.manage_security_groups = true,
            states: vec![two(), service("web", &[80])],
        },
        Case {
            name: "one by one",
            change: |settings| (settings.serial, settings.cascade_delete) = (true, false),
            states: vec![checked(service("web", &[80])), with(service("web", &[80]), "proxy-protocol", "v1")],
        },
    ]
}

async fn rig(case: &Case) -> Rig {
    Rig::with(2, |settings, _| (case.change)(settings)).await
}

/// Goes through the states one after the other; what is published goes along.
async fn walk(rig: &Rig, states: &[ServiceView]) -> Option<ServiceView> {
    let mut last: Option<ServiceView> = None;
    for state in states {
        last = Some(rig.settle(&next(last.as_ref(), state)).await);
    }
    last
}

/// A state with what was published of the one before.
fn next(last: Option<&ServiceView>, state: &ServiceView) -> ServiceView {
    let Some(last) = last else { return state.clone() };
    let mut state = ServiceView { status: last.status.clone(), ..state.clone() };
    let written = last.annotations.iter().filter(|(key, _)| key.contains("/load-balancer-"));
    state.annotations.extend(written.map(|(key, value)| (key.clone(), value.clone())));
    state
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_change_while_creating_and_changing_leads_to_the_same_end() {
    for case in cases() {
        let peace = rig(&case).await;
        let empty = peace.everything();
        for (at, state) in case.states.iter().enumerate() {
            let last = walk(&peace, &case.states[..=at]).await;
            let end = peace.everything();
            for crash in [Crash::Before, Crash::After] {
                for n in 1.. {
                    let rig = rig(&case).await;
                    let last = walk(&rig, &case.states[..at]).await;
                    let rig = rig.restart().await;
                    rig.fail_at_write(n, crash, true);
                    let mut state = next(last.as_ref(), state);
                    for _ in 0..40 {
                        let outcome = rig.ensure(&state, Depth::Verify).await;
                        if rig.is_dead() || matches!(outcome.result, Ok(Progress::Done)) {
                            break;
                        }
                        state = published(&state, &outcome);
                        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    }
                    let crashed = rig.is_dead();
                    let rig = rig.restart().await;
                    let done = rig.settle(&state).await;
                    assert_eq!(rig.everything(), end, "{}: state {at}, {crash:?} change {n}", case.name);
                    if !crashed {
                        assert!(n > 1, "{}: nothing changed in state {at}", case.name);
                        break;
                    }
                    rig.remove(&done).await;
                    assert_eq!(rig.everything(), empty, "{}: left by state {at}, {crash:?} change {n}", case.name);
                }
            }
            peace.remove(&last.unwrap()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_change_while_deleting_leaves_nothing() {
    for case in cases() {
        let empty = rig(&case).await.everything();
        for crash in [Crash::Before, Crash::After] {
            for n in 1.. {
                let rig = rig(&case).await;
                let done = rig.settle(&case.states[0]).await;
                rig.fail_at_write(n, crash, true);
                for _ in 0..40 {
                    if rig.is_dead() || matches!(rig.delete(&done).await, Ok(Progress::Done)) {
                        break;
                    }
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
                let crashed = rig.is_dead();
                let rig = rig.restart().await;
                rig.remove(&done).await;
                assert_eq!(rig.everything(), empty, "{}: {crash:?} change {n}", case.name);
                if !crashed {
                    assert!(n > 1, "{}: nothing was deleted", case.name);
                    break;
                }
            }
        }
    }
}

/// A Service that is given up after a crash, before it was ever finished, with nothing written down of it.
#[tokio::test(start_paused = true)]
async fn what_was_never_finished_is_deleted_whole() {
    for case in cases() {
        let empty = rig(&case).await.everything();
        for crash in [Crash::Before, Crash::After] {
            for n in 1.. {
                let rig = rig(&case).await;
                rig.fail_at_write(n, crash, true);
                for _ in 0..40 {
                    let outcome = rig.ensure(&case.states[0], Depth::Verify).await;
                    if rig.is_dead() || matches!(outcome.result, Ok(Progress::Done)) {
                        break;
                    }
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
                let crashed = rig.is_dead();
                let rig = rig.restart().await;
                rig.remove(&case.states[0]).await;
                assert_eq!(rig.everything(), empty, "{}: {crash:?} change {n}", case.name);
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
    for case in cases() {
        let peace = rig(&case).await;
        walk(&peace, &case.states).await;
        let end = peace.everything();
        for crash in [Crash::Before, Crash::After] {
            for n in 1..16 {
                let rig = rig(&case).await;
                rig.fail_at_write(n, crash, false);
                let done = walk(&rig, &case.states).await.unwrap();
                assert_eq!(rig.everything(), end, "{}: lost {crash:?} change {n}", case.name);
                rig.remove(&done).await;
            }
        }
    }
}
