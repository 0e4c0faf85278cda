//! UDP listeners.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::net::UdpSocket;
use tokio_util::task::AbortOnDropHandle;

use super::rig::{NODE, Rig, balancer, listener, monitor, nobody, pool, soon};
use crate::dataplane::{
    Algorithm, BalancerConfig, ListenerProtocol, MemberConfig,
    MemberState::{Error, Online},
    MonitorKind, Persistence, PoolProtocol,
};

/// A member that puts its name before what it gets and sends it back.
struct Namer {
    name: &'static str,
    address: SocketAddr,
    received: Arc<AtomicUsize>,
    serving: AbortOnDropHandle<()>,
}

impl Namer {
    async fn new(name: &'static str) -> Self {
        Self::at(name, SocketAddr::new(NODE, 0)).await
    }

    async fn at(name: &'static str, address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).await.unwrap();
        let address = socket.local_addr().unwrap();
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        let serving = tokio::spawn(async move {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
                count.fetch_add(1, SeqCst);
                let answer = [name.as_bytes(), &buffer[..length]].concat();
                let _ = socket.send_to(&answer, client).await;
            }
        });
        Self { name, address, received, serving: AbortOnDropHandle::new(serving) }
    }

    fn member(&self) -> MemberConfig {
        MemberConfig::new(self.name, self.address)
    }

    async fn end(self) -> SocketAddr {
        self.serving.abort();
        let _ = self.serving.await;
        self.address
    }
}

fn wanted(members: &[&Namer]) -> BalancerConfig {
    let mut pool = pool(members.iter().map(|member| member.member()));
    pool.protocol = PoolProtocol::Udp;
    let mut listener = listener("l", pool);
    listener.protocol = ListenerProtocol::Udp;
    balancer([listener])
}

async fn client(rig: &Rig) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::new(rig.config.vip, 0)).await.unwrap();
    // Connected: only what comes from the balancer's own address and port is received.
    socket.connect(rig.address(0)).await.unwrap();
    socket
}

