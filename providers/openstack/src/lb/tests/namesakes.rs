//! Another cluster of the same name with a Service of the same name: what is its own stays.

use ccm_core::{
    k8s::{LbIngress, LbStatus, ServiceView},
    provider::{Inventory as _, Progress},
};

use super::{
    fixture::{Fixture, service, with},
    trouble::shared,
};

/// The other cluster's Service: newer, and without an address.
fn namesake(of: &ServiceView) -> ServiceView {
    ServiceView {
        uid: "uid-namesake".into(),
        created: jiff::Timestamp::MAX,
        status: LbStatus::default(),
        ..of.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_never_served_leaves_the_balancer_of_its_namesake() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let before = rig.everything();
    // With the annotations of the first one, too.
    for never_served in [namesake(&service("web", &[80])), namesake(&web)] {
        rig.remove(&never_served).await;
        assert_eq!(rig.everything(), before);
    }
    assert_eq!(rig.reasons(), ["LoadBalancerOfOtherCluster"; 2]);
    // What it has served may be older: it was taken over.
    rig.remove(&ServiceView { status: web.status.clone(), ..namesake(&web) })
        .await;
    assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty());
}

/// The clock of the cloud is behind that of the API server. Some clouds report the time zone.
#[tokio::test(start_paused = true)]
async fn a_balancer_that_appears_to_be_a_little_older_is_deleted_with_its_service() {
    for (seconds, zone, left) in [(60, "", 0), (60, "Z", 0), (61, "", 1), (61, "+00:00", 1)] {
        let rig = Fixture::new(1).await;
        rig.settle(&service("web", &[80])).await;
        let lb = rig.the_lb();
        let at = lb.created_at.unwrap();
        let created: jiff::Timestamp = format!("{at}Z").parse().unwrap();
        rig.change(|state, _| {
            state.octavia.load_balancers.update(&lb.id, |row| {
                row.body.created_at = Some(format!("{at}{zone}"));
            });
        })
        .await;
        let created = created + jiff::SignedDuration::from_secs(seconds);
        rig.remove(&ServiceView { created, ..namesake(&service("web", &[80])) })
            .await;
        assert_eq!(rig.lbs().len(), left, "{seconds} s, {zone:?}");
    }
}

/// Gives the load balancer an earlier creation time than any Service.
async fn age(rig: &Fixture) {
    let id = rig.the_lb().id;
    rig.change(|state, _| {
        state.octavia.load_balancers.update(&id, |row| {
            row.body.created_at = Some("2020-01-01T00:00:00".into());
        });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_was_never_served_leaves_a_balancer_that_its_original_shares() {
    for owner_is_deleted in [false, true] {
        let rig = Fixture::new(1).await;
        let (first, second) = shared(&rig).await;
        if owner_is_deleted {
            rig.remove(&first).await;
        }
        age(&rig).await;
        let before = rig.everything();
        rig.remove(&namesake(&second)).await;
        assert_eq!(rig.everything(), before);
        assert_eq!(rig.reasons(), ["LoadBalancerOfOtherCluster"]);
        rig.remove(&second).await;
        assert_eq!(rig.listeners().len(), usize::from(!owner_is_deleted));
    }
}

/// It shows no address yet, but its listener is as new as it is.
#[tokio::test(start_paused = true)]
async fn a_service_that_was_never_served_removes_its_part_of_a_shared_balancer() {
    for owner_is_new in [true, false] {
        let rig = Fixture::new(1).await;
        let (first, second) = shared(&rig).await;
        let (new, old) = if owner_is_new {
            (first, second)
        } else {
            (second, first)
        };
        rig.remove(&new).await;
        age(&rig).await;
        let before = rig.everything();
        let shown = rig.settle(&new).await;
        assert_eq!(rig.listeners().len(), 2);
        let at = rig
            .listeners()
            .iter()
            .filter_map(|l| l.created_at.clone())
            .max()
            .unwrap();
        let created = format!("{at}Z").parse().unwrap();
        rig.remove(&ServiceView { created, ..namesake(&shown) })
            .await;
        assert_eq!(rig.everything(), before);
        assert!(rig.reasons().is_empty());
        rig.remove(&old).await;
        assert!(rig.lbs().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_without_a_balancer_leaves_the_floating_ip_that_its_namesake_kept() {
    let rig = Fixture::new(1).await;
    let kept = rig
        .settle(&with(service("web", &[80]), "keep-floatingip", "true"))
        .await;
    rig.remove(&kept).await;
    let address = rig.floating_ips()[0].floating_ip_address.unwrap();
    let showing = |address: &str| ServiceView {
        status: LbStatus {
            ingress: vec![LbIngress { ip: address.parse().ok(), ..LbIngress::default() }],
        },
        ..namesake(&service("web", &[80]))
    };
    rig.remove(&showing("203.0.113.250")).await;
    rig.remove(&with(namesake(&kept), "keep-floatingip", "false"))
        .await;
    rig.remove(&with(namesake(&service("web", &[80])), "load-balancer-id", "gone"))
        .await;
    assert_eq!(rig.floating_ips().len(), 1, "it is another Service's");
    rig.remove(&showing(&address.to_string())).await;
    assert!(rig.floating_ips().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_deleted_without_the_floating_ip_of_another_cluster() {
    for (cluster, left) in [("c2", 1), ("c1", 0)] {
        let rig = Fixture::new(1).await;
        rig.settle(&service("web", &[80])).await;
        let id = rig.floating_ips()[0].id.clone();
        rig.change(|state, _| {
            state.neutron.floating_ips.update(&id, |row| {
                row.standard.description = format!(
                    "Floating IP for Kubernetes external service ns/web from cluster {cluster}"
                );
            })
        })
        .await;
        let owned = rig.balancers.list_owned(&rig.op()).await.unwrap();
        for _ in 0..20 {
            match rig
                .balancers
                .delete_owned(&rig.op(), &owned[0])
                .await
                .unwrap()
            {
                Progress::Done => break,
                Progress::Pending { after, .. } => tokio::time::sleep(after).await,
            }
        }
        assert_eq!((rig.lbs().len(), rig.floating_ips().len()), (0, left), "{cluster}");
    }
}

/// Administrators see the floating IPs of every project.
#[tokio::test(start_paused = true)]
async fn a_service_without_a_balancer_leaves_the_floating_ip_of_another_project() {
    let rig = Fixture::new(1).await;
    let kept = rig
        .settle(&with(service("web", &[80]), "keep-floatingip", "true"))
        .await;
    rig.remove(&kept).await;
    let theirs = rig.floating_ips();
    assert_eq!(theirs.len(), 1);
    let address = theirs[0].floating_ip_address;
    let shown = ServiceView {
        status: LbStatus {
            ingress: vec![LbIngress { ip: address, ..LbIngress::default() }],
        },
        ..namesake(&service("web", &[80]))
    };
    let rig = rig.restart_as("admin").await;
    rig.remove(&shown).await;
    assert_eq!(rig.floating_ips(), theirs);
}
