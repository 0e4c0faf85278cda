//! Pages as a service in this process: no socket, so that time can be virtual.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{Router, body::Body, routing::get};
use http::{Method, Request, StatusCode, header, request::Parts};
use http_body_util::BodyExt as _;
use prometheus::Registry;
use rustls::pki_types::CertificateDer;
use tower::ServiceExt as _;

use crate::{
    config::{Config, Invocation, LoggingConfig, Product, parse},
    runtime::{
        health::{CheckKind, Health},
        serving::{AuthFilter, Handlers, RequestAuth, auth::AuthRefusal},
    },
    telemetry::logging::{self, Verbosity},
};

pub(super) fn config(flags: &[&str]) -> Config {
    let product = Product::new("ccm-test", "v1.2.3", &["mock"]);
    match parse(&product, ["--cloud-provider=mock"].iter().chain(flags)) {
        Ok(Invocation::Run(config)) => *config,
        other => panic!("{other:?}"),
    }
}

/// A site whose pages are all open, unless a test says otherwise.
struct Site {
    health: Health,
    registry: Registry,
    verbosity: Verbosity,
    router: Router,
}

impl Site {
    fn new(flags: &[&str]) -> Self {
        Self::behind(AuthFilter::new(&["/*".to_owned()]).unwrap(), flags)
    }

    fn behind(door: AuthFilter, flags: &[&str]) -> Self {
        let (health, registry) = (Health::default(), Registry::new());
        let (_, verbosity) = logging::dispatch(&LoggingConfig::default(), std::io::sink);
        let product = Product::new("ccm-test", "v1.2.3", &["mock"]);
        let pages = Handlers::new(
            product,
            config(flags),
            registry.clone(),
            health.clone(),
            verbosity.clone(),
        );
        let more = Router::new().route("/more", get(async || "more"));
        Self {
            router: pages.router(door, more).unwrap(),
            health,
            registry,
            verbosity,
        }
    }

    async fn send(&self, method: Method, path: &str, body: &str) -> (StatusCode, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-cache, private", "{path}");
        assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (status, text) = self.send(Method::GET, path, "").await;
        (status.as_u16(), text)
    }
}

fn switch() -> (Arc<AtomicBool>, impl Fn() -> Result<(), String> + Send + Sync + 'static) {
    let bad = Arc::new(AtomicBool::new(false));
    let check = {
        let bad = bad.clone();
        move || {
            if bad.load(Ordering::Relaxed) {
                Err("the reason".to_owned())
            } else {
                Ok(())
            }
        }
    };
    (bad, check)
}

#[tokio::test]
async fn without_checks_an_answer_is_one() {
    let site = Site::new(&[]);
    for page in ["healthz", "livez", "readyz"] {
        assert_eq!(site.get(&format!("/{page}")).await, (200, "ok".to_owned()));
        let verbose = site.get(&format!("/{page}?verbose")).await;
        assert_eq!(verbose, (200, format!("[+]ping ok\n{page} check passed\n")));
        assert_eq!(site.get(&format!("/{page}/ping")).await, (200, "ok".to_owned()));
    }
}

