//! Finds the URLs of services in the catalog.

use std::{collections::BTreeSet, fmt::Write as _};

use url::Url;

use crate::{
    api::keystone::{CatalogEndpoint, CatalogService},
    client::{Service, SessionError},
    config::Interface,
};

fn region(endpoint: &CatalogEndpoint) -> &str {
    endpoint
        .region_id
        .as_deref()
        .or(endpoint.region.as_deref())
        .unwrap_or_default()
}

fn is_in(endpoint: &CatalogEndpoint, region: &str) -> bool {
    region.is_empty()
        || [&endpoint.region, &endpoint.region_id]
            .into_iter()
            .flatten()
            .any(|own| own == region)
}

/// Finds the URL of a service. Without a region, returns the first endpoint of the interface.
///
/// # Errors
/// Returns an error if there is no such endpoint. The message lists what the catalog has.
pub(super) fn find(
    catalog: &[CatalogService],
    service: Service,
    region_name: &str,
    interface: Interface,
) -> Result<Url, SessionError> {
    let own = catalog
        .iter()
        .filter(|entry| catalog_types(service).contains(&entry.kind.as_str()));
    let endpoints: Vec<&CatalogEndpoint> = own.flat_map(|entry| &entry.endpoints).collect();
    let found = endpoints
        .iter()
        .find(|e| e.interface == interface.as_str() && is_in(e, region_name));
    let Some(found) = found else {
        return Err(SessionError::NoEndpoint(
            describe_missing(catalog, &endpoints, service, region_name, interface).into(),
        ));
    };
    let url = Url::parse(&found.url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| {
        let message = format!(
            "the catalog's {} endpoint of {service} is no URL: {:?}",
            interface.as_str(),
            found.url
        );
        SessionError::NoEndpoint(message.into())
    })
}

/// Returns the types of a service in the catalog: the current one and older ones.
fn catalog_types(service: Service) -> &'static [&'static str] {
    match service {
        Service::Compute => &["compute"],
        Service::Network => &["network"],
        Service::LoadBalancer => &["load-balancer", "load_balancer"],
        Service::KeyManager => &["key-manager", "key_manager"],
        Service::Identity => &["identity"],
    }
}

fn describe_missing(
    catalog: &[CatalogService],
    endpoints: &[&CatalogEndpoint],
    service: Service,
    region_name: &str,
    interface: Interface,
) -> String {
    let mut message = format!("the catalog has no {} endpoint of {service}", interface.as_str());
    if !region_name.is_empty() {
        let _ = write!(message, " in region {region_name:?}");
    }
    let existing: BTreeSet<String> = endpoints
        .iter()
        .map(|endpoint| format!("{} in {:?}", endpoint.interface, region(endpoint)))
        .collect();
    let types: BTreeSet<&str> = catalog.iter().map(|entry| entry.kind.as_str()).collect();
    if !existing.is_empty() {
        let existing: Vec<String> = existing.into_iter().collect();
        let _ = write!(message, "; it has: {}", existing.join(", "));
    } else if types.is_empty() {
        message.push_str("; services in it: nothing");
    } else {
        let types: Vec<&str> = types.into_iter().collect();
        let _ = write!(message, "; services in it: {}", types.join(", "));
    }
    message
}

/// Adds a service's version to a URL that has none.
pub(super) fn with_version(service: Service, endpoint: &Url) -> Url {
    let (root, version) = split(endpoint);
    let tail: &[&str] = match service {
        Service::LoadBalancer => &["lbaas"],
        _ => &[],
    };
    let own = match service {
        Service::Compute => "v2.1",
        Service::Network | Service::LoadBalancer => "v2.0",
        Service::KeyManager => "v1",
        Service::Identity => "v3",
    };
    let mut url = root;
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty();
        match version {
            Some(rest) => segments.extend(&rest),
            None => segments.push(own),
        };
        if lacks_tail(endpoint, tail) {
            segments.extend(tail);
        }
    }
    url
}

/// Returns true if the last segment of the URL is not the last one of the tail.
fn lacks_tail(endpoint: &Url, tail: &[&str]) -> bool {
    let last = endpoint
        .path()
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    tail.last().is_some_and(|tail| *tail != last)
}

/// Splits a URL before its version. The second part is the version and the segments after it.
pub(super) fn split(endpoint: &Url) -> (Url, Option<Vec<String>>) {
    let segments: Vec<String> = endpoint
        .path()
        .split('/')
        .filter(|s| !s.is_empty())
        .map(str::to_owned)
        .collect();
    let at = segments.iter().position(|segment| is_version(segment));
    let mut root = endpoint.clone();
    root.set_query(None);
    root.set_fragment(None);
    let before = at.map_or(segments.as_slice(), |at| &segments[..at]);
    root.set_path(&format!("/{}", before.join("/")));
    (root, at.map(|at| segments[at..].to_vec()))
}

/// Returns true if a segment is a version, such as `v2` or `v2.1`.
fn is_version(segment: &str) -> bool {
    let Some(number) = segment.strip_prefix('v') else {
        return false;
    };
    !number.is_empty()
        && number
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}
