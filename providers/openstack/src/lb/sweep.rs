//! One look at everything that the cluster has, shared by Services that are looked at for the first time.
//!
//! After a restart every Service is compared with the cloud. Balancers, listeners, pools, health monitors and floating
//! IPs, and where they are managed security groups and the ports of servers, are read once for all of them, page by
//! page; only the members of a pool are a request of its own, since Octavia has no list of all. What the reading does
//! not show, or shows amid a change, is looked at alone: it never proves that something is not there. In a project with
//! many balancers of others the lists are long: no more pages are read than looks at single Services would have taken
//! so far, and what was read is kept until more Services come.

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

use super::{
    api::Api,
    memory::{Attached, Round, Rounds},
    names,
    observe::Question,
    security::listed::{Listed, Ports},
    seen::Seen,
    way::{PAGE, most_pages},
};
use crate::client::{Call, NextPage, OsError, Request};

/// How old a reading may be that tells of a Service which this process has not touched. A restart with hundreds of Services
/// may take minutes, because requests have a budget.
const AGE: Duration = Duration::from_secs(300);

/// The last reading. Whoever needs a newer one goes on with it, while others wait for that.
#[derive(Debug)]
pub(super) struct Sweeps {
    /// Whether Services have security groups.
    groups: bool,
    sweep: tokio::sync::Mutex<Option<Sweep>>,
    /// Services that were looked at and not shown by a reading, and when, until the next reading is complete.
    looks: Mutex<HashMap<Box<str>, Instant>>,
}

/// What of a list is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// First, so that a balancer's time of change is never newer than its children.
    Balancers,
    Listeners,
    Pools,
    Monitors,
    FloatingIps,
    Groups,
    Ports,
    /// Everything is read.
    Nothing,
}

/// A reading, complete or under way. Of others' things nothing is kept.
#[derive(Debug)]
struct Sweep {
    round: Round,
    begun: Instant,
    part: Part,
    next: Option<NextPage>,
    pages: usize,
    balancers: HashMap<Box<str>, LoadBalancer>,
    listeners: HashMap<Box<str>, Vec<Listener>>,
    pools: HashMap<Box<str>, Vec<Pool>>,
    monitors: HashMap<Box<str>, HealthMonitor>,
    /// By the port that they are attached to.
    floating: HashMap<Box<str>, FloatingIp>,
    /// Where groups are managed.
    groups: Option<Groups>,
}

/// Security groups by name, and ports of servers.
#[derive(Debug, Default)]
struct Groups {
    by_name: HashMap<Box<str>, Vec<SecurityGroup>>,
    ports: Arc<Ports>,
}

/// What a reading shows of a Service: everything but members.
pub(super) struct Swept {
    pub(super) seen: Seen,
    pub(super) floating: Attached,
    pub(super) listed: Option<Listed>,
    pub(super) read_at: Instant,
}

impl Sweeps {
    /// Makes it without a reading. `groups`: whether Services have security groups.
    pub(super) fn new(groups: bool) -> Self {
        Self { groups, sweep: tokio::sync::Mutex::default(), looks: Mutex::default() }
    }

    /// Shows what there is of a Service, by a reading that is newer than what this process did last; nothing when the
    /// Service has to be looked at alone.
    ///
    /// # Errors
    /// There is no turn for a request at the moment. Every other failure leads to a look at the Service alone, which says
    /// what it is about.
    pub(super) async fn find(
        &self,
        api: Api<'_>,
        rounds: &Rounds,
        question: &Question<'_>,
        touched: Option<Round>,
    ) -> Result<Option<Swept>, OsError> {
        let mut last = api.op.queue(self.sweep.lock()).await;
        last.take_if(|sweep| sweep.begun.elapsed() >= AGE);
        let counts = |sweep: &Sweep| touched.is_none_or(|touched| sweep.round > touched);
        if !last.as_ref().is_some_and(|sweep| counts(sweep) && sweep.part == Part::Nothing) {
            let most = most_pages(self.note(&question.who.uid), self.groups);
            if !last.as_ref().is_some_and(counts) {
                if most == 0 {
                    return Ok(None);
                }
                *last = Some(Sweep::begin(rounds, self.groups));
            }
            let Some(sweep) = &mut *last else { return Ok(None) };
            match sweep.read(api, question.cluster, most).await {
                Ok(true) => self.looks.lock().clear(),
                Ok(false) => return Ok(None),
                Err(error) if error.turn_after().is_some() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "load balancers cannot be read together");
                    self.looks.lock().clear();
                    *last = None;
                    return Ok(None);
                }
            }
        }
        Ok(last.as_mut().and_then(|sweep| sweep.show(question)))
    }

    /// Counts the Services that were looked at, with this one.
    fn note(&self, uid: &str) -> usize {
        let mut looks = self.looks.lock();
        looks.retain(|_, at| at.elapsed() < AGE);
        looks.insert(uid.into(), Instant::now());
        looks.len()
    }
}

