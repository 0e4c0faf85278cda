//! Resolves the backends of a Service to targets: nodes to instances, and endpoints to addresses.
//! Also collects the inputs of the security group rules for these targets.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{EndpointSliceView, NodeView},
    provider::{Backends, CloudError, EventType, Op},
};

use crate::{
    api::{InstanceId, SecurityGroupId, elb::TargetType},
    client,
    lb::{
        deps::{InstanceFacts, InstanceFitness},
        model::{DesiredLoadBalancer, Targets},
        reconcile::LoadBalancerReconciler,
        retry_delay::{self, Deferred},
        security_groups::unmanaged::describe_unmanaged,
        sync_state::{LoadBalancerSyncState, ReportedUnmanaged},
        targets::{
            desired,
            pods::{self, PodTargets, RuleInputs},
        },
    },
    provider_id,
};

/// Maximum age of the information that an instance is stopped. A stopped instance may be started at
/// any time. Also the maximum age of the pods' interfaces in a drift check.
pub(in crate::lb) const STOPPED_RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The desired targets of a Service, and what their registration depends on.
#[derive(Default)]
pub(in crate::lb) struct ResolvedTargets {
    pub(in crate::lb) targets: Targets,
    /// The instances among the targets; empty if pods are the targets.
    pub(in crate::lb) instances: BTreeSet<InstanceId>,
    /// The stopped ones among these instances. They stay registered, but are not newly registered.
    pub(in crate::lb) stopped: BTreeSet<InstanceId>,
    /// Inputs of the security group rules for the targets.
    pub(in crate::lb) rule_inputs: RuleInputs,
    /// Target addresses without a known network interface.
    addresses_without_interface: BTreeSet<IpAddr>,
    /// The next try if network interfaces could not be read.
    pub(in crate::lb) pending: Option<Deferred>,
}

/// The instances of nodes.
#[derive(Default)]
pub(in crate::lb) struct NodeInstances {
    /// All instances that exist, or whose existence is unknown.
    pub(in crate::lb) instances: BTreeSet<InstanceId>,
    /// The stopped ones among them. They stay registered, but are not newly registered.
    pub(in crate::lb) stopped: BTreeSet<InstanceId>,
    /// Security groups of all these instances.
    groups: BTreeSet<SecurityGroupId>,
}

impl LoadBalancerReconciler {
    /// Resolves backends to targets. Running instances are taken from the cache, without a request.
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
                    self.resolve_nodes(op, nodes).await;
                let targets = desired::instance_targets(desired, &instances);
                let rule_inputs = RuleInputs { node_groups: groups, ..RuleInputs::default() };
                Ok(ResolvedTargets {
                    targets,
                    instances,
                    stopped,
                    rule_inputs,
                    ..ResolvedTargets::default()
                })
            }
            Backends::Endpoints(slices) => {
                let networks = self.deps.vpc.networks(op).await?;
                let targets = desired::ip_targets(desired, slices, &networks);
                let pods = self
                    .resolve_pods(op, desired, slices, &targets, max_age)
                    .await;
                Ok(ResolvedTargets { targets, ..pods })
            }
        }
    }

    /// Finds the network interfaces of pods that are targets, and the addresses without interface.
    /// If the interfaces cannot be read now, the targets are registered nevertheless, and the read
    /// is tried again later.
    async fn resolve_pods(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        slices: &[Arc<EndpointSliceView>],
        targets: &Targets,
        max_age: Duration,
    ) -> ResolvedTargets {
        if self.scope.settings.disable_security_group_ingress
            || !desired.security.manage_backend_rules
        {
            return ResolvedTargets::default();
        }
        let addresses = pods::addresses(targets);
        let lookup = self
            .deps
            .interfaces
            .find(op, &desired.owner, &addresses.inside_vpc, max_age)
            .await;
        let pending = lookup.error.map(|error| Deferred {
            after: client::rate_limit_delay(&error)
                .unwrap_or_else(|| retry_delay::rejected_targets(op)),
            reason: format!("could not read the network interfaces of pods: {error}").into(),
        });
        let pods = PodTargets {
            interface_groups: lookup.interface_groups,
            ports: pods::ports(desired, slices),
        };
        let mut addresses_without_interface = lookup.missing;
        addresses_without_interface.extend(addresses.outside_vpc);
        ResolvedTargets {
            rule_inputs: RuleInputs { pods, ..RuleInputs::default() },
            addresses_without_interface,
            pending,
            ..ResolvedTargets::default()
        }
    }

    /// Emits an event if the load balancer depends on security groups or addresses that we do not
    /// manage, so that the owner of the Service can open them. Reports each of them once.
    pub(in crate::lb) fn report_unmanaged_groups(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        resolved_targets: &ResolvedTargets,
        state: &mut LoadBalancerSyncState,
    ) {
        let Some(load_balancer) = state.load_balancer() else {
            return;
        };
        let unmanaged_groups = self
            .deps
            .security_groups
            .unmanaged_groups(&load_balancer.name);
        let unmanaged = ReportedUnmanaged {
            groups: unmanaged_groups.groups.clone(),
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
                &describe_unmanaged(
                    &unmanaged_groups,
                    &resolved_targets.addresses_without_interface,
                ),
            );
        }
    }

    /// Returns the instances of nodes, except those that are known not to exist or to be
    /// terminated.
    ///
    /// Instances in an unknown state are included, because AWS rejects them if necessary. If the
    /// cache shows an instance as stopped, its state is read again; if that fails, it is unknown.
    pub(in crate::lb) async fn resolve_nodes(
        &self,
        op: &Op,
        nodes: &[Arc<NodeView>],
    ) -> NodeInstances {
        let nodes = nodes
            .iter()
            .map(|node| &**node)
            .filter(|node| desired::accepts_traffic(node));
        let ids: Vec<InstanceId> = provider_id::instance_ids(nodes);
        let mut facts = self.deps.instance_facts(op, &ids, Duration::MAX).await;
        let cached_as_stopped: Vec<InstanceId> = facts
            .extract_if(|_, facts| facts.as_ref().is_some_and(InstanceFacts::is_stopped))
            .map(|(id, _)| id)
            .collect();
        if !cached_as_stopped.is_empty() {
            let current = self
                .deps
                .instance_facts(op, &cached_as_stopped, STOPPED_RECHECK_INTERVAL)
                .await;
            facts.extend(current);
        }
        let mut found = NodeInstances::default();
        for id in ids {
            match facts.get(&id) {
                // The instance is known not to exist.
                Some(None) => {}
                Some(Some(facts)) if facts.fitness == InstanceFitness::Terminated => {}
                Some(Some(facts)) => {
                    if facts.is_stopped() {
                        found.stopped.insert(id.clone());
                    }
                    found.groups.extend(facts.groups.iter().cloned());
                    found.instances.insert(id);
                }
                // The state of the instance is unknown.
                None => {
                    found.instances.insert(id);
                }
            }
        }
        found
    }
}
