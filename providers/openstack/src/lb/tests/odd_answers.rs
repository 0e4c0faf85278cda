//! What the services answer is not as they answer it in one field.

use ccm_core::{
    k8s::ServiceView,
    provider::{Progress, ReadMode},
};
use serde_json::{Value, to_value};

use super::{
    fixture::{Fixture, service, with},
    trouble::shared,
};
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

/// A Service whose listener and load balancer have tags and headers of others, too, in a process that
/// knows nothing.
async fn with_others_tags_and_headers() -> (Fixture, ServiceView) {
    let web = with(service("web", &[80]), "x-forwarded-for", "true");
    let rig = Fixture::new(1).await;
    let served = rig.settle(&web).await;
    rig.change(|state, _| {
        let ids: Vec<String> = state
            .octavia
            .load_balancers
            .iter()
            .map(|row| row.body.id.clone())
            .collect();
        state
            .octavia
            .load_balancers
            .update(&ids[0], |row| row.body.tags.push("team".into()));
        let ids: Vec<String> = state
            .octavia
            .listeners
            .iter()
            .map(|row| row.body.id.clone())
            .collect();
        state.octavia.listeners.update(&ids[0], |row| {
            row.body.tags.push("team".into());
            row.body
                .insert_headers
                .insert("X-Forwarded-Port".into(), "true".into());
        });
    })
    .await;
    let rig = rig.restart().await;
    let before = rig.everything();
    let shown = rig.settle(&served).await;
    assert_eq!(rig.everything(), before, "nothing is odd yet, and nothing is to do");
    (rig, shown)
}

/// Where a field is odd, the Service waits, or everything stays as it is.
#[tokio::test(start_paused = true)]
async fn what_is_odd_changes_nothing_of_others() {
    let (mut rig, served) = with_others_tags_and_headers().await;
    let before = rig.everything();
    let objects = rig.peek(|state| {
        let octavia = &state.octavia;
        [
            (
                "/loadbalancers",
                to_value(&octavia.load_balancers.iter().next().unwrap().body).unwrap(),
            ),
            ("/listeners", to_value(&octavia.listeners.iter().next().unwrap().body).unwrap()),
            ("/pools", to_value(&octavia.pools.iter().next().unwrap().body).unwrap()),
            ("/members", to_value(&octavia.members.iter().next().unwrap().body).unwrap()),
        ]
    });
    let mut doubts = 0;
    for (path, shown) in objects {
        let id = shown["id"].as_str().unwrap().to_owned();
        for (what, odd) in odd_variants(&shown) {
            // Another word is another state of the object, and not an odd answer, and a member may
            // have no subnet.
            if what.ends_with("\"SOMETHING_NEW\"") || what == "subnet_id null" {
                continue;
            }
            rig = rig.restart().await;
            answer_instead(&rig, path, id.clone(), odd);
            for _ in 0..2 {
                let outcome = rig.ensure(&served, ReadMode::Fresh).await;
                doubts += usize::from(outcome.result.is_err());
                assert_eq!(rig.everything(), before, "{path} {what}: {:?}", outcome.result);
            }
        }
    }
    assert!(doubts > 20, "{doubts}");
}

/// As in an upgrade of Octavia, while a process of a release without tags answers.
#[tokio::test(start_paused = true)]
async fn without_tags_nothing_is_changed_or_deleted() {
    for path in ["/loadbalancers", "/listeners"] {
        let rig = Fixture::new(1).await;
        let (first, second) = shared(&rig).await;
        let rig = rig.restart().await;
        let before = rig.everything();
        rig.wire.spoil(move |target, row| {
            if target.contains(path)
                && let Some(object) = row.as_object_mut()
            {
                object.remove("tags");
            }
        });
        for service in [&first, &second] {
            let result = rig.ensure(service, ReadMode::Fresh).await.result;
            assert!(result.is_err(), "{path}: {result:?}");
            let result = rig.delete(service).await;
            assert!(result.is_err(), "{path}: {result:?}");
        }
        assert_eq!(rig.everything(), before, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_of_which_the_project_is_not_shown_is_not_ours() {
    let rig = Fixture::new(1).await;
    let served = rig.settle(&service("web", &[80])).await;
    let rig = rig.restart().await;
    let before = rig.everything();
    rig.wire.spoil(|target, row| {
        if target.contains("/loadbalancers")
            && let Some(object) = row.as_object_mut()
        {
            object.remove("project_id");
        }
    });
    let results = [rig.ensure(&served, ReadMode::Fresh).await.result, rig.delete(&served).await];
    for result in results {
        let error = result.unwrap_err();
        assert!(error.to_string().contains("does not show the project"), "{error}");
    }
    assert_eq!(rig.everything(), before);
}

/// A floating IP that does not show its port may be in use.
#[tokio::test(start_paused = true)]
async fn a_floating_ip_without_its_port_is_neither_taken_nor_deleted() {
    let web = service("web", &[80]);
    let rig = Fixture::new(1).await;
    let served = rig.settle(&web).await;
    let address = rig.floating_ips()[0].floating_ip_address;
    let id = rig.the_lb().id;
    let other = ServiceView {
        load_balancer_ip: address.map(|ip| ip.to_string().into()),
        ..service("other", &[81])
    };
    rig.wire.spoil(|target, row| {
        if target.contains("/floatingips")
            && let Some(object) = row.as_object_mut()
        {
            object.remove("port_id");
        }
    });
    // It is asked for by another Service.
    let before = rig.floating_ips();
    assert!(rig.try_settle(&other, 10).await.is_err());
    assert_eq!(rig.floating_ips(), before);
    // The load balancer seems to be deleted already.
    rig.wire.spoil(move |target, row| {
        if target.contains("/floatingips")
            && let Some(object) = row.as_object_mut()
        {
            object.remove("port_id");
        }
        if target.contains("/loadbalancers") && row["id"] == *id {
            row["provisioning_status"] = "DELETED".into();
        }
    });
    let result = rig.delete(&served).await;
    assert!(result.is_err(), "{result:?}");
    assert_eq!(rig.floating_ips(), before);
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
