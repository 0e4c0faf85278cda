//! Mistakes that the provider could have been written with, each with the rules that the kit says
//! are broken: most are made on the way between the provider and Meadow, one around the provider.

use std::sync::Arc;

use bytes::Bytes;
use ccm_core::provider::prelude::*;
use ccm_testkit::conformance::{
    TransportMutant, check_instances, check_load_balancers, check_routes, edit_json,
};
use http::{Request, Response, StatusCode, header, request::Parts};
use serde_json::{Value, json};

use crate::{FEW, MANY, adapter::MeadowAdapter, cloud::TOKEN};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// The first page of a listing counts as all of it.
    FirstPageOnly,
    /// What cannot be read because of a 5xx counts as absent.
    ErrorIsAbsence,
    /// How long to wait, which the cloud says when it throttles, is not read.
    ForgetsPause,
    /// Errors repeat the request with its token.
    TellsToken,
    /// What is made carries no cluster.
    ForgetsCluster,
    /// Whose a route is is not looked at.
    AllClusters,
    /// A balancer is ours if it has the name that ours would have.
    TakesByName,
    /// Clients are restricted by a change that never comes.
    AdmitsEverybody,
    /// New nodes bring the whole balancer in line, listeners too.
    UpdateTouchesListeners,
}

impl Mistake {
    /// Every mistake, the suite that meets it with things on a page, and the rules that are broken
    /// then.
    const ALL: [(Self, &str, usize, &[&str]); 10] = [
        // Whatever a listing of instances lacks is asked for singly.
        (Self::FirstPageOnly, "instances", MANY, &[]),
        (Self::FirstPageOnly, "routes", MANY, &["apply-resumable", "large-batch"]),
        (Self::ErrorIsAbsence, "instances", FEW, &["no-absence-on-error"]),
        (Self::ForgetsPause, "instances", FEW, &["retry-after"]),
        (Self::TellsToken, "instances", FEW, &["texts-presentable"]),
        (
            Self::ForgetsCluster,
            "routes",
            MANY,
            &["listed-as-made", "create-existing", "large-batch"],
        ),
        (Self::AllClusters, "routes", MANY, &["clusters-apart", "foreign-untouched"]),
        (Self::TakesByName, "load balancers", FEW, &["clusters-apart", "foreign-untouched"]),
        (Self::AdmitsEverybody, "load balancers", FEW, &["never-more-open"]),
        (
            Self::UpdateTouchesListeners,
            "load balancers",
            FEW,
            &["update-while-refused", "update-on-nothing"],
        ),
    ];

    /// Labels what is listed as the provider would.
    fn claim(self, request: &Sent, page: &mut Value) {
        let (cluster, uid) = (request.label("cluster"), request.label("uid"));
        for item in page["items"].as_array_mut().into_iter().flatten() {
            if self == Self::AllClusters {
                item["cluster"] = cluster.into();
            } else if item["name"] == format!("k8s-{uid}") {
                item["labels"] =
                    json!({"cluster": cluster, "namespace": "", "service": "", "uid": uid});
            }
        }
    }
}

impl TransportMutant for Mistake {
    fn edit_request(&self, request: Request<Bytes>) -> Request<Bytes> {
        let (mut head, body) = request.into_parts();
        let made = head.method == Method::POST;
        let body = match self {
            Self::ForgetsCluster if made => edit_json(&body, |new| new["cluster"] = Value::Null),
            Self::AdmitsEverybody if made => {
                edit_json(&body, |new| new["sources"] = json!(["0.0.0.0/0"]))
            }
            _ => body,
        };
        let sent = Sent::new(*self, &head);
        if sent.widened {
            head.uri = format!("{}?{}", sent.path, sent.page).parse().unwrap();
        }
        Request::from_parts(head, body)
    }

    fn edit_response(&self, sent: &Parts, response: Response<Bytes>) -> Response<Bytes> {
        let request = &Sent::new(*self, sent);
        let (mut head, body) = response.into_parts();
        let body = match self {
            Self::FirstPageOnly if request.reads => {
                edit_json(&body, |page| page["next"] = Value::Null)
            }
            Self::ErrorIsAbsence if request.reads && head.status.is_server_error() => {
                let (status, body) = if request.path.contains("/instances/") {
                    (StatusCode::NOT_FOUND, json!({"code": "not_found", "message": ""}))
                } else {
                    (StatusCode::OK, json!({"items": []}))
                };
                head.status = status;
                Bytes::from(body.to_string())
            }
            Self::ForgetsPause => {
                head.headers.remove(header::RETRY_AFTER);
                body
            }
            Self::TellsToken if !head.status.is_success() => edit_json(&body, |error| {
                error["message"] = format!("refused: {}, Bearer {TOKEN}", request.path).into();
            }),
            // As if the answer were not looked at.
            Self::ForgetsCluster if !request.reads => {
                edit_json(&body, |made| made["cluster"] = "conformance".into())
            }
            _ if request.widened => edit_json(&body, |page| {
                self.claim(request, page);
                if let Some(next) = page["next"].as_str() {
                    page["next"] = format!("{next}&{}", request.labels).into();
                }
            }),
            _ => body,
        };
        Response::from_parts(head, body)
    }
}

/// What was asked for.
struct Sent {
    reads: bool,
    path: String,
    /// `after=key`, or nothing for the first page.
    page: String,
    /// `key=value` for each label.
    labels: String,
    /// Whether it was asked for whatever the labels.
    widened: bool,
}

impl Sent {
    fn new(mistake: Mistake, request: &Parts) -> Self {
        let uri = request.uri.to_string();
        let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
        let (page, labels): (Vec<_>, Vec<_>) = query
            .split('&')
            .partition(|pair| pair.starts_with("after="));
        let reads = request.method == Method::GET;
        let widened = reads
            && match mistake {
                Mistake::AllClusters => true,
                Mistake::TakesByName => labels
                    .iter()
                    .any(|label| label.starts_with("uid=") && label.len() > 4),
                _ => false,
            };
        Self {
            reads,
            path: path.to_owned(),
            page: page.concat(),
            labels: labels.join("&"),
            widened,
        }
    }

    fn label(&self, key: &str) -> &str {
        let pairs = self
            .labels
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        pairs
            .into_iter()
            .find(|(name, _)| *name == key)
            .map_or("", |(_, value)| value)
    }
}

/// A provider that takes one call for another.
struct Hasty(Arc<dyn CloudProvider>);

impl Hasty {
    fn inner(&self) -> &dyn LoadBalancers {
        self.0.load_balancers().unwrap()
    }
}

impl CloudProvider for Hasty {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        self.0.mutation_operations()
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        self.0.inventory()
    }
}

#[async_trait]
impl LoadBalancers for Hasty {
    fn supports(&self) -> LbSupport {
        self.inner().supports()
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        self.inner().interpret(service)
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome {
        self.inner().ensure(op, want, depth).await
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        self.inner().ensure(op, want, ReadMode::Fresh).await
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        self.inner().delete(op, lb).await
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        self.inner().plan(op, want).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_kit_names_the_rule_that_each_mistake_breaks() {
    let mut wrong = Vec::new();
    for (mistake, suite, page, rules) in Mistake::ALL {
        let stage = MeadowAdapter::new(page).with_mutant(mistake);
        let made = stage.clone();
        let make = move || {
            let provider = made.provider().map(|provider| match mistake {
                Mistake::UpdateTouchesListeners => {
                    Arc::new(Hasty(provider)) as Arc<dyn CloudProvider>
                }
                _ => provider,
            });
            std::future::ready(provider)
        };
        let report = match suite {
            "instances" => check_instances(make, &stage).await,
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
