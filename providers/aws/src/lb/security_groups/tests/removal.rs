//! What goes with a load balancer.

use ccm_core::provider::{ErrorKind, EventSink, EventType};

use super::*;
use crate::{
    api::{Action, ec2::RuleSource},
    ownership_tags::SERVICE_TAG,
};

fn from_group(id: &SecurityGroupId, port: i32) -> Rule {
    Rule {
        source: RuleSource::Group(id.clone(), None),
        ..rule(port, "0.0.0.0/0", "by hand")
    }
}

async fn release(case: &Case, wanted: &DesiredLoadBalancer) -> Result<Progress, CloudError> {
    case.part
        .clean_up(&case.op, &wanted.owner, &wanted.name, &[])
        .await
}

#[tokio::test(start_paused = true)]
async fn a_deleted_balancer_takes_its_group_and_rules_along() {
    let mut case = Case::new();
    let wanted = managed(nth(1));
    let before = case.world.aws.snapshot();
    let groups = case.ensure(&wanted, None).await.unwrap();
    let balancer = case.create_balancer("a1", &groups).await;

    let Progress::Pending { after, reason } = release(&case, &wanted).await.unwrap() else {
        panic!("deleted")
    };
    assert_eq!(after, Duration::from_secs(5));
    assert_eq!(*reason, *format!("security group {} is still in use", groups[0]));
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());

    case.op = op().with_pending_for(Duration::from_secs(40));
    let Progress::Pending { after, .. } = release(&case, &wanted).await.unwrap() else {
        panic!("deleted")
    };
    assert_eq!(after, Duration::from_secs(40));
    case.delete_balancer(balancer).await;
    assert_eq!(release(&case, &wanted).await.unwrap(), Progress::Done);
    let after = case.world.aws.snapshot();
    assert_eq!(after, before, "{}", before.diff(&after));
    assert_eq!(release(&case, &wanted).await.unwrap(), Progress::Done, "again");
}

