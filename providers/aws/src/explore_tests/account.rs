//! An account with things of others in it.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
    time::Duration,
};

use ccm_core::{k8s::NodeView, provider::Op, runtime::events::WallClock};
use ccm_testkit::explore::ScenarioRun;
use ipnet::IpNet;
use jiff::Timestamp;

use super::{
    faulty_transport::FaultyTransport,
    mutants::{Bug, MutantTransport},
};
use crate::{
    api::{
        InstanceId, SecurityGroupId, Tags, TargetGroupArn,
        ec2::{
            AuthorizeSecurityGroupIngress, CreateRoute, CreateSecurityGroup, RouteTarget, Rule,
            RuleSource,
        },
        elb::{
            CreateTargetGroup, ElbProtocol, HealthCheck, HealthPort, HealthProtocol, TargetType,
        },
    },
    client::Client,
    config::{AnnotationDialect, DefaultType, Settings},
    fake::{self, AccountSnapshot, FakeAws, FakeOptions},
    lb::{names, security_groups::MANAGED_DESCRIPTION, tests::fixture::node},
    provider::AwsProvider,
    scope::Scope,
};

/// Longest time that a call of the framework takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time of day when an account is made.
const START: Timestamp = Timestamp::constant(1_767_225_600, 0);
/// Network of somebody else in the cluster's route table.
pub(super) static THEIR_NETWORK: LazyLock<IpNet> =
    LazyLock::new(|| "10.99.0.0/24".parse().expect("a network"));

/// Tells what must hold at every moment and does not; nothing where all is well.
pub(super) type Watch = Box<dyn Fn(&FakeAws) -> Option<String> + Send + Sync>;

/// What is looked at after each change.
#[derive(Default)]
pub(super) struct InvariantChecker {
    /// Things of others as they are to stay.
    foreign: Option<AccountSnapshot>,
    /// Their IDs, which no change names.
    ids: Vec<Box<str>>,
    /// Of others within what is the cluster's.
    within: Option<Watch>,
    pub(super) watch: Option<Watch>,
    /// What was seen first that must not be.
    pub(super) seen: Option<String>,
}

impl InvariantChecker {
    /// Looks at what a change did.
    pub(super) fn inspect(&mut self, aws: &FakeAws, call: &str) {
        if self.seen.is_some() {
            return;
        }
        let touched = self
            .ids
            .iter()
            .find(|id| call.contains(&***id))
            .map(|id| format!("{id} is somebody else's"));
        let wrong = touched.or_else(|| {
            self.within
                .iter()
                .chain(&self.watch)
                .find_map(|watch| watch(aws))
        });
        self.seen = wrong.map(|wrong| format!("after {call}: {wrong}"));
    }

    /// Notes that the IAM documents deny a call.
    pub(super) fn denied(&mut self, call: &str) {
        let seen = || format!("the IAM documents deny {call}");
        self.seen.get_or_insert_with(seen);
    }

    /// Tells what became of things of others.
    fn changed(&self, now: &AccountSnapshot) -> Option<String> {
        let foreign = self.foreign.as_ref()?;
        let now = now.only(|name| foreign.objects().contains(&name));
        (now != *foreign)
            .then(|| format!("somebody else's thing is changed:\n{}", foreign.diff(&now)))
    }
}

/// An account with a cluster in it.
pub(super) struct Account {
    pub(super) place: fake::FakeCluster,
    pub(super) nodes: Vec<Arc<NodeView>>,
    pub(super) journey: Arc<ScenarioRun>,
    pub(super) lane: Arc<FaultyTransport>,
    settings: Settings,
    bug: Option<Bug>,
    /// The same for all processes.
    clock: WallClock,
    /// How it is before anything was asked for.
    pub(super) empty: AccountSnapshot,
}

impl Account {
    /// An account with a cluster that makes network load balancers and reads all annotations.
    pub(super) async fn new(
        journey: &Arc<ScenarioRun>,
        knobs: fn(&mut FakeOptions),
        settings: Settings,
        bug: Option<Bug>,
        nodes: usize,
    ) -> anyhow::Result<Self> {
        let settings = Settings {
            default_type: DefaultType::Nlb,
            annotation_dialect: AnnotationDialect::Extended,
            ..settings
        };
        Self::exactly(journey, knobs, settings, bug, nodes).await
    }

