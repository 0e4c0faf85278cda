//! Classifies AWS errors and converts them to the framework's errors.

use std::time::Duration;

use ccm_core::provider::{CloudError, ErrorKind, Op};

use crate::api::{AwsError, AwsErrorCause};

/// Retry delay after an error that the user has to fix.
const USER_ERROR_RETRY_DELAY: Duration = Duration::from_secs(600);
/// Retry delay after an exceeded quota.
const QUOTA_RETRY_DELAY: Duration = Duration::from_secs(300);
/// Retry delay after a missing permission.
const PERMISSION_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Retry delay of a call that waited too long for a lock.
const LOCK_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Event reasons of this provider, in addition to the framework's.
pub mod reason {
    /// AWS denied the request because of credentials or a policy.
    pub const PERMISSION: &str = "AWSPermissionDenied";
    /// A quota of the account is exceeded.
    pub const QUOTA: &str = "AWSQuotaExceeded";
    /// AWS rejected the settings that the Service or Node requests.
    pub const REFUSED: &str = "AWSRequestRefused";
    /// Our own rate limit is exceeded.
    pub const BUDGET: &str = "AWSRequestBudget";
}

/// Class of an AWS error code. It does not depend on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// Too many requests.
    Throttled,
    /// The object does not exist.
    NotFound,
    /// AWS rejected the settings that the user requested.
    User,
    /// A quota is exceeded.
    Quota,
    /// The object is busy or in use.
    Conflict,
    /// The credentials are invalid, or the policy does not allow the request.
    Permission,
    /// Anything else.
    Other,
}

impl ErrorClass {
    /// Classifies an error code, spelled as on the wire.
    // length: one table
    pub(crate) fn from_code(code: &str) -> Self {
        match code {
            "RequestLimitExceeded"
            | "Throttling"
            | "ThrottlingException"
            | "ThrottledException"
            | "RequestThrottled"
            | "RequestThrottledException"
            | "TooManyRequestsException"
            | "SlowDown"
            | "BandwidthLimitExceeded"
            | "EC2ThrottledException" => Self::Throttled,
            // `PriorRequestNotComplete` means that one object is busy. It is unrelated to the
            // request rate.
            "ResourceInUse"
            | "DependencyViolation"
            | "PriorRequestNotComplete"
            | "DuplicateListener"
            | "OperationNotPermitted"
            | "IncorrectState"
            | "CapacityReservationPending"
            | "InvalidState" => Self::Conflict,
            "LoadBalancerNotFound"
            | "TargetGroupNotFound"
            | "ListenerNotFound"
            | "InvalidGroup.NotFound"
            | "InvalidInstanceID.NotFound"
            | "InvalidRoute.NotFound"
            | "InvalidRouteTableID.NotFound" => Self::NotFound,
            "CertificateNotFound"
            | "SSLPolicyNotFound"
            | "UnsupportedProtocol"
            | "IncompatibleProtocols"
            | "AllocationIdNotFound"
            | "InvalidAllocationID.NotFound"
            | "InvalidSubnet"
            | "SubnetNotFound"
            | "InvalidSubnetID.NotFound"
            | "AvailabilityZoneNotSupported"
            | "InvalidScheme"
            | "InvalidSecurityGroup"
            | "InvalidConfigurationRequest"
            | "ValidationError"
            | "DuplicateTagKeys"
            | "InvalidTarget"
            | "DuplicateLoadBalancerName"
            | "DuplicateTargetGroupName"
            | "InvalidLoadBalancerAction"
            | "InvalidParameterValue"
            | "InvalidParameterCombination"
            | "InvalidParameter"
            | "InvalidInstanceID.Malformed"
            | "InvalidInstanceID"
            | "InvalidPrefixListId.NotFound" => Self::User,
            "TooManyLoadBalancers"
            | "TooManyTargetGroups"
            | "TooManyListeners"
            | "TooManyPolicies"
            | "TooManyTargets"
            | "TooManyRegistrationsForTargetId"
            | "TooManyCertificates"
            | "TooManyTags"
            | "CapacityUnitsLimitExceeded"
            | "CapacityDecreaseRequestLimitExceeded"
            | "InsufficientCapacity"
            | "TooManyUniqueTargetGroupsPerLoadBalancer"
            | "TargetGroupAssociationLimit"
            | "RulesPerSecurityGroupLimitExceeded"
            | "SecurityGroupLimitExceeded"
            | "SecurityGroupsPerInterfaceLimitExceeded"
            | "RouteLimitExceeded"
            | "TagLimitExceeded" => Self::Quota,
            "AccessDenied"
            | "AccessDeniedException"
            | "UnauthorizedOperation"
            | "AuthFailure"
            | "OptInRequired"
            | "InvalidClientTokenId"
            | "UnrecognizedClientException"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "RequestExpired" => Self::Permission,
            _ => Self::Other,
        }
    }
}

