//! Looks at balancers that are busy: one list for all of them when there are many, which answers everybody who comes soon
//! after.

use std::{collections::HashMap, time::Duration};

use openstack_api::octavia::LoadBalancer;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    api::Api,
    sync_state::{ListingRound, ListingRounds},
    way::{MAX_SINGLE_REQUESTS, MAX_TAGS, PAGE, StatusQueryStrategy, choose_strategy},
};
use crate::client::{Call, OpenStackError, Request};

/// How long a balancer counts as waited for after it was asked about: longer than any pause between two looks.
const WAITING_TTL: Duration = Duration::from_secs(30);

/// Balancers that are waited for, and the last look at many of them.
#[derive(Debug, Default)]
pub(super) struct StatusPoller {
    state: Mutex<PollerState>,
    /// Held by whoever looks; the others wait for the answer.
    request_lock: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct PollerState {
    waiting: HashMap<Box<str>, WaitingLoadBalancer>,
    last: Option<StatusListing>,
    /// Whether all balancers of the project are on one page, as far as that is known.
    fits_one_page: Option<bool>,
}

/// A balancer that is waited for.
#[derive(Debug)]
struct WaitingLoadBalancer {
    /// Tag that it has.
    tag: Box<str>,
    asked_at: Instant,
}

/// A look at many.
#[derive(Debug)]
struct StatusListing {
    round: ListingRound,
    started: Instant,
    rows: HashMap<Box<str>, LoadBalancer>,
}

/// A balancer, if it is there, and the place of the look among all.
type StatusResult = (Option<LoadBalancer>, ListingRound);

/// What is asked.
#[derive(Clone, Copy)]
pub(super) struct StatusQuery<'a> {
    pub(super) id: &'a str,
    /// Tag of the balancer; `None` where the cloud has none.
    pub(super) tag: Option<&'a str>,
    /// Only a look that began after this one tells anything.
    pub(super) after: ListingRound,
    /// How old the look may be.
    pub(super) age: Duration,
}

impl StatusPoller {
    /// Looks at a balancer; nothing if Octavia, asked for it alone, says that it is not there.
    pub(super) async fn get_status(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        poll: StatusQuery<'_>,
    ) -> Result<StatusResult, OpenStackError> {
        self.register(poll.id, poll.tag.unwrap_or_default());
        let shared = if self.should_list_together() { self.shared(api, rounds, poll).await? } else { None };
        let (balancer, round) = match shared {
            Some(shown @ (Some(_), _)) => shown,
            // What a list does not show is asked for: it is gone, or was not among the listed.
            None | Some((None, _)) => (api.load_balancer(poll.id).await?, rounds.now()),
        };
        if !balancer.as_ref().is_some_and(|balancer| balancer.provisioning_status.is_pending()) {
            self.state.lock().waiting.remove(poll.id);
        }
        Ok((balancer, round))
    }

    /// Notes that a balancer will be asked about.
    pub(super) fn register(&self, id: &str, tag: &str) {
        let waiting = WaitingLoadBalancer { tag: tag.into(), asked_at: Instant::now() };
        self.state.lock().waiting.insert(id.into(), waiting);
    }

    /// Tells whether so many are waited for that they are looked at together.
    pub(super) fn should_list_together(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting.retain(|_, waiting| waiting.asked_at.elapsed() < WAITING_TTL);
        state.waiting.len() > MAX_SINGLE_REQUESTS
    }

    async fn shared(
        &self,
        api: Api<'_>,
        rounds: &ListingRounds,
        poll: StatusQuery<'_>,
    ) -> Result<Option<StatusResult>, OpenStackError> {
        let came = rounds.now();
        if let Some(answer) = self.answer_of_last_listing(poll, came) {
            return Ok(Some(answer));
        }
        let _turn = api.op.wait_shared(self.request_lock.lock()).await;
        if let Some(answer) = self.answer_of_last_listing(poll, came) {
            return Ok(Some(answer));
        }
        match self.read(api, rounds, poll.tag.is_some()).await {
            Ok(true) => Ok(self.answer_of_last_listing(poll, came)),
            Ok(false) => Ok(None),
            Err(error) if error.rate_limit_delay().is_some() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "load balancers cannot be looked at together");
                Ok(None)
            }
        }
    }

    /// Answers by the last look, if that is new enough or began after the question came.
    fn answer_of_last_listing(&self, poll: StatusQuery<'_>, came: ListingRound) -> Option<StatusResult> {
        let state = self.state.lock();
        let last = state.last.as_ref()?;
        let counts = last.round > poll.after && (last.round > came || last.started.elapsed() <= poll.age);
        counts.then(|| (last.rows.get(poll.id).cloned(), last.round))
    }

    /// Looks at all that are waited for; tells whether it did.
    async fn read(&self, api: Api<'_>, rounds: &ListingRounds, tags: bool) -> Result<bool, OpenStackError> {
        let (way, queries) = {
            let state = self.state.lock();
            let tags: Vec<&str> = state.waiting.values().map(|waiting| &*waiting.tag).filter(|_| tags).collect();
            let queries: Vec<String> = tags.chunks(MAX_TAGS).map(|chunk| chunk.join(",")).collect();
            (choose_strategy(state.waiting.len(), !queries.is_empty(), state.fits_one_page), queries)
        };
        let (round, begun) = (rounds.begin(), Instant::now());
        let rows = match way {
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
        let rows = rows.into_iter().filter(|row: &LoadBalancer| state.waiting.contains_key(&*row.id));
        let rows = rows.map(|row| (row.id.as_str().into(), row)).collect();
        state.last = Some(StatusListing { round, started: begun, rows });
        Ok(true)
    }
}
