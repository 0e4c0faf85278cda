//! Observes cluster and cloud for the subcommand `check`, which changes nothing.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::Registry;
use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    CLIENTS_WITH_ACCOUNT, DRAIN_LIMIT, Manager, ManagerError,
    election::{self, WriteGates},
    telemetry::Telemetry,
    wiring::{ControllerBuilder, RunMode},
};
use crate::{
    check::{
        Area, CheckReport, Finding, Severity,
        cluster::{self, ObservedNode},
        lease::{self, Lease},
        permissions::{self, EnabledParts, Permission},
    },
    config::{
        self, controller_names as names,
        leader_migration::{ControllerLock, LeaderMigration},
    },
    error::chain,
    k8s::{ServiceFields, ServiceView, well_known},
    provider::{
        InstanceBatcher, InstanceQuery, LoadBalancers, MetadataScope, NodeOwnership,
        ServiceInterpretation,
    },
    runtime::{
        api::{ApiClient, ApiClientOptions, ApiError, ApiMetrics, ApiRequest},
        cache::Cache,
        tasks::Tasks,
    },
    write_gate::WriteGate,
};

/// The oldest minor version of Kubernetes that the chart supports.
const OLDEST_MINOR: u32 = 30;

impl Manager {
    /// Checks API server, permissions, cloud, Nodes and Services, and changes nothing. Ends at
    /// `limit`, with the findings so far.
    ///
    /// # Errors
    /// Returns an error if metrics cannot be registered, or if `stop` is cancelled.
    pub async fn check(
        mut self,
        limit: Instant,
        stop: CancellationToken,
    ) -> Result<CheckReport, ManagerError> {
        let report = Arc::new(Mutex::new(CheckReport::default()));
        match LeaderMigration::load(&self.config, &self.product.controllers) {
            Ok(migration) => self.migration = migration,
            Err(error) => report.lock().findings.push(Finding::error(
                Area::Leader,
                chain(&error),
                "the manager ends until --leader-migration-config is corrected",
            )),
        }
        let checks = tokio::time::timeout_at(limit, self.run_checks(&report, &stop));
        match stop.run_until_cancelled(checks).await {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => {
                let advice = "the checks that are missing above were not made";
                let finding = Finding::error(Area::Nodes, chain(&error), advice);
                report.lock().findings.push(finding);
            }
            Some(Err(_)) => {
                let advice = "the checks that are missing above did not end; raise --timeout if the server is slow";
                let mut report = report.lock();
                let (area, message) = if report.has(Area::ApiServer) {
                    (Area::Cloud, "the cloud did not answer in time")
                } else {
                    (Area::ApiServer, "the API server did not answer in time")
                };
                report.findings.push(Finding::error(area, message, advice));
            }
            None => return Err(ManagerError::CheckStopped),
        }
        let report = report.lock().clone();
        Ok(report)
    }

    async fn run_checks(
        &self,
        report: &Mutex<CheckReport>,
        stop: &CancellationToken,
    ) -> Result<(), ManagerError> {
        let add = |finding| report.lock().findings.push(finding);
        if let Err(error) = self.wait_for_api_server().await {
            let advice = "check --kubeconfig or --master, and the network";
            add(Finding::error(Area::ApiServer, chain(&error), advice));
            return Ok(());
        }
        let api = self.check_client()?;
        add(check_version(&api).await);
        let controllers = self.controllers_to_check();
        for (name, reason) in &controllers {
            if let Err(reason) = reason {
                add(Finding::error(Area::Controllers, format!("{name} does not run"), *reason));
            }
        }
        let running = controllers
            .into_iter()
            .filter(|(_, reason)| reason.is_ok())
            .map(|(name, _)| name)
            .collect::<BTreeSet<_>>();
        let creates_routes = running.contains(names::NODE_ROUTE);
        let required = permissions::required(&self.enabled_parts(running));
        let missing = match missing_permissions(&api, &required).await {
            Ok(missing) => missing,
            Err(error) => {
                let advice = "check the credentials of the kubeconfig";
                let message = format!("cannot be found out: {}", chain(&error));
                add(Finding::error(Area::Permissions, message, advice));
                return Ok(());
            }
        };
        let findings = permissions::check(&required, &missing);
        report.lock().findings.extend(findings);
        if self.config.generic.use_service_account_credentials {
            add(Finding::warning(
                Area::Permissions,
                "those of the controllers' own ServiceAccounts were not checked",
                "apply the files of rbac/service-account-credentials/",
            ));
        }
        if self.config.leader_election.enabled {
            add(self.check_leader(&api).await);
        }
        if !self.provider.has_cluster_id() {
            let message = "the provider has no cluster ID: this cluster's objects cannot be distinguished from another cluster's";
            let advice =
                "set one; the manager does not start without, unless --allow-untagged-cloud is set";
            add(if self.config.generic.allow_untagged_cloud {
                Finding::warning(Area::Cloud, message, advice)
            } else {
                Finding::error(Area::Cloud, message, advice)
            });
        }
        if missing.iter().any(|permission| permission.is_for_caches()) {
            let advice = "they need the permissions above";
            add(Finding::error(Area::Nodes, "Nodes and Services were not checked", advice));
            return Ok(());
        }
        self.check_cluster(report, creates_routes, stop).await
    }

