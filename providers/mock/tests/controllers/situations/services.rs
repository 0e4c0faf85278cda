//! Services without address, or whose load balancer is not as requested.

use std::sync::Arc;

use ccm_core::provider::{CloudError, ErrorKind, ServiceInterpretation};
use ccm_mock::provider::annotations;
use ccm_testkit::apiserver::{Action, Match};
use http::StatusCode;
use serde_json::{Value, json};

use super::{Arranged, Object::Service, Situation, situations};
use crate::{
    cluster::{AGENT, TestCluster, secs},
    scripted_load_balancers::{ScriptedLoadBalancers, ScriptedResult},
    service_world::SERVICE,
    services_load::{SLICES, slice},
};

pub(super) fn situations() -> Vec<Situation> {
    let mut all = failures();
    all.extend(waits());
    all.extend(deletions());
    all
}

fn failures() -> Vec<Situation> {
    use ErrorKind::{
        Conflict, Denied, InvalidInput, NotFound, NotImplemented, QuotaExceeded, Throttled,
        Transient,
    };
    let failed = Some("SyncLoadBalancerFailed");
    situations! {
        "the load balancer is denied" => Service("web"), failed,
            [CloudAccessDenied], failing("ensure", Denied);
        "the load balancer is throttled" => Service("web"), failed,
            [CloudThrottled], failing("ensure", Throttled);
        "the quota is used up" => Service("web"), failed,
            [QuotaExceeded], failing("ensure", QuotaExceeded);
        "the cloud rejects it" => Service("web"), failed,
            [CloudRejectedInput], failing("ensure", InvalidInput);
        "the cloud is busy" => Service("web"), failed,
            [CloudConflict], failing("ensure", Conflict);
        "the subnet is not found" => Service("web"), failed,
            [CloudObjectNotFound], failing("ensure", NotFound);
        "the provider cannot do it" => Service("web"), failed,
            [CloudNotImplemented], failing("ensure", NotImplemented);
        "creating a load balancer fails" => Service("web"), failed,
            [CloudUnavailable], failing("ensure", Transient);
        "new nodes cannot be added" => Service("web"), Some("UpdateLoadBalancerFailed"),
            [CloudUnavailable], failing("update", Transient);
        "the provider panics" => Service("web"), failed,
            [SyncPanicked], panicking();
        "the finalizer is forbidden" => Service("web"), failed,
            [ApiForbidden], refused(StatusCode::FORBIDDEN);
        "the finalizer is rejected" => Service("web"), failed,
            [ApiRejected], refused(StatusCode::UNPROCESSABLE_ENTITY);
        "an annotation is invalid" => Service("web"), failed,
            [ServiceInvalid], invalid();
        "the cluster has no nodes" => Service("web"), Some("UnAvailableLoadBalancer"),
            [NoBackendNodes], without_nodes();
        "no pod is ready" => Service("web"), None,
            [NoEndpoints], endpoints_not_ready();
        "endpoints may not be listed" => Service("web"), failed,
            [EndpointSlicesNotListed], endpoints_forbidden();
    }
}

fn waits() -> Vec<Situation> {
    situations! {
        "the cloud works on it" => Service("web"), None,
            [LoadBalancerPending], answering(|_| Some(ScriptedResult::Pending(secs(60))));
        "the first sync runs" => Service("web"), None,
            [ServiceNotSyncedYet], answering(|_| Some(ScriptedResult::Hang));
        "a node has just joined" => Service("web"), None,
            [BackendsNotCurrent], node_joined();
        "another client changes the status" => Service("web"), None,
            [StatusNotWritten], status_lost();
        "the first comparison runs" => Service("web"), None,
            [DriftCheckDue], restarted();
        "the class is another one" => Service("web"), None,
            [OtherLoadBalancerClass], other_class();
        "an annotation gives it away" => Service("web"), None,
            [ImplementedElsewhere], elsewhere();
        "the nodes cannot be confirmed" => Service("web"), None,
            [CacheNotConfirmed], unconfirmed();
    }
}

