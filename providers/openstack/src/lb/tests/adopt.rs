//! Load balancers that a Service adopts.

use ccm_core::{
    k8s::{LbStatus, ServiceView, well_known::ANNOTATION_ADOPT},
    provider::{ErrorKind, Progress, ReadMode, RetainOutcome},
};

use super::{
    fixture::{Fixture, Stop, annotation, published, service, shown, with},
    retain::{LONG, adopter, at_rest, let_go, nothing_to_retain, owned, refused, served, writes},
};
use crate::lb::retention_tags::MARK;

const OWN_TAGS: [&str; 2] = ["kube_service_c2_ns_shop", "adopted-by-uid-uid-shop"];

/// The process of another cluster, which has two nodes of its own.
async fn other_cluster(rig: Fixture) -> Fixture {
    let mut rig = rig.restart_in("c2").await;
    rig.add_node().await;
    rig.add_node().await;
    rig.nodes.drain(..2);
    rig
}

fn is_marked(rig: &Fixture) -> bool {
    rig.the_lb().tags.iter().any(|tag| tag == MARK)
}

fn sorted_tags(rig: &Fixture) -> Vec<String> {
    let mut tags = rig.the_lb().tags;
    tags.sort();
    tags
}

fn member_addresses(rig: &Fixture, port: u16) -> Vec<String> {
    let members = rig.members(port);
    members
        .into_iter()
        .map(|member| member.address.clone())
        .collect()
}

