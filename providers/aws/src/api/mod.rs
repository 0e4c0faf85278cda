//! Interface to AWS, consisting of one small trait, plain values and typed errors.
//!
//! [`Transport`] sends one [`Call`]. It is implemented with the AWS SDK (in the module `sdk`, the
//! only one that uses the SDK), and by the in-memory AWS of the tests. Callers use
//! [`Client`](crate::client::Client), which adds rate limits, retries and metrics, and returns the
//! type of answer that belongs to the request.

mod call;
pub mod classic;
pub mod ec2;
pub mod elb;
mod error;
mod id;
pub mod sts;

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
    /// Sends one request. Returns `Reply::X` for `Call::X`.
    ///
    /// # Errors
    /// Returns AWS' error, or [`AwsErrorCause::NoResponse`].
    async fn send(&self, call: Call) -> Result<Reply, AwsError>;

    /// Asks EC2 with the parameter `DryRun` whether it would allow a request, which changes nothing
    /// unless the endpoint ignores the parameter. The default does not know.
    ///
    /// # Errors
    /// Returns any other error of AWS, or [`AwsErrorCause::NoResponse`].
    async fn would_allow(&self, call: Call) -> Result<DryRunAnswer, AwsError> {
        let _ = call;
        Ok(DryRunAnswer::Unknown)
    }
}

/// The answer to the question whether EC2 would allow a request.
#[derive(Clone, Debug)]
pub enum DryRunAnswer {
    /// It would.
    Allowed,
    /// It would not. The error names the action that is denied, which may be another one that the
    /// request needs, too.
    Denied(AwsError),
    /// AWS has no such question for this request.
    Unknown,
    /// The endpoint ignored the parameter, and carried the request out.
    CarriedOut,
}

impl DryRunAnswer {
    /// Reads the answer from the error with which EC2 answers each such request.
    ///
    /// # Errors
    /// Returns an error that says nothing about the permission.
    pub fn of_error(error: AwsError) -> Result<Self, AwsError> {
        match error.code() {
            "DryRunOperation" => Ok(Self::Allowed),
            "UnauthorizedOperation" => Ok(Self::Denied(error)),
            _ => Err(error),
        }
    }
}

/// The instance metadata service (IMDS).
#[async_trait]
pub trait Metadata: Send + Sync + 'static {
    /// Returns the text at a path below `latest/meta-data/`, such as `instance-id`. Returns `None`
    /// if the path does not exist.
    ///
    /// # Errors
    /// Returns an error if the service does not answer within the timeout, as is normal outside
    /// EC2.
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError>;
}

/// Connection to AWS.
#[derive(Clone)]
pub struct Connection {
    /// Transport for requests to AWS.
    pub transport: Arc<dyn Transport>,
    /// The instance metadata service.
    pub metadata: Arc<dyn Metadata>,
    /// Region to which requests are sent.
    pub region: Box<str>,
}

/// Tags of an object: values by key.
pub type Tags = BTreeMap<Box<str>, Box<str>>;

/// One page of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<T> {
    /// Items of the page.
    pub items: Vec<T>,
    /// Token of the next page; `None` on the last page.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Creates an answer that consists of one page.
    pub fn only(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

/// Filter of an EC2 request. An object matches if it has one of the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Name of the filter, such as `vpc-id` or `tag:Name`.
    pub name: Box<str>,
    /// Accepted values, at most 200.
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