fn deletions() -> Vec<Situation> {
    situations! {
        "the deletion is denied" => Service("web"), Some("SyncLoadBalancerFailed"),
            [ServiceBeingDeleted, CloudAccessDenied], deleted(false);
        "the deletion of a Service that is gone is denied" => Service("web"), Some("DeleteLoadBalancerFailed"),
            [ServiceBeingDeleted, CloudAccessDenied], deleted(true);
        "the type has changed" => Service("web"), None,
            [LoadBalancerNotNeeded, LoadBalancerPending], other_type();
        "most Services are gone" => Service("web"), None,
            [ServiceBeingDeleted, MostServicesGone], most_gone();
    }
}

/// Two nodes, and a provider whose answers a script changes.
async fn scripted() -> (Arranged, Arc<ScriptedLoadBalancers>) {
    let cluster = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&cluster);
    let ccm = cluster.start_with(provider.clone(), &SERVICE);
    cluster.have_nodes(["a", "b"]).await;
    (Arranged { cluster, ccm }, provider)
}

/// The same with a Service that is served.
async fn served() -> (Arranged, Arc<ScriptedLoadBalancers>) {
    let (arranged, provider) = scripted().await;
    arranged.cluster.serve("web").await;
    arranged.cluster.until_served(&["web"], secs(60)).await;
    arranged.cluster.settle().await;
    (arranged, provider)
}

/// A new Service whose calls are answered like this.
async fn answering(result: fn(&str) -> Option<ScriptedResult>) -> Arranged {
    let (arranged, provider) = scripted().await;
    provider.answer(move |call| result(call.verb));
    arranged.cluster.serve("web").await;
    tokio::time::sleep(secs(30)).await;
    arranged
}

/// A Service whose calls of this kind fail.
async fn failing(verb: &'static str, kind: ErrorKind) -> Arranged {
    let (arranged, provider) = scripted().await;
    provider.answer(move |call| {
        let error = CloudError::new(kind, "it says no");
        (call.verb == verb).then(|| ScriptedResult::Fail(error))
    });
    let cluster = &arranged.cluster;
    cluster.serve("web").await;
    if verb == "update" {
        cluster.until_served(&["web"], secs(60)).await;
        cluster.settle().await;
        cluster.have_nodes(["c"]).await;
        tokio::time::sleep(secs(15)).await;
    } else {
        tokio::time::sleep(secs(30)).await;
    }
    arranged
}

async fn panicking() -> Arranged {
    answering(|_| panic!("a bug of the provider")).await
}

async fn refused(code: StatusCode) -> Arranged {
    let (arranged, _) = scripted().await;
    let cluster = &arranged.cluster;
    let patches = Match::resource("services").verb("patch").user_agent(AGENT);
    cluster
        .server
        .faults()
        .add(patches, Action::Error { code, retry_after: None });
    cluster.serve("web").await;
    tokio::time::sleep(secs(30)).await;
    arranged
}

async fn annotated(cluster: TestCluster, key: &str, value: &str) -> Arranged {
    let ccm = cluster.start(&SERVICE);
    cluster.have_nodes(["a"]).await;
    let ports = json!({"ports": [{"port": 80}]});
    cluster
        .put_annotated("web", json!({key: value}), ports)
        .await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn invalid() -> Arranged {
    annotated(TestCluster::provisioned(), annotations::SCHEME, "sideways").await
}

async fn without_nodes() -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = cluster.start(&SERVICE);
    cluster.serve("web").await;
    cluster.settle().await;
    Arranged { cluster, ccm }
}

async fn endpoints_not_ready() -> Arranged {
    let cluster = TestCluster::with("features: {endpoints: true}\n");
    let body = slice("web-1", &["10.1.0.1"], false);
    cluster
        .request("POST", SLICES, "application/json", body)
        .await;
    annotated(cluster, annotations::BACKENDS, "endpoints").await
}

