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

/// A load balancer, if it exists, and the position of the listing that showed it.
type StatusResult = (Option<LoadBalancer>, ListingRound);

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
        let shared = if self.should_list_together() {
            self.shared(api, rounds, query).await?
        } else {
            None
        };
        let (load_balancer, round) = match shared {
            Some(shown @ (Some(_), _)) => shown,
            // What a listing does not show is queried alone: it was deleted, or was not among those
            // listed.
            None | Some((None, _)) => (api.load_balancer(query.id).await?, rounds.now()),
        };
        if !load_balancer
            .as_ref()
            .is_some_and(|balancer| balancer.provisioning_status.is_pending())
        {
            self.state.lock().waiting.remove(query.id);
        }
        Ok((load_balancer, round))
    }

    /// Registers a load balancer as pending.
    pub(super) fn register(&self, id: &str, tag: &str) {
        let waiting = WaitingLoadBalancer { tag: tag.into(), asked_at: Instant::now() };
        self.state.lock().waiting.insert(id.into(), waiting);
    }

    /// Returns whether so many are pending that they are listed together.
    pub(super) fn should_list_together(&self) -> bool {
        let mut state = self.state.lock();
        state
            .waiting
            .retain(|_, waiting| waiting.asked_at.elapsed() < WAITING_TTL);
        state.waiting.len() > MAX_SINGLE_REQUESTS
    }

    async fn shared(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        query: StatusQuery<'_>,
    ) -> Result<Option<StatusResult>, OpenStackError> {
        let came = rounds.now();
        if let Some(answer) = self.answer_of_last_listing(query, came) {
            return Ok(Some(answer));
        }
        let _turn = api.op.wait_shared(self.request_lock.lock()).await;
        if let Some(answer) = self.answer_of_last_listing(query, came) {
            return Ok(Some(answer));
        }
        match self.read(api, rounds, query.tag.is_some()).await {
            Ok(true) => Ok(self.answer_of_last_listing(query, came)),
            Ok(false) => Ok(None),
            Err(error) if error.rate_limit_delay().is_some() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "load balancers cannot be looked at together");
                Ok(None)
            }
        }
    }

    /// Answers from the last listing, if that is new enough or began after the query arrived.
    fn answer_of_last_listing(
        &self,
        query: StatusQuery<'_>,
        came: ListingRound,
    ) -> Option<StatusResult> {
        let state = self.state.lock();
        let last = state.last.as_ref()?;
        let counts =
            last.round > query.after && (last.round > came || last.started.elapsed() <= query.age);
        counts.then(|| (last.rows.get(query.id).cloned(), last.round))
    }

    /// Lists all pending load balancers. Returns whether it did.
    async fn read(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        tags: bool,
    ) -> Result<bool, OpenStackError> {
        let (strategy, queries) = {
            let state = self.state.lock();
            let tags: Vec<&str> = state
                .waiting
                .values()
                .map(|waiting| &*waiting.tag)
                .filter(|_| tags)
                .collect();
            let queries: Vec<String> = tags.chunks(MAX_TAGS).map(|chunk| chunk.join(",")).collect();
            (
                choose_strategy(state.waiting.len(), !queries.is_empty(), state.fits_one_page),
                queries,
            )
        };
        let round = rounds.begin();
        let begun = Instant::now();
        let rows = match strategy {
            StatusQueryStrategy::PerLoadBalancer => return Ok(false),
            StatusQueryStrategy::ByTags => {
                let mut rows = Vec::new();
                for tags in &queries {
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
            .filter(|row: &LoadBalancer| state.waiting.contains_key(&*row.id));
        let rows = rows.map(|row| (row.id.as_str().into(), row)).collect();
        state.last = Some(StatusListing { round, started: begun, rows });
        Ok(true)
    }
}
