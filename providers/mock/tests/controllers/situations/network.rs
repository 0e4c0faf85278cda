//! Nodes without pod CIDR or without route.

use std::time::Duration;

use ccm_core::provider::Progress;
use ccm_mock::cloud::{FaultError, Operation};
use ccm_testkit::kubelet::NodeSpec;

use super::{Arranged, Object::Node, Situation, situations};
use crate::{
    cluster::{TestCluster, initialized, secs},
    routes::{MINUTE, fault, give, join, put_route, start, until_ready},
    routes_provider::Scripted,
};

const IPAM: [&str; 4] = [
    "--controllers=nodeipam",
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.0.0.0/23",
    "--node-cidr-mask-size=24",
];
const CIDR: &str = "10.244.1.0/24";

pub(super) fn situations() -> Vec<Situation> {
    use FaultError::{Invalid, PermissionDenied, QuotaExceeded, Transient};
    let failed = Some("FailedToCreateRoute");
    let conflict = Some("PodCIDRConflict");
    situations! {
        "the cluster CIDR is full" => Node("c"), Some("CIDRNotAvailable"),
            [PodCidrPoolFull], full();
        "two nodes have a pod CIDR" => Node("b"), Some("InvalidPodCIDR"),
            [PodCidrInvalid], allocated_twice();
        "the allocator has just started" => Node("a"), None,
            [PodCidrNotAllocatedYet], allocated_later();
        "nobody allocates pod CIDRs" => Node("a"), None,
            [NoPodCidr], without_pod_cidr();
        "the pod CIDR is outside" => Node("b"), Some("PodCIDROutOfRange"),
            [PodCidrOutOfRange], second("192.168.1.0/24");
        "another node has the route" => Node("b"), conflict,
            [PodCidrOfAnotherNode], second(CIDR);
        "the pod CIDR is malformed" => Node("b"), Some("InvalidPodCIDR"),
            [PodCidrInvalid], second("10.244.3.0/99");
        "a node of another cloud has it" => Node("a"), conflict,
            [PodCidrOfAnotherCloud], foreign();
        "the route table is full" => Node("a"), failed,
            [QuotaExceeded], not_created(QuotaExceeded, true);
        "the cloud rejects the route" => Node("a"), failed,
            [CloudRejectedInput], not_created(Invalid, true);
        "the cloud fails to create it" => Node("a"), failed,
            [CloudUnavailable], not_created(Transient, true);
        "creating is denied" => Node("a"), failed,
            [CloudAccessDenied], not_created(PermissionDenied, true);
        "the node has no address" => Node("a"), failed,
            [RouteWaitsForAddresses], not_created(Invalid, false);
        "the routes cannot be listed" => Node("a"), failed,
            [CloudAccessDenied], not_listed();
        "another route cannot be deleted" => Node("a"), failed,
            [CloudAccessDenied], not_deleted();
        "the cloud works on the route" => Node("a"), None,
            [RoutePending], pending(secs(60));
        "the cloud works for too long" => Node("a"), failed,
            [RoutePending], pending(secs(900));
        "the first listing runs" => Node("a"), None,
            [RoutesNotComparedYet], slow_listing();
        "the creation runs" => Node("a"), None,
            [RouteNotCreated], slow_creation();
    }
}

async fn full() -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = cluster.start(&IPAM);
    for name in ["a", "b", "c"] {
        cluster.kubelets.register(initialized(name)).await.unwrap();
        tokio::time::sleep(secs(60)).await;
    }
    Arranged { cluster, ccm }
}

async fn allocated_twice() -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = cluster.start(&IPAM);
    for name in ["a", "b"] {
        cluster.kubelets.register(initialized(name)).await.unwrap();
        give(&cluster, name, &["10.0.1.0/24"]);
    }
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn allocated_later() -> Arranged {
    let cluster = TestCluster::provisioned();
    cluster.kubelets.register(initialized("a")).await.unwrap();
    let ccm = cluster.start(&IPAM);
    tokio::time::sleep(secs(5)).await;
    Arranged { cluster, ccm }
}

