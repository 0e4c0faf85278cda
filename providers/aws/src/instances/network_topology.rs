//! Network topology of instances, for the labels `topology.k8s.aws/network-node-layer-…`.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::Op;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    api::{
        Action, AwsError, AwsErrorCause, InstanceId,
        ec2::{DescribeInstanceTopology, InstanceTopology},
    },
    client::Client,
    config::TypePattern,
};

/// Maximum number of IDs in one request (AWS).
const MAX_IDS: usize = 100;
/// Maximum age of the result that the region, an instance type or an instance has no topology.
const NO_TOPOLOGY_TTL: Duration = Duration::from_secs(24 * 3600);
/// Maximum age of an instance's topology. Caching it helps if nodes cannot be initialized yet and
/// are described again, because AWS allows only one request per second.
const TTL: Duration = Duration::from_secs(600);
/// Maximum number of requests of one call. Each waits a second for the rate limiter, and a call may
/// only wait two seconds in all. The remaining instances get an error with a retry delay. The retry
/// finds the results of these requests in the cache.
const MAX_REQUESTS: usize = 3;
/// Retry delay of the remaining instances.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of times that a request is repeated without the IDs that AWS rejected.
const MAX_REJECTIONS: usize = 3;

/// The network nodes above an instance, outermost first. Empty if the instance type or the region
/// has no topology.
pub type Layers = Arc<[Box<str>]>;

/// Cache of the instances' network topology.
#[derive(Default)]
pub struct Topology(Mutex<TopologyCache>);

#[derive(Default)]
struct TopologyCache {
    /// Time at which AWS answered that the region has no topology.
    region_without_topology_since: Option<Instant>,
    /// Instance types without topology, with the time of the answer.
    types_without_topology: HashMap<Arc<str>, Instant>,
    instances: HashMap<InstanceId, CachedLayers>,
}

struct CachedLayers {
    layers: Layers,
    fetched_at: Instant,
}

impl CachedLayers {
    fn is_fresh(&self) -> bool {
        let ttl = if self.layers.is_empty() {
            NO_TOPOLOGY_TTL
        } else {
            TTL
        };
        self.fetched_at.elapsed() < ttl
    }
}

impl TopologyCache {
    /// Returns the cached layers of an instance. `None` means that AWS has to be queried.
    fn layers(&self, id: &InstanceId, instance_type: &Arc<str>) -> Option<Layers> {
        if self.has_no_topology(instance_type) {
            return Some(Layers::default());
        }
        let cached = self.instances.get(id)?;
        if cached.is_fresh() {
            Some(cached.layers.clone())
        } else {
            None
        }
    }

    /// Returns true if the region, or this type in the region, is known to have no topology.
    fn has_no_topology(&self, instance_type: &Arc<str>) -> bool {
        instance_type.is_empty()
            || is_recent(self.region_without_topology_since.as_ref())
            || is_recent(self.types_without_topology.get(instance_type))
    }

    /// Stores the answer to a request. An instance that is missing from the answer has no topology.
    /// If no instance of its type is in the answer, the whole type has none, unless it is
    /// `required`.
    fn store(
        &mut self,
        requested: &[(InstanceId, Arc<str>)],
        topologies: Vec<InstanceTopology>,
        required: &TypePattern,
    ) {
        let fetched_at = Instant::now();
        self.instances.retain(|_, cached| cached.is_fresh());
        let mut layers_by_id: HashMap<InstanceId, Layers> = topologies
            .into_iter()
            .map(|topology| (topology.id, topology.network_nodes.into()))
            .collect();
        let supported_types: HashSet<&Arc<str>> = requested
            .iter()
            .filter(|(id, _)| layers_by_id.contains_key(id))
            .map(|(_, instance_type)| instance_type)
            .collect();
        for (id, instance_type) in requested {
            if let Some(layers) = layers_by_id.remove(id) {
                self.instances
                    .insert(id.clone(), CachedLayers { layers, fetched_at });
            } else if required.matches(instance_type) || supported_types.contains(instance_type) {
                let layers = Layers::default();
                self.instances
                    .insert(id.clone(), CachedLayers { layers, fetched_at });
            } else {
                self.types_without_topology
                    .insert(instance_type.clone(), fetched_at);
            }
        }
    }
}

fn is_recent(no_topology_since: Option<&Instant>) -> bool {
    no_topology_since.is_some_and(|since| since.elapsed() < NO_TOPOLOGY_TTL)
}

