//! The state machine.

use super::*;
use crate::octavia::{force_error, rows::Outcome};

fn states(cloud: &mut Cloud, web: &Web) -> [String; 3] {
    let state = |body: Value| body["provisioning_status"].as_str().unwrap().to_owned();
    [
        state(cloud.lb(&web.lb)),
        state(cloud.listener(&web.listener)),
        state(cloud.pool(&web.pool)),
    ]
}

#[test]
fn a_new_load_balancer_is_pending_with_all_that_is_below_it_and_then_active() {
    let mut cloud = Cloud::new();
    let lb = cloud.post_lb(json!({"listeners": [listener(80)]})).unwrap();
    assert_eq!(
        (&lb["provisioning_status"], &lb["operating_status"]),
        (&json!("PENDING_CREATE"), &json!("OFFLINE"))
    );
    assert_eq!(lb["listeners"][0]["provisioning_status"], "PENDING_CREATE");
    assert_eq!(lb["pools"][0]["members"][1]["provisioning_status"], "PENDING_CREATE");
    let web = Web {
        lb: id(&lb),
        listener: id(&lb["listeners"][0]),
        pool: id(&lb["pools"][0]),
    };

    cloud.ctx.now += PENDING - SignedDuration::from_millis(1);
    assert_eq!(
        finish_due(&mut cloud.state, cloud.ctx.now),
        Some(Timestamp::UNIX_EPOCH + PENDING),
        "not yet"
    );
    assert_eq!(states(&mut cloud, &web), ["PENDING_CREATE"; 3]);
    cloud.ctx.now += SignedDuration::from_millis(1);
    assert_eq!(states(&mut cloud, &web), ["ACTIVE"; 3]);
    assert_eq!(finish_due(&mut cloud.state, cloud.ctx.now), None);
    assert_eq!(cloud.lb(&web.lb)["operating_status"], "ONLINE");
    assert_eq!(cloud.lb(&web.lb)["updated_at"], Value::Null);
}

/// Each change locks the whole load balancer, and what it goes through.
#[test]
fn a_change_below_locks_everything_above() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    cloud.post_member(&web.pool, member(3)).unwrap();
    assert_eq!(states(&mut cloud, &web), ["PENDING_UPDATE"; 3]);
    cloud.rest();
    assert_eq!(states(&mut cloud, &web), ["ACTIVE"; 3]);

    cloud
        .put_listener(&web.listener, json!({"connection_limit": 5}))
        .unwrap();
    assert_eq!(states(&mut cloud, &web), ["PENDING_UPDATE", "PENDING_UPDATE", "ACTIVE"]);
    cloud.rest();
    cloud.put_lb(&web.lb, json!({"name": "other"})).unwrap();
    assert_eq!(states(&mut cloud, &web), ["PENDING_UPDATE", "ACTIVE", "ACTIVE"]);
    cloud.rest();
    let monitor = cloud.post_monitor(monitor(&web.pool)).unwrap();
    assert_eq!(monitor["provisioning_status"], "PENDING_CREATE");
    assert_eq!(states(&mut cloud, &web), ["PENDING_UPDATE"; 3]);
}

