//! The same over HTTP on loopback, with the client that the binary has.
//!
//! The kit runs in paused time, so that waits cost nothing. The server, and each request to it, is
//! in another runtime whose time is real; while a request is under way, as a blocking task, the
//! paused clock stands still.

use std::{future::Future, sync::Arc};

use axum::{Router, body::Body};
use bytes::Bytes;
use ccm_core::provider::{prelude::*, rest::Https};
use ccm_testkit::conformance::{
    Report, ScriptedRest, check_instances, check_load_balancers, check_routes,
};
use http::{Request, Response};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Handle, Runtime},
};

use crate::{FEW, MANY, adapter::MeadowAdapter, cloud::Cloud};

struct Wire {
    https: Https,
    real: Handle,
}

#[async_trait]
impl Transport for Wire {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        let (https, real) = (self.https.clone(), self.real.clone());
        tokio::task::spawn_blocking(move || real.block_on(https.send(request)))
            .await
            .unwrap()
    }
}

async fn serve(rest: ScriptedRest<Cloud>, listener: TcpListener) {
    let answer = move |request: Request<Body>| {
        let rest = rest.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            rest.answer(Request::from_parts(head, body))
                .await
                .map(Body::from)
        }
    };
    axum::serve(listener, Router::new().fallback(answer))
        .await
        .unwrap();
}

/// Runs a suite against a server.
fn run<F: Future<Output = Report>>(page: usize, suite: impl FnOnce(MeadowAdapter) -> F) {
    let real = Runtime::new().unwrap();
    let cloud = Cloud::new(page);
    let rest = ScriptedRest::new(cloud.clone());
    let script = rest.script().clone();
    let listener = real.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = real.spawn(serve(rest, listener));
    let wire = Wire {
        https: Https::new("meadow-tests").unwrap(),
        real: real.handle().clone(),
    };
    let paused = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let adapter = MeadowAdapter::over(cloud, script, url, Arc::new(wire));
    let report = paused.block_on(suite(adapter));
    drop(paused);
    server.abort();
    assert!(report.passed(), "{report}");
}

#[test]
fn instances_over_sockets() {
    run(FEW, async |stage| {
        let make = stage.clone();
        check_instances(move || std::future::ready(make.provider()), &stage).await
    });
}

#[test]
fn routes_over_sockets() {
    run(MANY, async |stage| {
        let make = stage.clone();
        check_routes(move || std::future::ready(make.provider()), &stage).await
    });
}

#[test]
fn load_balancers_over_sockets() {
    run(FEW, async |stage| {
        let make = stage.clone();
        check_load_balancers(move || std::future::ready(make.provider()), &stage).await
    });
}
