//! Caches the zones of the region. Their IDs are needed for the label `topology.k8s.aws/zone-id`,
//! and their types for load balancers.

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

/// Maximum age of the cached zones.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// Time after which a zone that AWS did not list is requested again. Short, because the zone may
/// just have been enabled, and its nodes are not initialized until it is known.
const UNKNOWN_ZONE_TTL: Duration = Duration::from_secs(300);

/// Cache of the region's zones. They are read once per day, and again for an unknown zone.
#[derive(Default)]
pub struct Zones(Mutex<ZoneCache>);

/// Zones by name.
pub type ByName = Arc<BTreeMap<Box<str>, AvailabilityZone>>;

#[derive(Default)]
struct ZoneCache {
    zones: ByName,
    /// Time of the request that returned the zones; `None` before the first request.
    requested_at: Option<Instant>,
    /// Requested zones that AWS did not list, with the time of the request.
    unlisted: HashMap<Arc<str>, Instant>,
}

impl Zones {
    /// Returns the IDs of zones by name. Zones that AWS does not list are missing.
    ///
    /// # Errors
    /// Fails like [`get_covering`](Self::get_covering).
    pub async fn ids(
        &self,
        op: &Op,
        client: &Client,
        zones: &BTreeSet<Arc<str>>,
    ) -> Result<BTreeMap<Arc<str>, Arc<str>>, AwsError> {
        if zones.is_empty() {
            return Ok(BTreeMap::new());
        }
        let cached_zones = self.get_covering(op, client, zones).await?;
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

    /// Returns all zones of the region. Queries AWS first if the cache is too old or lacks one of
    /// `zones`.
    ///
    /// # Errors
    /// Returns AWS' error if the cache does not contain all of `zones`.
    pub async fn get_covering(
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
            // Old data that has all zones is sufficient, because a zone's ID and type do not
            // change.
            Err(error) if zones.iter().all(|zone| cache.contains(zone)) => {
                tracing::debug!(error = %error, "failed to refresh the zones; using the cached ones");
            }
            Err(error) => return Err(error),
        }
        Ok(cache.zones.clone())
    }
}

impl ZoneCache {
    /// Returns true if the cache is fresh and knows for each of these zones whether it is listed.
    fn covers(&self, zones: &BTreeSet<Arc<str>>) -> bool {
        self.requested_at.is_some_and(|at| at.elapsed() < TTL)
            && zones
                .iter()
                .all(|zone| self.contains(zone) || self.is_unlisted(zone))
    }

    fn contains(&self, zone: &str) -> bool {
        self.zones.contains_key(zone)
    }

    /// Returns true if AWS was recently asked for this zone and did not list it.
    fn is_unlisted(&self, zone: &str) -> bool {
        let unlisted_at = self.unlisted.get(zone);
        unlisted_at.is_some_and(|at| at.elapsed() < UNKNOWN_ZONE_TTL)
    }

    /// Replaces the cached zones with the listed ones, and records which `requested` zones are
    /// missing.
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
        self.requested_at = Some(requested_at);
        self.unlisted.clear();
        for zone in requested {
            if !self.contains(zone) {
                self.unlisted.insert(zone.clone(), requested_at);
            }
        }
    }
}
