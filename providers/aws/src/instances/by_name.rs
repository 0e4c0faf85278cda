//! Finds the instances of Nodes that have no provider ID yet, by name.
//!
//! A Node's name is compared with the private DNS names of instances. If the VPC's DHCP options
//! change the domain, these differ, so the private address that is part of a name assigned by EC2
//! is compared as well.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind, Op};

use super::{batching, cache::InstanceCache, fargate::address_of_name, instance::Instance};
use crate::api::Filter;

/// Result for one name. `Ok(None)` means that the instance is proven not to exist, see
/// [`absence_is_proof`].
pub(super) type NameLookup = Result<Option<Arc<Instance>>, CloudError>;

/// Finds the cluster's instances by name. `names` contains the maximum age of the result for each
/// name.
///
/// The filters do not contain the cluster's tag. Otherwise, an instance without the tag would seem
/// not to exist. This way it is found, and the missing tag is reported.
pub(super) async fn find(
    op: &Op,
    cache: &InstanceCache,
    names: &HashMap<Arc<str>, Duration>,
) -> HashMap<Arc<str>, NameLookup> {
    // First, compare the names with cached instances.
    let mut search = NameSearch::default();
    let arrival = cache.query_time();
    let mut names_by_max_age: BTreeMap<Duration, Vec<Arc<str>>> = BTreeMap::new();
    for (name, max_age) in names {
        names_by_max_age
            .entry(*max_age)
            .or_default()
            .push(name.clone());
    }
    for (max_age, names) in &names_by_max_age {
        search.match_dns_names(&cache.fresh_instances(*max_age, arrival), names);
    }
    // If many names remain, list the cluster's instances, which takes fewer calls than a search.
    let remaining = search.unanswered(names).len();
    if batching::should_list_for_names(remaining, cache.last_listing_size()) {
        if let Err(error) = cache.list_all(op).await {
            return search.fail(names, &error.into());
        }
        let unanswered = search.unanswered(names);
        search.match_dns_names(&cache.fresh_instances(Duration::ZERO, arrival), &unanswered);
    }
    // Then search for the remaining names by private DNS name.
    let unanswered = search.unanswered(names);
    let values: Vec<Box<str>> = unanswered.iter().map(|name| (&**name).into()).collect();
    match cache
        .find_by_filter(op, "private-dns-name", &values, None)
        .await
    {
        Ok(instances) => search.match_dns_names(&instances, &unanswered),
        Err(error) => return search.fail(names, &error.into()),
    }
    // Finally, search by the address in the name.
    let mut with_address = Vec::new();
    let mut values = Vec::new();
    for name in search.unanswered(names) {
        if let Some(address) = address_of_name(&name) {
            with_address.push(name);
            values.push(address.to_string().into());
        }
    }
    let vpc = Filter::new("vpc-id", [cache.scope().vpc.as_str()]);
    match cache
        .find_by_filter(op, "private-ip-address", &values, Some(vpc))
        .await
    {
        Ok(instances) => search.match_addresses(&instances, &with_address),
        Err(error) => return search.fail(names, &error.into()),
    }
    search.finish(names, &cache.scope().region)
}

/// State of a search for instances by name.
#[derive(Default)]
struct NameSearch {
    /// Results so far.
    results: HashMap<Arc<str>, NameLookup>,
    /// Instances that match a name but lack the cluster's tag.
    untagged: HashMap<Arc<str>, Arc<Instance>>,
}

impl NameSearch {
    /// Returns the names that have no result yet, sorted.
    fn unanswered(&self, names: &HashMap<Arc<str>, Duration>) -> Vec<Arc<str>> {
        let mut unanswered: Vec<_> = names
            .keys()
            .filter(|name| !self.results.contains_key(*name))
            .cloned()
            .collect();
        unanswered.sort();
        unanswered
    }

    /// Records the result for each name that is the private DNS name of an instance.
    fn match_dns_names(&mut self, instances: &[Arc<Instance>], names: &[Arc<str>]) {
        let mut by_dns_name: HashMap<&str, Vec<&Arc<Instance>>> = HashMap::new();
        for instance in existing(instances) {
            by_dns_name
                .entry(&instance.private_dns_name)
                .or_default()
                .push(instance);
        }
        // Instances without a DNS name have an empty one.
        by_dns_name.remove("");
        for name in names {
            if let Some(matches) = by_dns_name.get(&**name) {
                self.record_matches(name, matches);
            }
        }
    }

