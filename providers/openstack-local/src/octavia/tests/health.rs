//! What the sockets report, and what follows upwards.

use std::collections::BTreeMap;

use crate::api::octavia::Stats;

use super::*;
use crate::octavia::{ListenerReport, MemberReport, Report, forget_reports, report};

/// A load balancer whose pool is watched, in a cloud whose sockets report.
fn watched() -> (Cloud, Web, [String; 2]) {
    let mut cloud = Cloud::new();
    cloud.settings(|settings| settings.reported = true);
    let web = cloud.web();
    cloud.post_monitor(monitor(&web.pool)).unwrap();
    cloud.rest();
    let members = [0, 1].map(|at| id(&cloud.members(&web.pool)[at]));
    (cloud, web, members)
}

fn said(web: &Web, members: &[(&String, MemberReport)]) -> Report {
    Report {
        listeners: BTreeMap::from([(
            web.listener.clone(),
            ListenerReport { open: true, ..Default::default() },
        )]),
        members: members
            .iter()
            .map(|(id, report)| ((*id).clone(), *report))
            .collect(),
    }
}

/// Operating states: load balancer, listener, pool, members.
fn operating(cloud: &mut Cloud, web: &Web) -> Vec<String> {
    let mut bodies = vec![cloud.lb(&web.lb), cloud.listener(&web.listener), cloud.pool(&web.pool)];
    bodies.extend(cloud.members(&web.pool));
    bodies
        .iter()
        .map(|body| body["operating_status"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn members_that_fail_are_seen_all_the_way_up() {
    use MemberReport::{Down, Up};
    let (mut cloud, web, [one, two]) = watched();
    let cases = [
        (Up, Up, ["ONLINE", "ONLINE", "ONLINE", "ONLINE", "ONLINE"]),
        (Up, Down, ["DEGRADED", "DEGRADED", "DEGRADED", "ONLINE", "ERROR"]),
        (Down, Down, ["ERROR", "ERROR", "ERROR", "ERROR", "ERROR"]),
        (Up, Up, ["ONLINE", "ONLINE", "ONLINE", "ONLINE", "ONLINE"]),
    ];
    assert_eq!(
        operating(&mut cloud, &web),
        ["OFFLINE", "OFFLINE", "ONLINE", "OFFLINE", "OFFLINE"],
        "not told yet"
    );
    for (first, second, states) in cases {
        report(&mut cloud.state, &said(&web, &[(&one, first), (&two, second)]));
        assert_eq!(operating(&mut cloud, &web), states, "{first:?} {second:?}");
    }
}

#[test]
fn what_is_set_wins_over_what_is_reported() {
    let (mut cloud, web, [one, two]) = watched();
    report(&mut cloud.state, &said(&web, &[(&one, MemberReport::Up), (&two, MemberReport::Down)]));
    cloud
        .put_member(&web.pool, &one, json!({"weight": 0}))
        .unwrap();
    cloud.rest();
    assert_eq!(operating(&mut cloud, &web)[3], "DRAINING");
    cloud
        .put_member(&web.pool, &two, json!({"admin_state_up": false}))
        .unwrap();
    cloud.rest();
    assert_eq!(operating(&mut cloud, &web)[4], "OFFLINE");
    cloud
        .put_lb(&web.lb, json!({"admin_state_up": false}))
        .unwrap();
    cloud.rest();
    assert_eq!(operating(&mut cloud, &web)[0], "OFFLINE");
}

#[test]
fn without_a_monitor_nothing_is_known() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    assert_eq!(
        operating(&mut cloud, &web),
        ["ONLINE", "ONLINE", "ONLINE", "NO_MONITOR", "NO_MONITOR"]
    );
    let made = cloud.post_monitor(monitor(&web.pool)).unwrap();
    cloud.rest();
    assert_eq!(
        operating(&mut cloud, &web)[3..],
        ["ONLINE", "ONLINE"],
        "nobody reports: all is well"
    );
    cloud
        .run(|state, ctx| monitors::delete(state, ctx, &id(&made)))
        .unwrap();
    cloud.rest();
    assert_eq!(operating(&mut cloud, &web)[3..], ["NO_MONITOR", "NO_MONITOR"]);
}

#[test]
fn a_port_that_cannot_be_had_is_an_error_and_a_full_one_is_degraded() {
    let (mut cloud, web, [one, two]) = watched();
    let mut told = said(&web, &[(&one, MemberReport::Up), (&two, MemberReport::Up)]);
    told.listeners.get_mut(&web.listener).unwrap().full = true;
    report(&mut cloud.state, &told);
    assert_eq!(operating(&mut cloud, &web)[..3], ["DEGRADED", "DEGRADED", "ONLINE"]);
    told.listeners.get_mut(&web.listener).unwrap().open = false;
    report(&mut cloud.state, &told);
    assert_eq!(operating(&mut cloud, &web)[..3], ["ERROR", "ERROR", "ONLINE"]);
}

/// Nobody is told that an address serves when the process that served there has ended.
#[test]
fn what_an_earlier_process_reported_counts_no_more() {
    let (mut cloud, web, [one, two]) = watched();
    let told = said(&web, &[(&one, MemberReport::Up), (&two, MemberReport::Up)]);
    report(&mut cloud.state, &told);
    assert_eq!(operating(&mut cloud, &web)[..2], ["ONLINE", "ONLINE"]);
    forget_reports(&mut cloud.state);
    assert_eq!(operating(&mut cloud, &web)[..2], ["OFFLINE", "OFFLINE"]);
    report(&mut cloud.state, &told);
    assert_eq!(operating(&mut cloud, &web)[..2], ["ONLINE", "ONLINE"]);
}

#[test]
fn a_report_that_says_nothing_new_touches_nothing() {
    let (mut cloud, web, [one, two]) = watched();
    let told = said(&web, &[(&one, MemberReport::Up), (&two, MemberReport::Down)]);
    report(&mut cloud.state, &told);
    cloud.commit();
    report(&mut cloud.state, &told);
    let mut touched = Vec::new();
    for part in cloud.state.parts() {
        part.each_touched(&mut |table, key, _| touched.push((table, key.to_owned())));
    }
    assert_eq!(touched, []);
}

/// Counters only ever grow, also over a restart of the process that counts.
#[test]
fn counters_add_up() {
    let (mut cloud, web, _) = watched();
    let stats = |bytes, active| Stats {
        bytes_in: bytes,
        bytes_out: 2 * bytes,
        total_connections: bytes,
        active_connections: active,
        request_errors: 0,
    };
    for (counted, total, active) in [(10, 10, 3), (25, 25, 1), (4, 29, 4), (5, 30, 0)] {
        let mut told = said(&web, &[]);
        told.listeners.get_mut(&web.listener).unwrap().stats = stats(counted, active);
        report(&mut cloud.state, &told);
        let found = cloud
            .run(|state, ctx| load_balancers::stats(state, ctx, &web.lb))
            .unwrap();
        assert_eq!(found, stats(total, active));
        assert_eq!(
            cloud
                .run(|state, ctx| listeners::stats(state, ctx, &web.listener))
                .unwrap(),
            found
        );
    }
}

#[test]
fn the_status_tree_has_everything() {
    let (mut cloud, web, [one, two]) = watched();
    report(&mut cloud.state, &said(&web, &[(&one, MemberReport::Up), (&two, MemberReport::Down)]));
    let tree = value(
        cloud
            .run(|state, ctx| load_balancers::status(state, ctx, &web.lb))
            .unwrap(),
    );
    let listener = &tree["statuses"]["loadbalancer"]["listeners"][0];
    assert_eq!(tree["statuses"]["loadbalancer"]["operating_status"], "DEGRADED");
    let pool = &listener["pools"][0];
    assert_eq!(pool["health_monitor"]["type"], "TCP");
    let mut members = pool["members"].as_array().unwrap().clone();
    members.sort_by_key(|member| member["address"].to_string());
    assert_eq!(
        members[1],
        json!({
            "id": two, "name": "node-2", "operating_status": "ERROR", "provisioning_status": "ACTIVE",
            "address": "127.0.1.2", "protocol_port": 30080,
        })
    );
}
