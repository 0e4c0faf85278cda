//! One listing of all the cluster's objects, shared by Services that are observed for the first
//! time.
//!
//! After a restart every Service is compared with the cloud. Load balancers, listeners, pools,
//! health monitors and floating IPs are read once for all Services, page by page. So are security
//! groups and server ports, if security groups are managed. Only the members of a pool take a
//! request of their own, since Octavia has no list of all members.
//!
//! A listing never proves that something does not exist. If it does not show a load balancer, or
//! shows it during a change, the Service is read alone.
//!
//! In a project with many other load balancers the lists are long. Therefore no more pages are read
//! than requests for single Services would have taken so far. An incomplete listing is kept, and
//! continues when more Services need it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use openstack_api::octavia::ProvisioningStatus;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{
    api::{
        IdRef,
        neutron::{FloatingIp, Port, SecurityGroup},
        octavia::{HealthMonitor, Listener, LoadBalancer, Pool},
    },
    client::{Call, NextPage, OpenStackError, Request, Rows, UnreadableRow},
    lb::{
        api::Api,
        names,
        observe::LoadBalancerQuery,
        observed::ObservedLoadBalancer,
        query_strategy::{PAGE, max_listing_pages},
        security_groups::listed::{ListedSecurityGroup, ServerPorts},
        sync_state::{AttachedFloatingIp, ListedService, ListingRound, ListingRounds},
    },
};

/// Maximum age of a listing. A restart with hundreds of Services may take minutes, because requests
/// are rate-limited.
const MAX_AGE: Duration = Duration::from_secs(300);

/// The last listing. If a newer one is needed, one caller reads it while the others wait.
#[derive(Debug)]
pub(super) struct ListingCache {
    /// True when Services have security groups.
    with_security_groups: bool,
    listing: tokio::sync::Mutex<Option<Listing>>,
    /// UIDs of Services that were looked up since the last complete listing, with the time.
    lookups: Mutex<HashMap<Box<str>, Instant>>,
}

/// The list to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingStage {
    /// Load balancers are read first, so `updated_at` of a load balancer is never newer than its
    /// children.
    LoadBalancers,
    Listeners,
    Pools,
    Monitors,
    FloatingIps,
    SecurityGroups,
    Ports,
    /// Nothing is left to read.
    Done,
}

/// A listing, complete or in progress. Objects of other clusters and users are not kept.
#[derive(Debug)]
struct Listing {
    round: ListingRound,
    started: Instant,
    stage: ListingStage,
    /// Next page of the current stage, or `None` for its first page.
    next_page: Option<NextPage>,
    pages_read: usize,
    /// True when a floating IP cannot be read, so that a load balancer without one may have it.
    has_unreadable_floating_ips: bool,
    /// Load balancers that cannot be read.
    unreadable_load_balancers: Vec<UnreadableRow>,
    /// Load balancers by ID.
    load_balancers: HashMap<Box<str>, LoadBalancer>,
    /// Listeners by the ID of their load balancer.
    listeners: HashMap<Box<str>, Vec<Listener>>,
    /// Pools by the ID of their load balancer.
    pools: HashMap<Box<str>, Vec<Pool>>,
    /// Health monitors by ID.
    monitors: HashMap<Box<str>, HealthMonitor>,
    /// Floating IPs by the ID of the port that they are attached to.
    floating_ips: HashMap<Box<str>, FloatingIp>,
    /// Security groups and server ports, or `None` if security groups are not managed.
    security_groups: Option<ListedGroups>,
}

/// Security groups by name, and server ports.
#[derive(Debug, Default)]
struct ListedGroups {
    by_name: HashMap<Box<str>, Vec<SecurityGroup>>,
    ports: Arc<ServerPorts>,
    /// True when a group or a port cannot be read. Then each Service's group is read alone.
    is_incomplete: bool,
}

impl ListingCache {
    /// Creates a cache without a listing. `with_security_groups` is true if Services have security
    /// groups.
    pub(super) fn new(with_security_groups: bool) -> Self {
        Self {
            with_security_groups,
            listing: tokio::sync::Mutex::default(),
            lookups: Mutex::default(),
        }
    }

