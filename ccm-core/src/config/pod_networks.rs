//! Networks that the node-IPAM controller gives to nodes, as flags set them.

use ipnet::IpNet;

/// An IPv6 network may have at most 2 to the power of this many blocks, as upstream. IPv4 networks
/// have no limit.
const MAX_IPV6_DIFFERENCE: u8 = 16;

/// The settings of the node-IPAM controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIpamOptions {
    /// `--cluster-cidr` with the node masks: one network, or one of each IP family.
    pub networks: Vec<PodNetwork>,
    /// `--service-cluster-ip-range`: blocks that overlap with it are not allocated to nodes.
    pub services: Vec<IpNet>,
}

/// A cluster CIDR and the size of the blocks that nodes get from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// The cluster CIDR.
    pub cluster: IpNet,
    /// The prefix length of a node's block: not shorter than the cluster CIDR's, and for IPv6 at
    /// most 16 bits longer.
    pub node_mask: u8,
}

/// The error of a cluster CIDR that cannot be divided into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBlocks {
    /// A block would be larger than the network.
    #[error("a node's network would be larger than the cluster's network {cluster}; its mask must be at least {}", cluster.prefix_len())]
    LargerThanCluster {
        /// The network.
        cluster: IpNet,
    },
    /// The mask is longer than an address.
    #[error("the mask of a network like {cluster} can be at most {}", cluster.max_prefix_len())]
    NoSuchMask {
        /// The network.
        cluster: IpNet,
    },
    /// More blocks than upstream allows.
    #[error(
        "the node CIDR size is too big: an IPv6 network can hold at most 2^{MAX_IPV6_DIFFERENCE} blocks, \
         so the mask for {cluster} can be at most {}", cluster.prefix_len() + MAX_IPV6_DIFFERENCE
    )]
    TooMany {
        /// The network.
        cluster: IpNet,
    },
}

impl PodNetwork {
    /// Returns the number of blocks in the cluster CIDR: at most 2^32, since an IPv4 network has no
    /// more addresses.
    ///
    /// # Errors
    /// Returns an error if the cluster CIDR cannot be divided into blocks of this size.
    pub fn block_count(&self) -> Result<u64, InvalidBlocks> {
        let Self { cluster, node_mask } = *self;
        if node_mask > cluster.max_prefix_len() {
            return Err(InvalidBlocks::NoSuchMask { cluster });
        }
        let Some(difference) = node_mask.checked_sub(cluster.prefix_len()) else {
            return Err(InvalidBlocks::LargerThanCluster { cluster });
        };
        if matches!(cluster, IpNet::V6(_)) && difference > MAX_IPV6_DIFFERENCE {
            return Err(InvalidBlocks::TooMany { cluster });
        }
        Ok(1 << difference)
    }
}
