//! Balancers under another cluster's name: of a cluster that was renamed, and of one whose Services were copied.

use ccm_core::{k8s::LbStatus, provider::Depth};

use super::rig::{Rig, service};

/// Has everything of Octavia bear another name of the cluster.
async fn under_another_name(rig: &Rig) {
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
    let rig = Rig::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    under_another_name(&rig).await;
    let rig = rig.restart().await;
    let before = rig.everything();
    let mut copy = web.clone();
    copy.status = LbStatus::default();
    let error = rig.ensure(&copy, Depth::Verify).await.result.unwrap_err();
    assert!(error.to_string().contains("already exists"), "{error}");
    assert_eq!(rig.everything(), before);
    rig.remove(&copy).await;
    assert_eq!(rig.everything(), before);
}
