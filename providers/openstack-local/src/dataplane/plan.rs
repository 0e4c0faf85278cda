//! Chooses the member for a connection, and decides when a member counts as healthy. Pure.

use std::net::{IpAddr, SocketAddr};

use super::config::{Algorithm, Persistence};

/// What the choice depends on, for one member.
pub(super) trait Candidate {
    /// Its weight, 0 to 256.
    fn weight(&self) -> u16;
    /// True when it is used only while no other member is available.
    fn backup(&self) -> bool;
    /// True when it is administratively up, and not known to be unhealthy.
    fn available(&self) -> bool;
    /// Its open connections.
    fn active(&self) -> u64;
    /// Its constant part in the choice by source: the [`hash`] of what identifies it.
    fn seed(&self) -> u64;
}

/// State of the rotation among members.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    /// By member: its current weight in smooth weighted round robin.
    owed: Vec<i64>,
    /// Where the search begins, so that equal members alternate.
    start: usize,
}

/// Returns the hash of the client that the choice depends on, if it does.
pub(super) fn key(
    algorithm: Algorithm,
    persistence: Option<&Persistence>,
    client: SocketAddr,
) -> Option<u64> {
    match (persistence, algorithm) {
        (Some(Persistence::SourceIp), _) | (_, Algorithm::SourceIp) => {
            Some(hash(&address(client.ip())))
        }
        (_, Algorithm::SourceIpPort) => {
            let mut bytes = [0; 18];
            bytes[..16].copy_from_slice(&address(client.ip()));
            bytes[16..].copy_from_slice(&client.port().to_be_bytes());
            Some(hash(&bytes))
        }
        (_, Algorithm::RoundRobin | Algorithm::LeastConnections) => None,
    }
}

/// Returns the index of a member that is not among `tried`. `key` is the result of [`key`].
///
/// Backup members are considered only when no other is left; a member of weight 0 never is.
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

/// Weighted rendezvous hashing: when a member is added or removed, only its own clients move.
fn by_source<C: Candidate>(
    key: u64,
    members: &[C],
    usable: impl Fn(&usize) -> bool,
) -> Option<usize> {
    let score = |index: usize| {
        // 53 bits as a fraction above 0 and below 1; the score's distribution is what makes shares
        // follow weights.
        let fraction =
            ((mix(key ^ members[index].seed()) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -f64::from(members[index].weight()) / fraction.ln()
    };
    (0..members.len())
        .filter(usable)
        .max_by(|a, b| score(*a).total_cmp(&score(*b)))
}

/// The member with the fewest connections for its weight, counting the new one.
fn fewest<C: Candidate>(
    members: &[C],
    usable: impl Fn(&usize) -> bool,
    rotation: &mut Rotation,
) -> Option<usize> {
    let count = members.len();
    let start = rotation.start;
    rotation.start = start.wrapping_add(1);
    let load = |a: usize, b: usize| (members[a].active() + 1) * u64::from(members[b].weight());
    (0..count)
        .map(|offset| start.wrapping_add(offset) % count)
        .filter(usable)
        .min_by(|a, b| load(*a, *b).cmp(&load(*b, *a)))
}

/// Smooth weighted round robin: each member gains its weight; the one with the most is chosen and
/// loses the sum.
fn in_turn<C: Candidate>(
    members: &[C],
    usable: impl Fn(&usize) -> bool,
    rotation: &mut Rotation,
) -> Option<usize> {
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

/// Returns the thread that carries a connection: the one that accepted it, or the least busy one if
/// that has clearly less to do.
pub(super) fn choose_worker(
    accepted: usize,
    its_load: usize,
    least: usize,
    least_load: usize,
) -> usize {
    // A difference of one connection and an eighth is not worth moving it.
    if its_load > least_load + 1 + least_load / 8 {
        least
    } else {
        accepted
    }
}

/// Returns an address as bytes; IPv4 mapped to IPv6 equals IPv4.
fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// FNV-1a, mixed: equal in every version and on every machine, so that clients keep their members
/// across restarts.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(fnv)
}

/// The finalizer of SplitMix64: every bit of the input affects every bit of the output.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Result of the health checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// It is not checked.
    Unmonitored,
    /// The first check is in progress.
    Unchecked,
    /// It is healthy.
    Up,
    /// It is unhealthy.
    Down,
}

/// Counts checks in a row.
#[derive(Debug)]
pub(super) struct Streak {
    health: Health,
    /// Checks in a row that contradict `health`.
    against: u8,
    rise: u8,
    fall: u8,
}

impl Streak {
    /// Starts with what is known: after a change of the monitor a member keeps its health.
    pub(super) fn new(known: Health, rise: u8, fall: u8) -> Self {
        let health = if known == Health::Unmonitored {
            Health::Unchecked
        } else {
            known
        };
        Self { health, against: 0, rise, fall }
    }

    /// Records a check. The first one decides alone, as in haproxy, so that a new load balancer is
    /// usable soon.
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

    /// Returns the result of the checks so far.
    pub(super) fn health(&self) -> Health {
        self.health
    }
}

#[cfg(test)]
mod tests;
