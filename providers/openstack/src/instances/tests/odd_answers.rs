//! What Nova and Neutron answer is not as recorded in one field.

use serde_json::{Value, json};

use super::*;
use crate::test_fixture::odd_variants;

/// Returns an answer that was recorded from Nova itself.
fn recorded(request: &str) -> Value {
    let text = include_str!("../../../tests/fixtures/openstack-2026.1/nova.json");
    serde_json::from_str::<Value>(text).unwrap()[request].clone()
}

#[tokio::test(start_paused = true)]
async fn a_server_of_which_anything_is_odd_is_never_missing() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 5).await;
    let recorded = recorded("GET /servers/detail")["servers"][0].clone();
    let row = |server: &Server| {
        let mut row = recorded.clone();
        row["id"] = server.id.as_str().into();
        row["name"] = server.name.as_str().into();
        row
    };
    let answer = |body: Value| FaultKind::Body { code: 200, text: body.to_string() };
    let mut doubts = 0;
    for (what, odd) in odd_variants(&row(&made[0])) {
        // With another name or ID it is another server.
        if what == "name \"SOMETHING_NEW\"" || what == "id \"SOMETHING_NEW\"" {
            continue;
        }
        let others = made[1..].iter().map(row);
        let rows: Vec<Value> = [odd.clone()].into_iter().chain(others).collect();
        stage.fail("/compute/v2.1/servers/detail", answer(json!({ "servers": rows })));
        stage.fail(
            &format!("/compute/v2.1/servers/{}", made[0].id),
            answer(json!({ "server": odd })),
        );
        // Alone, and in a list with the others.
        for count in [1, 5] {
            let by_name =
                power(&instances(&stage), made[..count].iter().map(Server::new_node)).await;
            let by_id = power(&instances(&stage), made[..count].iter().map(Server::node)).await;
            for (answers, is_by_name) in [(by_name, true), (by_id, false)] {
                let is_found = |answer: &_| matches!(answer, Ok(InstanceStatus::Found { .. }));
                // A server of which not even the name can be read may have any name.
                let may_be_anyone = is_by_name && what == "name [7]";
                let others = &mut answers[1..].iter();
                assert!(
                    others.all(|other| is_found(other) || may_be_anyone && other.is_err()),
                    "{what}: {answers:?}"
                );
                let is_doubt = answers[0].is_err();
                // Without its addresses a server would be one that has none.
                assert!(is_doubt || !what.starts_with("addresses"), "{what}: {answers:?}");
                assert!(is_doubt || is_found(&answers[0]), "{what}: {answers:?}");
                doubts += usize::from(is_doubt);
            }
        }
        stage.clear_faults();
    }
    assert!(doubts > 10, "{doubts}");
}

#[tokio::test(start_paused = true)]
async fn a_port_of_which_anything_is_odd_costs_no_address() {
    let stage = ProjectFixture::new().await;
    let server = stage.server("node-0").await;
    let text = include_str!("../../../tests/fixtures/openstack-2026.1/neutron.json");
    let neutron: Value = serde_json::from_str(text).unwrap();
    let mut row = neutron["GET /v2.0/ports"]["ports"][0].clone();
    row["device_id"] = server.id.as_str().into();
    row["device_owner"] = "compute:nova".into();
    row["fixed_ips"] = json!([{"ip_address": server.ip, "subnet_id": "s"}]);
    row["status"] = "ACTIVE".into();
    // Nova itself shows no address, as it does for a moment after a port was added.
    let mut nova = recorded("GET /servers/detail")["servers"][0].clone();
    nova["id"] = server.id.as_str().into();
    nova["name"] = server.name.as_str().into();
    nova["addresses"] = json!({});
    let describe = async |port: &Value| {
        let answers = [
            ("/compute/v2.1/servers/detail", json!({ "servers": [nova] })),
            ("/compute/v2.1/servers/", json!({ "server": nova })),
            ("/network/v2.0/ports", json!({ "ports": [port] })),
        ];
        for (path, body) in answers {
            stage.fail(path, FaultKind::Body { code: 200, text: body.to_string() });
        }
        let queries = ask([server.node()], MetadataScope::All);
        let mut answers = instances(&stage).describe(&op(), &queries).await.unwrap();
        stage.clear_faults();
        answers.remove(0)
    };
    let expected = meta(&describe(&row).await).addresses.clone();
    let mut kinds = expected.iter().map(|address| address.kind);
    assert!(kinds.any(|kind| kind == AddressType::InternalIp), "{expected:?}");
    for (what, odd) in odd_variants(&row) {
        // It is another server's, or is not active.
        if what == "device_id \"SOMETHING_NEW\"" || what == "status \"SOMETHING_NEW\"" {
            continue;
        }
        let answer = describe(&odd).await;
        if answer.is_ok() {
            assert_eq!(meta(&answer).addresses, expected, "{what}");
        }
    }
}

