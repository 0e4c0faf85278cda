//! The blocks of one cluster CIDR: a bitmap with a cursor that wraps around.
//!
//! Each operation returns what it changed, for the metrics.

use std::{net::IpAddr, ops::Range};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::config::{InvalidBlocks, PodNetwork};

const WORD: u64 = u64::BITS as u64;

/// A free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeBlock {
    /// The position in the set.
    pub(crate) index: u64,
    /// The number of taken blocks that the search skipped.
    pub(crate) skipped: u64,
}

/// The blocks of one network, each free or taken.
#[derive(Clone, Debug)]
pub(crate) struct CidrSet {
    cluster: IpNet,
    mask: u8,
    len: u64,
    taken: u64,
    /// The position at which the next search for a free block starts.
    cursor: u64,
    /// The bits of the blocks, set for those that are taken.
    words: Vec<u64>,
}

impl CidrSet {
    /// Divides `cluster` into blocks with prefixes of `mask` bits, all of them free.
    pub(crate) fn new(cluster: IpNet, mask: u8) -> Result<Self, InvalidBlocks> {
        let cluster = cluster.trunc();
        let len = PodNetwork { cluster, node_mask: mask }.block_count()?;
        let words =
            usize::try_from(len.div_ceil(WORD)).map_err(|_| InvalidBlocks::TooMany { cluster })?;
        Ok(Self {
            cluster,
            mask,
            len,
            taken: 0,
            cursor: 0,
            words: vec![0; words],
        })
    }

    /// Returns the cluster CIDR.
    pub(crate) fn cluster(&self) -> IpNet {
        self.cluster
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number of taken blocks.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns true if no block is free.
    pub(crate) fn is_full(&self) -> bool {
        self.taken == self.len
    }

    /// Returns the blocks that overlap with a network; `None` if there are none. A network inside a
    /// block overlaps with one, a network that contains the cluster CIDR with all.
    pub(crate) fn blocks_of(&self, net: &IpNet) -> Option<Range<u64>> {
        if self.cluster.addr().is_ipv4() != net.addr().is_ipv4() {
            return None;
        }
        if net.contains(&self.cluster) {
            return Some(0..self.len);
        }
        if !self.cluster.contains(net) {
            return None;
        }
        Some(self.index_of(net.network())..self.index_of(net.broadcast()) + 1)
    }

    /// Returns the block at a position. Positions past the end wrap around.
    pub(crate) fn block(&self, index: u64) -> IpNet {
        let offset = u128::from(index % self.len)
            .checked_shl(self.host_bits())
            .unwrap_or(0);
        match self.cluster {
            IpNet::V4(net) => {
                // Below 2^32, since the index is below 2^(mask - prefix).
                let offset = u32::try_from(offset).unwrap_or(0);
                let address = (u32::from(net.network()) | offset).into();
                IpNet::V4(Ipv4Net::new(address, self.mask).unwrap_or(net))
            }
            IpNet::V6(net) => {
                let address = (u128::from(net.network()) | offset).into();
                IpNet::V6(Ipv6Net::new(address, self.mask).unwrap_or(net))
            }
        }
    }

    /// Marks blocks as taken. Returns the number of those that were free.
    pub(crate) fn occupy(&mut self, blocks: Range<u64>) -> u64 {
        let flipped = self.set_bits(blocks, |word, bits| (word | bits, bits & !word));
        self.taken += flipped;
        flipped
    }

    /// Marks blocks as free. Returns the number of those that were taken.
    pub(crate) fn release(&mut self, blocks: Range<u64>) -> u64 {
        let flipped = self.set_bits(blocks, |word, bits| (word & !bits, bits & word));
        self.taken -= flipped;
        flipped
    }

    /// Finds the first free block at or after the cursor, wrapping around, and moves the cursor
    /// past it. Returns `None` if all blocks are taken.
    ///
    /// The block stays free until [`occupy`](Self::occupy) marks it as taken.
    pub(crate) fn take_next_free(&mut self) -> Option<FreeBlock> {
        let index = self
            .first_free(self.cursor..self.len)
            .or_else(|| self.first_free(0..self.cursor))?;
        let skipped = if index >= self.cursor {
            index - self.cursor
        } else {
            self.len - self.cursor + index
        };
        self.cursor = (index + 1) % self.len;
        Some(FreeBlock { index, skipped })
    }

    fn host_bits(&self) -> u32 {
        u32::from(self.cluster.max_prefix_len() - self.mask)
    }

    /// Returns the position of the block with this address, which must be inside the cluster CIDR.
    fn index_of(&self, address: IpAddr) -> u64 {
        let offset = bits(address) ^ bits(self.cluster.network());
        u64::try_from(offset.checked_shr(self.host_bits()).unwrap_or(0))
            .map_or(0, |index| index.min(self.len - 1))
    }

    /// Changes the bits of `blocks`, word by word, and returns the number of flipped bits. `change`
    /// gets a word and the bits to change, and returns the new word and the bits that it flipped.
    fn set_bits(&mut self, blocks: Range<u64>, change: impl Fn(u64, u64) -> (u64, u64)) -> u64 {
        let mut index = blocks.start;
        let end = blocks.end.min(self.len);
        let mut flipped = 0;
        while index < end {
            let first_bit = index % WORD;
            let count = (WORD - first_bit).min(end - index);
            let mask = (u64::MAX >> (WORD - count)) << first_bit;
            if let Ok(position) = usize::try_from(index / WORD)
                && let Some(word) = self.words.get_mut(position)
            {
                let (new, changed) = change(*word, mask);
                *word = new;
                flipped += u64::from(changed.count_ones());
            }
            index += count;
        }
        flipped
    }

    fn first_free(&self, within: Range<u64>) -> Option<u64> {
        let mut start = within.start;
        while start < within.end {
            let position = usize::try_from(start / WORD).ok()?;
            let word = self.words.get(position)?;
            let free = !word & (u64::MAX << (start % WORD));
            if free != 0 {
                let index = start - start % WORD + u64::from(free.trailing_zeros());
                return (index < within.end).then_some(index);
            }
            start += WORD - start % WORD;
        }
        None
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

#[cfg(test)]
#[path = "cidr_set_tests.rs"]
mod tests;
