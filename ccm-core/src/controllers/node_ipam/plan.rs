//! Allocates blocks to nodes. The [`CidrAllocator`] owns the pools, and each decision is one call
//! of it. It does no I/O: callers report the state of the cluster to it.
//!
//! Invariants after every call:
//!
//! - A block that any node has, including a node that is being deleted, is not proposed to another
//!   node.
//! - A proposed block stays taken until the node has it, or until the request can certainly no
//!   longer take effect: the node has another block, is deleted, or was read in a later resource
//!   version than the one that the request tests.
//! - If etcd is restored from a backup that lacks a node's blocks, they stay taken and are proposed
//!   to the node again.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

use super::cidr_pool::{CidrPool, PoolChanges};
use crate::{
    config::{InvalidBlocks, PodNetwork},
    k8s::NodeView,
};

/// The time within which the cache must show the pod CIDRs that a node is known to have. After
/// that, the cache counts as right, because etcd may have been restored from a backup. No request
/// takes that long.
const WATCH_CONFIRM_TIMEOUT: Duration = Duration::from_secs(60);

/// The blocks of all cluster CIDRs, which nodes hold them, and which nodes wait for free blocks.
#[derive(Debug)]
pub(crate) struct CidrAllocator {
    pools: Vec<CidrPool>,
    nodes: HashMap<Arc<str>, NodeAllocation>,
    /// The nodes that found no free block, longest waiting first. An entry counts only while the
    /// node's `is_waiting` is true.
    waiting: VecDeque<Arc<str>>,
    /// The nodes without blocks at the start which the last request of a previous leader's
    /// allocator may still change.
    unconfirmed: BTreeSet<Arc<str>>,
    /// The nodes that changed after the first list and before
    /// [`record_initial_nodes`](Self::record_initial_nodes), so that they need no confirmation.
    /// `None` after that call.
    changed_before_start: Option<BTreeSet<Arc<str>>>,
}

/// The allocation state of a node.
#[derive(Debug, Default)]
struct NodeAllocation {
    uid: Box<str>,
    /// The node's `spec.podCIDRs`.
    cidrs: Box<[Arc<str>]>,
    /// The time since which the cache has shown the node without `cidrs`.
    missing_since: Option<Duration>,
    /// The blocks that `cidrs` cover, or those that the node had before etcd was restored from a
    /// backup.
    allocated: Vec<BlockRange>,
    /// The blocks to write next, one of each pool, or none.
    proposed: Vec<BlockRange>,
    in_flight: Option<InFlightPatch>,
    is_waiting: bool,
}

/// Requests for one node that got no response.
#[derive(Debug)]
struct InFlightPatch {
    /// The resource version of the node that they test. Once the node has another one, they can no
    /// longer take effect.
    version: Box<str>,
    /// The blocks that they would write.
    ranges: Vec<BlockRange>,
}

/// A range of blocks of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockRange {
    pool: usize,
    blocks: Range<u64>,
}

/// The decision about the pod CIDRs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllocationDecision {
    /// Write these blocks, one of each cluster CIDR in their order. They stay taken until the
    /// outcome is reported.
    Write(Vec<IpNet>),
    /// Write nothing, because a cluster CIDR has no free block. [`CidrAllocator::take_changes`]
    /// returns the node when there may be one.
    Full,
    /// Write nothing, because the node has pod CIDRs, is deleted, or was replaced by another node
    /// of its name.
    Nothing,
}

/// A problem with a pod CIDR of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodCidrProblem {
    /// Not a network.
    NotACidr(Arc<str>),
    /// Not inside the cluster CIDR of the same position.
    Outside(Arc<str>, IpNet),
    /// The node has more pod CIDRs than there are cluster CIDRs.
    TooManyCidrs(Arc<str>),
    /// It overlaps with a pod CIDR of another node.
    Shared(Arc<str>, Arc<str>),
    /// It overlaps with a service CIDR.
    Service(Arc<str>, IpNet),
}

