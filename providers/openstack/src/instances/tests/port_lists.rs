//! Ports of many servers, and of projects with many ports.

use serde_json::json;

use super::*;

/// Returns the number of servers in each query for ports.
fn device_counts(stage: &ProjectFixture) -> Vec<usize> {
    let entries = stage.cloud.cloud().journal.entries();
    entries
        .iter()
        .filter(|entry| entry.path.ends_with("/ports"))
        .map(|entry| entry.query.matches("device_id=").count())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_list_of_ports_that_was_long_is_not_requested_again() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 60).await;
    let rows: Vec<_> = (0..1001)
        .map(|n| {
            json!({"id": format!("p{n}"), "device_id": "other", "status": "ACTIVE",
                "network_id": "n", "fixed_ips": []})
        })
        .collect();
    let text = json!({ "ports": rows }).to_string();
    let long = Fault::new("/network/v2.0/ports", FaultKind::Body { code: 200, text });
    stage.cloud.cloud().faults.add(long.times(1));
    let instances = instances(&stage);
    for counts in [&[0][..], &[50, 10]] {
        stage.reset_requests();
        initialise(&instances, made.iter().map(Server::new_node)).await;
        assert_eq!(device_counts(&stage), counts);
    }
}

/// With their credentials a list has the ports of every project.
#[tokio::test(start_paused = true)]
async fn administrators_list_no_ports_of_other_projects() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 60).await;
    for (user, counts) in [("demo", &[0][..]), ("admin", &[50, 10])] {
        let mut settings = in_process::settings(&stage.cloud);
        settings.cloud.auth = in_process::auth(&stage.cloud, user);
        let client = Client::connect(&settings, InProcess::new(&stage.cloud))
            .await
            .unwrap()
            .with_limits(None);
        stage.reset_requests();
        let ages = made
            .iter()
            .map(|server| (server.id.as_str().into(), Duration::ZERO))
            .collect();
        ServerCache::new(client)
            .find_ports(&op(), &ages)
            .await
            .unwrap();
        assert_eq!(device_counts(&stage), counts, "{user}");
    }
}

/// Web servers limit the length of URLs.
#[tokio::test(start_paused = true)]
async fn ports_of_many_servers_are_requested_some_at_a_time() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 120).await;
    let instances = instances(&stage);
    // The list of all ports is too slow, at every attempt.
    let slow = FaultKind::Body { code: 504, text: "<html>".into() };
    let slow = Fault::new("/network/v2.0/ports", slow).times(4);
    stage.cloud.cloud().faults.add(slow);
    stage.reset_requests();
    let answers = initialise(&instances, made.iter().map(Server::new_node)).await;
    assert!(
        answers
            .iter()
            .all(|answer| !meta(answer).addresses.is_empty())
    );
    let entries = stage.cloud.cloud().journal.entries();
    let ports = entries
        .iter()
        .filter(|entry| entry.path.ends_with("/ports"));
    let counts: Vec<_> = ports
        .filter(|entry| entry.status == 200)
        .map(|entry| entry.query.matches("device_id=").count())
        .collect();
    assert_eq!(counts, [50, 50, 20]);
    // It is left alone for a while.
    stage.reset_requests();
    initialise(&instances, made.iter().map(Server::new_node)).await;
    assert_eq!(device_counts(&stage), [50, 50, 20]);
}

/// Web servers limit the length of URLs.
#[tokio::test(start_paused = true)]
async fn sub_ports_are_requested_some_at_a_time() {
    let stage = ProjectFixture::new().await;
    let server = stage.server("node-0").await;
    let sub_ports: Vec<_> = (0..60)
        .map(|n| json!({ "port_id": format!("sub{n}") }))
        .collect();
    let trunk = json!({"id": "p", "device_id": server.id, "status": "ACTIVE", "network_id": "n", "fixed_ips": [],
        "trunk_details": {"sub_ports": sub_ports}});
    let text = json!({ "ports": [trunk] }).to_string();
    let first = Fault::new("/network/v2.0/ports", FaultKind::Body { code: 200, text });
    stage.cloud.cloud().faults.add(first.times(1));
    stage.reset_requests();
    let queries = ask([server.node()], MetadataScope::All);
    let _ = instances(&stage).describe(&op(), &queries).await.unwrap();
    let entries = stage.cloud.cloud().journal.entries();
    let counts: Vec<_> = entries
        .iter()
        .filter(|entry| entry.path.ends_with("/ports"))
        .map(|entry| {
            entry
                .query
                .split('&')
                .filter(|part| part.starts_with("id="))
                .count()
        })
        .collect();
    assert_eq!(counts, [0, 50, 10]);
}
