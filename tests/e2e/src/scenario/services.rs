use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ccm_core::k8s::well_known::COMPONENT_SERVICE;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{POLL, Scenario};
use crate::load_balancer_checks::differences;
use crate::server::Write;
use crate::watcher::{NAMESPACE, Services, wants_balancer};

/// Requests of a scenario at a time.
const AT_ONCE: usize = 16;

impl Scenario {
    /// The Services of all scenarios, with all rights.
    pub fn services_api(&self) -> Api<Service> {
        Api::namespaced(self.server.client(), NAMESPACE)
    }

    /// This scenario's Services as last seen.
    pub fn services(&self) -> Services {
        self.server.observer.services(&self.prefix())
    }

    /// A Service as last seen.
    pub fn service(&self, name: &str) -> Result<Arc<Service>, String> {
        self.services()
            .get(name)
            .cloned()
            .ok_or_else(|| format!("no service {name}"))
    }

    /// A Service of type LoadBalancer with port 80, as its user writes it.
    pub fn manifest(name: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "type": "LoadBalancer",
                "selector": {"app": name},
                "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
            },
        })
    }

    /// Creates a Service.
    pub async fn create(&self, manifest: &Value) -> anyhow::Result<Service> {
        let service = serde_json::from_value(manifest.clone())?;
        Ok(self
            .services_api()
            .create(&PostParams::default(), &service)
            .await?)
    }

    /// Creates Services as [`manifest`](Self::manifest) has them.
    pub async fn create_all(&self, names: &[String]) -> anyhow::Result<()> {
        let creations =
            futures::stream::iter(names).map(async |name| self.create(&Self::manifest(name)).await);
        creations
            .buffer_unordered(AT_ONCE)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Changes a Service by merge patch.
    pub async fn change(&self, name: &str, patch: Value) -> kube::Result<Service> {
        self.services_api()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
    }

    /// Begins to delete a Service.
    pub async fn delete_service(&self, name: &str) -> anyhow::Result<()> {
        self.services_api()
            .delete(name, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Deletes a Service whose finalizers somebody takes off, so that nothing holds it.
    pub async fn delete_by_force(&self, name: &str) -> anyhow::Result<()> {
        self.may_be_bereft(name);
        let api = self.services_api();
        // Already marked as deleted, nobody adds a finalizer again. It goes with the last one.
        api.delete(name, &DeleteParams::default()).await?;
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        match api.patch(name, &PatchParams::default(), &free).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            freed => Ok(freed.map(drop)?),
        }
    }

    /// This Service may be seen to lose finalizer and address; any other's loss is a failure.
    pub fn may_be_bereft(&self, name: &str) {
        self.bereft.lock().insert(name.to_owned());
    }

    /// Says what differs between the cloud and what the Services ask for.
    pub fn in_line(&self) -> Result<(), String> {
        differences(&self.services(), &self.nodes(), &self.cloud.load_balancers())
    }

    /// The same, whatever the cloud holds for Services that the API server let go although they had
    /// the finalizer.
    pub fn in_line_where_held(&self) -> Result<(), String> {
        let mut balancers = self.cloud.load_balancers();
        let unheld = self.server.observer.unheld();
        balancers.retain(|balancer| !unheld.contains(&balancer.uid));
        differences(&self.services(), &self.nodes(), &balancers)
    }

    /// Waits until the cloud holds exactly what the Services ask for, these and no others.
    pub async fn served(&self, names: &[String], limit: Duration) -> anyhow::Result<()> {
        self.becomes("served", limit, || {
            let services = self.services();
            let served = services
                .iter()
                .filter(|(_, service)| wants_balancer(service))
                .map(|(name, _)| name);
            match served.eq(names) {
                true => self.in_line(),
                false => {
                    Err(format!("{} services are there instead of {}", services.len(), names.len()))
                }
            }
        })
        .await
    }

    /// Waits until the observer has seen a Service as the server answered it, or later.
    pub async fn caught_up(&self, answered: &Service) -> anyhow::Result<()> {
        let version = |service: &Service| {
            service
                .resource_version()
                .and_then(|v| v.parse::<u64>().ok())
        };
        let name = answered.name_any();
        self.becomes("the change is seen", super::SOON, || {
            match version(&*self.service(&name)?) >= version(answered) {
                true => Ok(()),
                false => Err("an older state".to_owned()),
            }
        })
        .await
    }

    /// Waits until there is no such Service any more.
    pub async fn vanished(&self, name: &str) -> anyhow::Result<()> {
        self.becomes("gone", super::SOON, || match self.service(name) {
            Ok(service) => {
                Err(format!("{name} is there, with finalizers {:?}", service.finalizers()))
            }
            Err(_) => Ok(()),
        })
        .await
    }

    /// Writes of a process to Services with names of this scenario.
    pub async fn service_writes(&self, process: &str) -> anyhow::Result<Vec<Write>> {
        let mut writes = self.server.writes(&self.user(process)).await?;
        writes.retain(|write| {
            write.resource.starts_with("services") && write.name.starts_with(&self.prefix())
        });
        Ok(writes)
    }

    /// Events of service controllers about Services of this scenario, the newest of each kind.
    /// Others tell of them too: the API server of a cluster IP, if its repair comes upon a Service
    /// that is just being created.
    pub async fn service_events(&self) -> anyhow::Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.server.client(), NAMESPACE);
        let mut list = events
            .list(&ListParams::default().fields("involvedObject.kind=Service"))
            .await?
            .items;
        let is_ours = |event: &Event| {
            let source = event
                .source
                .as_ref()
                .and_then(|source| source.component.as_deref());
            let name = event.involved_object.name.as_ref();
            source == Some(COMPONENT_SERVICE)
                && name.is_some_and(|name| name.starts_with(&self.prefix()))
        };
        list.retain(is_ours);
        Ok(list)
    }

    /// Waits for an event of this reason about a Service.
    pub async fn service_event(&self, name: &str, reason: &str) -> anyhow::Result<Event> {
        let deadline = Instant::now() + super::SOON;
        loop {
            let mut events = self.service_events().await?;
            events.retain(|event| event.involved_object.name.as_deref() == Some(name));
            if let Some(event) = events
                .iter()
                .find(|event| event.reason.as_deref() == Some(reason))
            {
                return Ok(event.clone());
            }
            if Instant::now() >= deadline {
                let seen: Vec<_> = events
                    .iter()
                    .filter_map(|event| event.reason.clone())
                    .collect();
                bail!("no event {reason} about {name}, only {seen:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Takes away what would be somebody's work after this scenario: its nodes, and its Services,
    /// whatever holds them.
    pub async fn clean_up(&self) -> anyhow::Result<()> {
        let ours = ListParams::default().labels(&format!("{}={}", super::REGION, self.region()));
        self.nodes_api()
            .delete_collection(&DeleteParams::default(), &ours)
            .await
            .context("take the nodes away")?;
        let api = self.services_api();
        for service in api.list(&ListParams::default()).await?.items {
            let name = service.name_any();
            if !name.starts_with(&self.prefix()) {
                continue;
            }
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            for step in [
                api.patch(&name, &PatchParams::default(), &free)
                    .await
                    .map(drop),
                api.delete(&name, &DeleteParams::default()).await.map(drop),
            ] {
                match step {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    step => step.with_context(|| format!("take {name} away"))?,
                }
            }
        }
        Ok(())
    }
}
