//! TCP listeners.

use std::{net::SocketAddr, sync::atomic::Ordering::SeqCst, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::{Instant, timeout},
};

use super::fixture::{
    Client, Echo, Fixture, NODE, VIP, balancer, binary_header, listener, nobody, pool, soon,
    text_header,
};
use crate::dataplane::{
    Algorithm, ListenErrorKind, ListenerProtocol, ListenerState, Persistence, PoolProtocol,
};

#[tokio::test]
async fn connections_go_to_members_in_turn_and_are_counted() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let rig = Fixture::tcp(&[&a, &b]).await;
    assert_eq!(rig.names(4).await, "abab");
    rig.counted(|report| report.listeners[0].counters.active_connections == 0)
        .await;
    let mut client = rig.connect().await;
    assert_eq!(client.name().await, "a");
    assert!(client.echoes().await);
    rig.counted(|report| report.listeners[0].counters.bytes_out == 5 * 2 + 6)
        .await;
    let report = rig.report();
    let counters = report.listeners[0].counters;
    assert_eq!(
        (counters.active_connections, counters.total_connections, counters.bytes_in),
        (1, 5, 6)
    );
    let members = &report.listeners[0].pool.as_ref().unwrap().members;
    assert_eq!(
        members
            .iter()
            .map(|member| member.active_connections)
            .collect::<Vec<_>>(),
        [1, 0]
    );
}

#[tokio::test]
async fn a_large_message_passes_both_ways_though_the_reader_comes_late() {
    let a = Echo::new("a").await;
    let rig = Fixture::tcp(&[&a]).await;
    let mut client = rig.connect().await;
    client.name().await;
    let sent: Vec<u8> = (0..32_000_000_u32)
        .map(|number| number.to_be_bytes()[number as usize % 4])
        .collect();
    let (mut read, mut write) = client.0.split();
    let (mut received, mut at) = (Vec::new(), 0);
    // Until every buffer on the way there and back is full.
    while let Ok(written) = timeout(Duration::from_millis(300), write.write(&sent[at..])).await {
        at += written.unwrap();
    }
    assert!(at < sent.len(), "there is something left to send");
    let writing = async {
        write.write_all(&sent[at..]).await.unwrap();
        write.shutdown().await.unwrap();
    };
    soon(async { tokio::join!(writing, async { read.read_to_end(&mut received).await.unwrap() }) })
        .await;
    assert!(received == sent, "{} bytes came back of {}", received.len(), sent.len());
}

#[tokio::test]
async fn the_end_of_one_side_leaves_the_other_way_open() {
    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let address = member.local_addr().unwrap();
    let rig = Fixture::new(balancer([listener(
        "l",
        pool([crate::dataplane::MemberConfig::new("m", address)]),
    )]))
    .await;
    let mut client = rig.connect().await;
    let (mut served, _) = soon(member.accept()).await.unwrap();
    client.0.write_all(b"question").await.unwrap();
    client.0.shutdown().await.unwrap();
    let mut question = String::new();
    soon(served.read_to_string(&mut question)).await.unwrap();
    assert_eq!(question, "question");
    served.write_all(b"answer\n").await.unwrap();
    assert_eq!(client.line().await, "answer");
    drop(served);
    client.closed().await;
    rig.counted(|report| report.listeners[0].counters.active_connections == 0)
        .await;
}

#[tokio::test]
async fn the_next_member_takes_what_one_refuses() {
    let (b, dead) = (Echo::new("b").await, nobody().await);
    let dead = crate::dataplane::MemberConfig::new("dead", dead);
    let rig = Fixture::new(balancer([listener("l", pool([dead.clone(), b.member()]))])).await;
    assert_eq!(rig.names(4).await, "bbbb");
    assert_eq!(rig.report().listeners[0].counters.request_errors, 0);

    let rig = Fixture::new(balancer([listener("l", pool([dead]))])).await;
    rig.connect().await.closed().await;
    rig.counted(|report| report.listeners[0].counters.request_errors == 1)
        .await;
}

#[tokio::test]
async fn a_member_that_does_not_answer_costs_only_the_time_to_connect() {
    // A socket whose queue is full answers nothing.
    let deaf = tokio::net::TcpSocket::new_v4().unwrap();
    deaf.bind(SocketAddr::new(NODE, 0)).unwrap();
    let deaf = deaf.listen(0).unwrap();
    let address = deaf.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) =
        timeout(Duration::from_millis(200), tokio::net::TcpStream::connect(address)).await
    {
        queued.push(stream);
    }
    let b = Echo::new("b").await;
    let mut wanted =
        listener("l", pool([crate::dataplane::MemberConfig::new("deaf", address), b.member()]));
    wanted.timeouts.member_connect = Duration::from_millis(100);
    let rig = Fixture::new(balancer([wanted])).await;
    let begin = Instant::now();
    assert_eq!(rig.names(1).await, "b");
    assert!(begin.elapsed() >= Duration::from_millis(100));
}

#[tokio::test]
async fn silence_ends_a_connection_and_talk_keeps_it() {
    let a = Echo::new("a").await;
    let limit = Duration::from_millis(500);
    let ends = async |silent_client: bool| {
        let mut wanted = listener("l", pool([a.member()]));
        if silent_client {
            wanted.timeouts.client_data = limit;
        } else {
            wanted.timeouts.member_data = limit;
        }
        let rig = Fixture::new(balancer([wanted])).await;
        let mut client = rig.connect().await;
        client.name().await;
        let talk = Instant::now();
        while talk.elapsed() < limit.mul_f64(1.2) {
            tokio::time::sleep(limit / 10).await;
            assert!(client.echoes().await);
        }
        let begin = Instant::now();
        client.closed().await;
        assert!(begin.elapsed() >= limit.mul_f64(0.9), "{:?}", begin.elapsed());
    };
    tokio::join!(ends(true), ends(false));
}