#[tokio::test(start_paused = true)]
async fn that_a_group_stays_in_use_is_told_once() {
    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);
    impl EventSink for Notes {
        fn record(&self, _: EventType, reason: &'static str, note: &str) {
            self.0.lock().push(format!("{reason}: {note}"));
        }
    }
    let (notes, id) = (Arc::new(Notes::default()), SecurityGroupId::from("sg-1"));
    let mut waited = Duration::ZERO;
    while waited < Duration::from_secs(4 * 3600) {
        let op = op().with_pending_for(waited).with_events(notes.clone());
        let Progress::Pending { after, .. } = in_use(&op, &id) else {
            panic!("done")
        };
        waited += after;
    }
    assert_eq!(
        *notes.0.lock(),
        ["SecurityGroupInUse: security group sg-1 is still in use after 30 minutes"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_kept_or_protected_stays() {
    let mut case = Case::new();
    let wanted = managed(nth(1));
    let groups = case.ensure(&wanted, None).await.unwrap();
    let kept = case
        .part
        .clean_up(&case.op, &wanted.owner, "a1", &groups)
        .await
        .unwrap();
    assert_eq!(kept, Progress::Done);
    assert!(case.group(&groups[0]).await.is_some());
    case.restart(Settings {
        protected_security_group: Some(groups[0].clone()),
        ..Settings::default()
    });
    assert_eq!(release(&case, &wanted).await.unwrap(), Progress::Done);
    assert!(case.group(&groups[0]).await.is_some());
}

// SG4, SG5
#[tokio::test(start_paused = true)]
async fn references_go_from_groups_of_the_cluster_only() {
    let mut case = Case::new();
    let wanted = managed(nth(1));
    let groups = case.ensure(&wanted, None).await.unwrap();
    let plain = case.world.aws.security_group(&case.world.vpc, "plain", &[]);
    case.authorize(&case.world.node_group, &[from_group(&groups[0], 22)])
        .await;
    case.authorize(&plain, &[from_group(&groups[0], 22)]).await;
    case.restart(Settings::default());
    let first = release(&case, &wanted).await.unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
    assert_eq!(case.rules(&plain).await.len(), 1);
    case.revoke(
        &plain,
        &[Rule {
            source: RuleSource::Group(groups[0].clone(), None),
            ..rule(22, "0.0.0.0/0", "")
        }],
    )
    .await;
    assert_eq!(release(&case, &wanted).await.unwrap(), Progress::Done);
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_because_a_group_is_in_use_sees_what_uses_it_now() {
    let mut case = Case::new();
    let tags = [("kubernetes.io/cluster/test", "owned")];
    let other = case
        .world
        .aws
        .security_group(&case.world.vpc, "other", &tags);
    let wanted = managed(nth(1));
    let groups = case.ensure(&wanted, None).await.unwrap();
    // After the groups were read.
    case.authorize(&other, &[from_group(&groups[0], 22)]).await;
    let first = release(&case, &wanted).await.unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    case.op = op().with_pending_for(Duration::from_secs(5));
    assert_eq!(release(&case, &wanted).await.unwrap(), Progress::Done);
    assert!(case.group(&groups[0]).await.is_none());
}

// SG4
#[tokio::test(start_paused = true)]
async fn a_failed_step_is_an_error_and_no_success() {
    let case = Case::new();
    let wanted = managed(nth(1));
    let groups = case.ensure(&wanted, None).await.unwrap();
    case.world
        .aws
        .fail_always(Action::RevokeSecurityGroupIngress, "InvalidGroup.NotFound");
    assert_eq!(release(&case, &wanted).await.unwrap_err().kind(), ErrorKind::Conflict);
    case.world.aws.clear_faults();
    case.world.aws.deny(Action::DescribeSecurityGroups);
    assert_eq!(release(&case, &wanted).await.unwrap_err().kind(), ErrorKind::Denied);
    case.world.aws.clear_faults();
    assert!(case.group(&groups[0]).await.is_some());
    assert_eq!(release(&case, &wanted).await.unwrap(), Progress::Done);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_the_list_does_not_show_yet_is_deleted() {
    let case = Case::new();
    case.ensure(&nth(9), None).await.unwrap();
    // Made by a process that ended just then.
    let other = part(&case.world, Settings::default());
    other
        .ensure_frontend_groups(&case.op, &managed(nth(1)), None)
        .await
        .unwrap();
    assert_eq!(release(&case, &managed(nth(1))).await.unwrap(), Progress::Done);
    let name = names::security_group("kubernetes", &nth(1).owner);
    assert!(!case.world.aws.snapshot().to_string().contains(&*name));
}

// SG3, SG4, E5
#[tokio::test(start_paused = true)]
async fn a_managed_group_that_was_replaced_goes() {
    let case = Case::new();
    let groups = case.ensure(&by_group(managed(nth(1))), None).await.unwrap();
    let balancer = case.create_balancer("a1", &groups).await;
    let owner = nth(1).owner;
    let detached = || case.part.clean_up_detached(&case.op, &owner, &groups);
    assert!(matches!(detached().await.unwrap(), Progress::Pending { .. }));
    case.delete_balancer(balancer).await;
    assert_eq!(
        case.part
            .clean_up_detached(&case.op, &owner, &[])
            .await
            .unwrap(),
        Progress::Done
    );
    assert_eq!(detached().await.unwrap(), Progress::Done);
    assert!(case.group(&groups[0]).await.is_none());
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
    assert_eq!(detached().await.unwrap(), Progress::Done, "again");
}

// SG3, SG4, E6
#[tokio::test(start_paused = true)]
async fn groups_that_were_not_made_for_the_service_stay() {
    let case = Case::new();
    let aws = &case.world.aws;
    let shared =
        aws.security_group(&case.world.vpc, "theirs", &[("kubernetes.io/cluster/test", "shared")]);
    let plain = aws.security_group(&case.world.vpc, "plain", &[]);
    // As a cluster's installer tags the group of nodes.
    let owned = case.world.node_group.clone();
    let other = case.ensure(&managed(nth(2)), None).await.unwrap();
    let groups = [shared, plain, owned, other[0].clone()];
    case.world.aws.reset_calls();
    assert_eq!(
        case.part
            .clean_up_detached(&case.op, &nth(1).owner, &groups)
            .await
            .unwrap(),
        Progress::Done
    );
    assert_eq!(case.world.aws.writes(), 0);
    for id in &groups {
        assert!(case.group(id).await.is_some(), "{id}");
    }
}

// SG3
#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_while_ownership_is_in_doubt() {
    let case = Case::new();
    let groups = case.ensure(&managed(nth(1)), None).await.unwrap();
    let writes = case.world.aws.writes();
    case.world
        .aws
        .fail_always(Action::DescribeSecurityGroups, "UnauthorizedOperation");
    case.part
        .clean_up_detached(&case.op, &nth(1).owner, &groups)
        .await
        .unwrap_err();
    assert_eq!(case.world.aws.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn the_configured_shared_group_stays_even_if_it_looks_like_one_that_was_made() {
    let mut case = Case::new();
    let wanted = managed(nth(1));
    let groups = case.ensure(&wanted, None).await.unwrap();
    case.restart(Settings {
        backend_security_group: Some(groups[0].clone()),
        ..Settings::default()
    });
    assert_eq!(release(&case, &wanted).await.unwrap(), Progress::Done);
    assert_eq!(
        case.part
            .clean_up_detached(&case.op, &wanted.owner, &groups)
            .await
            .unwrap(),
        Progress::Done
    );
    assert!(case.group(&groups[0]).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn rules_of_a_protected_group_stay_whomever_they_admit() {
    let mut case = Case::new();
    let wanted = managed(nth(1));
    let groups = case.ensure(&wanted, None).await.unwrap();
    let tags = [("kubernetes.io/cluster/test", "owned")];
    let guarded = case
        .world
        .aws
        .security_group(&case.world.vpc, "guarded", &tags);
    let of_balancer = rule(30001, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a1");
    case.authorize(&guarded, &[from_group(&groups[0], 22), of_balancer])
        .await;
    case.restart(Settings {
        protected_security_group: Some(guarded.clone()),
        ..Settings::default()
    });
    let waits = release(&case, &wanted).await.unwrap();
    assert!(matches!(waits, Progress::Pending { .. }), "{waits:?}");
    assert_eq!(case.rules(&guarded).await.len(), 2);
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn only_a_group_that_the_balancer_does_not_have_is_left_over() {
    let case = Case::new();
    let wanted = managed(nth(1));
    let groups = case.ensure(&wanted, None).await.unwrap();
    assert_eq!(
        case.part
            .find_leftover_group(&case.op, &wanted.owner, &groups)
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        case.part
            .find_leftover_group(&case.op, &wanted.owner, &[])
            .await
            .unwrap()
            .as_ref(),
        groups.first()
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_given_to_another_service_stays() {
    let mut case = Case::new();
    let wanted = managed(nth(1));
    let groups = case.ensure(&wanted, None).await.unwrap();
    case.world.aws.tag(&groups[0], SERVICE_TAG, "default/other");
    case.restart(Settings::default());
    assert_eq!(release(&case, &wanted).await.unwrap(), Progress::Done);
    assert_eq!(
        case.part
            .clean_up_detached(&case.op, &wanted.owner, &groups)
            .await
            .unwrap(),
        Progress::Done
    );
    assert!(case.group(&groups[0]).await.is_some());
}
