//! Mistakes that the provider could have been written with, made on the way between the provider and
//! Quarry, each with the rules that the kit says are broken.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use ccm_core::{provider::prelude::*, write_gate::WriteGate};
use ccm_testkit::conformance::{
    FaultyCloud, TransportMutant, check_load_balancers, check_routes, edit_json,
};
use http::{Response, request::Parts};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{FEW, MANY, adapter::QuarryAdapter};

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
    /// Every mistake, the suite that meets it, and the rules that are broken then, if actions take
    /// time only where a rule asks for it.
    const ALL: [(Self, &str, &[&str]); 6] = [
        (Self::NeverPolls, "routes", &["slow-change", "late-failure"]),
        (Self::NeverPolls, "load balancers", &["slow-change", "late-failure"]),
        (Self::FailureIsSuccess, "routes", &["late-failure"]),
        (Self::FailureIsSuccess, "load balancers", &["late-failure"]),
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

impl TransportMutant for Mistake {
    fn edit_response(&self, sent: &Parts, response: Response<Bytes>) -> Response<Bytes> {
        response.map(|body| edit_json(&body, |answer| self.edit(sent.uri.path(), answer)))
    }
}

#[tokio::test(start_paused = true)]
async fn the_kit_names_the_rule_that_each_mistake_breaks() {
    let mut wrong = Vec::new();
    for (mistake, suite, rules) in Mistake::ALL {
        let page = if suite == "routes" { MANY } else { FEW };
        let stage = QuarryAdapter::new(page)
            .completing_at_once()
            .with_mutant(mistake);
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

/// Loses the only server from every other listing, as if another server had been deleted between two
/// pages.
struct ShiftedPages {
    listings: AtomicUsize,
    /// One listing of so many is complete; 0 if none is.
    complete: usize,
}

impl TransportMutant for ShiftedPages {
    fn edit_response(&self, sent: &Parts, response: Response<Bytes>) -> Response<Bytes> {
        if sent.uri.path() != "/v1/servers" {
            return response;
        }
        let listing = self.listings.fetch_add(1, Ordering::Relaxed) + 1;
        if listing.is_multiple_of(self.complete) {
            return response;
        }
        response.map(|body| edit_json(&body, |answer| answer["servers"] = json!([])))
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_one_listing_lacks_keeps_its_route() {
    for (complete, broken) in [(2, false), (0, true)] {
        let stage = QuarryAdapter::new(MANY);
        let node = Arc::new(FaultyCloud::add_node(&stage, "a").await.unwrap());
        let op = Op::new("blue", CancellationToken::new(), WriteGate::always_open());
        let change = RouteChange::Create {
            node: node.clone(),
            destination: "10.0.1.0/24".parse().unwrap(),
        };
        let provider = stage.provider().unwrap();
        let created = provider.routes().unwrap().apply(&op, &[change]).await;
        assert!(matches!(created[..], [Ok(Progress::Done)]), "{created:?}");
        let shifted = stage.with_mutant(ShiftedPages { listings: AtomicUsize::new(0), complete });
        let provider = shifted.provider().unwrap();
        let routes = provider.routes().unwrap().list(&op, &[node]).await.unwrap();
        let listed: Vec<_> = routes.iter().map(|route| route.blackhole).collect();
        assert_eq!(listed, [broken]);
    }
}
