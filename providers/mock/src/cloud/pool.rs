//! Assigns addresses to load balancers.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ccm_core::provider::{CloudError, ErrorKind};
use ipnet::IpNet;

use super::{Family, LoadBalancerSettings, config::AddressNetworks};

/// The address pools for load balancers, one per IP family.
#[derive(Debug)]
pub(super) struct AddressPools {
    v4: AddressPool,
    v6: AddressPool,
    /// Family of load balancers that do not request one.
    default_family: Family,
}

impl AddressPools {
    pub(super) fn new(networks: AddressNetworks) -> Self {
        let AddressNetworks { v4, v6, default_family } = networks;
        Self {
            v4: AddressPool::new(v4),
            v6: AddressPool::new(v6),
            default_family,
        }
    }

    /// Assigns addresses to a load balancer that has the addresses `current`: keeps those that fit,
    /// takes the missing ones and releases the rest. Changes nothing on failure. The result is
    /// never empty.
    pub(super) fn assign(
        &mut self,
        load_balancer: &str,
        settings: &LoadBalancerSettings,
        current: &[IpAddr],
    ) -> Result<Vec<IpAddr>, CloudError> {
        // First, determine the families, and check that the requested address belongs to one.
        let families = self.families(settings, current);
        if let Some(address) = settings.requested_address
            && !families.contains(&Family::of(address))
        {
            let reason = format!("{address} does not belong to an IP family of the load balancer");
            return Err(assign_error(load_balancer, ErrorKind::InvalidInput, &reason));
        }
        // Then keep or take one address per family; on failure, release those that were taken.
        let mut addresses = Vec::new();
        let mut taken = Vec::new();
        for family in families {
            let requested = settings
                .requested_address
                .filter(|address| Family::of(*address) == family);
            if let Some(kept) = find_kept_address(current, family, requested) {
                addresses.push(kept);
                continue;
            }
            match self.pool(family).take_or_allocate(requested) {
                Ok(address) => {
                    addresses.push(address);
                    taken.push(address);
                }
                Err(error) => {
                    for address in taken {
                        self.release(address);
                    }
                    let reason = error.message(requested);
                    return Err(assign_error(load_balancer, error.kind(), &reason));
                }
            }
        }
        // Finally, release the addresses that are not needed any more.
        for address in current {
            if !addresses.contains(address) {
                self.release(*address);
            }
        }
        Ok(addresses)
    }

    /// Returns the requested families, or else those of the current addresses, or else the default.
    fn families(&self, settings: &LoadBalancerSettings, current: &[IpAddr]) -> Vec<Family> {
        if !settings.families.is_empty() {
            settings.families.clone()
        } else if !current.is_empty() {
            current.iter().map(|address| Family::of(*address)).collect()
        } else {
            vec![self.default_family]
        }
    }

    /// Releases an address.
    pub(super) fn release(&mut self, address: IpAddr) {
        self.pool(Family::of(address)).release(address);
    }

    fn pool(&mut self, family: Family) -> &mut AddressPool {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// Returns the current address that a load balancer keeps for a family. If an address is requested,
/// only that one is kept.
fn find_kept_address(
    current: &[IpAddr],
    family: Family,
    requested: Option<IpAddr>,
) -> Option<IpAddr> {
    current
        .iter()
        .copied()
        .filter(|address| Family::of(*address) == family)
        .find(|address| requested.is_none_or(|requested| requested == *address))
}

fn assign_error(load_balancer: &str, kind: ErrorKind, reason: &str) -> CloudError {
    CloudError::new(kind, format!("addresses of load balancer {load_balancer}: {reason}"))
}

/// Error of assigning an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// All addresses of the pool are in use.
    Exhausted,
    /// The requested address is not in the pool.
    Outside,
    /// The requested address is in use.
    InUse,
}

impl Unavailable {
    fn kind(self) -> ErrorKind {
        match self {
            Self::Exhausted => ErrorKind::QuotaExceeded,
            Self::Outside => ErrorKind::InvalidInput,
            Self::InUse => ErrorKind::Conflict,
        }
    }

