use MoveState::{Returned, Started, Switched, Unreadable};
use Shown::{Classic, Neither, Network};

use super::*;

const FORWARD: bool = true;
const BACK: bool = false;

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - jiff::SignedDuration::from_secs(seconds)
}

fn facts(is_forward: bool, shown: Shown, state: MoveState) -> MoveFacts {
    MoveFacts {
        is_forward,
        state: Some(state),
        has_classic: true,
        shown,
        unready: None,
        drain: Duration::from_secs(600),
        now: now(),
    }
}

/// The steps without the texts, with the seconds that are left.
#[derive(Debug, PartialEq)]
enum Short {
    Record,
    Wait(Shown),
    Drain(Shown, u64),
    Switch,
    DeleteClassic,
    Return,
    DeleteNetwork,
    Finish(bool),
}

fn short(facts: &MoveFacts) -> Short {
    match plan(facts) {
        MoveStep::Record => Short::Record,
        MoveStep::Wait { publish, until_drained: None, .. } => Short::Wait(publish),
        MoveStep::Wait { publish, until_drained: Some(rest), .. } => {
            Short::Drain(publish, rest.as_secs())
        }
        MoveStep::Switch => Short::Switch,
        MoveStep::DeleteClassic => Short::DeleteClassic,
        MoveStep::Return => Short::Return,
        MoveStep::DeleteNetwork => Short::DeleteNetwork,
        MoveStep::Finish { is_ready } => Short::Finish(is_ready),
    }
}

#[test]
fn a_move_goes_step_by_step_and_back() {
    // Direction, host name in the status, state, step if the load balancer that is to stay serves, and if
    // it does not.
    let cases = [
        (FORWARD, Classic, Started, Short::Switch, Short::Wait(Classic)),
        (FORWARD, Neither, Started, Short::Switch, Short::Wait(Classic)),
        (FORWARD, Network, Started, Short::Switch, Short::Switch),
        (FORWARD, Classic, Unreadable, Short::Switch, Short::Wait(Classic)),
        (FORWARD, Network, Unreadable, Short::Switch, Short::Switch),
        // The drain time counts from the mark, and only while the status shows the new host name.
        (
            FORWARD,
            Network,
            Switched(ago(0)),
            Short::Drain(Network, 600),
            Short::Drain(Network, 600),
        ),
        (FORWARD, Network, Switched(ago(599)), Short::Drain(Network, 1), Short::Drain(Network, 1)),
        (FORWARD, Network, Switched(ago(600)), Short::DeleteClassic, Short::Wait(Network)),
        (FORWARD, Network, Switched(ago(-1)), Short::Switch, Short::Switch),
        (FORWARD, Classic, Switched(ago(9999)), Short::Switch, Short::Wait(Classic)),
        (FORWARD, Neither, Switched(ago(9999)), Short::Switch, Short::Wait(Classic)),
        // It changed its mind on the way back.
        (FORWARD, Network, Returned(ago(9999)), Short::Switch, Short::Switch),
        (FORWARD, Classic, Returned(ago(9999)), Short::Switch, Short::Wait(Classic)),
        // Nobody has ever been sent to the new one.
        (BACK, Classic, Started, Short::DeleteNetwork, Short::Wait(Classic)),
        (BACK, Neither, Started, Short::Return, Short::Return),
        (BACK, Network, Started, Short::Return, Short::Return),
        (BACK, Network, Switched(ago(9999)), Short::Return, Short::Return),
        (BACK, Classic, Switched(ago(9999)), Short::Return, Short::Return),
        (BACK, Classic, Unreadable, Short::Return, Short::Return),
        (BACK, Classic, Returned(ago(1)), Short::Drain(Classic, 599), Short::Drain(Classic, 599)),
        (BACK, Classic, Returned(ago(600)), Short::DeleteNetwork, Short::Wait(Classic)),
        (BACK, Classic, Returned(ago(-1)), Short::Return, Short::Return),
        (BACK, Network, Returned(ago(9999)), Short::Return, Short::Return),
        (BACK, Neither, Returned(ago(9999)), Short::Return, Short::Return),
    ];
    for (is_forward, shown, state, healthy, unhealthy) in cases {
        let facts = facts(is_forward, shown, state);
        assert_eq!(short(&facts), healthy, "{facts:?}");
        let gone = MoveFacts { has_classic: false, ..facts.clone() };
        assert_eq!(short(&gone), Short::Finish(true), "{gone:?}");
        let facts = MoveFacts { unready: Some("unhealthy".into()), ..facts };
        assert_eq!(short(&facts), unhealthy, "{facts:?}");
        let gone = MoveFacts { has_classic: false, ..facts };
        assert_eq!(short(&gone), Short::Finish(false), "{gone:?}");
    }
}

/// Every combination of facts.
fn all_facts() -> Vec<MoveFacts> {
    let mut all = Vec::new();
    let times = [-9999, -1, 0, 599, 600, 9999];
    let states = times
        .iter()
        .flat_map(|seconds| [Switched(ago(*seconds)), Returned(ago(*seconds))]);
    let states: Vec<_> = states
        .chain([Started, Unreadable])
        .map(Some)
        .chain([None])
        .collect();
    for is_forward in [FORWARD, BACK] {
        for shown in [Classic, Network, Neither] {
            for has_classic in [true, false] {
                for unready in [None, Some("unhealthy".to_owned())] {
                    for state in &states {
                        all.push(MoveFacts {
                            state: *state,
                            has_classic,
                            unready: unready.clone(),
                            ..facts(is_forward, shown, Started)
                        });
                    }
                }
            }
        }
    }
    all
}

#[test]
fn nothing_is_deleted_unless_the_other_one_is_shown_and_serves() {
    for facts in all_facts() {
        match plan(&facts) {
            MoveStep::DeleteClassic => {
                let drained = matches!(facts.state, Some(Switched(since)) if since <= ago(600));
                let serves = facts.unready.is_none() && facts.shown == Network;
                assert!(facts.is_forward && facts.has_classic && drained && serves, "{facts:?}");
            }
            MoveStep::DeleteNetwork => {
                let drained = match facts.state {
                    Some(Returned(since)) => since <= ago(600),
                    state => state == Some(Started),
                };
                let serves = facts.has_classic && facts.unready.is_none() && facts.shown == Classic;
                assert!(!facts.is_forward && drained && serves, "{facts:?}");
            }
            MoveStep::Record => assert_eq!(facts.state, None),
            MoveStep::Finish { .. } => assert!(!facts.has_classic),
            MoveStep::Wait { .. } | MoveStep::Switch | MoveStep::Return => {}
        }
    }
}

#[test]
fn the_state_survives_the_annotation() {
    for state in [Started, Switched(now()), Returned(now())] {
        assert_eq!(MoveState::parse(&state.to_string()), state);
    }
    assert_eq!(Switched(now()).to_string(), "switched 2026-01-02T03:04:05Z");
    for text in ["", "switched", "switched soon", "Started", "returned\t2026-01-02T03:04:05Z"] {
        assert_eq!(MoveState::parse(text), Unreadable, "{text:?}");
    }
}
