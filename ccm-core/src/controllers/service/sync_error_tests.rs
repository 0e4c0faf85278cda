use super::*;
use crate::runtime::api::RequestInfo;

fn cloud(kind: ErrorKind) -> ServiceSyncError {
    ServiceSyncError::cloud(ServiceOperation::Ensure, CloudError::new(kind, "it says no"))
}

fn target() -> RequestInfo {
    RequestInfo {
        verb: "patch",
        group: "".into(),
        resource: "services/status".into(),
        namespace: None,
        name: None,
    }
}

fn seconds(trouble: &ServiceSyncError, failures: u32) -> f64 {
    trouble.delay(failures).as_secs_f64()
}

#[test]
fn each_kind_of_error_has_its_delay() {
    for kind in ErrorKind::ALL {
        let (first, later) = match kind {
            ErrorKind::InvalidInput | ErrorKind::QuotaExceeded => (300.0, 300.0),
            ErrorKind::Canceled | ErrorKind::NotLeader => (5.0, 5.0),
            _ => (5.0, 40.0),
        };
        let trouble = cloud(kind);
        for (failures, base) in [(1, first), (4, later)] {
            let delay = seconds(&trouble, failures);
            assert!((base..=base * 1.1).contains(&delay), "{kind} {failures}: {delay}");
        }
        assert!(seconds(&trouble, 1000) <= 330.0, "{kind}");
    }
}

#[test]
fn the_cloud_says_itself_when_to_come_again() {
    for kind in [ErrorKind::Transient, ErrorKind::Throttled, ErrorKind::QuotaExceeded] {
        let error = CloudError::new(kind, "later").with_retry_after(Duration::from_secs(42));
        for operation in [
            ServiceOperation::Ensure,
            ServiceOperation::Update { hosts: vec![] },
            ServiceOperation::Delete { service_deleted: true },
            ServiceOperation::Compare,
        ] {
            assert_eq!(
                ServiceSyncError::cloud(operation, error.clone()).delay(9),
                Duration::from_secs(42),
                "{kind}"
            );
        }
    }
    assert_eq!(
        ServiceSyncError::Throttled(Duration::from_secs(7)).delay(3),
        Duration::from_secs(7)
    );
}

#[test]
fn a_failure_names_what_was_attempted_in_upstreams_words() {
    let error = || CloudError::transient("no answer").with_source(std::io::Error::other("reset"));
    let said = |operation| ServiceSyncError::cloud(operation, error()).event().unwrap();
    let sync = "Error syncing load balancer: ";
    for (operation, reason, note) in [
        (
            ServiceOperation::Ensure,
            "SyncLoadBalancerFailed",
            format!("{sync}failed to ensure load balancer: no answer: reset"),
        ),
        (
            ServiceOperation::Delete { service_deleted: false },
            "SyncLoadBalancerFailed",
            format!("{sync}failed to delete load balancer: no answer: reset"),
        ),
        (
            ServiceOperation::Delete { service_deleted: true },
            "DeleteLoadBalancerFailed",
            "Error deleting load balancer: no answer: reset".to_owned(),
        ),
        (
            ServiceOperation::Update { hosts: vec!["b".into(), "a".into()] },
            "UpdateLoadBalancerFailed",
            "Error updating load balancer with new hosts [a b] [node names limited, total number of nodes: 2], \
             error: no answer: reset"
                .to_owned(),
        ),
        (
            ServiceOperation::AddFinalizer,
            "SyncLoadBalancerFailed",
            format!("{sync}failed to add load balancer cleanup finalizer: no answer: reset"),
        ),
        (
            ServiceOperation::RemoveFinalizer,
            "SyncLoadBalancerFailed",
            format!("{sync}failed to remove load balancer cleanup finalizer: no answer: reset"),
        ),
        (
            ServiceOperation::Publish,
            "SyncLoadBalancerFailed",
            format!("{sync}failed to update load balancer status: no answer: reset"),
        ),
    ] {
        let event = said(operation);
        assert_eq!((event.reason, event.error_kind, event.note), (reason, "transient", note));
    }
}

#[test]
fn twenty_hosts_are_named_and_the_rest_is_counted() {
    let hosts = |count: usize| {
        (0..count)
            .map(|i| Arc::from(format!("n{i:02}")))
            .rev()
            .collect::<Vec<_>>()
    };
    assert_eq!(format_host_names(&hosts(0)), "[]");
    assert_eq!(format_host_names(&hosts(2)), "[n00 n01]");
    assert!(format_host_names(&hosts(20)).ends_with(" n19]"));
    assert!(format_host_names(&hosts(23)).ends_with(" n19 <3 more>]"));
}

#[test]
fn a_race_and_the_end_of_the_process_are_nobodys_failure() {
    let api = |kind| {
        ServiceSyncError::api(ServiceOperation::Publish, ApiError::local(kind, target(), "x"))
    };
    for (trouble, told, failure) in [
        (cloud(ErrorKind::Canceled), false, false),
        (cloud(ErrorKind::NotLeader), false, false),
        (ServiceSyncError::Throttled(Duration::ZERO), false, false),
        (api(ApiErrorKind::Conflict), false, false),
        (api(ApiErrorKind::TestFailed), false, false),
        (api(ApiErrorKind::NotLeader), false, false),
        (api(ApiErrorKind::Unavailable), true, true),
        (api(ApiErrorKind::Forbidden), true, true),
        (ServiceSyncError::StaleCache(StaleCacheError::BackendsDiffer), false, true),
        (cloud(ErrorKind::Transient), true, true),
    ] {
        assert_eq!(
            (trouble.event().is_some(), trouble.is_failure()),
            (told, failure),
            "{trouble:?}"
        );
    }
    assert!(
        ServiceSyncError::StaleCache(StaleCacheError::BackendsDiffer)
            .log_message()
            .is_some(),
        "told the operator all the same"
    );
    assert_eq!(api(ApiErrorKind::Conflict).delay(9), CONFLICT_DELAY);
}

#[test]
fn a_provider_may_choose_the_reason() {
    let error = CloudError::invalid_input("bad size").with_reason("BadSize");
    assert_eq!(
        ServiceSyncError::cloud(ServiceOperation::Ensure, error)
            .event()
            .map(|event| event.reason),
        Some("BadSize")
    );
}