    /// Finds a Service in the listing, and reads more of the listing if that saves requests.
    /// Returns `None` if the Service has to be read alone. Only a listing after `stale_until`
    /// counts, which is the last one that may miss a change by this process.
    ///
    /// # Errors
    /// Returns an error if the rate limit is exhausted. After any other error the Service is read
    /// alone, and an outage is reported by that.
    pub(super) async fn find(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        query: &LoadBalancerQuery<'_>,
        stale_until: Option<ListingRound>,
    ) -> Result<Option<ListedService>, OpenStackError> {
        let mut cached = api.op.wait_shared(self.listing.lock()).await;
        cached.take_if(|listing| listing.started.elapsed() >= MAX_AGE);
        let is_recent = cached
            .as_ref()
            .is_some_and(|listing| stale_until.is_none_or(|stale| listing.round > stale));
        let is_complete = cached.as_ref().is_some_and(Listing::is_complete);
        if !is_recent || !is_complete {
            let lookups = self.record_lookup(&query.service_key.uid);
            let max_pages = max_listing_pages(lookups, self.with_security_groups);
            if !is_recent {
                if max_pages == 0 {
                    return Ok(None);
                }
                *cached = Some(Listing::begin(rounds, self.with_security_groups));
            }
            self.continue_listing(api, &mut cached, query.cluster, max_pages)
                .await?;
        }
        match &mut *cached {
            Some(listing) if listing.is_complete() => Ok(listing.take_service(query)),
            _ => Ok(None),
        }
    }

    /// Reads more of the listing, until it is complete or has `max_pages` pages. Any error except
    /// our own rate limit discards it.
    async fn continue_listing(
        &self,
        api: Api<'_>,
        cached: &mut Option<Listing>,
        cluster: &str,
        max_pages: usize,
    ) -> Result<(), OpenStackError> {
        let Some(listing) = cached else {
            return Ok(());
        };
        match listing.read(api, cluster, max_pages).await {
            Ok(()) => {
                if listing.is_complete() {
                    self.lookups.lock().clear();
                }
            }
            Err(error) if error.rate_limit_delay().is_some() => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "failed to list load balancers, reading them one by one");
                self.lookups.lock().clear();
                *cached = None;
            }
        }
        Ok(())
    }

    /// Records that a Service was looked up, and returns the number of such Services.
    fn record_lookup(&self, uid: &str) -> usize {
        let mut lookups = self.lookups.lock();
        lookups.retain(|_, at| at.elapsed() < MAX_AGE);
        lookups.insert(uid.into(), Instant::now());
        lookups.len()
    }
}

impl Listing {
    fn begin(rounds: &ListingRounds, with_security_groups: bool) -> Self {
        Self {
            round: rounds.begin(),
            started: Instant::now(),
            stage: ListingStage::LoadBalancers,
            next_page: None,
            pages_read: 0,
            has_unreadable_floating_ips: false,
            unreadable_load_balancers: Vec::new(),
            load_balancers: HashMap::new(),
            listeners: HashMap::new(),
            pools: HashMap::new(),
            monitors: HashMap::new(),
            floating_ips: HashMap::new(),
            security_groups: with_security_groups.then(ListedGroups::default),
        }
    }

    fn is_complete(&self) -> bool {
        self.stage == ListingStage::Done
    }

    /// Reads pages until the listing is complete or has `max_pages` pages.
    async fn read(
        &mut self,
        api: Api<'_>,
        cluster: &str,
        max_pages: usize,
    ) -> Result<(), OpenStackError> {
        while !self.is_complete() && self.pages_read < max_pages {
            self.read_next_page(api, cluster).await?;
        }
        Ok(())
    }

    /// Reads one page and keeps the objects of this cluster. Starts the next stage after the last
    /// page.
    async fn read_next_page(&mut self, api: Api<'_>, cluster: &str) -> Result<(), OpenStackError> {
        match self.stage {
            ListingStage::LoadBalancers => self.read_load_balancers(api, cluster).await?,
            ListingStage::Listeners => self.read_listeners(api).await?,
            ListingStage::Pools => self.read_pools(api).await?,
            ListingStage::Monitors => self.read_monitors(api).await?,
            ListingStage::FloatingIps => self.read_floating_ips(api).await?,
            ListingStage::SecurityGroups => self.read_security_groups(api).await?,
            ListingStage::Ports => self.read_ports(api).await?,
            ListingStage::Done => {}
        }
        if self.next_page.is_none() {
            self.stage = self.next_stage();
        }
        Ok(())
    }

    fn next_stage(&self) -> ListingStage {
        match self.stage {
            ListingStage::LoadBalancers => ListingStage::Listeners,
            ListingStage::Listeners => ListingStage::Pools,
            ListingStage::Pools => ListingStage::Monitors,
            ListingStage::Monitors => ListingStage::FloatingIps,
            ListingStage::FloatingIps if self.security_groups.is_some() => {
                ListingStage::SecurityGroups
            }
            ListingStage::SecurityGroups => ListingStage::Ports,
            ListingStage::FloatingIps | ListingStage::Ports | ListingStage::Done => {
                ListingStage::Done
            }
        }
    }