/// Everything else is refused meanwhile, in the words that clients look for, and changes nothing.
#[test]
fn whoever_comes_meanwhile_is_refused() {
    let mut cloud = Cloud::new();
    cloud.settings(|settings| settings.failover_needs_admin = false);
    let web = cloud.web();
    let member_id = id(&cloud.members(&web.pool)[0]);
    cloud
        .put_lb(&web.lb, json!({"description": "busy"}))
        .unwrap();
    let before = cloud.lb(&web.lb);

    let below = (409, format!("Load Balancer {} is immutable and cannot be updated.", web.lb));
    let whole = (409, format!("Invalid state PENDING_UPDATE of loadbalancer resource {}", web.lb));
    let (lb, pool, listener_id) = (web.lb.clone(), web.pool.clone(), web.listener.clone());
    assert_eq!(refusal(cloud.put_lb(&lb, json!({"name": "x"}))), whole);
    assert_eq!(
        refusal(cloud.run(|state, ctx| load_balancers::delete(state, ctx, &lb, true))),
        whole
    );
    assert_eq!(refusal(cloud.run(|state, ctx| load_balancers::failover(state, ctx, &lb))), whole);
    let another = json!({"loadbalancer_id": lb, "protocol": "TCP", "protocol_port": 81});
    assert_eq!(refusal(cloud.post_listener(another)), below);
    assert_eq!(refusal(cloud.put_listener(&listener_id, json!({"name": "x"}))), below);
    assert_eq!(refusal(cloud.run(|state, ctx| listeners::delete(state, ctx, &listener_id))), below);
    let another = json!({"loadbalancer_id": lb, "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"});
    assert_eq!(refusal(cloud.post_pool(another)), below);
    assert_eq!(refusal(cloud.put_pool(&pool, json!({"name": "x"}))), below);
    assert_eq!(refusal(cloud.run(|state, ctx| pools::delete(state, ctx, &pool))), below);
    assert_eq!(refusal(cloud.post_member(&pool, member(9))), below);
    assert_eq!(refusal(cloud.put_member(&pool, &member_id, json!({"weight": 2}))), below);
    assert_eq!(
        refusal(cloud.run(|state, ctx| members::delete(state, ctx, &pool, &member_id))),
        below
    );
    assert_eq!(refusal(cloud.batch(&pool, json!([]), false)), below);
    assert_eq!(refusal(cloud.post_monitor(monitor(&pool))), below);
    assert_eq!(cloud.lb(&lb), before);
}

#[test]
fn what_is_deleted_is_seen_until_it_is_gone() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let gone = id(&cloud.members(&web.pool)[0]);
    cloud
        .run(|state, ctx| members::delete(state, ctx, &web.pool, &gone))
        .unwrap();
    assert_eq!(cloud.members(&web.pool)[0]["provisioning_status"], "PENDING_DELETE");
    cloud.rest();
    assert_eq!(cloud.members(&web.pool).len(), 1);
    let shown = cloud.run(|state, ctx| members::show(state, ctx, &web.pool, &gone));
    assert_eq!(refusal(shown), (404, format!("Member {gone} not found.")));

    cloud
        .run(|state, ctx| pools::delete(state, ctx, &web.pool))
        .unwrap();
    cloud.rest();
    assert_eq!(
        cloud.listener(&web.listener)["default_pool_id"],
        Value::Null,
        "a listener outlives its pool"
    );
    assert_eq!(cloud.lb(&web.lb)["pools"], json!([]));
    assert!(cloud.state.octavia.members.is_empty(), "members go with their pool");

    cloud
        .run(|state, ctx| listeners::delete(state, ctx, &web.listener))
        .unwrap();
    cloud.rest();
    cloud
        .run(|state, ctx| load_balancers::delete(state, ctx, &web.lb, false))
        .unwrap();
    assert_eq!(cloud.lb(&web.lb)["provisioning_status"], "PENDING_DELETE");
    cloud.rest();
    let shown = cloud.run(|state, ctx| load_balancers::show(state, ctx, &web.lb));
    assert_eq!(refusal(shown), (404, format!("Load Balancer {} not found.", web.lb)));
}

#[test]
fn children_go_only_when_that_is_said() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    cloud.post_monitor(monitor(&web.pool)).unwrap();
    cloud.rest();
    let text =
        format!("Validation failure: Cannot delete Load Balancer {} - it has children", web.lb);
    let refused = cloud.run(|state, ctx| load_balancers::delete(state, ctx, &web.lb, false));
    assert_eq!(refusal(refused), (400, text));
    cloud
        .run(|state, ctx| load_balancers::delete(state, ctx, &web.lb, true))
        .unwrap();
    cloud.rest();
    let rows = &cloud.state.octavia;
    assert_eq!(
        (rows.listeners.len(), rows.pools.len(), rows.members.len(), rows.monitors.len()),
        (0, 0, 0, 0)
    );
}