    /// Records the result for each name that contains the private address of an instance.
    fn match_addresses(&mut self, instances: &[Arc<Instance>], names: &[Arc<str>]) {
        let mut by_address: HashMap<Ipv4Addr, Vec<&Arc<Instance>>> = HashMap::new();
        for instance in existing(instances) {
            if let Ok(address) = instance.private_ip.parse() {
                by_address.entry(address).or_default().push(instance);
            }
        }
        for name in names {
            if let Some(address) = address_of_name(name)
                && let Some(matches) = by_address.get(&address)
            {
                self.record_matches(name, matches);
            }
        }
    }

    fn record_matches(&mut self, name: &Arc<str>, matches: &[&Arc<Instance>]) {
        let in_cluster: Vec<_> = matches
            .iter()
            .filter(|instance| instance.in_cluster)
            .collect();
        match in_cluster.as_slice() {
            [] => {
                if let Some(untagged) = matches.first() {
                    self.untagged.insert(name.clone(), Arc::clone(untagged));
                }
            }
            [instance] => {
                self.results
                    .insert(name.clone(), Ok(Some(Arc::clone(instance))));
            }
            _ => {
                let message = format!("multiple instances found for name: {name}");
                self.results
                    .insert(name.clone(), Err(CloudError::new(ErrorKind::Conflict, message)));
            }
        }
    }

    /// Ends the search with the same error for each name that has no result yet.
    fn fail(
        mut self,
        names: &HashMap<Arc<str>, Duration>,
        error: &CloudError,
    ) -> HashMap<Arc<str>, NameLookup> {
        for name in self.unanswered(names) {
            self.results.insert(name, Err(error.clone()));
        }
        self.results
    }

    /// Ends the search after all lookups. Records the result for each name that no instance of the
    /// cluster matches.
    fn finish(
        mut self,
        names: &HashMap<Arc<str>, Duration>,
        region: &str,
    ) -> HashMap<Arc<str>, NameLookup> {
        for name in self.unanswered(names) {
            let result = if let Some(instance) = self.untagged.get(&name) {
                let message = format!(
                    "instance {} has the private DNS name or address of node {name}, but not the cluster's tag",
                    instance.id
                );
                Err(CloudError::new(ErrorKind::NotFound, message))
            } else if absence_is_proof(&name, region) {
                Ok(None)
            } else {
                let message = format!(
                    "instance not found: none has the private DNS name {name:?}, but this does not prove that it does not exist; \
                     the node needs spec.providerID or a name that EC2 assigned"
                );
                Err(CloudError::new(ErrorKind::NotFound, message))
            };
            self.results.insert(name, result);
        }
        self.results
    }
}

/// Returns true if an instance with this node name does not exist when searches for its private DNS
/// name, and for its address in the VPC, succeed and find nothing.
///
/// This is the case for names that EC2 itself assigns in this region, including the region's
/// domain. The instance of a node with any other name may have a different private DNS name.
fn absence_is_proof(name: &str, region: &str) -> bool {
    let domain = match region {
        "us-east-1" => "ec2.internal".to_owned(),
        region => format!("{region}.compute.internal"),
    };
    address_of_name(name).is_some()
        && name
            .split_once('.')
            .is_some_and(|(_, suffix)| suffix == domain)
}

fn existing(instances: &[Arc<Instance>]) -> impl Iterator<Item = &Arc<Instance>> {
    instances
        .iter()
        .filter(|instance| !instance.is_terminated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_name_of_the_region_proves_an_absence() {
        assert!(absence_is_proof("ip-10-0-0-1.us-west-2.compute.internal", "us-west-2"));
        assert!(absence_is_proof("ip-10-0-0-1.ec2.internal", "us-east-1"));
        for name in [
            "ip-10-0-0-1",
            "ip-10-0-0-1.example.org",
            "ip-10-0-0-1.eu-west-1.compute.internal",
            "worker-1",
            "ip-1-2",
        ] {
            assert!(!absence_is_proof(name, "us-west-2"), "{name}");
        }
    }
}