    /// Creates a client for reviews, which no write gate stops: they change nothing.
    fn check_client(&self) -> Result<ApiClient, ManagerError> {
        let metrics = ApiMetrics::register(&Registry::new())?;
        let agent = config::kubeconfig::user_agent(&self.product, "check");
        let options = ApiClientOptions::new(agent, &*self.host, metrics, WriteGate::always_open());
        Ok(ApiClient::new((self.clients)(well_known::COMPONENT_MANAGER), options))
    }

    /// Returns the enabled controllers, and for each that cannot run, what to do.
    fn controllers_to_check(&self) -> Vec<(&'static str, Result<(), &'static str>)> {
        let Self { config, provider, .. } = self;
        let require = |is_met: bool, advice| if is_met { Ok(()) } else { Err(advice) };
        let instances = require(
            provider.instances().is_some(),
            "the cloud has no service for instances: check the region and the credentials' catalog",
        );
        let balancers = require(
            provider.load_balancers().is_some(),
            "the cloud has no service for load balancers; exclude the controller with --controllers if Services need none",
        );
        let routes = require(
            provider.routes().is_some(),
            "the cloud has no routes, or the cloud config names no router; set --configure-cloud-routes=false if pods need none",
        )
        .and(require(
            !config.generic.cluster_cidrs.is_empty(),
            "set --cluster-cidr, or --configure-cloud-routes=false",
        ));
        let ipam = require(config.node_ipam.pools.is_some(), "set --allocate-node-cidrs");
        let is_enabled = |name: &str| {
            self.is_enabled(name)
                && (name != names::NODE_ROUTE || config.route.configure_cloud_routes)
        };
        [
            (names::CLOUD_NODE, instances),
            (names::CLOUD_NODE_LIFECYCLE, instances),
            (names::NODE_ROUTE, routes),
            (names::SERVICE_LB, balancers),
            (names::NODE_IPAM, ipam),
        ]
        .into_iter()
        .filter(|(name, _)| is_enabled(name))
        .collect()
    }

    fn enabled_parts(&self, controllers: BTreeSet<&'static str>) -> EnabledParts {
        let Self { config, provider, .. } = self;
        let (authentication, has_server) = (&config.authentication, config.serving.port.is_some());
        // Without a user of its own, the server asks with the pod's account, like the manager.
        let looks_up_cas = has_server
            && !authentication.skip_lookup
            && authentication.kubeconfig.is_none()
            && (authentication.client_ca_file.is_none()
                || authentication.requestheader_client_ca_file.is_none());
        let election = &config.leader_election;
        let lease = |name: &str| (election.resource_namespace.clone(), name.to_owned());
        let mut leases = Vec::new();
        if election.enabled {
            leases.push(lease(&election.resource_name));
            leases.extend(self.migration.iter().map(|m| lease(&m.leader_name)));
        }
        EnabledParts {
            endpoints: controllers.contains(names::SERVICE_LB)
                && provider
                    .load_balancers()
                    .is_some_and(LoadBalancers::supports_endpoint_backends),
            controllers,
            accounts: if config.generic.use_service_account_credentials {
                &CLIENTS_WITH_ACCOUNT
            } else {
                &[]
            },
            leases,
            delegated_auth: has_server && authentication.kubeconfig.is_none(),
            client_ca_lookup: looks_up_cas.then_some(
                // Otherwise the process ends at the start.
                if authentication.tolerate_lookup_failure {
                    Severity::Warning
                } else {
                    Severity::Error
                },
            ),
        }
    }

    async fn check_leader(&self, api: &ApiClient) -> Finding {
        let election = &self.config.leader_election;
        let (namespace, name) = (&election.resource_namespace, &election.resource_name);
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        let title = format!("{namespace}/{name}");
        match get::<Lease>(api, &path).await {
            Ok(found) => lease::check(&title, Some(&found), self.clock.now()),
            Err(error) if error.is_not_found() => lease::check(&title, None, self.clock.now()),
            Err(error) => Finding::warning(
                Area::Leader,
                format!("Lease {title} cannot be read: {}", chain(&error)),
                "it is not known whether a manager runs",
            ),
        }
    }

