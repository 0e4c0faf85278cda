//! The groups of load balancers themselves.

use ccm_core::provider::ErrorKind;

use super::*;
use crate::{
    api::{Action, ec2::CreateSecurityGroup},
    ownership_tags::SERVICE_TAG,
};

fn given(wanted: DesiredLoadBalancer, names: &[&str]) -> DesiredLoadBalancer {
    with_groups(wanted, Choice::Given(names.iter().map(|name| (*name).into()).collect()))
}

fn shared() -> Settings {
    Settings { shared_backend_security_group: true, ..Settings::default() }
}

// SG1, LB4
#[tokio::test(start_paused = true)]
async fn the_wish_and_what_is_there_decide_about_groups() {
    let case = Case::new();
    let has = [SecurityGroupId::from("sg-1")];
    let front = |wanted: DesiredLoadBalancer, existing| {
        let case = &case;
        async move {
            case.part
                .ensure_frontend_groups(&case.op, &wanted, existing)
                .await
                .map_err(|error| error.to_string())
        }
    };
    assert_eq!(front(nth(1), None).await, Ok(vec![]), "off, none yet");
    assert_eq!(front(nth(1), Some(&[])).await, Ok(vec![]), "off, without");
    assert_eq!(front(nth(1), Some(&has)).await, Ok(vec![]), "off, with some: left alone");
    assert_eq!(front(managed(nth(1)), Some(&[])).await, Ok(vec![]), "managed, made without");
    assert_eq!(front(given(nth(1), &["sg-1"]), Some(&[])).await, Ok(vec![]), "given, made without");
    let off = || with_groups(nth(1), Choice::None);
    assert_eq!(front(off(), None).await, Ok(vec![]));
    let error = front(off(), Some(&has)).await.unwrap_err();
    assert!(error.contains("conflicting security groups configuration"), "{error}");
    assert_eq!(case.world.aws.writes(), 0);

    let made = front(managed(nth(1)), None).await.unwrap();
    assert_eq!(made.len(), 1);
    assert_eq!(front(managed(nth(1)), Some(&has)).await, Ok(made.clone()), "found");
    assert_eq!(front(managed(nth(1)), Some(&made)).await, Ok(made));
}

// SG1, SG6, LB12
#[tokio::test(start_paused = true)]
async fn a_managed_group_is_made_with_tags_and_rules() {
    let case = Case::new();
    let mut wanted = managed(nth(1));
    let tags = [("team", "a"), ("kubernetes.io/cluster/test", "mine"), (SERVICE_TAG, "x/y")];
    wanted.extra_tags = tags.map(|(key, value)| (key.into(), value.into())).into();
    let groups = case
        .part
        .ensure_frontend_groups(&case.op, &wanted, None)
        .await
        .unwrap();
    assert_eq!(case.world.aws.writes(), 2);
    let group = case.group(&groups[0]).await.unwrap();
    assert_eq!(*group.name, *names::security_group("kubernetes", &wanted.owner));
    assert_eq!(*group.description, *MANAGED_DESCRIPTION);
    let tags: Vec<_> = group
        .tags
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let expected =
        ["kubernetes.io/cluster/test=owned", "kubernetes.io/service-name=default/web-1", "team=a"]
            .map(String::from);
    assert_eq!(tags, expected);
    assert_eq!(case.rules(&group.id).await, ["icmp 3-4 0.0.0.0/0", "tcp 80-80 0.0.0.0/0"]);
}

#[tokio::test(start_paused = true)]
async fn a_managed_group_has_exactly_the_rules_of_the_service() {
    let case = Case::new();
    let groups = case.ensure(&by_group(managed(nth(1))), None).await.unwrap();
    case.authorize(&groups[0], &[rule(22, "0.0.0.0/0", "by hand")])
        .await;
    tokio::time::advance(SHARED_READ_AGE).await;
    let restricted = by_group(from(managed(nth(1)), &["10.0.0.0/8"]));
    let planned = case.plan(&restricted, &groups).await;
    assert_eq!(planned.len(), 2, "{planned:?}");
    case.ensure(&restricted, Some(&groups)).await.unwrap();
    assert_eq!(case.rules(&groups[0]).await, ["icmp 3-4 10.0.0.0/8", "tcp 80-80 10.0.0.0/8"]);
    assert_eq!(case.plan(&restricted, &groups).await, Vec::<String>::new());
}

