//! Load balancers that are created whole.

use crate::api::octavia::Quota;

use super::*;

fn is_empty(cloud: &Cloud) -> bool {
    let rows = &cloud.state.octavia;
    rows.load_balancers.is_empty()
        && rows.listeners.is_empty()
        && rows.pools.is_empty()
        && rows.members.is_empty()
}

#[test]
fn listeners_find_their_pools() {
    let mut cloud = Cloud::new();
    let shared = json!({"name": "shared", "protocol": "TCP", "lb_algorithm": "SOURCE_IP"});
    let lb = cloud
        .post_lb(json!({
            "listeners": [
                listener(80),
                {"protocol": "TCP", "protocol_port": 81, "default_pool": {"name": "shared"}},
                {"protocol": "TCP", "protocol_port": 82},
            ],
            "pools": [shared],
        }))
        .unwrap();
    let pool = |name: &str| {
        lb["pools"]
            .as_array()
            .unwrap()
            .iter()
            .find(|pool| pool["name"] == name)
            .unwrap()
    };
    assert_eq!(lb["listeners"][0]["default_pool_id"], pool("pool_80")["id"]);
    assert_eq!(lb["listeners"][1]["default_pool_id"], pool("shared")["id"]);
    assert_eq!(lb["listeners"][2]["default_pool_id"], Value::Null);
    assert_eq!(pool("shared")["listeners"], json!([{"id": lb["listeners"][1]["id"]}]));
    assert_eq!(pool("pool_80")["members"][0]["address"], "127.0.1.1");
    for absent in ["loadbalancers", "healthmonitor_id"] {
        assert_eq!(pool("shared").get(absent), None);
    }
    assert_eq!(lb["listeners"][0].get("loadbalancers"), None);
    let lb = cloud.lb(&id(&lb));
    assert_eq!(
        lb["listeners"][0].as_object().unwrap().len(),
        1,
        "only the answer to the create is whole"
    );
}

/// One mistake anywhere, and nothing is there.
#[test]
fn all_or_nothing() {
    let nameless = set(
        listener(80),
        json!({"default_pool": {"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}}),
    );
    let twin = set(listener(81), json!({"default_pool": listener(80)["default_pool"].clone()}));
    let dangling = set(listener(80), json!({"default_pool": {"name": "nowhere"}}));
    let half = set(listener(80), json!({"default_pool": {"name": "p", "protocol": "TCP"}}));
    let http = set(listener(81), json!({"protocol": "HTTP"}));
    let mut twins = listener(80);
    twins["default_pool"]["members"] = json!([member(1), member(1)]);
    let mut watched = listener(80);
    watched["default_pool"]["healthmonitor"] =
        json!({"type": "SCTP", "delay": 5, "timeout": 3, "max_retries": 1});
    let cases = [
        ("a pool without a name", json!([nameless]), 400, "Pools must be named"),
        ("two pools of a name", json!([listener(80), twin]), 400, "Pool names must be unique"),
        (
            "a name of no pool",
            json!([dangling]),
            400,
            "Pool 'nowhere' was referenced but no full definition",
        ),
        (
            "a pool without algorithm",
            json!([half]),
            400,
            "missing required attribute: lb_algorithm",
        ),
        (
            "a pool of another protocol",
            json!([listener(80), http]),
            400,
            "The pool protocol 'TCP' is invalid while",
        ),
        (
            "a port twice",
            json!([listener(80), {"protocol": "HTTP", "protocol_port": 80}]),
            409,
            "Another Listener",
        ),
        (
            "a member twice",
            json!([twins]),
            409,
            "Another member on this pool is already using ip 127.0.1.1",
        ),
        (
            "a monitor of another protocol",
            json!([watched]),
            400,
            "The SCTP type is only supported for pools",
        ),
    ];
    for (name, listeners, status, text) in cases {
        let mut cloud = Cloud::new();
        let (found, message) = refusal(cloud.post_lb(json!({"listeners": listeners})));
        assert_eq!(found, status, "{name}: {message}");
        assert!(message.contains(text), "{name}: {message}");
        assert!(is_empty(&cloud), "{name} leaves nothing behind");
    }
}

#[test]
fn quotas_hold_for_the_whole() {
    let limits = [
        ("Load Balancer", Quota { loadbalancer: Some(0), ..Quota::default() }),
        ("Listener", Quota { listener: Some(0), ..Quota::default() }),
        ("Pool", Quota { pool: Some(0), ..Quota::default() }),
        ("Member", Quota { member: Some(1), ..Quota::default() }),
    ];
    for (resource, quota) in limits {
        let mut cloud = Cloud::new();
        cloud.settings(|settings| settings.default_quota = quota);
        let text = format!("Quota has been met for resources: {resource}");
        assert_eq!(refusal(cloud.post_lb(json!({"listeners": [listener(80)]}))), (403, text));
        assert!(is_empty(&cloud));
    }
    let mut cloud = Cloud::new();
    let web = cloud.web();
    cloud.settings(|settings| settings.default_quota.member = Some(2));
    let text = "Quota has been met for resources: Member".to_owned();
    assert_eq!(refusal(cloud.post_member(&web.pool, member(3))), (403, text.clone()));
    assert_eq!(refusal(cloud.batch(&web.pool, json!([member(1), member(3)]), true)), (403, text));
    cloud
        .batch(&web.pool, json!([member(1), member(3)]), false)
        .expect("one comes, one goes");
}