#[tokio::test]
async fn each_kind_of_check_fails_what_it_should() {
    let site = Site::new(&[]);
    let (live_bad, live) = switch();
    let (ready_bad, ready) = switch();
    let (stuck, progress) = switch();
    let _registrations = [
        site.health.add(CheckKind::Live, "leaderElection", live),
        site.health.add(CheckKind::Ready, "caches", ready),
        site.health
            .add(CheckKind::Progress, "service-lb-controller", progress),
    ];
    let statuses = async || {
        let mut statuses = Vec::new();
        for page in ["/healthz", "/livez", "/readyz"] {
            statuses.push(site.get(page).await.0);
        }
        statuses
    };
    assert_eq!(statuses().await, [200, 200, 200]);
    stuck.store(true, Ordering::Relaxed);
    assert_eq!(statuses().await, [200, 200, 200], "a cloud outage fails nothing");
    let degraded = "[+]leaderElection ok\n[+]caches ok\n[!]service-lb-controller degraded: the reason\nreadyz check passed\n";
    assert_eq!(site.get("/readyz?verbose").await, (200, degraded.to_owned()));
    assert_eq!(site.get("/livez?verbose").await.1, "[+]leaderElection ok\nlivez check passed\n");
    assert_eq!(
        site.get("/readyz/service-lb-controller").await.0,
        500,
        "asked for by name it is told"
    );
    ready_bad.store(true, Ordering::Relaxed);
    assert_eq!(statuses().await, [200, 200, 500]);
    live_bad.store(true, Ordering::Relaxed);
    assert_eq!(statuses().await, [500, 500, 500]);
    let failed = "[-]leaderElection failed: reason withheld\nlivez check failed\n";
    assert_eq!(
        site.get("/livez").await,
        (500, failed.to_owned()),
        "a failure is always verbose, without reasons"
    );
    let reason = (500, "internal server error: the reason\n".to_owned());
    assert_eq!(site.get("/livez/leaderElection").await, reason);
}

