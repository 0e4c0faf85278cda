//! Keeps the rules that an existing load balancer may need and that are not known yet, because its
//! Service has not been reconciled since the start.

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

/// Period after the start in which rules that another load balancer may need too are not removed.
/// Every valid Service is reconciled within that time.
const STARTUP_GRACE_PERIOD: Duration = Duration::from_mins(10);
/// Delay before the next try.
const RETRY_DELAY: Duration = Duration::from_secs(15);
/// Period after the last deletion request in which listings may still show a load balancer. A
/// failed deletion is requested again before that.
const LISTING_LAG: Duration = Duration::from_mins(10);

/// Names of load balancers that this process deleted recently.
#[derive(Default)]
pub(super) struct DeletedNames(Mutex<BTreeMap<Box<str>, Instant>>);

impl DeletedNames {
    pub(super) fn add(&self, name: &str) {
        let mut names = self.0.lock();
        names.retain(|_, deleted_at| deleted_at.elapsed() <= LISTING_LAG);
        names.insert(name.into(), Instant::now());
    }

    /// Removes a name, because a load balancer with it exists again.
    pub(super) fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    fn contains(&self, name: &str) -> bool {
        self.0
            .lock()
            .get(name)
            .is_some_and(|deleted_at| deleted_at.elapsed() <= LISTING_LAG)
    }
}

impl SecurityGroupManager {
    /// Returns the names of existing load balancers if they are needed to decide about health
    /// rules, or else no names.
    ///
    /// Pods may admit a load balancer by a client rule with another one's name, so that only its
    /// health rules have its own name.
    pub(super) async fn existing_names(
        &self,
        op: &Op,
        groups: &GroupsById,
    ) -> Result<BTreeSet<Box<str>>, CloudError> {
        if !self.has_unknown_health_rules(groups) {
            return Ok(BTreeSet::new());
        }
        let listing = self
            .listings
            .newer_than(op, ago(self.max_rule_age()))
            .await?;
        let names = listing
            .load_balancers
            .iter()
            .map(|load_balancer| &load_balancer.name);
        Ok(names
            .filter(|name| !self.deleted.contains(name))
            .cloned()
            .collect())
    }

    /// Returns true if there are health rules without client rules, under the name of a load
    /// balancer whose needs are unknown.
    fn has_unknown_health_rules(&self, groups: &GroupsById) -> bool {
        let needed_rules = self.needed_rules.lock();
        let mut names = groups
            .values()
            .flat_map(|group| plan::health_only_names(&group.ingress));
        names.any(|name| !needed_rules.contains_key(name))
    }

    /// Fails while a rule to be revoked may be needed by another Service's load balancer whose
    /// needs are unknown. A rule that two load balancers need exists only once, with the
    /// description of one of them.
    pub(super) async fn check_unobserved(
        &self,
        op: &Op,
        lb_name: &str,
        revoked: &[Rule],
    ) -> Result<(), CloudError> {
        let ports: Vec<(i32, i32)> = revoked
            .iter()
            .filter(|rule| desired_rules::may_be_shared(rule))
            .filter_map(|rule| rule.ports)
            .collect();
        if ports.is_empty() || self.started_at.elapsed() > STARTUP_GRACE_PERIOD {
            return Ok(());
        }
        let listing = self.listings.newer_than(op, self.started_at).await?;
        match self.find_unobserved(&listing, lb_name, &ports) {
            None => Ok(()),
            Some(other) => {
                let message = format!(
                    "load balancer {other} may need the same rules and has not been reconciled yet"
                );
                Err(CloudError::transient(message).with_retry_after(RETRY_DELAY))
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
        let needed_rules = self.needed_rules.lock();
        let mut users = BTreeSet::new();
        for group in &listing.target_groups {
            let tags = listing.tags.get(group.arn.as_str());
            if group.target_type == Some(TargetType::Ip)
                && may_use_port(group.port.into(), ports)
                && tags.is_some_and(|tags| self.scope.cluster.has(tags))
            {
                users.extend(&group.load_balancers);
            }
        }
        for load_balancer in &listing.load_balancers {
            let name = &load_balancer.name;
            if users.contains(&load_balancer.arn)
                && **name != *lb_name
                && !needed_rules.contains_key(name)
                && !self.deleted.contains(name)
            {
                return Some(name.clone());
            }
        }
        None
    }
}

/// Returns true if the targets of a group with this port may use one of the ports: port 1 stands
/// for a port with a name.
fn may_use_port(group_port: i32, ports: &[(i32, i32)]) -> bool {
    ports
        .iter()
        .any(|(from, to)| group_port == 1 || (*from..=*to).contains(&group_port))
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
        assert!(gone.contains("a90") && !gone.contains("a89"));
        assert!(gone.0.lock().len() <= 11, "{:?}", gone.0.lock());
        gone.remove("a95");
        assert!(!gone.contains("a95") && gone.contains("a99"));
    }
}
