//! What the provider says to AWS and hears from it: one narrow trait, plain values, typed errors.
//!
//! [`Transport`] sends one [`Call`]. The SDK implements it (the folder `sdk`, the only place that names it), and so does
//! the in-memory AWS of the tests; whatever concerns every request (budgets, retries, metrics, faults in tests) wraps it
//! once. Callers use [`Client`](crate::client::Client), which gives each request its own type of answer.

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
        AllocationId, EniId, InstanceId, ListenerArn, LoadBalancerArn, RouteTableId, SecurityGroupId, SubnetId,
        TargetGroupArn, VpcId,
    },
};

/// Sends requests to AWS: each once, without retries.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends one request.
    ///
    /// The answer is of the request's own kind: `Reply::X` for `Call::X`.
    ///
    /// # Errors
    /// What AWS answered, or that it did not.
    async fn send(&self, call: Call) -> Result<Reply, AwsError>;
}

/// The instance metadata service (IMDS).
#[async_trait]
pub trait Metadata: Send + Sync + 'static {
    /// Returns the text at a path below `latest/meta-data/`, such as `instance-id`; `None` when there is nothing there.
    ///
    /// # Errors
    /// No answer within the time limit, as outside EC2.
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError>;
}

/// The way to AWS.
#[derive(Clone)]
pub struct Connection {
    /// Sends requests.
    pub transport: Arc<dyn Transport>,
    /// The instance metadata service.
    pub metadata: Arc<dyn Metadata>,
    /// Region that the requests go to.
    pub region: Box<str>,
}

/// Tags of an object, or to put on one.
pub type Tags = BTreeMap<Box<str>, Box<str>>;

/// One page of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Token of the next page; `None` on the last.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Makes the only page.
    pub fn only(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

/// A filter of an EC2 request: one of the values has to match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Name, such as `vpc-id` or `tag:Name`.
    pub name: Box<str>,
    /// Values, at most 200.
    pub values: Vec<Box<str>>,
}

impl Filter {
    /// Makes a filter.
    pub fn new<V: Into<Box<str>>>(name: impl Into<Box<str>>, values: impl IntoIterator<Item = V>) -> Self {
        Self { name: name.into(), values: values.into_iter().map(Into::into).collect() }
    }
}
