//! Load balancers that a Service lets go of.

use std::time::Duration;

use ccm_core::{
    k8s::{
        LbStatus, ServiceView,
        well_known::{ANNOTATION_ADOPT, ANNOTATION_RETAIN},
    },
    provider::{ErrorKind, Inventory as _, ReadMode, RetainOutcome},
};

use super::{
    fixture::{Fixture, Stop, annotation, internal, service, shown, with},
    trouble::break_it,
};
use crate::lb::retention_tags::MARK;

/// Longer than any call waits in virtual time.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// A served Service that asks to keep its load balancer.
pub(super) async fn served(groups: bool) -> (Fixture, ServiceView) {
    let rig = Fixture::with(2, |settings, _| settings.manage_security_groups = groups).await;
    let web = rig
        .settle(&with(service("web", &[80, 443]), ANNOTATION_RETAIN, "true"))
        .await;
    (rig, web)
}

/// Its load balancer is let go.
pub(super) async fn let_go(groups: bool) -> (Fixture, ServiceView, String) {
    let (rig, web) = served(groups).await;
    let RetainOutcome::Retained { id, .. } = rig.retain(&web).await.unwrap() else {
        panic!("it is not let go")
    };
    (rig, web, id.into())
}

/// The Service of another cluster that adopts a load balancer.
pub(super) fn adopter(id: &str) -> ServiceView {
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
pub(super) fn at_rest(rig: &Fixture) -> Vec<String> {
    let lines = rig.everything();
    lines
        .into_iter()
        .map(|line| line.replace("PENDING_UPDATE", "ACTIVE"))
        .collect()
}

pub(super) fn writes(rig: &Fixture) -> Vec<String> {
    rig.requests()
        .into_iter()
        .filter(|request| !request.starts_with("GET"))
        .collect()
}

pub(super) async fn owned(rig: &Fixture) -> Vec<String> {
    let owned = rig.balancers.list_owned(&rig.op()).await.unwrap();
    owned
        .into_iter()
        .map(|object| object.kind.to_string())
        .collect()
}

/// The error by which a Service is refused.
pub(super) async fn refused(rig: &Fixture, service: &ServiceView) -> String {
    let error = rig
        .ensure(service, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    error.to_string()
}

/// The reason why there is nothing to keep.
pub(super) async fn nothing_to_retain(rig: &Fixture, service: &ServiceView) -> String {
    match rig.retain(service).await.unwrap() {
        RetainOutcome::NothingToRetain { reason } => reason.into(),
        other => panic!("{other:?}"),
    }
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
        let tags = [MARK, "retained-by-uid-uid-web", "retained-from-kube_service_c1_ns_web"];
        assert_eq!(
            (&*lb.name, lb.tags),
            ("retained_kube_service_c1_ns_web", tags.map(str::to_owned).to_vec())
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
            let error = refused(&rig, service).await;
            assert!(error.contains("was let go by its Service"), "{error}");
            assert!(rig.plan(service).await.is_err());
            assert!(rig.update(service).await.is_err());
            rig.remove(service).await;
            assert_eq!(rig.everything(), kept, "{service:?}");
        }
        assert!(rig.reasons().contains(&"LoadBalancerRetained"));
        nothing_to_retain(&rig, &showing).await;
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

/// A person gives it its former name back: the mark still says that it is nobody's, so that the search for
/// orphans neither lists nor deletes it.
#[tokio::test(start_paused = true)]
async fn under_its_former_name_it_is_still_nobodys() {
    let (rig, web) = served(false).await;
    let owned_before = rig.balancers.list_owned(&rig.op()).await.unwrap();
    assert_eq!(owned_before.len(), 1);
    let former_name = rig.the_lb().name;
    rig.retain(&web).await.unwrap();
    let id = rig.the_lb().id;
    rig.change(move |state, _| {
        state
            .octavia
            .load_balancers
            .update(&id, |row| row.body.name = former_name);
    })
    .await;
    let rig = rig.restart().await;
    let kept = rig.everything();
    assert_eq!(owned(&rig).await, [""; 0]);
    rig.balancers
        .delete_owned(&rig.op(), &owned_before[0])
        .await
        .unwrap_err();
    assert_eq!(rig.everything(), kept);
}

/// A Service whose type changes keeps its UID, by which its security group is named. The one that it
/// let go still needs the group.
#[tokio::test(start_paused = true)]
async fn the_same_service_gets_another_one_and_both_are_admitted() {
    let (mut rig, web, id) = let_go(true).await;
    let kept = rig.everything();
    let mut again = service("web", &[8080]);
    again.uid = web.uid.clone();
    let again = rig.settle(&again).await;
    assert_ne!(annotation(&again, "load-balancer-id"), Some(&*id));
    let ports = |rig: &Fixture| {
        let rules = rig.rules();
        let mut ports: Vec<_> = rules
            .iter()
            .filter_map(|rule| rule.port_range_min)
            .collect();
        ports.sort_unstable();
        ports
    };
    assert_eq!(ports(&rig), [30080, 30443, 38080]);
    // A node that is no member of the new one is still one of the old one.
    let left = rig.nodes.remove(0);
    rig.settle(&again).await;
    assert_eq!(rig.admitted().len(), 2);
    rig.nodes.insert(0, left);
    // Neither the end of the new one nor that of all groups takes it away.
    rig.remove(&again).await;
    assert_eq!((ports(&rig), rig.lbs().len()), (vec![30080, 30443, 38080], 1));
    let rig = rig
        .restart_with(|settings| settings.manage_security_groups = false)
        .await;
    let again = rig.settle(&again_without_status(&web)).await;
    assert_eq!(rig.admitted().len(), 2);
    rig.remove(&again).await;
    let lost: Vec<_> = kept
        .iter()
        .filter(|line| !rig.everything().contains(line))
        .collect();
    assert_eq!(lost, [""; 0]);
}

fn again_without_status(web: &ServiceView) -> ServiceView {
    ServiceView { uid: web.uid.clone(), ..service("web", &[8080]) }
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
        assert!(error.to_string().contains("remove the annotation"), "{error}");
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
    let reason = nothing_to_retain(&rig, &service("none", &[80])).await;
    assert!(reason.contains("kube_service_c1_ns_none"), "{reason}");
    assert_eq!(rig.everything(), before);
}

/// An administrator sees the load balancers of other projects.
#[tokio::test(start_paused = true)]
async fn in_another_project_it_is_in_doubt() {
    let (rig, web, id) = let_go(false).await;
    let kept = rig.everything();
    let rig = rig.restart_as("admin").await;
    assert!(
        refused(&rig, &adopter(&id))
            .await
            .contains("belongs to project")
    );
    let error = rig.retain(&web).await.unwrap_err();
    assert!(error.to_string().contains("belongs to project"), "{error}");
    assert_eq!(rig.everything(), kept);
}

#[tokio::test(start_paused = true)]
async fn without_tags_it_is_neither_let_go_nor_adopted() {
    let (rig, _, id) = let_go(false).await;
    let other = rig.settle(&service("other", &[80])).await;
    rig.octavia(|settings| settings.newest_minor = 4).await;
    let rig = rig.restart().await;
    let before = rig.everything();
    let error = rig.retain(&other).await.unwrap_err();
    assert!(error.to_string().contains("no tags"), "{error}");
    // Such an Octavia does not show that it was let go, either.
    refused(&rig, &adopter(&id)).await;
    assert_eq!(rig.everything(), before);
}

/// The first sync after a rename of the cluster may not have come.
#[tokio::test(start_paused = true)]
async fn after_a_rename_of_the_cluster_it_is_let_go_all_the_same() {
    let (rig, web) = served(false).await;
    let rig = rig.restart_in("renamed").await;
    // A Service with another address may name it, too.
    let mut other = web.clone();
    other.status = LbStatus::of_addresses(["192.0.2.1".parse().unwrap()]);
    other
        .annotations
        .retain(|key, _| !key.contains("load-balancer-address"));
    let before = rig.everything();
    let error = rig.retain(&other).await.unwrap_err();
    assert!(error.to_string().contains("not created for this Service"), "{error}");
    assert_eq!(rig.everything(), before);
    assert!(matches!(rig.retain(&web).await.unwrap(), RetainOutcome::Retained { .. }));
    let lb = rig.the_lb();
    assert_eq!(lb.name, "retained_kube_service_renamed_ns_web");
    let rig = rig.restart_in("c2").await;
    rig.settle(&adopter(&lb.id)).await;
    let listeners = rig.listeners();
    assert_eq!(listeners.len(), 2);
    assert!(
        listeners
            .iter()
            .all(|listener| listener.tags == ["kube_service_c2_ns_shop"])
    );
}

/// At every request of the update that lets go, the process dies before or after the cloud gets it.
#[tokio::test(start_paused = true)]
async fn a_death_anywhere_while_it_is_let_go_leaves_it_whole() {
    let mut deaths = 0;
    for after in 0..40 {
        for sent in [false, true] {
            let (rig, web) = served(true).await;
            let before = rest(&rig);
            rig.wire.stop_at(Stop { after, sent });
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

/// At every request, the cloud answers with an error once, whether it did what was asked or not.
#[tokio::test(start_paused = true)]
async fn an_error_anywhere_while_it_is_let_go_is_made_up_for() {
    let mut errors = 0;
    'requests: for after in 0.. {
        for sent in [false, true] {
            let (rig, web) = served(true).await;
            let before = rest(&rig);
            rig.wire.fail_at(Stop { after, sent });
            let mut outcome = rig.retain(&web).await;
            if !rig.wire.has_failed() {
                break 'requests;
            }
            errors += 1;
            if outcome.is_err() {
                tokio::time::sleep(Duration::from_secs(5)).await;
                outcome = rig.retain(&web).await;
            }
            assert!(
                matches!(outcome, Ok(RetainOutcome::Retained { .. })),
                "{after} {sent}: {outcome:?}"
            );
            assert_eq!(rest(&rig), before, "{after} {sent}");
        }
    }
    assert!(errors >= 8, "{errors} requests were walked through");
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

/// The finalizer of its former Service may wait until another Service has adopted it.
#[tokio::test(start_paused = true)]
async fn the_former_service_is_done_once_another_one_has_it() {
    // Also if clusters and Services have the same names.
    for (cluster, name) in [("c2", "shop"), ("c2", "web"), ("c1", "web")] {
        let (rig, web, id) = let_go(true).await;
        let rig = rig.restart_in(cluster).await;
        let new = ServiceView {
            uid: "uid-new".into(),
            ..with(service(name, &[80, 443]), ANNOTATION_ADOPT, &id)
        };
        let new = rig.settle(&new).await;
        assert_eq!(shown(&new), shown(&web));
        let rig = rig.restart_in("c1").await;
        let adopted = rig.everything();
        let reason = nothing_to_retain(&rig, &web).await;
        assert!(reason.contains("is the Service's"), "{reason}");
        // Nor does it delete or change it, also if it asks otherwise by now.
        let mut unnamed = web.clone();
        unnamed.annotations.clear();
        for service in [&web, &unnamed, &with(web.clone(), ANNOTATION_ADOPT, &id)] {
            if name == "web" && cluster == "c1" {
                let error = refused(&rig, service).await;
                assert!(error.contains("UID uid-new"), "{error}");
                assert!(rig.update(service).await.is_err());
            }
            nothing_to_retain(&rig, service).await;
            let lb = rig.the_lb();
            rig.remove(service).await;
            assert_eq!(rig.the_lb(), lb, "{cluster} {name}");
        }
        // The group of the former Service is not needed any more, and goes with it.
        let kept = adopted.iter().filter(|line| {
            !line.starts_with("group") && !line.starts_with("rule") && !line.starts_with("port")
        });
        for line in kept {
            assert!(rig.everything().contains(line), "{line}");
        }
        // The new one is its Service's like any other.
        let rig = rig.restart_in(cluster).await;
        assert_eq!(rig.plan(&new).await.unwrap(), []);
        rig.remove(&new).await;
        assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty());
    }
}