#[test]
fn a_failed_change_ends_in_error_which_can_be_deleted_or_failed_over() {
    let mut cloud = Cloud::new();
    cloud.settings(|settings| {
        (settings.failure, settings.failures) = (Outcome::LoadBalancerFails, 2);
        settings.failover_needs_admin = false;
    });
    let web = cloud.web();
    assert_eq!(states(&mut cloud, &web), ["ERROR"; 3]);
    assert_eq!(cloud.lb(&web.lb)["operating_status"], "OFFLINE", "it has never worked");
    let below = (409, format!("Load Balancer {} is immutable and cannot be updated.", web.lb));
    assert_eq!(refusal(cloud.post_member(&web.pool, member(3))), below);
    let whole = (409, format!("Invalid state ERROR of loadbalancer resource {}", web.lb));
    assert_eq!(refusal(cloud.put_lb(&web.lb, json!({"name": "x"}))), whole);

    cloud
        .run(|state, ctx| load_balancers::failover(state, ctx, &web.lb))
        .unwrap();
    assert_eq!(cloud.lb(&web.lb)["provisioning_status"], "PENDING_UPDATE");
    cloud.rest();
    assert_eq!(cloud.lb(&web.lb)["provisioning_status"], "ERROR", "the second failure");
    cloud
        .run(|state, ctx| load_balancers::failover(state, ctx, &web.lb))
        .unwrap();
    cloud.rest();
    assert_eq!(cloud.lb(&web.lb)["provisioning_status"], "ACTIVE", "failures are used up");
    assert_eq!(cloud.lb(&web.lb)["operating_status"], "ONLINE");

    cloud.settings(|settings| settings.failures = 1);
    cloud.put_lb(&web.lb, json!({"name": "x"})).unwrap();
    cloud.rest();
    let lb = cloud.lb(&web.lb);
    assert_eq!(
        (&lb["provisioning_status"], &lb["operating_status"]),
        (&json!("ERROR"), &json!("ONLINE")),
        "a change that failed does not stop it"
    );

    force_error(&mut cloud.state, &web.lb).unwrap();
    let lb = cloud.lb(&web.lb);
    assert_eq!(
        (&lb["provisioning_status"], &lb["operating_status"]),
        (&json!("ERROR"), &json!("ERROR"))
    );
    cloud
        .run(|state, ctx| load_balancers::delete(state, ctx, &web.lb, true))
        .unwrap();
    cloud.rest();
    assert!(cloud.state.octavia.load_balancers.is_empty());
}

#[test]
fn only_an_administrator_fails_over_unless_the_settings_allow_it() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let text = "Policy does not allow this request to be performed.".to_owned();
    let failover =
        |cloud: &mut Cloud| cloud.run(|state, ctx| load_balancers::failover(state, ctx, &web.lb));
    assert_eq!(refusal(failover(&mut cloud)), (403, text));
    assert_eq!(cloud.lb(&web.lb)["provisioning_status"], "ACTIVE");
    cloud.ctx.admin = true;
    failover(&mut cloud).unwrap();
    cloud.rest();
    cloud.ctx.admin = false;
    cloud.settings(|settings| settings.failover_needs_admin = false);
    failover(&mut cloud).unwrap();
}

