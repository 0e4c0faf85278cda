use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::*;

/// Reads a body, and expects to write the very same.
#[track_caller]
fn round_trip<T: Serialize + DeserializeOwned + Debug>(body: &Value) -> T {
    let read: T = serde_json::from_value(body.clone()).expect("the body is readable");
    assert_eq!(&serde_json::to_value(&read).expect("writable"), body, "written as read: {read:?}");
    read
}

fn load_balancer() -> Value {
    json!({
        "id": "607226db-27ef-4d41-ae89-f2a800e9c2db", "name": "best_load_balancer", "description": "",
        "provisioning_status": "ACTIVE", "operating_status": "ONLINE", "admin_state_up": true,
        "project_id": "e3cd678b11784734bc366148aa37580e",
        "created_at": "2017-05-11T17:21:34", "updated_at": null,
        "vip_address": "203.0.113.50", "vip_port_id": "b4ca07d1-a31e-43e2-891a-7d14f419f342",
        "vip_subnet_id": "d4af86e1-0051-488c-b7a0-527f97490c9a",
        "vip_network_id": "d0d217df-3958-4fbf-a3c2-8dad2908c709",
        "vip_sg_ids": [], "additional_vips": [],
        "listeners": [{"id": "023f2e34-7806-443b-bfae-16c324569a3d"}],
        "pools": [{"id": "9aa16b2a-0867-4d1c-a3b3-1ae2c6e2a4a5"}],
        "provider": "octavia", "flavor_id": null, "vip_qos_policy_id": null,
        "tags": ["test_tag"], "availability_zone": "my_az", "vip_vnic_type": "normal",
    })
}

fn listener() -> Value {
    json!({
        "id": "023f2e34-7806-443b-bfae-16c324569a3d", "name": "super_listener", "description": "",
        "provisioning_status": "PENDING_CREATE", "operating_status": "OFFLINE", "admin_state_up": true,
        "protocol": "TERMINATED_HTTPS", "protocol_port": 443, "connection_limit": -1,
        "default_tls_container_ref": "http://198.51.100.10:9311/v1/containers/a570068c-d295-4780-91d4-3046a325db51",
        "sni_container_refs": [], "project_id": "e3cd678b11784734bc366148aa37580e", "default_pool_id": null,
        "l7policies": [], "insert_headers": {"X-Forwarded-For": "true"},
        "created_at": "2017-02-28T00:42:44", "updated_at": "2017-02-28T00:44:30",
        "loadbalancers": [{"id": "607226db-27ef-4d41-ae89-f2a800e9c2db"}],
        "timeout_client_data": 50000, "timeout_member_connect": 5000, "timeout_member_data": 50000,
        "timeout_tcp_inspect": 0, "tags": [], "client_ca_tls_container_ref": null,
        "client_authentication": "NONE", "client_crl_container_ref": null, "allowed_cidrs": null,
        "tls_ciphers": null, "tls_versions": ["TLSv1.2", "TLSv1.3"], "alpn_protocols": ["http/1.1"],
        "hsts_max_age": null, "hsts_include_subdomains": false, "hsts_preload": false,
    })
}

fn pool() -> Value {
    json!({
        "id": "4029d267-3983-4224-a3d0-afb3fe16a2cd", "name": "super-pool", "description": "",
        "provisioning_status": "ACTIVE", "operating_status": "DEGRADED", "admin_state_up": true,
        "protocol": "PROXYV2", "lb_algorithm": "ROUND_ROBIN", "session_persistence": null,
        "project_id": "e3cd678b11784734bc366148aa37580e",
        "loadbalancers": [{"id": "607226db-27ef-4d41-ae89-f2a800e9c2db"}],
        "listeners": [{"id": "023f2e34-7806-443b-bfae-16c324569a3d"}],
        "created_at": "2017-05-10T18:14:44", "updated_at": null, "healthmonitor_id": null,
        "members": [{"id": "957a1ace-1bd2-449b-8455-820b6e4b63f3"}], "tags": [],
        "tls_container_ref": null, "ca_tls_container_ref": null, "crl_container_ref": null, "tls_enabled": false,
        "tls_ciphers": null, "tls_versions": [], "alpn_protocols": [],
    })
}

