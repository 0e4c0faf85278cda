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
        let known = self.with(op, client, zones).await?;
        let id = |zone: &Arc<str>| Some((zone.clone(), Arc::<str>::from(&*known.get(&**zone)?.id)));
        Ok(zones
            .iter()
            .filter_map(id)
            .filter(|(_, id)| !id.is_empty())
            .collect())
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
        let mut known = op.wait_shared(self.0.lock()).await;
        if !zones.is_empty() && !known.covers(zones) {
            let read = Instant::now();
            match client.read(op, DescribeAvailabilityZones).await {
                Ok(rows) => {
                    known.zones = Arc::new(
                        rows.into_iter()
                            .map(|zone| (zone.name.clone(), zone))
                            .collect(),
                    );
                    known.read = Some(read);
                    let unknown = zones
                        .iter()
                        .filter(|zone| !known.zones.contains_key(&***zone));
                    known.unlisted = unknown.map(|zone| (zone.clone(), read)).collect();
                }
                // If all zones are known, an old answer will do: a zone's ID and type do not
                // change.
                Err(error) if !zones.iter().all(|zone| known.zones.contains_key(&**zone)) => {
                    return Err(error);
                }
                Err(error) => tracing::debug!(error = %error, "zones not read again"),
            }
        }
        Ok(known.zones.clone())
    }
}

impl ZoneCache {
    /// Returns whether the cache is fresh and answers for all these zones.
    fn covers(&self, zones: &BTreeSet<Arc<str>>) -> bool {
        let known = |zone: &Arc<str>| {
            self.zones.contains_key(&**zone)
                || self
                    .unlisted
                    .get(zone)
                    .is_some_and(|at| at.elapsed() < UNKNOWN_ZONE_TTL)
        };
        self.read.is_some_and(|read| read.elapsed() < TTL) && zones.iter().all(known)
    }
}
