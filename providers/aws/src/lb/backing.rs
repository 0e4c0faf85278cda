//! What is behind a load balancer: the targets that a Service wants, and what is known of where they stand.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{EndpointSliceView, NodeView},
    provider::{BackendSet, CloudError, EventKind, Op},
};

use super::{
    apply::REFUSED,
    bring::Core,
    memory::Known,
    model::{Targets, Wanted},
    pods::{self, Ground, Pods},
    surroundings::{Facts, Fitness},
    targets,
};
use crate::{
    api::{InstanceId, SecurityGroupId, elb::TargetType},
    client, provider_id,
};

/// How old the word may be that an instance does not run: it may have been started since. Also how old the word about the
/// interfaces of pods may be when everything is compared.
pub(super) const RECHECK: Duration = Duration::from_secs(30);

/// Targets, and the instances behind them.
pub(super) struct Backing {
    pub(super) targets: Targets,
    pub(super) instances: BTreeSet<InstanceId>,
    /// Those of them that stay targets and do not become any.
    pub(super) stopped: BTreeSet<InstanceId>,
    /// What rules for them depend on.
    pub(super) ground: Ground,
    /// Addresses that are targets and on no interface that is known.
    missing: BTreeSet<IpAddr>,
    /// What is waited for because it could not be found out: when to try again.
    pub(super) waits: Option<(Duration, Box<str>)>,
}

/// Instances behind nodes.
pub(super) struct Standing {
    /// All that are there, or of which that is not known.
    pub(super) instances: BTreeSet<InstanceId>,
    /// Those of them that are stopped: where they are targets they stay it, and nowhere else they become one.
    pub(super) stopped: BTreeSet<InstanceId>,
    /// Security groups of all.
    groups: BTreeSet<SecurityGroupId>,
}

impl Core {
    /// Finds the targets: for instances what may run, as far as it is known without asking for those that do.
    pub(super) async fn backing(
        &self,
        op: &Op,
        wanted: &Wanted,
        backends: &BackendSet,
        max_age: Duration,
    ) -> Result<Backing, CloudError> {
        match backends {
            BackendSet::Nodes(nodes) => {
                let Standing { instances, stopped, groups } = self.standing(op, nodes).await;
                let targets = targets::instances(wanted, &instances);
                let ground = Ground { node_groups: groups, ..Ground::default() };
                Ok(Backing { targets, instances, stopped, ground, missing: BTreeSet::new(), waits: None })
            }
            BackendSet::Endpoints(slices) => {
                let networks = self.surroundings.vpc.networks(op, false).await?;
                let targets = targets::endpoints(wanted, slices, &networks);
                let (instances, stopped) = (BTreeSet::new(), BTreeSet::new());
                let (pods, missing, waits) = self.pods(op, wanted, slices, &targets, max_age).await;
                let ground = Ground { pods, ..Ground::default() };
                Ok(Backing { targets, instances, stopped, ground, missing, waits })
            }
        }
    }

    /// Finds out where pods stand that are targets, and of which addresses nobody knows. That it cannot be found out now
    /// keeps no target out: it is tried again.
    async fn pods(
        &self,
        op: &Op,
        wanted: &Wanted,
        slices: &[Arc<EndpointSliceView>],
        targets: &Targets,
        max_age: Duration,
    ) -> (Pods, BTreeSet<IpAddr>, Option<(Duration, Box<str>)>) {
        if self.scope.settings.disable_security_group_ingress || !wanted.security.manage_backend_rules {
            return Default::default();
        }
        let (inside, outside) = pods::addresses(targets);
        let found = self.surroundings.interfaces.find(op, &wanted.owner, &inside, max_age).await;
        let waits = found.failed.map(|error| {
            let after = client::turn_after(&error).unwrap_or(op.pending_for().clamp(REFUSED.0, REFUSED.1));
            (after, format!("interfaces of pods are not known: {error}").into())
        });
        let pods = Pods { footings: found.footings, ports: pods::ports(wanted, slices) };
        (pods, found.missing.into_iter().chain(outside).collect(), waits)
    }

    /// Tells the owner of a Service what has to admit its load balancer and is nobody's whose rules are looked after: once
    /// for each.
    pub(super) fn tell_left_alone(&self, op: &Op, wanted: &Wanted, backing: &Backing, known: &mut Known) {
        let Some(seen) = known.observed.as_ref().and_then(|seen| seen.balancer.as_ref()) else { return };
        let left = self.surroundings.security.left_alone(&seen.balancer.name);
        let is_news = !left.groups.is_subset(&known.told.0) || !backing.missing.is_subset(&known.told.1);
        known.told = (left.groups.clone(), backing.missing.clone());
        if wanted.target_type == TargetType::Ip && is_news {
            op.event(EventKind::Warning, "PodSecurityGroupsLeftAlone", &pods::note(&left, &backing.missing));
        }
    }

    /// Returns the instances of nodes but for those that are proved to be gone. What is not known may run: AWS tells. The
    /// word that one is stopped may be old, so that it is asked for again; without an answer it is not known.
    pub(super) async fn standing(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Standing {
        let nodes = nodes.iter().map(|node| &**node).filter(|node| targets::takes_traffic(node));
        let mut ids: Vec<InstanceId> = provider_id::known_instances(nodes);
        let mut facts = self.surroundings.facts(op, &ids, Duration::MAX).await;
        let old: Vec<_> = facts.extract_if(|_, facts| facts.as_ref().is_some_and(Facts::stopped)).collect();
        if !old.is_empty() {
            let old: Vec<_> = old.into_iter().map(|(id, _)| id).collect();
            facts.extend(self.surroundings.facts(op, &old, RECHECK).await);
        }
        ids.retain(|id| {
            facts.get(id).is_none_or(|facts| facts.as_ref().is_some_and(|facts| facts.fitness != Fitness::Gone))
        });
        let known = || ids.iter().filter_map(|id| Some((id, facts.get(id)?.as_ref()?)));
        let stopped = known().filter(|(_, facts)| facts.stopped()).map(|(id, _)| id.clone()).collect();
        let groups = known().flat_map(|(_, facts)| facts.groups.iter().cloned()).collect();
        Standing { stopped, groups, instances: ids.into_iter().collect() }
    }
}
