//! Load balancers that there are and of which nothing is known yet, as after a restart: rules that they may live by stay.

use std::{collections::BTreeSet, time::Duration};

use ccm_core::provider::{CloudError, Op};

use super::{SecurityGroups, book::Groups, plan, rules};
use crate::{
    api::{ec2::Rule, elb::TargetType},
    clock::ago,
    lb::sweep::Sweep,
};

/// For so long after the start what another load balancer may need as well is not taken off. By then all were compared, but
/// for those of Services that cannot be served.
const COMPARED: Duration = Duration::from_mins(10);
/// Pause until the next try.
const PAUSE: Duration = Duration::from_secs(15);

impl SecurityGroups {
    /// Returns the names of load balancers that are there, if there are health rules of which only that tells whether they
    /// are still needed: pods let one in by a client rule under another's name.
    pub(super) async fn living(&self, op: &Op, groups: &Groups) -> Result<BTreeSet<Box<str>>, CloudError> {
        let in_doubt = {
            let needs = self.needs.lock();
            let mut names = groups.values().flat_map(|group| plan::without_clients(&group.ingress));
            names.any(|name| !needs.contains_key(name))
        };
        if !in_doubt {
            return Ok(BTreeSet::new());
        }
        let sweep = self.sweeps.since(op, ago(self.trust())).await?;
        let gone = self.gone.lock();
        Ok(sweep.balancers.iter().map(|balancer| balancer.name.clone()).filter(|name| !gone.contains(name)).collect())
    }

    /// Makes sure that what is to be taken off is not what pods of another Service let their load balancer in by: what two
    /// need alike is one rule under the name of one.
    pub(super) async fn wait_for_others(&self, op: &Op, lb_name: &str, revoked: &[Rule]) -> Result<(), CloudError> {
        let shared = revoked.iter().filter(|rule| rules::may_be_shared(rule));
        let ports: Vec<(i32, i32)> = shared.filter_map(|rule| rule.ports).collect();
        if ports.is_empty() || self.begun.elapsed() > COMPARED {
            return Ok(());
        }
        let sweep = self.sweeps.since(op, self.begun).await?;
        match self.unseen(&sweep, lb_name, &ports) {
            None => Ok(()),
            Some(other) => {
                let message = format!("load balancer {other} may need the same rules and was not looked at yet");
                Err(CloudError::transient(message).with_retry_after(PAUSE))
            }
        }
    }

    /// Returns a load balancer of the cluster with addresses as targets at one of these ports of which nothing is known.
    fn unseen(&self, sweep: &Sweep, lb_name: &str, ports: &[(i32, i32)]) -> Option<Box<str>> {
        let (needs, gone) = (self.needs.lock(), self.gone.lock());
        let has_port = |port: i32| ports.iter().any(|(from, to)| port == 1 || (*from..=*to).contains(&port));
        let of_cluster = |arn: &str| sweep.tags.get(arn).is_some_and(|tags| self.scope.cluster.has(tags));
        let groups = sweep.groups.iter().filter(|group| {
            let by_address = group.target_type == Some(TargetType::Ip);
            by_address && has_port(group.port.into()) && of_cluster(&group.arn)
        });
        let arns: BTreeSet<&str> = groups.flat_map(|group| &group.load_balancers).map(|arn| &**arn).collect();
        let mut balancers = sweep.balancers.iter().filter(|balancer| arns.contains(&*balancer.arn));
        let unknown = |name: &str| *name != *lb_name && !needs.contains_key(name) && !gone.contains(name);
        balancers.find(|balancer| unknown(&balancer.name)).map(|balancer| balancer.name.clone())
    }
}