async fn endpoints_forbidden() -> Arranged {
    let cluster = TestCluster::with("features: {endpoints: true}\n");
    let forbidden = Action::Error { code: StatusCode::FORBIDDEN, retry_after: None };
    let reads = Match::resource("endpointslices").verb("list").verb("watch");
    cluster.server.faults().add(reads, forbidden);
    annotated(cluster, annotations::BACKENDS, "endpoints").await
}

async fn node_joined() -> Arranged {
    let (arranged, provider) = served().await;
    provider.answer(|call| (call.verb == "update").then_some(ScriptedResult::Hang));
    arranged.cluster.have_nodes(["c"]).await;
    tokio::time::sleep(secs(20)).await;
    arranged
}

async fn status_lost() -> Arranged {
    let (arranged, _) = served().await;
    // The second time, the status is only restored after a while.
    for _ in 0..2 {
        let status: Value = json!({"status": {"loadBalancer": {"ingress": null}}});
        arranged.cluster.patch_service_status("web", status).await;
        tokio::time::sleep(secs(3)).await;
    }
    arranged
}

async fn restarted() -> Arranged {
    let (arranged, _) = served().await;
    let Arranged { cluster, ccm } = arranged;
    ccm.stop().await;
    let provider = ScriptedLoadBalancers::over(&cluster);
    provider.answer(|_| Some(ScriptedResult::Hang));
    let ccm = cluster.start_with(provider, &SERVICE);
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn other_class() -> Arranged {
    let (arranged, _) = scripted().await;
    let spec = json!({"ports": [{"port": 80}], "loadBalancerClass": "example.com/internal"});
    arranged.cluster.put_service("web", spec).await;
    arranged.cluster.settle().await;
    arranged
}

async fn elsewhere() -> Arranged {
    let (arranged, provider) = scripted().await;
    provider.interpret_by(|_, _| ServiceInterpretation::ImplementedElsewhere);
    arranged.cluster.serve("web").await;
    arranged.cluster.settle().await;
    arranged
}

/// Both nodes are gone, and the API server does not confirm it.
async fn unconfirmed() -> Arranged {
    let (arranged, _) = served().await;
    let cluster = &arranged.cluster;
    let fails = || Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
    for verb in ["get", "list"] {
        let reads = Match::resource("nodes").verb(verb).user_agent(AGENT);
        cluster.server.faults().add(reads, fails());
    }
    for node in ["a", "b"] {
        cluster.remove_node(node);
    }
    tokio::time::sleep(secs(300)).await;
    arranged
}

async fn deleted(is_gone: bool) -> Arranged {
    let (arranged, provider) = served().await;
    provider.answer(|call| {
        let error = CloudError::new(ErrorKind::Denied, "not yours");
        (call.verb == "delete").then(|| ScriptedResult::Fail(error))
    });
    if is_gone {
        arranged.cluster.remove_service("web");
    } else {
        arranged.cluster.delete_service("web").await;
    }
    tokio::time::sleep(secs(30)).await;
    arranged
}

async fn other_type() -> Arranged {
    let (arranged, provider) = served().await;
    provider.answer(|call| (call.verb == "delete").then_some(ScriptedResult::Pending(secs(600))));
    arranged
        .cluster
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    tokio::time::sleep(secs(30)).await;
    arranged
}

/// As after a restored etcd: what nobody deleted is gone.
async fn most_gone() -> Arranged {
    let (arranged, _) = served().await;
    let cluster = &arranged.cluster;
    let others = ["w1", "w2", "w3"];
    for name in others {
        cluster.serve(name).await;
    }
    cluster.until_served(&others, secs(60)).await;
    cluster.settle().await;
    for name in ["web", "w1", "w2"] {
        cluster.remove_service(name);
    }
    tokio::time::sleep(secs(300)).await;
    arranged
}
