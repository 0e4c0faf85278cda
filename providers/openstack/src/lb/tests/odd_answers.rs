//! What the services answer is not as they answer it in one field.

use ccm_core::provider::{Progress, ReadMode};
use serde_json::{Value, to_value};

use super::fixture::{Fixture, service};
use crate::test_fixture::odd_variants;

/// Changes what is answered to requests with one of these paths in their targets.
fn answer_instead(rig: &Fixture, path: &'static str, id: String, odd: Value) {
    rig.wire.spoil(move |target, row| {
        if target.contains(path) && row["id"] == *id {
            *row = odd.clone();
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_of_which_anything_is_odd_is_never_missing() {
    let web = service("web", &[80]);
    let mut rig = Fixture::new(1).await;
    let served = rig.settle(&web).await;
    let shown = to_value(rig.the_lb()).unwrap();
    let id = rig.the_lb().id;
    for (what, odd) in odd_variants(&shown) {
        // With another name, ID or project it is another load balancer.
        let is_other = ["name", "id", "project_id"]
            .iter()
            .any(|field| what == format!("{field} \"SOMETHING_NEW\""));
        if is_other {
            continue;
        }
        for service in [&web, &served] {
            rig = rig.restart().await;
            answer_instead(&rig, "/loadbalancers", id.clone(), odd.clone());
            for _ in 0..2 {
                rig.ensure(service, ReadMode::Fresh).await;
            }
            assert_eq!(rig.lbs().len(), 1, "{what}: a second one");
            assert_eq!(rig.floating_ips().len(), 1, "{what}: a second floating IP");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_odd_about_a_load_balancer_never_ends_a_deletion_early() {
    let web = service("web", &[80]);
    for field in ["name", "provisioning_status", "tags", "vip_port_id", "listeners", "project_id"] {
        for odd in [Value::Null, vec![7].into()] {
            let rig = Fixture::new(1).await;
            rig.settle(&web).await;
            let rig = rig.restart().await;
            let odd_field = odd.clone();
            rig.wire.spoil(move |target, row| {
                if target.contains("/loadbalancers") {
                    row[field] = odd_field.clone();
                }
            });
            let result = rig.delete(&web).await;
            let is_done = matches!(result, Ok(Progress::Done));
            assert!(!is_done || rig.lbs().is_empty(), "{field} {odd}: {result:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_floating_ip_of_which_anything_is_odd_is_not_made_twice() {
    let web = service("web", &[80]);
    let mut rig = Fixture::new(1).await;
    let served = rig.settle(&web).await;
    let shown = to_value(&rig.floating_ips()[0]).unwrap();
    let id = rig.floating_ips()[0].id.clone();
    for (what, odd) in odd_variants(&shown) {
        rig = rig.restart().await;
        answer_instead(&rig, "/floatingips", id.clone(), odd);
        for _ in 0..2 {
            rig.ensure(&served, ReadMode::Fresh).await;
        }
        assert_eq!(rig.floating_ips().len(), 1, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_security_group_of_which_anything_is_odd_is_not_made_twice() {
    let web = service("web", &[80]);
    let mut rig = Fixture::with(1, |settings, _| settings.manage_security_groups = true).await;
    let served = rig.settle(&web).await;
    let group = |rig: &Fixture| {
        rig.peek(|state| {
            let groups = state.neutron.security_groups.iter();
            let ours = groups.filter(|group| group.name.starts_with("lb-sg-"));
            ours.map(|group| to_value(&**group).unwrap())
                .collect::<Vec<_>>()
        })
    };
    let shown = group(&rig).remove(0);
    for (what, odd) in odd_variants(&shown) {
        if what == "name \"SOMETHING_NEW\"" {
            continue;
        }
        rig = rig.restart().await;
        answer_instead(&rig, "/security-groups", shown["id"].as_str().unwrap().into(), odd);
        for _ in 0..2 {
            rig.ensure(&served, ReadMode::Fresh).await;
        }
        assert_eq!(group(&rig).len(), 1, "{what}");
    }
}
