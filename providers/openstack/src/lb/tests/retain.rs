//! Load balancers that a Service lets go of, and that another one adopts.

use std::time::Duration;

use ccm_core::{
    k8s::{
        ServiceView,
        well_known::{ANNOTATION_ADOPT, ANNOTATION_RETAIN},
    },
    provider::{ErrorKind, Inventory as _, ReadMode, RetainOutcome},
};

use super::{
    fixture::{Death, Fixture, annotation, internal, service, shown, with},
    trouble::break_it,
};
use crate::lb::plan::retention::MARK;

/// Longer than any call waits in virtual time.
const LONG: Duration = Duration::from_secs(3600);

/// A served Service that asks to keep its load balancer.
async fn served(groups: bool) -> (Fixture, ServiceView) {
    let rig = Fixture::with(2, |settings, _| settings.manage_security_groups = groups).await;
    let web = rig
        .settle(&with(service("web", &[80, 443]), ANNOTATION_RETAIN, "true"))
        .await;
    (rig, web)
}

/// Its load balancer is let go.
async fn let_go(groups: bool) -> (Fixture, ServiceView, String) {
    let (rig, web) = served(groups).await;
    let RetainOutcome::Retained { id, .. } = rig.retain(&web).await.unwrap() else {
        panic!("it is not let go")
    };
    (rig, web, id.into())
}

/// The Service of another cluster that adopts a load balancer.
fn adopter(id: &str) -> ServiceView {
    with(service("shop", &[80, 443]), ANNOTATION_ADOPT, id)
}

/// Everything except the name and tags of the load balancer itself.
fn rest(rig: &Fixture) -> Vec<String> {
    rig.everything()
        .into_iter()
        .filter(|line| !line.starts_with("lb "))
        .collect()
}

/// Everything, as it is once Octavia is no longer busy.
fn at_rest(rig: &Fixture) -> Vec<String> {
    let lines = rig.everything();
    lines
        .into_iter()
        .map(|line| line.replace("PENDING_UPDATE", "ACTIVE"))
        .collect()
}

fn writes(rig: &Fixture) -> Vec<String> {
    rig.requests()
        .into_iter()
        .filter(|request| !request.starts_with("GET"))
        .collect()
}

