//! Deletion: in any state of things, and nothing foreign.

use std::time::Duration;

use ccm_core::{
    k8s::ServiceView,
    provider::{ErrorKind, Inventory, LoadBalancers, Owner, Progress, ReadMode},
};

use super::fixture::{Fixture, published, reference, service, with};
use crate::{
    api::{
        Action, Tags,
        ec2::{
            AuthorizeSecurityGroupIngress, CreateSecurityGroup, RevokeSecurityGroupIngress, Rule,
            RuleSource,
        },
        elb::{
            CreateListener, DeleteListener, DeleteLoadBalancer, ElbProtocol, ListenerSpec,
            ModifyLoadBalancerAttributes,
        },
    },
    config::Settings,
    fake::CLUSTER,
    lb::{model::ServiceKey, names, security_groups::MANAGED_DESCRIPTION},
};

const CLASS: &str = "service.k8s.aws/nlb";

fn managed() -> Settings {
    Settings { managed_security_groups: true, ..Settings::default() }
}

/// Settings with which rules on nodes' groups refer to the managed group.
fn claimed() -> Settings {
    Settings { classes: vec![CLASS.into()], ..managed() }
}

fn of_class(service: ServiceView) -> ServiceView {
    ServiceView { class: Some(CLASS.into()), ..service }
}

// OU4
#[tokio::test(start_paused = true)]
async fn groups_and_rules_go_although_the_balancer_was_removed_by_hand() {
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
        rig.remove(&web).await;
        assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
    }
}

