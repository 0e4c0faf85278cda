//! What tests do to Services and see of them.

use std::time::Duration;

use ccm_mock::cloud::{Fault, FaultError, FaultSpec, LoadBalancer, LoadBalancerState, Operation};
use ccm_testkit::apiserver::{ApiServer, Match, resources};
use serde_json::{Value, json};

use crate::cluster::{TestCluster, initialized, secs};

/// Only the service controller.
pub(crate) const SERVICE: [&str; 1] = ["--controllers=service"];
pub(crate) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const SERVICES: (&str, &str) = ("", "services");

impl TestCluster {
    /// A world whose nodes all have instances, with more configuration of the cloud (YAML).
    pub(crate) fn with(config: &str) -> Self {
        Self::new(&format!("region: r1\nzones: [r1a]\nautoProvision: true\n{config}"))
    }

    /// Initialised nodes join.
    pub(crate) async fn have_nodes(&self, names: impl IntoIterator<Item = impl AsRef<str>>) {
        let specs = names.into_iter().map(|name| initialized(name.as_ref()));
        self.kubelets.register_all(specs).await.expect("nodes join");
    }

    /// Deletes the Node, as somebody else does.
    pub(crate) async fn delete_node(&self, name: &str) {
        drop(self.kubelets.stop_node(name));
        self.request("DELETE", &format!("/api/v1/nodes/{name}"), "application/json", Value::Null)
            .await;
    }

    /// Takes a Node away here and now.
    pub(crate) fn remove_node(&self, name: &str) {
        drop(self.kubelets.stop_node(name));
        let def = resources::find("", "v1", "nodes").expect("nodes are served");
        self.server.store().write(|tx| {
            let node = tx.get(("", "nodes"), "", name).expect("the node is there");
            tx.remove(def, &node, node.value());
        });
    }

    /// Puts a Node in place here and now.
    pub(crate) fn put_node(&self, node: Value) {
        let def = resources::find("", "v1", "nodes").expect("nodes are served");
        self.server.store().write(|tx| tx.put(def, node));
    }

    /// Creates a Service of type LoadBalancer in the default namespace.
    pub(crate) async fn put_service(&self, name: &str, spec: Value) {
        self.put_annotated(name, json!({}), spec).await;
    }

    /// Creates a Service of type LoadBalancer with port 80.
    pub(crate) async fn serve(&self, name: &str) {
        self.put_service(name, json!({"ports": [{"port": 80}]}))
            .await;
    }

    /// Creates a Service of type LoadBalancer with annotations.
    pub(crate) async fn put_annotated(&self, name: &str, annotations: Value, mut spec: Value) {
        if spec["type"].is_null() {
            spec["type"] = json!("LoadBalancer");
        }
        let metadata = json!({"name": name, "annotations": annotations});
        let body =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        self.request("POST", "/api/v1/namespaces/default/services", "application/json", body)
            .await;
    }

    /// Merges into a Service, as its owner does.
    pub(crate) async fn patch_service(&self, name: &str, patch: Value) {
        let path = format!("/api/v1/namespaces/default/services/{name}");
        self.request("PATCH", &path, "application/merge-patch+json", patch)
            .await;
    }

    /// Merges into the status of a Service.
    pub(crate) async fn patch_service_status(&self, name: &str, patch: Value) {
        let path = format!("/api/v1/namespaces/default/services/{name}/status");
        self.request("PATCH", &path, "application/merge-patch+json", patch)
            .await;
    }

    /// Deletes a Service, as its owner does.
    pub(crate) async fn delete_service(&self, name: &str) {
        let path = format!("/api/v1/namespaces/default/services/{name}");
        self.request("DELETE", &path, "application/json", Value::Null)
            .await;
    }

    pub(crate) async fn request(&self, method: &str, path: &str, content: &str, body: Value) {
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(kube::client::Body::from(body.clone()))
            .expect("request of the test");
        let answer = self
            .server
            .client()
            .send(request)
            .await
            .expect("the server answers");
        assert!(
            answer.status().is_success(),
            "{method} {path}: {} {}",
            answer.status(),
            String::from_utf8_lossy(&body)
        );
    }

    /// Changes a Service here and now, without asking anybody.
    pub(crate) fn edit_service(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        edit_service(&self.server, name, edit);
    }

    /// Takes a Service away here and now, whatever finalizers it has.
    pub(crate) fn remove_service(&self, name: &str) {
        let def = resources::find("", "v1", "services").expect("services are served");
        self.server.store().write(|tx| {
            let service = tx
                .get(SERVICES, "default", name)
                .expect("the service is there");
            tx.remove(def, &service, service.value());
        });
    }

