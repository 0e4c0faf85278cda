//! Monitors.

use std::{net::SocketAddr, time::Duration};

use tokio::{io::AsyncReadExt as _, net::TcpListener};

use super::{
    fixture::{Echo, Fixture, NODE, balancer, listener, monitor, pool, soon},
    http::{Web, certificate},
};
use crate::dataplane::{
    HttpCheck, ListenerProtocol, LoadBalancerReport, MemberConfig,
    MemberState::{Draining, Error, NoMonitor, Offline, Online},
    MonitorKind, PoolProtocol,
};

#[tokio::test]
async fn a_member_that_goes_away_is_taken_out_and_comes_back() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut wanted = pool([a.member(), b.member()]);
    wanted.monitor = Some(monitor(MonitorKind::Tcp));
    let rig = Fixture::new(balancer([listener("l", wanted)])).await;
    rig.states(&[Online, Online]).await;
    let place = a.end().await;
    rig.states(&[Error, Online]).await;
    let report = rig.report();
    let error = report.listeners[0].pool.as_ref().unwrap().members[0]
        .last_error
        .clone();
    assert!(
        error
            .as_ref()
            .is_some_and(|error| error.contains("refused")),
        "{error:?}"
    );
    assert_eq!(rig.names(3).await, "bbb");
    let _a = Echo::at("a", place).await;
    rig.states(&[Online, Online]).await;
    let names = rig.names(2).await;
    assert!(names == "ab" || names == "ba", "{names}");
}

#[tokio::test]
async fn states_follow_what_is_wanted() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut rig = Fixture::tcp(&[&a, &b]).await;
    rig.states(&[NoMonitor, NoMonitor]).await;
    rig.change_pool(|pool| pool.members[0].enabled = false)
        .await;
    rig.states(&[Offline, NoMonitor]).await;
    rig.change_pool(|pool| {
        pool.monitor = Some(monitor(MonitorKind::Tcp));
        pool.members[1].weight = 0;
    })
    .await;
    rig.states(&[Offline, Draining]).await;
    rig.change_pool(|pool| {
        pool.members[0].enabled = true;
        pool.members[1].weight = 1;
    })
    .await;
    rig.states(&[Online, Online]).await;
    rig.change_pool(|pool| pool.monitor = None).await;
    rig.states(&[NoMonitor, NoMonitor]).await;
}

#[tokio::test]
async fn a_member_that_was_unwell_comes_back_without_checks_as_any_other() {
    let a = Echo::new("a").await;
    let member = a.member();
    let mut wanted = pool([member.clone()]);
    wanted.monitor = Some(monitor(MonitorKind::Tcp));
    let mut rig = Fixture::new(balancer([listener("l", wanted)])).await;
    a.end().await;
    rig.states(&[Error]).await;
    rig.change_pool(|pool| pool.members.clear()).await;
    rig.change_pool(|pool| (pool.monitor, pool.members) = (None, vec![member]))
        .await;
    rig.states(&[NoMonitor]).await;
}

#[tokio::test]
async fn a_member_may_be_checked_elsewhere() {
    let (a, b, check) = (Echo::new("a").await, Echo::new("b").await, Echo::new("check").await);
    let mut wanted = pool([a.member(), b.member()]);
    wanted.monitor = Some(monitor(MonitorKind::Tcp));
    wanted.members[0].monitor_port = Some(check.address.port());
    let rig = Fixture::new(balancer([listener("l", wanted)])).await;
    rig.states(&[Online, Online]).await;
    check.end().await;
    rig.states(&[Error, Online]).await;
    assert_eq!(rig.names(2).await, "bb", "the member itself would serve");
}

#[tokio::test]
async fn a_backup_serves_only_while_no_other_does() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut wanted = pool([a.member(), b.member()]);
    wanted.monitor = Some(monitor(MonitorKind::Tcp));
    wanted.members[1].backup = true;
    let rig = Fixture::new(balancer([listener("l", wanted)])).await;
    rig.states(&[Online, Online]).await;
    assert_eq!(rig.names(3).await, "aaa");
    let place = a.end().await;
    rig.states(&[Error, Online]).await;
    assert_eq!(rig.names(2).await, "bb");
    let _a = Echo::at("a", place).await;
    rig.states(&[Online, Online]).await;
    assert_eq!(rig.names(2).await, "aa");
}

/// Where a web server answers checks that are to fail and checks that are to succeed.
fn http(path: &str, expected: &str) -> HttpCheck {
    HttpCheck {
        path: path.to_owned(),
        expected: expected.parse().unwrap(),
        ..HttpCheck::default()
    }
}

