//! Observes cluster and cloud for the subcommand `check`, which changes nothing.

pub(super) mod requests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    API_SERVER_WAIT, DRAIN_LIMIT, Manager, ManagerError, NODE_CLIENT,
    election::{self, WriteGates},
    route::ROUTE_CLIENT,
    services::SERVICE_CLIENT,
    telemetry::Telemetry,
    wiring::{ControllerBuilder, RunMode},
};
use crate::{
    check::{
        Area, CheckReport, ClusterFinding, Finding, Severity,
        cluster::{self, ObservedNode},
        lease,
        managers::{self, ManagerPod},
        panicked,
        permissions::{self, EnabledParts},
        services::{self, ReadService},
    },
    config::{
        self, controller_names as names,
        leader_migration::{ControllerLock, LeaderMigration},
    },
    error::{caught, chain},
    k8s::{ServiceFields, ServiceView, well_known},
    provider::{
        CheckedCluster, InstanceBatcher, InstanceQuery, LoadBalancers, MetadataScope,
        NodeOwnership, Op,
    },
    runtime::{
        api::{ApiClient, ApiClientOptions, ApiError, ApiErrorKind, ApiMetrics},
        cache::Cache,
        tasks::Tasks,
    },
    write_gate::WriteGate,
};

/// The time before the end of the checks at which the provider's own checks end, so that their
/// findings are in the report. With a short limit it is a tenth of the time.
const PROVIDER_RESERVE: Duration = Duration::from_secs(5);

impl Manager {
    /// Checks API server, permissions, cloud, Nodes and Services, and changes nothing. Ends at
    /// `limit`, with the findings so far. An unreachable API server is waited for during half of the
    /// time at most, so that the reason is in the report.
    ///
    /// # Errors
    /// Returns an error if metrics cannot be registered, or if `stop` is cancelled.
    pub async fn check(
        mut self,
        limit: Instant,
        stop: CancellationToken,
    ) -> Result<CheckReport, ManagerError> {
        let report = Report::default();
        match LeaderMigration::load(&self.config, &self.product.controllers) {
            Ok(migration) => self.migration = migration,
            Err(error) => {
                report.add(
                    ClusterFinding::LeaderMigrationInvalid
                        .about("--leader-migration-config", chain(&error)),
                );
            }
        }
        // Boxed, so that the futures of callers stay small.
        let checks = Box::pin(self.run_checks(&report, limit, &stop));
        let checks = tokio::time::timeout_at(limit, caught(checks));
        match stop.run_until_cancelled(checks).await {
            Some(Ok(Ok(Ok(())))) => {}
            Some(Ok(Ok(Err(error)))) => {
                report.add(ClusterFinding::CachesNotFilled.about("caches", chain(&error)));
            }
            Some(Ok(Err(panic))) => report.add(panicked("the checks", &panic)),
            Some(Err(_)) if report.waits_for_cloud.load(Ordering::Relaxed) => {
                let message = "the cloud did not answer in time";
                report.add(ClusterFinding::CloudTooSlow.about("cloud", message));
            }
            Some(Err(_)) => {
                let message = "the API server did not answer in time";
                report.add(ClusterFinding::ApiServerTooSlow.about(&*self.host, message));
            }
            None => return Err(ManagerError::CheckStopped),
        }
        Ok(report.found.into_inner())
    }

