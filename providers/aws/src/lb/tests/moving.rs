//! Services that move from a classic to a Network Load Balancer, and back.

mod doubt;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::ServiceView,
    provider::{
        BackendKind, CloudError, Digest, ErrorKind, LoadBalancers, Progress, Rate, ReadMode,
        ServiceInterpretation,
    },
};

use super::{
    classic_upstream::made_by_upstream,
    fixture::{Fixture, node, service, showing, with},
};
use crate::{
    api::Action,
    config::{AnnotationDialect, DefaultType, Limits, Settings},
    fake::{AccountSnapshot, Crash},
    lb::{spec::annotations::PREFIX, status},
};

/// A Service as the API server has it, and the process that serves it.
struct Move {
    rig: Fixture,
    web: ServiceView,
    /// Time since the Service has been pending.
    waited: Duration,
}

impl Move {
    /// A Service with upstream's classic load balancer that asks for a Network Load Balancer, but not to
    /// be moved.
    async fn with(settings: Settings, annotations: &[(&str, &str)]) -> Self {
        let rig = Fixture::configured(3, settings);
        let mut web = service("web", &[80, 443]);
        for (suffix, value) in annotations {
            web = with(web, suffix, value);
        }
        let host = made_by_upstream(&rig, &web, &[0, 1, 2]).await;
        let web = with(showing(&web, &host), "type", "nlb");
        Self { rig, web, waited: Duration::ZERO }
    }

    /// The same, and it asks to be moved.
    async fn requested() -> Self {
        let mut story = Self::with(Settings::default(), &[]).await;
        story.annotate("move-to", "nlb");
        story
    }

    /// The same, and its status has just been switched.
    async fn switched() -> Self {
        let mut story = Self::requested().await;
        story.until("switched").await;
        story
    }

    fn annotate(&mut self, suffix: &str, value: &str) {
        self.web = with(self.web.clone(), suffix, value);
    }

    fn drop_annotation(&mut self, suffix: &str) {
        self.web.annotations.remove(&*format!("{PREFIX}{suffix}"));
    }

    fn state(&self) -> &str {
        let key = format!("{PREFIX}move-state");
        self.web.annotations.get(&*key).map_or("", |text| &**text)
    }

    fn host(&self) -> &str {
        status::hostname(&self.web.status).unwrap()
    }

    fn shows_classic(&self) -> bool {
        let classics = self.rig.aws.classics();
        classics.iter().any(|found| *found.dns_name == *self.host())
    }

    fn shows_network(&self) -> bool {
        let all = self.rig.aws.load_balancers();
        all.iter().any(|found| *found.dns_name == *self.host())
    }

    /// Ensures once, and writes status and annotations as the framework does. A dead process writes
    /// nothing.
    async fn call(&mut self) -> Result<Progress, CloudError> {
        let result = self.ensure().await;
        self.assert_served();
        result
    }

    /// The same where the load balancer of the status may not exist.
    async fn ensure(&mut self) -> Result<Progress, CloudError> {
        let op = self.rig.op().with_pending_for(self.waited);
        let spec = self.rig.spec(&self.web);
        let outcome = self.rig.balancers.ensure(&op, &spec, ReadMode::Fresh).await;
        if !self.rig.aws.is_dead() {
            self.web.status = outcome.status.unwrap_or_else(|| self.web.status.clone());
            for (key, value) in outcome.annotations {
                let key: Arc<str> = key.into();
                match value {
                    Some(value) => drop(self.web.annotations.insert(key, value.into())),
                    None => drop(self.web.annotations.remove(&key)),
                }
            }
        }
        outcome.result
    }

    /// Ensures once, and waits as long as it says.
    async fn step(&mut self) -> Result<Progress, CloudError> {
        let result = self.call().await;
        let after = match &result {
            Ok(Progress::Done) => {
                self.waited = Duration::ZERO;
                return result;
            }
            Ok(Progress::Pending { after, .. }) => *after,
            Err(_) => Duration::from_secs(5),
        };
        tokio::time::sleep(after).await;
        self.waited += after;
        result
    }

