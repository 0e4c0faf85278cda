//! Cloud objects that nobody asks for: found, told, and deleted only where that was asked for.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    controllers::orphans::{CollectOutcome, OrphanAction, OrphanReason},
    error::chain,
    manager::OrphanRequest,
    provider::{
        CloudError, CloudProvider, Inventory, LoadBalancers, Op, OwnedObject, Progress,
        ProviderContext,
    },
    write_gate::WriteGate,
};
use ccm_mock::{
    MockProvider,
    cloud::{Fault, FaultError, FaultSpec, LoadBalancerEdit, Operation},
};
use ccm_testkit::apiserver::{Match, resources};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{TestCluster, secs},
    service_world::SERVICE,
};

const DAY: u64 = 24 * 3600;
/// The cluster has the default name.
const CONFIRM: &str = "--collect-orphans-confirm=kubernetes";

/// A world in which these Services had balancers when the last process ended; those of `lost` went
/// without a deletion.
async fn leaked(services: &[&str], lost: &[&str]) -> TestCluster {
    let world = TestCluster::with("");
    world.have_nodes(["n1"]).await;
    let ccm = world.start(&SERVICE);
    for name in services {
        world.serve(name).await;
    }
    world.until_served(services, secs(60)).await;
    ccm.stop().await;
    for name in lost {
        world.remove_service(name);
    }
    world
}

/// Services whose balancers are in the cloud.
fn held(world: &TestCluster) -> Vec<String> {
    let mut names: Vec<_> = world
        .cloud
        .load_balancers()
        .into_iter()
        .map(|balancer| balancer.service)
        .collect();
    names.sort();
    names
}

fn start(world: &TestCluster, flags: &[&str]) -> crate::cluster::Ccm {
    let flags: Vec<&str> = SERVICE.iter().chain(flags).copied().collect();
    world.start(&flags)
}

