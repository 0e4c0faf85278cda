//! Polls load balancers that are busy. When there are many, one list serves all of them, and
//! everybody who asks soon after.

use std::{collections::HashMap, time::Duration};

use openstack_api::octavia::LoadBalancer;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    client::{Call, OpenStackError, Request},
    lb::{
        api::Api,
        query_strategy::{
            MAX_SINGLE_REQUESTS, MAX_TAGS, PAGE, StatusQueryStrategy, choose_strategy,
        },
        sync_state::{ListingRound, ListingRounds},
    },
};

/// How long a load balancer counts as pending after the last query for it; longer than any delay
/// between two polls.
const WAITING_TTL: Duration = Duration::from_secs(30);

/// Pending load balancers, and the last listing of many of them.
#[derive(Debug, Default)]
pub(super) struct StatusPoller {
    state: Mutex<PollerState>,
    /// Held during a listing; the others wait for its answer.
    request_lock: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct PollerState {
    waiting: HashMap<Box<str>, WaitingLoadBalancer>,
    last: Option<StatusListing>,
    /// Whether all load balancers of the project fit on one page; `None` while that is not known.
    fits_one_page: Option<bool>,
}

/// A pending load balancer.
#[derive(Debug)]
struct WaitingLoadBalancer {
    /// Its tag.
    tag: Box<str>,
    asked_at: Instant,
}

/// A listing of many load balancers.
#[derive(Debug)]
struct StatusListing {
    round: ListingRound,
    started: Instant,
    rows: HashMap<Box<str>, LoadBalancer>,
}

/// Answer to a query for one load balancer.
pub(super) struct StatusResult {
    /// `None` if it does not exist.
    pub(super) load_balancer: Option<LoadBalancer>,
    /// Position of the listing that showed it, or of the last one before it was queried alone.
    pub(super) round: ListingRound,
}

/// A query for the status of one load balancer.
#[derive(Clone, Copy)]
pub(super) struct StatusQuery<'a> {
    pub(super) id: &'a str,
    /// Tag of the load balancer; `None` where the cloud has no tags.
    pub(super) tag: Option<&'a str>,
    /// Only a listing that began after this one counts.
    pub(super) after: ListingRound,
    /// How old the listing may be.
    pub(super) age: Duration,
}

impl StatusPoller {
    /// Reads a load balancer, alone or in a listing; `None` if Octavia, queried for it alone, says
    /// that it does not exist.
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
            // What a listing does not show is queried alone: it was deleted, or was not among those
            // listed.
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

    /// Registers a load balancer as pending.
    pub(super) fn register(&self, id: &str, tag: &str) {
        let waiting = WaitingLoadBalancer { tag: tag.into(), asked_at: Instant::now() };
        self.state.lock().waiting.insert(id.into(), waiting);
    }

    /// Returns true if so many are pending that they are listed together.
    pub(super) fn should_list_together(&self) -> bool {
        let mut state = self.state.lock();
        state
            .waiting
            .retain(|_, waiting| waiting.asked_at.elapsed() < WAITING_TTL);
        state.waiting.len() > MAX_SINGLE_REQUESTS
    }

    /// Answers from a listing, which is read if there is none that is new enough. `None` when the
    /// load balancer has to be queried alone.
    async fn find_in_listing(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        query: StatusQuery<'_>,
    ) -> Result<Option<StatusResult>, OpenStackError> {
        let arrived = rounds.now();
        if let Some(answer) = self.answer_of_last_listing(query, arrived) {
            return Ok(Some(answer));
        }
        let _guard = api.op.wait_shared(self.request_lock.lock()).await;
        if let Some(answer) = self.answer_of_last_listing(query, arrived) {
            return Ok(Some(answer));
        }
        match self.read(api, rounds, query.tag.is_some()).await {
            Ok(true) => Ok(self.answer_of_last_listing(query, arrived)),
            Ok(false) => Ok(None),
            Err(error) if error.rate_limit_delay().is_some() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "load balancers cannot be listed together");
                Ok(None)
            }
        }
    }

    /// Answers from the last listing, if that is new enough or began after the query arrived.
    fn answer_of_last_listing(
        &self,
        query: StatusQuery<'_>,
        arrived: ListingRound,
    ) -> Option<StatusResult> {
        let state = self.state.lock();
        let last = state.last.as_ref()?;
        let is_recent = last.round > arrived || last.started.elapsed() <= query.age;
        if last.round <= query.after || !is_recent {
            return None;
        }
        Some(StatusResult {
            load_balancer: last.rows.get(query.id).cloned(),
            round: last.round,
        })
    }

    /// Lists all pending load balancers. Returns true if it did. `has_tags`: the cloud supports
    /// tags.
    async fn read(
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
                let request = Request::new(Call::LoadBalancerList, &path).query(&[("limit", PAGE)]);
                let (rows, next) = api.client.get_page(api.op, &request, None).await?;
                self.state.lock().fits_one_page = Some(next.is_none());
                rows
            }
        };
        let mut state = self.state.lock();
        let rows = rows
            .into_iter()
            .filter(|row: &LoadBalancer| state.waiting.contains_key(&*row.id))
            .map(|row| (row.id.as_str().into(), row))
            .collect();
        state.last = Some(StatusListing { round, started, rows });
        Ok(true)
    }
}
