//! Sends requests: within budgets, with quick retries, counted, and changes only with the right to write.

mod answers;
mod budget;
mod classify;
mod metrics;
mod retry;

use std::sync::Arc;

use ccm_core::provider::{CloudError, Mutation, Op, Reply};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;

pub(crate) use self::answers::Answers;
pub use self::classify::reason;
pub(crate) use self::classify::{Meaning, in_line, rephrased, turn_after};
use self::{budget::Budgets, metrics::ApiMetrics};
use crate::{
    api::{self, AwsError, Class, Fault, Page, Request, Transport},
    config::Limits,
};

/// Longest walk through pages: 1,000 pages of 400 are more than any account holds, so that a server whose pages never end
/// (same token again) is an error and no loop.
const MOST_PAGES: usize = 1000;

/// The way to AWS. Cheap to clone; all clones share budgets and metrics.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    budgets: Option<Arc<Budgets>>,
    metrics: ApiMetrics,
    /// What was answered already to whoever asks.
    answers: Option<Answers>,
}

impl Client {
    /// Makes a client on a transport, without budgets.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        let metrics = ApiMetrics::new().expect("names and labels of the metrics are valid");
        Self { transport, budgets: None, metrics, answers: None }
    }

    /// Makes one that asks nothing again that has an answer here, and keeps there what it is told.
    pub(crate) fn recalling(&self, answers: &Answers) -> Self {
        Self { answers: Some(answers.clone()), ..self.clone() }
    }

    /// Sets the budgets.
    #[must_use]
    pub fn with_limits(mut self, limits: &Limits) -> Self {
        self.budgets = Some(Arc::new(Budgets::new(limits)));
        self
    }

    /// Offers the metrics of requests: upstream's names, plus one series per request.
    ///
    /// # Errors
    /// Metrics of these names are registered already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        self.metrics.register(registry)
    }

    /// Sends a request that changes nothing.
    ///
    /// # Errors
    /// AWS' answer, after quick retries where they help; [`Fault::Budget`] when our own budget is used up for longer than
    /// this call may still sleep.
    pub async fn read<R: Request>(&self, op: &Op, request: R) -> Result<R::Reply, AwsError> {
        debug_assert_eq!(R::ACTION.class(), Class::Read, "{:?}", R::ACTION);
        if let Some(answer) = self.answers.as_ref().and_then(|answers| answers.to(&request.clone().into_call())) {
            return answer.and_then(unwrapped::<R>);
        }
        let sent = async {
            if let Err(error) = self.turn::<R>(op).await {
                return Ok(Err(error));
            }
            let mut attempts = 0;
            Ok(loop {
                let started = Instant::now();
                match self.attempt(request.clone()).await {
                    Ok(reply) => break Ok(reply),
                    Err(error) => {
                        if let Err(error) = self.again::<R>(op, &mut attempts, started, error).await {
                            break Err(error);
                        }
                    }
                }
            })
        };
        op.run(sent).await.map_err(refused::<R>)?
    }

    /// Reads every page of an answer; `turn` puts the token of the next page into the request.
    ///
    /// # Errors
    /// As [`read`](Self::read); pages that never end are one as well.
    pub async fn read_all<R, T>(
        &self,
        op: &Op,
        mut request: R,
        mut turn: impl FnMut(&mut R, String),
    ) -> Result<Vec<T>, AwsError>
    where
        R: Request<Reply = Page<T>>,
    {
        let mut items = Vec::new();
        for _ in 0..MOST_PAGES {
            let page = self.read(op, request.clone()).await?;
            items.extend(page.items);
            match page.next {
                Some(token) => turn(&mut request, token),
                None => return Ok(items),
            }
        }
        Err(AwsError::unanswered(R::ACTION, format!("the answer has more than {MOST_PAGES} pages")))
    }

    /// Sends a request that changes something, each attempt as one [`Op::mutate`]; `why` is what only the caller knows about
    /// the reason.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Fault::Refused`] without the right to write. A request without an answer is not
    /// repeated: the next reconcile sees what it did.
    pub async fn write<R: Request>(&self, op: &Op, request: R, why: &str) -> Result<R::Reply, AwsError> {
        debug_assert_eq!(R::ACTION.class(), Class::Write, "{:?}", R::ACTION);
        let object = api::object_of(&request.clone().into_call());
        let mut attempts = 0;
        self.turn::<R>(op).await?;
        loop {
            let mutation = Mutation::new(R::ACTION.operation(), object.as_str()).because(why);
            let failure: Mutex<Option<AwsError>> = Mutex::new(None);
            let sent = async {
                self.attempt(request.clone()).await.map(Reply::new).map_err(|error| {
                    let cloud = CloudError::from(error.clone());
                    *failure.lock() = Some(error);
                    cloud
                })
            };
            let started = Instant::now();
            let result = op.mutate(mutation, sent).await;
            let failure = failure.into_inner();
            match result.map_err(|error| failure.unwrap_or_else(|| refused::<R>(error))) {
                Ok(reply) => return Ok(reply),
                Err(error) => self.again::<R>(op, &mut attempts, started, error).await?,
            }
        }
    }

    /// Waits for the request's turn.
    async fn turn<R: Request>(&self, op: &Op) -> Result<(), AwsError> {
        let Some(budgets) = &self.budgets else { return Ok(()) };
        let turn = budgets.turn(op, R::ACTION).await;
        turn.map_err(|wait| AwsError { action: Some(R::ACTION), fault: Fault::Budget(wait) })
    }

    /// Waits before a request whose attempt started then is sent again, and for its next turn; gives its error back where
    /// that does not help, or is not to be waited for by this call.
    ///
    /// A loop around this and not a function that takes an attempt: the compiler cannot prove that the future of an
    /// asynchronous closure can be sent to another thread.
    async fn again<R: Request>(
        &self,
        op: &Op,
        attempts: &mut u32,
        started: Instant,
        error: AwsError,
    ) -> Result<(), AwsError> {
        *attempts += 1;
        if let (Meaning::Throttled, Some(budgets)) = (Meaning::of(error.code()), &self.budgets) {
            budgets.throttled(R::ACTION);
        }
        if *attempts >= retry::ATTEMPTS || !retry::helps(R::ACTION.class(), started.elapsed(), &error) {
            return Err(error);
        }
        let wait = retry::wait(*attempts, rand::random());
        tracing::debug!(operation = R::ACTION.operation(), attempts, ?wait, %error, "request is sent again");
        if op.sleep(wait).await { self.turn::<R>(op).await.map_err(|_| error) } else { Err(error) }
    }

    async fn attempt<R: Request>(&self, request: R) -> Result<R::Reply, AwsError> {
        let started = Instant::now();
        let call = request.into_call();
        let asked = self.answers.as_ref().filter(|_| R::ACTION.class() == Class::Read).map(|all| (all, call.clone()));
        let reply = self.transport.send(call).await;
        if let Some((answers, call)) = asked {
            answers.keep(call, &reply);
        }
        let reply = reply.and_then(unwrapped::<R>);
        self.metrics.attempt(R::ACTION, started, reply.as_ref().err());
        reply
    }
}

fn unwrapped<R: Request>(reply: api::Reply) -> Result<R::Reply, AwsError> {
    R::from_reply(reply).ok_or_else(|| AwsError::unanswered(R::ACTION, "the answer is of another request"))
}

fn refused<R: Request>(error: CloudError) -> AwsError {
    AwsError { action: Some(R::ACTION), fault: Fault::Refused(error) }
}

#[cfg(test)]
mod tests;