    /// An account with a cluster that has exactly these settings.
    pub(super) async fn exactly(
        journey: &Arc<ScenarioRun>,
        knobs: fn(&mut FakeOptions),
        settings: Settings,
        bug: Option<Bug>,
        nodes: usize,
    ) -> anyhow::Result<Self> {
        let place = fake::FakeCluster::small(nodes);
        for id in place.nodes.iter().take(1) {
            for ip in super::service_driver::PODS {
                place.aws.assign_ip(id, ip);
            }
        }
        for (subnet, number) in place.public.iter().zip(0..) {
            place
                .aws
                .add_ipv6(subnet, &format!("2001:db8:0:{number}::/64"));
        }
        // Those that cases name.
        (0..3).for_each(|_| drop(place.aws.elastic_ip()));
        (0..2).for_each(|_| drop(place.aws.certificate()));
        let guard = foreign(&place).await?;
        place.aws.configure(knobs);
        place.aws.reset_calls();
        // The documents deny some of the planted bugs, which others have to find.
        let aws = place.aws.clone();
        let lane = FaultyTransport::new(aws, journey.clone(), guard, bug.is_none());
        let lane = Arc::new(lane);
        let nodes = place.nodes.iter().map(node).collect();
        let empty = place.aws.snapshot();
        Ok(Self {
            place,
            nodes,
            journey: journey.clone(),
            lane,
            settings,
            bug,
            clock: WallClock::tokio_from(START),
            empty,
        })
    }

    /// Makes a process, which knows nothing.
    pub(super) fn process(&self) -> Arc<AwsProvider> {
        Arc::new(AwsProvider::new(self.scope()).with_clock(self.clock.clone()))
    }

    pub(super) fn scope(&self) -> Scope {
        let client = match self.bug {
            Some(bug) => Client::new(Arc::new(MutantTransport::new(bug, self.lane.clone()))),
            None => Client::new(self.lane.clone()),
        };
        Scope { client, ..self.place.scope(self.settings.clone()) }
    }

    /// Has something hold at every moment from now on.
    pub(super) fn watch(&self, watch: Watch) {
        self.lane.guard(|guard| guard.watch = Some(watch));
    }

    /// Ends the watch, and returns everything that there is.
    ///
    /// # Errors
    /// What happened meanwhile that must not.
    pub(super) fn describe(&self) -> anyhow::Result<AccountSnapshot> {
        let (mut seen, now) = (None, self.place.aws.snapshot());
        self.lane.guard(|guard| {
            (guard.watch, seen) = (None, guard.seen.take().or_else(|| guard.changed(&now)));
        });
        match seen {
            Some(seen) => anyhow::bail!("{seen}"),
            None => Ok(now),
        }
    }
}

/// Makes the operation of one call, as the framework does.
pub(super) fn op(world: &Account, pending_for: Duration) -> Op {
    world
        .place
        .op()
        .with_deadline(tokio::time::Instant::now() + PATIENCE)
        .with_pending_for(pending_for)
}

/// Tags of a Service of another cluster.
const THEIR_TAGS: [(&str, &str); 2] =
    [("kubernetes.io/cluster/theirs", "owned"), ("kubernetes.io/service-name", "default/web")];

