//! Mistakes that the provider could have been written with, made on the way between the provider and
//! Quarry, each with the rules that the kit says are broken.

use std::sync::Arc;

use bytes::Bytes;
use ccm_core::provider::prelude::*;
use ccm_testkit::conformance::{check_load_balancers, check_routes};
use http::{Request, Response};
use serde_json::{Value, json};

use crate::{PAGE, adapter::QuarryAdapter};

#[derive(Clone, Copy, Debug)]
enum Mistake {
    /// An accepted action counts as completed.
    NeverPolls,
    /// An action that has ended counts as a success.
    FailureIsSuccess,
    /// The first page of a listing counts as all of it.
    FirstPageOnly,
    /// A load balancer is changed and deleted although it is locked.
    IgnoresLock,
}

impl Mistake {
    /// Every mistake, the suite that meets it, and the rules that are broken then.
    const ALL: [(Self, &str, &[&str]); 7] = [
        (Self::NeverPolls, "routes", &["slow-change", "late-failure"]),
        (Self::NeverPolls, "load balancers", &["slow-change", "late-failure"]),
        (Self::FailureIsSuccess, "routes", &["late-failure"]),
        (Self::FailureIsSuccess, "load balancers", &["late-failure"]),
        (Self::FirstPageOnly, "routes", &["large-batch"]),
        (Self::FirstPageOnly, "load balancers", &["many-are-listed"]),
        // Quarry rejects such a request, and the framework repeats it later.
        (Self::IgnoresLock, "load balancers", &[]),
    ];

    /// Changes the answer to a request.
    fn edit(self, path: &str, answer: &mut Value) {
        let polled = path.starts_with("/v1/actions/");
        match self {
            Self::NeverPolls if !polled && answer["action"]["status"] == "running" => {
                answer["action"]["status"] = "success".into();
            }
            Self::FailureIsSuccess if answer["action"]["status"] == "error" => {
                answer["action"] = json!({"id": answer["action"]["id"], "status": "success"});
            }
            Self::FirstPageOnly if answer["meta"].is_object() => {
                answer["meta"]["pagination"]["next_page"] = Value::Null;
            }
            Self::IgnoresLock => {
                let listed = answer["load_balancers"].as_array_mut();
                for found in listed.into_iter().flatten() {
                    found["locked"] = false.into();
                }
            }
            _ => {}
        }
    }
}

/// The way to Quarry of a provider with a mistake in it.
struct FaultyTransport {
    inner: Arc<dyn Transport>,
    mistake: Mistake,
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        let path = request.uri().path().to_owned();
        let (head, body) = self.inner.send(request).await?.into_parts();
        let body = match serde_json::from_slice(&body) {
            Ok(mut answer) => {
                self.mistake.edit(&path, &mut answer);
                Bytes::from(answer.to_string())
            }
            // Some answers have no body, and a gateway's page is no JSON.
            Err(_) => body,
        };
        Ok(Response::from_parts(head, body))
    }
}

#[tokio::test(start_paused = true)]
async fn the_kit_names_the_rule_that_each_mistake_breaks() {
    let mut wrong = Vec::new();
    for (mistake, suite, rules) in Mistake::ALL {
        let stage = QuarryAdapter::new(PAGE)
            .by_way_of(|inner| Arc::new(FaultyTransport { inner, mistake }));
        let made = stage.clone();
        let make = move || std::future::ready(made.provider());
        let report = match suite {
            "routes" => check_routes(make, &stage).await,
            _ => check_load_balancers(make, &stage).await,
        };
        let broken: Vec<_> = report.failures().map(|case| case.rule).collect();
        if broken != rules {
            wrong.push(format!("{mistake:?}: expected {rules:?}\n{report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
