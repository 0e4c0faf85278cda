//! Existing load balancers whose needs are unknown yet, as after a restart: rules that they may
//! depend on are kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ccm_core::provider::{CloudError, Op};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{SecurityGroupManager, cache::GroupsById, plan};
use crate::{
    api::{ec2::Rule, elb::TargetType},
    clock::ago,
    lb::{observe::listing::Listing, security_groups::desired_rules},
};

/// For so long after the start, rules that another load balancer may need, too, are not removed.
/// Every Service is reconciled within that time, except invalid ones.
const STARTUP_GRACE_PERIOD: Duration = Duration::from_mins(10);
/// Delay before the next try.
const PAUSE: Duration = Duration::from_secs(15);
/// How long after the last deletion request listings may show a load balancer. A failed deletion is
/// requested again before that.
const LISTING_LAG: Duration = Duration::from_mins(10);

/// Names of load balancers that this process deleted recently.
#[derive(Default)]
pub(super) struct DeletedNames(Mutex<BTreeMap<Box<str>, Instant>>);

impl DeletedNames {
    pub(super) fn add(&self, name: &str) {
        let mut names = self.0.lock();
        names.retain(|_, since| since.elapsed() <= LISTING_LAG);
        names.insert(name.into(), Instant::now());
    }

    /// Removes a name, because a load balancer with it exists again.
    pub(super) fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    fn has(&self, name: &str) -> bool {
        self.0
            .lock()
            .get(name)
            .is_some_and(|since| since.elapsed() <= LISTING_LAG)
    }
}

impl SecurityGroupManager {
    /// Returns the names of existing load balancers, if needed to decide about health rules: pods
    /// may admit a load balancer by a client rule with another one's name, so that only its health
    /// rules have its own.
    pub(super) async fn existing_names(
        &self,
        op: &Op,
        groups: &GroupsById,
    ) -> Result<BTreeSet<Box<str>>, CloudError> {
        let in_doubt = {
            let needs = self.needed_rules.lock();
            let mut names = groups
                .values()
                .flat_map(|group| plan::health_only_names(&group.ingress));
            names.any(|name| !needs.contains_key(name))
        };
        if !in_doubt {
            return Ok(BTreeSet::new());
        }
        let listing = self
            .listings
            .newer_than(op, ago(self.max_rule_age()))
            .await?;
        let names = listing
            .balancers
            .iter()
            .map(|load_balancer| &load_balancer.name);
        Ok(names
            .filter(|name| !self.deleted.has(name))
            .cloned()
            .collect())
    }

    /// Fails while a rule to be revoked may admit another Service's load balancer to its pods: a
    /// rule that two load balancers need exists only once, with the description of one of them.
    pub(super) async fn wait_for_unobserved(
        &self,
        op: &Op,
        lb_name: &str,
        revoked: &[Rule],
    ) -> Result<(), CloudError> {
        let shared = revoked
            .iter()
            .filter(|rule| desired_rules::may_be_shared(rule));
        let ports: Vec<(i32, i32)> = shared.filter_map(|rule| rule.ports).collect();
        if ports.is_empty() || self.started_at.elapsed() > STARTUP_GRACE_PERIOD {
            return Ok(());
        }
        let listing = self.listings.newer_than(op, self.started_at).await?;
        match self.find_unobserved(&listing, lb_name, &ports) {
            None => Ok(()),
            Some(other) => {
                let message = format!(
                    "load balancer {other} may need the same rules and was not looked at yet"
                );
                Err(CloudError::transient(message).with_retry_after(PAUSE))
            }
        }
    }

    /// Returns a load balancer of the cluster with address targets on one of these ports whose
    /// needs are unknown.
    fn find_unobserved(
        &self,
        listing: &Listing,
        lb_name: &str,
        ports: &[(i32, i32)],
    ) -> Option<Box<str>> {
        let needs = self.needed_rules.lock();
        let has_port = |port: i32| {
            ports
                .iter()
                .any(|(from, to)| port == 1 || (*from..=*to).contains(&port))
        };
        let of_cluster = |arn: &str| {
            listing
                .tags
                .get(arn)
                .is_some_and(|tags| self.scope.cluster.has(tags))
        };
        let groups = listing.groups.iter().filter(|group| {
            let by_address = group.target_type == Some(TargetType::Ip);
            by_address && has_port(group.port.into()) && of_cluster(&group.arn)
        });
        let arns: BTreeSet<&str> = groups
            .flat_map(|group| &group.load_balancers)
            .map(|arn| &**arn)
            .collect();
        let mut load_balancers = listing
            .balancers
            .iter()
            .filter(|load_balancer| arns.contains(&*load_balancer.arn));
        let unknown =
            |name: &str| *name != *lb_name && !needs.contains_key(name) && !self.deleted.has(name);
        load_balancers
            .find(|balancer| unknown(&balancer.name))
            .map(|balancer| balancer.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_went_is_remembered_for_as_long_as_it_may_be_listed() {
        let gone = DeletedNames::default();
        for n in 0..100 {
            gone.add(&format!("a{n}"));
            tokio::time::advance(Duration::from_mins(1)).await;
        }
        assert!(gone.has("a90") && !gone.has("a89"));
        assert!(gone.0.lock().len() <= 11, "{:?}", gone.0.lock());
        gone.remove("a95");
        assert!(!gone.has("a95") && gone.has("a99"));
    }
}