// OU5
#[tokio::test(start_paused = true)]
async fn annotations_of_today_do_not_decide_what_is_deleted() {
    for changed in [None, Some("external"), Some("clb")] {
        let rig = Fixture::new(2);
        let before = rig.aws.snapshot();
        let web = with(service("web", &[80]), "type", "nlb");
        let mut web = published(&web, &rig.settle(&web).await);
        web.annotations.clear();
        if let Some(kind) = changed {
            web = with(web, "type", kind);
        }
        let rig = rig.restart();
        rig.remove(&web).await;
        assert!(rig.aws.snapshot() == before, "{changed:?}: {}", before.diff(&rig.aws.snapshot()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_of_which_only_the_name_is_left_is_deleted_whole() {
    let rig = Fixture::with(2, managed());
    let before = rig.aws.snapshot();
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let rig = rig.restart();
    let mut lb = reference(&web);
    lb.last_observed = None;
    let mut done = false;
    for _ in 0..20 {
        done = rig.balancers.delete(&rig.op(), &lb).await.unwrap() == Progress::Done;
        if done {
            break;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert!(done);
    assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_twice_and_nothing_is_needed() {
    let rig = Fixture::new(1);
    assert_eq!(rig.delete(&service("web", &[80])).await.unwrap(), Progress::Done);
    assert_eq!(rig.aws.writes(), 0);
}

// OU8
#[tokio::test(start_paused = true)]
async fn a_group_in_use_is_waited_for_with_growing_patience() {
    let rig = Fixture::with(2, managed());
    rig.aws
        .configure(|knobs| knobs.interfaces_linger = Duration::from_secs(180));
    let before = rig.aws.snapshot();
    let web = service("web", &[80]);
    rig.settle(&web).await;
    rig.aws.reset_calls();
    let first = rig.delete(&web).await.unwrap();
    assert!(
        matches!(first, Progress::Pending { after, .. } if after <= Duration::from_secs(5)),
        "{first:?}"
    );
    assert_eq!(rig.aws.load_balancers(), [], "the balancer is gone at once");
    let (listings, deletions) =
        (rig.aws.calls(Action::DescribeTargetGroups), rig.aws.calls(Action::DeleteLoadBalancer));
    let op = rig.op().with_pending_for(Duration::from_secs(40));
    let later = rig.balancers.delete(&op, &reference(&web)).await.unwrap();
    assert!(
        matches!(later, Progress::Pending { after, .. } if after >= Duration::from_secs(40)),
        "{later:?}"
    );
    assert_eq!(
        rig.aws.calls(Action::DescribeTargetGroups),
        listings,
        "what is gone is not looked for again"
    );
    assert_eq!(rig.aws.calls(Action::DeleteLoadBalancer), deletions);
    rig.remove(&web).await;
    assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn a_target_group_in_use_is_waited_for_and_told_after_half_an_hour() {
    let rig = Fixture::new(1);
    let web = service("web", &[80, 443]);
    rig.settle(&web).await;
    rig.aws
        .fail_next(Action::DeleteTargetGroup, "ResourceInUse");
    let first = rig.delete(&web).await.unwrap();
    assert!(
        matches!(first, Progress::Pending { after, .. } if after == Duration::from_secs(2)),
        "{first:?}"
    );
    assert_eq!(rig.aws.target_groups().len(), 1, "the other one is gone");
    assert_eq!(rig.reasons(), [""; 0]);
    rig.aws
        .fail_next(Action::DeleteTargetGroup, "ResourceInUse");
    let op = rig.op().with_pending_for(Duration::from_secs(1801));
    let later = rig.balancers.delete(&op, &reference(&web)).await.unwrap();
    assert!(
        matches!(later, Progress::Pending { after, .. } if after == Duration::from_secs(60)),
        "{later:?}"
    );
    assert_eq!(rig.reasons(), ["LoadBalancerDeletionSlow"]);
    assert_eq!(rig.delete(&web).await.unwrap(), Progress::Done);
    assert_eq!(rig.aws.target_groups(), []);
}

// LB2
#[tokio::test(start_paused = true)]
async fn protection_that_the_service_asks_for_is_respected_until_it_is_set_to_false() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let protected = with(web.clone(), "attributes", "deletion_protection.enabled=true");
    rig.settle(&protected).await;
    rig.aws.reset_calls();
    let error = rig.delete(&protected).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "deletion_protection is enabled, cannot delete the service: default/web"
    );
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(rig.aws.actions(), []);
    // AWS does not tell who enabled the protection of a Service without the annotation.
    let there = rig.aws.snapshot();
    assert_eq!(rig.delete(&web).await.unwrap_err().reason(), Some("DeletionProtected"));
    assert!(rig.aws.snapshot() == there, "{}", there.diff(&rig.aws.snapshot()));
    let unprotected = with(web, "attributes", "deletion_protection.enabled=false");
    rig.remove(&unprotected).await;
    assert_eq!(rig.aws.load_balancers(), []);
}

// LB2
#[tokio::test(start_paused = true)]
async fn protection_by_hand_ends_only_if_the_service_or_the_configuration_asks_for_it() {
    let off = Some("deletion_protection.enabled=false");
    // The annotation of the Service, the key of the configuration, whether it is deleted.
    for (annotation, key, deleted) in [
        (None, false, false),
        (Some("load_balancing.cross_zone.enabled=true"), false, false),
        (off, false, true),
        (None, true, true),
        (Some("deletion_protection.enabled=true"), true, false),
    ] {
        let settings = Settings { remove_deletion_protection: key, ..managed() };
        let rig = Fixture::with(1, settings);
        let before = rig.aws.snapshot();
        let web = service("web", &[80]);
        let mut web = published(&web, &rig.settle(&web).await);
        if let Some(text) = annotation {
            web = with(web, "attributes", text);
        }
        let balancer = rig.aws.load_balancers().remove(0);
        let attributes = [("deletion_protection.enabled".into(), "true".into())].into();
        rig.aws
            .ask(ModifyLoadBalancerAttributes { arn: balancer.arn.clone(), attributes })
            .await
            .unwrap();
        let there = rig.aws.snapshot();
        let rig = rig.restart();
        if deleted {
            rig.remove(&web).await;
            let diff = before.diff(&rig.aws.snapshot());
            assert!(diff.is_empty(), "{annotation:?} {key}: {diff}");
            continue;
        }
        for _ in 0..2 {
            let error = rig.delete(&web).await.unwrap_err();
            assert_eq!(error.reason(), Some("DeletionProtected"), "{annotation:?} {key}");
            if annotation.is_some_and(|text| text.contains("protection")) {
                continue;
            }
            // An error of this kind is retried with back-off, like each that AWS answers upstream.
            assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Conflict, None));
            let text = error.to_string();
            for words in [
                &*balancer.name,
                "disable it in AWS, or set RemoveDeletionProtection=true in cloud.conf",
                "if the Service's type and class are still the same",
                "deletion_protection.enabled=false",
            ] {
                assert!(text.contains(words), "{text}");
            }
        }
        let diff = there.diff(&rig.aws.snapshot());
        assert!(diff.is_empty(), "{annotation:?} {key}: {diff}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_while_deleting_is_never_taken_for_the_end() {
    for action in [
        Action::DescribeLoadBalancers,
        Action::DescribeTargetGroups,
        Action::DescribeElbTags,
        Action::DeleteLoadBalancer,
    ] {
        let rig = Fixture::new(1);
        let web = service("web", &[80]);
        rig.settle(&web).await;
        let rig = rig.restart();
        rig.aws.fail_always(action, "InternalFailure");
        assert!(rig.delete(&web).await.is_err(), "{action:?}");
        rig.aws.clear_faults();
        rig.remove(&web).await;
        assert_eq!(
            (rig.aws.load_balancers().len(), rig.aws.target_groups().len()),
            (0, 0),
            "{action:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn everything_owned_is_listed_and_deleted_only_while_it_is_owned() {
    let rig = Fixture::with(2, managed());
    let before = rig.aws.snapshot();
    rig.settle(&service("web", &[80])).await;
    let listed = rig.balancers.list_owned(&rig.op()).await.unwrap();
    let mut kinds: Vec<_> = listed.iter().map(|object| &*object.kind).collect();
    kinds.sort_unstable();
    assert_eq!(
        kinds,
        ["load balancer", "security group", "target group"],
        "the nodes' group is not ours"
    );
    let owner = Owner::Service { namespace: "default".into(), name: "web".into(), uid: None };
    assert!(listed.iter().all(|object| object.owner == owner));
    assert!(listed.iter().any(|object| object.created.is_some()));
    for object in &listed {
        rig.aws
            .tag(&object.id, "kubernetes.io/service-name", "default/other");
        assert_eq!(
            rig.balancers
                .delete_owned(&rig.op(), object)
                .await
                .unwrap_err()
                .kind(),
            ErrorKind::Conflict
        );
        rig.aws
            .tag(&object.id, "kubernetes.io/service-name", "default/web");
    }
    for _ in 0..3 {
        for object in &listed {
            rig.balancers.delete_owned(&rig.op(), object).await.unwrap();
        }
    }
    assert_eq!(rig.balancers.list_owned(&rig.op()).await.unwrap(), []);
    let left = before.diff(&rig.aws.snapshot());
    assert!(left.is_empty(), "{left}");
}

#[tokio::test(start_paused = true)]
async fn whether_the_inventory_can_be_read_takes_one_page_of_each_kind() {
    let rig = Fixture::with(2, managed());
    for name in ["a", "b", "c"] {
        rig.settle(&service(name, &[80])).await;
    }
    rig.aws.configure(|options| options.page_size = 1);
    rig.aws.reset_calls();
    rig.balancers.check_readable(&rig.op()).await.unwrap();
    let read = [
        Action::DescribeLoadBalancers,
        Action::DescribeTargetGroups,
        Action::DescribeElbTags,
        Action::DescribeSecurityGroups,
        Action::DescribeClassic,
    ];
    assert_eq!(rig.aws.actions(), read);
    // An API without classic load balancers has none.
    rig.aws.fail_next(Action::DescribeClassic, "InvalidAction");
    rig.balancers.check_readable(&rig.op()).await.unwrap();
    rig.aws
        .fail_next(Action::DescribeClassic, "ValidationError");
    rig.balancers.check_readable(&rig.op()).await.unwrap_err();
    for action in read {
        rig.aws.deny(action);
        let error = rig.balancers.check_readable(&rig.op()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{action:?}");
        rig.aws.clear_faults();
    }
}

#[tokio::test(start_paused = true)]
async fn an_orphan_with_deletion_protection_keeps_its_rules() {
    // Rules for networks, without and with a managed group, and rules for a managed group.
    for (settings, refer_to_group) in
        [(Settings::default(), false), (managed(), false), (claimed(), true)]
    {
        let rig = Fixture::with(1, settings);
        let before = rig.aws.snapshot();
        let web = service("web", &[80]);
        let web = if refer_to_group { of_class(web) } else { web };
        rig.settle(&web).await;
        let rules = rig.aws.rules(&rig.world.node_group);
        let mut sources = rules.iter().map(|rule| &rule.source);
        let found = sources.any(|source| matches!(source, RuleSource::Group(..)));
        assert_eq!(found, refer_to_group, "{rules:?}");
        let arn = rig.aws.load_balancers()[0].arn.clone();
        let protect = |value: &str| ModifyLoadBalancerAttributes {
            arn: arn.clone(),
            attributes: [("deletion_protection.enabled".into(), value.into())].into(),
        };
        rig.aws.ask(protect("true")).await.unwrap();
        let there = rig.aws.snapshot();
        let listed = rig.balancers.list_owned(&rig.op()).await.unwrap();
        for object in &listed {
            let result = rig.balancers.delete_owned(&rig.op(), object).await;
            if &*object.kind == "load balancer" {
                let error = result.unwrap_err();
                let found = (error.kind(), error.reason());
                assert_eq!(found, (ErrorKind::Conflict, Some("DeletionProtected")));
            } else {
                assert!(matches!(result, Ok(Progress::Pending { .. })), "{object:?}: {result:?}");
            }
        }
        assert!(rig.aws.snapshot() == there, "{}", there.diff(&rig.aws.snapshot()));
        rig.aws.ask(protect("false")).await.unwrap();
        for object in listed.iter().chain(&listed) {
            rig.balancers.delete_owned(&rig.op(), object).await.unwrap();
        }
        assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
    }
}

#[tokio::test(start_paused = true)]
async fn an_orphaned_group_keeps_the_rules_that_its_last_interfaces_need() {
    let rig = Fixture::with(1, claimed());
    rig.aws
        .configure(|knobs| knobs.interfaces_linger = Duration::from_secs(180));
    rig.settle(&of_class(service("web", &[80]))).await;
    let mut listed = rig.balancers.list_owned(&rig.op()).await.unwrap();
    listed.retain(|object| &*object.kind == "security group");
    let [group] = &listed[..] else {
        panic!("{listed:?}");
    };
    let remove = || async { rig.balancers.delete_owned(&rig.op(), group).await.unwrap() };
    // First the load balancer has the group, then only the interfaces that it left.
    for step in ["load balancer", "interfaces"] {
        if step == "interfaces" {
            let arn = rig.aws.load_balancers()[0].arn.clone();
            rig.aws.ask(DeleteLoadBalancer { arn }).await.unwrap();
        }
        let there = rig.aws.snapshot();
        assert_ne!(rig.aws.rules(&rig.world.node_group), []);
        let progress = remove().await;
        assert!(matches!(progress, Progress::Pending { .. }), "{step}: {progress:?}");
        assert!(rig.aws.snapshot() == there, "{step}: {}", there.diff(&rig.aws.snapshot()));
    }
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(remove().await, Progress::Done);
    assert_eq!(rig.aws.rules(&rig.world.node_group), []);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_something_is_not_there_is_not_the_end_of_a_deletion() {
    let rig = Fixture::new(1);
    let before = rig.aws.snapshot();
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    for action in [Action::DescribeTargetGroups, Action::DeleteLoadBalancer] {
        rig.aws.fail_next(action, "InvalidInstanceID.NotFound");
        assert_eq!(rig.delete(&web).await.unwrap_err().kind(), ErrorKind::Transient, "{action:?}");
    }
    rig.remove(&web).await;
    assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn a_group_under_the_name_of_ours_that_we_did_not_make_stays() {
    for (value, description) in [("owned", "by hand"), ("shared", MANAGED_DESCRIPTION)] {
        let rig = Fixture::with(1, managed());
        let web = service("web", &[80]);
        let owner = ServiceKey {
            namespace: "default".into(),
            name: "web".into(),
            uid: web.uid.clone(),
        };
        let name = names::security_group(CLUSTER, &owner);
        let tags = [(format!("kubernetes.io/cluster/{CLUSTER}").into(), value.into())].into();
        let (vpc, description) = (rig.world.vpc.clone(), description.into());
        let request = CreateSecurityGroup { name: name.clone(), description, vpc, tags };
        let id = rig.aws.ask(request).await.unwrap();
        rig.settle(&web).await;
        rig.remove(&web).await;
        assert!(rig.aws.load_balancers().is_empty());
        assert!(rig.aws.security_groups().iter().any(|group| group.id == id), "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn rules_in_groups_of_another_cluster_stay_whatever_their_description() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let other = rig.aws.security_group(
        &rig.world.vpc,
        "other",
        &[("kubernetes.io/cluster/other", "owned")],
    );
    let description =
        format!("kubernetes.io/rule/nlb/client={}", names::load_balancer(&web.uid)).into();
    let source = RuleSource::Cidr("0.0.0.0/0".parse().unwrap());
    let rule = Rule {
        protocol: "tcp".into(),
        ports: Some((30080, 30080)),
        source,
        description,
    };
    let request = AuthorizeSecurityGroupIngress { id: other.clone(), rules: vec![rule.clone()] };
    rig.aws.ask(request).await.unwrap();
    rig.settle(&web).await;
    rig.remove(&web).await;
    assert_eq!(rig.aws.rules(&other), [rule]);
}

#[tokio::test(start_paused = true)]
async fn rules_go_although_one_of_them_went_before() {
    let rig = Fixture::new(1);
    let before = rig.aws.snapshot();
    let web = service("web", &[80, 443]);
    let web = published(&web, &rig.settle(&web).await);
    let id = rig.world.node_group.clone();
    let gone = rig
        .aws
        .rules(&id)
        .into_iter()
        .find(|rule| rule.description.contains("client="))
        .unwrap();
    rig.aws
        .ask(RevokeSecurityGroupIngress { id, rules: vec![gone] })
        .await
        .unwrap();
    rig.remove(&web).await;
    assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_is_in_use_keeps_its_target_groups_and_rules() {
    let rig = Fixture::with(1, managed());
    let before = rig.aws.snapshot();
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let there = rig.aws.snapshot();
    rig.aws
        .fail_next(Action::DeleteLoadBalancer, "ResourceInUse");
    let first = rig.delete(&web).await.unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    assert!(rig.aws.snapshot() == there, "{}", there.diff(&rig.aws.snapshot()));
    assert_eq!(rig.reasons(), ["LoadBalancerInUse"]);
    rig.remove(&web).await;
    assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn what_was_made_a_moment_ago_is_deleted_although_it_does_not_show_yet() {
    let rig = Fixture::new(2);
    rig.aws
        .configure(|knobs| knobs.describe_lag = Duration::from_secs(10));
    let before = rig.aws.snapshot();
    let web = service("web", &[80, 443]);
    let made = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(matches!(made.result, Ok(Progress::Done)), "{made:?}");
    rig.remove(&web).await;
    assert!(rig.aws.snapshot() == before, "{}", before.diff(&rig.aws.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn a_target_group_that_somebody_elses_balancer_uses_is_left_alone() {
    let rig = Fixture::new(2);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let group = rig.aws.target_groups()[0].arn.clone();
    let ours = rig.aws.listeners(&rig.aws.load_balancers()[0].arn)[0]
        .arn
        .clone();
    rig.aws.ask(DeleteListener { arn: ours }).await.unwrap();
    let theirs = rig
        .aws
        .foreign_balancer("theirs", "network", &rig.world.public, &[]);
    let spec = ListenerSpec {
        port: 8080.try_into().unwrap(),
        protocol: ElbProtocol::Tcp,
        target_group: group.clone(),
        certificate: None,
        ssl_policy: None,
        alpn_policy: None,
    };
    rig.aws
        .ask(CreateListener { load_balancer: theirs, spec, tags: Tags::new() })
        .await
        .unwrap();
    let mut rig = rig.restart();
    rig.nodes.remove(0);
    let there = rig
        .aws
        .snapshot()
        .only(|name| name.starts_with("target group"));
    for depth in [ReadMode::Fresh, ReadMode::Cached] {
        drop(
            rig.ensure(&with(web.clone(), "healthcheck-healthy-threshold", "5"), depth)
                .await,
        );
    }
    let rig = rig.restart();
    drop(rig.balancers.plan(&rig.op(), &rig.spec(&web)).await);
    rig.aws.reset_calls();
    rig.remove(&web).await;
    assert_eq!(rig.aws.calls(Action::DeleteTargetGroup), 0);
    let now = rig
        .aws
        .snapshot()
        .only(|name| name.starts_with("target group"));
    assert!(now == there, "{}", there.diff(&now));
}
