//! Interface to AWS: one small trait, plain values and typed errors.
//!
//! [`Transport`] sends one [`Call`]. The SDK implements it (in the folder `sdk`, the only place
//! that names the SDK), and so does the in-memory AWS of the tests. Whatever concerns every request
//! (rate limits, retries, metrics, injected faults) wraps it once. Callers use
//! [`Client`](crate::client::Client), which gives each request its own type of answer.

mod call;
pub mod ec2;
pub mod elb;
mod error;
mod id;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

pub(crate) use self::call::object_of;
pub use self::{
    call::{Action, Call, Reply, Request, RequestClass, Service},
    error::{AwsError, AwsErrorCause},
    id::{
        AllocationId, EniId, InstanceId, ListenerArn, LoadBalancerArn, RouteTableId,
        SecurityGroupId, SubnetId, TargetGroupArn, VpcId,
    },
};

/// Sends each request to AWS once, without retries.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends one request.
    ///
    /// The answer is of the request's kind: `Reply::X` for `Call::X`.
    ///
    /// # Errors
    /// AWS' error, or that there was no answer.
    async fn send(&self, call: Call) -> Result<Reply, AwsError>;
}

/// The instance metadata service (IMDS).
#[async_trait]
pub trait Metadata: Send + Sync + 'static {
    /// Returns the text at a path below `latest/meta-data/`, such as `instance-id`; `None` if the
    /// path does not exist.
    ///
    /// # Errors
    /// No answer within the timeout, as outside EC2.
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError>;
}

/// Connection to AWS.
#[derive(Clone)]
pub struct Connection {
    /// Sends requests.
    pub transport: Arc<dyn Transport>,
    /// The instance metadata service.
    pub metadata: Arc<dyn Metadata>,
    /// Region that the requests go to.
    pub region: Box<str>,
}

/// Tags of an object.
pub type Tags = BTreeMap<Box<str>, Box<str>>;

/// One page of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<T> {
    /// Items of the page.
    pub items: Vec<T>,
    /// Token of the next page; `None` on the last.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Creates the only page of an answer.
    pub fn only(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

/// Filter of an EC2 request: one of the values has to match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Name, such as `vpc-id` or `tag:Name`.
    pub name: Box<str>,
    /// Values, at most 200.
    pub values: Vec<Box<str>>,
}

impl Filter {
    /// Creates a filter.
    pub fn new<V: Into<Box<str>>>(
        name: impl Into<Box<str>>,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        Self {
            name: name.into(),
            values: values.into_iter().map(Into::into).collect(),
        }
    }
}