impl Topology {
    /// Returns the layers of instances, which are given with their types. Sends one request per 100
    /// instances that are not in the cache.
    ///
    /// A region without topology and a missing permission are not errors; the instances then have
    /// no layers. Other errors are returned only for types that match `required`, while instances
    /// of other types get no layers. An error that asks for a later retry is returned for every
    /// type.
    pub async fn layers(
        &self,
        op: &Op,
        client: &Client,
        required: &TypePattern,
        instances: &[(InstanceId, Arc<str>)],
    ) -> HashMap<InstanceId, Result<Layers, AwsError>> {
        let mut results = HashMap::new();
        if instances.is_empty() {
            return results;
        }
        // Held during the requests, so that concurrent calls use each other's results.
        let mut cache = op.wait_shared(self.0.lock()).await;
        let mut unanswered: Vec<_> = instances.to_vec();
        // Required types come first. They need their requests anyway, and the answers may make
        // requests for other types unnecessary.
        unanswered
            .sort_by_key(|(id, instance_type)| (!required.matches(instance_type), id.clone()));
        unanswered.dedup();
        for requests in 0.. {
            // First, take the results that the cache has by now.
            unanswered.retain(|(id, instance_type)| {
                if let Some(layers) = cache.layers(id, instance_type) {
                    results.insert(id.clone(), Ok(layers));
                }
                !results.contains_key(id)
            });
            // Then query the next batch.
            let batch: Vec<_> = unanswered.iter().take(MAX_IDS).cloned().collect();
            if batch.is_empty() {
                break;
            }
            if requests == MAX_REQUESTS {
                for (id, _) in unanswered {
                    let error = AwsError {
                        action: Some(Action::DescribeInstanceTopology),
                        cause: AwsErrorCause::RateLimited(RETRY_DELAY),
                    };
                    results.insert(id, Err(error));
                }
                break;
            }
            let Err(BatchError { error, unanswered: unanswered_in_batch }) =
                fetch_batch(op, client, required, &mut cache, batch).await
            else {
                continue;
            };
            if is_topology_unavailable(&error) {
                tracing::info!(error = %error, "no network topology in this region");
                cache.region_without_topology_since = Some(Instant::now());
                continue;
            }
            tracing::debug!(error = %error, "failed to read the network topology");
            // Rejected IDs do not affect other instances. Any other error would repeat for them, so
            // it is the result for all of them.
            let failed = if is_about_ids(&error) {
                unanswered_in_batch
            } else {
                std::mem::take(&mut unanswered)
            };
            // An error that asks for a later retry says nothing about the type.
            let asks_for_retry =
                matches!(error.cause, AwsErrorCause::RateLimited(_) | AwsErrorCause::NotSent(_));
            for (id, instance_type) in failed {
                let result = if asks_for_retry || required.matches(&instance_type) {
                    Err(error.clone())
                } else {
                    Ok(Layers::default())
                };
                results.insert(id, result);
            }
        }
        results
    }
}

/// Error of a batch, with the instances that got no answer.
struct BatchError {
    error: AwsError,
    unanswered: Vec<(InstanceId, Arc<str>)>,
}

/// Queries at most 100 instances and caches the answer. If AWS rejects some of the IDs, the others
/// are queried again without them.
///
/// # Errors
/// Returns the last error, together with the instances that got no answer because of it or because
/// AWS rejected their IDs.
async fn fetch_batch(
    op: &Op,
    client: &Client,
    required: &TypePattern,
    cache: &mut TopologyCache,
    mut batch: Vec<(InstanceId, Arc<str>)>,
) -> Result<(), BatchError> {
    let mut last_rejection: Option<AwsError> = None;
    let mut unanswered = Vec::new();
    for _ in 0..=MAX_REJECTIONS {
        let ids = batch.iter().map(|(id, _)| id.clone()).collect();
        let request = DescribeInstanceTopology { ids, token: None };
        let error = match client
            .read_all(op, request, |request, token| request.token = Some(token))
            .await
        {
            Ok(topologies) => {
                cache.store(&batch, topologies, required);
                return match last_rejection {
                    Some(error) => Err(BatchError { error, unanswered }),
                    None => Ok(()),
                };
            }
            Err(error) => error,
        };
        let message = error.to_string();
        let (named, others): (Vec<_>, Vec<_>) = batch
            .iter()
            .cloned()
            .partition(|(id, _)| message.contains(&**id));
        if !is_about_ids(&error) || named.is_empty() || others.is_empty() {
            unanswered.append(&mut batch);
            return Err(BatchError { error, unanswered });
        }
        unanswered.extend(named);
        batch = others;
        last_rejection = Some(error);
    }
    unanswered.append(&mut batch);
    let error = last_rejection.expect("the loop only ends after a rejection");
    Err(BatchError { error, unanswered })
}

/// Returns true if no request can succeed, because the region has no topology or the permission is
/// missing.
fn is_topology_unavailable(error: &AwsError) -> bool {
    ["UnsupportedOperation", "UnauthorizedOperation", "AccessDenied", "InvalidAction"]
        .iter()
        .any(|code| error.has_code(code))
}

/// Returns true if AWS rejected the request because of the IDs in it.
fn is_about_ids(error: &AwsError) -> bool {
    error.code().starts_with("InvalidInstanceID")
}
