//! Finds the instances of Nodes that have no provider ID yet, by name.
//!
//! A name that EC2 assigns contains the private address. Nothing else ties a Node's name to an
//! instance: the name is compared with the private DNS name and, in case the VPC's DHCP options
//! change the domain, its address with the private address.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind, Op};

use super::{cache::InstanceCache, fargate::address_of_name, instance::Instance, plan};
use crate::api::Filter;

/// Result for one name. `Ok(None)`: the instance is proven not to exist, see [`is_proof`].
pub(super) type NameLookup = Result<Option<Arc<Instance>>, CloudError>;

/// Finds the cluster's instances by name. Each name has the maximum age of its result.
///
/// The filters do not contain the cluster's tag: an instance without the tag would look as if it
/// did not exist. This way it is found, and the missing tag is reported.
pub(super) async fn find(
    op: &Op,
    store: &InstanceCache,
    names: &HashMap<Arc<str>, Duration>,
) -> HashMap<Arc<str>, NameLookup> {
    // First, match names with cached instances.
    let mut search = NameSearch { results: HashMap::new(), untagged: HashMap::new() };
    let arrival = store.query_time();
    let mut ages: BTreeMap<Duration, HashSet<&Arc<str>>> = BTreeMap::new();
    for (name, age) in names {
        ages.entry(*age).or_default().insert(name);
    }
    for (age, names) in &ages {
        search.match_rows(&store.cached_since(*age, arrival), names.iter().copied(), by_name);
    }
    // If many names are left, list the cluster's instances.
    if plan::prefers_listing_for_names(search.unanswered(names).len(), store.listed()) {
        match store.list_all(op).await {
            Ok(()) => {
                let open = search.unanswered(names);
                search.match_rows(
                    &store.cached_since(Duration::ZERO, arrival),
                    open.iter(),
                    by_name,
                );
            }
            Err(error) => return search.fail(names, &error.into()),
        }
    }
    // Then search for the remaining names by private DNS name,
    let open = search.unanswered(names);
    let values: Vec<Box<str>> = open.iter().map(|name| (&**name).into()).collect();
    match store.find(op, "private-dns-name", &values, None).await {
        Ok(rows) => search.match_rows(&rows, open.iter(), by_name),
        Err(error) => return search.fail(names, &error.into()),
    }
    // and finally by the address in the name.
    let open: Vec<_> = search
        .unanswered(names)
        .into_iter()
        .filter(|name| address_of_name(name).is_some())
        .collect();
    let values: Vec<Box<str>> = open
        .iter()
        .filter_map(|name| address_of_name(name))
        .map(|ip| ip.to_string().into())
        .collect();
    let vpc = Filter::new("vpc-id", [store.scope().vpc.as_str()]);
    match store
        .find(op, "private-ip-address", &values, Some(vpc))
        .await
    {
        Ok(rows) => search.match_rows(&rows, open.iter(), by_address),
        Err(error) => return search.fail(names, &error.into()),
    }
    search.finish(names, &store.scope().region)
}

struct NameSearch {
    results: HashMap<Arc<str>, NameLookup>,
    /// Instances that match the name but lack the cluster's tag.
    untagged: HashMap<Arc<str>, Arc<Instance>>,
}

impl NameSearch {
    fn unanswered(&self, names: &HashMap<Arc<str>, Duration>) -> Vec<Arc<str>> {
        let mut open: Vec<_> = names
            .keys()
            .filter(|name| !self.results.contains_key(*name))
            .cloned()
            .collect();
        open.sort();
        open
    }

    /// Records the result for each name that an instance matches.
    fn match_rows<'a, K: std::hash::Hash + Eq>(
        &mut self,
        rows: &[Arc<Instance>],
        names: impl Iterator<Item = &'a Arc<str>>,
        keys: fn(&str, Option<&Instance>) -> Option<K>,
    ) {
        let mut found: HashMap<K, Vec<&Arc<Instance>>> = HashMap::new();
        for row in rows.iter().filter(|row| !row.is_terminated()) {
            if let Some(key) = keys("", Some(row)) {
                found.entry(key).or_default().push(row);
            }
        }
        for name in names {
            let Some(rows) = keys(name, None).and_then(|key| found.get(&key)) else {
                continue;
            };
            let ours: Vec<_> = rows.iter().filter(|row| row.in_cluster).collect();
            match ours.as_slice() {
                [] => drop(self.untagged.insert(name.clone(), rows[0].clone())),
                [one] => drop(self.results.insert(name.clone(), Ok(Some(Arc::clone(one))))),
                _ => {
                    let message = format!("multiple instances found for name: {name}");
                    self.results
                        .insert(name.clone(), Err(CloudError::new(ErrorKind::Conflict, message)));
                }
            }
        }
    }

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

    /// Records the result for each name that no instance of the cluster matches.
    fn finish(
        mut self,
        names: &HashMap<Arc<str>, Duration>,
        region: &str,
    ) -> HashMap<Arc<str>, NameLookup> {
        for name in self.unanswered(names) {
            let answer = match self.untagged.get(&name) {
                Some(instance) => {
                    let message = format!(
                        "instance {} has the private DNS name or address of node {name} and does not carry the cluster's tag",
                        instance.id
                    );
                    Err(CloudError::new(ErrorKind::NotFound, message))
                }
                None if is_proof(&name, region) => Ok(None),
                None => {
                    let message = format!(
                        "instance not found: none has the private DNS name {name:?}, which does not prove that there is none; \
                         the node needs spec.providerID or a name that EC2 gave"
                    );
                    Err(CloudError::new(ErrorKind::NotFound, message))
                }
            };
            self.results.insert(name, answer);
        }
        self.results
    }
}

/// Returns whether the lack of results proves that the instance does not exist, given complete,
/// successful listings of all instances with this private DNS name and of all instances of the VPC
/// with the address in it. That holds for names that EC2 itself assigns in this region, complete
/// with the region's domain. An instance with any other node name may exist under a different
/// private DNS name.
fn is_proof(name: &str, region: &str) -> bool {
    let domain = match region {
        "us-east-1" => "ec2.internal".to_owned(),
        region => format!("{region}.compute.internal"),
    };
    address_of_name(name).is_some() && name.split_once('.').is_some_and(|(_, rest)| rest == domain)
}

fn by_name(name: &str, instance: Option<&Instance>) -> Option<Box<str>> {
    let name = instance.map_or(name, |instance| &instance.private_dns_name);
    (!name.is_empty()).then(|| name.into())
}

fn by_address(name: &str, instance: Option<&Instance>) -> Option<std::net::Ipv4Addr> {
    match instance {
        Some(instance) => instance.private_ip.parse().ok(),
        None => address_of_name(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_name_of_the_region_proves_an_absence() {
        assert!(is_proof("ip-10-0-0-1.us-west-2.compute.internal", "us-west-2"));
        assert!(is_proof("ip-10-0-0-1.ec2.internal", "us-east-1"));
        for name in [
            "ip-10-0-0-1",
            "ip-10-0-0-1.example.org",
            "ip-10-0-0-1.eu-west-1.compute.internal",
            "worker-1",
            "ip-1-2",
        ] {
            assert!(!is_proof(name, "us-west-2"), "{name}");
        }
    }
}
