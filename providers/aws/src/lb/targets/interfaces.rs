//! Finds the network interface that has an address, and therefore the security groups that apply to
//! it.
//!
//! With the Amazon VPC CNI plugin, pods have secondary addresses or prefixes of their nodes'
//! interfaces: cached instances show these. Other pods have an interface of their own, which is
//! read from AWS, in one batch for all concurrent callers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, Op};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    api::{
        Action, AwsError, Filter,
        ec2::{DescribeNetworkInterfaces, NetworkInterface},
    },
    instances::InstanceCache,
    lb::{
        model::ServiceKey, observe::access_denied::AccessDeniedCache,
        targets::pods::InterfaceGroups,
    },
    scope::Scope,
};

/// Maximum age of a cached instance that shows an address. The instances of nodes are read every
/// five minutes.
const MAX_INSTANCE_AGE: Duration = Duration::from_secs(900);
/// Age at which cached instances are searched again for an address, which takes no request.
const RESCAN_INTERVAL: Duration = Duration::from_secs(300);
/// Time after which an unused entry is dropped.
const IDLE_TTL: Duration = Duration::from_secs(7200);
/// Time that a request waits for others to join the batch.
const BATCH_WINDOW: Duration = Duration::from_millis(10);
/// Maximum number of values in a filter.
const MAX_FILTER_VALUES: usize = 150;

/// Cache of the interfaces of addresses.
pub(in crate::lb) struct InterfaceCache {
    scope: Scope,
    instances: Arc<InstanceCache>,
    denials: AccessDeniedCache,
    state: Mutex<CacheState>,
    /// Held during a request. The caller that holds it requests the addresses of all who wait.
    request_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct CacheState {
    entries: HashMap<IpAddr, CachedInterface>,
    /// Addresses that waiting callers need.
    requested: BTreeSet<IpAddr>,
}

struct CachedInterface {
    /// `None` if no interface of the VPC has the address, or if access is denied.
    interface_groups: Option<InterfaceGroups>,
    /// True if an instance had the address when cached instances were last searched.
    is_of_instance: bool,
    /// The time of the response of AWS, or of the search that found a cached instance.
    fetched_at: Instant,
    /// The time when cached instances were last searched.
    scanned_at: Instant,
    /// The time when the entry was last used.
    last_used: Instant,
}

impl CachedInterface {
    fn new(interface_groups: Option<InterfaceGroups>, is_of_instance: bool) -> Self {
        let now = Instant::now();
        Self {
            interface_groups,
            is_of_instance,
            fetched_at: now,
            scanned_at: now,
            last_used: now,
        }
    }
}

/// The result of a lookup.
#[derive(Debug, Default)]
pub(in crate::lb) struct InterfaceLookup {
    /// The kinds of interfaces that have the addresses.
    pub(in crate::lb) interface_groups: BTreeSet<InterfaceGroups>,
    /// Addresses that no interface has.
    pub(in crate::lb) missing: BTreeSet<IpAddr>,
    /// The error for which other addresses could not be looked up.
    pub(in crate::lb) error: Option<CloudError>,
}

impl InterfaceCache {
    pub(in crate::lb) fn new(scope: Scope, instances: Arc<InstanceCache>) -> Self {
        let denials = AccessDeniedCache::default();
        let state = Mutex::default();
        let request_lock = tokio::sync::Mutex::default();
        Self { scope, instances, denials, state, request_lock }
    }

    /// Finds the interfaces of addresses. Cached responses of AWS may be as old as `max_age`.
    /// Addresses of cached instances take no request.
    pub(in crate::lb) async fn find(
        &self,
        op: &Op,
        owner: &ServiceKey,
        addresses: &BTreeSet<IpAddr>,
        max_age: Duration,
    ) -> InterfaceLookup {
        let mut found = InterfaceLookup::default();
        let mut unresolved = addresses.clone();
        let requested_at = Instant::now();
        self.take_cached(&mut unresolved, &mut found, max_age, requested_at);
        if unresolved.is_empty() {
            return found;
        }
        self.state
            .lock()
            .requested
            .extend(unresolved.iter().copied());
        let _request_guard = op.wait_shared(self.request_lock.lock()).await;
        self.take_cached(&mut unresolved, &mut found, max_age, requested_at);
        if unresolved.is_empty() {
            return found;
        }
        op.sleep(BATCH_WINDOW).await;
        let mut all = std::mem::take(&mut self.state.lock().requested);
        all.extend(unresolved.iter().copied());
        if let Err(error) = self.fetch(op, owner, &all).await {
            found.error = Some(error);
        }
        // The new entries are used even if `max_age` is zero.
        self.take_cached(&mut unresolved, &mut found, Duration::MAX, requested_at);
        found
    }

