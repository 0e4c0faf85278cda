//! What is not relevant does not exist: every way in which a Service can begin or cease to be so.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::{Behaviour, Server};
use crate::{
    k8s::{ServiceFields, ServiceView, well_known},
    runtime::{
        cache::{Cache, Change},
        reflector::{CacheMetrics, Reflector, ReflectorOptions},
    },
};

struct Run {
    cache: Cache<ServiceView>,
    log: Arc<Mutex<Vec<String>>>,
    _stop: DropGuard,
}

/// `lb` or `-` for the type, `f` for the finalizer, `!` for a deletion in progress, and what is
/// there of a class and ports.
fn shape(service: &ServiceView) -> String {
    format!(
        "{}/{} {}{}{}{}{}",
        service.name,
        service.uid,
        if service.is_load_balancer { "lb" } else { "-" },
        if service.has_finalizer() { "f" } else { "" },
        if service.deleting { "!" } else { "" },
        service
            .class
            .as_deref()
            .map(|c| format!(" {c}"))
            .unwrap_or_default(),
        " port".repeat(service.ports.len()),
    )
}

impl Run {
    async fn synced(server: &Server) -> Self {
        let cache = Cache::new(ServiceFields::default());
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = log.clone();
        cache.on_change(move |change: &Change<ServiceView>| {
            sink.lock().push(match change {
                Change::Added(new) => format!("+{}", shape(new)),
                Change::Updated { old, new } => format!("{} ~ {}", shape(old), shape(new)),
                Change::Deleted(old) => format!("-{}", shape(old)),
            });
        });
        let metrics = CacheMetrics::register(&Registry::new()).unwrap();
        let options = ReflectorOptions { page_size: 2, ..ReflectorOptions::default() };
        let reflector = Reflector::new(server.client(), cache.clone(), options, metrics);
        let stop = CancellationToken::new();
        tokio::spawn(reflector.run(stop.clone()));
        tokio::time::timeout(Duration::from_secs(60), cache.synced())
            .await
            .expect("the cache fills");
        Self { cache, log, _stop: stop.drop_guard() }
    }

