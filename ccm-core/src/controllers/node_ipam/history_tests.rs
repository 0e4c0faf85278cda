//! Random histories: nodes come and go, requests land late, twice, or never, watches lag, leaders
//! change with requests of the last one still on their way, etcd is restored from a backup, and
//! somebody else allocates as well. Whatever happens, nothing that is written by this controller
//! gives a block to a second node, and at the end exactly what nodes have is taken.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Eight IPv4 blocks of which services take two, and six IPv6 blocks less than there could be: both
/// run out.
const CLUSTERS: [(&str, u8); 2] = [("10.0.0.0/28", 31), ("fd00::/61", 64)];
const SERVICES: [&str; 1] = ["10.0.0.8/30"];
/// What others write: blocks of ours, wider and narrower ones, and what is none.
const FOREIGN: [&str; 7] = [
    "10.0.0.0/31",
    "10.0.0.2/31",
    "10.0.0.4/30",
    "10.0.0.6/32",
    "10.9.0.0/24",
    "nonsense",
    "10.0.0.12/31",
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Join(usize),
    Leave(usize),
    /// Marked for deletion; it stays until it leaves.
    Delete(usize),
    Heartbeat(usize),
    /// Another allocator writes.
    Foreign(usize, usize),
    /// One change reaches the leader's cache.
    Watch,
    /// The watch is cut; a list shows the difference.
    Relist,
    /// The leader works on a node.
    Work(usize),
    /// A request reaches the server, and its answer the leader.
    Land(usize),
    /// A request reaches the server; its answer is lost.
    LandUnheard(usize),
    /// The leader waits no longer for an answer; the request goes on.
    TimeOut(usize),
    /// The server refuses a request.
    Refuse(usize),
    /// A request is lost, which the leader cannot tell from a lost answer.
    Lose(usize),
    /// Another leader takes over. Requests of the last one go on.
    Lead,
    /// So much time passes that requests of earlier leaders have ended.
    Settle,
    /// So much time passes that a cache without what a node got is believed, whether or not it is
    /// behind.
    Wait,
    /// etcd is backed up.
    Backup,
    /// etcd is restored from the backup. API servers are down meanwhile: no request and no watch is
    /// left of before.
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..NAMES.len();
    prop_oneof![
        4 => node.clone().prop_map(Step::Join),
        2 => node.clone().prop_map(Step::Leave),
        1 => node.clone().prop_map(Step::Delete),
        2 => node.clone().prop_map(Step::Heartbeat),
        1 => (node.clone(), 0..FOREIGN.len()).prop_map(|(node, cidr)| Step::Foreign(node, cidr)),
        12 => Just(Step::Watch),
        1 => Just(Step::Relist),
        14 => node.prop_map(Step::Work),
        6 => (0..8_usize).prop_map(Step::Land),
        2 => (0..8_usize).prop_map(Step::LandUnheard),
        2 => (0..8_usize).prop_map(Step::TimeOut),
        1 => (0..8_usize).prop_map(Step::Refuse),
        1 => (0..8_usize).prop_map(Step::Lose),
        1 => Just(Step::Lead),
        2 => Just(Step::Settle),
        2 => Just(Step::Wait),
        1 => Just(Step::Backup),
        1 => Just(Step::Restore),
    ]
}

/// A patch on its way.
#[derive(Clone, Debug)]
struct Request {
    /// The leader that sent it, by number.
    leader: usize,
    node: NodeView,
    cidrs: Vec<IpNet>,
    /// Whether the sender still waits for the answer.
    heard: bool,
}

/// The server, the requests, and the leader of the day.
struct SimulatedCluster {
    server: BTreeMap<&'static str, NodeView>,
    backup: BTreeMap<&'static str, NodeView>,
    /// The last one. Not restored: that the same one is two states nobody can tell.
    versions: u64,
    now: Duration,
    requests: Vec<Request>,
    leader: usize,
    ledger: CidrAllocator,
    cache: BTreeMap<&'static str, NodeView>,
    /// What the leader's watch has still to show.
    watch: VecDeque<(&'static str, Option<NodeView>)>,
    /// Nodes that the leader will read before it writes to them again.
    look: BTreeSet<&'static str>,
}

fn new_ledger() -> CidrAllocator {
    let networks = CLUSTERS
        .map(|(cluster, node_mask)| PodNetwork { cluster: cluster.parse().unwrap(), node_mask });
    CidrAllocator::new(&networks, &SERVICES.map(|net| net.parse().unwrap())).unwrap()
}

fn nets(node: &NodeView) -> Vec<IpNet> {
    node.pod_cidrs
        .iter()
        .filter_map(|cidr| cidr.parse().ok())
        .collect()
}

fn overlap(a: &[IpNet], b: &[IpNet]) -> bool {
    a.iter()
        .any(|a| b.iter().any(|b| a.contains(b) || b.contains(a)))
}

impl SimulatedCluster {
    fn new() -> Self {
        Self {
            server: BTreeMap::new(),
            backup: BTreeMap::new(),
            versions: 0,
            now: Duration::ZERO,
            requests: Vec::new(),
            leader: 0,
            ledger: new_ledger(),
            cache: BTreeMap::new(),
            watch: VecDeque::new(),
            look: BTreeSet::new(),
        }
    }