    async fn read_load_balancers(
        &mut self,
        api: Api<'_>,
        cluster: &str,
    ) -> Result<(), OpenStackError> {
        let prefix = names::load_balancer_prefix(cluster);
        let page = self
            .fetch_page::<LoadBalancer>(api, Call::LoadBalancerList, "loadbalancers")
            .await?;
        self.unreadable_load_balancers.extend(page.unreadable);
        for load_balancer in page.rows {
            if load_balancer.name.starts_with(&*prefix)
                || load_balancer
                    .tags
                    .iter()
                    .any(|tag| tag.starts_with(&*prefix))
            {
                self.load_balancers
                    .insert(load_balancer.id.as_str().into(), load_balancer);
            }
        }
        Ok(())
    }

    async fn read_listeners(&mut self, api: Api<'_>) -> Result<(), OpenStackError> {
        let page = self
            .fetch_page::<Listener>(api, Call::ListenerList, "listeners")
            .await?;
        for listener in page.rows {
            if let Some(parent) = self.find_parent(&listener.loadbalancers) {
                self.listeners.entry(parent).or_default().push(listener);
            }
        }
        Ok(())
    }

    async fn read_pools(&mut self, api: Api<'_>) -> Result<(), OpenStackError> {
        for pool in self
            .fetch_page::<Pool>(api, Call::PoolList, "pools")
            .await?
            .rows
        {
            if let Some(parent) = self.find_parent(&pool.loadbalancers) {
                self.pools.entry(parent).or_default().push(pool);
            }
        }
        Ok(())
    }

    /// Finds the load balancer of a listener or pool, if it belongs to this cluster.
    fn find_parent(&self, load_balancers: &[IdRef]) -> Option<Box<str>> {
        load_balancers
            .iter()
            .find(|parent| self.load_balancers.contains_key(&*parent.id))
            .map(|parent| parent.id.as_str().into())
    }

    /// Reads a page of health monitors. Sends no request if no pool has one.
    async fn read_monitors(&mut self, api: Api<'_>) -> Result<(), OpenStackError> {
        let ids: HashSet<String> = self
            .pools
            .values()
            .flatten()
            .filter_map(|pool| pool.healthmonitor_id.clone())
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        let page = self
            .fetch_page::<HealthMonitor>(api, Call::MonitorList, "healthmonitors")
            .await?;
        for monitor in page.rows {
            if ids.contains(&monitor.id) {
                self.monitors.insert(monitor.id.as_str().into(), monitor);
            }
        }
        Ok(())
    }

    async fn read_floating_ips(&mut self, api: Api<'_>) -> Result<(), OpenStackError> {
        let vip_ports: HashSet<String> = self
            .load_balancers
            .values()
            .filter_map(|load_balancer| load_balancer.vip_port_id.clone())
            .collect();
        let page = self
            .fetch_page::<FloatingIp>(api, Call::FloatingIpList, "floatingips")
            .await?;
        self.has_unreadable_floating_ips |= !page.unreadable.is_empty();
        for floating_ip in page.rows {
            if let Some(port) = floating_ip.port_id.as_deref()
                && vip_ports.contains(port)
            {
                self.floating_ips.entry(port.into()).or_insert(floating_ip);
            }
        }
        Ok(())
    }

    async fn read_security_groups(&mut self, api: Api<'_>) -> Result<(), OpenStackError> {
        let page = self
            .fetch_page::<SecurityGroup>(api, Call::SecurityGroupList, "security-groups")
            .await?;
        let Some(listed) = &mut self.security_groups else {
            return Ok(());
        };
        listed.is_incomplete |= !page.unreadable.is_empty();
        for group in page.rows {
            if group.name.starts_with(names::GROUP_PREFIX) {
                listed
                    .by_name
                    .entry(group.name.as_str().into())
                    .or_default()
                    .push(group);
            }
        }
        Ok(())
    }

    async fn read_ports(&mut self, api: Api<'_>) -> Result<(), OpenStackError> {
        let page = self
            .fetch_page::<Port>(api, Call::PortList, "ports")
            .await?;
        // `Arc::get_mut` succeeds, because nobody shares the ports before the listing is complete.
        if let Some(listed) = &mut self.security_groups {
            listed.is_incomplete |= !page.unreadable.is_empty();
        }
        if let Some(listed) = &mut self.security_groups
            && let Some(ports) = Arc::get_mut(&mut listed.ports)
        {
            for port in page.rows {
                ports.add(port);
            }
        }
        Ok(())
    }

