//! Looks at balancers that are busy: one list for all of them when there are many, which answers everybody who comes soon
//! after.

use std::{collections::HashMap, time::Duration};

use openstack_api::octavia::LoadBalancer;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    api::Api,
    memory::{Round, Rounds},
    way::{FEW, MOST_TAGS, PAGE, Way, way},
};
use crate::client::{Call, OsError, Request};

/// How long a balancer counts as waited for after it was asked about: longer than any pause between two looks.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// Balancers that are waited for, and the last look at many of them.
#[derive(Debug, Default)]
pub(super) struct Polls {
    state: Mutex<State>,
    /// Held by whoever looks; the others wait for the answer.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<Box<str>, Waiting>,
    last: Option<Reading>,
    /// Whether all balancers of the project are on one page, as far as that is known.
    fits: Option<bool>,
}

/// A balancer that is waited for.
#[derive(Debug)]
struct Waiting {
    /// Tag that it has.
    tag: Box<str>,
    asked: Instant,
}

/// A look at many.
#[derive(Debug)]
struct Reading {
    round: Round,
    begun: Instant,
    rows: HashMap<Box<str>, LoadBalancer>,
}

/// A balancer, if it is there, and the place of the look among all.
type Answer = (Option<LoadBalancer>, Round);

/// What is asked.
#[derive(Clone, Copy)]
pub(super) struct Poll<'a> {
    pub(super) id: &'a str,
    /// Tag of the balancer; `None` where the cloud has none.
    pub(super) tag: Option<&'a str>,
    /// Only a look that began after this one tells anything.
    pub(super) after: Round,
    /// How old the look may be.
    pub(super) age: Duration,
}

impl Polls {
    /// Looks at a balancer; nothing if Octavia, asked for it alone, says that it is not there.
    pub(super) async fn look(&self, api: Api<'_>, rounds: &Rounds, poll: Poll<'_>) -> Result<Answer, OsError> {
        self.expect(poll.id, poll.tag.unwrap_or_default());
        let shared = if self.is_crowded() { self.shared(api, rounds, poll).await? } else { None };
        let (balancer, round) = match shared {
            Some(shown @ (Some(_), _)) => shown,
            // What a list does not show is asked for: it is gone, or was not among the listed.
            None | Some((None, _)) => (api.balancer(poll.id).await?, rounds.now()),
        };
        if !balancer.as_ref().is_some_and(|balancer| balancer.provisioning_status.is_pending()) {
            self.state.lock().waiting.remove(poll.id);
        }
        Ok((balancer, round))
    }

    /// Notes that a balancer will be asked about.
    pub(super) fn expect(&self, id: &str, tag: &str) {
        let waiting = Waiting { tag: tag.into(), asked: Instant::now() };
        self.state.lock().waiting.insert(id.into(), waiting);
    }

    /// Tells whether so many are waited for that they are looked at together.
    pub(super) fn is_crowded(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting.retain(|_, waiting| waiting.asked.elapsed() < FORGOTTEN);
        state.waiting.len() > FEW
    }

    async fn shared(&self, api: Api<'_>, rounds: &Rounds, poll: Poll<'_>) -> Result<Option<Answer>, OsError> {
        let came = rounds.now();
        if let Some(answer) = self.answer(poll, came) {
            return Ok(Some(answer));
        }
        let _turn = api.op.queue(self.turn.lock()).await;
        if let Some(answer) = self.answer(poll, came) {
            return Ok(Some(answer));
        }
        match self.read(api, rounds, poll.tag.is_some()).await {
            Ok(true) => Ok(self.answer(poll, came)),
            Ok(false) => Ok(None),
            Err(error) if error.turn_after().is_some() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "load balancers cannot be looked at together");
                Ok(None)
            }
        }
    }

    /// Answers by the last look, if that is new enough or began after the question came.
    fn answer(&self, poll: Poll<'_>, came: Round) -> Option<Answer> {
        let state = self.state.lock();
        let last = state.last.as_ref()?;
        let counts = last.round > poll.after && (last.round > came || last.begun.elapsed() <= poll.age);
        counts.then(|| (last.rows.get(poll.id).cloned(), last.round))
    }

    /// Looks at all that are waited for; tells whether it did.
    async fn read(&self, api: Api<'_>, rounds: &Rounds, tags: bool) -> Result<bool, OsError> {
        let (way, queries) = {
            let state = self.state.lock();
            let tags: Vec<&str> = state.waiting.values().map(|waiting| &*waiting.tag).filter(|_| tags).collect();
            let queries: Vec<String> = tags.chunks(MOST_TAGS).map(|chunk| chunk.join(",")).collect();
            (way(state.waiting.len(), !queries.is_empty(), state.fits), queries)
        };
        let (round, begun) = (rounds.begin(), Instant::now());
        let rows = match way {
            Way::Each => return Ok(false),
            Way::Tagged => {
                let mut rows = Vec::new();
                for tags in &queries {
                    rows.extend(api.balancers(&[("tags-any", tags)]).await?);
                }
                rows
            }
            Way::Page => {
                let path = ["loadbalancers"];
                let request = Request::new(Call::LoadBalancerList, &path).query(&[("limit", PAGE)]);
                let (rows, next) = api.client.get_page(api.op, &request, None).await?;
                self.state.lock().fits = Some(next.is_none());
                rows
            }
        };
        let mut state = self.state.lock();
        let rows = rows.into_iter().filter(|row: &LoadBalancer| state.waiting.contains_key(&*row.id));
        let rows = rows.map(|row| (row.id.as_str().into(), row)).collect();
        state.last = Some(Reading { round, begun, rows });
        Ok(true)
    }
}
