use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

/// Hands out the addresses of a network, each to one owner at a time, the lowest free one first.
#[derive(Debug)]
pub(super) struct AddressPool {
    net: IpNet,
    /// Offset of the first usable address, and of the first one that is not.
    next: u128,
    end: u128,
    /// Offsets below `next` that were given back.
    returned: BTreeSet<u128>,
}

impl AddressPool {
    pub(super) fn new(net: IpNet) -> Self {
        let net = net.trunc();
        let host_bits = u32::from(net.max_prefix_len() - net.prefix_len());
        let size = 1u128.checked_shl(host_bits).unwrap_or(u128::MAX);
        // Networks of one or two addresses have no reserved ones (RFC 3021, RFC 6164).
        let (next, end) = match net {
            _ if host_bits < 2 => (0, size),
            IpNet::V4(_) => (1, size - 1),
            IpNet::V6(_) => (1, size),
        };
        Self { net, next, end, returned: BTreeSet::new() }
    }

    /// Takes an address, or `None` when all are in use.
    pub(super) fn allocate(&mut self) -> Option<IpAddr> {
        if let Some(offset) = self.returned.pop_first() {
            return Some(self.address(offset));
        }
        if self.next >= self.end {
            return None;
        }
        self.next += 1;
        Some(self.address(self.next - 1))
    }

    /// Gives back an address that [`allocate`](Self::allocate) handed out.
    pub(super) fn release(&mut self, address: IpAddr) {
        let offset = bits(address).wrapping_sub(bits(self.net.network()));
        let fresh = offset < self.next && self.returned.insert(offset);
        debug_assert!(fresh, "{address} was not in use");
    }

    fn address(&self, offset: u128) -> IpAddr {
        match self.net {
            // The offset is below the size of the network, so that it fits.
            IpNet::V4(net) => Ipv4Addr::from_bits(net.network().to_bits() + u32::try_from(offset).unwrap_or(0)).into(),
            IpNet::V6(net) => Ipv6Addr::from_bits(net.network().to_bits() + offset).into(),
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_networks_hand_out_every_usable_address_once() {
        let cases = [
            ("192.0.2.0/24", 254, "192.0.2.1", "192.0.2.254"),
            ("192.0.2.77/30", 2, "192.0.2.77", "192.0.2.78"),
            ("192.0.2.4/31", 2, "192.0.2.4", "192.0.2.5"),
            ("192.0.2.9/32", 1, "192.0.2.9", "192.0.2.9"),
            ("2001:db8::/126", 3, "2001:db8::1", "2001:db8::3"),
            ("2001:db8::/128", 1, "2001:db8::", "2001:db8::"),
        ];
        for (net, count, first, last) in cases {
            let mut pool = AddressPool::new(net.parse().unwrap());
            let all: Vec<_> = std::iter::from_fn(|| pool.allocate()).map(|a| a.to_string()).collect();
            assert_eq!((all.len(), &*all[0], &**all.last().unwrap()), (count, first, last), "{net}");
        }
    }

    #[test]
    fn a_network_of_all_addresses_overflows_nothing() {
        for net in ["::/0", "0.0.0.0/0"] {
            assert!(AddressPool::new(net.parse().unwrap()).allocate().is_some());
        }
    }

    #[test]
    fn a_released_address_is_handed_out_again() {
        let mut pool = AddressPool::new("192.0.2.0/30".parse().unwrap());
        let (first, second) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        assert_eq!(pool.allocate(), None);
        pool.release(first);
        assert_eq!(pool.allocate(), Some(first));
        pool.release(second);
        assert_eq!(pool.allocate(), Some(second));
    }
}