fn member() -> Value {
    json!({
        "id": "957a1ace-1bd2-449b-8455-820b6e4b63f3", "name": "web-server-1", "operating_status": "NO_MONITOR",
        "provisioning_status": "ACTIVE", "admin_state_up": true, "address": "192.0.2.16", "protocol_port": 80,
        "weight": 20, "backup": false, "subnet_id": "bbb35f84-35cc-4b2f-84c2-a6a29bba68aa",
        "project_id": "e3cd678b11784734bc366148aa37580e", "created_at": "2017-05-11T17:21:34", "updated_at": null,
        "monitor_address": null, "monitor_port": 8080, "tags": [], "vnic_type": "normal",
    })
}

fn monitor() -> Value {
    json!({
        "id": "8ed3c5ac-6efa-420c-bedb-99ba14e58db5", "name": "super-pool-health-monitor", "type": "HTTP",
        "delay": 10, "timeout": 5, "max_retries": 1, "max_retries_down": 3, "http_method": "GET", "url_path": "/",
        "expected_codes": "200", "admin_state_up": true, "project_id": "e3cd678b11784734bc366148aa37580e",
        "pools": [{"id": "4029d267-3983-4224-a3d0-afb3fe16a2cd"}], "provisioning_status": "ACTIVE",
        "operating_status": "ONLINE", "created_at": "2017-05-11T23:53:47", "updated_at": null, "tags": [],
        "http_version": 1.1, "domain_name": null,
    })
}

#[test]
fn answers_are_written_as_they_are_read() {
    let read: LoadBalancerBody = round_trip(&json!({"loadbalancer": load_balancer()}));
    assert_eq!(read.loadbalancer.provisioning_status, ProvisioningStatus::Active);
    assert_eq!(read.loadbalancer.listeners[0].id, "023f2e34-7806-443b-bfae-16c324569a3d");
    let read: ListenerBody = round_trip(&json!({"listener": listener()}));
    assert_eq!(read.listener.protocol, ListenerProtocol::TerminatedHttps);
    assert_eq!(read.listener.allowed_cidrs, None);
    let read: PoolBody = round_trip(&json!({"pool": pool()}));
    assert_eq!((read.pool.session_persistence, read.pool.monitor.healthmonitor_id), (None, None));
    let read: MemberBody = round_trip(&json!({"member": member()}));
    assert_eq!((read.member.monitor_address, read.member.monitor_port), (None, Some(8080)));
    let read: HealthMonitorBody = round_trip(&json!({"healthmonitor": monitor()}));
    assert_eq!(read.healthmonitor.kind, MonitorType::Http);
}

#[test]
fn a_page_has_links_and_the_last_one_none() {
    let links = json!([{"href": "http://127.0.0.1/load-balancer/v2.0/lbaas/members?limit=1&marker=x", "rel": "next"}]);
    let page: Members = round_trip(&json!({"members": [member()], "members_links": links}));
    assert_eq!(page.members_links[0].rel, "next");
    let page: LoadBalancers =
        round_trip(&json!({"loadbalancers": [load_balancer()], "loadbalancers_links": []}));
    assert!(page.loadbalancers_links.is_empty());
    let _: Listeners = round_trip(&json!({"listeners": [listener()], "listeners_links": []}));
    let _: Pools = round_trip(&json!({"pools": [pool()], "pools_links": []}));
    let _: HealthMonitors =
        round_trip(&json!({"healthmonitors": [monitor()], "healthmonitors_links": []}));
    let page: Pools = serde_json::from_value(json!({"pools": []})).unwrap();
    assert!(page.pools_links.is_empty(), "links may be missing");
}

