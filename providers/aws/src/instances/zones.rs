//! Caches the zones of the region. Their IDs are needed for the label `topology.k8s.aws/zone-id`,
//! and their types for load balancers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{Op, SharedRead};

use crate::{
    api::{
        AwsError,
        ec2::{AvailabilityZone, DescribeAvailabilityZones},
    },
    client::Client,
};

/// Maximum age of the cached zones.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Maximum age of cached zones that lack a zone. Short, because the zone may just have been enabled,
/// and its nodes are not initialized until it is known.
const MAX_AGE_IF_MISSING: Duration = Duration::from_secs(60);

/// Cache of the region's zones. They are read once per day, and again for an unknown zone.
#[derive(Default)]
pub struct Zones(SharedRead<ZonesByName>);

/// Zones by name.
pub type ZonesByName = BTreeMap<Box<str>, AvailabilityZone>;

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

    /// Returns all zones of the region, or those that are cached if `zones` is empty. Queries AWS
    /// first if the cache is too old or lacks one of `zones`.
    ///
    /// # Errors
    /// Returns AWS' error if the cache does not contain all of `zones`.
    pub async fn get_covering(
        &self,
        op: &Op,
        client: &Client,
        zones: &BTreeSet<Arc<str>>,
    ) -> Result<Arc<ZonesByName>, AwsError> {
        if zones.is_empty() {
            return Ok(self.0.cached(Duration::MAX).unwrap_or_default());
        }
        let has_all =
            |cached: &Arc<ZonesByName>| zones.iter().all(|zone| cached.contains_key(&**zone));
        if let Some(cached) = self.0.cached(MAX_AGE).filter(has_all) {
            return Ok(cached);
        }
        let read = client.read(op, DescribeAvailabilityZones);
        let read = async { Ok(read.await?.into_iter().map(by_name).collect()) };
        let error = match self.0.get(op, MAX_AGE_IF_MISSING, read).await {
            Ok(listed) => return Ok(listed),
            Err(error) => error,
        };
        // Old data that has all zones is sufficient, because a zone's ID and type do not change.
        let Some(cached) = self.0.cached(Duration::MAX).filter(has_all) else {
            return Err(error);
        };
        tracing::debug!(error = %error, "failed to refresh the zones; using the cached ones");
        Ok(cached)
    }
}

fn by_name(zone: AvailabilityZone) -> (Box<str>, AvailabilityZone) {
    (zone.name.clone(), zone)
}