impl fmt::Display for PodCidrProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotACidr(cidr) => write!(f, "pod CIDR {cidr:?} is not a network"),
            Self::Outside(cidr, cluster) => {
                write!(f, "pod CIDR {cidr} is not inside cluster CIDR {cluster}")
            }
            Self::TooManyCidrs(cidr) => {
                write!(f, "pod CIDR {cidr} is one more than there are cluster CIDRs")
            }
            Self::Shared(cidr, node) => {
                write!(f, "pod CIDR {cidr} overlaps with that of node {node}")
            }
            Self::Service(cidr, net) => {
                write!(f, "pod CIDR {cidr} overlaps with service network {net}")
            }
        }
    }
}

impl CidrAllocator {
    /// Creates an allocator without nodes.
    ///
    /// # Errors
    /// Returns an error if a cluster CIDR cannot be divided into blocks of the given size.
    pub(crate) fn new(networks: &[PodNetwork], services: &[IpNet]) -> Result<Self, InvalidBlocks> {
        let mut pools = Vec::new();
        for network in networks {
            pools.push(CidrPool::new(network.cluster, network.node_mask, services)?);
        }
        Ok(Self {
            pools,
            nodes: HashMap::new(),
            waiting: VecDeque::new(),
            unconfirmed: BTreeSet::new(),
            changed_before_start: Some(BTreeSet::new()),
        })
    }

    /// Records the state of a node. Returns the other nodes whose blocks overlap with new pod CIDRs
    /// of this node.
    pub(crate) fn observe_node(&mut self, node: &NodeView) -> Vec<Arc<str>> {
        // Find the node's entry, or create one.
        if let Some(entry) = self.nodes.get(&node.name)
            && entry.uid != node.uid
        {
            self.remove_node(&node.name);
        }
        let entry = self
            .nodes
            .entry(node.name.clone())
            .or_insert_with(|| NodeAllocation::new(node.uid.clone()));
        // Pod CIDRs never change once they are set. If the node has none, the cache may lag, so
        // keep the recorded ones.
        if node.pod_cidrs.is_empty() {
            return Vec::new();
        }
        entry.missing_since = None;
        if entry.cidrs == node.pod_cidrs {
            return Vec::new();
        }
        // Record the new pod CIDRs.
        let allocated = blocks_of_cidrs(&self.pools, &node.pod_cidrs);
        let mut other_nodes = BTreeSet::new();
        for range in &allocated {
            let holders = self.pools[range.pool].other_holders(&range.blocks, &node.name);
            other_nodes.extend(holders.cloned());
        }
        self.update(&node.name, |entry| {
            *entry = NodeAllocation {
                cidrs: node.pod_cidrs.clone(),
                allocated,
                ..NodeAllocation::new(node.uid.clone())
            };
        });
        other_nodes.into_iter().collect()
    }

    /// Records that the cache shows the node without pod CIDRs at `now`.
    ///
    /// If the node is known to have some, returns the remaining time for the cache to show them.
    /// Returns `None` if the node has none, or if the time is over and the cache counts as right.
    pub(crate) fn record_missing_cidrs(
        &mut self,
        name: &str,
        uid: &str,
        now: Duration,
    ) -> Option<Duration> {
        let entry = self.nodes.get_mut(name)?;
        if *entry.uid != *uid || entry.cidrs.is_empty() {
            return None;
        }
        let missing_since = *entry.missing_since.get_or_insert(now);
        let remaining = (missing_since + WATCH_CONFIRM_TIMEOUT).saturating_sub(now);
        if !remaining.is_zero() {
            return Some(remaining);
        }
        // The blocks stay taken and will be proposed to the node again.
        entry.cidrs = Box::default();
        entry.missing_since = None;
        None
    }

    /// Records that the node was deleted. A new node of the same name is kept.
    pub(crate) fn node_deleted(&mut self, node: &NodeView) {
        if self.allocation(&node.name, &node.uid).is_some() {
            self.remove_node(&node.name);
        }
    }

    /// Records the nodes without blocks in the first complete list. Until such a node changes, the
    /// last request of a previous leader's allocator may give it a block that looks free.
    pub(crate) fn record_initial_nodes(&mut self, nodes: &[Arc<NodeView>]) {
        let changed = self.changed_before_start.take().unwrap_or_default();
        self.unconfirmed.clear();
        for node in nodes {
            if node.pod_cidrs.is_empty() && !changed.contains(&node.name) {
                self.unconfirmed.insert(node.name.clone());
            }
        }
    }