/// The body that creates a load balancer with everything below it, as the provider sends it.
#[test]
fn a_load_balancer_is_created_whole() {
    let body = json!({"loadbalancer": {
        "name": "kube_service_c_default_web", "description": "Kubernetes external service default/web from cluster c",
        "provider": "amphora", "tags": ["kube_service_c_default_web"],
        "vip_subnet_id": "d4af86e1-0051-488c-b7a0-527f97490c9a",
        "listeners": [{
            "name": "listener_0_kube_service_c_default_web", "protocol": "TCP", "protocol_port": 80,
            "connection_limit": -1, "allowed_cidrs": ["10.0.0.0/8"], "timeout_client_data": 50000,
            "default_pool": {
                "name": "pool_0_kube_service_c_default_web", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
                "session_persistence": {
                    "type": "SOURCE_IP", "cookie_name": null,
                    "persistence_timeout": null, "persistence_granularity": null,
                },
                "members": [{"name": "node-1", "address": "10.0.0.11", "protocol_port": 30080, "monitor_port": 32000}],
                "healthmonitor": {
                    "name": "monitor_0_kube_service_c_default_web", "type": "UDP-CONNECT", "delay": 5, "timeout": 3,
                    "max_retries": 1, "max_retries_down": 3,
                },
            },
        }],
    }});
    let read: LoadBalancerBody<LoadBalancerCreate> = round_trip(&body);
    let pool = read.loadbalancer.listeners[0]
        .default_pool
        .as_ref()
        .unwrap();
    assert_eq!(pool.session_persistence, Some(SessionPersistence::SOURCE_IP));
    assert_eq!(pool.members[0].monitor_port, Some(32000));
}

/// Null is the same as nothing in a create.
#[test]
fn nulls_of_a_create_are_nothing() {
    let read: LoadBalancerCreate = serde_json::from_value(json!({
        "name": null, "vip_subnet_id": "s", "vip_address": null, "listeners": null, "pools": null, "tags": null,
    }))
    .unwrap();
    assert_eq!(read, LoadBalancerCreate { vip_subnet_id: Some("s".into()), ..Default::default() });
}

#[test]
fn the_answer_to_a_create_is_the_whole_tree() {
    let (mut one, mut below, mut pooled, mut watched) =
        (load_balancer(), listener(), pool(), monitor());
    for (child, gone) in
        [(&mut below, "loadbalancers"), (&mut pooled, "loadbalancers"), (&mut watched, "pools")]
    {
        child.as_object_mut().unwrap().remove(gone);
    }
    let fields = pooled.as_object_mut().unwrap();
    fields.remove("healthmonitor_id");
    fields.insert("healthmonitor".to_owned(), watched);
    fields.insert("members".to_owned(), json!([member()]));
    one["listeners"] = json!([below]);
    one["pools"] = json!([pooled]);
    let body = json!({"loadbalancer": one});
    let read: LoadBalancerBody<LoadBalancerTree> = round_trip(&body);
    let pool = &read.loadbalancer.pools[0];
    assert_eq!(pool.members[0].address, "192.0.2.16");
    assert_eq!(pool.monitor.healthmonitor.as_ref().unwrap().delay, 10);

    let read: LoadBalancerBody = serde_json::from_value(body).unwrap();
    assert_eq!(
        read.loadbalancer.pools,
        [IdRef::from("4029d267-3983-4224-a3d0-afb3fe16a2cd")],
        "or by references"
    );
}

#[test]
fn an_update_says_null_where_it_means_it() {
    let update = ListenerUpdate {
        allowed_cidrs: Patch::Clear,
        connection_limit: 5.into(),
        ..Default::default()
    };
    let body = json!({"listener": {"allowed_cidrs": null, "connection_limit": 5}});
    assert_eq!(serde_json::to_value(ListenerBody { listener: update.clone() }).unwrap(), body);
    assert_eq!(round_trip::<ListenerBody<ListenerUpdate>>(&body).listener, update);

    let update: PoolUpdate = round_trip(&json!({"session_persistence": null}));
    assert_eq!(update, PoolUpdate { session_persistence: Patch::Clear, ..Default::default() });
    let update: LoadBalancerUpdate = round_trip(&json!({"tags": [""]}));
    assert_eq!(update.tags.value(), Some(&vec![String::new()]));
    let update: MemberUpdate = round_trip(&json!({"weight": 0, "monitor_port": null}));
    assert_eq!((update.weight, update.monitor_port), (Patch::Set(0), Patch::Clear));
    let _: HealthMonitorUpdate = round_trip(&json!({"delay": 7, "http_version": 1.0}));
    assert_eq!(round_trip::<ListenerUpdate>(&json!({})), ListenerUpdate::default());
}

