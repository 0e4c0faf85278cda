//! UDP listeners.

use std::{future::Future, time::Duration};

use tokio::net::UdpSocket;

use super::fixture::{Fixture, Namer, ask, client, monitor, nobody, udp};
use crate::dataplane::{
    Algorithm, MemberConfig,
    MemberState::{Error, Online},
    MonitorKind, Persistence,
};

#[tokio::test]
async fn a_client_stays_with_its_member_and_the_next_client_gets_the_next() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let rig = Fixture::new(udp(&[&a, &b])).await;
    let (one, two) = (client(&rig).await, client(&rig).await);
    assert_eq!([ask(&one, "1").await, ask(&two, "2").await], ["a1", "b2"]);
    for _ in 0..5 {
        assert_eq!([ask(&one, "1").await, ask(&two, "2").await], ["a1", "b2"]);
    }
    // Each question is a byte, and each answer two; what was late was asked again.
    let asked = |all: &[&Namer]| {
        all.iter()
            .map(|one| one.heard.lock().len() as u64)
            .sum::<u64>()
    };
    rig.counted(|report| {
        let (counters, asked) = (report.listeners[0].counters, asked(&[&a, &b]));
        (counters.bytes_in, counters.bytes_out) == (asked, 2 * asked)
    })
    .await;
    assert!(asked(&[&a, &b]) >= 12);
    let counters = rig.report().listeners[0].counters;
    assert_eq!((counters.active_connections, counters.total_connections), (2, 2));
}

#[tokio::test]
async fn the_largest_datagram_passes() {
    let a = Namer::new("a").await;
    let rig = Fixture::new(udp(&[&a])).await;
    let large = "x".repeat(65_507 - 1);
    assert_eq!(ask(&client(&rig).await, &large).await, format!("a{large}"));
}

#[tokio::test]
async fn persistence_is_by_address_whatever_the_port() {
    let members = [Namer::new("a").await, Namer::new("b").await, Namer::new("c").await];
    let mut config = udp(&[&members[0], &members[1], &members[2]]);
    config.listeners[0].pool.as_mut().unwrap().persistence = Some(Persistence::SourceIp);
    let rig = Fixture::new(config).await;
    let first = ask(&client(&rig).await, "").await;
    for _ in 0..5 {
        assert_eq!(ask(&client(&rig).await, "").await, first);
    }
}

#[tokio::test]
async fn a_silent_flow_is_forgotten() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let mut config = udp(&[&a, &b]);
    config.listeners[0].timeouts.client_data = Duration::from_millis(100);
    let rig = Fixture::new(config).await;
    let one = client(&rig).await;
    assert_eq!(ask(&one, "").await, "a");
    rig.counted(|report| report.listeners[0].counters.active_connections == 0)
        .await;
    assert_eq!(ask(&one, "").await, "b");
}

#[tokio::test]
async fn a_flow_leaves_a_member_that_is_removed_but_not_one_of_weight_zero() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let mut rig = Fixture::new(udp(&[&a, &b])).await;
    let one = client(&rig).await;
    assert_eq!(ask(&one, "").await, "a");
    rig.change_pool(|pool| pool.members[0].weight = 0).await;
    assert_eq!(ask(&one, "").await, "a");
    assert_eq!(ask(&client(&rig).await, "").await, "b");
    rig.change_pool(|pool| drop(pool.members.remove(0))).await;
    assert_eq!(ask(&one, "").await, "b");
}

#[tokio::test]
async fn a_flow_leaves_a_member_whose_port_is_closed() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let rig = Fixture::new(udp(&[&a, &b])).await;
    let one = client(&rig).await;
    assert_eq!(ask(&one, "").await, "a");
    a.end().await;
    assert_eq!(ask(&one, "").await, "b");
}

#[tokio::test]
async fn checks_take_a_member_out_whose_port_is_closed() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let mut config = udp(&[&a, &b]);
    let mut check = monitor(MonitorKind::UdpConnect);
    check.timeout = Duration::from_millis(200);
    let pool = config.listeners[0].pool.as_mut().unwrap();
    pool.monitor = Some(check);
    pool.algorithm = Algorithm::SourceIpPort;
    let rig = Fixture::new(config).await;
    rig.states(&[Online, Online]).await;
    let place = a.end().await;
    rig.states(&[Error, Online]).await;
    for _ in 0..4 {
        assert_eq!(ask(&client(&rig).await, "").await, "b");
    }
    let _a = Namer::at("a", place).await;
    rig.states(&[Online, Online]).await;
}

/// Sends a datagram, and again as long as it shows no effect: one may be lost.
async fn sent_until(client: &UdpSocket, effect: impl Future<Output = ()>) {
    let sending = async {
        loop {
            client.send(b"x").await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        () = effect => {}
        () = sending => {}
    }
}

#[tokio::test]
async fn strangers_and_flows_over_the_limit_are_not_answered() {
    let a = Namer::new("a").await;
    let mut config = udp(&[&a]);
    config.listeners[0].connection_limit = Some(1);
    config.listeners[0].allowed_cidrs = vec!["10.0.0.0/8".parse().unwrap()];
    let mut rig = Fixture::new(config).await;
    let stranger = client(&rig).await;
    sent_until(
        &stranger,
        rig.counted(|report| report.listeners[0].counters.refused_connections >= 1),
    )
    .await;
    assert!(a.heard.lock().is_empty());

    rig.change(|config| config.listeners[0].allowed_cidrs.clear())
        .await;
    let (one, two) = (client(&rig).await, client(&rig).await);
    assert_eq!(ask(&one, "1").await, "a1");
    two.send(b"2").await.unwrap();
    // What comes later is answered, so that the datagram before it was looked at.
    assert_eq!(ask(&one, "3").await, "a3");
    assert!(!a.heard.lock().contains(&b"2".to_vec()), "a second flow is not served");
    rig.change(|config| config.listeners[0].connection_limit = Some(2))
        .await;
    assert_eq!(ask(&two, "2").await, "a2");
}

#[tokio::test]
async fn nobody_behind_the_balancer_is_counted_and_harmless() {
    let mut rig = Fixture::new(udp(&[])).await;
    let one = client(&rig).await;
    sent_until(&one, rig.counted(|report| report.listeners[0].counters.request_errors >= 1)).await;
    rig.change_pool(|pool| {
        pool.members = vec![MemberConfig::new("m", "127.8.0.1:9".parse().unwrap())];
    })
    .await;
    let _ = nobody().await;
    let a = Namer::new("a").await;
    rig.change_pool(|pool| pool.members = vec![a.member()])
        .await;
    assert_eq!(ask(&one, "").await, "a");
}

#[tokio::test]
async fn a_removed_listener_frees_its_port_at_once() {
    let a = Namer::new("a").await;
    let mut rig = Fixture::new(udp(&[&a])).await;
    assert_eq!(ask(&client(&rig).await, "").await, "a");
    let place = rig.address(0);
    rig.change(|config| config.listeners.clear()).await;
    drop(UdpSocket::bind(place).await.unwrap());
}