    fn version(&mut self) -> Box<str> {
        self.versions += 1;
        self.versions.to_string().into()
    }

    /// Changes a node on the server.
    fn change(&mut self, name: &'static str, change: impl FnOnce(&mut NodeView)) {
        let version = self.version();
        let Some(node) = self.server.get_mut(name) else {
            return;
        };
        change(node);
        node.resource_version = version;
        self.watch.push_back((name, Some(node.clone())));
    }

    fn join(&mut self, name: &'static str) {
        if !self.server.contains_key(name) {
            let (uid, resource_version) = (self.version(), self.version());
            let node = NodeView { uid, resource_version, ..NodeView::named(name) };
            self.server.insert(name, node.clone());
            self.watch.push_back((name, Some(node)));
        }
    }

    fn leave(&mut self, name: &'static str) {
        if self.server.remove(name).is_some() {
            self.watch.push_back((name, None));
        }
    }

    fn watch(&mut self) {
        if let Some((name, state)) = self.watch.pop_front() {
            self.show(name, state);
        }
    }

    /// Shows the leader a state as its cache and its handler do.
    fn show(&mut self, name: &'static str, state: Option<NodeView>) {
        let old = self.cache.get(name).cloned();
        if let Some(old) = old.filter(|old| state.as_ref().is_none_or(|new| new.uid != old.uid)) {
            self.ledger.node_changed_since_start(name);
            self.ledger.node_deleted(&old);
            self.cache.remove(name);
            self.look.remove(name);
        }
        let Some(new) = state else { return };
        if let Some(old) = self.cache.insert(name, new.clone()) {
            self.ledger.node_changed_since_start(name);
            if old.pod_cidrs == new.pod_cidrs && old.deleting == new.deleting {
                return;
            }
        }
        self.ledger.observe_node(&new);
    }

    fn relist(&mut self) {
        self.watch.clear();
        for name in NAMES {
            let state = self.server.get(name).cloned();
            if state.as_ref() != self.cache.get(name) {
                self.show(name, state);
            }
        }
    }

    fn lead(&mut self) {
        self.leader += 1;
        self.ledger = new_ledger();
        self.cache.clear();
        self.look.clear();
        for request in &mut self.requests {
            request.heard = false;
        }
        self.relist();
        let nodes: Vec<_> = self.cache.values().cloned().map(Arc::new).collect();
        self.ledger.record_initial_nodes(&nodes);
    }

    /// Reads the nodes that were not seen to change once the requests have ended.
    fn settle(&mut self) {
        let leader = self.leader;
        self.requests.retain(|request| request.leader == leader);
        for name in self.ledger.unconfirmed_nodes() {
            self.ledger
                .confirm_initial_node(&name, self.server.get(&*name));
        }
    }

    /// Does what the controller does with a node until it has to wait.
    fn work(&mut self, name: &'static str) {
        let waits = |request: &Request| request.heard && &*request.node.name == name;
        if !self.ledger.are_initial_nodes_confirmed() || self.requests.iter().any(waits) {
            return;
        }
        let Some(mut node) = self
            .cache
            .get(name)
            .filter(|node| node.pod_cidrs.is_empty())
            .cloned()
        else {
            return;
        };
        if !node.deleting
            && self
                .ledger
                .record_missing_cidrs(name, &node.uid, self.now)
                .is_some()
        {
            return;
        }
        let look = self.look.remove(name) || self.ledger.has_in_flight_patch(name, &node.uid);
        if node.deleting && !look {
            return;
        }
        if look {
            let Some(fresh) = self.server.get(name).cloned() else {
                self.ledger.node_not_found(name, &node.uid);
                return;
            };
            self.ledger.node_read(name, &node.uid, &fresh);
            if fresh.uid != node.uid || !fresh.pod_cidrs.is_empty() || fresh.deleting {
                self.ledger.cancel(name, &node.uid);
                return;
            }
            node = fresh;
        }
        let AllocationDecision::Write(cidrs) = self.ledger.decide(&node.name, &node.uid) else {
            return;
        };
        for other in self.cache.values().filter(|other| *other.name != *name) {
            assert!(
                !overlap(&nets(other), &cidrs),
                "{name} is to get {cidrs:?}, {} is known to have it",
                other.name
            );
        }
        self.requests
            .push(Request { leader: self.leader, node, cidrs, heard: true });
    }

    fn take(&mut self, number: usize) -> Option<Request> {
        let number = number.checked_rem(self.requests.len())?;
        Some(self.requests.remove(number))
    }