impl Sweep {
    fn begin(rounds: &Rounds, groups: bool) -> Self {
        Self {
            round: rounds.begin(),
            begun: Instant::now(),
            part: Part::Balancers,
            next: None,
            pages: 0,
            balancers: HashMap::new(),
            listeners: HashMap::new(),
            pools: HashMap::new(),
            monitors: HashMap::new(),
            floating: HashMap::new(),
            groups: groups.then(Default::default),
        }
    }

    /// Reads on until everything is read, or that many pages are. Tells whether everything is.
    async fn read(&mut self, api: Api<'_>, cluster: &str, most: usize) -> Result<bool, OsError> {
        while self.part != Part::Nothing && self.pages < most {
            self.read_on(api, cluster).await?;
        }
        Ok(self.part == Part::Nothing)
    }

    /// Reads one page more.
    async fn read_on(&mut self, api: Api<'_>, cluster: &str) -> Result<(), OsError> {
        let then = match self.part {
            Part::Balancers => {
                let prefix = names::load_balancer_prefix(cluster);
                for row in self.page::<LoadBalancer>(api, Call::LoadBalancerList, "loadbalancers").await? {
                    if row.name.starts_with(&*prefix) || row.tags.iter().any(|tag| tag.starts_with(&*prefix)) {
                        self.balancers.insert(row.id.as_str().into(), row);
                    }
                }
                Part::Listeners
            }
            Part::Listeners => {
                for row in self.page::<Listener>(api, Call::ListenerList, "listeners").await? {
                    if let Some(of) = row.loadbalancers.iter().find(|of| self.balancers.contains_key(&*of.id)) {
                        self.listeners.entry(of.id.as_str().into()).or_default().push(row);
                    }
                }
                Part::Pools
            }
            Part::Pools => {
                for row in self.page::<Pool>(api, Call::PoolList, "pools").await? {
                    if let Some(of) = row.loadbalancers.iter().find(|of| self.balancers.contains_key(&*of.id)) {
                        self.pools.entry(of.id.as_str().into()).or_default().push(row);
                    }
                }
                Part::Monitors
            }
            Part::Monitors => {
                let pools = self.pools.values().flatten();
                let wanted: HashSet<String> = pools.filter_map(|pool| pool.monitor.healthmonitor_id.clone()).collect();
                if !wanted.is_empty() {
                    for row in self.page::<HealthMonitor>(api, Call::MonitorList, "healthmonitors").await? {
                        if wanted.contains(&row.id) {
                            self.monitors.insert(row.id.as_str().into(), row);
                        }
                    }
                }
                Part::FloatingIps
            }
            Part::FloatingIps => {
                let ports = self.balancers.values().filter_map(|balancer| balancer.vip_port_id.clone());
                let ports: HashSet<String> = ports.collect();
                for row in self.page::<FloatingIp>(api, Call::FloatingIpList, "floatingips").await? {
                    if let Some(port) = row.port_id.clone().filter(|port| ports.contains(port)) {
                        self.floating.entry(port.into()).or_insert(row);
                    }
                }
                if self.groups.is_some() { Part::Groups } else { Part::Nothing }
            }
            Part::Groups => self.read_groups(api).await?,
            Part::Ports => self.read_ports(api).await?,
            Part::Nothing => return Ok(()),
        };
        if self.next.is_none() {
            self.part = then;
        }
        Ok(())
    }