/// A pool can be in `ERROR` while its load balancer goes on; then its members are locked.
#[test]
fn a_child_fails_alone() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    cloud.settings(|settings| {
        (settings.failure, settings.failures) = (Outcome::ChildFails, 1);
    });
    let body = json!({"loadbalancer_id": web.lb, "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"});
    let pool = id(&cloud.post_pool(body).unwrap());
    cloud.rest();
    assert_eq!(cloud.lb(&web.lb)["provisioning_status"], "ACTIVE");
    assert_eq!(cloud.pool(&pool)["provisioning_status"], "ERROR");
    let text = format!("Pool {pool} is immutable and cannot be updated.");
    assert_eq!(refusal(cloud.post_member(&pool, member(1))), (409, text));
    cloud
        .run(|state, ctx| pools::delete(state, ctx, &pool))
        .unwrap();
    cloud.rest();
    assert_eq!(cloud.lb(&web.lb)["pools"].as_array().unwrap().len(), 1);
}

#[test]
fn a_change_without_duration_is_over_at_the_next_request() {
    let mut cloud = Cloud::new();
    cloud.settings(|settings| settings.pending_ms = 0);
    let lb = cloud.post_lb(json!({})).unwrap();
    assert_eq!(lb["provisioning_status"], "PENDING_CREATE", "as it is answered");
    assert_eq!(cloud.lb(&id(&lb))["provisioning_status"], "ACTIVE");
}

#[test]
fn a_batch_makes_the_members_what_it_says() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let [first, second] = [0, 1].map(|at| id(&cloud.members(&web.pool)[at]));
    cloud
        .batch(&web.pool, json!([set(member(2), json!({"weight": 7})), member(3)]), false)
        .unwrap();
    let found = cloud.members(&web.pool);
    let states: Vec<_> = found
        .iter()
        .map(|member| member["provisioning_status"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["PENDING_DELETE", "PENDING_UPDATE", "PENDING_CREATE"]);
    assert_eq!(
        (id(&found[0]), id(&found[1])),
        (first, second.clone()),
        "members keep their identifiers"
    );
    cloud.rest();
    let found = cloud.members(&web.pool);
    assert_eq!(
        found
            .iter()
            .map(|member| member["weight"].as_i64().unwrap())
            .collect::<Vec<_>>(),
        [7, 1]
    );
    assert_eq!(id(&found[0]), second);

    cloud.batch(&web.pool, json!([member(4)]), true).unwrap();
    cloud.rest();
    assert_eq!(cloud.members(&web.pool).len(), 3, "an additive batch deletes nothing");

    let twice = cloud.batch(&web.pool, json!([member(5), member(5)]), false);
    assert_eq!(refusal(twice).0, 400);
    assert_eq!(
        cloud.lb(&web.lb)["provisioning_status"],
        "ACTIVE",
        "a refused batch leaves no lock"
    );

    cloud.batch(&web.pool, json!([]), false).unwrap();
    cloud.rest();
    assert!(cloud.members(&web.pool).is_empty());
    cloud.batch(&web.pool, json!([]), false).unwrap();
    assert_eq!(
        cloud.lb(&web.lb)["provisioning_status"],
        "ACTIVE",
        "nothing asked of nothing locks nothing"
    );
}

/// The batch that says what is there already locks all the same, as Octavia does.
#[test]
fn a_batch_that_changes_nothing_locks_too() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    cloud
        .batch(&web.pool, json!([member(1), member(2)]), false)
        .unwrap();
    assert_eq!(states(&mut cloud, &web), ["PENDING_UPDATE"; 3]);
}

#[test]
fn another_projects_objects_are_not_to_be_had() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    cloud.ctx.project = "another".into();
    let text = "Policy does not allow this request to be performed.".to_owned();
    assert_eq!(
        refusal(cloud.run(|state, ctx| load_balancers::show(state, ctx, &web.lb))),
        (403, text.clone())
    );
    assert_eq!(refusal(cloud.put_pool(&web.pool, json!({"name": "x"}))), (403, text.clone()));
    assert_eq!(refusal(cloud.post_lb(json!({"project_id": PROJECT}))), (403, text));
    assert!(load_balancers::list(&cloud.state, &cloud.ctx).is_empty());
    cloud.ctx.admin = true;
    assert_eq!(load_balancers::list(&cloud.state, &cloud.ctx).len(), 1);
}
