//! The desired targets of a Service, and the inputs of the rules for them.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{EndpointSliceView, NodeView},
    provider::{Backends, CloudError, EventType, Op},
};

use crate::{
    api::{InstanceId, SecurityGroupId, elb::TargetType},
    client,
    lb::{
        apply::REJECTED_TARGET_RETRY,
        deps::{InstanceFacts, InstanceFitness},
        model::{DesiredLoadBalancer, Targets},
        reconcile::LoadBalancerReconciler,
        security_groups::unmanaged::unmanaged_note,
        sync_state::{LoadBalancerSyncState, ReportedUnmanaged},
        targets::{
            desired,
            pods::{self, PodTargets, RuleInputs},
        },
    },
    provider_id,
};

/// Maximum age of the information that an instance is stopped, because it may have been started
/// since. Also the maximum age of the pods' interfaces in a drift check.
pub(in crate::lb) const STOPPED_RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Targets, and the instances behind them.
pub(in crate::lb) struct ResolvedTargets {
    pub(in crate::lb) targets: Targets,
    pub(in crate::lb) instances: BTreeSet<InstanceId>,
    /// Stopped instances among them: they stay targets, and are not newly registered.
    pub(in crate::lb) stopped: BTreeSet<InstanceId>,
    /// Inputs of the rules for them.
    pub(in crate::lb) rule_inputs: RuleInputs,
    /// Target addresses without a known network interface.
    addresses_without_interface: BTreeSet<IpAddr>,
    /// What could not be read: the delay before the next try, and the reason.
    pub(in crate::lb) pending: Option<(Duration, Box<str>)>,
}

/// The instances of nodes.
pub(in crate::lb) struct NodeInstances {
    /// All that exist, or whose existence is unknown.
    pub(in crate::lb) instances: BTreeSet<InstanceId>,
    /// Stopped instances among them: where they are targets they stay, and nowhere else are they
    /// registered.
    pub(in crate::lb) stopped: BTreeSet<InstanceId>,
    /// Security groups of all of them.
    groups: BTreeSet<SecurityGroupId>,
}

impl LoadBalancerReconciler {
    /// Resolves the targets. Running instances are taken from the cache, without a request.
    pub(in crate::lb) async fn resolve_targets(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        backends: &Backends,
        max_age: Duration,
    ) -> Result<ResolvedTargets, CloudError> {
        match backends {
            Backends::Nodes(nodes) => {
                let NodeInstances { instances, stopped, groups } =
                    self.node_instances(op, nodes).await;
                let targets = desired::instance_targets(desired, &instances);
                let rule_inputs = RuleInputs { node_groups: groups, ..RuleInputs::default() };
                Ok(ResolvedTargets {
                    targets,
                    instances,
                    stopped,
                    rule_inputs,
                    addresses_without_interface: BTreeSet::new(),
                    pending: None,
                })
            }
            Backends::Endpoints(slices) => {
                let networks = self.deps.vpc.networks(op, false).await?;
                let targets = desired::ip_targets(desired, slices, &networks);
                let instances = BTreeSet::new();
                let stopped = BTreeSet::new();
                let (pods, missing, waits) = self
                    .pod_targets(op, desired, slices, &targets, max_age)
                    .await;
                let ground = RuleInputs { pods, ..RuleInputs::default() };
                Ok(ResolvedTargets {
                    targets,
                    instances,
                    stopped,
                    rule_inputs: ground,
                    addresses_without_interface: missing,
                    pending: waits,
                })
            }
        }
    }

    /// Finds the interfaces of pods that are targets, and the addresses without one. If they cannot
    /// be read now, the targets are registered nevertheless, and the read is tried again.
    async fn pod_targets(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        slices: &[Arc<EndpointSliceView>],
        targets: &Targets,
        max_age: Duration,
    ) -> (PodTargets, BTreeSet<IpAddr>, Option<(Duration, Box<str>)>) {
        if self.scope.settings.disable_security_group_ingress
            || !desired.security.manage_backend_rules
        {
            return Default::default();
        }
        let (inside, outside) = pods::addresses(targets);
        let found = self
            .deps
            .interfaces
            .find(op, &desired.owner, &inside, max_age)
            .await;
        let waits = found.failed.map(|error| {
            let after = client::rate_limit_delay(&error).unwrap_or(
                op.pending_for()
                    .clamp(REJECTED_TARGET_RETRY.0, REJECTED_TARGET_RETRY.1),
            );
            (after, format!("interfaces of pods are not known: {error}").into())
        });
        let pods = PodTargets {
            interface_groups: found.interface_groups,
            ports: pods::ports(desired, slices),
        };
        (pods, found.missing.into_iter().chain(outside).collect(), waits)
    }

    /// Reports to the owner of a Service which security groups and addresses must admit its load
    /// balancer and are not managed here: each once.
    pub(in crate::lb) fn report_unmanaged_groups(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        resolved_targets: &ResolvedTargets,
        state: &mut LoadBalancerSyncState,
    ) {
        let Some(seen) = state
            .observed
            .as_ref()
            .and_then(|observed| observed.load_balancer.as_ref())
        else {
            return;
        };
        let left = self
            .deps
            .security_groups
            .unmanaged_groups(&seen.load_balancer.name);
        let unmanaged = ReportedUnmanaged {
            groups: left.groups.clone(),
            addresses: resolved_targets.addresses_without_interface.clone(),
        };
        let reported = &state.reported_unmanaged;
        let has_new = !unmanaged.groups.is_subset(&reported.groups)
            || !unmanaged.addresses.is_subset(&reported.addresses);
        state.reported_unmanaged = unmanaged;
        if desired.target_type == TargetType::Ip && has_new {
            op.event(
                EventType::Warning,
                "PodSecurityGroupsLeftAlone",
                &unmanaged_note(&left, &resolved_targets.addresses_without_interface),
            );
        }
    }

    /// Returns the instances of nodes, except those that are proven not to exist or to be
    /// terminated. An instance in an unknown state is included: AWS rejects it if necessary. The
    /// cached state `stopped` may be outdated and is read again; if that fails the state is
    /// unknown.
    pub(in crate::lb) async fn node_instances(
        &self,
        op: &Op,
        nodes: &[Arc<NodeView>],
    ) -> NodeInstances {
        let nodes = nodes
            .iter()
            .map(|node| &**node)
            .filter(|node| desired::accepts_traffic(node));
        let mut ids: Vec<InstanceId> = provider_id::instance_ids(nodes);
        let mut facts = self.deps.instance_facts(op, &ids, Duration::MAX).await;
        let old: Vec<_> = facts
            .extract_if(|_, facts| facts.as_ref().is_some_and(InstanceFacts::stopped))
            .collect();
        if !old.is_empty() {
            let old: Vec<_> = old.into_iter().map(|(id, _)| id).collect();
            facts.extend(
                self.deps
                    .instance_facts(op, &old, STOPPED_RECHECK_INTERVAL)
                    .await,
            );
        }
        ids.retain(|id| {
            facts.get(id).is_none_or(|facts| {
                facts
                    .as_ref()
                    .is_some_and(|facts| facts.fitness != InstanceFitness::Terminated)
            })
        });
        let state = || {
            ids.iter()
                .filter_map(|id| Some((id, facts.get(id)?.as_ref()?)))
        };
        let stopped = state()
            .filter(|(_, facts)| facts.stopped())
            .map(|(id, _)| id.clone())
            .collect();
        let groups = state()
            .flat_map(|(_, facts)| facts.groups.iter().cloned())
            .collect();
        NodeInstances { stopped, groups, instances: ids.into_iter().collect() }
    }
}