#[tokio::test]
async fn http_checks_look_at_the_status() {
    let (a, b) = (Web::new("a").await, Echo::new("b").await);
    let mut wanted = pool([a.member(), b.member()]);
    wanted.monitor = Some(monitor(MonitorKind::Http(http("/", "200"))));
    let mut rig = Fixture::new(balancer([listener("l", wanted)])).await;
    // An echo speaks no HTTP.
    rig.states(&[Online, Error]).await;
    rig.change_pool(|pool| {
        pool.monitor.as_mut().unwrap().kind = MonitorKind::Http(http("/ill", "200-204"));
    })
    .await;
    rig.states(&[Error, Error]).await;
    let error = rig.report().listeners[0].pool.as_ref().unwrap().members[0]
        .last_error
        .clone();
    assert_eq!(error.as_deref(), Some("answered 500 Internal Server Error"));
    rig.change_pool(|pool| {
        pool.monitor.as_mut().unwrap().kind = MonitorKind::Http(http("/ill", "200,500"));
    })
    .await;
    rig.states(&[Online, Error]).await;
}

#[tokio::test]
async fn tls_checks_want_tls_and_no_particular_certificate() {
    let (web, echo) = (Web::new("a").await, Echo::new("b").await);
    // A balancer that speaks TLS serves as the member.
    let mut inner_pool = pool([web.member()]);
    inner_pool.protocol = PoolProtocol::Http;
    let mut inner = listener("inner", inner_pool);
    inner.protocol = ListenerProtocol::TerminatedHttps;
    inner.tls = Some(certificate());
    let inner = Fixture::new(balancer([inner])).await;
    let mut wanted = pool([MemberConfig::new("tls", inner.address(0)), echo.member()]);
    wanted.monitor = Some(monitor(MonitorKind::TlsHello));
    let mut rig = Fixture::new(balancer([listener("l", wanted)])).await;
    rig.states(&[Online, Error]).await;
    rig.change_pool(|pool| {
        pool.monitor.as_mut().unwrap().kind = MonitorKind::Https(http("/ill", "200"));
    })
    .await;
    rig.states(&[Error, Error]).await;
    rig.change_pool(|pool| {
        pool.monitor.as_mut().unwrap().kind = MonitorKind::Https(http("/", "200"));
    })
    .await;
    rig.states(&[Online, Error]).await;
}

#[tokio::test]
async fn ping_works_where_the_system_permits_it_and_says_so_where_not() {
    let mut wanted = pool([MemberConfig::new("here", SocketAddr::new(NODE, 1))]);
    wanted.monitor = Some(monitor(MonitorKind::Ping));
    let rig = Fixture::new(balancer([listener("l", wanted)])).await;
    let state =
        |report: &LoadBalancerReport| report.listeners[0].pool.as_ref().unwrap().members[0].clone();
    rig.until(|report| state(report).state != Offline).await;
    let member = state(&rig.report());
    match member.state {
        Online => assert_eq!(member.last_error, None),
        _ => assert!(
            member
                .last_error
                .unwrap()
                .contains("permits this process no ICMP socket")
        ),
    }
}

#[tokio::test]
async fn a_check_that_gets_no_answer_fails_in_time() {
    // It accepts and says nothing.
    let silent = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let mut wanted = pool([MemberConfig::new("silent", silent.local_addr().unwrap())]);
    let mut check = monitor(MonitorKind::Http(http("/", "200")));
    check.timeout = Duration::from_millis(100);
    wanted.monitor = Some(check);
    let rig = Fixture::new(balancer([listener("l", wanted)])).await;
    rig.states(&[Error]).await;
    let error = rig.report().listeners[0].pool.as_ref().unwrap().members[0]
        .last_error
        .clone();
    assert_eq!(error.as_deref(), Some("no answer within 100ms"));
}

#[tokio::test]
async fn checks_of_proxy_pools_begin_with_a_header_that_speaks_for_nobody() {
    for (protocol, expected) in [
        (PoolProtocol::Proxy, &b"PROXY UNKNOWN\r\nGET / "[..]),
        (PoolProtocol::ProxyV2, &b"\r\n\r\n\0\r\nQUIT\n\x20\x01\0\0GET / "[..]),
    ] {
        let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
        let mut wanted = pool([MemberConfig::new("m", member.local_addr().unwrap())]);
        wanted.protocol = protocol;
        wanted.monitor = Some(monitor(MonitorKind::Http(http("/", "200"))));
        let _rig = Fixture::new(balancer([listener("l", wanted)])).await;
        let (mut check, _) = soon(member.accept()).await.unwrap();
        let mut begin = vec![0; expected.len()];
        soon(check.read_exact(&mut begin)).await.unwrap();
        assert_eq!(begin, expected);
    }
}
