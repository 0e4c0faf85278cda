//! Load balancers of the process carry traffic: TCP and UDP, IPv4 and IPv6, before a restart and
//! after it.

use std::{
    net::{SocketAddr, TcpListener as Port},
    time::Duration,
};

use ccm_testkit::supervised::free_port;
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::cloud::{Cloud, password};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const WHILE: Duration = Duration::from_millis(50);

/// Two members, of which each says what it is.
struct Members {
    tcp: SocketAddr,
    udp: SocketAddr,
    _serving: JoinSet<()>,
}

impl Members {
    async fn on(ip: &str) -> Self {
        let place = SocketAddr::new(ip.parse().unwrap(), 0);
        let listener = TcpListener::bind(place).await.unwrap();
        let socket = tokio::net::UdpSocket::bind(place).await.unwrap();
        let (tcp, udp) = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.try_write(b"tcp");
            }
        });
        serving.spawn(async move {
            while let Ok((_, client)) = socket.recv_from(&mut [0; 16]).await {
                let _ = socket.send_to(b"udp", client).await;
            }
        });
        Self { tcp, udp, _serving: serving }
    }
}

/// Why nothing can be had at an IPv6 address.
pub(crate) fn missing_ipv6() -> Option<String> {
    Port::bind("[::1]:0")
        .err()
        .map(|error| format!("nothing can listen at ::1: {error}"))
}

/// A place that no other test has.
fn free(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), free_port().unwrap())
}

struct Account {
    token: String,
}

impl Account {
    async fn make(&self, cloud: &Cloud, path: &str, kind: &str, body: Value) -> String {
        let (status, body) = cloud
            .try_send("POST", path, &self.token, Some(json!({ kind: body })))
            .await
            .unwrap();
        assert_eq!(status, 201, "{body}");
        body[kind]["id"].as_str().unwrap().to_owned()
    }

    /// Makes a load balancer in a network of its own, with a listener on `vip`, and returns its ID.
    async fn balancer(
        &self,
        cloud: &Cloud,
        protocol: &str,
        vip: SocketAddr,
        member: SocketAddr,
    ) -> String {
        let network = self
            .make(cloud, "/network/v2.0/networks", "network", json!({"name": "vips"}))
            .await;
        let range = match vip {
            SocketAddr::V4(_) => json!({"cidr": "127.9.0.0/24", "ip_version": 4}),
            SocketAddr::V6(_) => json!({"cidr": "::/126", "ip_version": 6, "gateway_ip": null}),
        };
        let mut subnet = range;
        subnet["network_id"] = json!(network);
        let subnet = self
            .make(cloud, "/network/v2.0/subnets", "subnet", subnet)
            .await;
        let body = json!({"name": protocol, "vip_subnet_id": subnet, "vip_address": vip.ip().to_string(), "listeners": [{
            "name": "l", "protocol": protocol, "protocol_port": vip.port(), "default_pool": {
                "name": "p", "protocol": protocol, "lb_algorithm": "ROUND_ROBIN",
                "members": [{"address": member.ip().to_string(), "protocol_port": member.port()}],
            },
        }]});
        self.make(cloud, "/load-balancer/v2/lbaas/loadbalancers", "loadbalancer", body)
            .await
    }

    /// Waits until a load balancer is at rest and does so.
    async fn until(&self, cloud: &Cloud, id: &str, operating: &str) {
        let mut seen = Value::Null;
        let waiting = async {
            loop {
                let path = format!("/load-balancer/v2/lbaas/loadbalancers/{id}");
                seen = cloud.get(&path, &self.token).await.1["loadbalancer"].take();
                if seen["provisioning_status"] == "ACTIVE" && seen["operating_status"] == operating
                {
                    return;
                }
                sleep(WHILE).await;
            }
        };
        assert!(timeout(SOON, waiting).await.is_ok(), "not {operating}: {seen}");
    }
}

/// What a new connection is told; tried again while nobody listens, for a process that has just
/// begun still tells for a moment how its predecessor did.
async fn response_of(vip: SocketAddr) -> String {
    let connecting = async {
        loop {
            match TcpStream::connect(vip).await {
                Ok(stream) => return stream,
                Err(_) => sleep(WHILE).await,
            }
        }
    };
    let mut said = String::new();
    let mut stream = timeout(SOON, connecting).await.unwrap();
    timeout(SOON, stream.read_to_string(&mut said))
        .await
        .unwrap()
        .unwrap();
    said
}

/// What a datagram is answered with; asked again when one was lost, as clients of UDP must.
async fn answered(vip: SocketAddr) -> String {
    let socket = tokio::net::UdpSocket::bind(SocketAddr::new(vip.ip(), 0))
        .await
        .unwrap();
    socket.connect(vip).await.unwrap();
    let mut buffer = [0; 16];
    let asking = async {
        loop {
            let _ = socket.send(b"x").await;
            if let Ok(Ok(length)) = timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await
            {
                return length;
            }
        }
    };
    let length = timeout(SOON, asking).await.unwrap();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

pub(crate) async fn load_balancers_carry_tcp_and_udp_on_ipv4_and_on_one_ipv6_address() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    let account = Account {
        token: cloud.token("admin", &password(dir.path(), "admin")).await,
    };
    let members = Members::on("::1").await;
    let (one, two, three) = (free("::1"), free("::1"), free("127.9.0.7"));
    let mut made = Vec::new();
    for (protocol, vip, member) in
        [("TCP", one, members.tcp), ("UDP", two, members.udp), ("UDP", three, members.udp)]
    {
        made.push(account.balancer(&cloud, protocol, vip, member).await);
    }
    for id in &made {
        account.until(&cloud, id, "ONLINE").await;
    }
    assert_eq!(
        (response_of(one).await, answered(two).await, answered(three).await),
        ("tcp".into(), "udp".into(), "udp".into())
    );

    // The address is shared, so a port is to be had once.
    let late = account.balancer(&cloud, "TCP", one, members.tcp).await;
    account.until(&cloud, &late, "ERROR").await;
    account.until(&cloud, &made[0], "ONLINE").await;
    assert_eq!(response_of(one).await, "tcp");
    let path = format!("/load-balancer/v2/lbaas/loadbalancers/{late}?cascade=true");
    assert_eq!(
        cloud
            .try_send("DELETE", &path, &account.token, None)
            .await
            .unwrap()
            .0,
        204
    );

    cloud.kill().await;
    drop(cloud);
    let cloud = Cloud::start(dir.path()).await;
    for id in &made {
        account.until(&cloud, id, "ONLINE").await;
    }
    assert_eq!(
        (response_of(one).await, answered(two).await, answered(three).await),
        ("tcp".into(), "udp".into(), "udp".into())
    );
    cloud.terminate().await;
    assert!(TcpStream::connect(one).await.is_err(), "nothing listens any more");
}
