//! One listing of everything that the cluster has, shared by Services that are observed for the
//! first time.
//!
//! After a restart every Service is compared with the cloud. Load balancers, listeners, pools,
//! health monitors and floating IPs are read once for all of them, page by page, and so are
//! security groups and server ports where they are managed. Only the members of a pool take a
//! request of their own, since Octavia has no list of all members. A listing never proves that
//! something does not exist: what it does not show, or shows amid a change, is read for the Service
//! alone. In a project with many load balancers of others the lists are long: no more pages are
//! read than requests for single Services would have taken so far, and what was read is kept until
//! more Services come.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use openstack_api::{
    neutron::{FloatingIp, Port, SecurityGroup},
    octavia::{HealthMonitor, IdRef, Listener, LoadBalancer, Pool, ProvisioningStatus},
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{
    client::{Call, NextPage, OpenStackError, Request},
    lb::{
        api::Api,
        names,
        observe::LoadBalancerQuery,
        observed::ObservedLoadBalancer,
        query_strategy::{PAGE, max_listing_pages},
        security_groups::listed::{ListedSecurityGroup, ServerPorts},
        sync_state::{AttachedFloatingIp, ListingRound, ListingRounds},
    },
};

/// How old a listing may be. A restart with hundreds of Services may take minutes, because requests
/// are rate-limited.
const MAX_AGE: Duration = Duration::from_secs(300);

/// The last listing. One caller reads on when a newer one is needed, while the others wait for it.
#[derive(Debug)]
pub(super) struct ListingCache {
    /// True when Services have security groups.
    groups: bool,
    listing: tokio::sync::Mutex<Option<Listing>>,
    /// Services that were looked up since the last complete listing, and when.
    lookups: Mutex<HashMap<Box<str>, Instant>>,
}

/// The list that is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingStage {
    /// First, so that a load balancer's time of change is never newer than its children.
    LoadBalancers,
    Listeners,
    Pools,
    Monitors,
    FloatingIps,
    Groups,
    Ports,
    /// Everything is read.
    Done,
}

/// A listing, complete or in progress. Objects of others are not kept.
#[derive(Debug)]
struct Listing {
    round: ListingRound,
    started: Instant,
    part: ListingStage,
    next: Option<NextPage>,
    pages: usize,
    load_balancers: HashMap<Box<str>, LoadBalancer>,
    listeners: HashMap<Box<str>, Vec<Listener>>,
    pools: HashMap<Box<str>, Vec<Pool>>,
    monitors: HashMap<Box<str>, HealthMonitor>,
    /// By the port that they are attached to.
    floating_ips: HashMap<Box<str>, FloatingIp>,
    /// `None` where groups are not managed.
    groups: Option<ListedGroups>,
}

/// Security groups by name, and server ports.
#[derive(Debug, Default)]
struct ListedGroups {
    by_name: HashMap<Box<str>, Vec<SecurityGroup>>,
    ports: Arc<ServerPorts>,
}

/// What a listing shows of a Service: everything but members.
pub(super) struct ListedService {
    pub(super) observed: ObservedLoadBalancer,
    pub(super) floating_ips: AttachedFloatingIp,
    pub(super) listed: Option<ListedSecurityGroup>,
    pub(super) read_at: Instant,
}

impl ListingCache {
    /// Creates a cache without a listing. `groups`: true when Services have security groups.
    pub(super) fn new(groups: bool) -> Self {
        Self {
            groups,
            listing: tokio::sync::Mutex::default(),
            lookups: Mutex::default(),
        }
    }

    /// Returns what a listing shows of a Service, if it is newer than the last change by this
    /// process (`touched`). `None` when the Service has to be read alone.
    ///
    /// # Errors
    /// The rate limit is exhausted. After every other error the Service is read alone, and that
    /// reports the cause.
    pub(super) async fn find(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        query: &LoadBalancerQuery<'_>,
        touched: Option<ListingRound>,
    ) -> Result<Option<ListedService>, OpenStackError> {
        let mut last = api.op.wait_shared(self.listing.lock()).await;
        last.take_if(|sweep| sweep.started.elapsed() >= MAX_AGE);
        let counts = |sweep: &Listing| touched.is_none_or(|touched| sweep.round > touched);
        if !last
            .as_ref()
            .is_some_and(|sweep| counts(sweep) && sweep.part == ListingStage::Done)
        {
            let most = max_listing_pages(self.record_lookup(&query.service_key.uid), self.groups);
            if !last.as_ref().is_some_and(counts) {
                if most == 0 {
                    return Ok(None);
                }
                *last = Some(Listing::begin(rounds, self.groups));
            }
            // Continue the listing within the page limit.
            let Some(sweep) = &mut *last else {
                return Ok(None);
            };
            match sweep.read(api, query.cluster, most).await {
                Ok(true) => self.lookups.lock().clear(),
                Ok(false) => return Ok(None),
                Err(error) if error.rate_limit_delay().is_some() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "load balancers cannot be read together");
                    self.lookups.lock().clear();
                    *last = None;
                    return Ok(None);
                }
            }
        }
        Ok(last.as_mut().and_then(|sweep| sweep.service_objects(query)))
    }

    /// Records that a Service was looked up and returns how many were.
    fn record_lookup(&self, uid: &str) -> usize {
        let mut looks = self.lookups.lock();
        looks.retain(|_, at| at.elapsed() < MAX_AGE);
        looks.insert(uid.into(), Instant::now());
        looks.len()
    }
}

