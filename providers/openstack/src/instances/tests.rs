//! Nodes on the local cloud, in process and in virtual time.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use ccm_core::{
    k8s::AddressType,
    provider::{ErrorKind, PowerState},
};
use http::{Request, Response};
use openstack_local::{
    nova::servers,
    server::{Fault, FaultKind, Settings as CloudSettings},
};

mod odd_answers;
mod port_lists;

use super::*;
use crate::{
    client::{
        Client, Transport, TransportError,
        in_process::{self, InProcess},
    },
    test_fixture::{ProjectFixture, Server, op},
};

fn instances(stage: &ProjectFixture) -> NovaInstances {
    let settings = InstanceSettings { region: "RegionOne".into(), ..InstanceSettings::default() };
    NovaInstances::new(settings, ServerCache::new(stage.client.clone()))
}

fn ask(nodes: impl IntoIterator<Item = Arc<NodeView>>, need: MetadataScope) -> Vec<InstanceQuery> {
    nodes
        .into_iter()
        .map(|node| InstanceQuery { node, scope: need, max_age: Duration::ZERO })
        .collect()
}

type Answers = Vec<Result<InstanceStatus, CloudError>>;

async fn power(
    instances: &NovaInstances,
    nodes: impl IntoIterator<Item = Arc<NodeView>>,
) -> Answers {
    instances
        .describe(&op(), &ask(nodes, MetadataScope::PowerState))
        .await
        .unwrap()
}

async fn servers(stage: &ProjectFixture, count: usize) -> Vec<Server> {
    let mut made = Vec::with_capacity(count);
    for n in 0..count {
        made.push(stage.server(&format!("node-{n}")).await);
    }
    made
}

fn meta(answer: &Result<InstanceStatus, CloudError>) -> &InstanceMetadata {
    match answer {
        Ok(InstanceStatus::Found { meta, .. }) => meta,
        other => panic!("not found: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_is_initialised_from_its_server() {
    let stage = ProjectFixture::new().await;
    let server = stage.server("node-a").await;
    let answers = instances(&stage)
        .describe(&op(), &ask([server.new_node()], MetadataScope::All))
        .await
        .unwrap();
    let meta = meta(&answers[0]);
    assert_eq!(meta.provider_id.as_deref(), Some(&*format!("openstack:///{}", server.id)));
    assert_eq!(meta.instance_type.as_deref(), Some("m1.small"));
    assert_eq!((meta.zone.as_deref(), meta.region.as_deref()), (Some("nova"), Some("RegionOne")));
    let internal = (AddressType::InternalIp, server.ip.to_string());
    assert_eq!(
        meta.addresses
            .iter()
            .map(|a| (a.kind, a.address.to_string()))
            .collect::<Vec<_>>(),
        [internal]
    );
    assert!(meta.additional_labels.contains_key(HOST_ID_LABEL), "{meta:?}");
}

#[tokio::test(start_paused = true)]
async fn regional_ids_name_the_region() {
    let stage = ProjectFixture::new().await;
    let server = stage.server("node-a").await;
    let settings = InstanceSettings {
        region: "RegionOne".into(),
        regional_ids: true,
        ..InstanceSettings::default()
    };
    let instances = NovaInstances::new(settings, ServerCache::new(stage.client.clone()));
    let answers = instances
        .describe(&op(), &ask([server.new_node()], MetadataScope::All))
        .await
        .unwrap();
    let id = meta(&answers[0]).provider_id.clone().unwrap();
    assert_eq!(*id, format!("openstack://RegionOne/{}", server.id));
    let node = Arc::new(NodeView { provider_id: Some((*id).into()), ..NodeView::named("node-a") });
    assert!(matches!(power(&instances, [node]).await[..], [Ok(InstanceStatus::Found { .. })]));
}

#[tokio::test(start_paused = true)]
async fn many_nodes_take_one_list_of_servers_and_one_of_ports() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 120).await;
    let instances = instances(&stage);
    stage.reset_requests();
    let queries = ask(made.iter().map(Server::new_node), MetadataScope::All);
    let (first, second) = queries.split_at(60);
    // Two batches at once, as the framework asks.
    let (op, other) = (op(), op());
    let (a, b) = tokio::join!(instances.describe(&op, first), instances.describe(&other, second));
    assert!(
        a.unwrap()
            .iter()
            .chain(&b.unwrap())
            .all(|answer| !meta(answer).addresses.is_empty())
    );
    let requests = stage.requests();
    let count = |end: &str| {
        requests
            .iter()
            .filter(|request| request.ends_with(end))
            .count()
    };
    assert!(count("/servers/detail") <= 2, "{requests:?}");
    assert!(count("/ports") <= 2, "{requests:?}");
    assert_eq!(requests.len(), count("/servers/detail") + count("/ports"), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn every_page_of_a_list_is_read() {
    let stage =
        ProjectFixture::with(CloudSettings { page_size: Some(7), ..CloudSettings::default() })
            .await;
    let made = servers(&stage, 30).await;
    let answers = power(&instances(&stage), made.iter().map(Server::node)).await;
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Ok(InstanceStatus::Found { .. }))),
        "{answers:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_is_asked_for_by_its_id_before_its_node_counts_as_gone() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    stage.delete(&made[2]).await;
    let instances = instances(&stage);
    stage.reset_requests();
    let answers = power(&instances, made.iter().map(Server::node)).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(matches!(answer, Ok(InstanceStatus::NotFound)), n == 2, "{n}: {answer:?}");
    }
    let gets = [format!("GET /compute/v2.1/servers/{}", made[2].id)];
    let single: Vec<_> = stage
        .requests()
        .into_iter()
        .filter(|request| !request.ends_with("/detail"))
        .collect();
    assert_eq!(single, gets);
}

