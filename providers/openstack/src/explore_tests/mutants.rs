//! Bugs, to see that they are found: a way to the cloud that does to requests and answers what a
//! provider could do wrong.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use serde_json::{Value, json};

use super::cloud::CLUSTER;
use crate::client::{Transport, TransportError};

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// Load balancers are not looked for by name before they are made.
    NotLookedFor,
    /// A load balancer of another cluster is taken for the one of the Service, as all but the
    /// cluster's name is the same.
    OtherCluster,
    /// A load balancer that is being deleted counts as gone.
    NotAwaited,
    /// A load balancer that is being made or changed counts as ready.
    StatusIgnored,
    /// Tags of other Services on a shared load balancer are not written again.
    TagsOfOthers,
    /// Members are taken out before others are put in.
    MembersCleared,
    /// The limit of connections is not read, and always is to be written.
    NeverEqual,
    /// A floating IP is made first and given to its port then.
    FloatingIpLate,
    /// A page of a proxy says that something is gone.
    ProxyAsAbsent,
    /// A list that the cloud refuses counts as empty.
    RefusedAsEmpty,
    /// Of a list only the first page is read.
    FirstPage,
    /// A deletion without an answer counts as done.
    UnansweredAsDone,
    /// What was asked to be made and had no answer is made once more.
    BlindRetry,
    /// A port that could not be changed counts as changed.
    PortForgotten,
    /// A rule that could not be deleted is forgotten.
    RuleStays,
    /// Changes of others since something was read are not noticed.
    Unconditional,
    /// Routes of others are left out where all routes are written at once.
    RoutesOfOthers,
    /// Ports keep the networks that were routed to them.
    PairStays,
}

/// The way to the cloud with a bug.
pub(super) struct MutantTransport {
    bug: Bug,
    way: Arc<dyn Transport>,
}

type TransportResult = Result<Response<Bytes>, TransportError>;

impl MutantTransport {
    pub(super) fn new(bug: Bug, way: Arc<dyn Transport>) -> Self {
        Self { bug, way }
    }

    /// Asks for all load balancers, and takes for the one that is looked for what is called alike.
    async fn other_cluster(&self, mut request: Request<Bytes>) -> TransportResult {
        let own = format!("kube_service_{CLUSTER}_");
        let query = request.uri().query().unwrap_or_default();
        let Some(end) = query
            .split('&')
            .next()
            .and_then(|first| first.strip_prefix("name="))
            .and_then(|name| name.strip_prefix(&own))
            .map(|end| format!("_{end}"))
        else {
            return self.way.send(request).await;
        };
        let all: Uri = request
            .uri()
            .to_string()
            .split('?')
            .next()
            .unwrap_or_default()
            .parse()
            .expect("a part of a URI");
        *request.uri_mut() = all;
        let answer = self.way.send(request).await?;
        Ok(edited(answer, |body| {
            for row in rows(body, "loadbalancers") {
                if row["name"]
                    .as_str()
                    .is_some_and(|name| name.ends_with(&end))
                {
                    row["name"] = format!("{own}{}", &end[1..]).into();
                }
            }
        }))
    }

    async fn members_cleared(&self, request: Request<Bytes>) -> TransportResult {
        self.way
            .send(with_body(&request, &json!({"members": []})))
            .await?;
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let answer = self.way.send(request.clone()).await?;
            if answer.status() != StatusCode::CONFLICT {
                return Ok(answer);
            }
        }
        self.way.send(request).await
    }

    async fn floating_ip_late(&self, request: Request<Bytes>) -> TransportResult {
        let mut body = read(request.body());
        let port = body["floatingip"]["port_id"].take();
        let made = self.way.send(with_body(&request, &body)).await?;
        let id = read(made.body())["floatingip"]["id"]
            .as_str()
            .map(str::to_owned);
        let (Some(id), true) = (id, port.is_string()) else {
            return Ok(made);
        };
        let mut update = with_body(&request, &json!({"floatingip": {"port_id": port}}));
        *update.method_mut() = Method::PUT;
        *update.uri_mut() = format!("{}/{id}", request.uri())
            .parse()
            .expect("a URI and an ID");
        self.way.send(update).await
    }

    /// Answers what is there, where a port is to have fewer networks than it has.
    async fn pair_stays(&self, request: Request<Bytes>) -> TransportResult {
        const PAIRS: &str = "allowed_address_pairs";
        let wanted = read(request.body())["port"][PAIRS].as_array().map(Vec::len);
        let Some(wanted) = wanted else {
            return self.way.send(request).await;
        };
        let now = self.way.send(reading(request.clone())).await?;
        match read(now.body())["port"][PAIRS].as_array() {
            Some(pairs) if pairs.len() > wanted => Ok(now),
            _ => self.way.send(request).await,
        }
    }
}

