//! IDs of zones, for the label `topology.k8s.aws/zone-id`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::Op;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    api::{AwsError, ec2::DescribeAvailabilityZones},
    client::Client,
};

/// How long the zones of the region are believed.
const KEEP: Duration = Duration::from_secs(24 * 3600);
/// How long a zone that AWS did not list is not asked for again. Short, because the zone may just have been enabled and
/// its nodes wait.
const UNKNOWN: Duration = Duration::from_secs(300);

/// The zones of the region: all of them in one call a day, and one more for a zone that is not among them.
#[derive(Default)]
pub struct ZoneIds(Mutex<Zones>);

#[derive(Default)]
struct Zones {
    ids: HashMap<Box<str>, Arc<str>>,
    read: Option<Instant>,
    /// Zones that were not listed, and when.
    unknown: HashMap<Arc<str>, Instant>,
}

impl ZoneIds {
    /// Returns the IDs of zones; one that AWS does not list is missing.
    ///
    /// # Errors
    /// AWS' answer, if it had to be asked.
    pub async fn of(
        &self,
        op: &Op,
        client: &Client,
        zones: &BTreeSet<Arc<str>>,
    ) -> Result<BTreeMap<Arc<str>, Arc<str>>, AwsError> {
        if zones.is_empty() {
            return Ok(BTreeMap::new());
        }
        // Held over the call, so that many who miss a zone cost one.
        let mut known = op.queue(self.0.lock()).await;
        if !known.answers(zones) {
            let read = Instant::now();
            match client.read(op, DescribeAvailabilityZones).await {
                Ok(rows) => {
                    let rows = rows.into_iter().filter(|zone| !zone.id.is_empty());
                    known.ids = rows.map(|zone| (zone.name, zone.id.into())).collect();
                    known.read = Some(read);
                    let unknown: HashMap<_, _> = zones
                        .iter()
                        .filter(|zone| !known.ids.contains_key(&***zone))
                        .map(|z| (z.clone(), read))
                        .collect();
                    known.unknown = unknown;
                }
                // A zone keeps its ID.
                Err(error) if !zones.iter().all(|zone| known.ids.contains_key(&**zone)) => return Err(error),
                Err(error) => tracing::debug!(error = %error, "zones not read again"),
            }
        }
        Ok(zones.iter().filter_map(|zone| Some((zone.clone(), known.ids.get(&**zone)?.clone()))).collect())
    }
}

impl Zones {
    /// Tells whether nothing has to be asked.
    fn answers(&self, zones: &BTreeSet<Arc<str>>) -> bool {
        let known = |zone: &Arc<str>| {
            self.ids.contains_key(&**zone) || self.unknown.get(zone).is_some_and(|at| at.elapsed() < UNKNOWN)
        };
        self.read.is_some_and(|read| read.elapsed() < KEEP) && zones.iter().all(known)
    }
}
