//! What was broken off, was refused or changed its mind is brought to its end.

use std::time::Duration;

use ccm_core::provider::{ErrorKind, LoadBalancers, Progress, ReadMode};

use super::fixture::{Fixture, published, service, with};
use crate::{
    api::{Action, ec2::CreateSecurityGroup, elb::DeleteListener},
    config::Settings,
    fake::Crash,
    lb::security_groups::MANAGED_DESCRIPTION,
};

fn managed() -> Settings {
    Settings { managed_security_groups: true, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_wants_a_balancer_again_amid_its_deletion_is_deleted_whole_later() {
    let rig = Fixture::with(2, managed());
    rig.aws
        .configure(|knobs| knobs.interfaces_linger = Duration::from_secs(180));
    let before = rig.aws.snapshot();
    let web = service("web", &[80]);
    rig.settle(&web).await;
    assert!(matches!(rig.delete(&web).await.unwrap(), Progress::Pending { .. }));
    assert_eq!(rig.aws.load_balancers(), []);
    let web = published(&web, &rig.settle(&web).await);
    assert_eq!(rig.aws.load_balancers().len(), 1);
    rig.remove(&web).await;
    let there = rig.aws.snapshot();
    assert!(there == before, "{}", before.diff(&there));
}

#[tokio::test(start_paused = true)]
async fn protection_is_looked_for_where_it_is_asked_for_and_in_all_its_spellings() {
    // A Service that cannot be served.
    let bare = with(service("web", &[80]), "type", "clb");
    let cases = [
        ("attributes", "deletion_protection.enabled=1", true),
        ("attributes", "a=b, deletion_protection.enabled = true", true),
        ("attributes", "deletion_protection.enabled", true),
        ("attributes", "deletion_protection.enabled=false", false),
        ("target-group-attributes", "deletion_protection.enabled=true", false),
        ("additional-resource-tags", "a=b,deletion_protection.enabled=true", false),
    ];
    for (suffix, text, protected) in cases {
        let rig = Fixture::new(1);
        let before = rig.aws.snapshot();
        let web = published(&bare, &rig.settle(&service("web", &[80])).await);
        let web = with(web, suffix, text);
        if protected {
            let error = rig.delete(&web).await.unwrap_err();
            assert_eq!(error.reason(), Some("DeletionProtected"), "{suffix}: {text}");
        } else {
            rig.remove(&web).await;
            assert!(rig.aws.snapshot() == before, "{suffix}: {text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_health_check_that_aws_does_not_change_costs_no_gap_in_service() {
    let rig = Fixture::new(1);
    let web = with(service("web", &[80]), "healthcheck-protocol", "http");
    rig.settle(&web).await;
    let before = rig.aws.target_groups()[0].clone();
    rig.aws
        .fail_always(Action::ModifyTargetGroup, "InvalidConfigurationRequest");
    rig.aws.reset_calls();
    let changed = with(web.clone(), "healthcheck-path", "/ready");
    let outcome = rig.ensure(&changed, ReadMode::Cached).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    let writes: Vec<_> = rig
        .aws
        .actions()
        .into_iter()
        .filter(|action| action.class() == crate::api::RequestClass::Write)
        .collect();
    assert_eq!(
        writes,
        [
            Action::ModifyTargetGroup,
            Action::CreateTargetGroup,
            Action::RegisterTargets,
            Action::ModifyListener,
            Action::DeleteTargetGroup
        ]
    );
    let groups = rig.aws.target_groups();
    assert_eq!(groups.len(), 1);
    assert_ne!(groups[0].name, before.name);
    let status = rig.settle(&changed).await;
    assert_eq!(
        rig.plan(&published(&changed, &status)).await.unwrap(),
        [],
        "its name does not matter"
    );
    // The value itself is bad: everything stays as it was.
    rig.aws
        .fail_always(Action::CreateTargetGroup, "ValidationError");
    let there = rig.aws.snapshot();
    for _ in 0..3 {
        rig.ensure(&with(web.clone(), "healthcheck-path", "/bad"), ReadMode::Fresh)
            .await
            .result
            .unwrap_err();
        assert!(rig.aws.snapshot() == there, "{}", there.diff(&rig.aws.snapshot()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_takes_over_is_taken_up_after_a_crash() {
    for crash in [Crash::Before, Crash::After] {
        for n in 1..=6 {
            let rig = Fixture::new(1);
            let web = with(service("web", &[80]), "healthcheck-protocol", "http");
            rig.settle(&web).await;
            let web = with(web, "healthcheck-path", "/ready");
            rig.aws.crash_at_write(n, crash);
            rig.aws
                .fail_always(Action::ModifyTargetGroup, "InvalidConfigurationRequest");
            drop(rig.ensure(&web, ReadMode::Fresh).await);
            let rig = rig.restart();
            rig.aws
                .fail_always(Action::ModifyTargetGroup, "InvalidConfigurationRequest");
            rig.settle(&web).await;
            let groups = rig.aws.target_groups();
            assert_eq!(groups.len(), 1, "{crash:?} {n}: {groups:?}");
            assert_eq!(groups[0].health_check.as_ref().unwrap().path.as_deref(), Some("/ready"));
            assert_eq!(groups[0].load_balancers.len(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_managed_group_that_was_taken_off_goes_although_it_is_in_use_at_first() {
    for restart in [false, true] {
        let mut rig = Fixture::with(2, managed());
        let mine = rig.aws.security_group(&rig.world.vpc, "mine", &[]);
        let web = service("web", &[80]);
        rig.settle(&web).await;
        let made = rig.aws.load_balancers()[0].security_groups.clone();
        let web = with(web, "security-groups", &mine);
        rig.aws
            .fail_next(Action::DeleteSecurityGroup, "DependencyViolation");
        rig.aws
            .fail_next(Action::DeleteSecurityGroup, "DependencyViolation");
        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        let Ok(Progress::Pending { after, .. }) = outcome.result else {
            panic!("{outcome:?}")
        };
        let web = published(&web, &outcome.status.unwrap());
        let is_there = |rig: &Fixture| {
            rig.aws
                .security_groups()
                .iter()
                .any(|group| made.contains(&group.id))
        };
        assert!(is_there(&rig));
        if restart {
            rig = rig.restart();
            rig.aws
                .fail_next(Action::DeleteSecurityGroup, "DependencyViolation");
            let changes = rig.plan(&web).await.unwrap();
            let operations: Vec<_> = changes.iter().map(|change| &*change.operation).collect();
            assert_eq!(operations, ["DeleteSecurityGroup"]);
        }
        let op = rig.op().with_pending_for(after);
        let outcome = rig
            .balancers
            .ensure(&op, &rig.spec(&web), ReadMode::Fresh)
            .await;
        assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "still: {outcome:?}");
        rig.settle(&web).await;
        assert!(!is_there(&rig));
        assert_eq!(rig.aws.load_balancers()[0].security_groups, [mine]);
        assert_eq!(rig.plan(&web).await.unwrap(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn tags_that_are_not_asked_for_any_more_go_although_the_first_attempt_failed() {
    for action in [Action::DescribeLoadBalancers, Action::RemoveElbTags] {
        let rig = Fixture::new(1);
        let web = service("web", &[80]);
        rig.settle(&with(web.clone(), "additional-resource-tags", "team=a"))
            .await;
        assert!(rig.aws.snapshot().to_string().contains("team=a"));
        for code in ["InternalError", "AccessDenied"] {
            (0..5).for_each(|_| rig.aws.fail_next(action, code));
            rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
            rig.aws.clear_faults();
        }
        rig.settle(&web).await;
        assert!(!rig.aws.snapshot().to_string().contains("team=a"), "{action:?}");
    }
}

/// Nothing but the memory of having taken it off says that it has to go: its name is not the one
/// that it would get today.
#[tokio::test(start_paused = true)]
async fn a_group_that_was_taken_off_is_given_up_although_everything_was_read_anew_meanwhile() {
    let rig = Fixture::with(2, managed());
    let (vpc, description) = (rig.world.vpc.clone(), MANAGED_DESCRIPTION.into());
    let tags = [("kubernetes.io/cluster/test".into(), "owned".into())].into();
    let request = CreateSecurityGroup {
        name: "k8s-default-web-0123456789".into(),
        description,
        vpc,
        tags,
    };
    let made = rig.aws.ask(request).await.unwrap();
    let mine = rig.aws.security_group(&rig.world.vpc, "mine", &[]);
    let web = with(service("web", &[80]), "security-groups", &made);
    rig.settle(&web).await;
    let web = with(web, "security-groups", &mine);
    rig.aws
        .fail_next(Action::DeleteSecurityGroup, "DependencyViolation");
    let outcome = rig.ensure(&web, ReadMode::Cached).await;
    assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{outcome:?}");
    rig.aws.reset_calls();
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert!(rig.aws.calls(Action::DescribeLoadBalancers) > 0, "it was read anew");
    assert!(
        rig.aws
            .security_groups()
            .iter()
            .all(|group| group.id != made)
    );
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_is_not_found_for_long_is_looked_for() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let balancer = rig.aws.load_balancers()[0].arn.clone();
    let arn = rig.aws.listeners(&balancer)[0].arn.clone();
    rig.aws.ask(DeleteListener { arn }).await.unwrap();
    let web = with(web, "listener-attributes.TCP-80", "tcp.idle_timeout.seconds=400");
    let ensure = async |waited: u64| {
        let op = rig.op().with_pending_for(Duration::from_secs(waited));
        rig.balancers
            .ensure(&op, &rig.spec(&web), ReadMode::Cached)
            .await
    };
    for waited in [0, 2, 20] {
        assert!(matches!(ensure(waited).await.result, Ok(Progress::Pending { .. })), "{waited}");
    }
    let error = ensure(22).await.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(matches!(ensure(0).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.listeners(&balancer).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_target_group_that_somebody_uses_is_tried_less_and_less_often() {
    let rig = Fixture::new(1);
    rig.settle(&service("web", &[80, 443])).await;
    rig.aws
        .fail_always(Action::DeleteTargetGroup, "ResourceInUse");
    let web = service("web", &[80]);
    for (waited, next) in [(0, 2), (40, 40), (600, 60)] {
        let op = rig.op().with_pending_for(Duration::from_secs(waited));
        let outcome = rig
            .balancers
            .ensure(&op, &rig.spec(&web), ReadMode::Fresh)
            .await;
        let Ok(Progress::Pending { after, .. }) = outcome.result else {
            panic!("{outcome:?}")
        };
        assert_eq!(after, Duration::from_secs(next), "after {waited} s");
    }
    rig.aws.clear_faults();
    rig.settle(&web).await;
    assert_eq!(rig.aws.target_groups().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_aws_does_not_find_is_soon_looked_for_again_and_then_rarely() {
    let soon = [5, 15, 60, 600, 600];
    for (action, code, delays) in [
        (Action::CreateLoadBalancer, "AllocationIdNotFound", soon),
        (Action::CreateLoadBalancer, "InvalidSecurityGroup", soon),
        (Action::CreateListener, "CertificateNotFound", soon),
        (Action::CreateListener, "UnsupportedProtocol", [600; 5]),
    ] {
        let rig = Fixture::new(1);
        let web = service("web", &[80]);
        let changed = with(web.clone(), "healthcheck-interval", "20");
        rig.aws.fail_always(action, code);
        for service in [&web, &changed] {
            assert_eq!(rig.delays_of_refusals(service).await, delays, "{code}");
        }
        // What was applied once counts anew: somebody may delete and create the object again.
        rig.aws.clear_faults();
        rig.settle(&changed).await;
        for listener in rig.aws.listeners(&rig.aws.load_balancers()[0].arn) {
            let arn = listener.arn.clone();
            rig.aws.ask(DeleteListener { arn }).await.unwrap();
        }
        rig.aws.fail_always(Action::CreateListener, code);
        let error = rig
            .ensure(&changed, ReadMode::Fresh)
            .await
            .result
            .unwrap_err();
        assert_eq!(error.retry_after().unwrap().as_secs(), delays[0], "{code}");
    }
}
