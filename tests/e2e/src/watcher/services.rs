use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ccm_core::k8s::well_known::FINALIZER_LOAD_BALANCER;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::ObjectState;
use super::follow::WatchChange;

/// Services by name.
pub type Services = BTreeMap<String, Arc<Service>>;

/// What was seen of Services.
#[derive(Default)]
pub(super) struct History {
    services: Services,
    pub(super) farewells: BTreeMap<String, usize>,
    pub(super) bereft: Vec<ObjectState>,
    pub(super) unheld: BTreeSet<String>,
}

impl History {
    pub(super) fn with_prefix(&self, prefix: &str) -> Services {
        let ours = self
            .services
            .iter()
            .filter(|(name, _)| name.starts_with(prefix));
        ours.map(|(name, service)| (name.clone(), service.clone()))
            .collect()
    }

    pub(super) fn hear(&mut self, news: WatchChange<Service>) {
        match news {
            WatchChange::Here(service) => self.see(service),
            WatchChange::Gone(service) => {
                if has_finalizer(&service) && service.metadata.deletion_timestamp.is_none() {
                    self.unheld.extend(service.uid());
                }
                self.forget(&service);
            }
            WatchChange::All(list) => {
                let uids: BTreeSet<_> = list.iter().filter_map(ResourceExt::uid).collect();
                let gone =
                    |service: &&Arc<Service>| service.uid().is_some_and(|uid| !uids.contains(&uid));
                for service in self
                    .services
                    .values()
                    .filter(gone)
                    .cloned()
                    .collect::<Vec<_>>()
                {
                    self.forget(&service);
                }
                for service in list {
                    self.see(service);
                }
            }
        }
    }

    fn see(&mut self, service: Service) {
        let name = service.name_any();
        let service = Arc::new(service);
        let Some(before) = self.services.insert(name, service.clone()) else {
            return;
        };
        if before.uid() != service.uid() {
            // Deleted and created again between two looks.
            self.part_from(&before);
            return;
        }
        if wants_balancer(&before) && !wants_balancer(&service) {
            self.part_from(&before);
        }
        // After a farewell the old balancer may still be on its way out when a new one is wanted.
        let constant = service
            .uid()
            .is_some_and(|uid| !self.farewells.contains_key(&uid));
        let lost_finalizer = has_finalizer(&before) && !has_finalizer(&service);
        let lost_address =
            !ingress_addresses(&before).is_empty() && ingress_addresses(&service).is_empty();
        if wants_balancer(&service) && constant && (lost_finalizer || lost_address) {
            self.bereft.push(ObjectState::of(&service.metadata));
        }
    }

    fn forget(&mut self, service: &Service) {
        let name = service.name_any();
        if let Some(before) = self
            .services
            .get(&name)
            .filter(|known| known.uid() == service.uid())
            .cloned()
        {
            self.services.remove(&name);
            self.part_from(&before);
        }
    }

    /// Counts a farewell of what wanted a balancer until now.
    fn part_from(&mut self, before: &Service) {
        if let Some(uid) = before.uid().filter(|_| wants_balancer(before)) {
            *self.farewells.entry(uid).or_default() += 1;
        }
    }
}

/// Whether the Service wants a load balancer of whoever serves those without a class.
pub fn wants_balancer(service: &Service) -> bool {
    let is_balancer = |spec: &k8s_openapi::api::core::v1::ServiceSpec| {
        spec.type_.as_deref() == Some("LoadBalancer")
    };
    let classless =
        |spec: &k8s_openapi::api::core::v1::ServiceSpec| spec.load_balancer_class.is_none();
    service.metadata.deletion_timestamp.is_none()
        && service
            .spec
            .as_ref()
            .is_some_and(|spec| is_balancer(spec) && classless(spec))
}

/// Whether the Service has the finalizer that keeps it until its balancer is gone.
pub fn has_finalizer(service: &Service) -> bool {
    service
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == FINALIZER_LOAD_BALANCER)
}

/// The addresses in the Service's status.
pub fn ingress_addresses(service: &Service) -> Vec<String> {
    let status = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let ingress = status
        .and_then(|balancer| balancer.ingress.as_ref())
        .into_iter()
        .flatten();
    ingress.filter_map(|ingress| ingress.ip.clone()).collect()
}