// SG2
#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_made_is_named() {
    let case = Case::new();
    case.world.aws.deny(Action::CreateSecurityGroup);
    let error = case.ensure(&managed(nth(1)), None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(
        error
            .to_string()
            .starts_with("unable to create security group for NLB"),
        "{error}"
    );
    let case = Case::new();
    case.world.aws.deny(Action::DescribeSecurityGroups);
    assert_eq!(
        case.ensure(&managed(nth(1)), None)
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Denied
    );
    assert_eq!(case.world.aws.writes(), 0);
}

async fn make(
    case: &Case,
    name: &str,
    description: &str,
    tags: &[(&str, &str)],
) -> SecurityGroupId {
    let tags = tags
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect();
    let vpc = case.world.vpc.clone();
    let request = CreateSecurityGroup {
        name: name.into(),
        description: description.into(),
        vpc,
        tags,
    };
    case.world
        .aws
        .client()
        .write(&op(), request, "")
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_group_of_that_name_is_taken_only_if_it_is_ours() {
    const OURS: (&str, &str) = ("kubernetes.io/cluster/test", "owned");
    const SERVICE: (&str, &str) = (SERVICE_TAG, "default/web-1");
    type Tagged<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&str, &str, Tagged<'_>, bool); 7] = [
        ("of this cluster", "anything", &[OURS], true),
        ("of the Service", "anything", &[SERVICE], true),
        ("the remains of an upstream that could not tag it", MANAGED_DESCRIPTION, &[], true),
        ("somebody's", "anything", &[], false),
        (
            "another cluster's",
            MANAGED_DESCRIPTION,
            &[("kubernetes.io/cluster/other", "owned"), SERVICE],
            false,
        ),
        ("another Service's", MANAGED_DESCRIPTION, &[(SERVICE_TAG, "default/other")], false),
        ("another controller's", MANAGED_DESCRIPTION, &[("elbv2.k8s.aws/cluster", "test")], false),
    ];
    for (whose, description, tags, taken) in cases {
        let case = Case::new();
        let name = names::security_group("kubernetes", &nth(1).owner);
        let id = make(&case, &name, description, tags).await;
        let found = case.ensure(&managed(nth(1)), None).await;
        match taken {
            true => {
                assert_eq!(found.unwrap(), [id.clone()], "{whose}");
                let group = case.group(&id).await.unwrap();
                assert!(Cluster::new("test", false).owns(&group.tags), "{whose}");
            }
            false => {
                assert_eq!(found.unwrap_err().kind(), ErrorKind::InvalidInput, "{whose}");
                assert_eq!(case.rules(&id).await, Vec::<String>::new(), "{whose}");
                case.part
                    .clean_up(&case.op, &nth(1).owner, "a1", &[])
                    .await
                    .unwrap();
                assert!(case.group(&id).await.is_some(), "{whose}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_made_and_does_not_show_yet_is_found() {
    let case = Case::new();
    case.ensure(&nth(9), None).await.unwrap();
    // Made by a process that ended just then; our list is older.
    let name = names::security_group("kubernetes", &nth(1).owner);
    let id =
        make(&case, &name, MANAGED_DESCRIPTION, &[("kubernetes.io/cluster/test", "owned")]).await;
    assert_eq!(case.ensure(&managed(nth(1)), None).await.unwrap(), [id]);
}

// SG2, E4
#[tokio::test(start_paused = true)]
async fn given_groups_are_taken_as_given_and_never_changed() {
    let case = Case::new();
    let aws = &case.world.aws;
    let one = aws.security_group(&case.world.vpc, "one", &[("Name", "front door")]);
    let two = aws.security_group(&case.world.vpc, "two", &[("Name", "twin")]);
    aws.security_group(&case.world.vpc, "three", &[("Name", "twin")]);
    aws.reset_calls();
    let front = |names: Vec<String>| {
        let case = &case;
        async move {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            case.ensure(&given(nth(1), &names), None)
                .await
                .map_err(|error| error.to_string())
        }
    };
    assert_eq!(front(vec![one.to_string()]).await, Ok(vec![one.clone()]));
    assert_eq!(
        front(vec![two.to_string(), one.to_string()]).await,
        Ok(vec![two.clone(), one.clone()])
    );
    assert_eq!(
        front(vec!["front door".to_owned(), two.to_string()]).await,
        Ok(vec![one.clone(), two])
    );
    let error = front(vec!["sg-0".to_owned(), "twin".to_owned()])
        .await
        .unwrap_err();
    let expected = "security group \"sg-0\" was not found; 2 security groups are named \"twin\"";
    assert!(error.contains(expected), "{error}");
    assert_eq!(aws.writes(), 0);
    // One that was made just now counts.
    let new = case.world.aws.security_group(&case.world.vpc, "new", &[]);
    assert_eq!(front(vec![new.to_string()]).await, Ok(vec![new]));
}

#[tokio::test(start_paused = true)]
async fn nodes_admit_a_balancer_with_given_groups_as_upstream_does_and_follow_its_ports() {
    let mut wanted = given(nth(1), &["one"]);
    wanted.security.manage_backend_rules = true;
    let mut case = Case::with(shared());
    let one = case
        .world
        .aws
        .security_group(&case.world.vpc, "x", &[("Name", "one")]);
    assert_eq!(
        case.ensure(&wanted, None).await.unwrap(),
        [one.clone()],
        "exactly those that are given"
    );
    wanted.listeners = vec![listener(30007)];
    case.restart(Settings::default());
    case.ensure(&wanted, Some(&[one.clone()])).await.unwrap();
    let rules = case.rules(&case.world.node_group).await;
    assert_eq!(rules, ["icmp 3-4 0.0.0.0/0 mtu", "tcp 30007-30007 0.0.0.0/0 client=a1"]);
    assert_eq!(case.rules(&one).await, Vec::<String>::new());
    case.part
        .clean_up(&case.op, &wanted.owner, "a1", &[one.clone()])
        .await
        .unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
    assert!(case.group(&one).await.is_some());
}

// LB4
#[tokio::test(start_paused = true)]
async fn rules_for_given_groups_need_the_shared_one() {
    let mut wanted = by_group(given(nth(1), &["one"]));
    wanted.security.manage_backend_rules = true;
    let case = Case::new();
    let one = case
        .world
        .aws
        .security_group(&case.world.vpc, "x", &[("Name", "one")]);
    let error = case.ensure(&wanted, None).await.unwrap_err().to_string();
    let expected = "backendSG feature is required to manage worker node SG rules when frontendSG is manually specified";
    assert!(error.ends_with(expected), "{error}");

    let mut case = case;
    case.restart(shared());
    let groups = case.ensure(&wanted, None).await.unwrap();
    assert_eq!((groups.len(), &groups[0]), (2, &one));
    let name = names::shared_security_group("kubernetes");
    assert_eq!(case.group(&groups[1]).await.unwrap().name, name);
    assert_eq!(case.rules(&one).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_shared_group_is_made_once_and_admitted_once() {
    let case = Case::with(shared());
    let first = case.ensure(&managed(nth(1)), None).await.unwrap();
    let backend = first[1].clone();
    let described = case.group(&backend).await.unwrap();
    assert_eq!(*described.description, *SHARED_DESCRIPTION);
    assert_eq!(
        case.rules(&case.world.node_group).await,
        ["tcp", "udp"]
            .map(|protocol| format!("{protocol} 30000-32767 {backend} {}", desired_rules::SHARED))
    );
    case.requests();
    for n in 2..=4 {
        assert_eq!(case.ensure(&managed(nth(n)), None).await.unwrap()[1], backend);
    }
    // Each its own group with its rules, and nothing for nodes.
    assert_eq!(case.requests(), 6);
    case.part
        .clean_up(&case.op, &nth(2).owner, "a2", &[])
        .await
        .unwrap();
    assert_eq!(case.rules(&case.world.node_group).await.len(), 2);
    assert!(case.group(&backend).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_group_under_the_shared_name_that_is_not_the_clusters_is_neither_used_nor_admitted() {
    let theirs: [&[(&str, &str)]; 2] = [&[], &[("kubernetes.io/cluster/other", "owned")]];
    for tags in theirs {
        let case = Case::with(shared());
        let id = make(&case, &names::shared_security_group("kubernetes"), SHARED_DESCRIPTION, tags)
            .await;
        // Known already, and found only when one is to be made.
        for read in [false, true] {
            if read {
                case.part
                    .cache
                    .groups(&case.op, Duration::ZERO)
                    .await
                    .unwrap();
            }
            let error = case.ensure(&managed(nth(1)), None).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{tags:?}");
            assert!(error.to_string().contains("is not of this cluster"), "{error}");
        }
        // A balancer that somebody put it on is admitted by the networks of its clients.
        case.ensure_by(&managed(nth(1)), &[id]).await;
        let rules = case.rules(&case.world.node_group).await;
        assert_eq!(
            rules,
            ["icmp 3-4 0.0.0.0/0 mtu", "tcp 30001-30001 0.0.0.0/0 client=a1"],
            "{tags:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_configured_shared_group_is_used() {
    let mut case = Case::new();
    let id = case.world.aws.security_group(&case.world.vpc, "mine", &[]);
    case.restart(Settings { backend_security_group: Some(id.clone()), ..shared() });
    let groups = case.ensure(&managed(nth(1)), None).await.unwrap();
    assert_eq!(groups[1], id);
    assert_eq!(
        case.part
            .clean_up_detached(&case.op, &nth(1).owner, &[id.clone()])
            .await
            .unwrap(),
        Progress::Done
    );
    assert!(case.group(&id).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_preview_of_groups_makes_none() {
    let case = Case::with(shared());
    let plan = case
        .part
        .plan_frontend_groups(&case.op, &managed(nth(1)), None)
        .await
        .unwrap();
    assert!(!plan.is_complete);
    assert_eq!((plan.groups.len(), plan.changes.len()), (0, 2));
    assert_eq!(case.world.aws.writes(), 0);
    let groups = case
        .part
        .ensure_frontend_groups(&case.op, &managed(nth(1)), None)
        .await
        .unwrap();
    let plan = case
        .part
        .plan_frontend_groups(&case.op, &managed(nth(1)), None)
        .await
        .unwrap();
    assert_eq!(plan, FrontendPlan { groups, is_complete: true, changes: vec![] });
    let mut tagged = managed(nth(1));
    tagged.extra_tags.insert("team".into(), "a".into());
    let plan = case
        .part
        .plan_frontend_groups(&case.op, &tagged, None)
        .await
        .unwrap();
    assert_eq!((plan.is_complete, plan.changes.len()), (true, 1));
}

#[tokio::test(start_paused = true)]
async fn whatever_write_is_the_last_one_the_next_process_ends_at_the_same() {
    use crate::fake::Crash;
    let wanted = managed(nth(1));
    let whole = Case::new();
    whole.ensure(&wanted, None).await.unwrap();
    let (writes, expected) = (whole.world.aws.writes(), whole.world.aws.snapshot());
    assert_eq!(writes, 3);
    for n in 1..=writes {
        for crash in [Crash::Before, Crash::After] {
            let mut case = Case::new();
            case.world.aws.crash_at_write(n, crash);
            case.ensure(&wanted, None).await.unwrap_err();
            case.world.aws.restart_process();
            case.restart(Settings::default());
            case.ensure(&wanted, None).await.unwrap();
            let found = case.world.aws.snapshot();
            assert_eq!(found, expected, "{n} {crash:?}: {}", expected.diff(&found));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_protected_group_under_the_managed_name_keeps_its_rules() {
    let mut case = Case::new();
    let groups = case.ensure(&managed(nth(1)), None).await.unwrap();
    let before = case.rules(&groups[0]).await;
    case.restart(Settings {
        protected_security_group: Some(groups[0].clone()),
        ..Settings::default()
    });
    let other = from(managed(nth(1)), &["10.9.0.0/16"]);
    assert_eq!(case.ensure(&other, Some(&groups)).await.unwrap(), groups);
    assert_eq!(case.rules(&groups[0]).await, before);
}

#[tokio::test(start_paused = true)]
async fn rules_of_a_group_that_is_not_made_for_the_service_stay_whatever_its_name() {
    let case = Case::new();
    let name = names::security_group("kubernetes", &nth(1).owner);
    let id = make(&case, &name, MANAGED_DESCRIPTION, &[]).await;
    case.authorize(&id, &[rule(22, "10.0.0.0/8", "by hand")])
        .await;
    let close = |wanted: DesiredLoadBalancer| {
        let (case, id) = (&case, id.clone());
        async move {
            case.part
                .remove_rules(&case.op, &case.exposure(&wanted, &[id]))
                .await
                .unwrap();
        }
    };
    close(managed(nth(1))).await;
    assert_eq!(case.rules(&id).await.len(), 1, "it has no tag of the cluster");
    case.world
        .aws
        .tag(&id, "kubernetes.io/cluster/test", "owned");
    case.part.cache.read(&case.op, &[id.clone()]).await.unwrap();
    close(given(nth(1), &[&*id])).await;
    assert_eq!(case.rules(&id).await.len(), 1, "it is given");
    close(managed(nth(1))).await;
    assert_eq!(case.rules(&id).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_protected_group_of_nodes_is_not_opened() {
    let mut case = Case::new();
    case.restart(Settings {
        protected_security_group: Some(case.world.node_group.clone()),
        ..Settings::default()
    });
    case.ensure(&nth(1), None).await.unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}