#[test]
fn children_are_created_alone() {
    let _: ListenerBody<ListenerCreate> = round_trip(&json!({"listener": {
        "loadbalancer_id": "a", "protocol": "UDP", "protocol_port": 53, "default_pool_id": "b",
    }}));
    let _: PoolBody<PoolCreate> = round_trip(&json!({"pool": {
        "listener_id": "a", "protocol": "SCTP", "lb_algorithm": "SOURCE_IP_PORT",
    }}));
    let _: MemberBody<MemberCreate> = round_trip(&json!({"member": {
        "address": "2001:db8::5", "protocol_port": 443, "weight": 256, "subnet_id": "c",
    }}));
    let _: HealthMonitorBody<HealthMonitorCreate> = round_trip(&json!({"healthmonitor": {
        "pool_id": "b", "type": "HTTP", "delay": 5, "timeout": 3, "max_retries": 1, "url_path": "/healthz",
        "http_method": "GET", "expected_codes": "200",
    }}));
    let batch: MemberBatch = round_trip(&json!({"members": []}));
    assert!(batch.members.is_empty());
}

#[test]
fn the_status_tree_tells_of_every_member() {
    let body = json!({"statuses": {"loadbalancer": {
        "id": "a", "name": "lb", "operating_status": "DEGRADED", "provisioning_status": "ACTIVE",
        "listeners": [{
            "id": "b", "name": "", "operating_status": "DEGRADED", "provisioning_status": "ACTIVE",
            "pools": [{
                "id": "c", "name": "", "provisioning_status": "ACTIVE", "operating_status": "DEGRADED",
                "health_monitor": {
                    "id": "d", "name": "", "type": "TLS-HELLO", "provisioning_status": "ACTIVE",
                    "operating_status": "ONLINE",
                },
                "members": [
                    {
                        "id": "e", "name": "n1", "operating_status": "ERROR", "provisioning_status": "ACTIVE",
                        "address": "10.0.0.5", "protocol_port": 30080,
                    },
                    {
                        "id": "f", "name": "n2", "operating_status": "DRAINING", "provisioning_status": "ACTIVE",
                        "address": "10.0.0.6", "protocol_port": 30080,
                    },
                ],
            }],
        }],
    }}});
    let read: StatusTree = round_trip(&body);
    let members = &read.statuses.loadbalancer.listeners[0].pools[0].members;
    assert_eq!(members[0].operating_status, OperatingStatus::Error);
    assert_eq!(members[1].operating_status, OperatingStatus::Draining);
    let _: StatsBody = round_trip(&json!({"stats": {
        "active_connections": 0, "bytes_in": 9532, "bytes_out": 22033, "request_errors": 46, "total_connections": 3,
    }}));
}

