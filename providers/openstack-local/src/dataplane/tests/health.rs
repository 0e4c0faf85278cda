//! Monitors.

use super::rig::{Echo, Rig, balancer, listener, monitor, pool};
use crate::dataplane::{
    MemberState::{Draining, Error, NoMonitor, Offline, Online},
    MonitorKind,
};

#[tokio::test]
async fn a_member_that_goes_away_is_taken_out_and_comes_back() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut wanted = pool([a.member(), b.member()]);
    wanted.monitor = Some(monitor(MonitorKind::Tcp));
    let rig = Rig::new(balancer([listener("l", wanted)])).await;
    rig.states(&[Online, Online]).await;
    let place = a.end().await;
    rig.states(&[Error, Online]).await;
    let report = rig.report();
    let error = report.listeners[0].pool.as_ref().unwrap().members[0].last_error.clone();
    assert!(error.as_ref().is_some_and(|error| error.contains("refused")), "{error:?}");
    assert_eq!(rig.names(3).await, "bbb");
    let _a = Echo::at("a", place).await;
    rig.states(&[Online, Online]).await;
    let names = rig.names(2).await;
    assert!(names == "ab" || names == "ba", "{names}");
}

#[tokio::test]
async fn states_follow_what_is_wanted() {
    let (a, b) = (Echo::new("a").await, Echo::new("b").await);
    let mut rig = Rig::tcp(&[&a, &b]).await;
    rig.states(&[NoMonitor, NoMonitor]).await;
    rig.change_pool(|pool| pool.members[0].enabled = false).await;
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
async fn a_member_may_be_checked_elsewhere() {
    let (a, b, check) = (Echo::new("a").await, Echo::new("b").await, Echo::new("check").await);
    let mut wanted = pool([a.member(), b.member()]);
    wanted.monitor = Some(monitor(MonitorKind::Tcp));
    wanted.members[0].monitor_port = Some(check.address.port());
    let rig = Rig::new(balancer([listener("l", wanted)])).await;
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
    let rig = Rig::new(balancer([listener("l", wanted)])).await;
    rig.states(&[Online, Online]).await;
    assert_eq!(rig.names(3).await, "aaa");
    let place = a.end().await;
    rig.states(&[Error, Online]).await;
    assert_eq!(rig.names(2).await, "bb");
    let _a = Echo::at("a", place).await;
    rig.states(&[Online, Online]).await;
    assert_eq!(rig.names(2).await, "aa");
}