    /// Fills the caches, starts the provider without permission to change anything, and checks
    /// Nodes and Services.
    async fn check_cluster(
        &self,
        report: &Mutex<CheckReport>,
        creates_routes: bool,
        stop: &CancellationToken,
    ) -> Result<(), ManagerError> {
        let telemetry = Telemetry::register(self)?;
        let gates = WriteGates::always_closed();
        let mut tasks = Tasks::new(stop.child_token());
        let mut builder =
            ControllerBuilder::new(self, &gates, &telemetry, tasks.stop(), RunMode::Lead);
        let services = self.watch_services(&mut builder);
        let nodes = builder.nodes.clone();
        let batcher = InstanceBatcher::new(
            self.provider.clone(),
            builder.op(ControllerLock::Main).with_reason("check"),
            builder.cloud_metrics.clone(),
        );
        let ControllerBuilder { caches, context, .. } = builder;
        caches.start(&mut tasks).await?;
        if let Err(error) = self.start_provider_once(context).await {
            let advice = "the manager waits, or ends, until this is corrected in the cloud or the cloud config";
            let finding = Finding::error(Area::Cloud, chain(&error), advice);
            report.lock().findings.push(finding);
        }
        let queries = batcher.map(|(instances, driver)| {
            tasks.spawn("instances", async move {
                driver.run().await;
                Ok(())
            });
            instances
        });
        let nodes = self.observe_nodes(nodes.list(), queries.as_ref()).await;
        let cidrs: &[_] = if creates_routes {
            &self.config.generic.cluster_cidrs
        } else {
            &[]
        };
        let mut findings = cluster::check_nodes(&nodes, cidrs);
        if let Some(services) = services {
            findings.extend(cluster::check_services(&self.interpret(&services)));
        }
        report.lock().findings.extend(findings);
        tasks.stop().cancel();
        election::task_result(tasks.run(DRAIN_LIMIT).await)
    }

    /// Adds the cache of Services, if the service controller is enabled.
    fn watch_services(&self, builder: &mut ControllerBuilder<'_>) -> Option<Cache<ServiceView>> {
        let balancers = self
            .provider
            .load_balancers()
            .filter(|_| self.is_enabled(names::SERVICE_LB))?;
        let services = Cache::<ServiceView>::new(ServiceFields { classes: balancers.classes() });
        builder.watch("service-cache", &services);
        builder.context.services = Some(Arc::new(services.clone()));
        Some(services)
    }

    /// Asks the cloud about the Nodes that are ours.
    async fn observe_nodes(
        &self,
        nodes: Vec<Arc<crate::k8s::NodeView>>,
        instances: Option<&InstanceBatcher>,
    ) -> Vec<ObservedNode> {
        let mut observed: Vec<ObservedNode> = nodes
            .into_iter()
            .map(|node| ObservedNode {
                ownership: self.provider.node_ownership(&node),
                node,
                instance: None,
            })
            .collect();
        observed.sort_by(|a, b| a.node.name.cmp(&b.node.name));
        let Some(instances) = instances else {
            return observed;
        };
        let ours = || {
            observed
                .iter()
                .filter(|node| node.ownership == NodeOwnership::Ours)
        };
        let queries = ours()
            .map(|node| InstanceQuery {
                node: node.node.clone(),
                scope: MetadataScope::All,
                max_age: Duration::ZERO,
            })
            .collect();
        let answers = instances.describe_many(queries).await;
        let ours = observed
            .iter_mut()
            .filter(|node| node.ownership == NodeOwnership::Ours);
        for (node, answer) in ours.zip(answers) {
            node.instance = Some(answer);
        }
        observed
    }

    fn interpret(
        &self,
        services: &Cache<ServiceView>,
    ) -> Vec<(Arc<ServiceView>, ServiceInterpretation)> {
        let Some(balancers) = self.provider.load_balancers() else {
            return Vec::new();
        };
        let mut all: Vec<_> = services
            .list()
            .into_iter()
            .filter(|service| service.is_load_balancer && !service.deleting)
            .map(|service| (service.clone(), balancers.interpret(&service)))
            .collect();
        all.sort_by(|(a, _), (b, _)| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        all
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    minor: String,
    git_version: String,
}

async fn check_version(api: &ApiClient) -> Finding {
    match get::<Version>(api, "/version").await {
        Ok(version) => {
            let message = format!("Kubernetes {}", version.git_version);
            // Some distributions append a plus sign.
            let minor: Option<u32> = version.minor.trim_end_matches('+').parse().ok();
            match minor {
                Some(minor) if minor < OLDEST_MINOR => Finding::warning(
                    Area::ApiServer,
                    message,
                    format!("versions before 1.{OLDEST_MINOR} are not supported"),
                ),
                _ => Finding::ok(Area::ApiServer, message),
            }
        }
        Err(error) => Finding::warning(
            Area::ApiServer,
            format!("the version cannot be read: {}", chain(&error)),
            "check the credentials of the kubeconfig",
        ),
    }
}

/// Asks the API server for each permission. Returns those that it denies.
async fn missing_permissions<'a>(
    api: &ApiClient,
    required: &'a [Permission],
) -> Result<Vec<&'a Permission>, ApiError> {
    #[derive(Deserialize)]
    struct Review {
        status: ReviewStatus,
    }
    #[derive(Deserialize)]
    struct ReviewStatus {
        allowed: bool,
    }
    const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let mut missing = Vec::new();
    for permission in required {
        let request = ApiRequest::create(PATH, &permission.review())?;
        let review: Review = api.send(request).await?.json()?;
        if !review.status.allowed {
            missing.push(permission);
        }
    }
    Ok(missing)
}

async fn get<T: serde::de::DeserializeOwned>(api: &ApiClient, path: &str) -> Result<T, ApiError> {
    api.send(ApiRequest::get(path)).await?.json()
}