fn tags(pairs: &[(&str, &str)]) -> Tags {
    pairs
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

/// A rule that admits a network of somebody else to a port.
fn foreign_rule(port: i32, description: &str) -> Rule {
    Rule {
        protocol: "tcp".into(),
        ports: Some((port, port)),
        source: RuleSource::Cidr("192.0.2.0/24".parse().expect("a network")),
        description: description.into(),
    }
}

fn admit(id: SecurityGroupId, rule: Rule) -> AuthorizeSecurityGroupIngress {
    AuthorizeSecurityGroupIngress { id, rules: vec![rule] }
}

/// Makes things that are not the cluster's, as close to its own as they come.
async fn foreign(place: &fake::FakeCluster) -> anyhow::Result<InvariantChecker> {
    let aws = &place.aws;
    let (before, mut ids) = (aws.snapshot(), Vec::<Box<str>>::new());
    for (name, pairs) in [("a7468656972730000000000000000", &THEIR_TAGS[..]), ("by-hand", &[][..])]
    {
        ids.push(
            aws.foreign_balancer(name, "network", &place.public, pairs)
                .as_str()
                .into(),
        );
    }
    for (name, pairs) in
        [("k8s-default-web-0123456789", &THEIR_TAGS[..]), ("k8s-default-web-byhand0000", &[][..])]
    {
        ids.push(
            aws.ask(target_group(name, place, tags(pairs)))
                .await?
                .arn
                .as_str()
                .into(),
        );
    }
    let owner = crate::lb::model::ServiceKey {
        namespace: "default".into(),
        name: "web".into(),
        uid: "theirs".into(),
    };
    let group = CreateSecurityGroup {
        name: names::security_group("theirs", &owner),
        description: MANAGED_DESCRIPTION.into(),
        vpc: place.vpc.clone(),
        tags: tags(&THEIR_TAGS),
    };
    let group = aws.ask(group).await?;
    ids.push((&*group).into());
    let named = format!(
        "kubernetes.io/rule/nlb/client={}",
        names::load_balancer(&super::service_driver::uid("web"))
    );
    aws.ask(admit(group, foreign_rule(80, &named))).await?;
    let ssh = foreign_rule(22, "ssh");
    aws.ask(admit(place.node_group.clone(), ssh.clone()))
        .await?;
    let appliance = aws
        .instance(&place.private[0])
        .group(&place.node_group)
        .tag("Name", "appliance")
        .launch();
    let (table, target) = (place.table.clone(), RouteTarget::Instance(appliance.clone()));
    aws.ask(CreateRoute { table, destination: *THEIR_NETWORK, target })
        .await?;
    aws.gateway_route(&place.table, "10.98.0.0/24", "vgw-1");
    ids.push((&*appliance).into());
    let foreign = aws
        .snapshot()
        .only(|name| !before.objects().contains(&name));
    Ok(InvariantChecker {
        foreign: Some(foreign),
        ids,
        within: Some(within(place, ssh, appliance)),
        ..InvariantChecker::default()
    })
}

fn target_group(name: &str, place: &fake::FakeCluster, tags: Tags) -> CreateTargetGroup {
    CreateTargetGroup {
        name: name.into(),
        protocol: ElbProtocol::Tcp,
        port: 30080.try_into().expect("not zero"),
        vpc: place.vpc.clone(),
        target_type: TargetType::Instance,
        ip_address_type: None,
        health_check: HealthCheck {
            protocol: HealthProtocol::Tcp,
            port: HealthPort::Traffic,
            path: None,
            matcher: None,
            interval: 30,
            timeout: 10,
            healthy: 3,
            unhealthy: 3,
        },
        tags,
    }
}

fn within(place: &fake::FakeCluster, rule: Rule, to: InstanceId) -> Watch {
    let (group, table) = (place.node_group.clone(), place.table.clone());
    Box::new(move |aws| {
        if !aws.rules(&group).contains(&rule) {
            return Some("somebody else's rule is gone".to_owned());
        }
        let is_theirs = |route: &crate::api::ec2::Route| {
            route.destination == Some(*THEIR_NETWORK) && route.instance.as_ref() == Some(&to)
        };
        (!aws.routes(&table).iter().any(is_theirs))
            .then(|| "somebody else's route is gone".to_owned())
    })
}

/// Returns IDs of the targets of a group, without ports.
pub(super) fn targets(aws: &FakeAws, group: &TargetGroupArn) -> BTreeSet<String> {
    let targets = aws.targets(group).into_iter();
    targets
        .filter_map(|target| target.rsplit_once(':').map(|(id, _)| id.to_owned()))
        .collect()
}
