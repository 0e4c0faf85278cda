// length: what happens to one load balancer, from each side
//! Kept load balancers that a Service adopts: it serves all the time, only what was let go of is
//! adopted, and an adoption that is not finished deletes nothing.

use std::time::Duration;

use ccm_core::{
    k8s::{ServiceView, well_known::ANNOTATION_ADOPT},
    provider::{ErrorKind, Inventory, Owner, Progress, ReadMode},
};

use super::{
    behaviour::foreign,
    fixture::{Fixture, published, service, with},
    retained::{OWN_CLUSTER, assert_kept, keep, managed, retain, writes},
    takeover::target_group,
};
use crate::{
    api::{
        Action, Tags, TargetGroupArn,
        elb::{CreateListener, CreateTargetGroup, ElbProtocol, ListenerSpec},
    },
    config::{DefaultType, Settings},
    fake::{AccountSnapshot, Crash},
    lb::names,
    ownership_tags::{ADOPTER_TAG, RETAINED_TAG, SERVICE_TAG},
};

const OTHER_CLUSTER: &str = "kubernetes.io/cluster/other";

/// A Service that adopts a load balancer.
pub(super) fn adopting(name: &str, ports: &[u16], arn: &str) -> ServiceView {
    adopts(service(name, ports), arn)
}

fn adopts(mut service: ServiceView, arn: &str) -> ServiceView {
    service
        .annotations
        .insert(ANNOTATION_ADOPT.into(), arn.into());
    service
}

/// Creates a listener on the one load balancer, as a person would.
pub(super) async fn listener_to(rig: &Fixture, port: u16, group: &TargetGroupArn) {
    let load_balancer = rig.aws.load_balancers()[0].arn.clone();
    let spec = ListenerSpec {
        port: port.try_into().unwrap(),
        protocol: ElbProtocol::Tcp,
        target_group: group.clone(),
        certificate: None,
        ssl_policy: None,
        alpn_policy: None,
    };
    let create = CreateListener { load_balancer, spec, tags: Tags::new() };
    rig.aws.ask(create).await.unwrap();
}

/// A kept load balancer of a Service `web` of the cluster `test`, with its former status.
async fn kept(settings: Settings, ports: &[u16]) -> (Fixture, ServiceView, String) {
    let rig = Fixture::with(2, settings);
    let web = service("web", ports);
    let web = published(&web, &rig.settle(&web).await);
    let arn = keep(&rig, &web).await;
    (rig, web, arn)
}

