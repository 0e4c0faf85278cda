//! Polls load balancers that are busy. If there are many, one listing answers for all of them.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    api::octavia::LoadBalancer,
    client::{Call, OpenStackError, Request},
    lb::{
        api::Api,
        query_strategy::{
            MAX_SINGLE_REQUESTS, MAX_TAGS, PAGE, StatusQueryStrategy, choose_strategy,
        },
        sync_state::{ListingRound, ListingRounds},
    },
};

/// Time after the last query for which a load balancer counts as pending. It is longer than any
/// delay between two polls.
const WAITING_TTL: Duration = Duration::from_secs(30);

/// Pending load balancers, and the last listing of many of them.
#[derive(Debug, Default)]
pub(super) struct StatusPoller {
    state: Mutex<PollerState>,
    /// Held during a listing, so that others wait for its result instead of listing again.
    request_lock: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct PollerState {
    waiting: HashMap<Box<str>, WaitingLoadBalancer>,
    last_listing: Option<StatusListing>,
    /// True if all load balancers of the project fit on one page, `None` before that is known.
    fits_one_page: Option<bool>,
}

/// A pending load balancer.
#[derive(Debug)]
struct WaitingLoadBalancer {
    /// Tag of the load balancer, or empty if the cloud has no tags.
    tag: Box<str>,
    queried_at: Instant,
}

/// The pending load balancers that one listing has found.
#[derive(Debug)]
struct StatusListing {
    round: ListingRound,
    started: Instant,
    rows: HashMap<Box<str>, LoadBalancer>,
}

/// Result of a query for one load balancer.
pub(super) struct StatusResult {
    /// The load balancer, or `None` if it does not exist.
    pub(super) load_balancer: Option<LoadBalancer>,
    /// Number of the listing that shows the load balancer. For one that was read alone, the last
    /// listing that had begun.
    pub(super) round: ListingRound,
}

/// A query for the status of one load balancer.
#[derive(Clone, Copy)]
pub(super) struct StatusQuery<'a> {
    pub(super) id: &'a str,
    /// Tag of the load balancer, or `None` if the cloud has no tags.
    pub(super) tag: Option<&'a str>,
    /// The listing must have begun after this one.
    pub(super) after: ListingRound,
    /// Maximum age of the listing.
    pub(super) max_age: Duration,
}

impl StatusPoller {
    /// Reads a load balancer, alone or in a listing of many. It counts as not found only if it was
    /// read alone.
    pub(super) async fn get_status(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        query: StatusQuery<'_>,
    ) -> Result<StatusResult, OpenStackError> {
        self.register(query.id, query.tag.unwrap_or_default());
        let mut listed = None;
        if self.should_list_together() {
            listed = self.find_in_listing(api, rounds, query).await?;
        }
        let status = match listed {
            Some(listed) if listed.load_balancer.is_some() => listed,
            // It was not listed, or the listing does not show it: deleted, or on another page.
            _ => StatusResult {
                load_balancer: api.load_balancer(query.id).await?,
                round: rounds.now(),
            },
        };
        let is_pending = status
            .load_balancer
            .as_ref()
            .is_some_and(|load_balancer| load_balancer.provisioning_status.is_pending());
        if !is_pending {
            self.state.lock().waiting.remove(query.id);
        }
        Ok(status)
    }

    /// Registers a load balancer as pending, so that the next listing contains it.
    pub(super) fn register(&self, id: &str, tag: &str) {
        let waiting = WaitingLoadBalancer { tag: tag.into(), queried_at: Instant::now() };
        self.state.lock().waiting.insert(id.into(), waiting);
    }

    /// Returns true if so many load balancers are pending that they are listed together.
    pub(super) fn should_list_together(&self) -> bool {
        let mut state = self.state.lock();
        state
            .waiting
            .retain(|_, waiting| waiting.queried_at.elapsed() < WAITING_TTL);
        state.waiting.len() > MAX_SINGLE_REQUESTS
    }

    /// Answers a query from the last listing, or from a new one if that is too old. Returns `None`
    /// if the load balancer has to be read alone.
    async fn find_in_listing(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        query: StatusQuery<'_>,
    ) -> Result<Option<StatusResult>, OpenStackError> {
        let arrived = rounds.now();
        if let Some(found) = self.find_in_last_listing(query, arrived) {
            return Ok(Some(found));
        }
        let _guard = api.op.wait_shared(self.request_lock.lock()).await;
        // Somebody else may have listed while this task waited.
        if let Some(found) = self.find_in_last_listing(query, arrived) {
            return Ok(Some(found));
        }
        match self.list_pending(api, rounds, query.tag.is_some()).await {
            Ok(true) => Ok(self.find_in_last_listing(query, arrived)),
            Ok(false) => Ok(None),
            Err(error) if error.rate_limit_delay().is_some() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "failed to list load balancers, reading them one by one");
                Ok(None)
            }
        }
    }

    /// Answers a query from the last listing, if that is recent enough or began after the query
    /// arrived.
    fn find_in_last_listing(
        &self,
        query: StatusQuery<'_>,
        arrived: ListingRound,
    ) -> Option<StatusResult> {
        let state = self.state.lock();
        let listing = state.last_listing.as_ref()?;
        let is_recent = listing.round > arrived || listing.started.elapsed() <= query.max_age;
        if listing.round <= query.after || !is_recent {
            return None;
        }
        Some(StatusResult {
            load_balancer: listing.rows.get(query.id).cloned(),
            round: listing.round,
        })
    }

    /// Lists all pending load balancers, unless reading them one by one takes fewer requests.
    /// Returns true if it listed them. `has_tags` is true if the cloud supports tags.
    async fn list_pending(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        has_tags: bool,
    ) -> Result<bool, OpenStackError> {
        let mut tag_queries: Vec<String> = Vec::new();
        let strategy = {
            let state = self.state.lock();
            if has_tags {
                let tags: Vec<&str> = state
                    .waiting
                    .values()
                    .map(|waiting| &*waiting.tag)
                    .collect();
                tag_queries = tags.chunks(MAX_TAGS).map(|chunk| chunk.join(",")).collect();
            }
            choose_strategy(state.waiting.len(), !tag_queries.is_empty(), state.fits_one_page)
        };
        let round = rounds.begin();
        let started = Instant::now();
        let rows = match strategy {
            StatusQueryStrategy::PerLoadBalancer => return Ok(false),
            StatusQueryStrategy::ByTags => {
                let mut rows = Vec::new();
                for tags in &tag_queries {
                    rows.extend(api.load_balancers(&[("tags-any", tags)]).await?);
                }
                rows
            }
            StatusQueryStrategy::ListAll => {
                let path = ["loadbalancers"];
                let project = api.client.session().project().await?;
                let mut query = vec![("limit", PAGE)];
                query.extend(project.as_deref().map(|id| ("project_id", id)));
                let request = Request::new(Call::LoadBalancerList, &path).query(&query);
                let (rows, next) = api.client.get_page(api.op, &request, None).await?;
                self.state.lock().fits_one_page = Some(next.is_none());
                // A load balancer that cannot be read is read alone, like one that is not listed.
                rows.rows
            }
        };
        let mut state = self.state.lock();
        let rows = rows
            .into_iter()
            .filter(|row: &LoadBalancer| state.waiting.contains_key(&*row.id))
            .map(|row| (row.id.as_str().into(), row))
            .collect();
        state.last_listing = Some(StatusListing { round, started, rows });
        Ok(true)
    }
}