    /// Fetches the next page of the current stage. If a load balancer, listener, pool or monitor on it
    /// cannot be read, its Service is read alone, because the listing does not show all of it.
    async fn fetch_page<T: DeserializeOwned>(
        &mut self,
        api: Api<'_>,
        call: Call,
        path: &str,
    ) -> Result<Rows<T>, OpenStackError> {
        let path = [path];
        let mut query = vec![("limit", PAGE)];
        // The ports of nodes may belong to another project, but nothing else of this cluster does.
        let project = api.client.session().project().await?;
        if call != Call::PortList {
            query.extend(project.as_deref().map(|id| ("project_id", id)));
        }
        let request = Request::new(call, &path).query(&query);
        let (rows, next_page) = api
            .client
            .get_page(api.op, &request, self.next_page.clone())
            .await?;
        self.next_page = next_page;
        self.pages_read += 1;
        Ok(rows)
    }

    /// Takes a Service's load balancer out of the listing, unless other Services share it. Returns
    /// `None` if the listing does not show all of it, or if it is not ACTIVE.
    fn take_service(&mut self, query: &LoadBalancerQuery<'_>) -> Option<ListedService> {
        let id = self.find_load_balancer(query)?;
        let load_balancer = self.load_balancers.get(&id)?;
        if load_balancer.provisioning_status != ProvisioningStatus::Active
            || !self.has_all_children(load_balancer)
        {
            return None;
        }
        let vip_port = load_balancer.vip_port_id.as_deref()?;
        let floating_ip = match self.floating_ips.get(vip_port) {
            None if self.has_unreadable_floating_ips => AttachedFloatingIp::Unknown,
            found => found.cloned().into(),
        };
        let mut observed = ObservedLoadBalancer::new(load_balancer.clone());
        for pool in self.pools.get(&id).into_iter().flatten() {
            if let Some(monitor) = &pool.healthmonitor_id {
                observed
                    .monitors
                    .insert(monitor.clone(), self.monitors.get(&**monitor)?.clone());
            }
        }
        // The other Services of a shared load balancer still need it.
        if is_shared(load_balancer) {
            observed.listeners = self.listeners.get(&id).cloned().unwrap_or_default();
            observed.pools = self.pools.get(&id).cloned().unwrap_or_default();
        } else {
            self.load_balancers.remove(&id);
            observed.listeners = self.listeners.remove(&id).unwrap_or_default();
            observed.pools = self.pools.remove(&id).unwrap_or_default();
        }
        Some(ListedService {
            observed,
            floating_ip,
            security_group: self.take_security_group(query),
            read_at: self.started,
        })
    }

    /// Finds a Service's load balancer by its ID, or else by a name that occurs once.
    fn find_load_balancer(&self, query: &LoadBalancerQuery<'_>) -> Option<Box<str>> {
        if let Some(id) = query.id {
            return Some(id.into());
        }
        let service = query.service_key;
        let name = names::load_balancer(query.cluster, &service.namespace, &service.name);
        let mut unreadable = self.unreadable_load_balancers.iter();
        if unreadable.any(|row| row.may_have("name", &name)) {
            return None;
        }
        let mut with_name = self
            .load_balancers
            .iter()
            .filter(|(_, load_balancer)| *load_balancer.name == *name);
        let (id, _) = with_name.next()?;
        if with_name.next().is_some() {
            return None;
        }
        Some(id.clone())
    }

    /// Returns true if the listing has exactly the children that the load balancer refers to. It
    /// has not if something was created or deleted between two pages.
    fn has_all_children(&self, load_balancer: &LoadBalancer) -> bool {
        let id = &*load_balancer.id;
        let listeners = self.listeners.get(id).into_iter().flatten();
        let pools = self.pools.get(id).into_iter().flatten();
        has_same_ids(&load_balancer.listeners, listeners.map(|listener| &*listener.id))
            && has_same_ids(&load_balancer.pools, pools.map(|pool| &*pool.id))
    }

    fn take_security_group(
        &mut self,
        query: &LoadBalancerQuery<'_>,
    ) -> Option<ListedSecurityGroup> {
        let listed = self.security_groups.as_mut()?;
        if listed.is_incomplete {
            return None;
        }
        let service = query.service_key;
        let name = names::security_group(&service.uid, &service.namespace, &service.name);
        Some(ListedSecurityGroup {
            started: self.started,
            groups: listed.by_name.remove(&name).unwrap_or_default(),
            ports: listed.ports.clone(),
        })
    }
}

/// Returns true if a load balancer has the tags of several Services.
fn is_shared(load_balancer: &LoadBalancer) -> bool {
    let service_tags = load_balancer
        .tags
        .iter()
        .filter(|tag| tag.starts_with(names::PREFIX));
    service_tags.count() > 1
}

/// Returns true if the references and the found objects have the same IDs.
fn has_same_ids<'a>(references: &[IdRef], found: impl Iterator<Item = &'a str>) -> bool {
    let expected: BTreeSet<&str> = references.iter().map(|child| &*child.id).collect();
    expected == found.collect()
}
