//! Members in use: their health, their connections, and the choice of the next one.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    ChangeNotifier,
    config::{MemberConfig, MemberId, PoolConfig, PoolId},
    plan::{self, Candidate, Health, Rotation},
    report::{MemberReport, MemberState, PoolReport},
    session_persistence::CookieStore,
};

/// A pool at one time. A change creates a new one, which shares the members that stay.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: PoolConfig,
    slots: Vec<Slot>,
    rotation: Mutex<Rotation>,
    /// Member by cookie, where members set cookies.
    pub(super) cookies: CookieStore,
}

/// A member in a pool: its configuration, and the part that outlives changes of it.
#[derive(Debug)]
struct Slot {
    config: MemberConfig,
    member: Arc<Member>,
}

/// The part of a member that outlives changes of the pool.
#[derive(Debug)]
pub(super) struct Member {
    pool: PoolId,
    pub(super) id: MemberId,
    pub(super) socket: SocketAddr,
    seed: u64,
    health: AtomicU8,
    last_error: Mutex<Option<String>>,
    active: AtomicU64,
    /// The task that checks it, and how to end it.
    pub(super) check: Mutex<Option<super::monitor::Running>>,
    /// Ends its connections: cancelled when the drain time after its removal is over, or its
    /// listener is closed.
    pub(super) gone: CancellationToken,
}

impl Pool {
    /// Creates a pool. It shares those of `known` that are the same members, and keeps the cookies
    /// of `before` if that is the same pool; `gone` is the parent of new members' tokens.
    pub(super) fn new(
        config: PoolConfig,
        before: Option<&Self>,
        known: &[Arc<Member>],
        gone: &CancellationToken,
    ) -> Self {
        let slot = |member: &MemberConfig| {
            let same = |known: &&Arc<Member>| known.pool == config.id && known.is(member);
            let new = || Arc::new(Member::new(config.id.clone(), member, gone.child_token()));
            Slot {
                config: member.clone(),
                member: known.iter().find(same).cloned().unwrap_or_else(new),
            }
        };
        let slots = config.members.iter().map(slot).collect();
        let same = |old: &&Self| {
            old.config.id == config.id && old.config.persistence == config.persistence
        };
        let cookies = before
            .filter(same)
            .map(|old| old.cookies.clone())
            .unwrap_or_default();
        Self { slots, config, rotation: Mutex::default(), cookies }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.slots.iter().map(|slot| &slot.member)
    }

    /// Returns the members with their configuration.
    pub(super) fn slots(&self) -> impl Iterator<Item = (&MemberConfig, &Arc<Member>)> {
        self.slots.iter().map(|slot| (&slot.config, &slot.member))
    }

    /// Chooses a member that is not among `tried`, counts a connection to it, and adds it to
    /// `tried`.
    pub(super) fn choose(
        &self,
        client: SocketAddr,
        tried: &mut Vec<usize>,
    ) -> Option<MemberConnection> {
        let key = plan::key(self.config.algorithm, self.config.persistence.as_ref(), client);
        // Counted under the lock: of two clients that arrive together, the second sees the first's
        // connection.
        let mut rotation = self.rotation.lock();
        let index = plan::choose(self.config.algorithm, key, &self.slots, tried, &mut rotation)?;
        tried.push(index);
        Some(MemberConnection::new(self.slots[index].member.clone()))
    }

    /// Chooses the member with this ID, as [`choose`](Self::choose) does, if it is available.
    pub(super) fn choose_by_name(
        &self,
        id: &str,
        tried: &mut Vec<usize>,
    ) -> Option<MemberConnection> {
        let index = self
            .slots
            .iter()
            .position(|slot| slot.config.id.as_str() == id && slot.available())?;
        if tried.contains(&index) {
            return None;
        }
        tried.push(index);
        Some(MemberConnection::new(self.slots[index].member.clone()))
    }

    /// Returns whether a member may keep its connections: it is still configured and enabled, even
    /// if it only drains.
    pub(super) fn keeps(&self, member: &Arc<Member>) -> bool {
        self.slots
            .iter()
            .any(|slot| Arc::ptr_eq(&slot.member, member) && slot.config.enabled)
    }

    pub(super) fn report(&self) -> PoolReport {
        let member = |slot: &Slot| MemberReport {
            id: slot.config.id.clone(),
            state: slot.state(),
            active_connections: slot.member.active.load(Relaxed),
            last_error: slot.member.last_error.lock().clone(),
        };
        PoolReport {
            id: self.config.id.clone(),
            members: self.slots.iter().map(member).collect(),
        }
    }
}

impl Slot {
    fn state(&self) -> MemberState {
        match self.member.health() {
            _ if !self.config.enabled => MemberState::Offline,
            Health::Down => MemberState::Error,
            _ if self.config.weight == 0 => MemberState::Draining,
            Health::Up => MemberState::Online,
            Health::Unchecked => MemberState::Offline,
            Health::Unmonitored => MemberState::NoMonitor,
        }
    }
}

impl Candidate for Slot {
    fn weight(&self) -> u16 {
        self.config.weight
    }

    fn backup(&self) -> bool {
        self.config.backup
    }

    fn available(&self) -> bool {
        self.config.enabled && self.member.health() != Health::Down
    }

    fn active(&self) -> u64 {
        self.member.active.load(Relaxed)
    }

    fn seed(&self) -> u64 {
        self.member.seed
    }
}

impl Member {
    fn new(pool: PoolId, config: &MemberConfig, gone: CancellationToken) -> Self {
        Self {
            pool,
            id: config.id.clone(),
            socket: config.socket(),
            seed: plan::hash(config.socket().to_string().as_bytes()),
            health: AtomicU8::new(Health::Unmonitored as u8),
            last_error: Mutex::default(),
            active: AtomicU64::new(0),
            check: Mutex::default(),
            gone,
        }
    }

    fn is(&self, config: &MemberConfig) -> bool {
        self.id == config.id && self.socket == config.socket() && !self.gone.is_cancelled()
    }

    pub(super) fn health(&self) -> Health {
        const KINDS: [Health; 4] =
            [Health::Unmonitored, Health::Unchecked, Health::Up, Health::Down];
        KINDS[usize::from(self.health.load(Relaxed)) % KINDS.len()]
    }

    /// Records the result of the checks and announces changes.
    pub(super) fn set_health(
        &self,
        health: Health,
        last_error: Option<String>,
        announcer: &ChangeNotifier,
    ) {
        let before = self.health.swap(health as u8, Relaxed);
        let mut error = self.last_error.lock();
        if before != health as u8 || *error != last_error {
            *error = last_error;
            drop(error);
            announcer.announce();
        }
    }
}

/// A connection to a member, counted while this lives.
#[derive(Debug)]
pub(super) struct MemberConnection {
    pub(super) member: Arc<Member>,
}

impl MemberConnection {
    fn new(member: Arc<Member>) -> Self {
        member.active.fetch_add(1, Relaxed);
        Self { member }
    }
}

impl Drop for MemberConnection {
    fn drop(&mut self) {
        self.member.active.fetch_sub(1, Relaxed);
    }
}
