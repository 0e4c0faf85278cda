//! Which member gets a connection, and when a member counts as well: pure.

use std::net::{IpAddr, SocketAddr};

use super::config::{Algorithm, Persistence};

/// What is known of a member when one is chosen.
pub(super) trait Candidate {
    /// Its share, 0 to 256.
    fn weight(&self) -> u16;
    /// Used only while no other is to be had.
    fn backup(&self) -> bool;
    /// Administratively up, and not known to be unwell.
    fn available(&self) -> bool;
    /// Its open connections.
    fn active(&self) -> u64;
    /// Its fixed part in the choice by source, from [`hash`] of what names it.
    fn seed(&self) -> u64;
}

/// Where the turn is.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    /// By member: how much it is owed.
    owed: Vec<i64>,
    /// Where the search begins, so that equals take turns.
    start: usize,
}

/// What of the client the choice depends on.
pub(super) fn key(algorithm: Algorithm, persistence: Option<&Persistence>, client: SocketAddr) -> Option<u64> {
    match (persistence, algorithm) {
        (Some(Persistence::SourceIp), _) | (_, Algorithm::SourceIp) => Some(hash(&address(client.ip()))),
        (_, Algorithm::SourceIpPort) => {
            let mut bytes = [0; 18];
            bytes[..16].copy_from_slice(&address(client.ip()));
            bytes[16..].copy_from_slice(&client.port().to_be_bytes());
            Some(hash(&bytes))
        }
        (_, Algorithm::RoundRobin | Algorithm::LeastConnections) => None,
    }
}

/// Chooses a member, none of `tried`: its index. `key` is what [`key`] gave.
///
/// Backup members are looked at when no other is left; a member of weight 0 never is.
pub(super) fn choose<C: Candidate>(
    algorithm: Algorithm,
    key: Option<u64>,
    members: &[C],
    tried: &[usize],
    rotation: &mut Rotation,
) -> Option<usize> {
    let usable = |index: &usize| {
        let member = &members[*index];
        member.available() && member.weight() > 0 && !tried.contains(index)
    };
    let backup = !(0..members.len()).any(|index| usable(&index) && !members[index].backup());
    let usable = |index: &usize| usable(index) && members[*index].backup() == backup;
    match (key, algorithm) {
        (Some(key), _) => by_source(key, members, usable),
        (None, Algorithm::LeastConnections) => fewest(members, usable, rotation),
        (None, _) => in_turn(members, usable, rotation),
    }
}

/// Weighted rendezvous hashing: a member that comes or goes moves only the clients that it gets or had.
fn by_source<C: Candidate>(key: u64, members: &[C], usable: impl Fn(&usize) -> bool) -> Option<usize> {
    let score = |index: usize| {
        // 53 bits as a fraction above 0 and below 1; the score's distribution is what makes shares follow weights.
        let fraction = ((mix(key ^ members[index].seed()) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -f64::from(members[index].weight()) / fraction.ln()
    };
    (0..members.len()).filter(usable).max_by(|a, b| score(*a).total_cmp(&score(*b)))
}

/// Fewest connections for the weight, counting the one to come.
fn fewest<C: Candidate>(members: &[C], usable: impl Fn(&usize) -> bool, rotation: &mut Rotation) -> Option<usize> {
    let count = members.len();
    let start = rotation.start;
    rotation.start = start.wrapping_add(1);
    let load = |a: usize, b: usize| (members[a].active() + 1) * u64::from(members[b].weight());
    (0..count)
        .map(|offset| start.wrapping_add(offset) % count)
        .filter(usable)
        .min_by(|a, b| load(*a, *b).cmp(&load(*b, *a)))
}

/// Smooth weighted round robin: each is owed its weight, the most owed is taken and owes the sum.
fn in_turn<C: Candidate>(members: &[C], usable: impl Fn(&usize) -> bool, rotation: &mut Rotation) -> Option<usize> {
    rotation.owed.resize(members.len(), 0);
    let mut sum = 0;
    let mut best: Option<usize> = None;
    for index in (0..members.len()).filter(usable) {
        let weight = i64::from(members[index].weight());
        sum += weight;
        rotation.owed[index] += weight;
        if best.is_none_or(|best| rotation.owed[index] > rotation.owed[best]) {
            best = Some(index);
        }
    }
    let best = best?;
    rotation.owed[best] -= sum;
    Some(best)
}

/// Which thread carries a connection: the one that accepted it, or the least busy one when that has clearly less to do.
pub(super) fn choose_worker(accepted: usize, its_load: usize, least: usize, least_load: usize) -> usize {
    // One more and an eighth more are not worth the way.
    if its_load > least_load + 1 + least_load / 8 { least } else { accepted }
}

/// An address, IPv4 within IPv6 as the same as IPv4.
fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// FNV-1a, mixed: the same in every version and on every machine, so that clients keep their members over restarts.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    mix(fnv)
}

/// The finalizer of SplitMix64: every bit of the input moves every bit of the output.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// What checks have found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// Nothing checks it.
    Unmonitored,
    /// The first check is under way.
    Unchecked,
    /// It is well.
    Up,
    /// It is not.
    Down,
}

/// Counts checks in a row.
#[derive(Debug)]
pub(super) struct Streak {
    health: Health,
    /// Checks in a row that speak against `health`.
    against: u8,
    rise: u8,
    fall: u8,
}

impl Streak {
    /// Begins with what is known: after a change of the monitor a member keeps its health.
    pub(super) fn new(known: Health, rise: u8, fall: u8) -> Self {
        let health = if known == Health::Unmonitored { Health::Unchecked } else { known };
        Self { health, against: 0, rise, fall }
    }

    /// Takes in a check. The first one decides alone, as in haproxy: whoever waits for a new balancer is told soon.
    pub(super) fn record(&mut self, well: bool) -> Health {
        let agrees = match self.health {
            Health::Up => well,
            Health::Down => !well,
            Health::Unchecked | Health::Unmonitored => {
                self.health = if well { Health::Up } else { Health::Down };
                true
            }
        };
        if agrees {
            self.against = 0;
            return self.health;
        }
        self.against += 1;
        if self.against >= if well { self.rise } else { self.fall } {
            self.health = if well { Health::Up } else { Health::Down };
            self.against = 0;
        }
        self.health
    }

    /// What the checks so far come to.
    pub(super) fn health(&self) -> Health {
        self.health
    }
}

#[cfg(test)]
mod tests;