impl Listing {
    fn begin(rounds: &ListingRounds, groups: bool) -> Self {
        Self {
            round: rounds.begin(),
            started: Instant::now(),
            part: ListingStage::LoadBalancers,
            next: None,
            pages: 0,
            load_balancers: HashMap::new(),
            listeners: HashMap::new(),
            pools: HashMap::new(),
            monitors: HashMap::new(),
            floating_ips: HashMap::new(),
            groups: groups.then(Default::default),
        }
    }

    /// Reads until everything is read or `most` pages are. Returns whether everything is.
    async fn read(
        &mut self,
        api: Api<'_>,
        cluster: &str,
        most: usize,
    ) -> Result<bool, OpenStackError> {
        while self.part != ListingStage::Done && self.pages < most {
            self.read_next_page(api, cluster).await?;
        }
        Ok(self.part == ListingStage::Done)
    }

    /// Reads one more page.
    async fn read_next_page(&mut self, api: Api<'_>, cluster: &str) -> Result<(), OpenStackError> {
        // Each branch keeps the rows of this cluster and returns the list that follows.
        let then = match self.part {
            ListingStage::LoadBalancers => {
                let prefix = names::load_balancer_prefix(cluster);
                for row in self
                    .page::<LoadBalancer>(api, Call::LoadBalancerList, "loadbalancers")
                    .await?
                {
                    if row.name.starts_with(&*prefix)
                        || row.tags.iter().any(|tag| tag.starts_with(&*prefix))
                    {
                        self.load_balancers.insert(row.id.as_str().into(), row);
                    }
                }
                ListingStage::Listeners
            }
            ListingStage::Listeners => {
                for row in self
                    .page::<Listener>(api, Call::ListenerList, "listeners")
                    .await?
                {
                    if let Some(of) = row
                        .loadbalancers
                        .iter()
                        .find(|of| self.load_balancers.contains_key(&*of.id))
                    {
                        self.listeners
                            .entry(of.id.as_str().into())
                            .or_default()
                            .push(row);
                    }
                }
                ListingStage::Pools
            }
            ListingStage::Pools => {
                for row in self.page::<Pool>(api, Call::PoolList, "pools").await? {
                    if let Some(of) = row
                        .loadbalancers
                        .iter()
                        .find(|of| self.load_balancers.contains_key(&*of.id))
                    {
                        self.pools
                            .entry(of.id.as_str().into())
                            .or_default()
                            .push(row);
                    }
                }
                ListingStage::Monitors
            }
            ListingStage::Monitors => {
                let pools = self.pools.values().flatten();
                let desired: HashSet<String> = pools
                    .filter_map(|pool| pool.monitor.healthmonitor_id.clone())
                    .collect();
                if !desired.is_empty() {
                    for row in self
                        .page::<HealthMonitor>(api, Call::MonitorList, "healthmonitors")
                        .await?
                    {
                        if desired.contains(&row.id) {
                            self.monitors.insert(row.id.as_str().into(), row);
                        }
                    }
                }
                ListingStage::FloatingIps
            }
            ListingStage::FloatingIps => {
                let ports = self
                    .load_balancers
                    .values()
                    .filter_map(|load_balancer| load_balancer.vip_port_id.clone());
                let ports: HashSet<String> = ports.collect();
                for row in self
                    .page::<FloatingIp>(api, Call::FloatingIpList, "floatingips")
                    .await?
                {
                    if let Some(port) = row.port_id.clone().filter(|port| ports.contains(port)) {
                        self.floating_ips.entry(port.into()).or_insert(row);
                    }
                }
                if self.groups.is_some() {
                    ListingStage::Groups
                } else {
                    ListingStage::Done
                }
            }
            ListingStage::Groups => self.read_groups(api).await?,
            ListingStage::Ports => self.read_ports(api).await?,
            ListingStage::Done => return Ok(()),
        };
        if self.next.is_none() {
            self.part = then;
        }
        Ok(())
    }