#[test]
fn the_smaller_resources_are_read_and_written() {
    let _: Providers = round_trip(&json!({
        "providers": [{"name": "amphora", "description": "The Octavia Amphora driver."}], "providers_links": [],
    }));
    let _: Flavors = round_trip(&json!({"flavors_links": [], "flavors": [{
        "id": "8d4bc2c4-1ac7-4e7d-9d5e-0b4a3b1f6b8e", "name": "small", "description": "", "enabled": true,
        "flavor_profile_id": "7e1b3a3e-8f0f-4d26-a0a5-4d1b3f3ee1de",
    }]}));
    let _: FlavorProfileBody = round_trip(&json!({"flavorprofile": {
        "id": "7e1b3a3e-8f0f-4d26-a0a5-4d1b3f3ee1de", "name": "single", "provider_name": "amphora",
        "flavor_data": "{\"loadbalancer_topology\": \"SINGLE\"}",
    }}));
    let _: AvailabilityZones =
        round_trip(&json!({"availability_zones_links": [], "availability_zones": [{
            "name": "az1", "description": "", "enabled": true, "availability_zone_profile_id": "p",
        }]}));
    let quota: QuotaBody = round_trip(&json!({"quota": {
        "loadbalancer": 10, "load_balancer": 10, "listener": -1, "member": 50, "pool": null, "healthmonitor": -1,
        "health_monitor": -1, "l7policy": -1, "l7rule": -1,
    }}));
    assert_eq!((quota.quota.loadbalancer, quota.quota.pool), (Some(10), None));
    let update: QuotaBody<QuotaUpdate> =
        serde_json::from_value(json!({"quota": {"load_balancer": 3, "pool": null}})).unwrap();
    assert_eq!((update.quota.loadbalancer, update.quota.pool), (Patch::Set(3), Patch::Clear));
    let _: Fault =
        round_trip(&json!({"faultcode": "Client", "faultstring": "no", "debuginfo": null}));
}

#[test]
fn the_newest_version_is_the_last_one() {
    let root: Versions = round_trip(&json!({"versions": [
        {
            "id": "v2.0", "status": "SUPPORTED", "updated": "2016-12-11T00:00:00Z",
            "links": [{"href": "http://127.0.0.1:9876/v2", "rel": "self"}],
        },
        {
            "id": "v2.26", "status": "CURRENT", "updated": "2022-08-29T00:00:00Z",
            "links": [{"href": "http://127.0.0.1:9876/v2", "rel": "self"}],
        },
    ]}));
    assert_eq!(root.newest(), Some((2, 26)));
    assert_eq!(Versions::default().newest(), None);
}

/// An old release leaves out what it does not know; a newer one says more, and uses words that are
/// new.
#[test]
fn old_and_new_releases_are_read() {
    let read: LoadBalancer = serde_json::from_value(json!({
        "id": "a", "name": null, "description": null, "provisioning_status": "PENDING_FAILOVER",
        "operating_status": "ONLINE", "tags": null, "vip_sg_ids": null, "surprise": {"new": true},
    }))
    .unwrap();
    assert_eq!(read.provisioning_status.as_str(), "PENDING_FAILOVER");
    assert!(!read.provisioning_status.is_pending());
    assert_eq!((read.name.as_str(), read.vip_address, read.tags.len()), ("", None, 0));

    let read: Listener = serde_json::from_value(json!({
        "id": "b", "provisioning_status": "ACTIVE", "operating_status": "ONLINE", "protocol": "QUIC",
        "protocol_port": 1, "insert_headers": null,
    }))
    .unwrap();
    assert_eq!(
        (read.connection_limit, read.timeout_client_data, read.protocol.as_str()),
        (-1, None, "QUIC")
    );

    let read: Pool = serde_json::from_value(json!({
        "id": "c", "provisioning_status": "ACTIVE", "operating_status": "ONLINE", "protocol": "TCP",
        "lb_algorithm": "ROUND_ROBIN",
    }))
    .unwrap();
    assert_eq!(read.monitor.healthmonitor_id, None);
}

#[test]
fn every_word_is_read_back() {
    for word in ["ACTIVE", "DELETED", "ERROR", "PENDING_CREATE", "PENDING_UPDATE", "PENDING_DELETE"]
    {
        let status = ProvisioningStatus::from(word);
        assert!(ProvisioningStatus::ALL.contains(&status), "{word}");
        assert_eq!(status.to_string(), word);
        assert_eq!(status.is_pending(), word.starts_with("PENDING"));
    }
    for monitor in MonitorType::ALL {
        assert_eq!(&MonitorType::from(monitor.as_str()), monitor);
    }
}
