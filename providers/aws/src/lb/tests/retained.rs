//! Load balancers that are kept when their Service goes: everything that serves stays, it is nobody's,
//! and in doubt nothing is changed.

use std::time::Duration;

use ccm_core::{
    k8s::{ServiceView, well_known::ANNOTATION_RETAIN},
    provider::{CloudError, ErrorKind, Inventory, LoadBalancers, ReadMode, RetainOutcome},
};

use super::{
    behaviour::foreign,
    fixture::{Fixture, published, reference, service, with},
};
use crate::{
    api::{
        Action, RequestClass, Tags,
        elb::{CreateTargetGroup, DeleteLoadBalancer, ModifyLoadBalancerAttributes},
    },
    config::{DefaultType, Settings},
    fake::{AccountSnapshot, Crash},
    lb::names,
    ownership_tags::{ADOPTER_TAG, OTHER_CONTROLLER_TAG, RETAINED_TAG, SERVICE_TAG},
};

pub(super) const OWN_CLUSTER: &str = "kubernetes.io/cluster/test";

pub(super) fn managed() -> Settings {
    Settings { managed_security_groups: true, ..Settings::default() }
}

/// Asks once.
pub(super) async fn try_retain(
    rig: &Fixture,
    service: &ServiceView,
) -> Result<RetainOutcome, CloudError> {
    rig.balancers.retain(&rig.op(), &reference(service)).await
}

/// Lets go as the framework does, and returns the final outcome.
pub(super) async fn retain(rig: &Fixture, service: &ServiceView) -> RetainOutcome {
    let mut last = None;
    for _ in 0..30 {
        match try_retain(rig, service).await {
            Ok(RetainOutcome::Pending { after, .. }) => tokio::time::sleep(after).await,
            Ok(outcome) => return outcome,
            Err(error) => {
                last = Some(error);
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }
    panic!("{} is not let go of: {last:?}", service.key());
}

/// Lets go of the one load balancer, and returns its ARN.
pub(super) async fn keep(rig: &Fixture, service: &ServiceView) -> String {
    match retain(rig, service).await {
        RetainOutcome::Retained { id, .. } => id.into(),
        outcome => panic!("{outcome:?}"),
    }
}

/// The account without tags of load balancers, target groups and security groups.
fn without_tags(rig: &Fixture) -> String {
    let text = rig.aws.snapshot().to_string();
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("tags:"));
    lines.collect::<Vec<_>>().join("\n")
}

fn has_tag(rig: &Fixture, object: &str, key: &str) -> bool {
    rig.aws.tags(object).contains_key(key)
}

/// Checks that the one load balancer, its target groups and managed groups are plainly kept.
pub(super) fn assert_kept(rig: &Fixture, uid: &str, what: &str) {
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
            tags.get(RETAINED_TAG).map(|uid| &**uid),
            Some(uid),
            "{what}: {object} {tags:?}"
        );
        for key in [SERVICE_TAG, OWN_CLUSTER, ADOPTER_TAG] {
            assert!(!tags.contains_key(key), "{what}: {object} {tags:?}");
        }
    }
}

pub(super) fn writes(rig: &Fixture) -> usize {
    let log = rig.aws.log();
    log.iter()
        .filter(|call| call.action().class() == RequestClass::Write)
        .count()
}