    /// Waits until the cache has seen everything up to a Service that is added for this alone.
    async fn caught_up(&self, server: &Server) {
        put(server, "zz-mark", "m", &json!({"type": "LoadBalancer"}), &[]);
        let deadline = Instant::now() + Duration::from_secs(600);
        while self.cache.get("shop/zz-mark").is_none() {
            assert!(Instant::now() < deadline, "not in time: {:?}", server.requests());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server.delete("shop/zz-mark");
        while self.cache.get("shop/zz-mark").is_some() {
            assert!(Instant::now() < deadline, "not in time: {:?}", server.requests());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn take_log(&self) -> Vec<String> {
        let mut log = std::mem::take(&mut *self.log.lock());
        log.retain(|line| !line.contains("zz-mark"));
        log
    }
}

fn put(server: &Server, name: &str, uid: &str, spec: &Value, finalizers: &[&str]) {
    server.put_object(json!({
        "kind": "Service", "spec": spec,
        "metadata": {"namespace": "shop", "name": name, "uid": uid, "finalizers": finalizers},
    }));
}

fn balancer() -> Value {
    json!({"type": "LoadBalancer", "ports": [{"port": 80}]})
}

fn cluster_ip() -> Value {
    json!({"type": "ClusterIP", "ports": [{"port": 80}]})
}

const OURS: &[&str] = &[well_known::FINALIZER_LOAD_BALANCER];
const NONE: &[&str] = &[];

/// What it is, the states (spec and finalizers) that a Service has in turn, and what handlers are
/// told.
type Transition = (&'static str, Vec<TestService>, Vec<&'static str>);
type TestService = (Value, &'static [&'static str]);

/// Every way of a Service into the cache and out of it.
fn transitions() -> Vec<Transition> {
    let foreign =
        || json!({"type": "LoadBalancer", "loadBalancerClass": "another", "ports": [{"port": 80}]});
    vec![
        ("never a balancer", vec![(cluster_ip(), NONE), (cluster_ip(), &["x"])], vec![]),
        ("becomes one", vec![(cluster_ip(), NONE), (balancer(), NONE)], vec!["+s/u lb port"]),
        (
            "ceases to be one, nothing to clean up",
            vec![(balancer(), NONE), (cluster_ip(), NONE)],
            vec!["+s/u lb port", "-s/u lb port"],
        ),
        (
            "ceases to be one and is cleaned up",
            vec![(balancer(), OURS), (cluster_ip(), OURS), (cluster_ip(), NONE)],
            vec!["+s/u lbf port", "s/u lbf port ~ s/u -f port", "-s/u -f port"],
        ),
        (
            "and becomes one again",
            vec![(balancer(), OURS), (cluster_ip(), NONE), (balancer(), NONE)],
            vec!["+s/u lbf port", "-s/u lbf port", "+s/u lb port"],
        ),
        ("is another controller's", vec![(foreign(), &["x"])], vec!["+s/u lb another"]),
    ]
}

#[tokio::test(start_paused = true)]
async fn services_come_and_go_with_their_relevance() {
    for protobuf in [false, true] {
        for (what, states, want) in transitions() {
            let server = Server::new(Behaviour { protobuf, ..Behaviour::default() });
            let run = Run::synced(&server).await;
            for (spec, finalizers) in states {
                put(&server, "s", "u", &spec, finalizers);
            }
            run.caught_up(&server).await;
            assert_eq!(run.take_log(), want, "{what}");
            assert_eq!(server.count("sendInitialEvents"), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn deletions_are_seen_whatever_the_last_state_was() {
    for protobuf in [false, true] {
        let server = Server::new(Behaviour { protobuf, ..Behaviour::default() });
        let run = Run::synced(&server).await;
        for name in ["a", "b", "c", "d"] {
            put(&server, name, "u", &balancer(), NONE);
        }
        run.caught_up(&server).await;
        run.take_log();
        server.delete("shop/a");
        put(&server, "b", "u", &cluster_ip(), NONE);
        server.delete("shop/b");
        // Another protocol than any that is known: the state cannot be read, the deletion can.
        put(
            &server,
            "c",
            "u",
            &json!({"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "QUIC"}]}),
            NONE,
        );
        server.delete("shop/c");
        // Deleted and created again as something else, under one name.
        server.delete("shop/d");
        put(&server, "d", "u2", &cluster_ip(), NONE);
        server.delete("shop/d");
        run.caught_up(&server).await;
        assert_eq!(
            run.take_log(),
            ["-a/u lb port", "-b/u lb port", "-c/u lb port", "-d/u lb port"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_after_410_finds_what_became_of_each() {
    for (streaming, protobuf) in [(true, false), (true, true), (false, false), (false, true)] {
        let server = Server::new(Behaviour { streaming, protobuf, ..Behaviour::default() });
        for name in ["gone", "left", "finalized", "same", "unreadable", "again"] {
            put(&server, name, "u", &balancer(), NONE);
        }
        put(&server, "came", "u", &cluster_ip(), NONE);
        put(&server, "never", "u", &cluster_ip(), NONE);
        let run = Run::synced(&server).await;
        assert_eq!(run.cache.len(), 6);
        run.take_log();

        server.cut();
        server.delete("shop/gone");
        put(&server, "left", "u", &cluster_ip(), NONE);
        put(&server, "finalized", "u", &cluster_ip(), OURS);
        put(&server, "came", "u", &balancer(), NONE);
        put(&server, "never", "u2", &cluster_ip(), NONE);
        put(&server, "again", "u2", &balancer(), NONE);
        put(
            &server,
            "unreadable",
            "u",
            &json!({"type": "LoadBalancer", "ports": [{"port": 0}]}),
            NONE,
        );
        server.compact();
        run.caught_up(&server).await;
        let mut log = run.take_log();
        log.sort();
        assert_eq!(
            log,
            [
                "+again/u2 lb port",
                "+came/u lb port",
                "-again/u lb port",
                "-gone/u lb port",
                "-left/u lb port",
                "finalized/u lb port ~ finalized/u -f port"
            ],
            "streaming {streaming}, protobuf {protobuf}"
        );
        assert!(run.cache.get("shop/unreadable").is_some(), "its last readable state stays");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_relevant_moves_the_position_on() {
    let server = Server::new(Behaviour { bookmarks: 0, ..Behaviour::default() });
    put(&server, "s", "u", &balancer(), NONE);
    let run = Run::synced(&server).await;
    for _ in 0..5 {
        put(&server, "other", "u", &cluster_ip(), NONE);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Everything up to here is forgotten; only a position behind it can be resumed.
    server.compact();
    server.cut();
    put(&server, "s", "u", &balancer(), OURS);
    run.caught_up(&server).await;
    assert_eq!(run.take_log(), ["+s/u lb port", "s/u lb port ~ s/u lbf port"]);
    assert_eq!(
        server.count("sendInitialEvents"),
        1,
        "resumed without a list: {:?}",
        server.requests()
    );
}

#[tokio::test(start_paused = true)]
async fn an_older_list_is_refused_although_only_irrelevant_objects_were_newer() {
    let server = Server::new(Behaviour::default());
    put(&server, "s", "u", &balancer(), NONE);
    let run = Run::synced(&server).await;
    for _ in 0..20 {
        put(&server, "other", "u", &cluster_ip(), NONE);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    run.take_log();
    // Another server answers for a moment, which has seen none of that, nor the Service.
    server.restore_backup(101);
    server.forget("shop/s");
    server.cut();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(server.count("sendInitialEvents") > 1, "{:?}", server.requests());
    assert_eq!(run.take_log(), Vec::<String>::new());
    assert_eq!(run.cache.len(), 1);
}