    fn message(self, requested: Option<IpAddr>) -> String {
        let requested = match requested {
            Some(address) => address.to_string(),
            None => String::new(),
        };
        match self {
            Self::Exhausted => "no free address in the pool".to_owned(),
            Self::Outside => format!("{requested} is not an address of the pool"),
            Self::InUse => format!("{requested} is in use"),
        }
    }
}

/// Allocates the addresses of a network, each to one owner at a time, the lowest free address
/// first.
#[derive(Debug)]
pub(super) struct AddressPool {
    net: IpNet,
    /// Offset of the first usable address.
    first: u128,
    /// Offset of the first address that [`allocate`](Self::allocate) has not reached yet.
    next: u128,
    /// Offset after the last usable address.
    end: u128,
    /// Offsets below `next` that were released.
    released: BTreeSet<u128>,
    /// Offsets from `next` on that were requested and are in use.
    taken_ahead: BTreeSet<u128>,
}

impl AddressPool {
    pub(super) fn new(net: IpNet) -> Self {
        let net = net.trunc();
        let host_bits = u32::from(net.max_prefix_len() - net.prefix_len());
        let size = 1u128.checked_shl(host_bits).unwrap_or(u128::MAX);
        // Networks of one or two addresses have no reserved addresses (RFC 3021, RFC 6164).
        let has_reserved = host_bits >= 2;
        let first = u128::from(has_reserved);
        let mut end = size;
        if has_reserved && matches!(net, IpNet::V4(_)) {
            // The last address is the broadcast address.
            end -= 1;
        }
        Self {
            net,
            first,
            next: first,
            end,
            released: BTreeSet::new(),
            taken_ahead: BTreeSet::new(),
        }
    }

    /// Allocates an address, or returns `None` if all are in use.
    pub(super) fn allocate(&mut self) -> Option<IpAddr> {
        if let Some(offset) = self.released.pop_first() {
            return Some(self.address(offset));
        }
        while self.taken_ahead.remove(&self.next) {
            self.next += 1;
        }
        if self.next >= self.end {
            return None;
        }
        self.next += 1;
        Some(self.address(self.next - 1))
    }

    /// Allocates the requested address, or any free address if none is requested.
    fn take_or_allocate(&mut self, requested: Option<IpAddr>) -> Result<IpAddr, Unavailable> {
        match requested {
            Some(address) => {
                self.take(address)?;
                Ok(address)
            }
            None => self.allocate().ok_or(Unavailable::Exhausted),
        }
    }

    /// Allocates a specific address.
    pub(super) fn take(&mut self, address: IpAddr) -> Result<(), Unavailable> {
        let offset = bits(address).wrapping_sub(bits(self.net.network()));
        if !self.net.contains(&address) || offset < self.first || offset >= self.end {
            return Err(Unavailable::Outside);
        }
        let was_free = if offset < self.next {
            self.released.remove(&offset)
        } else {
            self.taken_ahead.insert(offset)
        };
        if was_free {
            Ok(())
        } else {
            Err(Unavailable::InUse)
        }
    }

    /// Releases an address from [`allocate`](Self::allocate) or [`take`](Self::take).
    pub(super) fn release(&mut self, address: IpAddr) {
        let offset = bits(address).wrapping_sub(bits(self.net.network()));
        let was_in_use = if offset < self.next {
            self.released.insert(offset)
        } else {
            self.taken_ahead.remove(&offset)
        };
        debug_assert!(was_in_use, "{address} was not in use");
    }

    fn address(&self, offset: u128) -> IpAddr {
        match self.net {
            // The conversion cannot fail, because the offset is less than the size of the network.
            IpNet::V4(net) => {
                Ipv4Addr::from_bits(net.network().to_bits() + u32::try_from(offset).unwrap_or(0))
                    .into()
            }
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
            let all: Vec<_> = std::iter::from_fn(|| pool.allocate())
                .map(|a| a.to_string())
                .collect();
            assert_eq!(
                (all.len(), &*all[0], &**all.last().unwrap()),
                (count, first, last),
                "{net}"
            );
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

    #[test]
    fn an_address_that_was_asked_for_is_not_handed_out_again() {
        let mut pool = AddressPool::new("192.0.2.0/29".parse().unwrap());
        let at = |host: u8| IpAddr::from([192, 0, 2, host]);
        assert_eq!(pool.take(at(2)), Ok(()));
        assert_eq!(pool.take(at(2)), Err(Unavailable::InUse));
        assert_eq!((pool.allocate(), pool.allocate()), (Some(at(1)), Some(at(3))));
        assert_eq!(pool.take(at(1)), Err(Unavailable::InUse));
        pool.release(at(1));
        pool.release(at(2));
        assert_eq!(
            (pool.take(at(1)), pool.take(at(2)), pool.take(at(5))),
            (Ok(()), Ok(()), Ok(()))
        );
        pool.release(at(5));
        let rest: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(rest, [at(4), at(5), at(6)]);
        for outside in [at(0), at(7), at(8), "2001:db8::1".parse().unwrap()] {
            assert_eq!(pool.take(outside), Err(Unavailable::Outside), "{outside}");
        }
    }
}