    async fn run_checks(
        &self,
        report: &Report,
        limit: Instant,
        stop: &CancellationToken,
    ) -> Result<(), ManagerError> {
        // First, the API server, without which nothing else can be found out.
        let time = limit.saturating_duration_since(Instant::now());
        if let Err(error) = self
            .wait_for_api_server(API_SERVER_WAIT.min(time / 2))
            .await
        {
            let unreachable = ClusterFinding::ApiServerUnreachable;
            report.add(unreachable.about(&*self.host, chain(&error)));
            return Ok(());
        }
        let api = self.check_client()?;
        report.add(requests::check_version(&api).await);

        // Next, the controllers that can run, and the permissions that they need.
        let controllers = self.controllers_to_check();
        for (name, reason) in &controllers {
            if let Err(reason) = reason {
                report.add(reason.about(*name, format!("{name} does not run")));
            }
        }
        let running: BTreeSet<_> = controllers
            .into_iter()
            .filter(|(_, reason)| reason.is_ok())
            .map(|(name, _)| name)
            .collect();
        let Some(may_fill_caches) = self.check_permissions(&api, &running, report).await? else {
            return Ok(());
        };

        // Next, who else manages this cluster.
        let others = self.check_managers(&api, report).await;
        if self.config.leader_election.enabled {
            report.add(self.check_leader(&api, &others).await);
        }
        self.check_cluster_id(report);

        // Last, the cluster against the cloud.
        let op = self.check_op(limit - PROVIDER_RESERVE.min(time / 10), stop);
        let creates_routes = running.contains(names::NODE_ROUTE);
        if !may_fill_caches {
            let message = "the caches cannot be filled";
            report.add(ClusterFinding::ClusterNotChecked.about("caches", message));
            let cluster = CheckedCluster { nodes: &[], services: None, creates_routes };
            self.check_provider(report, cluster, &op).await;
            return Ok(());
        }
        if !running.contains(names::SERVICE_LB) {
            match requests::services_being_deleted(&api).await {
                Ok(unserved) => report.extend(services::check_unserved(&unserved)),
                Err(error) => {
                    let message = format!("Services were not looked at: {}", chain(&error));
                    report.add(Finding::ok(Area::Services, message));
                }
            }
        }
        self.check_cluster(report, creates_routes, &op, stop).await
    }

    /// Asks for all permissions. Returns whether the caches can be filled, or `None` if the
    /// permissions cannot be found out.
    pub(super) async fn check_permissions(
        &self,
        api: &ApiClient,
        running: &BTreeSet<&'static str>,
        report: &Report,
    ) -> Result<Option<bool>, ManagerError> {
        let mut parts = self.enabled_parts(running.clone());
        for account in parts.accounts.values().copied() {
            if requests::is_account_missing(api, account).await {
                parts.missing_accounts.insert(account);
            }
        }
        let required = permissions::required(&parts);
        let reviews = match requests::review(api, &required).await {
            Ok(reviews) => reviews,
            Err(error) => {
                let unknown = ClusterFinding::PermissionsUnknown;
                report.add(
                    unknown.about("permissions", format!("cannot be found out: {}", chain(&error))),
                );
                return Ok(None);
            }
        };
        report.extend(permissions::check(reviews.asked, &reviews.denied));
        if let Some(error) = reviews.accounts_unknown {
            let message = format!(
                "those of the controllers' own ServiceAccounts cannot be found out: {error}"
            );
            report.add(ClusterFinding::AccountPermissionsUnknown.about("ServiceAccounts", message));
        }
        let denied = &mut reviews.denied.iter();
        Ok(Some(!denied.any(|permission| permission.is_for_caches())))
    }

    fn check_cluster_id(&self, report: &Report) {
        if self.provider.has_cluster_id() {
            return;
        }
        let missing =
            ClusterFinding::ClusterIdMissing.about("cluster ID", "the provider has no cluster ID");
        report.add(if self.config.generic.allow_untagged_cloud {
            missing.with_severity(Severity::Warning)
        } else {
            missing
        });
    }

    /// Creates the context of the provider's own checks, which change nothing.
    pub(super) fn check_op(&self, deadline: Instant, stop: &CancellationToken) -> Op {
        let gate = WriteGate::always_closed();
        Op::new(&*self.config.generic.cluster_name, stop.child_token(), gate)
            .with_deadline(deadline)
            .with_reason("check")
    }

    /// Looks for other managers in the namespace of the Leases, as far as the user may.
    async fn check_managers(&self, api: &ApiClient, report: &Report) -> Vec<ManagerPod> {
        let namespace = &self.config.leader_election.resource_namespace;
        let not_looked = |what: &str, error: ApiError| {
            let reason = match error.kind() {
                ApiErrorKind::Forbidden => format!(
                    "this user may not list them in namespace {namespace}; `check` with an administrator's kubeconfig looks for them"
                ),
                _ => chain(&error),
            };
            Finding::ok(
                Area::Leader,
                format!("{what} of other managers were not looked for: {reason}"),
            )
        };
        match requests::leases(api, namespace).await {
            Ok(leases) => {
                let own = self.lease_names();
                report.extend(lease::check_others(&leases, &own, self.clock.now()));
            }
            Err(error) => report.add(not_looked("Leases", error)),
        }
        match requests::pods(api, namespace).await {
            Ok(pods) => {
                let pods = managers::other_managers(&pods, self.product.binary);
                report.extend(managers::check_pods(&pods));
                pods
            }
            Err(error) => {
                report.add(not_looked("pods", error));
                Vec::new()
            }
        }
    }

