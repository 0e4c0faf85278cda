//! Metrics of authentication and authorization.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Registry, exponential_buckets};

use crate::telemetry::metrics::{counters, register};

/// The buckets of upstream's delegated requests
/// (`k8s.io/apiserver/pkg/authentication/authenticatorfactory` v0.37).
const REQUEST_SECONDS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

/// Code of a request without response, as upstream.
const NO_RESPONSE: &str = "<error>";

/// The metrics of authentication and authorization, with the names, labels and buckets of
/// `k8s.io/apiserver/pkg/endpoints/filters` v0.37.
///
/// Upstream's `authenticated_user_requests{username}` is left out: user names of an installation do
/// not belong in metrics, and upstream reports nearly all of them as `other`.
#[derive(Clone, Debug)]
pub(crate) struct AuthMetrics {
    authentication: ResultMetrics,
    authorization: ResultMetrics,
    /// TokenReviews.
    pub(super) token_reviews: ReviewMetrics,
    /// SubjectAccessReviews.
    pub(super) access_reviews: ReviewMetrics,
}

#[derive(Clone, Debug)]
struct ResultMetrics {
    count: IntCounterVec,
    seconds: HistogramVec,
}

/// The requests for reviews to the API server.
#[derive(Clone, Debug)]
pub(super) struct ReviewMetrics(ResultMetrics);

impl AuthMetrics {
    /// Registers `authentication_attempts{result}`, `authentication_duration_seconds{result}`,
    /// `authorization_attempts_total{result}`, `authorization_duration_seconds{result}` and, for
    /// `authn` and `authz`, `apiserver_delegated_…_request_total{code}` and
    /// `apiserver_delegated_…_request_duration_seconds{code}`.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        // Registers a counter and a histogram with the same label.
        let outcomes = |count: (&str, &str),
                        seconds: (&str, &str),
                        label: &str,
                        values: &[&str],
                        buckets: &[f64]| {
            let histogram = HistogramOpts::new(seconds.0, seconds.1).buckets(buckets.to_vec());
            let seconds = register(registry, HistogramVec::new(histogram, &[label])?)?;
            for value in values {
                seconds.with_label_values(&[*value]);
            }
            Ok::<_, prometheus::Error>(ResultMetrics {
                count: counters(registry, count.0, count.1, &[(label, values)])?,
                seconds,
            })
        };
        // Other codes appear when they first occur.
        let codes = ["201", NO_RESPONSE];
        let checks = exponential_buckets(0.001, 2.0, 15)?;
        let requests = "Number of HTTP requests partitioned by status code.";
        let latency = "Request latency in seconds. Broken down by status code.";
        // Help texts are upstream's.
        Ok(Self {
            authentication: outcomes(
                ("authentication_attempts", "Counter of authenticated attempts."),
                (
                    "authentication_duration_seconds",
                    "Authentication duration in seconds broken out by result.",
                ),
                "result",
                &["success", "error"],
                &checks,
            )?,
            authorization: outcomes(
                (
                    "authorization_attempts_total",
                    "Counter of authorization attempts broken down by result.",
                ),
                (
                    "authorization_duration_seconds",
                    "Authorization duration in seconds broken out by result.",
                ),
                "result",
                &["allowed", "denied", "no-opinion", "error"],
                &checks,
            )?,
            token_reviews: ReviewMetrics(outcomes(
                ("apiserver_delegated_authn_request_total", requests),
                ("apiserver_delegated_authn_request_duration_seconds", latency),
                "code",
                &codes,
                &REQUEST_SECONDS,
            )?),
            access_reviews: ReviewMetrics(outcomes(
                ("apiserver_delegated_authz_request_total", requests),
                ("apiserver_delegated_authz_request_duration_seconds", latency),
                "code",
                &codes,
                &REQUEST_SECONDS,
            )?),
        })
    }

    /// Counts an authentication: `success` (also for the anonymous user, as upstream) or `error`.
    pub(super) fn authenticated(&self, known: bool, time: Duration) {
        self.authentication
            .observe(if known { "success" } else { "error" }, time);
    }

    /// Counts a decision: `allowed`, `denied`, `no-opinion` or `error`.
    pub(super) fn authorized(&self, result: &'static str, time: Duration) {
        self.authorization.observe(result, time);
    }
}

impl ReviewMetrics {
    /// Counts a request. Without response its code is `<error>`, as upstream.
    pub(super) fn record_request(&self, code: Option<u16>, time: Duration) {
        self.0
            .observe(&code.map_or_else(|| NO_RESPONSE.to_owned(), |code| code.to_string()), time);
    }
}

impl ResultMetrics {
    fn observe(&self, label: &str, time: Duration) {
        self.count.with_label_values(&[label]).inc();
        self.seconds
            .with_label_values(&[label])
            .observe(time.as_secs_f64());
    }
}