/// Returns true if AWS did not find an object that a request names, such as a certificate. It may
/// be so new that AWS does not show it yet.
pub(crate) fn is_object_missing(code: &str) -> bool {
    matches!(
        code,
        "CertificateNotFound"
            | "AllocationIdNotFound"
            | "InvalidAllocationID.NotFound"
            | "SubnetNotFound"
            | "InvalidSubnetID.NotFound"
            | "InvalidSecurityGroup"
    )
}

impl From<AwsError> for CloudError {
    fn from(error: AwsError) -> Self {
        let (code, request_id) = match &error.cause {
            AwsErrorCause::Response { code, request_id, .. } => (code, request_id),
            AwsErrorCause::NotSent(error) => return error.clone(),
            AwsErrorCause::RateLimited(after) => {
                return Self::new(ErrorKind::Throttled, error.to_string())
                    .with_retry_after(*after)
                    .with_reason(reason::BUDGET);
            }
            AwsErrorCause::NoResponse(cause) => {
                return Self::transient(error.to_string()).with_source(cause.clone());
            }
        };
        let text = error.to_string();
        let cloud_error = match ErrorClass::from_code(code) {
            ErrorClass::Throttled => Self::new(ErrorKind::Throttled, text),
            ErrorClass::NotFound => Self::new(ErrorKind::NotFound, text),
            ErrorClass::Conflict => Self::new(ErrorKind::Conflict, text),
            ErrorClass::User => Self::new(ErrorKind::InvalidInput, text)
                .with_retry_after(USER_ERROR_RETRY_DELAY)
                .with_reason(reason::REFUSED),
            ErrorClass::Quota => Self::new(ErrorKind::QuotaExceeded, text)
                .with_retry_after(QUOTA_RETRY_DELAY)
                .with_reason(reason::QUOTA),
            ErrorClass::Permission => Self::new(ErrorKind::Denied, access_denied_message(&error))
                .with_retry_after(PERMISSION_RETRY_DELAY)
                .with_reason(reason::PERMISSION),
            ErrorClass::Other => Self::new(ErrorKind::Transient, text),
        };
        match request_id {
            Some(id) => cloud_error.with_request_id(&**id),
            None => cloud_error,
        }
    }
}

/// Returns the delay after which to retry a request that our own rate limiter did not admit. AWS
/// never received that request, so it had no effect. Returns `None` for every other error.
pub(crate) fn rate_limit_delay(error: &CloudError) -> Option<Duration> {
    if error.reason() == Some(reason::BUDGET) {
        error.retry_after()
    } else {
        None
    }
}

/// Waits for something that another call holds, such as a lock, for at most the time that this call
/// may still sleep.
///
/// # Errors
/// Returns an error if the wait is too long. It has a [`rate_limit_delay`], so that the call is
/// retried like one that our own rate limiter did not admit.
pub(crate) async fn wait_in_line<T>(
    op: &Op,
    wait: impl Future<Output = T>,
) -> Result<T, CloudError> {
    let waited = op
        .wait_shared(tokio::time::timeout(op.remaining_sleep(), wait))
        .await;
    match waited {
        Ok(output) => Ok(output),
        Err(_) => {
            let message = "another operation is changing the same object";
            Err(CloudError::new(ErrorKind::Throttled, message)
                .with_retry_after(LOCK_RETRY_DELAY)
                .with_reason(reason::BUDGET))
        }
    }
}