    async fn read_groups(&mut self, api: Api<'_>) -> Result<Part, OsError> {
        let rows = self.page::<SecurityGroup>(api, Call::SecurityGroupList, "security-groups").await?;
        if let Some(groups) = &mut self.groups {
            for row in rows.into_iter().filter(|row| row.name.starts_with(names::GROUP_PREFIX)) {
                groups.by_name.entry(row.name.as_str().into()).or_default().push(row);
            }
        }
        Ok(Part::Ports)
    }

    async fn read_ports(&mut self, api: Api<'_>) -> Result<Part, OsError> {
        let rows = self.page::<Port>(api, Call::PortList, "ports").await?;
        // Nobody has been shown them yet.
        if let Some(ports) = self.groups.as_mut().and_then(|groups| Arc::get_mut(&mut groups.ports)) {
            for row in rows {
                ports.add(row);
            }
        }
        Ok(Part::Nothing)
    }

    async fn page<T: DeserializeOwned>(&mut self, api: Api<'_>, call: Call, path: &str) -> Result<Vec<T>, OsError> {
        let path = [path];
        let request = Request::new(call, &path).query(&[("limit", PAGE)]);
        let (rows, next) = api.client.get_page(api.op, &request, self.next.clone()).await?;
        self.next = next;
        self.pages += 1;
        Ok(rows)
    }

    /// Gives a Service's balancer away, if the reading says all about it and nothing was amiss.
    fn show(&mut self, question: &Question<'_>) -> Option<Swept> {
        let id: Box<str> = match question.id {
            Some(id) => id.into(),
            None => {
                let name = names::load_balancer(question.cluster, &question.who.namespace, &question.who.name);
                let mut named = self.balancers.iter().filter(|(_, balancer)| *balancer.name == *name);
                let (id, _) = named.next()?;
                if named.next().is_some() {
                    return None;
                }
                id.clone()
            }
        };
        let balancer = self.balancers.get(&id)?;
        if balancer.provisioning_status != ProvisioningStatus::Active {
            return None;
        }
        let (listeners, pools) = (self.listeners.get(&id), self.pools.get(&id));
        let (listeners, pools) = (listeners.map_or(&[][..], Vec::as_slice), pools.map_or(&[][..], Vec::as_slice));
        // Something came or went between the lists.
        if !are_all(&balancer.listeners, listeners.iter().map(|listener| &*listener.id))
            || !are_all(&balancer.pools, pools.iter().map(|pool| &*pool.id))
        {
            return None;
        }
        let mut seen = Seen::bare(balancer.clone());
        for id in pools.iter().filter_map(|pool| pool.monitor.healthmonitor_id.as_deref()) {
            seen.monitors.insert(id.to_owned(), self.monitors.get(id)?.clone());
        }
        let floating = self.floating.get(balancer.vip_port_id.as_deref()?).cloned().into();
        let listed = self.groups.as_mut().map(|groups| {
            let name = names::security_group(&question.who.uid, &question.who.namespace, &question.who.name);
            Listed {
                begun: self.begun,
                groups: groups.by_name.remove(&name).unwrap_or_default(),
                ports: groups.ports.clone(),
            }
        });
        // Other Services of a shared balancer come for it as well.
        if balancer.tags.iter().filter(|tag| tag.starts_with(names::PREFIX)).count() > 1 {
            (seen.listeners, seen.pools) = (listeners.to_vec(), pools.to_vec());
        } else {
            self.balancers.remove(&id);
            seen.listeners = self.listeners.remove(&id).unwrap_or_default();
            seen.pools = self.pools.remove(&id).unwrap_or_default();
        }
        Some(Swept { seen, floating, listed, read_at: self.begun })
    }
}

fn are_all<'a>(named: &[IdRef], found: impl Iterator<Item = &'a str>) -> bool {
    let named: BTreeSet<&str> = named.iter().map(|of| &*of.id).collect();
    named == found.collect()
}
