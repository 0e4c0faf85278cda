//! Sees every change of the cluster and the cloud as it happens, and judges what must hold at every
//! moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::k8s::well_known;
use ccm_mock::{
    MockCloud,
    cloud::{LoadBalancer, LoadBalancerState, PowerState, Route},
};
use ccm_testkit::{
    apiserver::{ApiServer, Change, Event},
    kubelet::UNINITIALIZED_TAINT,
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    interceptor::{Operation, OperationKind},
    objects::{
        addresses, has_finalizer, has_taint, ingress, is_backend, is_foreign, is_nobodys,
        is_of_another_class, is_out_of_service, pod_cidrs, text, wants_balancer,
    },
    process::Process,
};

/// How long a lease that is not renewed runs, as the flags of every scenario say.
const LEASE: Duration = Duration::from_secs(15);
const NODES: (&str, &str) = ("", "nodes");
const SERVICES: (&str, &str) = ("", "services");

/// The witness of one world; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct InvariantChecker {
    server: ApiServer,
    cloud: MockCloud,
    begin: Instant,
    state: Arc<Mutex<CheckerState>>,
}

#[derive(Default)]
struct CheckerState {
    /// Up to where the store was looked at.
    version: u64,
    balancers: BTreeMap<String, ObservedObject<LoadBalancer>>,
    routes: BTreeMap<String, ObservedObject<Route>>,
    /// When each node was last no backend, by version of the store.
    unfit: BTreeMap<String, u64>,
    /// When each pod network last belonged to no node of this name.
    unrouted: BTreeMap<(String, String), u64>,
    /// Names of Services whose deletion begins before they have the finalizer.
    late: BTreeSet<String>,
    /// UIDs of those of them that went with the finalizer, and whether a load balancer that was not
    /// there yet may still come.
    unheld: BTreeMap<String, bool>,
    found: Vec<String>,
}

/// A cloud object and since when it is there.
struct ObservedObject<T> {
    object: T,
    /// Since which version of the store each part is there: members of a balancer, or the route
    /// itself.
    since: BTreeMap<String, u64>,
}

/// Who did it: the process and its operation; none for somebody else.
pub(crate) type Cause<'a> = Option<(&'a Process, &'a str)>;

