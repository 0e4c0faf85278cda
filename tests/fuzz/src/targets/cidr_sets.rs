//! The blocks of a cluster CIDR, against a model that is a list of them.

use std::net::IpAddr;

use ccm_core::fuzz::CidrBlocks;
use ipnet::IpNet;

use crate::input::Input;

/// Nothing of it is text.
pub const WORDS: &[&str] = &[];

/// Most blocks that the model is asked to hold.
const MOST: u64 = 1 << 12;

/// Draws a network and what is done with it from the bytes.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (cluster, mask) =
        (net(&mut input, None), u8::try_from(input.up_to(140)).unwrap_or(u8::MAX));
    let most = cluster.max_prefix_len();
    let mut blocks = match CidrBlocks::new(cluster, mask) {
        Ok(blocks) => blocks,
        Err(error) => {
            let fits = (cluster.prefix_len()..=most).contains(&mask);
            let too_many =
                cluster.addr().is_ipv6() && mask > cluster.prefix_len().saturating_add(16);
            assert!(!fits || too_many, "{cluster} cut to /{mask}: {error}");
            return;
        }
    };
    let length = 1_u64 << (mask - cluster.prefix_len());
    assert_eq!(blocks.counts(), (length, 0));
    if length > MOST {
        return;
    }
    let mut model = Model::new(cluster.trunc(), mask);
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        step(&mut input, &mut blocks, &mut model, cluster);
        let taken = model.0.iter().filter(|(_, taken)| *taken).count() as u64;
        assert_eq!(blocks.counts(), (length, taken));
    }
}

fn step(input: &mut Input<'_>, blocks: &mut CidrBlocks, model: &mut Model, cluster: IpNet) {
    match input.up_to(4) {
        0 | 1 => match blocks.allocate() {
            Some(block) => {
                let known = model.0.iter_mut().find(|(net, _)| *net == block);
                let (_, taken) =
                    known.unwrap_or_else(|| panic!("{block} is no block of {cluster}"));
                assert!(!std::mem::replace(taken, true), "{block} was taken");
            }
            None => assert!(model.0.iter().all(|(_, taken)| *taken), "there is a free one"),
        },
        2 | 3 => {
            let net = net(input, Some(cluster));
            assert_eq!(blocks.occupy(&net), model.set(&net, true), "occupy {net}");
        }
        _ => {
            let net = net(input, Some(cluster));
            assert_eq!(blocks.release(&net), model.set(&net, false), "release {net}");
        }
    }
}

/// Any network; near another one mostly, where one is given.
fn net(input: &mut Input<'_>, near: Option<IpNet>) -> IpNet {
    let near = near.filter(|_| !input.one_in(6));
    let v4 = near.map_or_else(|| input.one_in(2), |net| net.addr().is_ipv4());
    let width = if v4 { 32 } else { 128 };
    let from = near.map_or(0, |net| usize::from(net.prefix_len()).saturating_sub(1));
    let prefix = from + input.up_to(width - from);
    let mut bits = input.wide();
    if let Some(near) = near {
        // The same network, with other host bits.
        let host = u32::from(near.max_prefix_len() - near.prefix_len());
        let mask = u128::MAX.checked_shl(host).unwrap_or(0);
        bits = (number(near.addr()) & mask) | (bits & !mask);
    }
    let address: IpAddr = if v4 {
        std::net::Ipv4Addr::from_bits(
            u32::try_from(bits & u128::from(u32::MAX)).unwrap_or_default(),
        )
        .into()
    } else {
        std::net::Ipv6Addr::from_bits(bits).into()
    };
    IpNet::new(address, u8::try_from(prefix).unwrap_or_default())
        .expect("the prefix is within the width")
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Each block, and whether it is taken.
struct Model(Vec<(IpNet, bool)>);

impl Model {
    fn new(cluster: IpNet, mask: u8) -> Self {
        let subnets = cluster.subnets(mask).expect("it can be cut so");
        Self(subnets.map(|net| (net, false)).collect())
    }

    /// Sets what the network touches; how many of them were different, `None` when it touches none.
    fn set(&mut self, net: &IpNet, to: bool) -> Option<u64> {
        let touched = self
            .0
            .iter_mut()
            .filter(|(block, _)| block.contains(net) || net.contains(block));
        let changed: Vec<bool> = touched
            .map(|(_, taken)| std::mem::replace(taken, to) != to)
            .collect();
        (!changed.is_empty()).then(|| changed.iter().filter(|changed| **changed).count() as u64)
    }
}