#[tokio::test(start_paused = true)]
async fn a_leaked_balancer_is_told_once_and_left() {
    let world = leaked(&["db", "lost", "web"], &["lost"]).await;
    let before = world.cloud.calls();
    let ccm = start(&world, &["--orphan-report-period=1h"]);
    tokio::time::sleep(secs(5 * 3600)).await;
    assert_eq!(ccm.metric("ccm_orphaned_objects", &[]), 1.0);
    assert_eq!(ccm.metric("ccm_orphan_looks_total", &[("outcome", "success")]), 5.0);
    assert_eq!(
        ccm.metric("ccm_cloud_calls_total", &[("operation", "list_owned"), ("outcome", "success")]),
        5.0
    );
    let told = world.events_about("Service");
    assert_eq!(
        told.iter()
            .filter(|(reason, _)| reason == "OrphanedCloudObject")
            .collect::<Vec<_>>()
            .len(),
        1,
        "{told:?}"
    );
    assert_eq!(held(&world), ["default/db", "default/lost", "default/web"]);
    assert_eq!(world.cloud.calls().since(&before).writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_old_enough_is_collected_and_nothing_else() {
    let world = leaked(&["db", "lost", "web"], &["lost"]).await;
    let ccm = start(
        &world,
        &["--collect-orphans", CONFIRM, "--orphan-report-period=20m", "--orphan-minimum-age=1h"],
    );
    // Seen first after ten minutes; an hour later the fourth look comes.
    tokio::time::sleep(secs(65 * 60)).await;
    assert_eq!(held(&world).len(), 3);
    tokio::time::sleep(secs(10 * 60)).await;
    assert_eq!(held(&world), ["default/db", "default/web"]);
    assert_eq!(ccm.metric("ccm_orphans_collected_total", &[("outcome", "deleted")]), 1.0);
    tokio::time::sleep(secs(DAY)).await;
    assert_eq!(held(&world), ["default/db", "default/web"]);
    assert_eq!(ccm.metric("ccm_orphaned_objects", &[]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn another_clusters_balancer_is_not_seen() {
    let world = leaked(&["db", "lost", "web"], &["lost"]).await;
    give_away(&world, "default/lost");
    let ccm = start(
        &world,
        &["--collect-orphans", CONFIRM, "--orphan-report-period=20m", "--orphan-minimum-age=0s"],
    );
    tokio::time::sleep(secs(DAY)).await;
    assert_eq!(held(&world).len(), 3);
    assert_eq!(ccm.metric("ccm_orphaned_objects", &[]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_look_like_itself_collects_nothing() {
    for (services, lost) in
        [(&["a"][..], &["a"][..]), (&["a", "b", "c", "d", "e"], &["a", "b", "c"])]
    {
        let world = leaked(services, lost).await;
        let ccm = start(
            &world,
            &[
                "--collect-orphans",
                CONFIRM,
                "--orphan-report-period=20m",
                "--orphan-minimum-age=0s",
            ],
        );
        tokio::time::sleep(secs(DAY)).await;
        assert_eq!(held(&world).len(), services.len(), "{lost:?}");
        assert!(ccm.metric("ccm_orphans_collected_total", &[("outcome", "doubted")]) > 0.0);
        assert_eq!(ccm.metric("ccm_orphans_collected_total", &[("outcome", "deleted")]), 0.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_with_the_default_name_collects_nothing_until_it_is_confirmed() {
    for (confirm, collected) in [("", 0), ("--collect-orphans-confirm=blue", 0), (CONFIRM, 1)] {
        let world = leaked(&["db", "lost", "web"], &["lost"]).await;
        let mut flags =
            vec!["--collect-orphans", "--orphan-report-period=20m", "--orphan-minimum-age=0s"];
        flags.extend(Some(confirm).filter(|flag| !flag.is_empty()));
        let ccm = start(&world, &flags);
        tokio::time::sleep(secs(DAY)).await;
        assert_eq!(held(&world).len(), 3 - collected, "{confirm}");
        let refused = ccm.metric("ccm_orphans_collected_total", &[("outcome", "doubted")]);
        assert_eq!(refused > 0.0, collected == 0, "{confirm}");
    }
}

/// As when a backup is restored, while the watch says nothing of it.
#[tokio::test(start_paused = true)]
async fn a_service_that_the_cache_does_not_show_keeps_its_balancer() {
    let world = leaked(&["db", "web", "back"], &[]).await;
    let back = world.service("back");
    world.remove_service("back");
    let ccm = start(
        &world,
        &["--collect-orphans", CONFIRM, "--orphan-report-period=20m", "--orphan-minimum-age=30m"],
    );
    tokio::time::sleep(secs(15 * 60)).await;
    assert_eq!(ccm.metric("ccm_orphaned_objects", &[]), 1.0);
    world
        .server
        .faults()
        .freeze_watches(Match::resource("services").verb("watch"));
    let def = resources::find("", "v1", "services").unwrap();
    world.server.store().write(|tx| tx.put(def, back));
    tokio::time::sleep(secs(DAY)).await;
    assert_eq!(held(&world).len(), 3);
    assert_eq!(ccm.metric("ccm_orphaned_objects", &[]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_cannot_list_has_no_orphans_and_is_asked_again() {
    let world = leaked(&["db", "lost", "web"], &["lost"]).await;
    let spec = FaultSpec {
        operation: Some(Operation::ListLoadBalancers),
        error: Some(FaultError::Transient),
        times: Some(2),
        ..FaultSpec::default()
    };
    world.cloud.set_faults(vec![Fault::new(spec).unwrap()]);
    let ccm = start(&world, &["--orphan-report-period=24h"]);
    tokio::time::sleep(secs(21 * 60)).await;
    assert_eq!(ccm.metric("ccm_orphan_looks_total", &[("outcome", "failed")]), 2.0);
    assert_eq!(ccm.metric("ccm_orphaned_objects", &[]), 0.0);
    tokio::time::sleep(secs(10 * 60)).await;
    assert_eq!(ccm.metric("ccm_orphaned_objects", &[]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn no_search_is_made_when_none_is_wanted() {
    let world = leaked(&["db", "lost"], &["lost"]).await;
    let ccm = start(&world, &["--orphan-report-period=0"]);
    tokio::time::sleep(secs(2 * DAY)).await;
    assert_eq!(ccm.metric("ccm_cloud_calls_total", &[("operation", "list_owned")]), 0.0);
}

/// What is wrong with a provider's inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    StartHangs,
    StartPanics,
    ListPanics,
    ListHangs,
    /// Page follows page.
    ListNeverEnds,
    /// What another cluster owns is listed, too.
    ListsOthers,
    DeletePanics,
    DeleteHangs,
    /// It is said to be done, and nothing was.
    DeleteLies,
    DeleteWaits,
    DeleteWaitsWithoutPause,
}

/// A provider whose inventory lies, or does worse.
struct Bad {
    inner: MockProvider,
    wrong: Wrong,
}

#[async_trait]
impl CloudProvider for Bad {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn start(&self, _: ProviderContext) -> Result<(), CloudError> {
        assert!(self.wrong != Wrong::StartPanics, "a bug");
        match self.wrong {
            Wrong::StartHangs => std::future::pending().await,
            _ => Ok(()),
        }
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        self.inner.load_balancers()
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}

#[async_trait]
impl Inventory for Bad {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let real = self.inner.inventory().unwrap();
        assert!(self.wrong != Wrong::ListPanics, "a bug");
        match self.wrong {
            Wrong::ListHangs => std::future::pending().await,
            Wrong::ListNeverEnds => loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
            },
            Wrong::ListsOthers => {
                let there = Op::new("another", CancellationToken::new(), WriteGate::always_open());
                let mut listed = real.list_owned(op).await?;
                listed.extend(real.list_owned(&there).await?);
                Ok(listed)
            }
            _ => real.list_owned(op).await,
        }
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        let pending = |after| Ok(Progress::Pending { after, reason: "the cloud is at it".into() });
        assert!(self.wrong != Wrong::DeletePanics, "a bug");
        match self.wrong {
            Wrong::DeleteHangs => std::future::pending().await,
            Wrong::DeleteLies => Ok(Progress::Done),
            Wrong::DeleteWaits => pending(secs(1)),
            Wrong::DeleteWaitsWithoutPause => pending(secs(0)),
            _ => {
                self.inner
                    .inventory()
                    .unwrap()
                    .delete_owned(op, object)
                    .await
            }
        }
    }
}

/// Gives a balancer to another cluster.
fn give_away(world: &TestCluster, service: &str) {
    let found = world
        .cloud
        .load_balancers()
        .into_iter()
        .find(|balancer| balancer.service == service)
        .unwrap();
    let edit = LoadBalancerEdit {
        cluster: Some("another".into()),
        ..LoadBalancerEdit::default()
    };
    world.cloud.edit_load_balancer(&found.name, edit).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_panics_or_hangs_costs_the_report_and_not_the_process() {
    for wrong in [Wrong::ListPanics, Wrong::ListHangs, Wrong::ListNeverEnds] {
        let world = leaked(&["db"], &[]).await;
        let flags = [SERVICE[0], "--orphan-report-period=20m"];
        let ccm = world.start_with(Arc::new(Bad { inner: world.provider(), wrong }), &flags);
        tokio::time::sleep(secs(3600)).await;
        assert!(ccm.is_running(), "{wrong:?}");
        assert!(ccm.metric("ccm_orphan_looks_total", &[("outcome", "failed")]) >= 4.0, "{wrong:?}");
    }
}

/// What the subcommand does about each: its report, or why there is none.
#[tokio::test(start_paused = true)]
async fn the_subcommand_ends_in_time_and_says_what_is_wrong_with_the_provider() {
    let expected = [
        (Wrong::StartHangs, "within the time given by --timeout"),
        (Wrong::StartPanics, "panicked in start: a bug"),
        (Wrong::ListPanics, "the provider panicked: a bug"),
        (Wrong::ListHangs, "within the time given by --timeout"),
        (Wrong::ListNeverEnds, "within the time given by --timeout"),
        (Wrong::ListsOthers, "failed: the provider reported it as deleted, but still lists it"),
        (Wrong::DeletePanics, "failed: the provider panicked: a bug"),
        (Wrong::DeleteHangs, "failed: delete_owned did not end"),
        (Wrong::DeleteLies, "failed: the provider reported it as deleted, but still lists it"),
        (Wrong::DeleteWaits, "pending: the cloud is at it"),
        (Wrong::DeleteWaitsWithoutPause, "pending: the cloud is at it"),
    ];
    for (wrong, said) in expected {
        let world =
            leaked(&["db", "lost", "old", "theirs", "web"], &["lost", "old", "theirs"]).await;
        give_away(&world, "default/theirs");
        let limit = Instant::now() + secs(100);
        let request = OrphanRequest {
            delete: Some("kubernetes".into()),
            minimum_age: secs(0),
            limit,
        };
        let manager = world.manager(Arc::new(Bad { inner: world.provider(), wrong }), &SERVICE);
        let result = manager.orphans(request, CancellationToken::new()).await;
        assert!(
            Instant::now() <= limit + secs(5),
            "{wrong:?} took {:?} too long",
            Instant::now() - limit
        );
        let text = match &result {
            Ok(report) => {
                assert!(
                    report.failed() + report.remaining() > 0,
                    "{wrong:?} leaves nothing: {}",
                    report.table()
                );
                report.table()
            }
            Err(error) => chain(error),
        };
        assert!(text.contains(said), "{wrong:?}: {text}");
        let left = held(&world);
        for name in ["default/db", "default/theirs", "default/web"] {
            assert!(left.iter().any(|service| service == name), "{wrong:?} cost {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_subcommand_deletes_nothing_of_a_cluster_that_was_not_confirmed() {
    let world = leaked(&["db", "lost"], &["lost"]).await;
    let calls = world.cloud.calls();
    let request = |delete: Option<&str>| OrphanRequest {
        delete: delete.map(str::to_owned),
        minimum_age: secs(0),
        limit: Instant::now() + secs(60),
    };
    let manager = || world.manager(Arc::new(Named(world.provider())), &SERVICE);
    // Neither is the name by flag that of the marks.
    for confirmed in ["", "another", "kubernetes"] {
        let result = manager()
            .orphans(request(Some(confirmed)), CancellationToken::new())
            .await;
        let error = result.expect_err("it is not confirmed");
        assert!(error.to_string().contains("\"marked\""), "{error}");
    }
    let report = manager()
        .orphans(request(None), CancellationToken::new())
        .await
        .unwrap();
    assert!(report.table().contains("--confirm=marked"), "{}", report.table());
    assert_eq!(world.cloud.calls().since(&calls).writes(), 0);
    let report = manager()
        .orphans(request(Some("marked")), CancellationToken::new())
        .await
        .unwrap();
    assert_eq!((report.remaining(), held(&world)), (0, vec!["default/db".to_owned()]));
}

/// A provider whose marks have another name for the cluster than the flag.
struct Named(MockProvider);

#[async_trait]
impl CloudProvider for Named {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        self.0.load_balancers()
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}

#[async_trait]
impl Inventory for Named {
    fn cluster_id(&self, _: &Op) -> Box<str> {
        "marked".into()
    }

    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        self.0.inventory().unwrap().list_owned(op).await
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        self.0.inventory().unwrap().delete_owned(op, object).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_subcommand_lists_and_writes_nothing() {
    let world = leaked(&["db", "lost", "web"], &["lost"]).await;
    let (calls, writes) = (world.cloud.calls(), world.writes().len());
    let request = OrphanRequest {
        delete: None,
        minimum_age: secs(0),
        limit: Instant::now() + secs(60),
    };
    let manager = world.manager(Arc::new(world.provider()), &SERVICE);
    let report = manager
        .orphans(request, CancellationToken::new())
        .await
        .unwrap();
    assert_eq!((report.owned, report.remaining()), (3, 1));
    let (orphan, treatment) = &report.orphans[0];
    assert_eq!(orphan.reason, OrphanReason::NoService);
    assert!(matches!(treatment, OrphanAction::Listed));
    assert!(report.table().contains("Service default/lost"), "{}", report.table());
    assert_eq!(world.cloud.calls().since(&calls).writes(), 0);
    assert_eq!(world.writes().len(), writes);
}

#[tokio::test(start_paused = true)]
async fn the_subcommand_deletes_what_is_old_enough() {
    // More than half, and the last ones: whoever confirms it means it.
    let world = leaked(&["a", "b", "c"], &["a", "b", "c"]).await;
    let delete = |minimum_age| OrphanRequest {
        delete: Some("kubernetes".into()),
        minimum_age,
        limit: Instant::now() + secs(60),
    };
    let manager = || world.manager(Arc::new(world.provider()), &SERVICE);
    let report = manager()
        .orphans(delete(secs(3600)), CancellationToken::new())
        .await
        .unwrap();
    assert!(
        report
            .orphans
            .iter()
            .all(|(_, treatment)| matches!(treatment, OrphanAction::TooYoung)),
        "{report:?}"
    );
    assert_eq!(held(&world).len(), 3);
    let report = manager()
        .orphans(delete(secs(0)), CancellationToken::new())
        .await
        .unwrap();
    let deleted = |treatment: &OrphanAction| {
        matches!(treatment, OrphanAction::Collected(Ok(CollectOutcome::Deleted)))
    };
    assert!(
        report
            .orphans
            .iter()
            .all(|(_, treatment)| deleted(treatment)),
        "{report:?}"
    );
    assert_eq!((report.remaining(), held(&world).len()), (0, 0));
}