impl InvariantChecker {
    /// A witness of all that happens from now on.
    pub fn new(server: ApiServer, cloud: MockCloud) -> Self {
        let state = CheckerState { version: server.store().version(), ..CheckerState::default() };
        Self {
            server,
            cloud,
            begin: Instant::now(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// What must not have happened, in order.
    pub fn found(&self) -> Vec<String> {
        self.state.lock().found.clone()
    }

    /// Adds a finding.
    pub(crate) fn report(&self, who: Cause<'_>, what: &str) {
        let at = self.begin.elapsed().as_secs_f64();
        let who = who.map_or("nobody under test".to_owned(), |(process, operation)| {
            format!("process {} by {operation}", process.number)
        });
        self.state
            .lock()
            .found
            .push(format!("{what} ({who}, after {at:.3} s)"));
    }

    /// Judges that an operation is begun at all.
    pub(crate) fn starts(&self, process: &Process, operation: &Operation) {
        if operation.kind != OperationKind::Write {
            return;
        }
        let Some(tenure) = process.tenure() else {
            return;
        };
        let who = Some((process, &*operation.name));
        let age = tenure.renewed.elapsed();
        if age > LEASE {
            let age = age.as_secs_f64();
            self.report(
                who,
                &format!("a write was begun {age:.1} s after the last renewal of the lease, which runs 15 s"),
            );
        }
        if self
            .holder()
            .is_some_and(|holder| holder != tenure.identity)
        {
            self.report(who, "a write was begun while another process holds the lease");
        }
    }

    /// Who holds the lease, as its record says.
    pub(crate) fn holder(&self) -> Option<String> {
        let lease = self.server.store().get(
            ("coordination.k8s.io", "leases"),
            "kube-system",
            "cloud-controller-manager",
        );
        lease.map(|lease| text(&lease.value()["spec"]["holderIdentity"]).to_owned())
    }

    /// The deletion of the Service of this name begins before it has the finalizer.
    pub(crate) fn expect_unheld(&self, name: &str) {
        self.state.lock().late.insert(name.to_owned());
    }

    /// Says it if not every Service that was to go with the finalizer went so: then the scenario
    /// shows nothing.
    pub(crate) fn check_finalizers(&self) -> Option<String> {
        let state = self.state.lock();
        let (late, unheld) = (state.late.len(), state.unheld.len());
        (late != unheld).then(|| {
            format!("of {late} Services {unheld} were deleted although they had the finalizer")
        })
    }

    /// Looks at what changed since the last look.
    pub(crate) fn check_changes(&self, who: Cause<'_>) {
        self.check_services(who);
        self.check_nodes(who);
        let version = self.server.store().version();
        self.state.lock().version = version;
        self.check_load_balancers(who, version);
        self.check_routes(who, version);
    }

    fn events(&self, key: (&'static str, &'static str)) -> Vec<Arc<Event>> {
        let version = self.state.lock().version;
        match self.server.store().backlog(key, version, usize::MAX) {
            Ok(backlog) => backlog.events,
            Err(_) => {
                self.report(
                    None,
                    "the history was lost before it was looked at: a mistake of the explorer",
                );
                Vec::new()
            }
        }
    }

    fn balancer_of(&self, uid: &str) -> Option<LoadBalancer> {
        self.cloud
            .load_balancers()
            .into_iter()
            .find(|balancer| balancer.uid == uid && !balancer.retained)
    }

    fn check_services(&self, who: Cause<'_>) {
        for event in self.events(SERVICES) {
            let (after, before) =
                (event.object.value(), event.previous.as_ref().map(|object| object.value()));
            let (name, uid) = (text(&after["metadata"]["name"]), text(&after["metadata"]["uid"]));
            let is_gone = event.change == Change::Deleted;
            let is_guarded = !is_gone && has_finalizer(&after);
            let was_guarded = before.as_ref().is_some_and(has_finalizer);
            let balancer = self.balancer_of(uid);
            let is_unheld =
                is_gone && has_finalizer(&after) && self.state.lock().late.contains(name);
            if is_unheld {
                self.state
                    .lock()
                    .unheld
                    .insert(uid.to_owned(), balancer.is_none());
            }
            // A user may take it off by hand.
            if who.is_some() && was_guarded && !is_guarded && !is_unheld && balancer.is_some() {
                self.report(
                    who,
                    &format!("the finalizer of Service {name} was removed while its load balancer is there"),
                );
            }
            let shown = ingress(&after);
            if is_of_another_class(&after) {
                self.look_at_anothers(
                    who,
                    name,
                    (is_guarded, was_guarded),
                    (shown.len(), before.as_ref().map(ingress)),
                );
                continue;
            }
            let told = before
                .as_ref()
                .is_some_and(|before| ingress(before) == shown);
            let real: Vec<String> = balancer
                .iter()
                .flat_map(|b| &b.addresses)
                .map(ToString::to_string)
                .collect();
            if !is_gone && !told && !shown.iter().all(|address| real.contains(address)) {
                self.report(
                    who,
                    &format!(
                        "the status of Service {name} shows {shown:?}, which no load balancer has"
                    ),
                );
            }
        }
    }

    /// A Service of another controller's class.
    fn look_at_anothers(
        &self,
        who: Cause<'_>,
        name: &str,
        (is_guarded, was_guarded): (bool, bool),
        (shown, showed): (usize, Option<Vec<String>>),
    ) {
        if is_guarded && !was_guarded {
            self.report(
                who,
                &format!("Service {name} of another controller's class got a finalizer"),
            );
        }
        if shown == 0 && showed.is_some_and(|showed| !showed.is_empty()) {
            self.report(
                who,
                &format!(
                    "the status of Service {name} of another controller's class was taken away"
                ),
            );
        }
    }

    fn check_nodes(&self, who: Cause<'_>) {
        for event in self.events(NODES) {
            let node = event.object.value();
            let name = text(&node["metadata"]["name"]).to_owned();
            let gone = event.change == Change::Deleted;
            if is_foreign(&node) {
                self.look_at_foreign(who, &name, &event);
            } else if gone && who.is_some() && is_nobodys(&node) {
                self.report(who, &format!("Node {name} of nobody was deleted"));
            } else if gone
                && who.is_some()
                && self
                    .cloud
                    .instance(&name)
                    .is_some_and(|i| i.power_state != PowerState::Terminated)
            {
                self.report(who, &format!("Node {name} was deleted while its instance exists"));
            }
            let tainted = |node: &Value| has_taint(node, UNINITIALIZED_TAINT);
            let untainted = !gone
                && !tainted(&node)
                && event
                    .previous
                    .as_ref()
                    .is_some_and(|old| tainted(&old.value()));
            if untainted
                && (addresses(&node).is_empty() || text(&node["spec"]["providerID"]).is_empty())
            {
                self.report(
                    who,
                    &format!(
                        "Node {name} lost the taint before it had its addresses and provider ID"
                    ),
                );
            }
            if !gone && who.is_some() {
                self.check_out_of_service(who, &name, &node, &event);
            }
            let mut state = self.state.lock();
            if gone || !is_backend(&node) {
                state.unfit.insert(name.clone(), event.version);
            }
            let old = event
                .previous
                .as_ref()
                .map(|object| object.value())
                .unwrap_or_default();
            let now: BTreeSet<_> = if gone {
                BTreeSet::new()
            } else {
                pod_cidrs(&node).into_iter().collect()
            };
            for cidr in pod_cidrs(&old)
                .into_iter()
                .chain(pod_cidrs(&node))
                .filter(|cidr| !now.contains(cidr))
            {
                state.unrouted.insert((name.clone(), cidr), event.version);
            }
            drop(state);
            self.check_duplicate_cidrs(who, &name, &now);
        }
    }

    /// A Node is marked out of service only while its instance is stopped or gone, whatever the
    /// cloud answers.
    fn check_out_of_service(&self, who: Cause<'_>, name: &str, node: &Value, event: &Event) {
        let old = event.previous.as_ref().map(|object| object.value());
        if !is_out_of_service(node) || old.as_ref().is_some_and(is_out_of_service) {
            return;
        }
        let is_off = self.cloud.instance(name).is_none_or(|instance| {
            matches!(instance.power_state, PowerState::Stopped | PowerState::Terminated)
        });
        if !is_off {
            self.report(
                who,
                &format!("Node {name} was marked out of service while its instance runs"),
            );
        }
    }

    /// Nothing of a Node of another provider's is ours: not the Node, nor its taints, labels and
    /// provider ID.
    fn look_at_foreign(&self, who: Cause<'_>, name: &str, event: &Event) {
        if who.is_none() {
            return;
        }
        if event.change == Change::Deleted {
            self.report(who, &format!("Node {name} of another provider was deleted"));
        }
        let Some(before) = event.previous.as_ref().map(|object| object.value()) else {
            return;
        };
        let after = event.object.value();
        for path in ["/spec/taints", "/spec/providerID", "/metadata/labels"] {
            if before.pointer(path) != after.pointer(path) {
                self.report(who, &format!("{path} of Node {name} of another provider was changed"));
            }
        }
    }

    fn check_duplicate_cidrs(&self, who: Cause<'_>, name: &str, cidrs: &BTreeSet<String>) {
        for other in self
            .server
            .store()
            .list(NODES, None)
            .0
            .iter()
            .map(|object| object.value())
        {
            let theirs = text(&other["metadata"]["name"]);
            for cidr in pod_cidrs(&other)
                .iter()
                .filter(|cidr| theirs != name && cidrs.contains(*cidr))
            {
                self.report(
                    who,
                    &format!("pod network {cidr} belongs to Node {name} and to Node {theirs}"),
                );
            }
        }
    }

    fn check_load_balancers(&self, who: Cause<'_>, version: u64) {
        // One that is being deleted serves nobody any more.
        let serving = self
            .cloud
            .load_balancers()
            .into_iter()
            .filter(|b| b.state != LoadBalancerState::Deleting);
        let now: BTreeMap<_, _> = serving.map(|b| (b.id.clone(), b)).collect();
        let mut before = std::mem::take(&mut self.state.lock().balancers);
        for (id, gone) in before.iter().filter(|(id, _)| !now.contains_key(*id)) {
            let LoadBalancer { service, uid, retained, .. } = &gone.object;
            let asks_to_keep = self.service(service).is_some_and(|service| {
                service["metadata"]["annotations"][well_known::ANNOTATION_RETAIN] == "true"
            });
            if *retained || asks_to_keep {
                self.report(who, &format!("load balancer {id} was deleted, which is to be kept"));
            }
            if self
                .service(service)
                .is_some_and(|s| text(&s["metadata"]["uid"]) == uid && wants_balancer(&s))
            {
                self.report(
                    who,
                    &format!("load balancer {id} was deleted while Service {service} wants it"),
                );
            }
        }
        for (id, balancer) in &now {
            let members = balancer.members.node_names();
            let mut since: BTreeMap<_, _> = members
                .into_iter()
                .map(|member| (member, version))
                .collect();
            match before.remove(id) {
                None => self.check_created_load_balancer(who, balancer, &now),
                Some(seen) => {
                    for (member, added) in seen.since {
                        match since.get_mut(&member) {
                            Some(kept) => *kept = added,
                            None => self.look_at_removal(who, balancer, &member, added),
                        }
                    }
                }
            }
            let seen = ObservedObject { object: balancer.clone(), since };
            self.state.lock().balancers.insert(id.clone(), seen);
        }
    }

    fn check_created_load_balancer(
        &self,
        who: Cause<'_>,
        born: &LoadBalancer,
        all: &BTreeMap<String, LoadBalancer>,
    ) {
        let service = self.service(&born.service);
        if service.as_ref().is_some_and(is_of_another_class) {
            self.report(
                who,
                &format!("a load balancer was made for Service {} of another class", born.service),
            );
        }
        let guarded = match &service {
            Some(service) => has_finalizer(service),
            // One that is being made when its Service goes comes all the same, but not twice.
            None => self
                .state
                .lock()
                .unheld
                .get_mut(&born.uid)
                .is_some_and(std::mem::take),
        };
        if !guarded {
            self.report(
                who,
                &format!(
                    "a load balancer was made for Service {} before its finalizer",
                    born.service
                ),
            );
        }
        if all.values().filter(|other| other.uid == born.uid).count() > 1 {
            self.report(who, &format!("Service {} has two load balancers", born.service));
        }
    }

    fn look_at_removal(&self, who: Cause<'_>, balancer: &LoadBalancer, member: &str, added: u64) {
        let node = self
            .server
            .store()
            .get(NODES, "", member)
            .map(|object| object.value());
        let serves = node.is_some_and(|node| is_backend(&node));
        let always = self
            .state
            .lock()
            .unfit
            .get(member)
            .is_none_or(|unfit| *unfit < added);
        if serves && always {
            let service = &balancer.service;
            self.report(
                who,
                &format!(
                    "serving node {member} was removed from the load balancer of Service {service}"
                ),
            );
        }
    }

    fn check_routes(&self, who: Cause<'_>, version: u64) {
        let now: BTreeMap<_, _> = self
            .cloud
            .routes()
            .into_iter()
            .map(|route| (route.name.clone(), route))
            .collect();
        let mut before = std::mem::take(&mut self.state.lock().routes);
        for (name, gone) in before.iter().filter(|(name, _)| !now.contains_key(*name)) {
            let Route { node, destination, .. } = &gone.object;
            let added = gone.since.values().copied().next().unwrap_or(version);
            let owner = self
                .server
                .store()
                .get(NODES, "", node)
                .map(|object| object.value());
            let wanted =
                owner.is_some_and(|owner| pod_cidrs(&owner).contains(&destination.to_string()));
            let key = (node.clone(), destination.to_string());
            let always = self
                .state
                .lock()
                .unrouted
                .get(&key)
                .is_none_or(|unrouted| *unrouted < added);
            if wanted && always && !gone.object.blackhole {
                self.report(
                    who,
                    &format!("route {name} was deleted while Node {node} has {destination}"),
                );
            }
        }
        let seen = |(name, object): (String, Route)| {
            let since = before
                .remove(&name)
                .map_or_else(|| BTreeMap::from([(String::new(), version)]), |seen| seen.since);
            (name, ObservedObject { object, since })
        };
        let routes = now.into_iter().map(seen).collect();
        self.state.lock().routes = routes;
    }

    fn service(&self, key: &str) -> Option<Value> {
        let (namespace, name) = key.split_once('/')?;
        self.server
            .store()
            .get(SERVICES, namespace, name)
            .map(|object| object.value())
    }
}
