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
/// Age limit of the result "no topology": for the region, a type or an instance.
const NO_TOPOLOGY_TTL: Duration = Duration::from_secs(24 * 3600);
/// Age limit of an instance's topology, so that nodes whose initialization failed because of other
/// nodes do not query again: AWS allows one request per second.
const TTL: Duration = Duration::from_secs(600);
/// Maximum number of requests of one call. Each waits a second for the rate limiter, and nothing
/// here waits longer than two. The remaining instances get an error with a retry delay, and then
/// find these results in the cache.
const MAX_REQUESTS: usize = 3;
/// Retry delay of the remaining instances.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How often a request is repeated without the IDs that AWS rejected.
const MAX_REJECTIONS: usize = 3;

/// The network nodes above an instance, outermost first; empty if the type or region has no
/// topology.
pub type Layers = Arc<[Box<str>]>;

/// Cache of network topology.
#[derive(Default)]
pub struct Topology(Mutex<TopologyCache>);

#[derive(Default)]
struct TopologyCache {
    region: Option<Instant>,
    types: HashMap<Arc<str>, Instant>,
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

    /// Returns whether the region, or this type in the region, is known to have no topology.
    fn has_no_topology(&self, instance_type: &Arc<str>) -> bool {
        instance_type.is_empty()
            || is_recent(self.region.as_ref())
            || is_recent(self.types.get(instance_type))
    }

    /// Stores the answer for the instances of one request.
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
                self.types.insert(instance_type.clone(), fetched_at);
            }
        }
    }
}

fn is_recent(no_topology_since: Option<&Instant>) -> bool {
    no_topology_since.is_some_and(|since| since.elapsed() < NO_TOPOLOGY_TTL)
}

impl Topology {
    /// Returns the layers of instances, which are given with their types. One request covers at
    /// most 100 instances, and none is requested twice.
    ///
    /// A region without topology and a missing permission are not errors. Other errors are returned
    /// only for types that match `required`; instances of other types get no layers. An error that
    /// asks to come back later is returned for every type.
    pub async fn of(
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
        // Required types come first: they need their requests, and the other types may then need
        // none.
        unanswered
            .sort_by_key(|(id, instance_type)| (!required.matches(instance_type), id.clone()));
        unanswered.dedup();
        for requests in 0.. {
            // First, answer what the cache knows.
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
            let Err(FetchError { error, left_out }) =
                fetch(op, client, required, &mut cache, batch).await
            else {
                continue;
            };
            if no_topology(&error) {
                tracing::info!(error = %error, "no network topology in this region");
                cache.region = Some(Instant::now());
                continue;
            }
            tracing::debug!(error = %error, "network topology not known");
            // Rejected IDs do not affect other instances; any other error would repeat for them.
            let failed = if names_an_id(&error) {
                left_out
            } else {
                std::mem::take(&mut unanswered)
            };
            // An error that asks to come back later is no answer about the type.
            let retry_later =
                matches!(error.cause, AwsErrorCause::RateLimited(_) | AwsErrorCause::NotSent(_));
            for (id, instance_type) in failed {
                let result = if retry_later || required.matches(&instance_type) {
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

/// A request without an answer for some of its instances.
struct FetchError {
    error: AwsError,
    left_out: Vec<(InstanceId, Arc<str>)>,
}

/// Queries at most 100 instances and stores the answer. Instances whose IDs AWS rejects are left
/// out and returned with the error.
async fn fetch(
    op: &Op,
    client: &Client,
    required: &TypePattern,
    cache: &mut TopologyCache,
    mut batch: Vec<(InstanceId, Arc<str>)>,
) -> Result<(), FetchError> {
    let mut last_rejection: Option<AwsError> = None;
    let mut left_out = Vec::new();
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
                    Some(error) => Err(FetchError { error, left_out }),
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
        if !names_an_id(&error) || named.is_empty() || others.is_empty() {
            left_out.append(&mut batch);
            return Err(FetchError { error, left_out });
        }
        left_out.extend(named);
        batch = others;
        last_rejection = Some(error);
    }
    left_out.append(&mut batch);
    let error = last_rejection.expect("the loop only ends after a rejection");
    Err(FetchError { error, left_out })
}

/// Returns whether no request can succeed: the region has no topology, or the permission is
/// missing.
fn no_topology(error: &AwsError) -> bool {
    ["UnsupportedOperation", "UnauthorizedOperation", "AccessDenied", "InvalidAction"]
        .iter()
        .any(|code| error.has_code(code))
}

fn names_an_id(error: &AwsError) -> bool {
    error.code().starts_with("InvalidInstanceID")
}