/// Asks, and asks again when something was lost, as clients of UDP must.
async fn ask(client: &UdpSocket, question: &str) -> String {
    let mut buffer = vec![0; 65_536];
    soon(async {
        loop {
            let _ = client.send(question.as_bytes()).await;
            let answer = tokio::time::timeout(Duration::from_secs(2), client.recv(&mut buffer)).await;
            if let Ok(Ok(length)) = answer {
                return String::from_utf8(buffer[..length].to_vec()).unwrap();
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_client_stays_with_its_member_and_the_next_client_gets_the_next() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let rig = Rig::new(wanted(&[&a, &b])).await;
    let (one, two) = (client(&rig).await, client(&rig).await);
    assert_eq!([ask(&one, "1").await, ask(&two, "2").await], ["a1", "b2"]);
    for _ in 0..5 {
        assert_eq!([ask(&one, "1").await, ask(&two, "2").await], ["a1", "b2"]);
    }
    rig.counted(|report| report.listeners[0].counters.bytes_out >= 24).await;
    let counters = rig.report().listeners[0].counters;
    assert_eq!((counters.active_connections, counters.total_connections), (2, 2));
    assert_eq!((counters.bytes_in, counters.bytes_out), (12, 24), "nothing was lost and asked again");
}

#[tokio::test]
async fn datagrams_pass_between_address_families() {
    for (vip, node) in [("::1", "127.8.0.1:0"), ("127.7.0.1", "[::1]:0"), ("::1", "[::1]:0")] {
        let a = Namer::at("a", node.parse().unwrap()).await;
        let mut config = wanted(&[&a]);
        config.vip = vip.parse().unwrap();
        let rig = Rig::new(config).await;
        assert_eq!(ask(&client(&rig).await, vip).await, format!("a{vip}"));
    }
}

#[tokio::test]
async fn the_largest_datagram_passes() {
    let a = Namer::new("a").await;
    let rig = Rig::new(wanted(&[&a])).await;
    let large = "x".repeat(65_507 - 1);
    assert_eq!(ask(&client(&rig).await, &large).await, format!("a{large}"));
}

#[tokio::test]
async fn persistence_is_by_address_whatever_the_port() {
    let members = [Namer::new("a").await, Namer::new("b").await, Namer::new("c").await];
    let mut config = wanted(&[&members[0], &members[1], &members[2]]);
    config.listeners[0].pool.as_mut().unwrap().persistence = Some(Persistence::SourceIp);
    let rig = Rig::new(config).await;
    let first = ask(&client(&rig).await, "").await;
    for _ in 0..5 {
        assert_eq!(ask(&client(&rig).await, "").await, first);
    }
}

#[tokio::test]
async fn a_silent_flow_is_forgotten() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let mut config = wanted(&[&a, &b]);
    config.listeners[0].timeouts.client_data = Duration::from_millis(100);
    let rig = Rig::new(config).await;
    let one = client(&rig).await;
    assert_eq!(ask(&one, "").await, "a");
    rig.counted(|report| report.listeners[0].counters.active_connections == 0).await;
    assert_eq!(ask(&one, "").await, "b");
}

#[tokio::test]
async fn a_flow_leaves_a_member_that_is_removed_but_not_one_of_weight_zero() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let mut rig = Rig::new(wanted(&[&a, &b])).await;
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
    let rig = Rig::new(wanted(&[&a, &b])).await;
    let one = client(&rig).await;
    assert_eq!(ask(&one, "").await, "a");
    a.end().await;
    assert_eq!(ask(&one, "").await, "b");
}

#[tokio::test]
async fn checks_take_a_member_out_whose_port_is_closed() {
    let (a, b) = (Namer::new("a").await, Namer::new("b").await);
    let mut config = wanted(&[&a, &b]);
    let mut check = monitor(MonitorKind::UdpConnect);
    check.timeout = Duration::from_millis(200);
    let pool = config.listeners[0].pool.as_mut().unwrap();
    pool.monitor = Some(check);
    pool.algorithm = Algorithm::SourceIpPort;
    let rig = Rig::new(config).await;
    rig.states(&[Online, Online]).await;
    let place = a.end().await;
    rig.states(&[Error, Online]).await;
    for _ in 0..4 {
        assert_eq!(ask(&client(&rig).await, "").await, "b");
    }
    let _a = Namer::at("a", place).await;
    rig.states(&[Online, Online]).await;
}

#[tokio::test]
async fn strangers_and_flows_over_the_limit_are_not_answered() {
    let a = Namer::new("a").await;
    let mut config = wanted(&[&a]);
    config.listeners[0].connection_limit = Some(1);
    config.listeners[0].allowed_cidrs = vec!["10.0.0.0/8".parse().unwrap()];
    let mut rig = Rig::new(config).await;
    let stranger = client(&rig).await;
    stranger.send(b"x").await.unwrap();
    rig.counted(|report| report.listeners[0].counters.refused_connections == 1).await;
    assert_eq!(a.received.load(SeqCst), 0);

    rig.change(|config| config.listeners[0].allowed_cidrs.clear()).await;
    let (one, two) = (client(&rig).await, client(&rig).await);
    assert_eq!(ask(&one, "1").await, "a1");
    two.send(b"2").await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), two.recv(&mut [0; 8])).await;
    assert!(early.is_err(), "a second flow is not served");
    rig.change(|config| config.listeners[0].connection_limit = Some(2)).await;
    assert_eq!(ask(&two, "2").await, "a2");
}

#[tokio::test]
async fn nobody_behind_the_balancer_is_counted_and_harmless() {
    let mut rig = Rig::new(wanted(&[])).await;
    let one = client(&rig).await;
    one.send(b"x").await.unwrap();
    rig.counted(|report| report.listeners[0].counters.request_errors == 1).await;
    rig.change_pool(|pool| pool.members = vec![MemberConfig::new("m", "127.8.0.1:9".parse().unwrap())]).await;
    let _ = nobody().await;
    let a = Namer::new("a").await;
    rig.change_pool(|pool| pool.members = vec![a.member()]).await;
    assert_eq!(ask(&one, "").await, "a");
}

#[tokio::test]
async fn a_removed_listener_frees_its_port_at_once() {
    let a = Namer::new("a").await;
    let mut rig = Rig::new(wanted(&[&a])).await;
    assert_eq!(ask(&client(&rig).await, "").await, "a");
    let place = rig.address(0);
    rig.change(|config| config.listeners.clear()).await;
    drop(UdpSocket::bind(place).await.unwrap());
}
