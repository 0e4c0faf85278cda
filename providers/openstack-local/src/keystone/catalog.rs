//! Which services there are, and where.

use openstack_api::keystone::{CatalogEndpoint, CatalogService};

use super::Endpoint;
use crate::{
    server::{CatalogForm, Origin, Settings},
    state::State,
};

/// Makes the catalog for a client that reaches the cloud at `origin`.
pub(super) fn catalog(state: &State, origin: &Origin, settings: &Settings) -> Vec<CatalogService> {
    let services = state.keystone.services.iter();
    let services = services.filter(|service| service.enabled && !settings.without.contains(&service.kind));
    let mut catalog: Vec<CatalogService> = services
        .map(|service| {
            let endpoints = state.keystone.endpoints.iter().filter(|endpoint| endpoint.service_id == service.id);
            let endpoints = endpoints.map(|endpoint| CatalogEndpoint {
                id: endpoint.id.clone(),
                interface: endpoint.interface.clone(),
                region_id: Some(endpoint.region_id.clone()),
                region: Some(endpoint.region_id.clone()),
                url: url(endpoint, &service.kind, origin, settings.catalog),
            });
            CatalogService {
                id: service.id.clone(),
                kind: service.kind.clone(),
                name: Some(service.name.clone()),
                endpoints: endpoints.collect(),
            }
        })
        .collect();
    catalog.sort_by(|a, b| a.kind.cmp(&b.kind));
    catalog
}

/// Writes the address of an endpoint.
pub(super) fn url(endpoint: &Endpoint, kind: &str, origin: &Origin, form: CatalogForm) -> String {
    let version = match (form, kind) {
        (CatalogForm::Unversioned, _) => "",
        (_, "compute") => "/v2.1",
        (CatalogForm::Usual, _) => "",
        (CatalogForm::Versioned, "identity") => "/v3",
        (CatalogForm::Versioned, "key-manager") => "/v1",
        (CatalogForm::Versioned, _) => "/v2.0",
    };
    format!("{origin}{}{version}", endpoint.path)
}