    /// Returns the names of the Leases by which this process elects leaders.
    pub(super) fn lease_names(&self) -> Vec<String> {
        let mut names = vec![self.config.leader_election.resource_name.clone()];
        names.extend(self.migration.iter().map(|m| m.leader_name.clone()));
        names
    }

    /// Creates a client for reviews, which no write gate stops: they change nothing.
    pub(super) fn check_client(&self) -> Result<ApiClient, ManagerError> {
        let metrics = ApiMetrics::register(&Registry::new())?;
        let agent = config::kubeconfig::user_agent(&self.product, "check");
        let options = ApiClientOptions::new(agent, &*self.host, metrics, WriteGate::always_open());
        Ok(ApiClient::new((self.clients)(well_known::COMPONENT_MANAGER), options))
    }

    /// Returns the enabled controllers, and for each that cannot run, the reason.
    pub(super) fn controllers_to_check(&self) -> Vec<(&'static str, Result<(), ClusterFinding>)> {
        let Self { config, provider, .. } = self;
        let require = |is_met: bool, otherwise| if is_met { Ok(()) } else { Err(otherwise) };
        let instances =
            require(provider.instances().is_some(), ClusterFinding::CloudHasNoInstances);
        let balancers =
            require(provider.load_balancers().is_some(), ClusterFinding::CloudHasNoLoadBalancers);
        let routes = require(provider.routes().is_some(), ClusterFinding::CloudHasNoRoutes).and(
            require(!config.generic.cluster_cidrs.is_empty(), ClusterFinding::ClusterCidrMissing),
        );
        let ipam = require(config.node_ipam.pools.is_some(), ClusterFinding::PodCidrAllocationOff);
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
        let mut leases = Vec::new();
        if election.enabled {
            let in_namespace = |name| (election.resource_namespace.clone(), name);
            leases.extend(self.lease_names().into_iter().map(in_namespace));
        }
        let mut accounts = BTreeMap::new();
        if config.generic.use_service_account_credentials {
            accounts.extend(
                ACCOUNTS
                    .into_iter()
                    .filter(|(name, _)| controllers.contains(name)),
            );
        }
        EnabledParts {
            endpoints: controllers.contains(names::SERVICE_LB)
                && provider
                    .load_balancers()
                    .is_some_and(LoadBalancers::supports_endpoint_backends),
            controllers,
            accounts,
            missing_accounts: BTreeSet::new(),
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

    async fn check_leader(&self, api: &ApiClient, others: &[ManagerPod]) -> Finding {
        let election = &self.config.leader_election;
        let (namespace, name) = (&election.resource_namespace, &election.resource_name);
        let title = format!("{namespace}/{name}");
        let now = self.clock.now();
        match requests::lease(api, namespace, name).await {
            Ok(found) => lease::check(&title, Some(&found), others, now),
            Err(error) if error.is_not_found() => lease::check(&title, None, others, now),
            Err(error) => {
                let message = format!("Lease {title} cannot be read: {}", chain(&error));
                ClusterFinding::LeaseUnreadable.about(title, message)
            }
        }
    }

    /// Fills the caches, starts the provider without permission to change anything, and checks
    /// Nodes, Services and the cloud.
    async fn check_cluster(
        &self,
        report: &Report,
        creates_routes: bool,
        op: &Op,
        stop: &CancellationToken,
    ) -> Result<(), ManagerError> {
        // First, fill the caches and start the provider.
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
        report.wait_for_cloud();
        if let Err(error) = self.start_provider_once(context).await {
            let failed = ClusterFinding::ProviderStartFailed;
            report.add(failed.about("provider", chain(&error)));
        }

        // Next, ask the cloud about each Node.
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
        report.extend(cluster::check_nodes(&nodes, cidrs));

        // Next, let the provider read each Service.
        let services = services.map(|services| self.read_services(&services, report));
        self.check_inventory(op, report).await;

        // Last, let the provider check what only it knows.
        let is_ours = |node: &&ObservedNode| node.ownership == NodeOwnership::Ours;
        let nodes: Vec<_> = nodes
            .iter()
            .filter(is_ours)
            .map(|node| node.node.clone())
            .collect();
        let cluster =
            CheckedCluster { nodes: &nodes, services: services.as_deref(), creates_routes };
        self.check_provider(report, cluster, op).await;
        tasks.stop().cancel();
        election::task_result(tasks.run(DRAIN_LIMIT).await)
    }

    /// Lets the provider check what only it knows.
    async fn check_provider(&self, report: &Report, cluster: CheckedCluster<'_>, op: &Op) {
        report.wait_for_cloud();
        match caught(self.provider.check(op, cluster)).await {
            Ok(findings) => report.extend(findings),
            Err(panic) => {
                let object = format!("the {} provider's own checks", self.provider.name());
                report.add(panicked(&object, &panic));
            }
        }
    }

    /// Checks that what this cluster owns in the cloud can be listed. Which of it are orphans takes
    /// the whole list and confirmation by the API server, so only the subcommand `orphans` says that.
    async fn check_inventory(&self, op: &Op, report: &Report) {
        let Some(inventory) = self.provider.inventory() else {
            return;
        };
        report.add(match caught(inventory.check_readable(op)).await {
            Ok(Ok(())) => {
                let message = "what this cluster owns in the cloud can be listed";
                Finding::ok(Area::Cloud, message)
            }
            Ok(Err(error)) => ClusterFinding::InventoryUnreadable
                .about("the list of owned objects", chain(&error)),
            Err(panic) => panicked("the list of owned objects", &panic),
        });
    }

    /// Adds the cache of Services, if the service controller is enabled.
    fn watch_services(&self, builder: &mut ControllerBuilder<'_>) -> Option<Cache<ServiceView>> {
        let balancers = self
            .provider
            .load_balancers()
            .filter(|_| self.is_enabled(names::SERVICE_LB))?;
        let services = Cache::<ServiceView>::new(ServiceFields {
            classes: balancers.classes(),
            ..ServiceFields::default()
        });
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

    /// Checks the Services in the cache, and returns those that may have a load balancer of ours.
    fn read_services(
        &self,
        services: &Cache<ServiceView>,
        report: &Report,
    ) -> Vec<Arc<ServiceView>> {
        let Some(balancers) = self.provider.load_balancers() else {
            return Vec::new();
        };
        let mut all = services.list();
        all.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let fields = ServiceFields { classes: balancers.classes(), ..ServiceFields::default() };
        let read: Vec<_> = all
            .iter()
            .filter(|service| fields.is_managed(service))
            .map(|service| ReadService {
                interpretation: balancers.interpret(service),
                notices: balancers.notices(service),
                service: service.clone(),
            })
            .collect();
        report.extend(services::check_served(&read));
        report.extend(services::check_finalizers(&all, &fields));
        let may_be_ours = |service: &Arc<ServiceView>| {
            !service.is_load_balancer || fields.claims_class(service.class.as_deref())
        };
        all.retain(may_be_ours);
        all
    }
}

/// The ServiceAccount of each controller with `--use-service-account-credentials`.
const ACCOUNTS: [(&str, &str); 5] = [
    (names::CLOUD_NODE, NODE_CLIENT),
    (names::CLOUD_NODE_LIFECYCLE, NODE_CLIENT),
    (names::NODE_IPAM, NODE_CLIENT),
    (names::NODE_ROUTE, ROUTE_CLIENT),
    (names::SERVICE_LB, SERVICE_CLIENT),
];

/// The findings so far, which survive when the checks are cut short.
#[derive(Debug, Default)]
pub(super) struct Report {
    found: Mutex<CheckReport>,
    /// True once the API server has answered everything, so that only the cloud is waited for.
    waits_for_cloud: AtomicBool,
}

impl Report {
    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.found.into_inner().findings
    }

    fn add(&self, finding: Finding) {
        self.found.lock().findings.push(finding);
    }

    fn extend(&self, findings: impl IntoIterator<Item = Finding>) {
        self.found.lock().findings.extend(findings);
    }

    fn wait_for_cloud(&self) {
        self.waits_for_cloud.store(true, Ordering::Relaxed);
    }
}