/// Two trunks, each with a sub-port, and a server without one.
#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_read_costs_its_server_alone() {
    let stage = ProjectFixture::new().await;
    let mut made = servers(&stage, 3).await;
    made.sort_by(|a, b| a.name.cmp(&b.name));
    let row = |id: &str, device: &str, sub_ports: Value| {
        json!({"id": id, "device_id": device, "status": "ACTIVE", "network_id": format!("of-{id}"),
            "fixed_ips": [{"ip_address": "10.0.9.9", "subnet_id": "s"}],
            "trunk_details": {"sub_ports": sub_ports}})
    };
    let trunk =
        |n: usize| row(&format!("p{n}"), &made[n].id, json!([{"port_id": format!("sub{n}")}]));
    let ports = [trunk(0), trunk(1), row("p2", &made[2].id, json!([]))];
    let sub_ports = [row("sub0", "", json!([])), row("sub1", "", json!([]))];
    let networks = ["of-sub0", "of-sub1"].map(|id| json!({"id": id, "name": id}));
    // Returns whether each of the servers has its addresses.
    let describe = async |ports: &[Value], sub_ports: &[Value], networks: &[Value]| {
        let body = |body: Value| FaultKind::Body { code: 200, text: body.to_string() };
        let first = Fault::new("/network/v2.0/ports", body(json!({ "ports": ports })));
        stage.cloud.cloud().faults.add(first.times(1));
        stage.fail("/network/v2.0/ports", body(json!({ "ports": sub_ports })));
        stage.fail("/network/v2.0/networks", body(json!({ "networks": networks })));
        let queries = ask(made.iter().map(Server::node), MetadataScope::All);
        let answers = instances(&stage).describe(&op(), &queries).await.unwrap();
        stage.clear_faults();
        let is_whole = |answer: &Result<InstanceStatus, CloudError>| {
            assert!(!matches!(answer, Ok(InstanceStatus::NotFound)), "{answer:?}");
            answer.is_ok()
        };
        answers.iter().map(is_whole).collect::<Vec<_>>()
    };
    assert_eq!(describe(&ports, &sub_ports, &networks).await, [true; 3]);
    let with = |rows: &[Value], at: usize, field: &str, odd: Value| {
        let mut rows = rows.to_vec();
        rows[at][field] = odd;
        rows
    };
    let odd_port = with(&ports, 1, "fixed_ips", "odd".into());
    assert_eq!(describe(&odd_port, &sub_ports, &networks).await, [true, false, true]);
    // A port that does not even show its server may be anybody's.
    let odd_port = with(&odd_port, 1, "device_id", json!([7]));
    assert_eq!(describe(&odd_port, &sub_ports, &networks).await, [false; 3]);
    let odd_sub_port = with(&sub_ports, 0, "fixed_ips", "odd".into());
    assert_eq!(describe(&ports, &odd_sub_port, &networks).await, [false, true, true]);
    // The other one is read, so it is this one.
    let odd_sub_port = with(&odd_sub_port, 0, "id", json!([7]));
    assert_eq!(describe(&ports, &odd_sub_port, &networks).await, [false, true, true]);
    let odd_network = with(&networks, 1, "name", json!([7]));
    assert_eq!(describe(&ports, &sub_ports, &odd_network).await, [true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_read_may_have_the_host_name_of_a_node() {
    let stage = ProjectFixture::new().await;
    let cases = [
        (json!("worker-a"), true),
        (json!([7]), true),
        (json!("worker-b"), false),
        (Value::Null, false),
    ];
    for (host_name, is_doubt) in cases {
        let row = json!({"id": "s", "name": "node-0", "OS-EXT-SRV-ATTR:hostname": host_name, "addresses": "odd"});
        let text = json!({ "servers": [row] }).to_string();
        stage.fail("/compute/v2.1/servers/detail", FaultKind::Body { code: 200, text });
        let answers = power(&instances(&stage), [named("worker-a", None)]).await;
        assert_eq!(answers[0].is_err(), is_doubt, "{host_name}: {answers:?}");
        stage.clear_faults();
    }
}
