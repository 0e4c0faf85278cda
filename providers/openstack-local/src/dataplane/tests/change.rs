//! Changes while traffic goes on.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::fixture::{Client, Echo, Fixture, VIP, balancer, listener, pool, soon};
use crate::dataplane::{DataPlane, ListenErrorKind, ListenerState, Options, PoolProtocol};

#[tokio::test]
async fn the_same_again_changes_nothing() {
    let a = Echo::new("a").await;
    let mut rig = Fixture::tcp(&[&a]).await;
    let mut client = rig.connect().await;
    client.name().await;
    rig.counted(|report| report.listeners[0].counters.bytes_out == 2)
        .await;
    let before = rig.report();
    let changes = rig.plane.changes();
    assert_eq!(rig.change(|_| ()).await, before);
    assert!(!changes.has_changed().unwrap(), "nothing is announced");
    rig.change_pool(|pool| pool.members[0].weight = 0).await;
    assert!(changes.has_changed().unwrap());
    assert!(client.echoes().await);
}

#[tokio::test]
async fn changes_of_one_listener_leave_the_connections_of_all() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut rig = Fixture::new(balancer([
        listener("l", pool([a.member()])),
        listener("other", pool([b.member()])),
    ]))
    .await;
    let (mut one, mut other) =
        (rig.connect().await, Client::connect(rig.address(1)).await.unwrap());
    assert_eq!(one.name().await + &other.name().await, "ab");
    let place = rig.address(0);
    rig.change(|config| {
        config.listeners[0].connection_limit = Some(100);
        config.listeners[0].timeouts.client_data = Duration::from_secs(100);
        config.listeners[0]
            .pool
            .as_mut()
            .unwrap()
            .members
            .push(b.member());
        config.listeners.push(listener("third", pool([a.member()])));
    })
    .await;
    assert_eq!(rig.address(0), place);
    assert!(one.echoes().await && other.echoes().await);
    let names = rig.names(2).await;
    assert!(names == "ab" || names == "ba", "{names}");
    assert_eq!(Client::connect(rig.address(2)).await.unwrap().name().await, "a");
}

#[tokio::test]
async fn a_member_that_leaves_gets_nothing_new_and_keeps_its_connections_for_a_time() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let drain = Duration::from_secs(1);
    let wanted = balancer([listener("l", pool([a.member(), b.member()]))]);
    let mut rig = Fixture::with(Options { drain, ..Options::default() }, wanted).await;
    let (mut one, mut two) = (rig.connected("a").await, rig.connected("b").await);
    let begin = tokio::time::Instant::now();
    rig.change_pool(|pool| drop(pool.members.remove(0))).await;
    assert_eq!(rig.names(3).await, "bbb");
    assert!(one.echoes().await, "a connection outlives its member's removal");
    one.closed().await;
    assert!(begin.elapsed() >= drain.mul_f64(0.9), "closed after {:?}", begin.elapsed());
    assert!(two.echoes().await);
}

#[tokio::test]
async fn a_member_that_comes_back_in_time_keeps_its_connections() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let drain = Duration::from_secs(1);
    let wanted = balancer([listener("l", pool([a.member(), b.member()]))]);
    let mut rig = Fixture::with(Options { drain, ..Options::default() }, wanted).await;
    let (mut one, mut two) = (rig.connected("a").await, rig.connected("b").await);
    rig.change_pool(|pool| drop(pool.members.remove(0))).await;
    rig.change_pool(|pool| pool.members = vec![a.member()])
        .await;
    // The time is over for the one that left after it and did not come back.
    two.closed().await;
    assert!(one.echoes().await);
    assert_eq!(rig.report().listeners[0].pool.as_ref().unwrap().members[0].active_connections, 1);
}

#[tokio::test]
async fn members_of_weight_zero_and_disabled_ones_keep_their_connections_and_come_back() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut rig = Fixture::tcp(&[&a, &b]).await;
    let mut one = rig.connect().await;
    assert_eq!(one.name().await, "a");
    rig.change_pool(|pool| pool.members[0].weight = 0).await;
    assert_eq!(rig.names(2).await, "bb");
    rig.change_pool(|pool| (pool.members[0].weight, pool.members[0].enabled) = (1, false))
        .await;
    assert_eq!(rig.names(2).await, "bb");
    rig.change_pool(|pool| pool.members[0].enabled = true).await;
    assert_eq!(rig.names(2).await, "ab");
    assert!(one.echoes().await);
}

#[tokio::test]
async fn another_pool_takes_the_new_connections() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut rig = Fixture::tcp(&[&a]).await;
    let mut one = rig.connect().await;
    assert_eq!(one.name().await, "a");
    rig.change_pool(|pool| {
        pool.id = "other".into();
        pool.members = vec![b.member()];
    })
    .await;
    assert_eq!(rig.names(1).await, "b");
    rig.change(|config| config.listeners[0].pool = None).await;
    rig.connect().await.closed().await;
    assert!(one.echoes().await);
}