async fn owned(rig: &Fixture) -> Vec<String> {
    let owned = rig.balancers.list_owned(&rig.op()).await.unwrap();
    owned
        .into_iter()
        .map(|object| object.kind.to_string())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn one_update_lets_go_and_everything_serves_on() {
    for groups in [false, true] {
        let (rig, web) = served(groups).await;
        let before = rest(&rig);
        let id = annotation(&web, "load-balancer-id").unwrap().to_owned();
        rig.requests();
        let RetainOutcome::Retained { id: kept_id, kept } = rig.retain(&web).await.unwrap() else {
            panic!("it is not let go")
        };
        assert_eq!(writes(&rig).len(), 1);
        assert_eq!((&*kept_id, rest(&rig)), (&*id, before));
        assert!(kept.contains("with 2 listeners and 2 pools, floating IP"), "{kept}");
        assert_eq!(kept.contains("lb-sg-uid-web-ns-web"), groups, "{kept}");
        let lb = rig.the_lb();
        assert_eq!(
            (&*lb.name, lb.tags),
            (
                "retained_kube_service_c1_ns_web",
                vec![MARK.to_owned(), "retained-by-uid-uid-web".to_owned()]
            )
        );
        // It is not listed as the cluster's, and neither is what it needs.
        assert_eq!(owned(&rig).await, [""; 0]);
        // Asked again, also by another process and without the ID, it changes nothing.
        let rig = rig.restart().await;
        let mut unnamed = web.clone();
        unnamed
            .annotations
            .retain(|key, _| !key.contains("load-balancer-id"));
        for service in [&web, &unnamed] {
            let again = rig.retain(service).await.unwrap();
            assert!(matches!(again, RetainOutcome::Retained { id: again, .. } if *again == *id));
        }
        assert_eq!(writes(&rig), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_old_cluster_never_touches_it_again() {
    for groups in [false, true] {
        let (rig, web, id) = let_go(groups).await;
        let rig = rig.restart().await;
        let kept = rig.everything();
        // The same Service, and one of the same name that names the load balancer, and one that shows
        // its address.
        let namesake = ServiceView {
            uid: "uid-2".into(),
            ..with(service("web", &[80]), "load-balancer-id", &id)
        };
        let showing = ServiceView { status: web.status.clone(), ..namesake.clone() };
        for service in [&web, &namesake, &showing, &internal(web.clone())] {
            let error = rig
                .ensure(service, ReadMode::Fresh)
                .await
                .result
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("was let go by its Service"), "{error}");
            assert!(rig.plan(service).await.is_err());
            assert!(rig.update(service).await.is_err());
            rig.remove(service).await;
            assert_eq!(rig.everything(), kept, "{service:?}");
        }
        assert!(rig.reasons().contains(&"LoadBalancerRetained"));
        // Without the annotation a Service of the same name gets another load balancer, and loses that.
        let fresh = ServiceView { uid: "uid-3".into(), ..service("web", &[80]) };
        let fresh = rig.settle(&fresh).await;
        assert_ne!(annotation(&fresh, "load-balancer-id"), Some(&*id));
        assert_eq!(rig.lbs().len(), 2);
        rig.remove(&fresh).await;
        assert_eq!(rig.everything(), kept);
        // Also if the deleted Service does not say where its load balancer is.
        let mut unnamed = web.clone();
        unnamed.annotations.clear();
        rig.remove(&unnamed).await;
        assert_eq!(rig.everything(), kept);
    }
}

#[tokio::test(start_paused = true)]
async fn another_cluster_adopts_it_and_sends_only_what_differs() {
    let (rig, web, id) = let_go(false).await;
    let rig = rig.restart_in("c2").await;
    let before = rig.everything();
    let shop = rig.settle(&adopter(&id)).await;
    assert_eq!((annotation(&shop, "load-balancer-id"), shown(&shop)), (Some(&*id), shown(&web)));
    let writes = writes(&rig);
    // Name and tag, two listeners, two pools, the mark. The backends are the same here.
    assert_eq!(writes.len(), 6, "{writes:#?}");
    assert!(writes.iter().all(|write| write.starts_with("PUT")), "{writes:#?}");
    let lb = rig.the_lb();
    assert_eq!(
        (&*lb.name, lb.tags),
        ("kube_service_c2_ns_shop", vec!["kube_service_c2_ns_shop".to_owned()])
    );
    assert_eq!(&*lb.description, "Kubernetes external service ns/shop from cluster c2");
    let renamed: Vec<_> = before
        .iter()
        .filter(|line| {
            !line.starts_with("lb ")
                && !line.starts_with("floating")
                && !line.starts_with("monitor")
        })
        .map(|line| line.replace("c1_ns_web", "c2_ns_shop"))
        .collect();
    for line in renamed {
        assert!(rig.everything().contains(&line), "{line}");
    }
    assert_eq!(rig.plan(&shop).await.unwrap(), []);
    assert_eq!(owned(&rig).await, ["load balancer"]);

    // The old cluster is refused whatever it says, and changes nothing.
    let rig = rig.restart_in("c1").await;
    let adopted = rig.everything();
    let back = with(web.clone(), ANNOTATION_ADOPT, &id);
    let error = rig.ensure(&back, ReadMode::Fresh).await.result.unwrap_err();
    assert!(error.to_string().contains("no Service has let go of it"), "{error}");
    for service in [&back, &web] {
        rig.remove(service).await;
        assert!(rig.retain(service).await.is_err());
        assert_eq!(rig.everything(), adopted);
    }
    assert_eq!(owned(&rig).await, [""; 0]);

    // Its new Service deletes all of it, or lets go of it in turn.
    let rig = rig.restart_in("c2").await;
    rig.remove(&shop).await;
    assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty());
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
    assert_eq!(rig.the_lb().tags, ["kube_service_c1_ns_web"]);
    assert_eq!(rig.plan(&again).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_certainly_and_only_the_services_is_not_let_go() {
    // It is shared, from either side.
    let rig = Fixture::new(1).await;
    let one = rig.settle(&service("one", &[80])).await;
    let id = annotation(&one, "load-balancer-id").unwrap().to_owned();
    let two = rig
        .settle(&with(service("two", &[443]), "load-balancer-id", &id))
        .await;
    let before = rig.everything();
    for (service, reason) in
        [(&one, "other Services use it, too"), (&two, "it was not created for this Service")]
    {
        let error = rig.retain(service).await.unwrap_err();
        assert_eq!((error.kind(), rig.everything()), (ErrorKind::InvalidInput, before.clone()));
        assert!(error.to_string().contains(reason), "{error}");
    }
    // It may be a namesake's: it is older, and the Service shows no address.
    let rig = Fixture::new(1).await;
    rig.settle(&service("web", &[80])).await;
    let rig = rig.restart().await;
    let before = rig.everything();
    let late = ServiceView {
        created: jiff::Timestamp::now() + LONG,
        uid: "uid-5".into(),
        ..service("web", &[80])
    };
    let error = rig.retain(&late).await.unwrap_err();
    assert!(error.to_string().contains("not shown to be newer"), "{error}");
    assert_eq!(rig.everything(), before);
    // There is none.
    assert_eq!(rig.retain(&service("none", &[80])).await.unwrap(), RetainOutcome::NothingToRetain);
    assert_eq!(rig.everything(), before);
}

#[tokio::test(start_paused = true)]
async fn only_what_was_let_go_is_adopted() {
    let (rig, web) = served(false).await;
    let id = annotation(&web, "load-balancer-id").unwrap().to_owned();
    let rig = rig.restart_in("c2").await;
    let before = rig.everything();
    // Another's, also if the Service has the same name and shows an address; one that does not exist.
    let same_name = ServiceView {
        status: web.status.clone(),
        ..with(service("web", &[80]), ANNOTATION_ADOPT, &id)
    };
    let missing = adopter("00000000-0000-4000-8000-000000000000");
    for (service, reason) in [
        (&adopter(&id), "no Service has let go of it"),
        (&same_name, "no Service has let go of it"),
        (&missing, "does not exist"),
    ] {
        let error = rig
            .ensure(service, ReadMode::Fresh)
            .await
            .result
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        rig.remove(service).await;
        assert_eq!(rig.everything(), before, "{reason}");
    }
    // A Service that has one of its own keeps that.
    let rig = rig.restart_in("c1").await;
    rig.retain(&web).await.unwrap();
    let rig = rig.restart_in("c2").await;
    let shop = rig.settle(&service("shop", &[80])).await;
    let before = rig.everything();
    let mut unnamed = with(shop.clone(), ANNOTATION_ADOPT, &id);
    for _ in 0..2 {
        let outcome = rig.ensure(&unnamed, ReadMode::Fresh).await;
        let error = outcome.result.unwrap_err();
        assert_eq!((error.kind(), rig.everything()), (ErrorKind::InvalidInput, before.clone()));
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

/// At every request of the update that lets go, the process dies before or after the cloud gets it.
#[tokio::test(start_paused = true)]
async fn a_death_anywhere_while_it_is_let_go_leaves_it_whole() {
    let mut deaths = 0;
    for after in 0..40 {
        for sent in [false, true] {
            let (rig, web) = served(true).await;
            let before = rest(&rig);
            rig.wire.die_at(Death { after, sent });
            let died = tokio::time::timeout(LONG, rig.retain(&web)).await.is_err();
            assert_eq!(rest(&rig), before, "{after} {sent}");
            let rig = rig.restart().await;
            if died {
                deaths += 1;
                let outcome = rig.retain(&web).await.unwrap();
                assert!(
                    matches!(outcome, RetainOutcome::Retained { .. }),
                    "{after} {sent}: {outcome:?}"
                );
            }
            assert!(rig.the_lb().tags.contains(&MARK.to_owned()) && rest(&rig) == before);
        }
    }
    assert!((8..60).contains(&deaths), "{deaths} requests were walked through");
}

/// At every request of an adoption, the process dies. Whatever comes next, nothing is lost: the old
/// cluster and a third one are refused, the deletion of the new Service leaves it or deletes what it
/// has adopted completely, and another process completes it.
#[tokio::test(start_paused = true)]
async fn a_death_anywhere_during_an_adoption_is_made_up_for() {
    let mut deaths = 0;
    'requests: for after in 0.. {
        for sent in [false, true] {
            let (rig, web, id) = let_go(false).await;
            let rig = rig.restart_in("c2").await;
            rig.wire.die_at(Death { after, sent });
            let died = tokio::time::timeout(LONG, rig.try_settle(&adopter(&id), 120))
                .await
                .is_err();
            if !died {
                break 'requests;
            }
            deaths += 1;
            let is_marked = rig.the_lb().tags.contains(&MARK.to_owned());
            let there = at_rest(&rig);
            // The old cluster, and a Service there that names it, are refused.
            let rig = rig.restart_in("c1").await;
            let namesake = ServiceView {
                uid: "uid-6".into(),
                status: web.status.clone(),
                ..web.clone()
            };
            if is_marked {
                for service in [&web, &namesake] {
                    assert!(rig.ensure(service, ReadMode::Fresh).await.result.is_err());
                    rig.remove(service).await;
                }
            }
            // A third cluster is refused once the second has begun.
            let rig = rig.restart_in("c3").await;
            if rig.the_lb().name.starts_with("kube_service_") {
                assert!(
                    rig.ensure(&adopter(&id), ReadMode::Fresh)
                        .await
                        .result
                        .is_err()
                );
            }
            assert_eq!(at_rest(&rig), there, "{after} {sent}");
            // The new Service goes before it has adopted completely: the load balancer stays.
            let rig = rig.restart_in("c2").await;
            if is_marked {
                rig.remove(&adopter(&id)).await;
                assert_eq!(at_rest(&rig), there, "{after} {sent}");
                assert_eq!(owned(&rig).await, [""; 0]);
            }
            // Another process completes it.
            let shop = rig.settle(&adopter(&id)).await;
            assert_eq!((shown(&shop), rig.lbs().len()), (shown(&web), 1), "{after} {sent}");
            assert_eq!(rig.the_lb().tags, ["kube_service_c2_ns_shop"]);
            assert!(
                rig.listeners()
                    .iter()
                    .all(|listener| listener.tags == ["kube_service_c2_ns_shop"])
            );
            assert_eq!(rig.members(80).len(), 2);
            assert_eq!(rig.plan(&shop).await.unwrap(), []);
        }
    }
    assert!(deaths >= 40, "{deaths} requests were walked through");
}

#[tokio::test(start_paused = true)]
async fn one_in_error_is_neither_let_go_nor_deleted() {
    let (rig, web) = served(false).await;
    break_it(&rig).await;
    let before = at_rest(&rig);
    let error = rig.retain(&web).await.unwrap_err();
    assert!(error.to_string().contains("it is in error"), "{error}");
    assert_eq!(at_rest(&rig), before);
}