/// Checks that the Service has adopted it completely.
async fn assert_adopted(rig: &Fixture, shop: &ServiceView) {
    assert_eq!(rig.the_lb().name, "kube_service_c2_ns_shop");
    let mut tags = OWN_TAGS.to_vec();
    tags.sort_unstable();
    assert_eq!(sorted_tags(rig), tags);
    let listeners = rig.listeners();
    assert!(
        listeners
            .iter()
            .all(|listener| listener.tags == [OWN_TAGS[0]]),
        "{listeners:#?}"
    );
    let nodes: Vec<_> = rig
        .nodes
        .iter()
        .map(|node| node.addresses[0].address.to_string())
        .collect();
    assert_eq!((member_addresses(rig, 80), member_addresses(rig, 443)), (nodes.clone(), nodes));
    assert_eq!(rig.plan(shop).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn another_cluster_adopts_it_and_sends_only_what_differs() {
    let (rig, web, id) = let_go(false).await;
    let rig = rig.restart_in("c2").await;
    let before = rig.everything();
    // What it would do is said before.
    let plan = rig.plan(&adopter(&id)).await.unwrap();
    assert_eq!(&*plan[0].reason, "it is adopted by the Service");
    assert_eq!(&*plan[plan.len() - 1].reason, "the Service has adopted it");
    assert_eq!(writes(&rig), [""; 0]);
    let shop = rig.settle(&adopter(&id)).await;
    assert_eq!((annotation(&shop, "load-balancer-id"), shown(&shop)), (Some(&*id), shown(&web)));
    let writes = writes(&rig);
    // The claim, two listeners and their pools, the mark. The backends are the same here.
    assert_eq!(writes.len(), 6, "{writes:#?}");
    assert!(writes.iter().all(|write| write.starts_with("PUT")), "{writes:#?}");
    assert_eq!(rig.the_lb().description, "Kubernetes external service ns/shop from cluster c2");
    assert_adopted(&rig, &shop).await;
    let renamed = before
        .iter()
        .filter(|line| !line.starts_with("lb ") && !line.starts_with("floating"));
    for line in renamed {
        let line = line.replace("c1_ns_web", "c2_ns_shop");
        assert!(rig.everything().contains(&line), "{line}");
    }
    assert_eq!(owned(&rig).await, ["load balancer"]);

    // The old cluster is refused whatever it says, and changes nothing.
    let rig = rig.restart_in("c1").await;
    let adopted = rig.everything();
    let back = with(web.clone(), ANNOTATION_ADOPT, &id);
    assert!(refused(&rig, &back).await.contains("has adopted it"));
    for service in [&back, &web] {
        nothing_to_retain(&rig, service).await;
        rig.remove(service).await;
        assert_eq!(rig.everything(), adopted);
    }
    assert_eq!(owned(&rig).await, [""; 0]);

    // Its new Service deletes all of it.
    let rig = rig.restart_in("c2").await;
    rig.remove(&shop).await;
    assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty());
}

/// The new nodes admit it before they become its members, and the mark goes last.
#[tokio::test(start_paused = true)]
async fn traffic_is_never_interrupted() {
    let (rig, _, id) = let_go(true).await;
    let rig = other_cluster(rig).await;
    rig.requests();
    rig.settle(&adopter(&id)).await;
    let writes = writes(&rig);
    let position = |part: &str| {
        let found = writes.iter().position(|write| write.contains(part));
        found.unwrap_or_else(|| panic!("{part}: {writes:#?}"))
    };
    let last = |part: &str| {
        writes
            .iter()
            .rposition(|write| write.contains(part))
            .unwrap()
    };
    assert!(position("/loadbalancers/") < position("/security-groups"), "the claim is first");
    assert!(position("security-group-rules") < position("/members"), "{writes:#?}");
    assert!(last("/v2.0/ports/") < position("/members"), "{writes:#?}");
    assert_eq!(last("/loadbalancers/"), writes.len() - 1, "{writes:#?}");
    // The old nodes' group is not needed any more.
    let rig = rig.restart_in("c1").await;
    assert_eq!(owned(&rig).await, ["security group"]);
}

/// Without nodes nothing is changed, and the old backends serve on.
#[tokio::test(start_paused = true)]
async fn it_waits_for_nodes() {
    let (rig, _, id) = let_go(true).await;
    let mut rig = other_cluster(rig).await;
    let nodes = std::mem::take(&mut rig.nodes);
    let kept = rig.everything();
    let outcome = rig.ensure(&adopter(&id), ReadMode::Fresh).await;
    let Ok(Progress::Pending { reason, .. }) = outcome.result else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("no node can be a backend"), "{reason}");
    let plan = rig.plan(&adopter(&id)).await.unwrap();
    assert_eq!((plan.len(), &*plan[0].operation), (1, "wait"));
    assert_eq!(rig.everything(), kept);
    // Nor are the backends taken away if the nodes go while it is adopted.
    rig.nodes = nodes;
    rig.wire.stop_at(Stop { after: 25, sent: true });
    let shop = adopter(&id);
    let adoption = tokio::time::timeout(LONG, rig.try_settle(&shop, 120));
    assert!(adoption.await.is_err());
    assert!(is_marked(&rig) && rig.the_lb().name.contains("shop"));
    let mut rig = rig.restart_in("c2").await;
    let nodes = std::mem::take(&mut rig.nodes);
    rig.try_settle(&adopter(&id), 20).await.unwrap_err();
    assert_eq!((rig.members(80).len(), rig.members(443).len()), (2, 2));
    rig.nodes = nodes;
    let shop = rig.settle(&adopter(&id)).await;
    assert_adopted(&rig, &shop).await;
}

