//! The reflector against a server that misbehaves.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::{Behaviour, Server, failure};
use crate::{
    k8s::{NodeFields, NodeView},
    runtime::{
        cache::{Cache, Change},
        reflector::{CacheMetrics, FirstSyncTimedOut, Reflector, ReflectorOptions},
    },
};

struct Run {
    server: Server,
    cache: Cache<NodeView>,
    registry: Registry,
    log: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<Result<(), FirstSyncTimedOut>>,
    _stop: DropGuard,
}

impl Run {
    fn start(server: &Server, options: ReflectorOptions) -> Self {
        let cache = Cache::new(NodeFields::default());
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = log.clone();
        cache.on_change(move |change: &Change<NodeView>| {
            sink.lock().push(match change {
                Change::Added(new) => format!("+{}/{}", new.name, new.uid),
                Change::Updated { old, new } => {
                    assert_eq!(old.uid, new.uid);
                    format!("~{}/{}", new.name, new.uid)
                }
                Change::Deleted(old) => format!("-{}/{}", old.name, old.uid),
            });
        });
        let registry = Registry::new();
        let metrics = CacheMetrics::register(&registry).unwrap();
        let reflector = Reflector::new(server.client(), cache.clone(), options, metrics);
        let stop = CancellationToken::new();
        let task = tokio::spawn(reflector.run(stop.clone()));
        Self {
            server: server.clone(),
            cache,
            registry,
            log,
            task,
            _stop: stop.drop_guard(),
        }
    }

    async fn synced(server: &Server) -> Self {
        let run = Self::start(server, ReflectorOptions::default());
        run.wait().await;
        run
    }

    async fn wait(&self) {
        let limit = Duration::from_secs(400);
        tokio::time::timeout(limit, self.cache.synced())
            .await
            .expect("the cache fills");
    }

