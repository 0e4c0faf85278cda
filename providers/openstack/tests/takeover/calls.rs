//! Requests that change something in the cloud, by the Service that they are for.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use openstack_local::state::CloudState;

use crate::recorder::Recorded;

/// How often each changing request was sent, by Service and kind. What is for no Service has an
/// empty name.
pub(crate) type Changes = BTreeMap<(String, String), usize>;

/// What belongs to which Service: IDs and names.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceIndex(BTreeMap<String, String>);

impl ServiceIndex {
    /// Reads it from the cloud.
    pub(crate) fn of(state: &CloudState, services: &BTreeSet<String>) -> Self {
        let mut whose = BTreeMap::new();
        let octavia = &state.octavia;
        let owner = |texts: &mut dyn Iterator<Item = &str>| {
            let mut texts = texts.map(str::to_owned);
            texts.find_map(|text| services.iter().find(|name| speaks_of(&text, name)).cloned())
        };
        for row in octavia.load_balancers.iter() {
            let body = &row.body;
            let texts = &mut std::iter::once(&*body.name).chain(body.tags.iter().map(|tag| &**tag));
            if let Some(name) = owner(texts) {
                whose.insert(body.vip_port_id.clone().unwrap_or_default(), name.clone());
                whose.insert(body.id.clone(), name);
            }
        }
        for row in octavia.listeners.iter() {
            let body = &row.body;
            let by_tag = owner(&mut body.tags.iter().map(|tag| &**tag).chain([&*body.name]));
            let name = by_tag.or_else(|| whose.get(row.load_balancer()).cloned());
            whose.extend(name.map(|name| (body.id.clone(), name)));
        }
        for row in octavia.pools.iter() {
            let by_listener = row
                .body
                .listeners
                .first()
                .and_then(|listener| whose.get(&listener.id));
            let name = by_listener
                .or_else(|| whose.get(row.load_balancer()))
                .cloned();
            whose.extend(name.map(|name| (row.body.id.clone(), name)));
        }
        for row in octavia.monitors.iter() {
            whose.extend(
                whose
                    .get(row.pool())
                    .cloned()
                    .map(|name| (row.body.id.clone(), name)),
            );
        }
        for floating in state.neutron.floating_ips.iter() {
            let name = floating
                .port_id
                .as_ref()
                .and_then(|port| whose.get(port))
                .cloned();
            whose.extend(name.map(|name| (floating.id.clone(), name)));
        }
        for group in state.neutron.security_groups.iter() {
            let name = services
                .iter()
                .find(|name| group.name.ends_with(&format!("-default-{name}")));
            whose.extend(name.map(|name| (group.id.clone(), name.clone())));
        }
        for rule in state.neutron.security_group_rules.iter() {
            whose.extend(
                whose
                    .get(&rule.security_group_id)
                    .cloned()
                    .map(|name| (rule.id.clone(), name)),
            );
        }
        whose.remove("");
        Self(whose)
    }

    /// The Service that a request is for.
    pub(crate) fn service(&self, request: &Recorded) -> String {
        let by_path = request
            .path
            .split('/')
            .rev()
            .find_map(|part| self.0.get(part));
        let by_query = || {
            request
                .query
                .split(['=', '&'])
                .find_map(|part| self.0.get(part))
        };
        let by_body = || {
            let text = request.body.to_string();
            self.0
                .iter()
                .find(|(id, _)| text.contains(&**id))
                .map(|(_, name)| name)
        };
        by_path
            .or_else(by_query)
            .or_else(by_body)
            .cloned()
            .unwrap_or_default()
    }

    /// The ID of the balancer of each Service.
    pub(crate) fn balancers(
        state: &CloudState,
        services: &BTreeSet<String>,
    ) -> BTreeMap<String, String> {
        let named = |name: &&String| {
            let tag = format!("kube_service_kubernetes_default_{name}");
            let mut rows = state.octavia.load_balancers.iter();
            rows.find(|row| row.body.name == tag || row.body.tags.contains(&tag))
                .map(|row| row.body.id.clone())
        };
        services
            .iter()
            .filter_map(|name| Some((name.clone(), named(&name)?)))
            .collect()
    }
}

fn speaks_of(text: &str, service: &str) -> bool {
    text.ends_with(&format!("kube_service_kubernetes_default_{service}"))
}

/// Whether a request changes something.
pub(crate) fn changes(request: &Recorded) -> bool {
    request.method != "GET" && !request.is_opening()
}

/// Kind of a request: method, and path without IDs.
pub(crate) fn kind(request: &Recorded) -> String {
    let is_id = |part: &str| {
        part.len() == 36
            && part
                .bytes()
                .all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    };
    let is_version = |part: &str| {
        matches!(part, "v2.0" | "v2.1" | "v2" | "lbaas" | "compute" | "network" | "load-balancer")
    };
    let parts: Vec<_> = request
        .path
        .split('/')
        .filter(|part| !part.is_empty() && !is_version(part))
        .collect();
    let parts: Vec<_> = parts
        .into_iter()
        .map(|part| if is_id(part) { "{id}" } else { part })
        .collect();
    format!("{} {}", request.method, parts.join("/"))
}

/// Counts the requests that change something.
pub(crate) fn count(requests: &[Recorded], whose: &ServiceIndex) -> Changes {
    let mut counts = Changes::new();
    for request in requests.iter().filter(|request| changes(request)) {
        *counts
            .entry((whose.service(request), kind(request)))
            .or_default() += 1;
    }
    counts
}

/// One line for each request that changes something.
pub(crate) fn lines(requests: &[Recorded], whose: &ServiceIndex) -> String {
    let mut lines = String::new();
    for request in requests.iter().filter(|request| changes(request)) {
        let (service, kind) = (whose.service(request), kind(request));
        // Writing into a text does not fail.
        let _ = writeln!(
            lines,
            "  {service:9} {kind} {} {} {}",
            request.status, request.body, request.refusal
        );
    }
    lines
}

/// Requests that were refused in a way that no client should provoke.
pub(crate) fn refused(requests: &[Recorded]) -> Vec<String> {
    let wrong = |request: &&Recorded| request.status >= 400 && !matches!(request.status, 404 | 409);
    let line = |request: &Recorded| {
        let Recorded { method, path, query, status, refusal, body } = request;
        format!("{method} {path}?{query} {body}: {status} {refusal}")
    };
    requests.iter().filter(wrong).map(line).collect()
}