#[tokio::test(start_paused = true)]
async fn all_that_serves_stays_and_nothing_of_it_is_anybodys() {
    for settings in [Settings::default(), managed()] {
        for restart in [false, true] {
            let mut rig = Fixture::with(2, settings.clone());
            let web = service("web", &[80, 443]);
            let web = published(&web, &rig.settle(&web).await);
            let serving = without_tags(&rig);
            if restart {
                rig = rig.restart();
            }
            let arn = rig.aws.load_balancers()[0].arn.to_string();
            let RetainOutcome::Retained { id, kept } = retain(&rig, &web).await else {
                panic!("it is not kept");
            };
            assert_eq!(*id, *arn);
            assert!(kept.contains(&*rig.aws.load_balancers()[0].dns_name), "{kept}");
            assert_eq!(without_tags(&rig), serving);
            assert_kept(&rig, &web.uid, "kept");
            // It is no orphan, the Service's deletion changes nothing, and asking again neither.
            assert_eq!(rig.balancers.list_owned(&rig.op()).await.unwrap(), []);
            let before = rig.aws.snapshot();
            for restart in [false, true] {
                if restart {
                    rig = rig.restart();
                }
                assert_eq!(keep(&rig, &web).await, arn);
                rig.remove(&web).await;
                let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                assert!(error.to_string().contains("kept"), "{error}");
                rig.update(&web).await.result.unwrap_err();
                rig.plan(&web).await.unwrap_err();
                let after = rig.aws.snapshot();
                assert!(before == after, "{}", before.diff(&after));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_it_does_not_use_is_deleted() {
    let rig = Fixture::with(1, managed());
    let web = service("web", &[80, 443]);
    let web = published(&web, &rig.settle(&web).await);
    // A listener less; its target group cannot be deleted.
    rig.aws
        .fail_always(Action::DeleteTargetGroup, "ResourceInUse");
    let less = published(&service("web", &[80]), &web.status);
    rig.ensure(&less, ReadMode::Fresh).await.result.unwrap();
    assert_eq!(rig.aws.target_groups().len(), 2);
    let outcome = try_retain(&rig, &less).await.unwrap();
    assert!(matches!(outcome, RetainOutcome::Pending { .. }), "{outcome:?}");
    // Until then, it is not let go of.
    assert!(has_tag(&rig, &rig.aws.load_balancers()[0].arn, SERVICE_TAG));
    rig.aws.clear_faults();
    keep(&rig, &less).await;
    assert_eq!(rig.aws.target_groups().len(), 1);
    assert_kept(&rig, &web.uid, "kept");
}

/// Runs a retain that crashes at the n-th write; `None` if it made fewer.
async fn interrupted(n: usize, crash: Crash) -> Option<(Fixture, ServiceView)> {
    let rig = Fixture::with(2, managed());
    let web = service("web", &[80, 443]);
    let web = published(&web, &rig.settle(&web).await);
    rig.aws.crash_at_write(n, crash);
    for _ in 0..3 {
        if try_retain(&rig, &web).await.is_ok() {
            break;
        }
    }
    rig.aws.is_dead().then(|| (rig.restart(), web))
}

async fn kept_at_once() -> AccountSnapshot {
    let rig = Fixture::with(2, managed());
    let web = service("web", &[80, 443]);
    let web = published(&web, &rig.settle(&web).await);
    keep(&rig, &web).await;
    rig.aws.snapshot()
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_call_is_continued() {
    let expected = kept_at_once().await;
    let mut interruptions = 0;
    for crash in [Crash::Before, Crash::After] {
        for n in 1.. {
            let Some((rig, web)) = interrupted(n, crash).await else {
                break;
            };
            interruptions += 1;
            keep(&rig, &web).await;
            let found = rig.aws.snapshot();
            assert!(found == expected, "{crash:?} {n}: {}", expected.diff(&found));
        }
    }
    assert_eq!(interruptions, 10, "load balancer and groups, security group twice, twice the end");
}

/// The Service needs its load balancer again, or is deleted without the annotation.
#[tokio::test(start_paused = true)]
async fn until_it_is_let_go_of_it_is_the_services() {
    for crash in [Crash::Before, Crash::After] {
        for n in 1.. {
            let Some((rig, web)) = interrupted(n, crash).await else {
                break;
            };
            let arn = rig.aws.load_balancers()[0].arn.clone();
            let is_own = has_tag(&rig, &arn, OWN_CLUSTER);
            // Nobody adopts it, and it is no orphan.
            let other = rig.beside("other", 1);
            let taker = super::adopted::adopting("app", &[80], &arn);
            if is_own {
                let error = other
                    .ensure(&taker, ReadMode::Fresh)
                    .await
                    .result
                    .unwrap_err();
                assert!(error.to_string().contains("has not let go of it"), "{n}: {error}");
            }
            let is_marked = has_tag(&rig, &arn, RETAINED_TAG);
            let owned = rig.balancers.list_owned(&rig.op()).await.unwrap();
            assert!(!is_marked || owned.iter().all(|object| *object.id != *arn), "{n}: {owned:?}");
            if is_own {
                rig.settle(&web).await;
                assert_eq!(rig.aws.target_groups().len(), 2, "{crash:?} {n}");
                let snapshot = rig.aws.snapshot().to_string();
                assert!(!snapshot.contains(RETAINED_TAG), "{crash:?} {n}: {snapshot}");
                rig.aws.reset_calls();
                rig.settle(&web).await;
                assert_eq!(writes(&rig), 0, "{crash:?} {n}");
            }
            let Some((rig, web)) = interrupted(n, crash).await else {
                break;
            };
            rig.remove(&web).await;
            if is_own {
                let left = Fixture::with(2, managed()).aws.snapshot();
                let after = rig.aws.snapshot();
                assert!(left == after, "{crash:?} {n}: {}", left.diff(&after));
            } else {
                assert_kept(&rig, &web.uid, "deleted");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_before_the_first_change_changes_nothing() {
    for action in [
        Action::DescribeLoadBalancers,
        Action::DescribeTargetGroups,
        Action::DescribeElbTags,
        Action::DescribeSecurityGroups,
        Action::AddElbTags,
    ] {
        for code in ["AccessDenied", "InternalFailure"] {
            let rig = Fixture::with(1, managed());
            let web = service("web", &[80]);
            let web = published(&web, &rig.settle(&web).await);
            let rig = rig.restart();
            let before = rig.aws.snapshot();
            rig.aws.fail_always(action, code);
            try_retain(&rig, &web).await.unwrap_err();
            let after = rig.aws.snapshot();
            assert!(before == after, "{action:?} {code}: {}", before.diff(&after));
        }
    }
}

/// Each doubt is an error, before anything is changed.
#[tokio::test(start_paused = true)]
async fn in_doubt_nothing_is_changed() {
    type Doubt = fn(&Fixture, &str);
    let doubts: [(&str, Doubt); 4] = [
        ("its tags do not name the service", |rig, arn| {
            rig.aws.untag(arn, SERVICE_TAG);
            rig.aws.untag(arn, OWN_CLUSTER);
        }),
        ("another cluster", |rig, arn| {
            rig.aws.tag(arn, "kubernetes.io/cluster/other", "shared");
        }),
        ("another cluster", |rig, arn| rig.aws.tag(arn, "KubernetesCluster", "other")),
        ("another cluster", |rig, _| {
            let group = rig.aws.target_groups()[0].arn.clone();
            rig.aws.tag(&group, "kubernetes.io/cluster/other", "owned");
        }),
    ];
    for (n, (why, doubt)) in doubts.into_iter().enumerate() {
        let rig = Fixture::with(1, managed());
        let web = service("web", &[80]);
        let web = published(&web, &rig.settle(&web).await);
        let rig = rig.restart();
        doubt(&rig, &rig.aws.load_balancers()[0].arn.clone());
        let before = rig.aws.snapshot();
        let error = try_retain(&rig, &web).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{n} {why}: {error}");
        let after = rig.aws.snapshot();
        assert!(before == after, "{n} {why}: {}", before.diff(&after));
    }
}

#[tokio::test(start_paused = true)]
async fn of_several_load_balancers_none_is_let_go_of() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    foreign(&rig, "second", &[(OWN_CLUSTER, "owned"), (SERVICE_TAG, "default/web")]).await;
    let rig = rig.restart();
    let before = rig.aws.snapshot();
    let error = try_retain(&rig, &web).await.unwrap_err();
    assert!(error.to_string().contains("several"), "{error}");
    let after = rig.aws.snapshot();
    assert!(before == after, "{}", before.diff(&after));
}

#[tokio::test(start_paused = true)]
async fn nothing_to_retain_needs_a_proof() {
    // The Service never had one.
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let outcome = retain(&rig, &web).await;
    assert!(matches!(outcome, RetainOutcome::NothingToRetain { .. }), "{outcome:?}");
    assert_eq!(rig.aws.writes(), 0);
    // Somebody else's has its name.
    for tags in [
        &[(OWN_CLUSTER, "owned"), (SERVICE_TAG, "default/other")][..],
        &[("kubernetes.io/cluster/other", "owned")],
        &[(OTHER_CONTROLLER_TAG, "test")],
        &[(RETAINED_TAG, "another-uid")],
        &[(OWN_CLUSTER, "owned"), (SERVICE_TAG, "default/web"), (ADOPTER_TAG, "another-uid")],
    ] {
        let rig = Fixture::new(1);
        foreign(&rig, &names::load_balancer(&web.uid), tags).await;
        let before = rig.aws.snapshot();
        let outcome = retain(&rig, &web).await;
        assert!(matches!(outcome, RetainOutcome::NothingToRetain { .. }), "{tags:?}: {outcome:?}");
        rig.remove(&web).await;
        let after = rig.aws.snapshot();
        assert!(before == after, "{tags:?}: {}", before.diff(&after));
    }
    // One that was created a moment ago may not be shown yet.
    let rig = Fixture::new(1);
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
    rig.aws
        .configure(|options| options.describe_lag = Duration::from_secs(10));
    let other = service("web2", &[81]);
    rig.ensure(&other, ReadMode::Fresh).await.result.unwrap();
    let outcome = try_retain(&rig, &other).await.unwrap();
    assert!(matches!(outcome, RetainOutcome::Pending { .. }), "{outcome:?}");
    keep(&rig, &other).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_load_balancer_its_parts_go() {
    for restart in [false, true] {
        let mut rig = Fixture::with(2, managed());
        let before = rig.aws.snapshot();
        let web = service("web", &[80, 443]);
        let web = published(&web, &rig.settle(&web).await);
        let arn = rig.aws.load_balancers()[0].arn.clone();
        rig.aws.ask(DeleteLoadBalancer { arn }).await.unwrap();
        if restart {
            rig = rig.restart();
        }
        let outcome = retain(&rig, &web).await;
        assert!(matches!(outcome, RetainOutcome::NothingToRetain { .. }), "{outcome:?}");
        assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_service_of_the_name_gets_its_own() {
    for restart in [false, true] {
        let mut rig = Fixture::with(2, managed());
        let web = service("web", &[80, 443]);
        let web = published(&web, &rig.settle(&web).await);
        keep(&rig, &web).await;
        let kept: Vec<_> = rig
            .aws
            .snapshot()
            .objects()
            .iter()
            .map(ToString::to_string)
            .collect();
        let before = rig.aws.snapshot();
        let again = ServiceView {
            uid: "again-0000-0000-0000-000000000000".into(),
            ..service("web", &[80, 443])
        };
        if restart {
            rig = rig.restart();
        } else {
            // As the framework sees it at first: nothing can exist.
            let new = super::fixture::fresh(&again);
            rig.ensure(&new, ReadMode::Fresh).await.result.unwrap();
        }
        let again = published(&again, &rig.settle(&again).await);
        assert_ne!(again.status, web.status);
        assert_eq!((rig.aws.load_balancers().len(), rig.aws.target_groups().len()), (2, 4));
        let rig = rig.restart();
        assert_eq!(rig.plan(&again).await.unwrap(), []);
        rig.aws.reset_calls();
        rig.settle(&again).await;
        assert_eq!(writes(&rig), 0);
        // Nothing of the kept one has changed, also when the new one goes. Rules on the nodes that both
        // need exist once.
        rig.remove(&again).await;
        let ours = |name: &str| kept.iter().any(|kept| kept == name) && !name.contains("nodes");
        let (before, after) = (before.only(ours), rig.aws.snapshot().only(ours));
        assert!(before == after, "{}", before.diff(&after));
        assert_eq!(rig.aws.load_balancers().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_protection_keeps_nothing_from_being_let_go_of() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let arn = rig.aws.load_balancers()[0].arn.clone();
    let attributes = [("deletion_protection.enabled".into(), "true".into())].into();
    rig.aws
        .ask(ModifyLoadBalancerAttributes { arn, attributes })
        .await
        .unwrap();
    keep(&rig, &web).await;
    assert_kept(&rig, &web.uid, "protected");
}

#[tokio::test(start_paused = true)]
async fn a_persons_target_group_on_it_stays_theirs() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let create = CreateTargetGroup {
        tags: Tags::new(),
        ..super::takeover::target_group(&rig, "somebodys")
    };
    let group = rig.aws.ask(create).await.unwrap().arn;
    super::adopted::listener_to(&rig, 8443, &group).await;
    let before = rig.aws.tags(&group);
    keep(&rig, &web).await;
    assert_eq!(rig.aws.tags(&group), before);
}

#[tokio::test(start_paused = true)]
async fn a_classic_load_balancer_cannot_be_kept_and_this_is_said_before() {
    let rig = Fixture::configured(
        1,
        Settings { default_type: DefaultType::Unset, ..Settings::default() },
    );
    let mut web = service("web", &[80]);
    assert_eq!(rig.balancers.notices(&web), []);
    web.annotations
        .insert(ANNOTATION_RETAIN.into(), "true".into());
    let notices = rig.balancers.notices(&web);
    assert!(matches!(&*notices, [notice] if notice.note.contains("cannot be kept")), "{notices:?}");
    let web = published(&web, &rig.settle(&web).await);
    for rig in [&rig] {
        let before = rig.aws.snapshot();
        let error = try_retain(rig, &web).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("classic"), "{error}");
        assert!(before == rig.aws.snapshot());
    }
    // After a change of the type, too.
    let rig = rig.restart();
    let before = rig.aws.snapshot();
    let error = try_retain(&rig, &with(web, "type", "nlb"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("classic"), "{error}");
    assert!(before == rig.aws.snapshot());
}

/// Reads may show the tags of its owner for a moment.
#[tokio::test(start_paused = true)]
async fn what_was_let_go_of_a_moment_ago_is_not_deleted_whatever_is_read() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let arn = keep(&rig, &web).await;
    rig.aws.tag(&arn, OWN_CLUSTER, "owned");
    rig.aws.tag(&arn, SERVICE_TAG, "default/web");
    for _ in 0..3 {
        rig.delete(&web).await.unwrap_err();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(rig.aws.load_balancers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_security_group_that_another_service_adopted_stays_theirs() {
    let rig = Fixture::with(1, managed());
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let group = rig.aws.load_balancers()[0].security_groups[0].to_string();
    rig.aws.tag(&group, ADOPTER_TAG, "somebody");
    let before = rig.aws.tags(&group);
    let rig = rig.restart();
    keep(&rig, &web).await;
    assert_eq!(rig.aws.tags(&group), before);
}

/// The same Service gets a load balancer again, under another name: the kept group is not its any more.
#[tokio::test(start_paused = true)]
async fn the_same_service_does_not_take_a_kept_security_group() {
    for restart in [false, true] {
        let mut rig = Fixture::with(1, managed());
        let web = with(service("web", &[80]), "name", "front");
        let web = published(&web, &rig.settle(&web).await);
        keep(&rig, &web).await;
        if restart {
            rig = rig.restart();
        }
        tokio::time::sleep(Duration::from_mins(10)).await;
        let before = rig.aws.snapshot();
        let web = with(service("web", &[8443]), "name", "another");
        let error = rig.plan(&web).await.unwrap_err();
        assert!(error.to_string().starts_with("security group"), "{error}");
        for _ in 0..2 {
            let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().starts_with("security group"), "{error}");
        }
        rig.remove(&web).await;
        let after = rig.aws.snapshot();
        assert!(before == after, "{restart}: {}", before.diff(&after));
    }
}

/// Reads may show the tags of its owner for a moment.
#[tokio::test(start_paused = true)]
async fn what_was_let_go_of_a_moment_ago_is_not_taken_back() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let arn = keep(&rig, &web).await;
    rig.aws.tag(&arn, OWN_CLUSTER, "owned");
    rig.aws.tag(&arn, SERVICE_TAG, "default/web");
    let before = rig.aws.snapshot();
    for mode in [ReadMode::Fresh, ReadMode::Cached] {
        rig.plan(&web).await.unwrap_err();
        let error = rig.ensure(&web, mode).await.result.unwrap_err();
        assert!(error.to_string().contains("a moment ago"), "{error}");
        assert!(error.retry_after().is_some(), "{error:?}");
        rig.update(&web).await.result.unwrap_err();
    }
    assert!(before == rig.aws.snapshot(), "{}", before.diff(&rig.aws.snapshot()));
    // What is shown after that is true.
    rig.settle(&web).await;
    assert!(!has_tag(&rig, &arn, RETAINED_TAG));
}

/// Another process let go of it a moment ago, so that this one may read tags that are removed already.
#[tokio::test(start_paused = true)]
async fn a_mark_is_removed_only_from_what_has_an_owner() {
    let Some((rig, web)) = interrupted(4, Crash::After).await else {
        panic!("it is not interrupted");
    };
    let arn = rig.aws.load_balancers()[0].arn.clone();
    assert!(has_tag(&rig, &arn, OWN_CLUSTER) && has_tag(&rig, &arn, RETAINED_TAG));
    rig.settle(&web).await;
    let log = rig.aws.log();
    let text: Vec<String> = log.iter().map(|call| format!("{call:?}")).collect();
    let last = |action: &str| {
        text.iter()
            .rposition(|call| call.contains(action))
            .unwrap_or_else(|| panic!("{text:#?}"))
    };
    assert!(text[last("AddElbTags")].contains(&*arn.to_string()), "{text:#?}");
    assert!(last("AddElbTags") < last("RemoveElbTags"), "{text:#?}");
}
