//! Balancers under another cluster's name: of a cluster that was renamed, and of one whose Services
//! were copied.

use ccm_core::{k8s::LbStatus, provider::ReadMode};

use super::fixture::{Fixture, annotation, service, with};

/// Has everything of Octavia bear another name of the cluster.
async fn under_another_name(rig: &Fixture) {
    fn old(text: &mut String) {
        *text = text.replace("kube_service_c1_", "kube_service_before_");
    }
    macro_rules! rename {
        ($table:expr) => {
            let ids: Vec<String> = $table.iter().map(|row| row.body.id.clone()).collect();
            for id in ids {
                $table.update(&id, |row| {
                    old(&mut row.body.name);
                    row.body.tags.iter_mut().for_each(old);
                });
            }
        };
    }
    rig.change(|state, _| {
        rename!(state.octavia.load_balancers);
        rename!(state.octavia.listeners);
        rename!(state.octavia.pools);
        rename!(state.octavia.monitors);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_copied_from_another_cluster_leaves_that_ones_balancer_as_it_is() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    under_another_name(&rig).await;
    let rig = rig.restart().await;
    let before = rig.everything();
    let mut copy = web.clone();
    copy.status = LbStatus::default();
    let error = rig.ensure(&copy, ReadMode::Fresh).await.result.unwrap_err();
    assert!(error.to_string().contains("already exists"), "{error}");
    assert_eq!(rig.everything(), before);
    rig.remove(&copy).await;
    assert_eq!(rig.everything(), before);
}

#[tokio::test(start_paused = true)]
async fn services_that_share_a_balancer_keep_it_when_their_cluster_is_renamed() {
    // The order of tags means nothing.
    let all = |rig: &Fixture| {
        let mut tags = rig.the_lb().tags;
        tags.sort();
        let lines = rig
            .everything()
            .into_iter()
            .filter(|line| !line.starts_with("lb "));
        lines
            .chain([rig.the_lb().name])
            .chain(tags)
            .collect::<Vec<_>>()
    };
    let checked = |service| with(service, "enable-health-monitor", "true");
    for owner_first in [true, false] {
        let rig = Fixture::new(1).await;
        let one = rig.settle(&checked(service("one", &[80]))).await;
        let id = annotation(&one, "load-balancer-id").unwrap().to_owned();
        let two = rig
            .settle(&checked(with(service("two", &[443]), "load-balancer-id", &id)))
            .await;
        let before = all(&rig);
        under_another_name(&rig).await;
        let rig = rig.restart().await;
        let order = if owner_first {
            [&one, &two]
        } else {
            [&two, &one]
        };
        for service in order {
            rig.settle(service).await;
        }
        assert_eq!(all(&rig), before, "owner first: {owner_first}");
        assert_eq!(
            (rig.plan(&one).await.unwrap(), rig.plan(&two).await.unwrap()),
            (vec![], vec![])
        );
        rig.remove(&one).await;
        rig.remove(&two).await;
        assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty());
    }
}