#[tokio::test]
async fn connections_over_the_limit_wait_in_the_queue_until_one_ends() {
    let a = Echo::new("a").await;
    let mut wanted = listener("l", pool([a.member()]));
    wanted.connection_limit = Some(2);
    let mut rig = Fixture::new(balancer([wanted])).await;
    let (mut one, mut two) = (rig.connect().await, rig.connect().await);
    one.name().await;
    two.name().await;
    // Each that waits is served when another one has ended, and none before: all of them would be
    // by then.
    let mut waiting = std::collections::VecDeque::new();
    for _ in 0..4 {
        waiting.push_back(rig.connect().await);
    }
    for served in 2..6 {
        assert!(two.echoes().await);
        assert_eq!(a.accepted.load(SeqCst), served, "another connection is served");
        assert_eq!(rig.report().listeners[0].counters.active_connections, 2);
        drop(one);
        one = waiting.pop_front().unwrap();
        assert_eq!(one.name().await, "a");
    }

    let mut four = rig.connect().await;
    rig.change(|config| config.listeners[0].connection_limit = None)
        .await;
    assert_eq!(four.name().await, "a");
    assert!(two.echoes().await, "a change of the limit ends nothing");
}

#[tokio::test]
async fn only_allowed_clients_get_in() {
    let a = Echo::new("a").await;
    let mut wanted = listener("l", pool([a.member()]));
    wanted.allowed_cidrs = vec!["10.0.0.0/8".parse().unwrap()];
    let mut rig = Fixture::new(balancer([wanted])).await;
    if let Ok(mut client) = Client::connect(rig.address(0)).await {
        client.closed().await;
    }
    rig.counted(|report| report.listeners[0].counters.refused_connections == 1)
        .await;
    assert_eq!(rig.report().listeners[0].counters.total_connections, 0);
    assert_eq!(a.accepted.load(SeqCst), 0);
    rig.change(|config| {
        config.listeners[0]
            .allowed_cidrs
            .push("127.0.0.0/8".parse().unwrap());
    })
    .await;
    assert_eq!(rig.names(1).await, "a");
}

#[tokio::test]
async fn a_client_keeps_its_member_by_its_address() {
    let members = [Echo::new("a").await, Echo::new("b").await, Echo::new("c").await];
    let mut wanted = pool(members.iter().map(Echo::member));
    wanted.persistence = Some(Persistence::SourceIp);
    let rig = Fixture::new(balancer([listener("l", wanted)])).await;
    let names = rig.names(6).await;
    assert!(["aaaaaa", "bbbbbb", "cccccc"].contains(&&*names), "{names}");
}

#[tokio::test]
async fn the_least_busy_member_gets_the_next_connection() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut wanted = pool([a.member(), b.member()]);
    wanted.algorithm = Algorithm::LeastConnections;
    let rig = Fixture::new(balancer([listener("l", wanted)])).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut client = rig.connect().await;
        held.push((client.name().await, client));
    }
    held.retain(|(name, _)| name == "a");
    rig.counted(|report| report.listeners[0].counters.active_connections == 2)
        .await;
    let (mut one, mut two) = (rig.connect().await, rig.connect().await);
    assert_eq!(one.name().await + &two.name().await, "bb");
}

#[tokio::test]
async fn members_are_told_the_client_in_the_text_header() {
    text_header(VIP, "TCP4").await;
}

#[tokio::test]
async fn members_are_told_the_client_in_the_binary_header() {
    binary_header(VIP, b"\x11\x00\x0c").await;
}

#[tokio::test]
async fn a_listener_that_cannot_listen_says_why_and_stops_no_other() {
    let a = Echo::new("a").await;
    let taken = TcpListener::bind(SocketAddr::new(VIP, 0)).await.unwrap();
    let mut in_use = listener("in-use", pool([a.member()]));
    in_use.port = taken.local_addr().unwrap().port();
    let mut sctp = listener("sctp", pool([a.member()]));
    sctp.protocol = ListenerProtocol::Sctp;
    let mut udp_pool = listener("udp-pool", pool([a.member()]));
    udp_pool.pool.as_mut().unwrap().protocol = PoolProtocol::Udp;
    let mut rig =
        Fixture::new(balancer([in_use, sctp, udp_pool, listener("fine", pool([a.member()]))]))
            .await;
    let kind = |rig: &Fixture, index: usize| match &rig.report().listeners[index].state {
        ListenerState::Failed(error) => Some(error.kind),
        ListenerState::Listening(_) => None,
    };
    let kinds: Vec<_> = (0..4).map(|index| kind(&rig, index)).collect();
    let unsupported = Some(ListenErrorKind::Unsupported);
    assert_eq!(kinds, [Some(ListenErrorKind::PortInUse), unsupported, unsupported, None]);
    assert_eq!(Client::connect(rig.address(3)).await.unwrap().name().await, "a");

    // The same again tries again.
    drop(taken);
    rig.change(|_| ()).await;
    assert_eq!(kind(&rig, 0), None);

    let mut config = balancer([listener("l", pool([a.member()]))]);
    config.vip = "192.0.2.1".parse().unwrap();
    let rig = Fixture::new(config).await;
    assert_eq!(kind(&rig, 0), Some(ListenErrorKind::AddressNotLocal));
}
