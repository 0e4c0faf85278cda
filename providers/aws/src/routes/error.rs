//! Errors of listing and changing routes.

use ccm_core::provider::{CloudError, ErrorKind};
use ipnet::IpNet;

use crate::{
    api::{AwsError, RouteTableId},
    client::with_message,
};

/// Error of listing or changing routes. Where upstream has the same error, the message is
/// upstream's.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum RouteError {
    #[error("unable to find route table for AWS cluster: {cluster}")]
    NoTable { cluster: Box<str> },
    #[error("unable to find route tables for AWS cluster: {cluster}: {}", missing.join(", "))]
    MissingTables { cluster: Box<str>, missing: Vec<Box<str>> },
    #[error("found multiple matching AWS route tables for AWS cluster: {cluster}")]
    SeveralTables { cluster: Box<str> },
    #[error("error describing AWS route tables")]
    DescribeTables(#[source] AwsError),
    #[error("error describing instances that routes lead to")]
    DescribeInstances(#[source] AwsError),
    #[error("error configuring source-dest-check on {object}")]
    SourceDestCheck {
        object: Box<str>,
        #[source]
        source: AwsError,
    },
    #[error("error creating AWS route ({destination})")]
    Create {
        destination: IpNet,
        #[source]
        source: AwsError,
    },
    #[error("error replacing AWS route ({destination})")]
    Replace {
        destination: IpNet,
        #[source]
        source: AwsError,
    },
    #[error("error deleting AWS route ({destination})")]
    Delete {
        destination: IpNet,
        #[source]
        source: AwsError,
    },
    #[error(
        "error creating AWS route ({destination}): table {table} has a route to {target}, which is not in this cluster"
    )]
    DestinationInUse { destination: IpNet, table: RouteTableId, target: Box<str> },
    #[error(
        "error creating AWS route ({destination}): EC2 reports that it exists, but table {table} does not contain it yet"
    )]
    NotVisible { destination: IpNet, table: RouteTableId },
    #[error(
        "error deleting AWS route ({destination}): it was a black hole when it was listed, but now leads to {target}"
    )]
    RouteInUse { destination: IpNet, target: Box<str> },
    #[error("error deleting AWS route ({destination}): {name:?} is not a route of this provider")]
    UnknownRoute { destination: IpNet, name: Box<str> },
    #[error("node {node} has no provider ID yet")]
    NoProviderId { node: Box<str> },
    #[error("node {node} cannot be the target of routes: {reason}")]
    NoInstance { node: Box<str>, reason: Box<str> },
    #[error("instance {instance} of node {node} not found")]
    InstanceNotFound { node: Box<str>, instance: Box<str> },
}

impl RouteError {
    /// Returns true if EC2 requires an interface as the target because the instance has several.
    pub(super) fn requires_interface(&self) -> bool {
        match self {
            Self::SourceDestCheck { source, .. }
            | Self::Create { source, .. }
            | Self::Replace { source, .. } => source.has_code("InvalidInstanceID"),
            _ => false,
        }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoTable { .. }
            | Self::MissingTables { .. }
            | Self::SeveralTables { .. }
            | Self::DestinationInUse { .. }
            | Self::UnknownRoute { .. }
            | Self::NoInstance { .. } => ErrorKind::InvalidInput,
            Self::RouteInUse { .. } | Self::NotVisible { .. } => ErrorKind::Conflict,
            Self::InstanceNotFound { .. } => ErrorKind::NotFound,
            _ => ErrorKind::Transient,
        }
    }

    fn aws_error(&self) -> Option<&AwsError> {
        match self {
            Self::DescribeTables(source)
            | Self::DescribeInstances(source)
            | Self::SourceDestCheck { source, .. }
            | Self::Create { source, .. }
            | Self::Replace { source, .. }
            | Self::Delete { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<RouteError> for CloudError {
    fn from(error: RouteError) -> Self {
        let Some(aws_error) = error.aws_error() else {
            return Self::new(error.kind(), error.to_string());
        };
        // Keep kind, retry delay, reason and request ID of AWS' error. The message says what was
        // attempted.
        let cause = Self::from(aws_error.clone());
        with_message(&cause, error.to_string()).with_source(cause)
    }
}
