//! Moves of which not everything is known, or that somebody else has a hand in.

use ccm_core::k8s::well_known::ANNOTATION_RETAIN;

use super::{super::fixture::reference, *};
use crate::api::{
    classic::{DeleteClassic, DeregisterClassic},
    ec2::RuleSource,
};

impl Move {
    /// On its way back, with the drain time over.
    async fn returned() -> Self {
        let mut story = Self::switched().await;
        story.drop_annotation("move-to");
        story.call().await.unwrap();
        assert!(story.shows_classic() && story.state().starts_with("returned"));
        tokio::time::sleep(Duration::from_secs(700)).await;
        story
    }

    /// Somebody takes all instances out of the classic load balancer.
    async fn empty_classic(&self) {
        let classic = self.rig.aws.classics().remove(0);
        let request = DeregisterClassic { name: classic.name, instances: classic.instances };
        self.rig.aws.ask(request).await.unwrap();
    }

    async fn delete_classic_by_hand(&self) {
        let name = self.rig.aws.classics()[0].name.clone();
        self.rig.aws.ask(DeleteClassic { name }).await.unwrap();
    }

    fn networks(&self) -> usize {
        self.rig.aws.load_balancers().len()
    }

    /// Whether the nodes admit a group.
    fn admits(&self, group: &str) -> bool {
        let rules = self.rig.aws.rules(&self.rig.world.node_group);
        rules
            .iter()
            .any(|rule| matches!(&rule.source, RuleSource::Group(id, _) if **id == *group))
    }
}