    /// Goes on until the state has this word, without the wait after that.
    async fn until(&mut self, word: &str) {
        for _ in 0..20 {
            let after = match self.call().await {
                _ if self.state().starts_with(word) => return,
                Ok(Progress::Pending { after, .. }) => after,
                result => panic!("{result:?}"),
            };
            tokio::time::sleep(after).await;
            self.waited += after;
        }
        panic!("it stays {:?}", self.state());
    }

    /// Goes on until nothing is pending, or the process is dead.
    async fn finish(&mut self) {
        for _ in 0..60 {
            if matches!(self.step().await, Ok(Progress::Done)) || self.rig.aws.is_dead() {
                return;
            }
        }
        let last = self.call().await;
        panic!("the move does not end: {:?}, {last:?}", self.state());
    }

    /// The load balancer of the status exists and has members.
    fn assert_served(&self) {
        let aws = &self.rig.aws;
        let host = self.host();
        if let Some(classic) = aws.classics().iter().find(|found| *found.dns_name == *host) {
            assert!(!classic.instances.is_empty());
            return;
        }
        let all = aws.load_balancers();
        let network = all.iter().find(|found| *found.dns_name == *host);
        let network = network.unwrap_or_else(|| panic!("{host} is published and does not exist"));
        let listeners = aws.listeners(&network.arn);
        assert_eq!(listeners.len(), 2);
        for listener in listeners {
            assert!(!aws.targets(&listener.target_group.unwrap()).is_empty());
        }
    }

    /// The numbers of members of both load balancers.
    fn members(&self) -> (Option<usize>, Vec<usize>) {
        let aws = &self.rig.aws;
        let classics = aws.classics();
        let groups = aws.target_groups();
        let targets = |arn| {
            let targets = aws.targets(arn);
            targets.iter().filter(|it| !it.contains("draining")).count()
        };
        (
            classics.first().map(|classic| classic.instances.len()),
            groups.iter().map(|group| targets(&group.arn)).collect(),
        )
    }

    fn set_health(&self, to: &str) {
        for group in self.rig.aws.target_groups() {
            for id in &self.rig.world.nodes {
                self.rig
                    .aws
                    .set_health(&group.arn, id, to, "ordered by the test");
            }
        }
    }

    fn restart(self) -> Self {
        Self { rig: self.rig.restart(), ..self }
    }
}

fn same(found: &AccountSnapshot, expected: &AccountSnapshot, what: &str) {
    assert!(found == expected, "{what}:\n{}", expected.diff(found));
}

/// The account of a Service that had a Network Load Balancer from the start.
async fn only_network(settings: Settings, annotations: &[(&str, &str)]) -> AccountSnapshot {
    let rig = Fixture::configured(3, settings);
    let mut web = with(service("web", &[80, 443]), "type", "nlb");
    for (suffix, value) in annotations {
        web = with(web, suffix, value);
    }
    rig.settle(&web).await;
    rig.aws.snapshot()
}

async fn only_classic() -> AccountSnapshot {
    Move::with(Settings::default(), &[])
        .await
        .rig
        .aws
        .snapshot()
}

fn nothing() -> AccountSnapshot {
    Fixture::configured(3, Settings::default()).aws.snapshot()
}