/// The way back: the cluster that let go adopts it again.
#[tokio::test(start_paused = true)]
async fn it_goes_to_another_cluster_and_back() {
    let (rig, web, id) = let_go(true).await;
    let rig = rig.restart_in("c2").await;
    let shop = rig.settle(&adopter(&id)).await;
    assert!(matches!(rig.retain(&shop).await.unwrap(), RetainOutcome::Retained { .. }));
    let rig = rig.restart_in("c1").await;
    let again = ServiceView {
        uid: "uid-4".into(),
        ..with(service("web", &[80, 443]), ANNOTATION_ADOPT, &id)
    };
    let again = rig.settle(&again).await;
    assert_eq!((shown(&again), rig.lbs().len()), (shown(&web), 1));
    assert_eq!(sorted_tags(&rig), ["adopted-by-uid-uid-4", "kube_service_c1_ns_web"]);
    assert_eq!(rig.plan(&again).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn only_what_was_let_go_is_adopted() {
    // In a cluster of the same name, the name of the Service is no proof.
    for cluster in ["c2", "c1"] {
        let (rig, web) = served(false).await;
        let id = annotation(&web, "load-balancer-id").unwrap().to_owned();
        let rig = rig.restart_in(cluster).await;
        let before = rig.everything();
        let same_name = ServiceView {
            uid: "uid-other".into(),
            ..with(service("web", &[80, 443]), ANNOTATION_ADOPT, &id)
        };
        let missing = adopter("00000000-0000-4000-8000-000000000000");
        for (service, reason) in [
            (&adopter(&id), "no Service has let go of it"),
            (&same_name, "no Service has let go of it"),
            (&missing, "does not exist"),
        ] {
            let error = refused(&rig, service).await;
            assert!(error.contains(reason), "{error}");
            assert_eq!(rig.everything(), before, "{reason}");
        }
        // The Service that has it may name it.
        let rig = rig.restart_in("c1").await;
        let own = rig.settle(&with(web, ANNOTATION_ADOPT, &id)).await;
        assert_eq!((rig.everything(), rig.plan(&own).await.unwrap()), (before, Vec::new()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_has_one_keeps_that() {
    let (rig, _, id) = let_go(false).await;
    let rig = rig.restart_in("c2").await;
    let shop = rig.settle(&service("shop", &[80])).await;
    let before = rig.everything();
    let mut unnamed = with(shop, ANNOTATION_ADOPT, &id);
    for _ in 0..2 {
        let outcome = rig.ensure(&unnamed, ReadMode::Fresh).await;
        // Nor is it given the ID of the other.
        assert_eq!(published(&unnamed, &outcome).annotations, unnamed.annotations);
        assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(rig.everything(), before);
        unnamed
            .annotations
            .retain(|key, _| !key.contains("load-balancer-id"));
    }
    // The members of its own follow the nodes meanwhile.
    let mut rig = rig.restart_in("c2").await;
    let kept = rig.members(443).len();
    rig.add_node().await;
    rig.update(&unnamed).await.unwrap();
    let own = rig.lbs().into_iter().find(|lb| *lb.id != *id).unwrap();
    let of_own = rig
        .listeners()
        .into_iter()
        .filter(|listener| listener.loadbalancers[0].id == own.id);
    assert_eq!((of_own.count(), rig.members(443).len()), (1, kept));
    let members = rig
        .everything()
        .iter()
        .filter(|line| line.contains(":30080"))
        .count();
    assert_eq!(members, 2 + 3, "two of the one that was let go, three of its own");
}

/// What can be known to fail is known before anything is changed.
#[tokio::test(start_paused = true)]
async fn what_would_fail_changes_nothing() {
    let (rig, _, id) = let_go(true).await;
    hand_over_listener(&rig, 443, &["team"]).await;
    let rig = other_cluster(rig).await;
    let kept = rig.everything();
    for (service, reason) in [
        (with(adopter(&id), "lb-provider", "ovn"), "a provider cannot change"),
        (adopter(&id), "already exists on load balancer"),
    ] {
        let outcome = rig.ensure(&service, ReadMode::Fresh).await;
        let error = outcome.result.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(rig.everything(), kept);
    }
}

/// Gives a listener the tags and the name of somebody else.
async fn hand_over_listener(rig: &Fixture, port: u16, tags: &[&str]) {
    let listener = rig
        .listeners()
        .into_iter()
        .find(|listener| listener.protocol_port == port);
    let id = listener.unwrap().id;
    let tags: Vec<String> = tags.iter().map(ToString::to_string).collect();
    rig.change(move |state, _| {
        state.octavia.listeners.update(&id, |row| {
            row.body.name = "theirs".into();
            row.body.tags = tags;
        });
    })
    .await;
}

/// Listeners that people made, or that another Service made in the last moment, are none of ours.
#[tokio::test(start_paused = true)]
async fn listeners_of_others_stay() {
    for tags in [&["team"][..], &["kube_service_c1_ns_other"]] {
        let (rig, _, id) = let_go(false).await;
        hand_over_listener(&rig, 443, tags).await;
        let rig = other_cluster(rig).await;
        let theirs = rig.listeners().remove(1);
        let shop = with(service("shop", &[80]), ANNOTATION_ADOPT, &id);
        let shop = rig.settle(&shop).await;
        let listeners = rig.listeners();
        assert_eq!((listeners.len(), &*listeners[1].name), (2, "theirs"));
        assert_eq!(
            (&listeners[1].tags, &listeners[1].default_pool_id),
            (&theirs.tags, &theirs.default_pool_id)
        );
        assert_eq!(listeners[0].tags, [OWN_TAGS[0]]);
        assert_eq!(rig.members(443).len(), 2);
        assert_ne!(member_addresses(&rig, 443), member_addresses(&rig, 80));
        assert!(!is_marked(&rig));
        assert_eq!(rig.plan(&shop).await.unwrap(), []);
    }
    // One without tags is the Service's, as always.
    let (rig, _, id) = let_go(false).await;
    hand_over_listener(&rig, 443, &[]).await;
    let rig = other_cluster(rig).await;
    let shop = rig.settle(&adopter(&id)).await;
    assert_adopted(&rig, &shop).await;
}

/// After a rename of its cluster, an adopted one is still its Service's, before the first sync, too.
#[tokio::test(start_paused = true)]
async fn it_survives_a_rename_of_the_cluster() {
    let (rig, _, id) = let_go(false).await;
    let rig = rig.restart_in("c2").await;
    let shop = rig.settle(&adopter(&id)).await;
    let mut rig = rig.restart_in("c3").await;
    rig.add_node().await;
    rig.update(&shop).await.unwrap();
    assert_eq!(rig.members(80).len(), 3, "its members follow the nodes");
    let mut hidden = shop.clone();
    hidden.status = LbStatus::default();
    let renamed = rig.settle(&hidden).await;
    assert_eq!(sorted_tags(&rig), ["adopted-by-uid-uid-shop", "kube_service_c3_ns_shop"]);
    assert_eq!(rig.plan(&renamed).await.unwrap(), []);
    // Also without a sync in between, it goes with its Service.
    let rig = rig.restart_in("c4").await;
    let mut unnamed = renamed;
    unnamed
        .annotations
        .retain(|key, _| &**key == ANNOTATION_ADOPT);
    rig.remove(&unnamed).await;
    assert!(rig.lbs().is_empty());
}

/// At every request of an adoption, the process dies. Whatever comes next, nothing is lost: the old
/// cluster and a third one are refused, and another process completes it, also after a rename of the
/// cluster.
#[tokio::test(start_paused = true)]
async fn a_death_anywhere_during_an_adoption_is_made_up_for() {
    let mut deaths = 0;
    'requests: for after in 0.. {
        for sent in [false, true] {
            let Some((rig, web, id)) = stopped_at(Stop { after, sent }).await else {
                break 'requests;
            };
            deaths += 1;
            let marked = is_marked(&rig);
            let there = at_rest(&rig);
            let claimed = rig.the_lb().name.starts_with("kube_service_");
            // The old cluster, and a Service there that names it, are refused.
            let rig = rig.restart_in("c1").await;
            let namesake = ServiceView { uid: "uid-6".into(), ..web.clone() };
            if marked {
                assert_eq!(owned(&rig).await.len(), 0, "{after} {sent}");
                for service in [&web, &namesake] {
                    refused(&rig, service).await;
                    rig.remove(service).await;
                }
                assert!(matches!(rig.retain(&web).await.unwrap(), RetainOutcome::Retained { .. }));
            }
            // A third cluster is refused once the second has begun, also one of the same names.
            let rig = rig.restart_in("c3").await;
            let same_name = ServiceView { uid: "uid-7".into(), ..adopter(&id) };
            if claimed {
                refused(&rig, &adopter_in_c3(&id)).await;
            }
            let rig = rig.restart_in("c2").await;
            if claimed {
                refused(&rig, &same_name).await;
                rig.remove(&same_name).await;
            }
            assert_eq!(at_rest(&rig), there, "{after} {sent}");
            // Another process completes it.
            let cluster = if after % 2 == 0 { "c2" } else { "c5" };
            let rig = rig.restart_in(cluster).await;
            let shop = rig.settle(&adopter(&id)).await;
            assert_eq!((shown(&shop), rig.lbs().len()), (shown(&web), 1), "{after} {sent}");
            if cluster == "c2" {
                assert_adopted(&rig, &shop).await;
            } else {
                assert_eq!(
                    sorted_tags(&rig),
                    ["adopted-by-uid-uid-shop", "kube_service_c5_ns_shop"],
                    "{after} {sent}"
                );
                assert_eq!(rig.listeners().len(), 2);
                assert_eq!(rig.plan(&shop).await.unwrap(), []);
            }
        }
    }
    assert!(deaths >= 40, "{deaths} requests were walked through");
}

/// At every request, the cloud answers with an error once, whether it did what was asked or not.
#[tokio::test(start_paused = true)]
async fn an_error_anywhere_during_an_adoption_is_made_up_for() {
    let mut errors = 0;
    'requests: for after in 0.. {
        for sent in [false, true] {
            let (rig, web, id) = let_go(true).await;
            let rig = other_cluster(rig).await;
            rig.wire.fail_at(Stop { after, sent });
            let shop = rig.settle(&adopter(&id)).await;
            if !rig.wire.has_failed() {
                break 'requests;
            }
            errors += 1;
            assert_eq!((shown(&shop), rig.lbs().len()), (shown(&web), 1), "{after} {sent}");
            assert_adopted(&rig, &shop).await;
        }
    }
    assert!(errors >= 40, "{errors} requests were walked through");
}

fn adopter_in_c3(id: &str) -> ServiceView {
    ServiceView { uid: "uid-third".into(), ..adopter(id) }
}

/// An adoption that died at a request, and the Service that let go; `None` if it was complete before.
async fn stopped_at(stop: Stop) -> Option<(Fixture, ServiceView, String)> {
    let (rig, web, id) = let_go(true).await;
    let rig = other_cluster(rig).await;
    rig.wire.stop_at(stop);
    let shop = adopter(&id);
    let adoption = tokio::time::timeout(LONG, rig.try_settle(&shop, 120));
    let died = adoption.await.is_err();
    // What Octavia has accepted, it still does; the local one does so when it is asked.
    let rig = rig.restart_in("c2").await;
    owned(&rig).await;
    died.then_some((rig, web, id))
}

/// The same, and then the adopting Service is deleted, with or without the wish to keep it. As long as
/// the mark is there, the load balancer is kept, with the groups of both Services, and a third Service
/// may adopt it.
#[tokio::test(start_paused = true)]
async fn an_adoption_that_is_given_up_leaves_it_to_others() {
    let mut returned = 0;
    'requests: for after in 0.. {
        for keep in [false, true] {
            let Some((rig, web, id)) = stopped_at(Stop { after, sent: keep }).await else {
                break 'requests;
            };
            let marked = is_marked(&rig);
            let claimed = rig.the_lb().name.starts_with("kube_service_");
            let before: Vec<_> = at_rest(&rig);
            let rig = rig.restart_in("c2").await;
            // The annotation may be gone by now.
            let shop = if after % 2 == 0 {
                adopter(&id)
            } else {
                service("shop", &[80, 443])
            };
            if keep {
                let outcome = rig.retain(&shop).await.unwrap();
                let is_retained = matches!(outcome, RetainOutcome::Retained { .. });
                assert_eq!(is_retained, claimed, "{after}: {outcome:?}");
            } else {
                rig.remove(&shop).await;
                if !marked {
                    assert!(rig.lbs().is_empty(), "{after}");
                    continue;
                }
            }
            assert!(is_marked(&rig) && rig.the_lb().name.starts_with("retained_"), "{after}");
            assert!(
                !rig.the_lb()
                    .tags
                    .iter()
                    .any(|tag| tag.starts_with("adopted") || tag.starts_with("kube"))
            );
            let lost: Vec<_> = before
                .iter()
                .filter(|line| !line.starts_with("lb "))
                .filter(|line| !rig.everything().contains(line))
                .collect();
            assert_eq!(lost, [""; 0], "{after}");
            if claimed {
                returned += 1;
                assert_eq!(owned(&rig).await, [""; 0], "{after}");
            }
            let rig = rig.restart_in("c3").await;
            let third = rig.settle(&adopter_in_c3(&id)).await;
            assert_eq!((shown(&third), rig.lbs().len()), (shown(&web), 1), "{after}");
            let listeners = rig.listeners();
            assert_eq!(listeners.len(), 2, "{after}");
            assert!(
                listeners
                    .iter()
                    .all(|listener| listener.tags == ["kube_service_c3_ns_shop"]),
                "{after}"
            );
            assert_eq!(rig.plan(&third).await.unwrap(), [], "{after}");
        }
    }
    assert!(returned >= 30, "{returned} adoptions were given up");
}

/// Two clusters adopt it at the same time: one stops at each of its requests until the other is done.
/// In the end it is one's, and the other is refused and changes nothing.
#[tokio::test(start_paused = true)]
async fn of_two_that_adopt_it_at_once_one_gets_it() {
    let mut stops = 0;
    let mut winners = [0, 0];
    'requests: for after in 0.. {
        for sent in [false, true] {
            let (rig, web, id) = let_go(false).await;
            let rig = other_cluster(rig).await;
            let (_, other) = rig.process_of("c3").await;
            let third = adopter_in_c3(&id);
            rig.wire.stop_at(Stop { after, sent });
            let first = adopter(&id);
            let mut adoption = Box::pin(rig.try_settle(&first, 30));
            if tokio::time::timeout(LONG, &mut adoption).await.is_ok() {
                break 'requests;
            }
            stops += 1;
            let theirs = rig.try_settle_by(&other, &third, 30).await;
            rig.wire.resume();
            let ours = adoption.await;
            // One has it completely.
            let lb = rig.the_lb();
            let ours_won = lb.tags.contains(&OWN_TAGS[1].to_owned());
            let (name, winner) = if ours_won {
                ("kube_service_c2_ns_shop", ours)
            } else {
                ("kube_service_c3_ns_shop", theirs)
            };
            winners[usize::from(ours_won)] += 1;
            let winner = winner.unwrap();
            assert_eq!(shown(&winner), shown(&web));
            assert_eq!(
                (&*lb.name, lb.tags.len(), is_marked(&rig)),
                (name, 2, false),
                "{after} {sent}"
            );
            assert!(
                rig.listeners()
                    .iter()
                    .all(|listener| listener.tags == [name]),
                "{after} {sent}"
            );
            // The other one is refused.
            let before = at_rest(&rig);
            let (cluster, loser) = if ours_won {
                ("c3", third)
            } else {
                ("c2", first)
            };
            let rig = rig.restart_in(cluster).await;
            refused(&rig, &loser).await;
            rig.remove(&loser).await;
            assert_eq!(at_rest(&rig), before, "{after} {sent}");
            let rig = rig.restart_in(if ours_won { "c2" } else { "c3" }).await;
            assert_eq!(rig.plan(&winner).await.unwrap(), [], "{after} {sent}");
        }
    }
    assert!(stops >= 30 && winners[0] > 0 && winners[1] > 0, "{stops} {winners:?}");
}