/// The instances that a port leads to.
fn members(rig: &Fixture, port: u16) -> Vec<String> {
    let arn = rig.aws.load_balancers()[0].arn.clone();
    let listeners = rig.aws.listeners(&arn);
    let listener = listeners
        .iter()
        .find(|listener| listener.port == port)
        .unwrap();
    let mut ids: Vec<_> = rig
        .aws
        .targets(listener.target_group.as_ref().unwrap())
        .iter()
        .map(|target| target.split(':').next().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

fn nodes(rig: &Fixture) -> Vec<String> {
    let mut ids: Vec<_> = rig.world.nodes.iter().map(ToString::to_string).collect();
    ids.sort();
    ids
}

/// Checks that the load balancer and all on it is a Service's own, and adopted by it.
fn assert_adopted(rig: &Fixture, uid: &str, service: &str, what: &str) {
    let mut objects: Vec<String> = Vec::new();
    for load_balancer in rig.aws.load_balancers() {
        objects.extend(
            load_balancer
                .security_groups
                .iter()
                .map(ToString::to_string),
        );
        objects.push(load_balancer.arn.to_string());
    }
    objects.extend(
        rig.aws
            .target_groups()
            .iter()
            .map(|group| group.arn.to_string()),
    );
    for object in objects {
        let tags = rig.aws.tags(&object);
        assert_eq!(
            tags.get(SERVICE_TAG).map(|key| &**key),
            Some(service),
            "{what}: {object} {tags:?}"
        );
        assert!(tags.contains_key(OTHER_CLUSTER), "{what}: {object} {tags:?}");
        assert!(!tags.contains_key(RETAINED_TAG), "{what}: {object} {tags:?}");
        assert!(!tags.contains_key(OWN_CLUSTER), "{what}: {object} {tags:?}");
    }
    let arn = rig.aws.load_balancers()[0].arn.clone();
    assert_eq!(rig.aws.tags(&arn).get(ADOPTER_TAG).map(|uid| &**uid), Some(uid), "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_service_of_another_cluster_gets_it_with_its_host_name() {
    // With the same node ports, and with others.
    for ports in [&[80, 443][..], &[80, 8443]] {
        for settings in [Settings::default(), managed()] {
            let (rig, web, arn) = kept(settings.clone(), &[80, 443]).await;
            let other = rig.beside("other", 3);
            let app = adopting("app7", ports, &arn);
            let groups = rig.aws.load_balancers()[0].security_groups.clone();
            let planned = other.plan(&app).await.unwrap();
            assert_eq!(
                (&*planned[0].operation, &*planned[0].object),
                ("AddTags", &*arn),
                "{planned:?}"
            );
            assert_eq!(&*planned[0].reason, "the Service adopts it");
            let app = published(&app, &other.settle(&app).await);
            assert_eq!(app.status, web.status);
            assert_adopted(&other, &app.uid, "default/app7", "adopted");
            assert_eq!(rig.aws.load_balancers().len(), 1);
            assert_eq!(rig.aws.target_groups().len(), 2);
            // Rules of others may refer to its security group.
            assert_eq!(rig.aws.load_balancers()[0].security_groups, groups);
            for port in ports {
                assert_eq!(members(&rig, *port), nodes(&other));
            }
            assert_eq!(rig.aws.listeners(&rig.aws.load_balancers()[0].arn).len(), 2);
            // Only differences are sent from now on, with the annotation and without.
            let other = other.restart().of_cluster("other");
            let mut without = app.clone();
            without.annotations.clear();
            for app in [&app, &without] {
                rig.aws.reset_calls();
                assert_eq!(other.plan(app).await.unwrap(), []);
                other.settle(app).await;
                assert_eq!(writes(&rig), 0);
            }
            // It is the Service's like any other.
            let owned = other.balancers.list_owned(&other.op()).await.unwrap();
            let owner = Owner::Service {
                namespace: "default".into(),
                name: "app7".into(),
                uid: Some(app.uid.clone()),
            };
            assert!(
                owned
                    .iter()
                    .any(|object| *object.id == *arn && object.owner == owner),
                "{owned:?}"
            );
            // Its former Service has nothing to do with it.
            let before = rig.aws.snapshot();
            let rig = rig.restart();
            assert_eq!(rig.balancers.list_owned(&rig.op()).await.unwrap(), []);
            rig.remove(&web).await;
            retain(&rig, &web).await;
            rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
            assert!(before == rig.aws.snapshot(), "{}", before.diff(&rig.aws.snapshot()));
            // And it goes with its Service.
            other.remove(&without).await;
            assert_eq!((rig.aws.load_balancers(), rig.aws.target_groups()), (vec![], vec![]));
            let objects = rig.aws.snapshot();
            let groups = objects
                .objects()
                .iter()
                .filter(|name| name.contains("k8s-"))
                .count();
            assert_eq!(groups, 0, "{objects}");
        }
    }
}

/// To the same cluster, under the same name or another, also by the same Service.
#[tokio::test(start_paused = true)]
async fn a_service_of_the_same_cluster_gets_it() {
    for (name, uid) in [
        ("web", "another-0000-0000-0000-000000000000"),
        ("app", "another-0000-0000-0000-000000000000"),
        ("web", "webxxxxxxxxx-0000-0000-0000-000000000000"),
    ] {
        let (rig, web, arn) = kept(managed(), &[80]).await;
        let taker = ServiceView { uid: uid.into(), ..adopting(name, &[80], &arn) };
        let before = rig.aws.snapshot();
        let taker = published(&taker, &rig.settle(&taker).await);
        assert_eq!(taker.status, web.status);
        let rig = rig.restart();
        assert_eq!(rig.plan(&taker).await.unwrap(), []);
        // The rules on the nodes stay as they are.
        let of_nodes = |name: &str| name.contains("nodes");
        let (before, after) = (before.only(of_nodes), rig.aws.snapshot().only(of_nodes));
        assert!(before == after, "{name}: {}", before.diff(&after));
        rig.remove(&taker).await;
        assert_eq!((rig.aws.load_balancers(), rig.aws.target_groups()), (vec![], vec![]), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_the_service_asks_for_does_not_hide_what_it_adopts() {
    let rig = Fixture::new(1);
    let named = with(service("web", &[80]), "name", "front");
    let named = published(&named, &rig.settle(&named).await);
    let arn = keep(&rig, &named).await;
    let other = rig.beside("other", 1);
    // Not without the annotation.
    let app = with(service("app", &[80]), "name", "front");
    let error = other
        .ensure(&app, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert_eq!(error.reason(), Some("LoadBalancerNotOwned"), "{error}");
    let app = adopts(app, &arn);
    assert_eq!(other.settle(&app).await, named.status);
}

/// Adopts with a crash at the n-th write; `None` if fewer are made.
async fn interrupted(n: usize, crash: Crash) -> Option<(Fixture, ServiceView, Fixture)> {
    let (rig, _, arn) = kept(managed(), &[80, 443]).await;
    let other = rig.beside("other", 2);
    let app = adopting("app7", &[80, 8443], &arn);
    rig.aws.crash_at_write(n, crash);
    for _ in 0..3 {
        if other.ensure(&app, ReadMode::Fresh).await.result.is_ok() {
            break;
        }
    }
    rig.aws
        .is_dead()
        .then(|| (other.restart().of_cluster("other"), app, rig))
}

async fn adopted_at_once() -> AccountSnapshot {
    let (rig, _, arn) = kept(managed(), &[80, 443]).await;
    let other = rig.beside("other", 2);
    other.settle(&adopting("app7", &[80, 8443], &arn)).await;
    rig.aws.snapshot()
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_adoption_is_continued() {
    let expected = adopted_at_once().await;
    for crash in [Crash::Before, Crash::After] {
        let mut interruptions = 0;
        for n in 1.. {
            let Some((other, app, _)) = interrupted(n, crash).await else {
                break;
            };
            interruptions += 1;
            // Whether the annotation is still there matters only until the load balancer is claimed.
            let mut app = app;
            if n > 1 {
                app.annotations.clear();
            }
            other.settle(&app).await;
            let found = other.aws.snapshot();
            assert!(found == expected, "{crash:?} {n}: {}", expected.diff(&found));
            assert_eq!(
                other
                    .plan(&published(&app, &other.settle(&app).await))
                    .await
                    .unwrap(),
                []
            );
        }
        assert!(interruptions > 12, "{interruptions}");
    }
}

/// Until the marks are gone, nothing is deleted with the Service.
#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_service_that_has_not_finished_gives_it_back() {
    let mut given_back = 0;
    for crash in [Crash::Before, Crash::After] {
        for n in 1.. {
            let Some((other, app, rig)) = interrupted(n, crash).await else {
                break;
            };
            let arn = rig.aws.load_balancers()[0].arn.clone();
            let is_finished = !rig.aws.tags(&arn).contains_key(RETAINED_TAG);
            let mut app = app;
            app.annotations.clear();
            if n % 2 == 0 {
                other.remove(&app).await;
            } else {
                retain(&other, &app).await;
            }
            if is_finished {
                continue;
            }
            given_back += 1;
            let tags = rig.aws.tags(&arn);
            for key in [OTHER_CLUSTER, SERVICE_TAG, ADOPTER_TAG] {
                assert!(!tags.contains_key(key), "{crash:?} {n}: {tags:?}");
            }
            assert!(tags.contains_key(RETAINED_TAG), "{crash:?} {n}: {tags:?}");
            assert!(rig.aws.listeners(&arn).len() >= 2, "{crash:?} {n}");
            // Somebody else adopts it.
            let next = adopting("next", &[80, 443], &arn);
            other.settle(&next).await;
            assert_adopted(&other, &next.uid, "default/next", "next");
            other.remove(&next).await;
            assert_eq!((rig.aws.load_balancers(), rig.aws.target_groups()), (vec![], vec![]));
        }
    }
    assert!(given_back > 20, "{given_back}");
}

// length: one table
#[tokio::test(start_paused = true)]
async fn what_cannot_be_adopted_is_rejected_before_anything_is_changed() {
    type Change = fn(&Fixture, ServiceView, &str) -> ServiceView;
    let cases: [(&str, Change); 14] = [
        ("has not let go of it", |rig, app, arn| {
            rig.aws.untag(arn, RETAINED_TAG);
            app
        }),
        ("has not let go of it", |rig, app, arn| {
            rig.aws.tag(arn, OWN_CLUSTER, "owned");
            app
        }),
        ("has not let go of it", |rig, app, arn| {
            rig.aws.tag(arn, "KubernetesCluster", "test");
            app
        }),
        ("has not let go of it", |rig, app, arn| {
            rig.aws.tag(arn, SERVICE_TAG, "default/web");
            app
        }),
        ("has not let go of it", |rig, app, _| {
            let group = rig.aws.target_groups()[0].arn.clone();
            rig.aws.tag(&group, SERVICE_TAG, "default/web");
            app
        }),
        ("UID somebody adopts it", |rig, app, arn| {
            rig.aws.tag(arn, ADOPTER_TAG, "somebody");
            app
        }),
        ("does not exist", |_, app, arn| adopts(app, &format!("{arn}0"))),
        ("ARN of a network load balancer", |_, app, _| adopts(app, "web")),
        ("ARN of a network load balancer", |_, app, arn| {
            adopts(app, &arn.replace("/net/", "/app/"))
        }),
        ("its scheme is internet-facing", |_, app, _| with(app, "scheme", "internal")),
        ("IP address type", |_, app, _| with(app, "ip-address-type", "dualstack")),
        ("listener on port 80", |rig, app, _| {
            for group in rig.aws.target_groups() {
                rig.aws.untag(&group.arn, RETAINED_TAG);
            }
            app
        }),
        // What only the plan finds out.
        ("expected to find 1", |_, app, _| with(app, "subnets", "subnet-00000000000009999")),
        ("conflicting security groups", |_, app, _| with(app, "disable-nlb-sg", "true")),
    ];
    for (why, change) in cases {
        let (rig, _, arn) = kept(managed(), &[80]).await;
        let other = rig.beside("other", 1);
        // Whether the Service has a finalizer yet or not.
        for is_new in [false, true] {
            let app = change(&rig, adopting("app", &[80], &arn), &arn);
            let before = rig.aws.snapshot();
            let app = if is_new {
                super::fixture::fresh(&app)
            } else {
                app
            };
            for _ in 0..2 {
                let error = other
                    .ensure(&app, ReadMode::Fresh)
                    .await
                    .result
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{why}: {error}");
                assert!(error.to_string().contains(why), "{why}: {error}");
            }
            let error = other.plan(&app).await.unwrap_err();
            assert!(error.to_string().contains(why), "{why}: {error}");
            other.update(&app).await.result.unwrap_err();
            other.remove(&app).await;
            let after = rig.aws.snapshot();
            assert!(before == after, "{why}: {}", before.diff(&after));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_in_another_vpc_is_rejected() {
    let (rig, _, arn) = kept(Settings::default(), &[80]).await;
    let mut other = rig.beside("other", 1);
    let vpc = rig.aws.vpc("10.1.0.0/16");
    let scope = crate::scope::Scope { vpc, ..other.balancers.reconciler.scope.clone() };
    other.balancers = crate::lb::NetworkLoadBalancers::new(scope, other.store.clone());
    let before = rig.aws.snapshot();
    let app = adopting("app", &[80], &arn);
    let error = other
        .ensure(&app, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("not in the VPC"), "{error}");
    assert!(before == rig.aws.snapshot());
}

#[tokio::test(start_paused = true)]
async fn a_service_with_a_load_balancer_adopts_no_other_one() {
    let (rig, _, arn) = kept(Settings::default(), &[80]).await;
    let app = service("app", &[80]);
    let app = published(&app, &rig.settle(&app).await);
    let before = rig.aws.snapshot();
    for restart in [false, true] {
        let rig = if restart {
            rig.beside("x", 0).of_cluster("test")
        } else {
            rig.beside("y", 0).of_cluster("test")
        };
        let before = rig.aws.snapshot();
        for mode in [ReadMode::Cached, ReadMode::Fresh] {
            let error = rig
                .ensure(&adopts(app.clone(), &arn), mode)
                .await
                .result
                .unwrap_err();
            assert!(error.to_string().contains("because it has load balancer"), "{error}");
        }
        assert!(before == rig.aws.snapshot());
    }
    // Also by the process that created it.
    let error = rig
        .ensure(&adopts(app, &arn), ReadMode::Cached)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("because it has load balancer"), "{error}");
    drop(before);
}

#[tokio::test(start_paused = true)]
async fn of_two_services_that_adopt_only_one_does() {
    let (rig, _, arn) = kept(Settings::default(), &[80]).await;
    let other = rig.beside("other", 1);
    let first = adopting("first", &[80], &arn);
    other.settle(&first).await;
    let before = rig.aws.snapshot();
    // In another cluster, and under the same name in one with the same ID.
    for cluster in ["third", "other"] {
        let third = other.beside("nodes", 1).of_cluster(cluster);
        let before = rig.aws.snapshot();
        let second = ServiceView { uid: "second-0000".into(), ..first.clone() };
        let error = third
            .ensure(&second, ReadMode::Fresh)
            .await
            .result
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(&*first.uid), "{error}");
        third.remove(&second).await;
        let outcome = retain(&third, &second).await;
        assert!(format!("{outcome:?}").contains("NothingToRetain"), "{outcome:?}");
        assert!(before == rig.aws.snapshot(), "{}", before.diff(&rig.aws.snapshot()));
    }
    drop(before);
    // Both have read that nobody adopts it: who writes first loses it, before anything else is changed.
    let (rig, _, arn) = kept(Settings::default(), &[80]).await;
    let other = rig.beside("other", 1);
    let first = adopting("first", &[80], &arn);
    rig.aws.crash_at_write(2, Crash::Before);
    other
        .ensure(&first, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    rig.aws.restart_process();
    rig.aws.tag(&arn, ADOPTER_TAG, "somebody");
    rig.aws.tag(&arn, "kubernetes.io/cluster/third", "owned");
    let before = rig.aws.snapshot();
    let error = other
        .ensure(&first, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("somebody"), "{error}");
    assert!(before == rig.aws.snapshot(), "{}", before.diff(&rig.aws.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn without_backends_it_serves_as_before() {
    for ports in [&[80][..], &[443]] {
        let (rig, web, arn) = kept(Settings::default(), &[80]).await;
        let mut other = rig.beside("other", 1);
        let nodes_of_other = std::mem::take(&mut other.nodes);
        let app = adopting("app7", ports, &arn);
        let outcome = other.ensure(&app, ReadMode::Fresh).await;
        assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{outcome:?}");
        assert_eq!(outcome.status, Some(web.status.clone()), "it is shown at once");
        let app = published(&app, &web.status);
        other.update(&app).await.result.unwrap();
        assert_eq!(members(&rig, 80), nodes(&rig));
        // Deleted now, it is kept.
        let rejected = other.beside("other2", 0);
        drop(rejected);
        other.nodes = nodes_of_other;
        other.settle(&app).await;
        assert_eq!(members(&rig, ports[0]), nodes(&other));
        assert_adopted(&other, &app.uid, "default/app7", "with backends");
    }
}

#[tokio::test(start_paused = true)]
async fn targets_of_the_former_service_stay_until_others_are_healthy() {
    let (rig, _, arn) = kept(Settings::default(), &[80]).await;
    rig.aws
        .configure(|options| options.initial = Duration::from_secs(60));
    let other = rig.beside("other", 1);
    // The same node port, so that the target group stays.
    let app = ServiceView {
        ports: service("web", &[80]).ports,
        ..adopting("app", &[80], &arn)
    };
    let outcome = other.ensure(&app, ReadMode::Fresh).await;
    let Ok(Progress::Pending { reason, .. }) = &outcome.result else {
        panic!("{outcome:?}");
    };
    assert!(reason.contains("healthy"), "{reason}");
    assert_eq!(members(&rig, 80).len(), 3);
    assert_eq!(rig.aws.calls(Action::DeregisterTargets), 0);
    // Backends that are told alone change nothing either.
    let app = published(&app, &outcome.status.unwrap());
    other.update(&app).await.result.unwrap();
    assert_eq!(members(&rig, 80).len(), 3);
    tokio::time::sleep(Duration::from_secs(60)).await;
    other.settle(&app).await;
    assert_eq!(members(&rig, 80), nodes(&other));
    assert_eq!(rig.aws.target_groups().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_listener_of_a_person_is_not_touched() {
    let (rig, _, arn) = kept(Settings::default(), &[80]).await;
    let create = CreateTargetGroup { tags: Tags::new(), ..target_group(&rig, "somebodys") };
    let group = rig.aws.ask(create).await.unwrap().arn;
    listener_to(&rig, 8443, &group).await;
    let other = rig.beside("other", 1);
    let before = rig.aws.snapshot();
    let error = other
        .ensure(&adopting("app", &[80], &arn), ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("listener on port 8443"), "{error}");
    assert!(before == rig.aws.snapshot());
}

#[tokio::test(start_paused = true)]
async fn it_moves_back_the_same_way() {
    let (rig, web, arn) = kept(managed(), &[80]).await;
    let other = rig.beside("other", 1);
    let app = adopting("app", &[80], &arn);
    let app = published(&app, &other.settle(&app).await);
    assert_eq!(keep(&other, &app).await, arn);
    assert_kept(&other, &app.uid, "the second time");
    let back = ServiceView { uid: "back-0000-0000".into(), ..adopting("web", &[80], &arn) };
    let rig = rig.restart();
    assert_eq!(rig.settle(&back).await, web.status);
    assert_eq!(members(&rig, 80), nodes(&rig));
    rig.remove(&back).await;
    assert_eq!((rig.aws.load_balancers(), rig.aws.target_groups()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_target_group_that_is_still_in_use_is_not_left_behind() {
    for (restart, is_empty) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = Fixture::new(1);
        if is_empty {
            rig.nodes.clear();
        }
        let web = service("web", &[80]);
        let web = published(&web, &rig.settle(&web).await);
        let arn = keep(&rig, &web).await;
        let mut other = rig.beside("other", 1);
        let app = adopting("app7", &[80], &arn);
        rig.aws
            .fail_always(Action::DeleteTargetGroup, "ResourceInUse");
        let outcome = other.ensure(&app, ReadMode::Fresh).await;
        assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{outcome:?}");
        assert_eq!(rig.aws.target_groups().len(), 2);
        rig.aws.clear_faults();
        if restart {
            other = other.restart().of_cluster("other");
        }
        other.settle(&app).await;
        assert_eq!(rig.aws.target_groups().len(), 1, "{restart}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_id_adopts_and_finds_it() {
    let (rig, web, arn) = kept(Settings::default(), &[80]).await;
    let other = rig.beside("other", 1).of_cluster("");
    let app = adopting("app", &[80], &arn);
    let app = published(&app, &other.settle(&app).await);
    assert_eq!(app.status, web.status);
    let other = other.restart().of_cluster("");
    let mut without = app;
    without.annotations.clear();
    assert_eq!(other.plan(&without).await.unwrap(), []);
    other.remove(&without).await;
    assert_eq!((rig.aws.load_balancers(), rig.aws.target_groups()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_gets_a_classic_load_balancer_adopts_none() {
    let (rig, _, arn) = kept(Settings::default(), &[80]).await;
    let rig = rig.restart_with(|settings| settings.default_type = DefaultType::Unset);
    let before = rig.aws.snapshot();
    let app = adopting("app", &[80], &arn);
    for mode in [ReadMode::Cached, ReadMode::Fresh] {
        let error = rig.ensure(&app, mode).await.result.unwrap_err();
        assert!(error.to_string().contains("classic"), "{error}");
    }
    rig.plan(&app).await.unwrap_err();
    assert!(before == rig.aws.snapshot());
    assert_eq!(rig.settle(&with(app, "type", "nlb")).await.ingress.len(), 1);
    assert_eq!(rig.aws.load_balancers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_of_a_person_is_not_adopted() {
    let rig = Fixture::new(1);
    foreign(&rig, &names::load_balancer("somebody"), &[("Name", "api")]).await;
    let arn = rig.aws.load_balancers()[0].arn.clone();
    let before = rig.aws.snapshot();
    let error = rig
        .ensure(&adopting("app", &[80], &arn), ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("has not let go of it"), "{error}");
    assert!(before == rig.aws.snapshot());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_manages_no_groups_does_not_adopt_one() {
    let (rig, _, arn) = kept(managed(), &[80]).await;
    let other = rig.beside("other", 1);
    let other = other
        .restart_with(|settings| settings.managed_security_groups = false)
        .of_cluster("other");
    let before = rig.aws.snapshot();
    let error = other
        .ensure(&adopting("app", &[80], &arn), ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("NLBSecurityGroupMode"), "{error}");
    assert!(before == rig.aws.snapshot());
}

#[tokio::test(start_paused = true)]
async fn who_is_overtaken_sees_it_before_anything_else_is_changed() {
    let (rig, _, arn) = kept(Settings::default(), &[80]).await;
    rig.aws
        .configure(|options| options.latency = Duration::from_millis(100));
    let other = rig.beside("other", 1);
    let app = adopting("app", &[80], &arn);
    let overtake = async {
        while !rig.aws.tags(&arn).contains_key(ADOPTER_TAG) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        rig.aws.tag(&arn, ADOPTER_TAG, "somebody");
    };
    let (outcome, ()) = tokio::join!(other.ensure(&app, ReadMode::Fresh), overtake);
    let error = outcome.result.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("somebody adopts it at the same time"),
        "{error}"
    );
    assert_eq!(rig.aws.calls(Action::AddElbTags), 2, "the mark, and the claim");
    assert_eq!(members(&rig, 80), nodes(&rig));
}

/// The answer to the claim is lost, and the annotation is removed.
#[tokio::test(start_paused = true)]
async fn what_may_be_claimed_is_looked_for_before_another_one_is_created() {
    let (rig, web, arn) = kept(Settings::default(), &[80]).await;
    let other = rig.beside("other", 1);
    let mut app = adopting("app", &[80], &arn);
    rig.aws.fail_nth_write(1, Crash::After);
    let outcome = other.ensure(&app, ReadMode::Fresh).await;
    outcome.result.unwrap_err();
    app.annotations.clear();
    let outcome = other.ensure(&app, ReadMode::Cached).await;
    assert_eq!(outcome.status, Some(web.status), "{:?}", outcome.result);
    assert_eq!(rig.aws.load_balancers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_name_of_what_it_adopts_hides_no_load_balancer_of_the_service() {
    let rig = Fixture::new(1);
    let named = with(service("web", &[80]), "name", "front");
    let named = published(&named, &rig.settle(&named).await);
    let arn = keep(&rig, &named).await;
    let app = with(service("app", &[80]), "name", "back");
    let app = published(&app, &rig.settle(&app).await);
    let rig = rig.restart();
    let before = rig.aws.snapshot();
    let app = adopts(with(app, "name", "front"), &arn);
    let error = rig.ensure(&app, ReadMode::Fresh).await.result.unwrap_err();
    assert!(error.to_string().contains("because it has load balancer"), "{error}");
    assert!(before == rig.aws.snapshot());
}

/// Neither with the Service nor by its wish to keep, before its former Service has let go: the former
/// cluster has no ID, and a Service of the same name.
#[tokio::test(start_paused = true)]
async fn what_was_never_adopted_is_not_the_services_by_its_arn() {
    for restart in [false, true] {
        let (rig, _, arn) = kept(managed(), &[80]).await;
        rig.aws.untag(&arn, RETAINED_TAG);
        rig.aws.tag(&arn, SERVICE_TAG, "default/web");
        let mut other = rig.beside("other", 1);
        let web = ServiceView { uid: "new-0000-0000".into(), ..adopting("web", &[80], &arn) };
        let error = other.ensure(&web, ReadMode::Fresh).await.result;
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("has not let go of it")
        );
        if restart {
            other = other.restart().of_cluster("other");
        }
        let before = rig.aws.snapshot();
        rig.aws.reset_calls();
        let outcome = retain(&other, &web).await;
        assert!(format!("{outcome:?}").contains("NothingToRetain"), "{outcome:?}");
        other.remove(&web).await;
        let after = rig.aws.snapshot();
        assert!(before == after, "{restart}: {}", before.diff(&after));
        assert_eq!(writes(&rig), 0, "{restart}");
    }
}

/// Another Service, which adopted at the same time and was overtaken, had claimed parts of it.
#[tokio::test(start_paused = true)]
async fn the_load_balancers_adopter_takes_what_another_one_claimed() {
    let (rig, _, arn) = kept(managed(), &[80, 443]).await;
    let other = rig.beside("other", 1);
    let app = adopting("app7", &[80, 8443], &arn);
    // The claim of the load balancer, and no more.
    rig.aws.crash_at_write(2, Crash::Before);
    other
        .ensure(&app, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    let other = other.restart().of_cluster("other");
    let mut parts: Vec<String> = rig
        .aws
        .target_groups()
        .iter()
        .map(|group| group.arn.to_string())
        .collect();
    parts.push(rig.aws.load_balancers()[0].security_groups[0].to_string());
    for part in &parts {
        rig.aws.tag(part, ADOPTER_TAG, "somebody");
        rig.aws.tag(part, SERVICE_TAG, "default/somebody");
        rig.aws.tag(part, "kubernetes.io/cluster/third", "owned");
    }
    let app = published(&app, &other.settle(&app).await);
    assert_adopted(&other, &app.uid, "default/app7", "overtaking");
    let snapshot = rig.aws.snapshot().to_string();
    assert!(!snapshot.contains("somebody") && !snapshot.contains("cluster/third"), "{snapshot}");
    assert_eq!(other.plan(&app).await.unwrap(), []);
    other.remove(&app).await;
    assert_eq!((rig.aws.load_balancers(), rig.aws.target_groups()), (vec![], vec![]));
}

/// The nodes of the former Service admit its security group, and its target group may be wanted back.
#[tokio::test(start_paused = true)]
async fn nothing_of_the_former_service_is_removed_before_the_adoption_is_certain() {
    let (rig, _, arn) = kept(managed(), &[80, 443]).await;
    rig.aws
        .configure(|options| options.initial = Duration::from_secs(60));
    let group = rig.aws.load_balancers()[0].security_groups[0].clone();
    let other = rig.beside("other", 1);
    let own = rig.aws.security_group(
        &other.world.vpc,
        "own",
        &[("kubernetes.io/cluster/other", "owned")],
    );
    // One port has the former node port, and the other one a new target group.
    let app = ServiceView {
        ports: vec![
            service("web", &[80]).ports[0].clone(),
            service("app7", &[443]).ports[0].clone(),
        ]
        .into(),
        ..adopting("app", &[80], &arn)
    };
    let app = with(app, "security-groups", &own);
    let outcome = other.ensure(&app, ReadMode::Fresh).await;
    let Ok(Progress::Pending { reason, .. }) = &outcome.result else {
        panic!("{outcome:?}");
    };
    assert!(reason.contains("healthy"), "{reason}");
    let groups = rig.aws.load_balancers()[0].security_groups.clone();
    assert!(groups.contains(&group) && groups.contains(&own), "{groups:?}");
    assert_eq!(rig.aws.target_groups().len(), 3);
    assert_eq!(rig.aws.calls(Action::DeleteTargetGroup), 0);
    // Once more, nothing is repeated.
    rig.aws.reset_calls();
    other.ensure(&app, ReadMode::Fresh).await.result.unwrap();
    assert_eq!(rig.aws.calls(Action::SetSecurityGroups), 0);
    tokio::time::sleep(Duration::from_secs(60)).await;
    other.settle(&app).await;
    assert_eq!(rig.aws.load_balancers()[0].security_groups[..], [own]);
    assert_eq!(rig.aws.target_groups().len(), 2);
}