#[tokio::test(start_paused = true)]
async fn without_the_annotation_nothing_moves() {
    let mut story = Move::with(Settings::default(), &[]).await;
    let before = story.rig.aws.snapshot();
    assert_eq!(story.call().await.unwrap(), Progress::Done);
    assert_eq!(story.rig.reasons(), ["ClassicLoadBalancer"]);
    same(&story.rig.aws.snapshot(), &before, "type: nlb alone");
    // One that asks for a classic load balancer is told.
    story.drop_annotation("type");
    story.annotate("move-to", "nlb");
    assert_eq!(story.call().await.unwrap(), Progress::Done);
    same(&story.rig.aws.snapshot(), &before, "move-to alone");
    let notices = story.rig.balancers.notices(&story.web);
    assert!(notices.iter().any(|it| it.reason == "UnusedAnnotation"), "{notices:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_reservation_of_capacity_does_not_hold_the_move() {
    let mut story = Move::requested().await;
    story.annotate("annotation-dialect", "extended");
    story.annotate("minimum-load-balancer-capacity", "CapacityUnits=3000");
    let write = Action::ModifyCapacityReservation;
    story.rig.aws.fail_always(write, "InsufficientCapacity");
    story.finish().await;
    assert!(story.shows_network() && story.rig.aws.classics().is_empty());
    assert!(story.rig.aws.calls(write) > 0);
}

#[tokio::test(start_paused = true)]
async fn the_status_waits_for_healthy_targets_while_both_follow() {
    let mut story = Move::requested().await;
    let classic_host = story.host().to_owned();
    story
        .rig
        .aws
        .configure(|options| options.initial = Duration::from_secs(60));
    story.rig.aws.reset_calls();
    // Shadow mode tells.
    let planned: Vec<_> = story
        .rig
        .plan_in_shadow(&story.web)
        .await
        .into_iter()
        .map(|change| change.operation)
        .collect();
    for operation in ["CreateLoadBalancer", "CreateListener", "move_load_balancer"] {
        assert!(planned.iter().any(|it| **it == *operation), "{operation}: {planned:?}");
    }
    // Nothing is made before it is recorded.
    story.step().await.unwrap();
    assert_eq!((story.state(), story.rig.aws.writes()), ("started", 0));
    // The status waits for healthy targets. Both follow the nodes.
    let waiting = story.call().await.unwrap();
    let Progress::Pending { reason, .. } = &waiting else {
        panic!("{waiting:?}")
    };
    assert!(reason.contains("none of the 3 targets"), "{reason}");
    assert_eq!(story.members(), (Some(3), vec![3, 3]));
    assert_eq!(story.host(), classic_host);
    story.rig.nodes.pop();
    let outcome = story.rig.update(&story.web).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(story.members(), (Some(2), vec![2, 2]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    // The status switches, and the drain time begins.
    let drained = story.call().await.unwrap();
    assert!(story.shows_network(), "{}", story.host());
    assert!(story.state().starts_with("switched 2026-01-01T00:01:"), "{}", story.state());
    let Progress::Pending { after, .. } = drained else {
        panic!("{drained:?}")
    };
    assert_eq!(after, Duration::from_secs(600));
    let planned = story.rig.plan(&story.web).await.unwrap();
    let operations: Vec<_> = planned.iter().map(|change| &*change.operation).collect();
    assert_eq!(operations, ["move_load_balancer"], "{planned:?}");
}

#[tokio::test(start_paused = true)]
async fn both_serve_until_the_drain_time_is_over_and_the_new_one_is_healthy() {
    let mut story = Move::switched().await;
    story.rig.nodes.pop();
    story.call().await.unwrap();
    // Another process goes on counting, and adds members to both.
    tokio::time::sleep(Duration::from_secs(500)).await;
    let mut story = story.restart();
    story.rig.nodes.push(node(&story.rig.world.nodes[2]));
    let rest = story.call().await.unwrap();
    let Progress::Pending { after, .. } = rest else {
        panic!("{rest:?}")
    };
    assert!((90..=101).contains(&after.as_secs()), "{after:?}");
    assert_eq!(story.members(), (Some(3), vec![3, 3]));
    // Doubt keeps the classic one.
    story.set_health("unhealthy");
    tokio::time::sleep(Duration::from_secs(200)).await;
    for _ in 0..40 {
        story.step().await.unwrap();
    }
    assert_eq!(story.rig.aws.classics().len(), 1);
    let warnings = |story: &Move| {
        let reasons = story.rig.reasons();
        reasons
            .iter()
            .filter(|it| **it == "LoadBalancerMoveWaiting")
            .count()
    };
    assert_eq!(warnings(&story), 1);
    story.set_health("healthy");
    story.finish().await;
    assert_eq!((story.state(), story.rig.aws.classics().len()), ("", 0));
    assert!(story.rig.reasons().contains(&"LoadBalancerMoved"));
}

#[tokio::test(start_paused = true)]
async fn what_is_left_is_what_a_new_service_would_have() {
    let managed = || Settings { managed_security_groups: true, ..Settings::default() };
    let given = {
        let rig = Fixture::configured(3, Settings::default());
        rig.aws.security_group(&rig.world.vpc, "given", &[])
    };
    let cases: [(Settings, Vec<(&str, &str)>); 3] = [
        (Settings::default(), vec![("move-drain-seconds", "60")]),
        (managed(), vec![("connection-idle-timeout", "60")]),
        (managed(), vec![("security-groups", &given)]),
    ];
    for (settings, annotations) in cases {
        let is_given = annotations[0].0 == "security-groups";
        let prepare = |rig: &Fixture| {
            if is_given {
                let id = rig.aws.security_group(&rig.world.vpc, "given", &[]);
                assert_eq!(id, given);
            }
        };
        // From the start.
        let fresh = {
            let rig = Fixture::configured(3, settings.clone());
            prepare(&rig);
            let mut web = with(service("web", &[80, 443]), "type", "nlb");
            for (suffix, value) in &annotations {
                web = with(web, suffix, value);
            }
            rig.settle(&web).await;
            rig.aws.snapshot()
        };
        // Moved.
        let rig = Fixture::configured(3, settings);
        prepare(&rig);
        let mut web = service("web", &[80, 443]);
        for (suffix, value) in &annotations {
            web = with(web, suffix, value);
        }
        let host = made_by_upstream(&rig, &web, &[0, 1, 2]).await;
        let web = with(with(showing(&web, &host), "type", "nlb"), "move-to", "nlb");
        let mut story = Move { rig, web, waited: Duration::ZERO };
        story.finish().await;
        same(&story.rig.aws.snapshot(), &fresh, annotations[0].0);
        let story = story.restart();
        assert_eq!(story.rig.plan(&story.web).await.unwrap(), [], "{}", annotations[0].0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_way_back_ends_where_it_began() {
    let classic = only_classic().await;
    for suffixes in [&["move-to"][..], &["move-to", "type"]] {
        // Before the switch, nobody knows the new host name.
        let mut story = Move::requested().await;
        story
            .rig
            .aws
            .configure(|options| options.initial = Duration::from_hours(1));
        story.step().await.unwrap();
        story.step().await.unwrap();
        assert_eq!(story.rig.aws.load_balancers().len(), 1);
        for suffix in suffixes {
            story.drop_annotation(suffix);
        }
        let mut story = story.restart();
        story.call().await.unwrap();
        assert_eq!(story.rig.aws.load_balancers(), []);
        story.finish().await;
        same(&story.rig.aws.snapshot(), &classic, "before the switch");
        // After it, both are drained.
        let mut story = Move::switched().await;
        assert!(story.shows_network());
        for suffix in suffixes {
            story.drop_annotation(suffix);
        }
        let mut story = story.restart();
        let returned = story.call().await.unwrap();
        assert!(matches!(returned, Progress::Pending { .. }), "{returned:?}");
        assert!(story.shows_classic() && story.state().starts_with("returned"));
        story.rig.nodes.pop();
        story.call().await.unwrap();
        assert_eq!(story.members(), (Some(2), vec![2, 2]));
        story.rig.nodes.push(node(&story.rig.world.nodes[2]));
        story.call().await.unwrap();
        tokio::time::sleep(Duration::from_secs(590)).await;
        story.call().await.unwrap();
        assert_eq!(story.rig.aws.load_balancers().len(), 1);
        story.finish().await;
        same(&story.rig.aws.snapshot(), &classic, "after the switch");
        assert_eq!(story.state(), "");
    }
}

#[tokio::test(start_paused = true)]
async fn the_way_back_does_not_wait_for_the_load_balancer_that_is_left() {
    let mut story = Move::switched().await;
    story.drop_annotation("move-to");
    let mut story = story.restart_blind(Action::DescribeTargetHealth);
    story.call().await.unwrap_err();
    assert!(story.shows_classic() && story.state().starts_with("returned"));
    story.rig.aws.clear_faults();
    story.finish().await;
    same(&story.rig.aws.snapshot(), &only_classic().await, "back");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_changes_its_mind_twice_is_moved() {
    let mut story = Move::switched().await;
    story.drop_annotation("move-to");
    story.call().await.unwrap();
    story.annotate("move-to", "nlb");
    story.call().await.unwrap();
    assert!(story.shows_network() && story.state().starts_with("switched"));
    tokio::time::sleep(Duration::from_secs(599)).await;
    story.call().await.unwrap();
    assert_eq!(story.rig.aws.classics().len(), 1, "the drain time begins anew");
    story.finish().await;
    same(&story.rig.aws.snapshot(), &only_network(Settings::default(), &[]).await, "moved");
}

/// Runs a move or the way back with a process that dies at a write, or loses its answer, and then goes
/// on. Returns false if there are not so many writes.
async fn interrupted(is_forward: bool, write: usize, crash: Crash, dies: bool) -> Option<Move> {
    let mut story = if is_forward {
        Move::requested().await
    } else {
        let mut story = Move::switched().await;
        story.drop_annotation("move-to");
        story
    };
    if dies {
        story.rig.aws.crash_at_write(write, crash);
    } else {
        story.rig.aws.fail_nth_write(write, crash);
    }
    story.rig.aws.reset_calls();
    story.finish().await;
    (story.rig.aws.writes() >= write).then(|| story.restart())
}

#[tokio::test(start_paused = true)]
async fn a_death_at_each_request_leaves_one_that_serves_and_the_move_goes_on() {
    let (network, classic) = (only_network(Settings::default(), &[]).await, only_classic().await);
    let nothing = nothing();
    for (is_forward, expected, least) in [(true, &network, 10), (false, &classic, 3)] {
        for crash in [Crash::Before, Crash::After] {
            for dies in [true, false] {
                let mut write = 1;
                while let Some(mut story) = interrupted(is_forward, write, crash, dies).await {
                    let what = format!("{is_forward} {crash:?} {write} {dies}");
                    story.finish().await;
                    same(&story.rig.aws.snapshot(), expected, &what);
                    assert_eq!(story.state(), "", "{what}");
                    // The Service goes instead.
                    let story = interrupted(is_forward, write, crash, dies).await.unwrap();
                    story.rig.remove(&story.web).await;
                    same(&story.rig.aws.snapshot(), &nothing, &format!("deletion: {what}"));
                    write += 1;
                }
                assert!(write > least, "{is_forward}: only {write} writes");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_in_each_phase_leaves_nothing() {
    let nothing = nothing();
    for steps in 0..6 {
        for is_back in [false, true] {
            let mut story = Move::requested().await;
            for _ in 0..steps {
                drop(story.call().await);
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            if is_back {
                story.drop_annotation("move-to");
                story.drop_annotation("type");
                drop(story.call().await);
            }
            let story = story.restart();
            story.rig.remove(&story.web).await;
            same(&story.rig.aws.snapshot(), &nothing, &format!("{steps} {is_back}"));
        }
    }
    let stale = Move::requested().await;
    let key: Box<str> = format!("{PREFIX}move-state").into();
    let reference = super::fixture::reference(&stale.web);
    assert_eq!(stale.rig.balancers.stale_annotations(&reference), [key]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_no_network_load_balancer_can_serve_is_refused_and_both_follow() {
    // From the start: only the classic one exists.
    let mut story = Move::requested().await;
    story.annotate("extra-security-groups", "sg-1");
    story.rig.nodes.pop();
    let error = story.call().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("extra-security-groups"), "{error}");
    assert_eq!((story.state(), story.members()), ("", (Some(2), Vec::new())));
    assert!(story.rig.plan(&story.web).await.is_err());
    // In the middle: nothing is deleted although the drain time is over.
    let mut story = Move::switched().await;
    story.annotate("move-to", "classic");
    tokio::time::sleep(Duration::from_secs(700)).await;
    story.rig.nodes.pop();
    let error = story.call().await.unwrap_err();
    assert!(error.to_string().contains("move-to"), "{error}");
    assert_eq!(story.members(), (Some(2), vec![2, 2]));
    story.rig.nodes.pop();
    let outcome = story.rig.update(&story.web).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(story.members(), (Some(1), vec![1, 1]));
    assert!(story.shows_network());
    // The source ranges may be what is invalid: nodes admit nothing new but the classic one's group.
    let rig = &mut story.rig;
    let owned = [("kubernetes.io/cluster/test", "owned")];
    let group = rig.aws.security_group(&rig.world.vpc, "new-nodes", &owned);
    let id = rig
        .aws
        .instance(&rig.world.private[0])
        .group(&group)
        .launch();
    rig.nodes.push(node(&id));
    let outcome = story.rig.update(&story.web).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(story.members(), (Some(2), vec![2, 2]));
    assert_eq!(story.rig.aws.rules(&group).len(), 1);
    // The framework must call, although the Service is invalid.
    let interpretation = story.rig.balancers.interpret(&story.web);
    assert!(matches!(interpretation, ServiceInterpretation::Valid { .. }), "{interpretation:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_as_targets_are_refused_because_the_classic_one_would_not_follow() {
    let settings = Settings {
        annotation_dialect: AnnotationDialect::Extended,
        ..Settings::default()
    };
    let mut story = Move::with(settings, &[]).await;
    story.annotate("move-to", "nlb");
    story.annotate("nlb-target-type", "ip");
    story.rig.nodes.pop();
    let interpretation = story.rig.balancers.interpret(&story.web);
    let ServiceInterpretation::Valid { backends: BackendKind::Nodes(_), .. } = interpretation
    else {
        panic!("{interpretation:?}")
    };
    let error = story.call().await.unwrap_err();
    assert!(error.to_string().contains("move-to"), "{error}");
    assert_eq!(story.members(), (Some(2), Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_changes_no_status() {
    let mut story = Move::switched().await;
    for action in [Action::DescribeLoadBalancers, Action::DescribeTargetHealth] {
        story.rig.aws.fail_always(action, "ServiceUnavailable");
        let mut blind = story.restart_blind(action);
        tokio::time::sleep(Duration::from_secs(700)).await;
        blind.call().await.unwrap_err();
        assert!(blind.shows_network(), "{action:?}");
        assert_eq!(blind.rig.aws.classics().len(), 1, "{action:?}");
        blind.rig.aws.clear_faults();
        story = blind;
    }
    // Our own rate limit stops the reads somewhere.
    for burst in 1..=8 {
        let story = Move::switched().await;
        let limits = Limits {
            elb_read: Rate { per_second: 0.001, burst },
            ..Limits::default()
        };
        let mut limited = Move { rig: story.rig.restart_limited(&limits), ..story };
        limited.call().await.unwrap();
        assert!(limited.shows_network(), "{burst}: {}", limited.host());
    }
    // The classic one cannot be read: it is not deleted, and the new one follows.
    story
        .rig
        .aws
        .fail_always(Action::DescribeClassic, "ServiceUnavailable");
    story.rig.nodes.pop();
    story.call().await.unwrap_err();
    assert_eq!(story.members(), (Some(3), vec![2, 2]));
    story.rig.aws.clear_faults();
    story.finish().await;
    assert_eq!(story.rig.aws.classics(), []);
}

impl Move {
    /// Another process, while an action fails.
    fn restart_blind(self, action: Action) -> Self {
        let story = self.restart();
        story.rig.aws.fail_always(action, "ServiceUnavailable");
        story
    }
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_deletion_is_survived() {
    // The new load balancer goes: its clients get the old one until it is made again.
    let story = Move::switched().await;
    story
        .rig
        .aws
        .configure(|options| options.initial = Duration::from_secs(60));
    let arn = story.rig.aws.load_balancers()[0].arn.clone();
    let request = crate::api::elb::DeleteLoadBalancer { arn };
    story.rig.aws.ask(request).await.unwrap();
    let mut story = story.restart();
    story.ensure().await.unwrap();
    assert!(story.shows_classic(), "{}", story.host());
    assert_eq!(story.rig.aws.load_balancers().len(), 1);
    story.finish().await;
    same(&story.rig.aws.snapshot(), &only_network(Settings::default(), &[]).await, "moved");
    // The old load balancer goes: there is nothing to wait for, in either direction.
    for suffix in ["", "move-to"] {
        let mut story = Move::requested().await;
        story.step().await.unwrap();
        story.step().await.unwrap();
        let name = story.rig.aws.classics()[0].name.clone();
        let request = crate::api::classic::DeleteClassic { name };
        story.rig.aws.ask(request).await.unwrap();
        story.drop_annotation(suffix);
        let mut story = story.restart();
        for _ in 0..4 {
            story.ensure().await.unwrap();
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        assert!(story.shows_network(), "{suffix}: {}", story.host());
        assert_eq!(story.state(), "");
        story.rig.remove(&story.web).await;
        same(&story.rig.aws.snapshot(), &nothing(), "deletion");
    }
}

// With the chart's configuration, a Service without type annotation is in sync until it asks.
#[tokio::test(start_paused = true)]
async fn a_service_in_sync_begins_to_move_when_it_asks() {
    let settings = Settings { default_type: DefaultType::Nlb, ..Settings::default() };
    let mut story = Move::with(settings, &[]).await;
    story.drop_annotation("type");
    assert_eq!(story.call().await.unwrap(), Progress::Done);
    let digest = |web: &ServiceView| -> Digest {
        match story.rig.balancers.interpret(web) {
            ServiceInterpretation::Valid { digest, .. } => digest,
            other => panic!("{other:?}"),
        }
    };
    let asking = with(story.web.clone(), "move-to", "nlb");
    assert_ne!(digest(&story.web), digest(&asking), "the framework calls");
    let longer = with(asking.clone(), "move-drain-seconds", "900");
    assert_ne!(digest(&asking), digest(&longer));
    let recorded = with(asking.clone(), "move-state", "started");
    assert_eq!(digest(&asking), digest(&recorded), "what we write calls nobody");
    let spec = story.rig.spec(&asking);
    let outcome = story
        .rig
        .balancers
        .ensure(&story.rig.op(), &spec, ReadMode::Cached)
        .await;
    assert_eq!(outcome.annotations.len(), 1, "{outcome:?}");
    // The drain time is the Service's, within bounds.
    story.web = with(asking, "move-drain-seconds", "59");
    let error = story.call().await.unwrap_err();
    assert!(error.to_string().contains("move-drain-seconds"), "{error}");
    story.annotate("move-drain-seconds", "900");
    story.until("switched").await;
    let drained = story.call().await.unwrap();
    let Progress::Pending { after, .. } = drained else {
        panic!("{drained:?}")
    };
    assert!((890..=900).contains(&after.as_secs()), "{after:?}");
    story.finish().await;
    assert!(story.shows_network());
    assert_eq!(story.rig.aws.classics(), []);
}