#[tokio::test]
async fn a_removed_listener_closes_its_socket_at_once_and_its_connections_in_time() {
    let a = Echo::new("a").await;
    let drain = Duration::from_secs(1);
    let wanted =
        balancer([listener("l", pool([a.member()])), listener("other", pool([a.member()]))]);
    let mut rig = Fixture::with(Options { drain, ..Options::default() }, wanted).await;
    let mut client = rig.connect().await;
    client.name().await;
    let place = rig.address(0);
    rig.change(|config| drop(config.listeners.remove(0))).await;
    assert!(TcpStream::connect(place).await.is_err(), "nothing listens any more");
    assert!(client.echoes().await);
    client.closed().await;
    assert_eq!(rig.connect().await.name().await, "a", "the other one goes on");
}

#[tokio::test]
async fn a_port_passes_from_one_listener_to_another() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut rig = Fixture::tcp(&[&a]).await;
    let port = rig.address(0).port();
    rig.change(|config| {
        let mut other = listener("other", pool([b.member()]));
        other.port = port;
        config.listeners = vec![other];
    })
    .await;
    assert_eq!(rig.address(0).port(), port);
    assert_eq!(rig.names(1).await, "b");
}

#[tokio::test]
async fn a_pool_that_the_listener_cannot_use_stops_it() {
    let a = Echo::new("a").await;
    let mut rig = Fixture::tcp(&[&a]).await;
    let place = rig.address(0);
    let report = rig
        .change_pool(|pool| pool.protocol = PoolProtocol::Udp)
        .await;
    let ListenerState::Failed(error) = &report.listeners[0].state else {
        panic!("{report:?}")
    };
    assert_eq!(error.kind, ListenErrorKind::Unsupported);
    assert!(TcpStream::connect(place).await.is_err(), "nothing listens any more");
}

#[tokio::test]
async fn a_removed_balancer_is_gone_with_its_connections_and_its_ports_are_free() {
    let a = Echo::new("a").await;
    let rig = Fixture::tcp(&[&a]).await;
    let mut client = rig.connect().await;
    client.name().await;
    let place = rig.address(0);
    assert!(rig.plane.remove(&rig.config.id).await);
    drop(TcpListener::bind(place).await.unwrap());
    client.closed().await;
    assert!(!rig.plane.remove(&rig.config.id).await);
    assert_eq!(rig.plane.report(&rig.config.id), None);
    assert_eq!(rig.plane.balancers(), []);
}

#[tokio::test]
async fn a_removed_balancer_takes_along_what_its_removed_listeners_still_had() {
    let a = Echo::new("a").await;
    let mut rig = Fixture::tcp(&[&a]).await;
    let mut client = rig.connect().await;
    client.name().await;
    rig.change(|config| config.listeners.clear()).await;
    assert!(client.echoes().await);
    assert!(rig.plane.remove(&rig.config.id).await);
    client.closed().await;
}

#[tokio::test]
async fn shutdown_waits_for_everything_and_nothing_begins_after_it() {
    let a = Echo::new("a").await;
    let rig = Fixture::tcp(&[&a]).await;
    let mut client = rig.connect().await;
    client.name().await;
    let place = rig.address(0);
    soon(rig.plane.shutdown()).await;
    drop(TcpListener::bind(place).await.unwrap());
    client.closed().await;
    let report = rig.plane.apply(&rig.config).await;
    let ListenerState::Failed(error) = &report.listeners[0].state else {
        panic!("{report:?}")
    };
    assert_eq!(error.kind, ListenErrorKind::Stopped);
}

#[tokio::test]
async fn dropping_the_data_plane_ends_everything() {
    let a = Echo::new("a").await;
    let rig = Fixture::tcp(&[&a]).await;
    let mut client = rig.connect().await;
    client.name().await;
    let place = rig.address(0);
    drop(rig);
    client.closed().await;
    soon(async {
        while TcpStream::connect(place).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn two_balancers_cannot_have_one_place() {
    let a = Echo::new("a").await;
    let plane = DataPlane::default();
    let mut one = balancer([listener("l", pool([a.member()]))]);
    let report = plane.apply(&one).await;
    let ListenerState::Listening(place) = report.listeners[0].state else {
        panic!("{report:?}")
    };
    assert_eq!(place.ip(), VIP);
    one.id = "two".into();
    one.listeners[0].port = place.port();
    let report = plane.apply(&one).await;
    assert!(
        matches!(&report.listeners[0].state, ListenerState::Failed(error) if error.kind == ListenErrorKind::PortInUse)
    );
    assert_eq!(plane.balancers(), ["balancer".into(), "two".into()]);
    plane.shutdown().await;
}