async fn without_pod_cidr() -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = start(&cluster, &[]);
    cluster.kubelets.register(initialized("a")).await.unwrap();
    tokio::time::sleep(secs(30)).await;
    Arranged { cluster, ccm }
}

/// A node with this pod CIDR, after another one that has its route.
async fn second(cidr: &'static str) -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = start(&cluster, &[]);
    join(&cluster, initialized("a"), &[CIDR]).await;
    until_ready(&cluster, &["a"], MINUTE).await;
    join(&cluster, initialized("b"), &[cidr]).await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn foreign() -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = start(&cluster, &[]);
    join(&cluster, initialized("b").provider_id("other://1"), &[CIDR]).await;
    join(&cluster, initialized("a"), &[CIDR]).await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

fn addressed() -> NodeSpec {
    initialized("a").provided_ip([10, 0, 0, 1].into())
}

/// A node whose route is not created for this error.
async fn not_created(error: FaultError, has_address: bool) -> Arranged {
    let cluster = TestCluster::provisioned();
    cluster
        .cloud
        .set_faults(vec![fault(Operation::CreateRoute, error, Some("a"), None)]);
    let ccm = start(&cluster, &[]);
    let spec = if has_address {
        addressed()
    } else {
        initialized("a")
    };
    join(&cluster, spec, &[CIDR]).await;
    tokio::time::sleep(secs(120)).await;
    Arranged { cluster, ccm }
}

async fn not_listed() -> Arranged {
    let cluster = TestCluster::provisioned();
    let denied = FaultError::PermissionDenied;
    cluster
        .cloud
        .set_faults(vec![fault(Operation::ListRoutes, denied, None, None)]);
    let ccm = start(&cluster, &[]);
    join(&cluster, addressed(), &[CIDR]).await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn not_deleted() -> Arranged {
    let cluster = TestCluster::provisioned();
    put_route(&cluster, "old-route", "gone", CIDR, false);
    let denied = FaultError::PermissionDenied;
    cluster
        .cloud
        .set_faults(vec![fault(Operation::DeleteRoute, denied, None, None)]);
    let ccm = start(&cluster, &[]);
    join(&cluster, addressed(), &[CIDR]).await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

/// The cloud has accepted the route and does not show it for so long.
async fn pending(time: Duration) -> Arranged {
    let cluster = TestCluster::provisioned();
    let scripted = Scripted {
        list: Box::new(|_| Ok(Vec::new())),
        apply: Box::new(|changes, _| {
            let pending = Progress::Pending { after: secs(5), reason: "action 7 runs".into() };
            vec![Ok(pending); changes.len()]
        }),
        ..Scripted::over(&cluster.cloud)
    };
    let ccm = scripted.start(&cluster);
    join(&cluster, addressed(), &[CIDR]).await;
    tokio::time::sleep(time).await;
    Arranged { cluster, ccm }
}

async fn slow_listing() -> Arranged {
    let config = "region: r1\nautoProvision: true\nlatency: {routes: 60s}\n";
    let cluster = TestCluster::new(config);
    let ccm = start(&cluster, &[]);
    join(&cluster, addressed(), &[CIDR]).await;
    tokio::time::sleep(secs(10)).await;
    Arranged { cluster, ccm }
}

async fn slow_creation() -> Arranged {
    let cluster = TestCluster::provisioned();
    let scripted = Scripted { hangs: true.into(), ..Scripted::over(&cluster.cloud) };
    let ccm = scripted.start(&cluster);
    // The first comparison has nothing to do.
    tokio::time::sleep(secs(30)).await;
    join(&cluster, addressed(), &[CIDR]).await;
    tokio::time::sleep(secs(30)).await;
    Arranged { cluster, ccm }
}