// 8.13: missing by name is not found.
#[tokio::test(start_paused = true)]
async fn a_node_without_provider_id_is_gone_when_no_server_has_its_name() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    let instances = instances(&stage);
    let missing = Arc::new(NodeView::named("node-x"));
    // Alone by the filter of names, and among others by the list.
    assert!(matches!(
        power(&instances, [missing.clone()]).await[..],
        [Ok(InstanceStatus::NotFound)]
    ));
    let nodes = made.iter().map(Server::new_node).chain([missing]);
    let answers = power(&instances, nodes).await;
    assert!(
        answers[..6]
            .iter()
            .all(|answer| matches!(answer, Ok(InstanceStatus::Found { .. }))),
        "{answers:?}"
    );
    assert!(matches!(answers[6], Ok(InstanceStatus::NotFound)), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn two_servers_of_one_name_are_neither() {
    let stage = ProjectFixture::new().await;
    let first = stage.server("twin").await;
    stage.server("twin").await;
    let answers = power(&instances(&stage), [first.new_node()]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert!(error.to_string().contains(&first.id), "{error}");
}

// 8.13: a node of another region is never deleted.
#[tokio::test(start_paused = true)]
async fn a_node_of_another_region_is_an_error_and_no_request() {
    let stage = ProjectFixture::new().await;
    let instances = instances(&stage);
    stage.reset_requests();
    let node = NodeView {
        provider_id: Some("openstack://Elsewhere/abc".into()),
        ..NodeView::named("a")
    };
    let answers = power(&instances, [Arc::new(node)]).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(stage.requests(), Vec::<String>::new());
}

// 8.13: whatever the status, a server that Nova shows exists.
#[tokio::test(start_paused = true)]
async fn every_status_exists_one_is_stopped_and_one_runs() {
    let stage = ProjectFixture::new().await;
    let server = stage.server("a").await;
    let instances = instances(&stage);
    for (status, expected) in [
        ("ACTIVE", PowerState::Running),
        ("ERROR", PowerState::Transitional),
        ("SOFT_DELETED", PowerState::Transitional),
        ("SUSPENDED", PowerState::Transitional),
        ("SHELVED_OFFLOADED", PowerState::Transitional),
        ("PAUSED", PowerState::Transitional),
        ("SHUTOFF", PowerState::Stopped),
    ] {
        stage.set_status(&server, status).await;
        match &power(&instances, [server.node()]).await[0] {
            Ok(InstanceStatus::Found { power_state, .. }) => {
                assert_eq!(*power_state, expected, "{status}");
            }
            other => panic!("{status}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_does_not_answer_hides_servers_and_proves_nothing() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    let id = made[0].id.clone();
    stage
        .change_as_admin(move |state, _| servers::set_cell_down(state, &id, true))
        .await;
    let instances = instances(&stage);
    // By list, by ID alone, by name among others, by name alone.
    let by_list = power(&instances, made.iter().map(Server::node)).await;
    let alone = power(&instances, [made[0].node()]).await;
    let by_name = power(&instances, made.iter().map(Server::new_node)).await;
    let name_alone = power(&instances, [made[0].new_node()]).await;
    for (how, answers) in
        [("list", by_list), ("ID", alone), ("names", by_name), ("name", name_alone)]
    {
        assert!(answers[0].is_err(), "by {how}: {:?}", answers[0]);
        assert!(
            answers[1..]
                .iter()
                .all(|answer| matches!(answer, Ok(InstanceStatus::Found { .. }))),
            "by {how}: {answers:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_read_is_not_missing() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 2).await;
    let answer = |rows: serde_json::Value| FaultKind::Body { code: 200, text: rows.to_string() };
    // The row of the first server says nothing that can be read but its name.
    let odd = |name: &str| serde_json::json!({"servers": [{"id": made[0].id, "name": name, "addresses": "odd"}]});
    let list = "/compute/v2.1/servers/detail";
    let instances = instances(&stage);
    stage.fail(list, answer(odd("node-0")));
    let answers = power(&instances, [made[0].new_node(), made[1].new_node()]).await;
    assert!(answers[0].is_err(), "it may be the one: {:?}", answers[0]);
    assert!(matches!(answers[1], Ok(InstanceStatus::NotFound)), "{:?}", answers[1]);
    stage.clear_faults();
    // A second server with the same name could be the Node's as well.
    let other = serde_json::json!({"id": made[1].id, "name": "node-0", "addresses": {}});
    let mut both = odd("node-0");
    both["servers"].as_array_mut().unwrap().push(other);
    stage.fail(list, answer(both));
    let answers = power(&self::instances(&stage), [made[0].new_node()]).await;
    assert!(answers[0].is_err(), "{answers:?}");
    // By its ID it is read alone.
    let answers = power(&instances, made.iter().map(Server::node)).await;
    let is_found = |answer: &_| matches!(answer, Ok(InstanceStatus::Found { .. }));
    assert!(answers.iter().all(is_found), "{answers:?}");
    stage.clear_faults();
    // Without one of its ports a server would lose addresses.
    let port = |device: &str| {
        answer(serde_json::json!({"ports": [{"id": "p", "device_id": device, "fixed_ips": "odd"}]}))
    };
    let describe = async |device: &str| {
        stage.fail("/network/v2.0/ports", port(device));
        let queries = ask([made[1].node()], MetadataScope::All);
        let answers = self::instances(&stage).describe(&op(), &queries).await;
        stage.clear_faults();
        answers.unwrap().remove(0)
    };
    assert!(describe(&made[1].id).await.is_err());
    assert!(is_found(&describe("somebody-elses").await));
}

#[tokio::test(start_paused = true)]
async fn doubt_is_an_error() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    stage.delete(&made[0]).await;
    let page = FaultKind::Body { code: 404, text: "<html>no such thing</html>".to_owned() };
    let refused = |code| FaultKind::Status { code, retry_after: None, message: None };
    let faults = [page, refused(500), refused(503), refused(403), FaultKind::Cut { after: 20 }];
    for fault in faults {
        let instances = instances(&stage);
        stage.fail("/compute/v2.1/servers", fault.clone());
        let mut answers = power(&instances, made.iter().map(Server::node)).await;
        answers.extend(power(&instances, [made[0].node()]).await);
        answers.extend(power(&instances, [made[0].new_node()]).await);
        stage.clear_faults();
        assert!(answers.iter().all(Result::is_err), "{fault:?}: {answers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_lacks_everything_is_not_believed_all_at_once() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 30).await;
    for server in &made {
        stage.delete(server).await;
    }
    let answers = power(&instances(&stage), made.iter().map(Server::node)).await;
    let gone = answers
        .iter()
        .filter(|answer| matches!(answer, Ok(InstanceStatus::NotFound)))
        .count();
    assert_eq!(gone, lookup_strategy::MAX_CONFIRMATIONS);
    assert!(
        answers
            .iter()
            .all(|answer| answer.is_err() || matches!(answer, Ok(InstanceStatus::NotFound))),
        "{answers:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_used_again_while_it_is_young_enough() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    let instances = instances(&stage);
    let mut queries = ask(made.iter().map(Server::node), MetadataScope::Addresses);
    instances.describe(&op(), &queries).await.unwrap();
    stage.reset_requests();
    for query in &mut queries {
        query.max_age = Duration::from_secs(60);
    }
    tokio::time::advance(Duration::from_secs(59)).await;
    instances.describe(&op(), &queries).await.unwrap();
    assert_eq!(stage.requests(), Vec::<String>::new());
    tokio::time::advance(Duration::from_secs(2)).await;
    instances.describe(&op(), &queries).await.unwrap();
    assert_eq!(stage.requests().len(), 2, "{:?}", stage.requests());
}

// W-06
#[tokio::test(start_paused = true)]
async fn an_old_nova_is_asked_once_for_a_flavor_and_a_lost_flavor_is_its_id() {
    let stage =
        ProjectFixture::with(CloudSettings { nova_minor: 46, ..CloudSettings::default() }).await;
    let made = servers(&stage, 6).await;
    let instances = instances(&stage);
    stage.reset_requests();
    let queries = ask(made.iter().map(Server::new_node), MetadataScope::All);
    let answers = instances.describe(&op(), &queries).await.unwrap();
    assert!(
        answers
            .iter()
            .all(|answer| meta(answer).instance_type.as_deref() == Some("m1.small")),
        "{answers:?}"
    );
    let flavors = |stage: &ProjectFixture| {
        stage
            .requests()
            .iter()
            .filter(|request| request.contains("/flavors/"))
            .count()
    };
    assert_eq!(flavors(&stage), 1);
    stage
        .change_as_admin(|state, _| {
            state.nova.flavors.remove("2");
            Ok(())
        })
        .await;
    let fresh =
        NovaInstances::new(InstanceSettings::default(), ServerCache::new(stage.client.clone()));
    let answers = fresh.describe(&op(), &queries).await.unwrap();
    assert_eq!(meta(&answers[0]).instance_type.as_deref(), Some("2"));
}

/// The names of servers and nodes differ, for example where servers are called after their pool.
fn named(name: &str, system_uuid: Option<&str>) -> Arc<NodeView> {
    Arc::new(NodeView {
        system_uuid: system_uuid.map(Into::into),
        ..NodeView::named(name)
    })
}

async fn set_host_name(stage: &ProjectFixture, server: &Server, host_name: &'static str) {
    let id = server.id.clone();
    stage
        .change_as_admin(move |state, _| {
            let mut row = (**state.nova.servers.get(&id).unwrap()).clone();
            row.hostname = host_name.into();
            state.nova.servers.put(row);
            Ok(())
        })
        .await;
}

/// Returns the server that each answer is about, or `None` for a node that is not found.
fn found_ids(answers: &Answers) -> Vec<Option<String>> {
    answers
        .iter()
        .map(|answer| match answer.as_ref().unwrap() {
            InstanceStatus::Found { meta, .. } => {
                let id = meta.provider_id.as_deref().unwrap();
                Some(id.trim_start_matches("openstack:///").to_owned())
            }
            InstanceStatus::NotFound => None,
        })
        .collect()
}

async fn initialise(
    instances: &NovaInstances,
    nodes: impl IntoIterator<Item = Arc<NodeView>>,
) -> Answers {
    instances
        .describe(&op(), &ask(nodes, MetadataScope::All))
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_node_with_another_name_is_found_by_host_name_or_system_uuid() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    set_host_name(&stage, &made[0], "worker-a").await;
    set_host_name(&stage, &made[1], "worker-b").await;
    let upper = made[2].id.to_uppercase();
    let unknown = "00000000-0000-0000-0000-000000000001";
    let nodes = [
        named("worker-a", None),
        // Bare metal has a UUID of its own.
        named("worker-b", Some(unknown)),
        named("elsewhere", Some(&upper)),
        // The name goes before the UUID.
        named("node-3", Some(&made[2].id)),
        named("nobody", Some(unknown)),
        named("nobody-either", Some("Not Specified")),
    ];
    let expected: Vec<Option<String>> = [Some(0), Some(1), Some(2), Some(3), None, None]
        .map(|at: Option<usize>| at.map(|at| made[at].id.clone()))
        .into();
    // All by a list, and each alone.
    assert_eq!(found_ids(&initialise(&instances(&stage), nodes.clone()).await), expected);
    for (node, expected) in nodes.into_iter().zip(expected) {
        let alone = found_ids(&initialise(&instances(&stage), [node.clone()]).await);
        assert_eq!(alone, [expected], "{}", node.name);
    }
}

#[tokio::test(start_paused = true)]
async fn two_servers_of_one_host_name_are_neither_and_a_cell_that_is_down_proves_nothing() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    set_host_name(&stage, &made[0], "twin").await;
    set_host_name(&stage, &made[1], "twin").await;
    let errors = [initialise(&instances(&stage), [named("twin", None)]).await];
    assert!(
        errors[0][0]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains(&made[1].id),
        "{errors:?}"
    );
    let id = made[2].id.clone();
    stage
        .change_as_admin(move |state, _| servers::set_cell_down(state, &id, true))
        .await;
    let lost = named("lost", Some(&made[2].id));
    let alone = initialise(&instances(&stage), [lost.clone()]).await;
    let nodes = [lost, named("nobody", None)];
    let nodes = nodes
        .into_iter()
        .chain(made[3..].iter().map(Server::new_node));
    let listed = initialise(&instances(&stage), nodes).await;
    for answer in [&alone[0], &listed[0], &listed[1]] {
        assert!(answer.is_err(), "{answer:?}");
    }
    assert!(listed[2..].iter().all(Result::is_ok), "{listed:?}");
}

/// A page of all servers takes a cloud longer than a few servers.
#[tokio::test(start_paused = true)]
async fn a_few_nodes_in_a_large_project_are_asked_for_one_by_one() {
    let settings = CloudSettings { page_size: Some(250), ..CloudSettings::default() };
    let stage = ProjectFixture::with(settings).await;
    let names = (0..700).map(|n| format!("other-{n}")).collect();
    let made = stage.servers(names).await;
    let instances = instances(&stage);
    let few = || made[..5].iter().map(Server::node);
    for lists in [2, 0] {
        stage.reset_requests();
        let answers = power(&instances, few()).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let requests = stage.requests();
        let listed = requests
            .iter()
            .filter(|request| request.ends_with("/detail"));
        assert_eq!((listed.count(), requests.len()), (lists, lists + 5), "{requests:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_too_slow_is_left_alone_for_a_while() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    let instances = instances(&stage);
    let lists = |stage: &ProjectFixture| {
        let requests = stage.requests();
        requests
            .iter()
            .filter(|request| request.ends_with("/detail"))
            .count()
    };
    stage
        .fail("/compute/v2.1/servers/detail", FaultKind::Body { code: 504, text: "<html>".into() });
    stage.reset_requests();
    let answers = power(&instances, made.iter().map(Server::node)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(lists(&stage) > 0);
    stage.reset_requests();
    let answers = power(&instances, made.iter().map(Server::node)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(lists(&stage), 0);
    stage.clear_faults();
    tokio::time::advance(Duration::from_secs(601)).await;
    stage.reset_requests();
    power(&instances, made.iter().map(Server::node)).await;
    assert_eq!((lists(&stage), stage.requests().len()), (1, 1));
    // When nothing is answered, single requests are not tried for every server.
    stage.fail("/compute/v2.1/servers", FaultKind::Body { code: 504, text: "<html>".into() });
    stage.reset_requests();
    let answers = power(&instances, made.iter().map(Server::node)).await;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    let asked: std::collections::BTreeSet<_> = stage.requests().into_iter().collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
}

/// As where the database of some servers is broken, while lists are too slow.
#[tokio::test(start_paused = true)]
async fn servers_that_always_fail_do_not_keep_others_from_being_requested() {
    let stage = ProjectFixture::new().await;
    let mut made = servers(&stage, 7).await;
    made.sort_by(|a, b| a.id.cmp(&b.id));
    let broken = FaultKind::Status { code: 500, retry_after: None, message: None };
    stage
        .fail("/compute/v2.1/servers/detail", FaultKind::Body { code: 504, text: "<html>".into() });
    for server in &made[..3] {
        stage.fail(&format!("/compute/v2.1/servers/{}", server.id), broken.clone());
    }
    let instances = instances(&stage);
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers = power(&instances, made.iter().map(Server::node)).await;
    }
    let found = |answer: &Result<_, _>| matches!(answer, Ok(InstanceStatus::Found { .. }));
    assert!(answers[..3].iter().all(Result::is_err), "{answers:?}");
    assert!(answers[3..].iter().all(found), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_failed_once_is_requested_before_those_that_always_fail() {
    let stage = ProjectFixture::new().await;
    let mut made = servers(&stage, 4).await;
    made.sort_by(|a, b| a.id.cmp(&b.id));
    let instances = instances(&stage);
    let fail = |servers: &[Server]| {
        let slow = FaultKind::Body { code: 504, text: "<html>".into() };
        stage.fail("/compute/v2.1/servers/detail", slow);
        let broken = FaultKind::Status { code: 500, retry_after: None, message: None };
        for server in servers {
            stage.fail(&format!("/compute/v2.1/servers/{}", server.id), broken.clone());
        }
    };
    fail(&made[3..]);
    let once = power(&instances, [made[3].node()]).await;
    assert!(once[0].is_err(), "{once:?}");
    stage.clear_faults();
    fail(&made[..3]);
    let mut answers = Vec::new();
    for _ in 0..6 {
        answers = power(&instances, made.iter().map(Server::node)).await;
    }
    assert!(answers[..3].iter().all(Result::is_err), "{answers:?}");
    assert!(answers[3].is_ok(), "{answers:?}");
}

/// As in an upgrade that is taken back while a cell does not answer.
#[tokio::test(start_paused = true)]
async fn a_nova_that_returns_to_an_old_release_proves_no_absence_by_name() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 2).await;
    let nova = Arc::new(ReturningNova {
        cloud: InProcess::new(&stage.cloud),
        is_old: AtomicBool::new(false),
    });
    let client = Client::connect(&in_process::settings(&stage.cloud), nova.clone())
        .await
        .unwrap()
        .with_limits(None);
    let instances =
        || NovaInstances::new(InstanceSettings::default(), ServerCache::new(client.clone()));
    let nobody = || Arc::new(NodeView::named("nobody"));
    let answers = power(&instances(), [nobody()]).await;
    assert!(matches!(answers[0], Ok(InstanceStatus::NotFound)), "{answers:?}");
    nova.is_old.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let nodes = [nobody(), made[0].new_node(), made[1].node()];
        let answers = power(&instances(), nodes).await;
        assert!(answers[0].is_err(), "{answers:?}");
        assert!(answers[1..].iter().all(Result::is_ok), "{answers:?}");
    }
}

/// The local cloud, whose Nova returns to the release before microversion 2.69.
struct ReturningNova {
    cloud: Arc<InProcess>,
    is_old: AtomicBool,
}

#[async_trait]
impl Transport for ReturningNova {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let is_new = request
            .headers()
            .get("x-openstack-nova-api-version")
            .is_some_and(|version| version != "2.47");
        let answer = |status: u16, body: serde_json::Value| {
            let body = Bytes::from(body.to_string());
            Ok(Response::builder().status(status).body(body).unwrap())
        };
        if !self.is_old.load(Ordering::Relaxed) {
            return self.cloud.send(request).await;
        }
        if is_new {
            return answer(406, serde_json::json!({"computeFault": {"code": 406}}));
        }
        if request.uri().path() == "/compute/v2.1/" {
            let version = serde_json::json!({"id": "v2.1", "status": "CURRENT", "version": "2.68",
                "min_version": "2.1", "links": []});
            return answer(200, serde_json::json!({ "version": version }));
        }
        self.cloud.send(request).await
    }
}

/// Nothing would ever be known of it.
#[tokio::test(start_paused = true)]
async fn the_lists_of_a_nova_that_was_always_old_prove_absence() {
    let stage =
        ProjectFixture::with(CloudSettings { nova_minor: 60, ..CloudSettings::default() }).await;
    servers(&stage, 2).await;
    let answers = power(&instances(&stage), [Arc::new(NodeView::named("nobody"))]).await;
    assert!(matches!(answers[0], Ok(InstanceStatus::NotFound)), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_cell_is_down_is_not_replaced_by_one_of_its_host_name() {
    let stage = ProjectFixture::new().await;
    let made = servers(&stage, 6).await;
    set_host_name(&stage, &made[0], "lost").await;
    let id = made[2].id.clone();
    stage
        .change_as_admin(move |state, _| servers::set_cell_down(state, &id, true))
        .await;
    let lost = named("lost", Some(&made[2].id));
    let others = made[3..].iter().map(Server::new_node);
    let listed = initialise(&instances(&stage), [lost].into_iter().chain(others)).await;
    assert!(listed[0].is_err(), "{listed:?}");
    assert!(listed[1..].iter().all(Result::is_ok), "{listed:?}");
}
