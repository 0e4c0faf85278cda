//! Upstream's cases for its bitmap, and that no input makes it panic.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn set(cluster: &str, mask: u8) -> CidrSet {
    CidrSet::new(net(cluster), mask).unwrap()
}

/// Takes the next block.
fn take(set: &mut CidrSet) -> Option<String> {
    let found = set.take_next_free()?;
    assert_eq!(set.occupy(found.index..found.index + 1), 1, "it was free");
    Some(set.block(found.index).to_string())
}

fn occupy(set: &mut CidrSet, text: &str) -> u64 {
    let blocks = set.blocks_of(&net(text)).unwrap();
    set.occupy(blocks)
}

fn release(set: &mut CidrSet, text: &str) -> u64 {
    let blocks = set.blocks_of(&net(text)).unwrap();
    set.release(blocks)
}

#[test]
fn a_full_set_gives_again_what_is_released() {
    for (cluster, mask, block) in
        [("127.123.234.0/30", 30, "127.123.234.0/30"), ("beef:1234::/30", 30, "beef:1234::/30")]
    {
        let mut set = set(cluster, mask);
        assert_eq!(take(&mut set).as_deref(), Some(block));
        assert_eq!(take(&mut set), None);
        assert_eq!(release(&mut set, block), 1);
        assert_eq!(take(&mut set).as_deref(), Some(block));
        assert_eq!(take(&mut set), None);
    }
}

#[test]
fn an_index_is_a_block_and_the_block_is_the_index() {
    for (cluster, mask, index, block) in [
        ("127.123.3.0/16", 24, 0, "127.123.0.0/24"),
        ("127.123.0.0/16", 24, 15, "127.123.15.0/24"),
        ("192.168.5.219/28", 32, 0, "192.168.5.208/32"),
        ("192.168.5.219/28", 32, 5, "192.168.5.213/32"),
        ("10.0.0.0/8", 24, 6425, "10.25.25.0/24"),
        ("255.255.255.0/24", 32, 255, "255.255.255.255/32"),
        ("0.0.0.0/0", 24, 0xff_ffff, "255.255.255.0/24"),
        ("2001:db8:1234:3::/48", 64, 0, "2001:db8:1234::/64"),
        ("2001:db8:1234::/48", 64, 15, "2001:db8:1234:f::/64"),
        ("2001:db8:1234::/48", 64, 6425, "2001:db8:1234:1919::/64"),
        ("2001:db8::/47", 63, 0, "2001:db8::/63"),
        ("2001:db8::/47", 63, 15, "2001:db8:0:1e::/63"),
        ("2001:db8::/47", 63, 6425, "2001:db8:0:3232::/63"),
        ("2001:d00::/32", 48, 0, "2001:d00::/48"),
        ("2001:d00::/32", 48, 15, "2001:d00:f::/48"),
        ("2001:d00::/32", 48, 6425, "2001:d00:1919::/48"),
        ("2001:db8::/56", 72, 0, "2001:db8::/72"),
        ("2001:db8::/56", 72, 15, "2001:db8:0:0:f00::/72"),
        ("2001:db8::/56", 72, 6425, "2001:db8:0:19:1900::/72"),
        ("2001:db8:0:1a::/80", 96, 0, "2001:db8:0:1a::/96"),
        ("2001:db8:0:1a::/80", 96, 15, "2001:db8:0:1a:0:f::/96"),
        ("2001:db8:0:1a::/80", 96, 6425, "2001:db8:0:1a:0:1919::/96"),
        ("::/0", 16, 0xffff, "ffff::/16"),
        ("::/0", 0, 0, "::/0"),
        ("0.0.0.0/0", 0, 0, "0.0.0.0/0"),
    ] {
        let set = set(cluster, mask);
        assert_eq!(set.block(index).to_string(), block, "{cluster} by /{mask}");
        assert_eq!(set.blocks_of(&net(block)), Some(index..index + 1), "{cluster} by /{mask}");
    }
}