#[tokio::test]
async fn checks_are_excluded_by_name() {
    let site = Site::new(&[]);
    let _bad = site
        .health
        .add(CheckKind::Live, "bad", || Err("no".to_owned()));
    let _good = site.health.add(CheckKind::Live, "good", || Ok(()));
    assert_eq!(site.get("/healthz").await.0, 500);
    assert_eq!(site.get("/healthz?exclude=bad").await, (200, "ok".to_owned()));
    let text = "[+]bad excluded: ok\n[+]good excluded: ok\n\
                warn: some health checks cannot be excluded: no matches for \"a b\",\"zz\"\nhealthz check passed\n";
    let asked = "/healthz?exclude=bad&verbose&exclude=zz&exclude=good&exclude=a%20b";
    assert_eq!(site.get(asked).await, (200, text.to_owned()));
    assert_eq!(site.get("/healthz/none").await, (404, "404 page not found\n".to_owned()));
    assert_eq!(site.get("/healthz/good").await, (200, "ok".to_owned()));
    assert_eq!(
        site.send(Method::HEAD, "/healthz?exclude=bad", "").await,
        (StatusCode::OK, String::new())
    );
    assert_eq!(site.send(Method::POST, "/healthz", "").await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn answers_of_checks_are_metrics_that_can_be_reset() {
    let site = Site::new(&[]);
    let (bad, check) = switch();
    let _check = site.health.add(CheckKind::Live, "leaderElection", check);
    site.get("/healthz").await;
    bad.store(true, Ordering::Relaxed);
    site.get("/healthz").await;
    site.get("/livez").await;
    let (status, text) = site.get("/metrics/slis").await;
    assert_eq!(status, 200);
    for line in [
        "kubernetes_healthcheck{name=\"leaderElection\",type=\"healthz\"} 0",
        "kubernetes_healthchecks_total{name=\"leaderElection\",status=\"error\",type=\"healthz\"} 1",
        "kubernetes_healthchecks_total{name=\"leaderElection\",status=\"success\",type=\"healthz\"} 1",
        "kubernetes_healthchecks_total{name=\"leaderElection\",status=\"error\",type=\"livez\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert_eq!(
        site.send(Method::DELETE, "/metrics/slis", "").await,
        (StatusCode::OK, "metrics reset\n".to_owned())
    );
    assert_eq!(site.get("/metrics/slis").await, (200, String::new()));
}

#[tokio::test]
async fn metrics_are_those_of_the_registry() {
    let site = Site::new(&[]);
    site.health.register(&site.registry).unwrap();
    let _check = site
        .health
        .add(CheckKind::Progress, "node-route-controller", || Err("stuck".to_owned()));
    let (status, text) = site.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(text.ends_with("ccm_degraded{name=\"node-route-controller\"} 1\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn zpages_are_text_for_people() {
    let site = Site::new(&["--node-monitor-period=7s"]);
    tokio::time::sleep(Duration::from_secs(3723)).await;
    let (_, text) = site.get("/statusz").await;
    assert!(text.starts_with("\nccm-test statusz\nWarning: "), "{text}");
    assert!(text.contains("\nUp: 1 hr 02 min 03 sec\nBinary version: v1.2.3\n"), "{text}");
    assert!(
        text.contains(
            "\nPaths: /configz /debug /explain /flagz /healthz /livez /metrics /readyz /statusz\n"
        ),
        "{text}"
    );
    let (_, text) = site.get("/flagz").await;
    assert!(text.starts_with("\nccm-test flagz\nWarning: "), "{text}");
    assert!(text.contains("\nnode-monitor-period=7s\n"), "{text}");
}

#[tokio::test]
async fn configz_is_the_configuration() {
    let (status, text) = Site::new(&["--cluster-name=blue"]).get("/configz").await;
    assert_eq!(status, 200);
    let configz: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        configz["cloudcontrollermanager.config.k8s.io"]["KubeCloudShared"]["ClusterName"],
        "blue"
    );
}

#[tokio::test]
async fn verbosity_is_set_by_a_number() {
    let site = Site::new(&[]);
    let put = async |body: &str| site.send(Method::PUT, "/debug/flags/v", body).await;
    assert_eq!(put("4\n").await, (StatusCode::OK, "successfully set -v to 4\n".to_owned()));
    assert_eq!(site.verbosity.get(), 4);
    assert_eq!(put("loud").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(put("-1").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(site.verbosity.get(), 4);
    assert_eq!(site.get("/debug/flags/v").await.0, 405);
    let (status, text) = site.get("/debug/pprof/heap?seconds=1").await;
    assert!(status == 404 && text.contains("there are no profiles here"), "{text}");
    let quiet = Site::new(&["--profiling=false"]);
    assert_eq!(quiet.send(Method::PUT, "/debug/flags/v", "4").await.0, StatusCode::NOT_FOUND);
}

/// Lets in who says the word.
struct Porter;

#[async_trait]
impl RequestAuth for Porter {
    async fn check(
        &self,
        peer: &[CertificateDer<'static>],
        parts: &Parts,
    ) -> Result<(), AuthRefusal> {
        assert!(peer.is_empty());
        match parts.headers.get(header::AUTHORIZATION).is_some() {
            true => Ok(()),
            false => Err(AuthRefusal {
                status: StatusCode::UNAUTHORIZED,
                reason: "who is it".to_owned(),
            }),
        }
    }
}

#[tokio::test]
async fn without_a_guard_only_open_pages_are_served() {
    let door = AuthFilter::new(&["/healthz".to_owned(), "/metrics*".to_owned()]).unwrap();
    let site = Site::behind(door.clone(), &[]);
    let statuses = async |paths: &[&str]| {
        let mut statuses = Vec::new();
        for path in paths {
            statuses.push(site.get(path).await.0);
        }
        statuses
    };
    let open = ["/healthz", "/healthz?verbose", "/metrics", "/metrics/slis"];
    let closed = [
        "/livez",
        "/healthz/ping",
        "/configz",
        "/flagz",
        "/statusz",
        "/more",
        "/nothing",
        "/debug/flags/v",
    ];
    assert_eq!(statuses(&open).await, [200; 4]);
    assert_eq!(statuses(&closed).await, [503; 8]);
    door.install(Arc::new(Porter));
    assert_eq!(statuses(&open).await, [200; 4], "nobody is asked who they are");
    assert_eq!(statuses(&closed).await, [401; 8]);
    let request = Request::get("/more")
        .header(header::AUTHORIZATION, "please")
        .body(Body::empty())
        .unwrap();
    assert_eq!(site.router.clone().oneshot(request).await.unwrap().status(), StatusCode::OK);
}