#[async_trait]
impl Transport for MutantTransport {
    // length: one arm for each bug
    async fn send(&self, mut request: Request<Bytes>) -> TransportResult {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let (get, post, put) =
            (method == Method::GET, method == Method::POST, method == Method::PUT);
        let delete = method == Method::DELETE;
        let object: Vec<&str> = object(&path);
        match (self.bug, &object[..]) {
            (Bug::NotLookedFor, ["loadbalancers"]) if get => {
                Ok(answer(StatusCode::OK, &json!({"loadbalancers": []})))
            }
            (Bug::OtherCluster, ["loadbalancers"]) if get => self.other_cluster(request).await,
            (Bug::NotAwaited, ["loadbalancers", _]) if get => {
                let seen = self.way.send(request).await?;
                let leaves =
                    read(seen.body())["loadbalancer"]["provisioning_status"] == "PENDING_DELETE";
                Ok(if leaves { absent() } else { seen })
            }
            (Bug::StatusIgnored, ["loadbalancers", ..]) => {
                Ok(edited(self.way.send(request).await?, ready))
            }
            (Bug::TagsOfOthers, ["loadbalancers", _]) if put => {
                let mut body = read(request.body());
                if let Some(tags) = body["loadbalancer"]["tags"].as_array_mut() {
                    tags.retain(|tag| *tag == format!("kube_service_{CLUSTER}_ns_web"));
                }
                self.way.send(with_body(&request, &body)).await
            }
            (Bug::MembersCleared, ["pools", _, "members"]) if put => {
                self.members_cleared(request).await
            }
            (Bug::NeverEqual, ["listeners"]) if get => {
                Ok(edited(self.way.send(request).await?, |body| {
                    for row in rows(body, "listeners") {
                        row["connection_limit"] = (-1).into();
                    }
                }))
            }
            (Bug::FloatingIpLate, ["floatingips"]) if post => self.floating_ip_late(request).await,
            (Bug::ProxyAsAbsent, _) => {
                let seen = self.way.send(request).await?;
                Ok(if seen.status() == StatusCode::NOT_FOUND {
                    absent()
                } else {
                    seen
                })
            }
            (Bug::RefusedAsEmpty, [list]) if get => {
                let seen = self.way.send(request).await?;
                let refused = seen.status().is_client_error() || seen.status().is_server_error();
                Ok(if refused {
                    answer(StatusCode::OK, &json!({list.replace('-', "_"): []}))
                } else {
                    seen
                })
            }
            (Bug::FirstPage, [_, ..]) if get => Ok(edited(self.way.send(request).await?, |body| {
                if let Some(fields) = body.as_object_mut() {
                    fields.retain(|name, _| !name.ends_with("_links"));
                }
            })),
            (Bug::UnansweredAsDone, _) if delete => match self.way.send(request).await {
                Err(_) => Ok(answer(StatusCode::NO_CONTENT, &Value::Null)),
                seen => seen,
            },
            (Bug::BlindRetry, [_, ..]) if post => match self.way.send(request.clone()).await {
                Err(_) => self.way.send(request).await,
                seen => seen,
            },
            (Bug::PortForgotten, ["ports", _]) if put => {
                match self.way.send(request.clone()).await? {
                    seen if seen.status().is_success() => Ok(seen),
                    _ => self.way.send(reading(request)).await,
                }
            }
            (Bug::RuleStays, ["security-group-rules", _]) if delete => {
                match self.way.send(request).await? {
                    seen if seen.status().is_success() => Ok(seen),
                    _ => Ok(answer(StatusCode::NO_CONTENT, &Value::Null)),
                }
            }
            (Bug::Unconditional, _) => {
                request.headers_mut().remove(header::IF_MATCH);
                self.way.send(request).await
            }
            (Bug::RoutesOfOthers, ["routers", _]) if put => {
                let mut body = read(request.body());
                if let Some(routes) = body["router"]["routes"].as_array_mut() {
                    let own = |route: &Value| {
                        route["destination"]
                            .as_str()
                            .is_some_and(|to| to.contains("64"))
                    };
                    routes.retain(own);
                }
                self.way.send(with_body(&request, &body)).await
            }
            (Bug::PairStays, ["ports", _]) if put => self.pair_stays(request).await,
            _ => self.way.send(request).await,
        }
    }
}

/// Collections whose requests are changed.
const COLLECTIONS: [&str; 9] = [
    "floatingips",
    "listeners",
    "loadbalancers",
    "pools",
    "ports",
    "routers",
    "security-group-rules",
    "security-groups",
    "servers",
];

/// The parts of a path from the collection on; none where it is another one.
fn object(path: &str) -> Vec<&str> {
    path.split('/')
        .skip_while(|part| !COLLECTIONS.contains(part))
        .collect()
}

fn read(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap_or_default()
}

fn with_body(request: &Request<Bytes>, body: &Value) -> Request<Bytes> {
    request.clone().map(|_| body.to_string().into())
}

/// The request that reads what another one changes.
fn reading(mut request: Request<Bytes>) -> Request<Bytes> {
    *request.method_mut() = Method::GET;
    *request.body_mut() = Bytes::new();
    request.headers_mut().remove(header::IF_MATCH);
    request
}

fn answer(status: StatusCode, body: &Value) -> Response<Bytes> {
    let body = if body.is_null() {
        Bytes::new()
    } else {
        body.to_string().into()
    };
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}

/// That something is not there, as the services themselves say it.
fn absent() -> Response<Bytes> {
    let body =
        json!({"faultcode": "Client", "faultstring": "there is no such thing", "debuginfo": null});
    answer(StatusCode::NOT_FOUND, &body)
}

/// An answer, with a change of what was read where it is one that can be read.
fn edited(seen: Response<Bytes>, edit: impl FnOnce(&mut Value)) -> Response<Bytes> {
    let mut body = read(seen.body());
    if body.is_null() {
        return seen;
    }
    edit(&mut body);
    seen.map(|_| body.to_string().into())
}

fn rows<'a>(body: &'a mut Value, list: &str) -> &'a mut [Value] {
    body[list].as_array_mut().map_or(&mut [], Vec::as_mut_slice)
}

/// Shows everything as ready that is being made or changed.
fn ready(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some("PENDING_CREATE" | "PENDING_UPDATE") if name == "provisioning_status" => {
                        *value = "ACTIVE".into();
                    }
                    _ => ready(value),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(ready),
        _ => {}
    }
}