    /// Records that a node changed or was deleted, so that a request that tests its old resource
    /// version can no longer take effect. Returns true if it was the last unconfirmed node.
    pub(crate) fn node_changed_since_start(&mut self, node: &str) -> bool {
        if let Some(changed) = &mut self.changed_before_start {
            changed.insert(Arc::from(node));
            return false;
        }
        self.unconfirmed.remove(node) && self.unconfirmed.is_empty()
    }

    /// Returns the nodes of the first list that are not confirmed yet.
    pub(crate) fn unconfirmed_nodes(&self) -> Vec<Arc<str>> {
        self.unconfirmed.iter().cloned().collect()
    }

    /// Records the state of an unconfirmed node (`None` if it was deleted) that was read after
    /// every request of a previous leader's allocator had ended.
    pub(crate) fn confirm_initial_node(&mut self, name: &str, fresh: Option<&NodeView>) {
        self.unconfirmed.remove(name);
        if let Some(fresh) = fresh
            && self.allocation(name, &fresh.uid).is_some()
        {
            self.observe_node(fresh);
        }
    }

    /// Returns true if no request of a previous leader's allocator can take effect any more.
    pub(crate) fn are_initial_nodes_confirmed(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Returns true if a request for the node got no response, so that the node must be read before
    /// the next request.
    pub(crate) fn has_in_flight_patch(&self, name: &str, uid: &str) -> bool {
        self.allocation(name, uid)
            .is_some_and(|entry| entry.in_flight.is_some())
    }

    /// Decides which blocks the node gets. An earlier proposal is repeated if it is still valid.
    pub(crate) fn decide(&mut self, name: &Arc<str>, uid: &str) -> AllocationDecision {
        let Some(entry) = self.allocation(name, uid) else {
            return AllocationDecision::Nothing;
        };
        if !entry.cidrs.is_empty() {
            return AllocationDecision::Nothing;
        }
        // Find the pools of which the node has no preferred block.
        let mut proposed = Vec::new();
        let mut missing = Vec::new();
        for pool in 0..self.pools.len() {
            match self.preferred_block(entry, pool, name) {
                Some(range) => proposed.push(range),
                None => missing.push(pool),
            }
        }
        // If one of them is full, let the node wait. Check all of them before taking a block, so
        // that no block is taken in vain.
        if missing.iter().any(|pool| self.pools[*pool].set().is_full()) {
            if !entry.is_waiting {
                self.waiting.push_back(name.clone());
            }
            self.update(name, |entry| {
                entry.allocated = Vec::new();
                entry.proposed = Vec::new();
                entry.is_waiting = true;
            });
            return AllocationDecision::Full;
        }
        // Take a free block of each.
        for pool in missing {
            if let Some(blocks) = self.pools[pool].find_free_block() {
                proposed.push(BlockRange { pool, blocks });
            }
        }
        proposed.sort_by_key(|range| range.pool);
        let cidrs = proposed.iter().map(|range| self.cidr(range)).collect();
        self.update(name, |entry| {
            entry.proposed = proposed;
            entry.is_waiting = false;
        });
        AllocationDecision::Write(cidrs)
    }

    /// Records that the proposed blocks were written to the node.
    pub(crate) fn patch_applied(&mut self, name: &str, uid: &str) {
        let Some(entry) = self.allocation(name, uid) else {
            return;
        };
        if entry.proposed.is_empty() {
            return;
        }
        let cidrs = entry
            .proposed
            .iter()
            .map(|range| Arc::from(self.cidr(range).to_string()))
            .collect();
        self.update(name, |entry| {
            let allocated = std::mem::take(&mut entry.proposed);
            *entry = NodeAllocation { cidrs, allocated, ..NodeAllocation::new(uid.into()) };
        });
    }

    /// Records that a request with the proposed blocks got no response. It tests this resource
    /// version of the node, and may have taken effect or may still do so.
    pub(crate) fn patch_unanswered(&mut self, name: &str, uid: &str, version: &str) {
        if self.allocation(name, uid).is_none() {
            return;
        }
        self.update(name, |entry| {
            let mut ranges = match entry.in_flight.take() {
                Some(earlier) if *earlier.version == *version => earlier.ranges,
                _ => Vec::new(),
            };
            ranges.extend(entry.proposed.iter().cloned());
            entry.in_flight = Some(InFlightPatch { version: version.into(), ranges });
        });
    }

    /// Records the state of a node that was read from the API server after the last request for it.
    /// Returns the same nodes as [`observe_node`](Self::observe_node).
    pub(crate) fn node_read(&mut self, name: &str, uid: &str, fresh: &NodeView) -> Vec<Arc<str>> {
        if &*fresh.uid != uid {
            // The new node of this name arrives through the watch.
            self.node_not_found(name, uid);
            return Vec::new();
        }
        let Some(entry) = self.allocation(name, uid) else {
            return Vec::new();
        };
        if let Some(patch) = &entry.in_flight
            && patch.version != fresh.resource_version
        {
            self.update(name, |entry| entry.in_flight = None);
        }
        self.observe_node(fresh)
    }

    /// Records that the API server no longer has this node.
    pub(crate) fn node_not_found(&mut self, name: &str, uid: &str) {
        if self.allocation(name, uid).is_some() {
            self.update(name, |entry| {
                entry.proposed = Vec::new();
                entry.in_flight = None;
            });
        }
    }

    /// Records that there is no further attempt for now. Frees the proposed blocks, except those
    /// that a request without a response may have written.
    pub(crate) fn cancel(&mut self, name: &str, uid: &str) {
        if self.allocation(name, uid).is_some() {
            self.update(name, |entry| entry.proposed = Vec::new());
        }
    }

    /// Returns the problems with the pod CIDRs of the node.
    pub(crate) fn problems(&self, name: &str) -> Vec<PodCidrProblem> {
        let Some(entry) = self.nodes.get(name) else {
            return Vec::new();
        };
        let mut problems = Vec::new();
        for (position, cidr) in entry.cidrs.iter().enumerate() {
            let Ok(net) = cidr.parse::<IpNet>() else {
                problems.push(PodCidrProblem::NotACidr(cidr.clone()));
                continue;
            };
            match self.pools.get(position) {
                None => problems.push(PodCidrProblem::TooManyCidrs(cidr.clone())),
                Some(pool) if pool.set().blocks_of(&net).is_none() => {
                    problems.push(PodCidrProblem::Outside(cidr.clone(), pool.set().cluster()));
                }
                Some(_) => {}
            }
            for pool in &self.pools {
                let Some(blocks) = pool.set().blocks_of(&net) else {
                    continue;
                };
                if let Some(other) = pool.other_holders(&blocks, name).next() {
                    problems.push(PodCidrProblem::Shared(cidr.clone(), other.clone()));
                }
                if let Some(service) = pool.overlapping_service_cidr(&blocks) {
                    problems.push(PodCidrProblem::Service(cidr.clone(), service));
                }
            }
        }
        problems
    }

    /// Returns the changes of each cluster CIDR since the last call, and the waiting nodes to
    /// retry. These are as many as blocks became free, longest waiting first.
    pub(crate) fn take_changes(&mut self) -> (Vec<PoolChanges>, Vec<Arc<str>>) {
        let changes: Vec<PoolChanges> = self.pools.iter_mut().map(CidrPool::take_changes).collect();
        let freed: u64 = changes.iter().map(|changes| changes.freed).sum();
        let mut nodes_to_retry = Vec::new();
        while (nodes_to_retry.len() as u64) < freed
            && let Some(name) = self.waiting.pop_front()
        {
            if let Some(entry) = self.nodes.get_mut(&name)
                && entry.is_waiting
            {
                entry.is_waiting = false;
                nodes_to_retry.push(name);
            }
        }
        (changes, nodes_to_retry)
    }

    /// Returns the pools, one per cluster CIDR.
    pub(crate) fn pools(&self) -> &[CidrPool] {
        &self.pools
    }

    fn allocation(&self, name: &str, uid: &str) -> Option<&NodeAllocation> {
        self.nodes.get(name).filter(|entry| &*entry.uid == uid)
    }

    fn remove_node(&mut self, name: &str) {
        self.update(name, |entry| *entry = NodeAllocation::default());
        if self.nodes.remove(name).is_some() {
            self.waiting.retain(|waiting| **waiting != *name);
        }
    }

    fn cidr(&self, range: &BlockRange) -> IpNet {
        self.pools[range.pool].set().block(range.blocks.start)
    }

    /// Returns the block of a pool that the node should get in preference to a free one. This is
    /// the block that was proposed before, unless another node has got it since, or else one that
    /// the node had before a backup was restored.
    fn preferred_block(
        &self,
        entry: &NodeAllocation,
        pool: usize,
        name: &str,
    ) -> Option<BlockRange> {
        for range in &entry.proposed {
            if range.pool == pool && !self.has_other_holder(range, name) {
                return Some(range.clone());
            }
        }
        self.block_before_restore(entry, pool, name)
    }

    /// Returns a block that the node had before a backup was restored, and that overlaps with no
    /// other node and no service CIDR.
    fn block_before_restore(
        &self,
        entry: &NodeAllocation,
        pool: usize,
        name: &str,
    ) -> Option<BlockRange> {
        for range in &entry.allocated {
            if range.pool != pool {
                continue;
            }
            for index in range.blocks.clone() {
                let block = BlockRange { pool, blocks: index..index + 1 };
                let overlaps_service = self.pools[pool].overlapping_service_cidr(&block.blocks);
                if !self.has_other_holder(&block, name) && overlaps_service.is_none() {
                    return Some(block);
                }
            }
        }
        None
    }

    fn has_other_holder(&self, range: &BlockRange, name: &str) -> bool {
        let mut others = self.pools[range.pool].other_holders(&range.blocks, name);
        others.next().is_some()
    }

    /// Changes the allocation of a node, and takes and releases blocks of the pools to match.
    fn update(&mut self, name: &str, change: impl FnOnce(&mut NodeAllocation)) {
        let Some((name, _)) = self.nodes.get_key_value(name) else {
            return;
        };
        let name = name.clone();
        let Some(entry) = self.nodes.get_mut(&name) else {
            return;
        };
        let before = entry.all_blocks();
        change(entry);
        let after = entry.all_blocks();
        for range in after.iter().filter(|range| !before.contains(range)) {
            self.pools[range.pool].allocate_blocks(&range.blocks, &name);
        }
        for range in before.iter().filter(|range| !after.contains(range)) {
            self.pools[range.pool].release_blocks(&range.blocks, &name);
        }
    }
}

impl NodeAllocation {
    fn new(uid: Box<str>) -> Self {
        Self { uid, ..Self::default() }
    }

    /// Returns the blocks that the node has, is proposed, or may get by a request in flight,
    /// without duplicates.
    fn all_blocks(&self) -> Vec<BlockRange> {
        let in_flight = self.in_flight.iter().flat_map(|patch| &patch.ranges);
        let ranges = self.allocated.iter().chain(&self.proposed).chain(in_flight);
        let mut distinct: Vec<BlockRange> = Vec::with_capacity(self.allocated.len());
        for range in ranges {
            if !distinct.contains(range) {
                distinct.push(range.clone());
            }
        }
        distinct
    }
}

/// Returns the blocks of all cluster CIDRs that overlap with these networks, whatever their order.
fn blocks_of_cidrs(pools: &[CidrPool], cidrs: &[Arc<str>]) -> Vec<BlockRange> {
    let mut ranges = Vec::new();
    for cidr in cidrs {
        let Ok(network) = cidr.parse::<IpNet>() else {
            continue;
        };
        for (index, pool) in pools.iter().enumerate() {
            if let Some(blocks) = pool.set().blocks_of(&network) {
                ranges.push(BlockRange { pool: index, blocks });
            }
        }
    }
    ranges
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "history_tests.rs"]
mod history_tests;