    /// The Service as the server has it, or null.
    pub(crate) fn service(&self, name: &str) -> Value {
        self.server
            .store()
            .get(SERVICES, "default", name)
            .map_or(Value::Null, |object| object.value())
    }

    /// Whether the Service carries our finalizer.
    pub(crate) fn is_guarded(&self, name: &str) -> bool {
        let service = self.service(name);
        service["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| list.contains(&json!(FINALIZER)))
    }

    /// Addresses of the Service's balancer.
    pub(crate) fn ingress(&self, name: &str) -> Vec<String> {
        let service = self.service(name);
        let list = service["status"]["loadBalancer"]["ingress"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        list.iter()
            .filter_map(|ingress| ingress["ip"].as_str().map(str::to_owned))
            .collect()
    }

    /// Waits until each of these Services has an address.
    pub(crate) async fn until_served(
        &self,
        names: &[impl AsRef<str>],
        limit: Duration,
    ) -> Duration {
        let mut left: Vec<&str> = names.iter().map(AsRef::as_ref).rev().collect();
        let all = || {
            while left
                .last()
                .is_some_and(|name| !self.ingress(name).is_empty())
            {
                left.pop();
            }
            left.is_empty()
        };
        self.until("services have addresses", limit, all).await
    }

    /// The balancers made for a Service, those of earlier namesakes too.
    pub(crate) fn balancers(&self, service: &str) -> Vec<LoadBalancer> {
        let key = format!("default/{service}");
        self.cloud
            .load_balancers()
            .into_iter()
            .filter(|balancer| balancer.service == key)
            .collect()
    }

    /// Whether each balancer of the cloud has so many nodes.
    pub(crate) fn all_have(&self, nodes: usize) -> bool {
        self.cloud
            .load_balancers()
            .iter()
            .all(|balancer| balancer.nodes.len() == nodes)
    }

    /// Nodes behind the one balancer of a Service.
    pub(crate) fn nodes_behind(&self, service: &str) -> Vec<String> {
        match &*self.balancers(service) {
            [balancer] if balancer.state != LoadBalancerState::Deleting => balancer.nodes.to_vec(),
            others => panic!("{service} has {} balancers", others.len()),
        }
    }

    /// Events about Services: reason and number of occurrences, in order of creation.
    pub(crate) fn service_events(&self) -> Vec<(String, u64)> {
        self.events_about("Service")
    }

    /// Events about Services: reasons alone, each as often as it occurred.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let events = self.service_events();
        events
            .iter()
            .flat_map(|(reason, count)| (0..*count).map(move |_| reason.clone()))
            .collect()
    }

    /// The notes of events with this reason.
    pub(crate) fn notes(&self, reason: &str) -> Vec<String> {
        let (mut objects, _) = self.server.store().list(("", "events"), None);
        objects.sort_by_key(|object| object.version);
        let events = objects
            .iter()
            .map(|object| object.value())
            .filter(|event| event["reason"] == reason);
        events
            .map(|event| event["message"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Writes of the process under test to Services: `verb resource name`.
    pub(crate) fn service_writes(&self) -> Vec<String> {
        let log = self.write_log(Match::resource("services"));
        let line = |entry: &std::sync::Arc<ccm_testkit::apiserver::LogEntry>| {
            format!("{} {} {}", entry.request.verb, entry.request.target(), entry.request.name)
        };
        log.iter().map(line).collect()
    }

    /// Lets calls about balancers fail, until the faults are set again.
    pub(crate) fn fail_balancers(
        &self,
        operation: Operation,
        error: FaultError,
        service: Option<&str>,
    ) {
        let object = service.map(str::to_owned);
        let spec = FaultSpec {
            operation: Some(operation),
            error: Some(error),
            object,
            ..FaultSpec::default()
        };
        self.cloud
            .set_faults(vec![Fault::new(spec).expect("fault of the test")]);
    }

    /// Lets everything that is under way end.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(secs(60)).await;
    }
}

/// Changes a Service here and now, from a hook.
pub(crate) fn edit_service(server: &ApiServer, name: &str, edit: impl FnOnce(&mut Value)) {
    let def = resources::find("", "v1", "services").expect("services are served");
    server.store().write(|tx| {
        let mut service = tx
            .get(SERVICES, "default", name)
            .expect("the service is there")
            .value();
        edit(&mut service);
        tx.put(def, service);
    });
}