#[test]
fn the_same_blocks_come_again_whatever_the_order_of_their_release() {
    for cluster in ["127.123.234.0/24", "2001:db8::/56"] {
        let mask = if cluster.contains(':') { 64 } else { 32 };
        let mut set = set(cluster, mask);
        let first: BTreeSet<String> = std::iter::from_fn(|| take(&mut set)).collect();
        assert_eq!(first.len(), 256);
        // In the order of their text, which is not that of their numbers.
        for block in first.iter().rev() {
            assert_eq!(release(&mut set, block), 1);
        }
        assert_eq!((set.taken(), set.is_full()), (0, false));
        assert_eq!(std::iter::from_fn(|| take(&mut set)).collect::<BTreeSet<_>>(), first);
    }
}

#[test]
fn what_is_occupied_is_not_given() {
    for (cluster, mask, half) in [
        ("127.123.234.0/24", 32, "127.123.234.0/25"),
        ("2001:db8::/56", 64, "2001:db8:0:80::/57"),
    ] {
        let mut set = set(cluster, mask);
        assert_eq!(occupy(&mut set, half), 128);
        let rest: Vec<String> = std::iter::from_fn(|| take(&mut set)).collect();
        assert_eq!(rest.len(), 128);
        assert!(rest.iter().all(|block| !net(half).contains(&net(block))), "{rest:?}");
    }
}

#[test]
fn taking_or_freeing_twice_counts_once() {
    let mut set = set("10.42.0.0/16", 24);
    let mut counts = Vec::new();
    for (block, taken) in [
        ("10.42.5.0/24", true),
        ("10.42.9.0/24", true),
        ("10.42.5.0/24", true),
        ("10.42.0.0/22", true),
        ("10.42.0.0/22", true),
        ("10.42.5.0/24", false),
        ("10.42.5.0/24", false),
        ("10.42.0.0/23", false),
    ] {
        if taken {
            occupy(&mut set, block)
        } else {
            release(&mut set, block)
        };
        counts.push(set.taken());
    }
    assert_eq!(counts, [1, 2, 2, 6, 6, 5, 5, 3]);
    assert_eq!(std::iter::from_fn(|| take(&mut set)).count(), 253);
    assert!(set.is_full());
}

#[test]
fn a_network_touches_the_blocks_inside_or_around_it() {
    for (cluster, mask, other, blocks) in [
        ("10.0.0.0/16", 24, "10.0.0.0/24", Some(0..1)),
        ("10.0.0.0/16", 24, "10.0.7.0/24", Some(7..8)),
        ("10.0.0.0/16", 24, "10.0.7.128/25", Some(7..8)),
        ("10.0.0.0/16", 24, "10.0.7.9/32", Some(7..8)),
        ("10.0.0.0/16", 24, "10.0.8.0/22", Some(8..12)),
        ("10.0.0.0/16", 24, "10.0.255.0/24", Some(255..256)),
        ("10.0.0.0/16", 24, "10.0.0.0/16", Some(0..256)),
        ("10.0.0.0/16", 24, "10.0.0.0/8", Some(0..256)),
        ("10.0.0.0/16", 24, "0.0.0.0/0", Some(0..256)),
        ("10.0.0.0/16", 24, "10.1.0.0/24", None),
        ("10.0.0.0/16", 24, "9.255.255.0/24", None),
        ("10.0.0.0/16", 24, "fd00::/24", None),
        ("fd00::/48", 64, "fd00:0:0:a::/64", Some(10..11)),
        ("fd00::/48", 64, "fd00:0:0:a:b::/80", Some(10..11)),
        ("fd00::/48", 64, "fd00::/16", Some(0..0x1_0000)),
        ("fd00::/48", 64, "fd00:0:1::/64", None),
        ("fd00::/48", 64, "10.0.0.0/8", None),
    ] {
        assert_eq!(
            set(cluster, mask).blocks_of(&net(other)),
            blocks,
            "{other} of {cluster} by /{mask}"
        );
    }
}

#[test]
fn the_first_free_block_is_found_behind_any_number_of_taken_ones() {
    for (taken, next) in
        [(0, 0), (1, 1), (64, 64), (128, 128), (257, 257), (1031, 1031), (65_535, 65_535)]
    {
        let mut set = set("10.0.0.0/8", 24);
        set.occupy(0..taken);
        let found = set.take_next_free().unwrap();
        assert_eq!((found.index, found.skipped), (next, taken));
    }
    let mut set = set("10.0.0.0/16", 24);
    set.occupy(0..256);
    assert_eq!(set.take_next_free(), None);
    for free in [0, 63, 64, 255] {
        set.release(free..free + 1);
        assert_eq!(set.take_next_free().unwrap().index, free);
        set.occupy(free..free + 1);
    }
}