    async fn read_groups(&mut self, api: Api<'_>) -> Result<ListingStage, OpenStackError> {
        let rows = self
            .page::<SecurityGroup>(api, Call::SecurityGroupList, "security-groups")
            .await?;
        if let Some(groups) = &mut self.groups {
            for row in rows
                .into_iter()
                .filter(|row| row.name.starts_with(names::GROUP_PREFIX))
            {
                groups
                    .by_name
                    .entry(row.name.as_str().into())
                    .or_default()
                    .push(row);
            }
        }
        Ok(ListingStage::Ports)
    }

    async fn read_ports(&mut self, api: Api<'_>) -> Result<ListingStage, OpenStackError> {
        let rows = self.page::<Port>(api, Call::PortList, "ports").await?;
        // The ports are shared with nobody yet.
        if let Some(ports) = self
            .groups
            .as_mut()
            .and_then(|groups| Arc::get_mut(&mut groups.ports))
        {
            for row in rows {
                ports.add(row);
            }
        }
        Ok(ListingStage::Done)
    }

    async fn page<T: DeserializeOwned>(
        &mut self,
        api: Api<'_>,
        call: Call,
        path: &str,
    ) -> Result<Vec<T>, OpenStackError> {
        let path = [path];
        let request = Request::new(call, &path).query(&[("limit", PAGE)]);
        let (rows, next) = api
            .client
            .get_page(api.op, &request, self.next.clone())
            .await?;
        self.next = next;
        self.pages += 1;
        Ok(rows)
    }

    /// Returns a Service's load balancer, if the listing shows all of it and it is ACTIVE. Removes
    /// it from the listing unless it is shared.
    fn service_objects(&mut self, query: &LoadBalancerQuery<'_>) -> Option<ListedService> {
        // First, find the load balancer by ID, or else by a name that occurs once.
        let id: Box<str> = match query.id {
            Some(id) => id.into(),
            None => {
                let name = names::load_balancer(
                    query.cluster,
                    &query.service_key.namespace,
                    &query.service_key.name,
                );
                let mut named = self
                    .load_balancers
                    .iter()
                    .filter(|(_, balancer)| *balancer.name == *name);
                let (id, _) = named.next()?;
                if named.next().is_some() {
                    return None;
                }
                id.clone()
            }
        };
        let load_balancer = self.load_balancers.get(&id)?;
        if load_balancer.provisioning_status != ProvisioningStatus::Active {
            return None;
        }
        let listeners = self.listeners.get(&id);
        let pools = self.pools.get(&id);
        let listeners = listeners.map_or(&[][..], Vec::as_slice);
        let pools = pools.map_or(&[][..], Vec::as_slice);
        // Something was created or deleted between the lists.
        if !all_found(&load_balancer.listeners, listeners.iter().map(|listener| &*listener.id))
            || !all_found(&load_balancer.pools, pools.iter().map(|pool| &*pool.id))
        {
            return None;
        }
        // Then add its monitors, floating IP and security group.
        let mut observed = ObservedLoadBalancer::new(load_balancer.clone());
        for id in pools
            .iter()
            .filter_map(|pool| pool.monitor.healthmonitor_id.as_deref())
        {
            observed
                .monitors
                .insert(id.to_owned(), self.monitors.get(id)?.clone());
        }
        let floating = self
            .floating_ips
            .get(load_balancer.vip_port_id.as_deref()?)
            .cloned()
            .into();
        let listed = self.groups.as_mut().map(|groups| {
            let name = names::security_group(
                &query.service_key.uid,
                &query.service_key.namespace,
                &query.service_key.name,
            );
            ListedSecurityGroup {
                started: self.started,
                groups: groups.by_name.remove(&name).unwrap_or_default(),
                ports: groups.ports.clone(),
            }
        });
        // Other Services of a shared load balancer need it as well.
        if load_balancer
            .tags
            .iter()
            .filter(|tag| tag.starts_with(names::PREFIX))
            .count()
            > 1
        {
            observed.listeners = listeners.to_vec();
            observed.pools = pools.to_vec();
        } else {
            self.load_balancers.remove(&id);
            observed.listeners = self.listeners.remove(&id).unwrap_or_default();
            observed.pools = self.pools.remove(&id).unwrap_or_default();
        }
        Some(ListedService {
            observed,
            floating_ips: floating,
            listed,
            read_at: self.started,
        })
    }
}

fn all_found<'a>(named: &[IdRef], found: impl Iterator<Item = &'a str>) -> bool {
    let named: BTreeSet<&str> = named.iter().map(|of| &*of.id).collect();
    named == found.collect()
}
