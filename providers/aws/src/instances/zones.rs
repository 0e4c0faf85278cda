//! Zones of the region: their IDs, for the label `topology.k8s.aws/zone-id`, and their types, for
//! load balancers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::Op;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    api::{
        AwsError,
        ec2::{AvailabilityZone, DescribeAvailabilityZones},
    },
    client::Client,
};

/// Age limit of the region's zones.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// How long an unlisted zone is not queried again. Short, because the zone may just have been
/// enabled, and its nodes wait.
const UNKNOWN_ZONE_TTL: Duration = Duration::from_secs(300);

/// Cache of the region's zones: one call per day for all of them, and one more for an unknown zone.
#[derive(Default)]
pub struct Zones(Mutex<ZoneCache>);

/// Zones by name.
pub type ByName = Arc<BTreeMap<Box<str>, AvailabilityZone>>;

#[derive(Default)]
struct ZoneCache {
    zones: ByName,
    read: Option<Instant>,
    /// Zones that AWS did not list, and when.
    unlisted: HashMap<Arc<str>, Instant>,
}

impl Zones {
    /// Returns the IDs of zones; zones that AWS does not list are missing.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub async fn ids(
        &self,
        op: &Op,
        client: &Client,
        zones: &BTreeSet<Arc<str>>,
    ) -> Result<BTreeMap<Arc<str>, Arc<str>>, AwsError> {
        if zones.is_empty() {
            return Ok(BTreeMap::new());
        }
        let cached_zones = self.with(op, client, zones).await?;
        let mut ids = BTreeMap::new();
        for name in zones {
            if let Some(zone) = cached_zones.get(&**name)
                && !zone.id.is_empty()
            {
                ids.insert(name.clone(), Arc::from(&*zone.id));
            }
        }
        Ok(ids)
    }

    /// Returns all cached zones. Queries AWS first if the cache is too old or lacks one of `zones`.
    ///
    /// # Errors
    /// AWS' answer, if the cache does not contain all of `zones`.
    pub async fn with(
        &self,
        op: &Op,
        client: &Client,
        zones: &BTreeSet<Arc<str>>,
    ) -> Result<ByName, AwsError> {
        // Held during the call, so that concurrent callers that need the same zone share one call.
        let mut cache = op.wait_shared(self.0.lock()).await;
        if zones.is_empty() || cache.covers(zones) {
            return Ok(cache.zones.clone());
        }
        let requested_at = Instant::now();
        match client.read(op, DescribeAvailabilityZones).await {
            Ok(listed) => cache.store(listed, zones, requested_at),
            // An old answer that has all zones will do: a zone's ID and type do not change.
            Err(error) if zones.iter().all(|zone| cache.contains(zone)) => {
                tracing::debug!(error = %error, "zones not read again");
            }
            Err(error) => return Err(error),
        }
        Ok(cache.zones.clone())
    }
}

impl ZoneCache {
    /// Returns whether the cache is fresh and answers for all these zones.
    fn covers(&self, zones: &BTreeSet<Arc<str>>) -> bool {
        self.read.is_some_and(|read| read.elapsed() < TTL)
            && zones
                .iter()
                .all(|zone| self.contains(zone) || self.is_unlisted(zone))
    }

    fn contains(&self, zone: &str) -> bool {
        self.zones.contains_key(zone)
    }

    /// Returns whether AWS did not list this zone a short time ago.
    fn is_unlisted(&self, zone: &str) -> bool {
        let unlisted_at = self.unlisted.get(zone);
        unlisted_at.is_some_and(|at| at.elapsed() < UNKNOWN_ZONE_TTL)
    }

    /// Replaces the cached zones by those of an answer, which may lack some of the `requested`
    /// ones.
    fn store(
        &mut self,
        listed: Vec<AvailabilityZone>,
        requested: &BTreeSet<Arc<str>>,
        requested_at: Instant,
    ) {
        let by_name: BTreeMap<_, _> = listed
            .into_iter()
            .map(|zone| (zone.name.clone(), zone))
            .collect();
        self.zones = Arc::new(by_name);
        self.read = Some(requested_at);
        self.unlisted.clear();
        for zone in requested {
            if !self.contains(zone) {
                self.unlisted.insert(zone.clone(), requested_at);
            }
        }
    }
}