#[test]
fn the_cursor_goes_round() {
    let mut set = set("10.0.0.0/30", 32);
    for block in ["10.0.0.0/32", "10.0.0.1/32"] {
        assert_eq!(take(&mut set).as_deref(), Some(block));
    }
    release(&mut set, "10.0.0.0/32");
    for block in ["10.0.0.2/32", "10.0.0.3/32", "10.0.0.0/32"] {
        assert_eq!(take(&mut set).as_deref(), Some(block));
    }
    assert_eq!(take(&mut set), None);
}

#[test]
fn sizes_have_upstreams_limits() {
    assert_eq!(set("10.0.0.0/8", 32).len(), 1 << 24);
    assert_eq!(set("2001:db8::/32", 48).len(), 1 << 16);
    let too_big = CidrSet::new(net("2001:db8::/32"), 49).unwrap_err();
    assert!(
        too_big
            .to_string()
            .starts_with("the node CIDR size is too big"),
        "{too_big}"
    );
    assert!(matches!(
        CidrSet::new(net("10.0.0.0/16"), 15),
        Err(InvalidBlocks::LargerThanCluster { .. })
    ));
    assert!(matches!(CidrSet::new(net("10.0.0.0/16"), 33), Err(InvalidBlocks::NoSuchMask { .. })));
    assert!(matches!(CidrSet::new(net("fd00::/120"), 129), Err(InvalidBlocks::NoSuchMask { .. })));
    let mut small = set("2001:db8:1234:3690::/60", 64);
    for block in ["2001:db8:1234:3690::/64", "2001:db8:1234:3691::/64"] {
        assert_eq!(take(&mut small).as_deref(), Some(block));
    }
}

proptest! {
    /// Compared with a set of numbers, over any operations with any numbers.
    #[test]
    fn it_is_a_set_of_taken_blocks(
        is_ipv4: bool,
        difference in 0_u8..=9,
        operations in prop::collection::vec((0..3_u8, any::<u64>(), 0..200_u64), 0..60),
    ) {
        let (cluster, prefix) = if is_ipv4 { ("10.0.0.0/20", 20) } else { ("fd00::/40", 40) };
        let mut set = set(cluster, prefix + difference);
        let mut model = BTreeSet::new();
        for (operation, start, length) in operations {
            // Mostly inside, sometimes beyond the end.
            let start = start % (set.len() + 10);
            let blocks = start..start + length;
            let inside = start.min(set.len())..blocks.end.min(set.len());
            match operation {
                0 => prop_assert_eq!(set.occupy(blocks), inside.map(|i| u64::from(model.insert(i))).sum::<u64>()),
                1 => prop_assert_eq!(set.release(blocks), inside.map(|i| u64::from(model.remove(&i))).sum::<u64>()),
                _ => match set.take_next_free() {
                    Some(found) => {
                        prop_assert!(found.index < set.len() && model.insert(found.index));
                        set.occupy(found.index..found.index + 1);
                    }
                    None => prop_assert_eq!(model.len() as u64, set.len()),
                },
            }
            prop_assert_eq!(set.taken(), model.len() as u64);
        }
    }

    #[test]
    fn no_network_and_no_mask_makes_it_panic(a: u128, prefix in 0..=128_u8, mask: u8, b: u128, other in 0..=128_u8, is_ipv4: bool) {
        let net = |address: u128, prefix: u8| -> IpNet {
            if is_ipv4 {
                let address = u32::try_from(address >> 96).unwrap().into();
                Ipv4Net::new(address, prefix % 33).unwrap().into()
            } else {
                Ipv6Net::new(address.into(), prefix).unwrap().into()
            }
        };
        // Not the largest sets: those take their time to be dropped.
        let cluster = net(a, prefix);
        if let Ok(len) = (PodNetwork { cluster, node_mask: mask }).block_count() && len <= 1 << 20 {
            let mut set = CidrSet::new(cluster, mask).unwrap();
            if let Some(blocks) = set.blocks_of(&net(b, other)) {
                prop_assert_eq!(set.occupy(blocks.clone()), blocks.end - blocks.start);
            }
            let block = set.block(u64::try_from(b % u128::from(u64::MAX)).unwrap());
            prop_assert!(cluster.trunc().contains(&block));
        }
    }
}