    /// Waits in virtual time until the cache has what the server has.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(1800);
        while !holds(self) {
            assert!(
                Instant::now() < deadline,
                "not in time: {what}; cache {:?}, requests {:?}",
                self.names(),
                self.server.requests()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn names(&self) -> BTreeSet<String> {
        self.cache
            .list()
            .iter()
            .map(|n| n.name.to_string())
            .collect()
    }

    fn has(&self, names: &[&str]) -> bool {
        self.names()
            .iter()
            .map(String::as_str)
            .eq(names.iter().copied())
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock())
    }

    fn metric(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let metric = families
            .iter()
            .find(|f| f.name() == name)
            .and_then(|f| f.get_metric().first());
        let metric = metric.unwrap_or_else(|| panic!("no metric {name}"));
        // The one that it is not reads as zero.
        metric.get_counter().get_value() + metric.get_gauge().get_value()
    }
}

fn server_with(behaviour: Behaviour, names: &[&str]) -> Server {
    let server = Server::new(behaviour);
    for name in names {
        server.put(name, "u1", "");
    }
    server
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_goes_on_as_a_watch_in_both_encodings() {
    for protobuf in [false, true] {
        let server = server_with(Behaviour { protobuf, ..Behaviour::default() }, &["a", "b"]);
        let run = Run::synced(&server).await;
        assert!(run.has(&["a", "b"]));
        server.put("c", "u1", "");
        server.put("a", "u1", "cloud://a");
        server.delete("b");
        run.until("events", |r| r.has(&["a", "c"])).await;
        assert_eq!(run.cache.get("a").unwrap().provider_id.as_deref(), Some("cloud://a"));
        assert_eq!(run.take_log()[2..], ["+c/u1", "~a/u1", "-b/u1"]);
        assert_eq!(server.requests().len(), 1, "{:?}", server.requests());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_streaming_lists_is_read_in_pages_and_asked_once() {
    for protobuf in [false, true] {
        let server = server_with(
            Behaviour { streaming: false, protobuf, ..Behaviour::default() },
            &["a", "b", "c", "d", "e"],
        );
        let run =
            Run::start(&server, ReflectorOptions { page_size: 2, ..ReflectorOptions::default() });
        run.wait().await;
        assert!(run.has(&["a", "b", "c", "d", "e"]));
        server.put("f", "u1", "");
        run.until("watch", |r| r.has(&["a", "b", "c", "d", "e", "f"]))
            .await;
        server.compact();
        server.cut();
        server.put("g", "u1", "");
        server.compact();
        run.until("relist", |r| r.cache.len() == 7).await;
        assert_eq!(server.count("sendInitialEvents"), 1);
        assert_eq!(server.count("limit=2"), 3 + 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_expires_between_pages_is_taken_in_one_piece() {
    let behaviour = Behaviour {
        streaming: false,
        write_between_pages: true,
        ..Behaviour::default()
    };
    let server = server_with(behaviour, &["a", "b", "c"]);
    let run = Run::start(&server, ReflectorOptions { page_size: 2, ..ReflectorOptions::default() });
    run.wait().await;
    assert!(run.has(&["a", "b", "c"]));
    assert_eq!(run.take_log().len(), 3);
    assert_eq!((server.count("limit=2"), server.count("GET /api/v1/nodes [")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_cut_watch_is_resumed_without_a_list() {
    let server = server_with(Behaviour::default(), &["a"]);
    let run = Run::synced(&server).await;
    server.put("b", "u1", "");
    run.until("event", |r| r.has(&["a", "b"])).await;
    server.cut();
    server.put("c", "u1", "");
    server.delete("a");
    run.until("missed events", |r| r.has(&["b", "c"])).await;
    assert_eq!(run.take_log(), ["+a/u1", "+b/u1", "+c/u1", "-a/u1"]);
    assert_eq!(server.count("sendInitialEvents"), 1);
    assert_eq!(server.count("resourceVersion=102"), 1, "{:?}", server.requests());
    assert!((run.metric("ccm_cache_relists_total") - 1.0).abs() < f64::EPSILON);
    assert!((run.metric("ccm_cache_watch_restarts_total") - 1.0).abs() < f64::EPSILON);
    assert!((run.metric("ccm_cache_objects") - 2.0).abs() < f64::EPSILON);
}

#[tokio::test(start_paused = true)]
async fn after_410_the_differences_are_the_right_ones() {
    for late_410 in [false, true] {
        for protobuf in [false, true] {
            let server = server_with(
                Behaviour { protobuf, late_410, ..Behaviour::default() },
                &["a", "b", "c", "d"],
            );
            let run = Run::synced(&server).await;
            run.take_log();
            server.cut();
            server.delete("a");
            server.put("b", "u1", "cloud://b");
            server.delete("c");
            server.put("c", "u2", "");
            server.put("e", "u1", "");
            server.compact();
            run.until("relist", |r| r.has(&["b", "c", "d", "e"])).await;
            let mut log = run.take_log();
            let namesakes: Vec<_> = log.iter().filter(|l| l.contains("c/")).cloned().collect();
            assert_eq!(namesakes, ["-c/u1", "+c/u2"]);
            log.sort();
            assert_eq!(log, ["+c/u2", "+e/u1", "-a/u1", "-c/u1", "~b/u1"], "d did not change");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bookmarks_keep_the_position_fresh() {
    let server = server_with(Behaviour::default(), &["a"]);
    let run = Run::synced(&server).await;
    // Writes to other kinds of objects move the server on.
    server.advance(50);
    tokio::time::sleep(Duration::from_secs(70)).await;
    server.compact();
    server.cut();
    server.put("b", "u1", "");
    run.until("resumed", |r| r.has(&["a", "b"])).await;
    assert_eq!(
        server.count("sendInitialEvents"),
        1,
        "resumed without a list: {:?}",
        server.requests()
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_opened_again() {
    let server = server_with(Behaviour::default(), &["a"]);
    let run = Run::synced(&server).await;
    server.mute();
    server.put("b", "u1", "");
    let muted = Instant::now();
    run.until("noticed", |r| r.has(&["a", "b"])).await;
    assert!(muted.elapsed() < Duration::from_secs(155), "{:?}", muted.elapsed());
    assert_eq!(server.count("sendInitialEvents"), 1);
}

#[tokio::test(start_paused = true)]
async fn watches_end_after_five_to_ten_minutes_and_go_on() {
    let server = server_with(Behaviour::default(), &["a"]);
    let run = Run::synced(&server).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let watches = server.count("watch=true");
    assert!((6..=13).contains(&watches), "{watches}");
    server.put("b", "u1", "");
    run.until("still watching", |r| r.has(&["a", "b"])).await;
    assert_eq!(server.count("sendInitialEvents"), 1);
    assert!(run.metric("ccm_cache_last_event_age_seconds") < 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_every_watch_at_once_is_asked_ever_more_slowly() {
    for breaks in [false, true] {
        let server = server_with(Behaviour::default(), &["a"]);
        let _run = Run::synced(&server).await;
        server.behave(|b| (b.closes_watches, b.breaks_watches) = (!breaks, breaks));
        server.cut();
        tokio::time::sleep(Duration::from_secs(600)).await;
        let watches = server.count("watch=true");
        assert!((10..=40).contains(&watches), "{watches}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_410_to_every_watch_is_not_flooded() {
    let server = server_with(Behaviour { streaming: false, ..Behaviour::default() }, &["a"]);
    let _run = Run::synced(&server).await;
    server.behave(|b| b.expires_watches = true);
    server.cut();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let lists = server.count("limit=500");
    assert!((5..=45).contains(&lists), "{lists}");
}

#[tokio::test(start_paused = true)]
async fn a_restored_backup_is_believed_after_a_while() {
    for streaming in [true, false] {
        let server = server_with(Behaviour { streaming, ..Behaviour::default() }, &["a", "b", "c"]);
        let run = Run::synced(&server).await;
        let lists = |s: &Server| {
            s.count(if streaming {
                "sendInitialEvents"
            } else {
                "limit=500"
            })
        };
        server.restore_backup(50);
        let restored = Instant::now();
        server.put("d", "u1", "");
        run.until("older events", |r| r.has(&["a", "b", "c", "d"]))
            .await;
        assert_eq!(lists(&server), 1 + 5);
        assert!((12..90).contains(&restored.elapsed().as_secs()), "{:?}", restored.elapsed());
        server.delete("a");
        run.until("newer events of the older line", |r| r.has(&["b", "c", "d"]))
            .await;
        assert_eq!(lists(&server), 1 + 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lags_for_a_moment_changes_nothing() {
    let server = server_with(Behaviour::default(), &["a", "b"]);
    let run = Run::synced(&server).await;
    server.advance(20);
    tokio::time::sleep(Duration::from_secs(70)).await;
    run.take_log();
    // Another server answers, which has not seen b yet, nor the last writes; then it has.
    server.restore_backup(101);
    server.forget("b");
    server.cut();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(server.count("sendInitialEvents") > 1 && run.has(&["a", "b"]));
    server.restore_backup(150);
    server.put("b", "u1", "");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(run.take_log(), ["~b/u1"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ignores_the_wish_for_a_list_is_read_in_pages() {
    let server =
        server_with(Behaviour { no_end: true, bookmarks: 10, ..Behaviour::default() }, &["a"]);
    let run = Run::synced(&server).await;
    assert!(run.has(&["a"]));
    assert_eq!((server.count("sendInitialEvents"), server.count("limit=500")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_never_completes_gives_way_to_pages() {
    let server =
        server_with(Behaviour { no_end: true, bookmarks: 0, ..Behaviour::default() }, &["a"]);
    let run = Run::synced(&server).await;
    assert!(run.has(&["a"]));
    assert_eq!((server.count("sendInitialEvents"), server.count("limit=500")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_ends_the_reflector_after_the_documented_time() {
    let server = Server::new(Behaviour { hangs: true, ..Behaviour::default() });
    let run = Run::start(&server, ReflectorOptions::default());
    let started = Instant::now();
    let error = run.task.await.unwrap().unwrap_err();
    assert_eq!(started.elapsed().as_secs(), 300);
    assert_eq!(
        error.to_string(),
        "cannot list nodes: not complete after 300s, last failure: cannot watch nodes: no complete answer within 30s"
    );
}

#[tokio::test(start_paused = true)]
async fn missing_rights_are_named_and_tried_again() {
    let answers = Some((
        403,
        failure(403, "Forbidden", "nodes is forbidden: User \"x\" cannot watch resource \"nodes\""),
    ));
    let server = server_with(Behaviour { answers, ..Behaviour::default() }, &["a"]);
    let first_sync = Duration::from_secs(100);
    let options = ReflectorOptions {
        first_sync,
        count_denials: true,
        ..ReflectorOptions::default()
    };
    let error = Run::start(&server, options)
        .task
        .await
        .unwrap()
        .unwrap_err();
    let want = "cannot watch nodes: missing RBAC rule for verb \"watch\" on resource \"nodes\" in API group \"\"";
    assert!(error.to_string().contains(want), "{error}");

    // Three times as long as a first list may take, with credentials that are not accepted in
    // between.
    let run = Run::start(&server, ReflectorOptions::default());
    for code in [403, 401, 403] {
        server.behave(|b| b.answers = Some((code, failure(code, "Forbidden", "no"))));
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert!(!run.task.is_finished(), "no restart grants a right");
    }
    server.behave(|b| b.answers = None);
    run.until("granted", |r| r.has(&["a"])).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_after_a_denial_has_all_its_time() {
    let server =
        server_with(Behaviour { answers: Some((403, json!({}))), ..Behaviour::default() }, &["a"]);
    let run = Run::start(&server, ReflectorOptions::default());
    tokio::time::sleep(Duration::from_secs(1000)).await;
    server.behave(|b| b.answers = Some((503, json!({}))));
    let started = Instant::now();
    run.task.await.unwrap().unwrap_err();
    let took = started.elapsed().as_secs();
    assert!((240..=360).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_after_the_first_list_never_ends_the_reflector() {
    let server = server_with(Behaviour::default(), &["a"]);
    let run = Run::synced(&server).await;
    server.behave(|b| b.answers = Some((503, json!({}))));
    server.cut();
    tokio::time::sleep(Duration::from_secs(7200)).await;
    let tries = server.request_times("watch=true");
    let gaps: Vec<_> = tries.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(
        gaps[2..]
            .iter()
            .all(|g| *g >= Duration::from_millis(800) && *g <= Duration::from_secs(61)),
        "{gaps:?}"
    );
    assert!(run.has(&["a"]), "what was known stays");
    server.behave(|b| b.answers = None);
    server.put("b", "u1", "");
    run.until("back", |r| r.has(&["a", "b"])).await;
    assert!(!run.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_keeps_its_last_state_and_hides_no_other() {
    for streaming in [true, false] {
        let server = server_with(Behaviour { streaming, ..Behaviour::default() }, &["a", "b"]);
        let run = Run::synced(&server).await;
        let broken = json!({"metadata": {"name": "a", "uid": "u1"}, "spec": {"taints": "none"}});
        server.put_object(broken);
        server.put("b", "u1", "cloud://b");
        run.until("event after it", |r| r.cache.get("b").is_some_and(|b| b.provider_id.is_some()))
            .await;
        server.cut();
        server.put("c", "u1", "");
        server.compact();
        run.until("list with it", |r| r.has(&["a", "b", "c"])).await;
        assert_eq!(&*run.cache.get("a").unwrap().resource_version, "101");
        assert!(!run.take_log().contains(&"-a/u1".to_owned()));
        assert!((run.metric("ccm_cache_unreadable_objects_total") - 2.0).abs() < f64::EPSILON);
    }
}
