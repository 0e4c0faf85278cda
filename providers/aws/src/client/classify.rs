//! What the framework does about each error of AWS.

use ccm_core::provider::{CloudError, ErrorKind};

use crate::api::{AwsError, Fault};

impl From<AwsError> for CloudError {
    fn from(error: AwsError) -> Self {
        match &error.fault {
            Fault::Refused(refused) => refused.clone(),
            Fault::Budget(after) => Self::new(ErrorKind::Throttled, error.to_string()).with_retry_after(*after),
            Fault::Answer { .. } | Fault::Unanswered(_) => Self::transient(error.to_string()).with_source(error),
        }
    }
}
