//! From rows to sockets and back, with real ones.

use std::{sync::Arc, time::Duration};

use ccm_testkit::supervised::free_port;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    dataplane::{self, DataPlane},
    octavia::{dataplane_config, dataplane_sync},
    server::{self, Cloud as Server, LocalCloud},
};

#[test]
fn rows_at_rest_say_what_is_wanted() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    cloud
        .post_monitor(set(monitor(&web.pool), json!({"type": "HTTP", "url_path": "/healthz"})))
        .unwrap();
    cloud.rest();
    let fields = json!({"allowed_cidrs": ["127.0.0.0/8"], "connection_limit": 9, "timeout_client_data": 1500});
    cloud.put_listener(&web.listener, fields).unwrap();
    cloud.rest();
    let member_id = id(&cloud.members(&web.pool)[0]);
    cloud
        .put_member(
            &web.pool,
            &member_id,
            json!({"weight": 7, "admin_state_up": false, "monitor_port": 99}),
        )
        .unwrap();
    cloud.rest();
    let wanted = |cloud: &Cloud| {
        let row = cloud.state.octavia.load_balancers.get(&web.lb).unwrap();
        dataplane_config::load_balancer(&cloud.state, &cloud.ctx, row).unwrap()
    };
    let config = wanted(&cloud);
    assert!(config.vip.is_loopback());
    let listener = &config.listeners[0];
    assert_eq!((listener.port, listener.connection_limit), (80, Some(9)));
    assert_eq!(listener.timeouts.client_data, Duration::from_millis(1500));
    assert_eq!(listener.allowed_cidrs, ["127.0.0.0/8".parse().unwrap()]);
    let pool = listener.pool.as_ref().unwrap();
    let disabled = pool
        .members
        .iter()
        .find(|member| member.id.as_str() == member_id)
        .unwrap();
    assert_eq!((disabled.weight, disabled.enabled, disabled.monitor_port), (7, false, Some(99)));
    let monitor = pool.monitor.as_ref().unwrap();
    assert!(
        matches!(&monitor.kind, dataplane::MonitorKind::Http(check) if check.path == "/healthz")
    );
    assert_eq!((monitor.delay, monitor.max_retries_down), (Duration::from_secs(5), 3));

    cloud
        .put_pool(&web.pool, json!({"admin_state_up": false}))
        .unwrap();
    cloud.rest();
    assert!(wanted(&cloud).listeners[0].pool.is_none());
    cloud
        .put_lb(&web.lb, json!({"admin_state_up": false}))
        .unwrap();
    cloud.rest();
    assert!(wanted(&cloud).listeners.is_empty());
}

#[test]
fn only_loopback_addresses_are_carried() {
    let mut cloud = Cloud::new();
    let subnet = network(&mut cloud.state, "far", false, "10.0.0.0/24");
    cloud.commit();
    let lb = id(&cloud.post_lb(json!({"vip_subnet_id": subnet})).unwrap());
    let row = cloud.state.octavia.load_balancers.get(&lb).unwrap();
    assert_eq!(dataplane_config::load_balancer(&cloud.state, &cloud.ctx, row), None);
}

/// Answers each connection with a letter, until it is dropped.
async fn backend(letter: u8) -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // A check closes at once; then there is nobody to write to.
            drop(stream.write_all(&[letter]).await);
        }
    });
    (port, tasks)
}

async fn letter(address: &str) -> Option<u8> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.read_u8().await.ok()
}

/// Waits until something holds, at most ten seconds.
async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "it does not come to hold");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn seen<T>(
    server: &Arc<Server>,
    read: impl FnOnce(&CloudState, &RequestContext) -> Result<T, ApiError>,
) -> T {
    let ctx = ctx(server);
    server
        .store
        .read(|state| read(state, &ctx))
        .await
        .expect("it is there")
}

fn ctx(server: &Server) -> RequestContext {
    RequestContext {
        now: server.clock.now(),
        project: PROJECT.into(),
        user: "u".into(),
        admin: true,
    }
}

/// A listener opens, its members answer, one fails and is taken out, and the end closes the port.
#[tokio::test]
async fn traffic_flows_as_the_rows_say() {
    let server = LocalCloud::in_memory(server::Settings::default())
        .cloud()
        .clone();
    let plane = Arc::new(DataPlane::default());
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (carried, by, until_stop) = (server.clone(), plane.clone(), stop.clone());
    tasks.spawn(async move { dataplane_sync::run(&carried, Some(&by), until_stop).await });

    let ((first, _one), (second, two)) = (backend(b'a').await, backend(b'b').await);
    let port = free_port().unwrap();
    let member = |port: u16| json!({"address": "127.0.0.1", "protocol_port": port});
    let body = json!({"listeners": [{"protocol": "TCP", "protocol_port": port, "default_pool": {
        "name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": [member(first), member(second)],
        "healthmonitor": {"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 1},
    }}]});
    let now = ctx(&server);
    let make = |state: &mut CloudState| {
        let subnet = network(state, "web", false, "127.83.7.0/24");
        let body = set(body, json!({"vip_subnet_id": subnet, "vip_address": "127.83.7.9"}));
        let create = schema::read(
            wrap("loadbalancer", body),
            "loadbalancer",
            schema::LOAD_BALANCER_CREATE,
            30,
        )?;
        load_balancers::create(state, &now, create)
    };
    let lb = server.store.change(make).await.unwrap().id;
    let vip = format!("127.83.7.9:{port}");

    let state_of = async || {
        let tree = seen(&server, |state, ctx| load_balancers::status(state, ctx, &lb))
            .await
            .statuses
            .loadbalancer;
        (tree.operating_status.to_string(), tree.listeners[0].operating_status.to_string())
    };
    until(async || {
        (state_of().await.0 == "ONLINE" && state_of().await.1 == "ONLINE").then_some(())
    })
    .await;
    let mut letters = [letter(&vip).await.unwrap(), letter(&vip).await.unwrap()];
    letters.sort_unstable();
    assert_eq!(letters, [b'a', b'b'], "both take their turn");

    drop(two);
    until(async || (state_of().await.0 == "DEGRADED").then_some(())).await;
    for _ in 0..4 {
        assert_eq!(letter(&vip).await, Some(b'a'));
    }
    until(async || {
        let stats = seen(&server, |state, ctx| load_balancers::stats(state, ctx, &lb)).await;
        (stats.total_connections >= 6 && stats.bytes_out >= 6).then_some(())
    })
    .await;

    let now = ctx(&server);
    server
        .store
        .change(|state| load_balancers::delete(state, &now, &lb, true))
        .await
        .unwrap();
    until(async || TcpStream::connect(&vip).await.is_err().then_some(())).await;
    assert!(plane.balancers().is_empty());
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    plane.shutdown().await;
}
