//! Sends requests: within budgets, with quick retries, counted, and changes only with the right to write.

mod classify;

use std::sync::Arc;

use ccm_core::provider::{CloudError, Mutation, Op, Reply};
use parking_lot::Mutex;

use crate::api::{Action, AwsError, Call, Class, Fault, Page, Request, Transport};

/// Longest walk through pages: 1,000 pages of 400 are more than any account holds, so that a server whose pages never end
/// (same token again) is an error and no loop.
const MOST_PAGES: usize = 1000;

/// The way to AWS. Cheap to clone; all clones share budgets and metrics.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
}

impl Client {
    /// Makes a client on a transport.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport }
    }

    /// Sends a request that changes nothing.
    ///
    /// # Errors
    /// AWS' answer, after quick retries where they help; [`Fault::Budget`] when our own budget is used up for longer than
    /// may be waited for.
    pub async fn read<R: Request>(&self, op: &Op, request: R) -> Result<R::Reply, AwsError> {
        debug_assert_eq!(R::ACTION.class(), Class::Read, "{:?}", R::ACTION);
        let sent = async { Ok(self.send(request).await) };
        op.run(sent).await.map_err(|error| AwsError { action: Some(R::ACTION), fault: Fault::Refused(error) })?
    }

    /// Reads every page of an answer.
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

    /// Sends a request that changes something, as one [`Op::mutate`]; `why` is what only the caller knows about the reason.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Fault::Refused`] without the right to write. A request without an answer is not
    /// repeated: the next reconcile sees what it did.
    pub async fn write<R: Request>(&self, op: &Op, request: R, why: &str) -> Result<R::Reply, AwsError> {
        debug_assert_eq!(R::ACTION.class(), Class::Write, "{:?}", R::ACTION);
        let call = request.clone().into_call();
        let mutation = Mutation::new(R::ACTION.operation(), crate::api::object_of(&call)).because(why);
        let failure: Mutex<Option<AwsError>> = Mutex::new(None);
        let sent = async {
            self.send(request).await.map(Reply::new).map_err(|error| {
                let cloud = CloudError::from(error.clone());
                *failure.lock() = Some(error);
                cloud
            })
        };
        let result = op.mutate(mutation, sent).await;
        let failure = failure.into_inner();
        result.map_err(|error| failure.unwrap_or(AwsError { action: Some(R::ACTION), fault: Fault::Refused(error) }))
    }

    async fn send<R: Request>(&self, request: R) -> Result<R::Reply, AwsError> {
        let call: Call = request.into_call();
        let action: Action = R::ACTION;
        let reply = self.transport.send(call).await?;
        R::from_reply(reply).ok_or_else(|| AwsError::unanswered(action, "the answer is of another request"))
    }
}