/// Returns the message of an access-denied error, which names the action that the policy has to
/// allow.
fn access_denied_message(error: &AwsError) -> String {
    match error.action {
        Some(action) => {
            format!(
                "{error} (the credentials need {}:{})",
                action.service().iam_prefix(),
                action.name()
            )
        }
        None => error.to_string(),
    }
}

/// Returns the same error with another message.
pub(crate) fn with_message(error: &CloudError, text: String) -> CloudError {
    let mut new = CloudError::new(error.kind(), text);
    if let Some(after) = error.retry_after() {
        new = new.with_retry_after(after);
    }
    if let Some(reason) = error.reason() {
        new = new.with_reason(reason);
    }
    match error.request_id() {
        Some(id) => new.with_request_id(id),
        None => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Action;

    fn cloud(code: &str) -> CloudError {
        AwsError::response(Action::CreateLoadBalancer, 400, code, "no").into()
    }

    #[test]
    fn each_class_of_codes_has_its_kind_and_its_wait() {
        let cases = [
            ("RequestLimitExceeded", ErrorKind::Throttled, None, None),
            ("ThrottlingException", ErrorKind::Throttled, None, None),
            ("LoadBalancerNotFound", ErrorKind::NotFound, None, None),
            ("CertificateNotFound", ErrorKind::InvalidInput, Some(600), Some(reason::REFUSED)),
            ("TooManyLoadBalancers", ErrorKind::QuotaExceeded, Some(300), Some(reason::QUOTA)),
            (
                "RulesPerSecurityGroupLimitExceeded",
                ErrorKind::QuotaExceeded,
                Some(300),
                Some(reason::QUOTA),
            ),
            ("DependencyViolation", ErrorKind::Conflict, None, None),
            ("PriorRequestNotComplete", ErrorKind::Conflict, None, None),
            ("UnauthorizedOperation", ErrorKind::Denied, Some(60), Some(reason::PERMISSION)),
            ("InternalError", ErrorKind::Transient, None, None),
            ("SomethingNew", ErrorKind::Transient, None, None),
        ];
        for (code, kind, wait, reason) in cases {
            let error = cloud(code);
            assert_eq!(error.kind(), kind, "{code}");
            assert_eq!(error.retry_after(), wait.map(Duration::from_secs), "{code}");
            assert_eq!(error.reason(), reason, "{code}");
        }
    }

    #[test]
    fn a_missing_permission_names_the_iam_action() {
        assert_eq!(
            cloud("AccessDenied").to_string(),
            "CreateLoadBalancer: AccessDenied: no (the credentials need elasticloadbalancing:CreateLoadBalancer)"
        );
    }

    #[test]
    fn a_missing_answer_keeps_its_cause_once() {
        let error = AwsError::no_response(Action::DescribeVpcs, "connection reset");
        assert_eq!(CloudError::from(error).chain(), "DescribeVpcs: no answer: connection reset");
    }

    #[test]
    fn an_exhausted_budget_says_when_to_come_back() {
        let fault = AwsErrorCause::RateLimited(Duration::from_secs(7));
        let error =
            CloudError::from(AwsError { action: Some(Action::RegisterTargets), cause: fault });
        assert_eq!(
            (error.kind(), error.retry_after()),
            (ErrorKind::Throttled, Some(Duration::from_secs(7)))
        );
        assert_eq!(rate_limit_delay(&error), Some(Duration::from_secs(7)));
        let throttled =
            AwsError::response(Action::RegisterTargets, 400, "ThrottlingException", "no");
        assert_eq!(
            rate_limit_delay(&CloudError::from(throttled).with_retry_after(Duration::from_secs(7))),
            None
        );
    }
}
