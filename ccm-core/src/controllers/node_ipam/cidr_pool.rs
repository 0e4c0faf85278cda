//! The holders of the blocks of one cluster CIDR. A block can have several holders, because another
//! writer may have given overlapping pod CIDRs to nodes.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use ipnet::IpNet;

use super::cidr_set::CidrSet;
use crate::config::InvalidBlocks;

/// The blocks of one cluster CIDR and their holders. A block is taken while it has at least one
/// holder.
#[derive(Debug)]
pub(crate) struct CidrPool {
    set: CidrSet,
    /// The service CIDRs and the blocks that overlap with them, which are never released.
    services: Vec<(IpNet, Range<u64>)>,
    /// The holders of single blocks.
    single_block_holders: BTreeMap<u64, Vec<Arc<str>>>,
    /// The holders of ranges of more than one block, whose pod CIDRs are larger than our blocks.
    range_holders: Vec<(Range<u64>, Arc<str>)>,
    changes: PoolChanges,
}

/// The changes of a pool since the last [`CidrPool::take_changes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolChanges {
    /// The number of blocks that became taken.
    pub(crate) taken: u64,
    /// The number of blocks that became free.
    pub(crate) freed: u64,
    /// The number of taken blocks that each search for a free block skipped.
    pub(crate) skipped: Vec<u64>,
}

impl CidrPool {
    /// Creates a pool in which all blocks are free, except those that overlap with a service CIDR.
    pub(crate) fn new(cluster: IpNet, mask: u8, services: &[IpNet]) -> Result<Self, InvalidBlocks> {
        let mut set = CidrSet::new(cluster, mask)?;
        let mut changes = PoolChanges::default();
        let services: Vec<_> = services
            .iter()
            .filter_map(|net| Some((*net, set.blocks_of(net)?)))
            .collect();
        for (_, blocks) in &services {
            changes.taken += set.occupy(blocks.clone());
        }
        Ok(Self {
            set,
            services,
            single_block_holders: BTreeMap::new(),
            range_holders: Vec::new(),
            changes,
        })
    }

    pub(crate) fn set(&self) -> &CidrSet {
        &self.set
    }

    /// Finds the next free block. The caller must then [allocate](Self::allocate_blocks) it.
    pub(crate) fn find_free_block(&mut self) -> Option<Range<u64>> {
        let found = self.set.take_next_free()?;
        self.changes.skipped.push(found.skipped);
        Some(found.index..found.index + 1)
    }

    /// Adds a holder of these blocks. It must be called only once for each pair of holder and
    /// blocks.
    pub(crate) fn allocate_blocks(&mut self, blocks: &Range<u64>, holder: &Arc<str>) {
        self.changes.taken += self.set.occupy(blocks.clone());
        if is_single(blocks) {
            self.single_block_holders
                .entry(blocks.start)
                .or_default()
                .push(holder.clone());
        } else {
            self.range_holders.push((blocks.clone(), holder.clone()));
        }
    }

    /// Undoes [`allocate_blocks`](Self::allocate_blocks). Blocks with another holder stay taken.
    pub(crate) fn release_blocks(&mut self, blocks: &Range<u64>, holder: &str) {
        if is_single(blocks) {
            if let Some(holders) = self.single_block_holders.get_mut(&blocks.start) {
                holders.retain(|other| &**other != holder);
                if holders.is_empty() {
                    self.single_block_holders.remove(&blocks.start);
                }
            }
        } else {
            self.range_holders
                .retain(|(range, other)| range != blocks || &**other != holder);
        }
        let released = self.set.release(blocks.clone());
        let still_taken = self.occupy_held_blocks(blocks);
        self.changes.freed += released - still_taken;
    }

    /// Marks the blocks as taken that have a holder or overlap with a service CIDR. Returns the
    /// number of those that were free.
    fn occupy_held_blocks(&mut self, blocks: &Range<u64>) -> u64 {
        let mut occupied = 0;
        for (index, _) in self.single_block_holders.range(blocks.clone()) {
            occupied += self.set.occupy(*index..*index + 1);
        }
        let held_by_nodes = self.range_holders.iter().map(|(held, _)| held);
        let held_by_services = self.services.iter().map(|(_, held)| held);
        for held in held_by_nodes.chain(held_by_services) {
            if overlap(held, blocks) {
                let overlapping = held.start.max(blocks.start)..held.end.min(blocks.end);
                occupied += self.set.occupy(overlapping);
            }
        }
        occupied
    }

    /// Returns the other holders of any of these blocks. The iterator is lazy, because there may be
    /// many, and callers often need only the first.
    pub(crate) fn other_holders<'a>(
        &'a self,
        blocks: &Range<u64>,
        holder: &'a str,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        let blocks = blocks.clone();
        let single = self
            .single_block_holders
            .range(blocks.clone())
            .flat_map(|(_, holders)| holders);
        let wide = self
            .range_holders
            .iter()
            .filter(move |(held, _)| overlap(held, &blocks))
            .map(|(_, other)| other);
        single.chain(wide).filter(move |other| &***other != holder)
    }

    /// Returns the first service CIDR that overlaps with these blocks.
    pub(crate) fn overlapping_service_cidr(&self, blocks: &Range<u64>) -> Option<IpNet> {
        let (network, _) = self
            .services
            .iter()
            .find(|(_, held)| overlap(held, blocks))?;
        Some(*network)
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_changes(&mut self) -> PoolChanges {
        std::mem::take(&mut self.changes)
    }
}

fn is_single(blocks: &Range<u64>) -> bool {
    blocks.end - blocks.start == 1
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