#[tokio::test(start_paused = true)]
async fn the_way_back_keeps_the_new_one_until_the_classic_one_has_an_instance() {
    // It cannot follow the nodes, with and without instances.
    for is_empty in [false, true] {
        let mut story = Move::returned().await.restart();
        if is_empty {
            story.empty_classic().await;
        } else {
            story.rig.add_node();
        }
        let failing = Action::RegisterClassic;
        story.rig.aws.fail_always(failing, "ServiceUnavailable");
        for _ in 0..3 {
            story.ensure().await.unwrap_err();
            assert_eq!(story.networks(), 1, "{is_empty}");
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        story.rig.aws.clear_faults();
        // An instance that was registered just now serves nobody yet.
        let planned = story.rig.plan(&story.web).await.unwrap();
        let step = planned.last().unwrap();
        assert!(step.reason.contains("follow"), "{planned:?}");
        let waiting = story.ensure().await.unwrap();
        let Progress::Pending { after, reason } = waiting else {
            panic!("{waiting:?}")
        };
        if is_empty {
            assert!(reason.contains("no instance"), "{reason}");
            assert_eq!(story.networks(), 1);
        }
        tokio::time::sleep(after).await;
        story.finish().await;
        assert_eq!((story.networks(), story.members().0.is_some()), (0, true));
    }
    // A Service without nodes has nothing to wait for.
    let mut story = Move::returned().await;
    story.rig.nodes.clear();
    for _ in 0..3 {
        story.ensure().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!((story.networks(), story.members().0), (0, Some(0)));
}

// A Service without type is another controller's there, but this one has a classic load balancer.
#[tokio::test(start_paused = true)]
async fn the_way_back_leads_to_the_classic_one_where_the_configuration_makes_none() {
    for suffixes in [&["move-to", "type"][..], &["type"]] {
        let settings = Settings { default_type: DefaultType::None, ..Settings::default() };
        let mut story = Move::with(settings, &[]).await;
        let before = story.rig.aws.snapshot();
        story.annotate("move-to", "nlb");
        story.until("switched").await;
        for suffix in suffixes {
            story.drop_annotation(suffix);
        }
        let mut story = story.restart();
        let interpretation = story.rig.balancers.interpret(&story.web);
        assert!(matches!(interpretation, ServiceInterpretation::Valid { .. }), "{suffixes:?}");
        assert_eq!(story.rig.balancers.notices(&story.web), []);
        story.call().await.unwrap();
        assert!(story.shows_classic() && story.state().starts_with("returned"));
        // Both follow until the drain time is over.
        story.rig.nodes.pop();
        story.call().await.unwrap();
        assert_eq!(story.members(), (Some(2), vec![2, 2]));
        story.rig.nodes.push(node(&story.rig.world.nodes[2]));
        story.finish().await;
        same(&story.rig.aws.snapshot(), &before, "back");
        assert_eq!(story.state(), "");
        // Another controller's load balancer is none of ours, even now.
        story.annotate("move-state", "started");
        story.annotate("type", "external");
        let interpretation = story.rig.balancers.interpret(&story.web);
        assert_eq!(interpretation, ServiceInterpretation::ImplementedElsewhere);
    }
}

#[tokio::test(start_paused = true)]
async fn one_answer_that_there_is_no_classic_one_does_not_end_a_move() {
    let mut story = Move::requested().await;
    let initial = Duration::from_hours(1);
    story.rig.aws.configure(|options| options.initial = initial);
    story.step().await.unwrap();
    story.step().await.unwrap();
    for _ in 0..3 {
        let action = Action::DescribeClassic;
        story.rig.aws.fail_next(action, "LoadBalancerNotFound");
        story.rig.nodes.pop();
        story.call().await.unwrap();
        assert!(story.shows_classic(), "{}", story.host());
        assert_eq!(story.state(), "started");
        // It is not left out, either.
        assert_eq!(story.members().0, Some(story.rig.nodes.len()));
        story.rig.nodes.push(node(&story.rig.world.nodes[2]));
        story.call().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_classic_one_publishes_no_new_one_that_cannot_serve() {
    let mut story = Move::requested().await;
    let initial = Duration::from_hours(1);
    story.rig.aws.configure(|options| options.initial = initial);
    story.step().await.unwrap();
    story.step().await.unwrap();
    let host = story.host().to_owned();
    story.delete_classic_by_hand().await;
    // The Service is looked at like any other afterwards, by the host name that it shows.
    story.ensure().await.unwrap();
    assert_eq!((story.state(), story.host()), ("", &*host));
    story.ensure().await.unwrap();
    assert!(story.shows_network(), "{}", story.host());
}

#[tokio::test(start_paused = true)]
async fn the_rules_for_a_given_group_go_whoever_deletes_the_classic_one() {
    for is_back in [false, true] {
        let rig = Fixture::configured(3, Settings::default());
        let given = rig.aws.security_group(&rig.world.vpc, "given", &[]);
        let web = with(service("web", &[80, 443]), "security-groups", &given);
        let host = made_by_upstream(&rig, &web, &[0, 1, 2]).await;
        let web = with(with(showing(&web, &host), "type", "nlb"), "move-to", "nlb");
        let mut story = Move { rig, web, waited: Duration::ZERO };
        story.until("switched").await;
        assert!(story.admits(&given));
        story.delete_classic_by_hand().await;
        if is_back {
            story.drop_annotation("move-to");
        }
        let mut story = story.restart();
        story.ensure().await.unwrap();
        assert_eq!(story.state(), "");
        assert!(!story.admits(&given), "{is_back}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_asks_to_keep_its_load_balancer_in_a_move_is_told_what_helps() {
    let mut story = Move::switched().await;
    let retain = ANNOTATION_RETAIN;
    story.web.annotations.insert(retain.into(), "true".into());
    let kept = reference(&story.web);
    let op = story.rig.op();
    let error = story.rig.balancers.retain(&op, &kept).await.unwrap_err();
    let name = story.rig.aws.classics()[0].name.clone();
    let advice = format!("delete classic load balancer {name} in AWS");
    assert!(error.to_string().contains(&advice), "{error}");
    // It does.
    story.delete_classic_by_hand().await;
    story.rig.balancers.retain(&op, &kept).await.unwrap();
    assert_eq!(story.networks(), 1);
}