    /// Lets the server decide on a request; `None` when the node is gone, else whether it was as
    /// expected.
    fn serve(&mut self, request: &Request) -> Option<bool> {
        let name = NAMES
            .into_iter()
            .find(|name| *name == &*request.node.name)
            .unwrap();
        let node = self.server.get(name)?;
        if node.uid != request.node.uid || node.resource_version != request.node.resource_version {
            return Some(false);
        }
        assert!(node.pod_cidrs.is_empty(), "a version is one state");
        for other in self
            .server
            .values()
            .filter(|other| *other.name != *name && overlap(&nets(other), &request.cidrs))
        {
            // Written by somebody else after, or unseen before, the request was sent: nobody can
            // prevent that.
            let by_others = other.annotations.contains("foreign");
            assert!(
                by_others,
                "{name} gets {:?}, {} has {:?}",
                request.cidrs, other.name, other.pod_cidrs
            );
        }
        let cidrs: Box<[Arc<str>]> = request
            .cidrs
            .iter()
            .map(|cidr| Arc::from(cidr.to_string()))
            .collect();
        self.change(name, |node| node.pod_cidrs = cidrs);
        Some(true)
    }

    fn land(&mut self, number: usize, heard: bool) {
        let Some(request) = self.take(number) else {
            return;
        };
        let outcome = self.serve(&request);
        if !request.heard {
            return;
        }
        let (name, uid) = (&*request.node.name, &*request.node.uid);
        match outcome.filter(|_| heard) {
            Some(true) => self.ledger.patch_applied(name, uid),
            Some(false) => {
                self.sync_node(name);
            }
            None if heard => self.ledger.node_not_found(name, uid),
            None => self
                .ledger
                .patch_unanswered(name, uid, &request.node.resource_version),
        }
    }

    fn sync_node(&mut self, name: &str) {
        self.look
            .extend(NAMES.into_iter().find(|known| *known == name));
    }

    /// The leader hears nothing of a request, which may go on.
    fn unheard(&mut self, number: usize, goes_on: bool) {
        let Some(mut request) = self.take(number) else {
            return;
        };
        if std::mem::replace(&mut request.heard, false) {
            let Request { node, .. } = &request;
            self.ledger
                .patch_unanswered(&node.name, &node.uid, &node.resource_version);
        }
        if goes_on {
            self.requests.push(request);
        }
    }

    fn refuse(&mut self, number: usize) {
        let Some(request) = self.take(number) else {
            return;
        };
        if request.heard {
            self.ledger.cancel(&request.node.name, &request.node.uid);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Join(node) => self.join(NAMES[node]),
            Step::Leave(node) => self.leave(NAMES[node]),
            Step::Delete(node) => self.change(NAMES[node], |node| node.deleting = true),
            Step::Heartbeat(node) => self.change(NAMES[node], |_| ()),
            Step::Foreign(node, cidr) => {
                if self
                    .server
                    .get(NAMES[node])
                    .is_some_and(|node| node.pod_cidrs.is_empty())
                {
                    self.change(NAMES[node], |node| {
                        node.pod_cidrs = Box::new([Arc::from(FOREIGN[cidr])]);
                        node.annotations = [("foreign", "")].into_iter().collect();
                    });
                }
            }
            Step::Watch => self.watch(),
            Step::Relist => self.relist(),
            Step::Work(node) => self.work(NAMES[node]),
            Step::Land(number) => self.land(number, true),
            Step::LandUnheard(number) => self.land(number, false),
            Step::TimeOut(number) => self.unheard(number, true),
            Step::Refuse(number) => self.refuse(number),
            Step::Lose(number) => self.unheard(number, false),
            Step::Lead => self.lead(),
            Step::Settle => self.settle(),
            Step::Wait => self.now += WATCH_CONFIRM_TIMEOUT,
            Step::Backup => self.backup.clone_from(&self.server),
            Step::Restore => {
                while !self.requests.is_empty() {
                    self.unheard(0, false);
                }
                self.server.clone_from(&self.backup);
                self.relist();
            }
        }
    }

    /// Lets everything come to an end without further trouble.
    fn calm(&mut self) {
        for name in NAMES {
            if self.server.get(name).is_some_and(|node| node.deleting) {
                self.leave(name);
            }
        }
        self.settle();
        for _ in 0..6 {
            self.now += WATCH_CONFIRM_TIMEOUT;
            while !self.requests.is_empty() {
                self.land(0, true);
            }
            while !self.watch.is_empty() {
                self.watch();
            }
            for name in NAMES {
                self.work(name);
            }
        }
        assert!(self.requests.is_empty(), "{:?}", self.requests);
    }

    /// What must be taken, by what the server says.
    fn should_be_taken(&self) -> Vec<u64> {
        let mut fresh = new_ledger();
        for node in self.server.values() {
            fresh.observe_node(node);
        }
        fresh
            .pools()
            .iter()
            .map(|pool| pool.set().taken())
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn no_history_gives_a_block_twice_or_loses_one(steps in prop::collection::vec(step(), 0..160)) {
        let mut world = SimulatedCluster::new();
        for step in steps {
            world.step(step);
        }
        world.calm();
        let taken: Vec<u64> = world.ledger.pools().iter().map(|pool| pool.set().taken()).collect();
        prop_assert_eq!(&taken, &world.should_be_taken());
        let full = world.ledger.pools().iter().any(|pool| pool.set().is_full());
        for node in world.server.values().filter(|node| node.pod_cidrs.is_empty() && !node.deleting) {
            prop_assert!(full, "{} has nothing, although there are blocks: {:?}", node.name, taken);
        }
    }
}