    /// Moves addresses with a valid cache entry from `unresolved` to `found`.
    fn take_cached(
        &self,
        unresolved: &mut BTreeSet<IpAddr>,
        found: &mut InterfaceLookup,
        max_age: Duration,
        requested_at: Instant,
    ) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state
            .entries
            .retain(|_, entry| now.duration_since(entry.last_used) < IDLE_TTL);
        let rescan_age = RESCAN_INTERVAL.min(max_age);
        let mut to_rescan = BTreeSet::new();
        for address in unresolved.iter() {
            let is_recent = state
                .entries
                .get(address)
                .is_some_and(|entry| now.duration_since(entry.scanned_at) < rescan_age);
            if !is_recent {
                to_rescan.insert(*address);
            }
        }
        let mut found_in_instances = if to_rescan.is_empty() {
            BTreeMap::new()
        } else {
            self.find_in_instances(&to_rescan)
        };
        for address in to_rescan {
            if let Some(groups) = found_in_instances.remove(&address) {
                let entry = CachedInterface::new(Some(groups), true);
                state.entries.insert(address, entry);
                continue;
            }
            let Some(entry) = state.entries.get_mut(&address) else {
                continue;
            };
            if entry.is_of_instance {
                // The instance no longer has the address, and its new owner is unknown.
                state.entries.remove(&address);
            } else {
                entry.scanned_at = now;
            }
        }
        unresolved.retain(|address| {
            let Some(entry) = state.entries.get_mut(address) else {
                return true;
            };
            if entry.fetched_at < requested_at && now.duration_since(entry.fetched_at) >= max_age {
                return true;
            }
            entry.last_used = now;
            match &entry.interface_groups {
                Some(interface_groups) => {
                    found.interface_groups.insert(interface_groups.clone());
                }
                None => {
                    found.missing.insert(*address);
                }
            }
            false
        });
    }

    /// Reads the interfaces with these addresses.
    async fn fetch(
        &self,
        op: &Op,
        owner: &ServiceKey,
        all: &BTreeSet<IpAddr>,
    ) -> Result<(), CloudError> {
        let read = self
            .denials
            .read(op, owner, Action::DescribeNetworkInterfaces, self.describe(op, all))
            .await?;
        let found = self.groups_of_interfaces(&read.unwrap_or_default());
        let lacking: BTreeSet<IpAddr> = all
            .iter()
            .filter(|address| !found.contains_key(*address))
            .copied()
            .collect();
        let mut listed = BTreeMap::new();
        // AWS does not return addresses inside a prefix that is assigned to an interface. Only the
        // instances show these prefixes.
        if !lacking.is_empty()
            && self
                .instances
                .interfaces_with(&lacking, MAX_INSTANCE_AGE)
                .has_prefixes
        {
            self.instances.list_all(op).await?;
            listed = self.find_in_instances(&lacking);
        }
        let mut state = self.state.lock();
        for address in all {
            let entry = match listed.remove(address) {
                Some(interface_groups) => CachedInterface::new(Some(interface_groups), true),
                None => CachedInterface::new(found.get(address).cloned(), false),
            };
            state.entries.insert(*address, entry);
        }
        Ok(())
    }

    async fn describe(
        &self,
        op: &Op,
        all: &BTreeSet<IpAddr>,
    ) -> Result<Vec<NetworkInterface>, AwsError> {
        let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) =
            all.iter().partition(|address| address.is_ipv4());
        let mut rows = Vec::new();
        for (filter, addresses) in
            [("addresses.private-ip-address", v4), ("ipv6-addresses.ipv6-address", v6)]
        {
            for chunk in addresses.chunks(MAX_FILTER_VALUES) {
                let values = chunk.iter().map(ToString::to_string);
                let filters =
                    vec![Filter::new("vpc-id", [&*self.scope.vpc]), Filter::new(filter, values)];
                let request = DescribeNetworkInterfaces { filters, token: None };
                rows.extend(
                    self.scope
                        .client
                        .read_all(op, request, |r, token| r.token = Some(token))
                        .await?,
                );
            }
        }
        Ok(rows)
    }

    /// Returns the security groups of each address of the interfaces.
    fn groups_of_interfaces(&self, rows: &[NetworkInterface]) -> BTreeMap<IpAddr, InterfaceGroups> {
        let mut found = BTreeMap::new();
        for row in rows {
            let has_cluster_tag = row
                .instance
                .as_ref()
                .is_some_and(|id| self.instances.is_in_cluster(id));
            let interface_groups = InterfaceGroups {
                groups: row.security_groups.iter().cloned().collect(),
                has_cluster_tag,
            };
            let addresses = row
                .private_ips
                .iter()
                .chain(&row.ipv6_addresses)
                .filter_map(|text| text.parse().ok());
            found.extend(addresses.map(|address| (address, interface_groups.clone())));
        }
        found
    }

    /// Finds addresses of cached instances, without a request.
    fn find_in_instances(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, InterfaceGroups> {
        let found = self
            .instances
            .interfaces_with(addresses, MAX_INSTANCE_AGE)
            .by_address;
        let mut groups_by_address = BTreeMap::new();
        for (address, (instance, groups)) in found {
            let interface_groups = InterfaceGroups {
                groups: groups.into_iter().collect(),
                has_cluster_tag: instance.in_cluster,
            };
            groups_by_address.insert(address, interface_groups);
        }
        groups_by_address
    }
}
