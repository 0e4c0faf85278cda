//! Observes what the adoption report shows besides the differences of shadow mode. Changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Manager,
    check::{Report, requests},
    page_metrics,
};
use crate::{
    adoption::{
        self, ActiveManager, AdoptionReport, CloudFindings, FORMAT_VERSION, Permissions,
        ReportedCluster, ReportingManager, Served,
        defects::{self, FoundDefect},
        estimate::{self, EstimateInputs, MeasuredCalls},
    },
    check::{
        Finding, FindingRow,
        cluster::{self, ObservedNode},
        services::{self, ReadService},
    },
    config::{ReportFormat, controller_names as names, feature_gates::WATCH_BASED_ROUTES},
    controllers::{
        orphans::{OrphanScan, refuse_cluster, refuse_collection, scanner::OrphanScanner},
        route::WATCH_BASED_PERIOD,
    },
    error::chain,
    k8s::{NodeView, ServiceFields, ServiceView},
    provider::{CheckedCluster, LoadBalancers, NodeOwnership, ServiceInterpretation},
    runtime::{
        api::ApiClient,
        cache::Cache,
        shadow::{Difference, Verdict},
    },
};

/// The maximum time that everything beyond the comparison may take.
const LIMIT: Duration = Duration::from_secs(180);

/// What is examined with requests beyond the comparison.
const LEADER: &str = "the holder of the Lease";
const PERMISSIONS: &str = "permissions";
const DELETIONS: &str = "Services that are being deleted";
const ORPHANS: &str = "objects in the cloud without a Service or Node";
const CLOUD: &str = "the provider's own check";

/// The caches of a comparison, and the scanner for orphans.
pub(super) struct ReportSources {
    pub(super) nodes: Cache<NodeView>,
    pub(super) services: Option<Cache<ServiceView>>,
    pub(super) orphans: Option<OrphanScanner>,
}

/// The cluster as the caches show it, sorted by name.
struct ObservedCluster {
    /// The Nodes of this provider.
    nodes: Vec<Arc<NodeView>>,
    /// All Nodes, with their owners. The cloud was not asked about them again.
    all_nodes: Vec<ObservedNode>,
    /// The Services of type LoadBalancer, or with the finalizer of one, that may be of this
    /// provider.
    services: Vec<Arc<ServiceView>>,
    /// Those of them that no other controller serves.
    served_services: Vec<Arc<ServiceView>>,
    /// All Services of the cache.
    all_services: Vec<Arc<ServiceView>>,
    /// `None` if the provider has no load balancers.
    service_fields: Option<ServiceFields>,
}

/// What was found out beyond the comparison.
#[derive(Default)]
struct Observations {
    active_manager: ActiveManager,
    user: Option<String>,
    permissions: Report,
    cloud: Vec<Finding>,
    findings: Vec<Finding>,
    defects: Vec<FoundDefect>,
    /// The steps that have not ended well so far, with the reason.
    not_examined: BTreeMap<&'static str, String>,
}

impl Observations {
    /// Records that a step ended well, or why it did not.
    fn ended(&mut self, step: &'static str, failed: Option<String>) {
        match failed {
            Some(reason) => self.not_examined.insert(step, reason),
            None => self.not_examined.remove(step),
        };
    }
}

impl Manager {
    /// Makes the adoption report of a comparison, in the form of `--report`.
    ///
    /// # Errors
    /// Returns an error if the report cannot be formatted, which does not happen.
    pub(super) async fn adoption_report(
        &self,
        sources: &ReportSources,
        verdict: Verdict,
        stop: &CancellationToken,
    ) -> serde_json::Result<String> {
        // First, what the comparison cost, before anything else is counted.
        let measured = measured_calls(self);

        // Next, what only the API server, the provider and the caches can tell.
        let cluster = self.observe_cluster(sources);
        let observed = self.observe(sources, &cluster, stop).await;

        // Last, the report.
        let report = self.assemble(&cluster, observed, verdict, measured);
        match self.config.shadow.report {
            ReportFormat::Json => report.json(),
            ReportFormat::Markdown | ReportFormat::None => Ok(report.markdown()),
        }
    }

    fn observe_cluster(&self, sources: &ReportSources) -> ObservedCluster {
        let mut all_nodes = Vec::new();
        for node in sources.nodes.list() {
            let ownership = self.provider.node_ownership(&node);
            all_nodes.push(ObservedNode { node, ownership, instance: None });
        }
        all_nodes.sort_by(|a, b| a.node.name.cmp(&b.node.name));
        let ours = all_nodes
            .iter()
            .filter(|node| node.ownership == NodeOwnership::Ours);
        let nodes = ours.map(|node| node.node.clone()).collect();

        let mut all_services = sources
            .services
            .as_ref()
            .map(Cache::list)
            .unwrap_or_default();
        all_services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let service_fields = self
            .provider
            .load_balancers()
            .map(|balancers| ServiceFields {
                classes: balancers.classes(),
                ..ServiceFields::default()
            });
        let may_be_ours = |service: &&Arc<ServiceView>| match &service_fields {
            Some(fields) => {
                !service.is_load_balancer || fields.claims_class(service.class.as_deref())
            }
            None => false,
        };
        let services: Vec<_> = all_services.iter().filter(may_be_ours).cloned().collect();
        let mut served_services = services.clone();
        served_services.retain(|service| !self.is_served_elsewhere(service));
        ObservedCluster {
            nodes,
            all_nodes,
            services,
            served_services,
            all_services,
            service_fields,
        }
    }

    /// Returns true if the provider leaves a Service of its classes to another controller.
    fn is_served_elsewhere(&self, service: &ServiceView) -> bool {
        let interpretation = self
            .provider
            .load_balancers()
            .map(|balancers| balancers.interpret(service));
        service.is_load_balancer
            && interpretation == Some(ServiceInterpretation::ImplementedElsewhere)
    }

    /// Finds out everything that the comparison does not know. What takes too long is left out.
    async fn observe(
        &self,
        sources: &ReportSources,
        cluster: &ObservedCluster,
        stop: &CancellationToken,
    ) -> Observations {
        let mut observed = Observations::default();
        let election = &self.config.leader_election;
        if election.enabled {
            let lease = format!("{}/{}", election.resource_namespace, election.resource_name);
            observed.active_manager.lease = Some(lease);
        }
        // Each step that ends removes itself.
        let cut = format!("no answer within the {} s of the report", LIMIT.as_secs());
        for step in [LEADER, PERMISSIONS, DELETIONS, ORPHANS, CLOUD] {
            observed.not_examined.insert(step, cut.clone());
        }
        let limit = Instant::now() + LIMIT;
        let work = self.observe_within(sources, cluster, &mut observed, limit, stop);
        // What was cut short is among the steps that have not ended.
        let _ = tokio::time::timeout_at(limit, work).await;
        observed.active_manager.unreadable = observed.not_examined.get(LEADER).cloned();
        observed
    }

    async fn observe_within(
        &self,
        sources: &ReportSources,
        cluster: &ObservedCluster,
        observed: &mut Observations,
        limit: Instant,
        stop: &CancellationToken,
    ) {
        // First, what the caches show without a request.
        let running = self.running_controllers(&mut observed.findings);
        let creates_routes = running.contains(names::NODE_ROUTE);
        self.check_caches(cluster, creates_routes, observed);

        // Next, the API server: who manages the cluster, and what this manager may do.
        match self.check_client() {
            Ok(api) => self.ask_api_server(&api, &running, observed).await,
            Err(error) => {
                for step in [LEADER, PERMISSIONS, DELETIONS] {
                    observed.ended(step, Some(chain(&error)));
                }
            }
        }

        // Last, the cloud.
        let failed = self.find_orphans(sources, &mut observed.defects).await;
        observed.ended(ORPHANS, failed);
        let op = self.check_op(limit, stop);
        let services = running
            .contains(names::SERVICE_LB)
            .then_some(&*cluster.services);
        let checked = CheckedCluster { nodes: &cluster.nodes, services, creates_routes };
        observed.cloud = self.provider.check(&op, checked).await;
        observed.ended(CLOUD, None);
    }

    /// Returns the controllers that can run. Adds a finding for each other one that is enabled.
    fn running_controllers(&self, findings: &mut Vec<Finding>) -> BTreeSet<&'static str> {
        let mut running = BTreeSet::new();
        for (name, reason) in self.controllers_to_check() {
            match reason {
                Ok(()) => {
                    running.insert(name);
                }
                Err(reason) => findings.push(reason.about(name, format!("{name} does not run"))),
            }
        }
        running
    }

    /// Adds the findings of `check` about Nodes and Services that the caches show.
    fn check_caches(
        &self,
        cluster: &ObservedCluster,
        creates_routes: bool,
        observed: &mut Observations,
    ) {
        let cidrs: &[_] = if creates_routes {
            &self.config.generic.cluster_cidrs
        } else {
            &[]
        };
        observed
            .findings
            .extend(cluster::check_nodes(&cluster.all_nodes, cidrs));
        observed
            .defects
            .extend(defects::of_nodes(&cluster.nodes, self.clock.now()));
        let (Some(balancers), Some(fields)) =
            (self.provider.load_balancers(), &cluster.service_fields)
        else {
            return;
        };
        let managed = cluster
            .services
            .iter()
            .filter(|service| fields.is_managed(service));
        let read: Vec<_> = managed
            .map(|service| read_service(balancers, service))
            .collect();
        observed.findings.extend(services::check_served(&read));
        let mut finalizers = services::check_finalizers(&cluster.all_services, fields);
        // The deletions that this manager would finish are among the differences.
        finalizers.retain(services::is_of_other_class);
        observed.findings.extend(finalizers);
    }

    async fn ask_api_server(
        &self,
        api: &ApiClient,
        running: &BTreeSet<&'static str>,
        observed: &mut Observations,
    ) {
        // First, who leads.
        let failed = self.read_leader(api, &mut observed.active_manager).await;
        observed.ended(LEADER, failed);

        // Next, the permissions of the user of this process.
        observed.user = requests::own_user(api).await;
        let asked = self
            .check_permissions(api, running, &observed.permissions)
            .await;
        let failed = match asked {
            Ok(Some(_)) => None,
            Ok(None) => Some("the API server did not answer: see the finding".to_owned()),
            Err(error) => Some(chain(&error)),
        };
        observed.ended(PERMISSIONS, failed);

        // Last, the Services that no cache has if the service controller does not run.
        if running.contains(names::SERVICE_LB) {
            observed.ended(DELETIONS, None);
            return;
        }
        let failed = match requests::services_being_deleted(api).await {
            Ok(unserved) => {
                observed
                    .findings
                    .extend(services::check_unserved(&unserved));
                None
            }
            Err(error) => Some(chain(&error)),
        };
        observed.ended(DELETIONS, failed);
    }

    /// Reads who leads. Returns why that failed.
    async fn read_leader(&self, api: &ApiClient, manager: &mut ActiveManager) -> Option<String> {
        let election = &self.config.leader_election;
        if !election.enabled {
            return None;
        }
        let (namespace, name) = (&election.resource_namespace, &election.resource_name);
        match requests::lease(api, namespace, name).await {
            Ok(lease) => {
                manager.holder = lease.live_holder(self.clock.now()).map(str::to_owned);
                None
            }
            Err(error) if error.is_not_found() => None,
            Err(error) => Some(chain(&error)),
        }
    }

    /// Searches for orphans. Returns why nothing can be said about them.
    async fn find_orphans(
        &self,
        sources: &ReportSources,
        defects: &mut Vec<FoundDefect>,
    ) -> Option<String> {
        let Some(scanner) = &sources.orphans else {
            let reason = "the provider lists no objects, or the service controller does not run";
            return Some(reason.to_owned());
        };
        if !self.provider.has_cluster_id() {
            return Some("the provider has no cluster ID".to_owned());
        }
        let scan = match scanner.scan().await {
            Ok(scan) => scan,
            Err(error) => return Some(chain(&error)),
        };
        if let Some(reason) = self.doubt_orphans(scanner, &scan) {
            let count = scan.orphans.len();
            return Some(format!(
                "{count} look so, but another cluster may have the same ID: {reason}"
            ));
        }
        defects.extend(defects::of_orphans(&scan.orphans));
        None
    }

    /// Returns why the orphans may be the objects of another cluster: the reason for which they
    /// would not be deleted automatically.
    fn doubt_orphans(&self, scanner: &OrphanScanner, scan: &OrphanScan) -> Option<&'static str> {
        if scan.orphans.is_empty() {
            return None;
        }
        let confirmed = &self.config.orphans.collect_confirm;
        refuse_cluster(&scanner.cluster_id(), confirmed)
            .or_else(|| refuse_collection(scan.orphans.len(), scan.with_owner, &scan.live_owners))
    }

    fn assemble(
        &self,
        cluster: &ObservedCluster,
        observed: Observations,
        verdict: Verdict,
        measured: Vec<MeasuredCalls>,
    ) -> AdoptionReport {
        let (changes, not_compared, notices, summary) = {
            let report = self.shadow_report.lock();
            let changes: Vec<_> = report.differences().cloned().collect();
            let not_compared = report.uncompared().cloned().collect();
            let notices = report.notices().cloned().collect();
            (changes, not_compared, notices, report.summary())
        };
        let inputs = self.estimate_inputs(cluster);
        let now = self.clock.now();
        let mut defects = defects::of_differences(&changes, now);
        defects.extend(observed.defects);
        defects.sort();
        let failed = |step: &str| observed.not_examined.get(step).cloned();
        AdoptionReport {
            format_version: FORMAT_VERSION,
            at: now,
            manager: ReportingManager {
                name: self.product.binary,
                version: self.product.version,
                provider: self.provider.name().to_owned(),
            },
            cluster: ReportedCluster {
                name: self.config.generic.cluster_name.clone(),
                api_server: self.host.clone(),
            },
            verdict: adoption::verdict_name(verdict),
            served: self.served(cluster, &changes, summary.compared.get("routes").copied()),
            summary,
            way_back: adoption::way_back(
                observed.active_manager.lease.as_deref(),
                !changes.is_empty(),
            ),
            changes,
            not_compared,
            notices,
            permissions: self.permissions(observed.user, observed.permissions, failed(PERMISSIONS)),
            active_manager: observed.active_manager,
            cloud: CloudFindings {
                findings: adoption::problems(&observed.cloud),
                not_examined: failed(CLOUD),
            },
            findings: adoption::problems(&observed.findings),
            defects,
            not_examined: self.not_examined(&observed.not_examined),
            estimate: estimate::estimate(inputs, measured),
        }
    }

    fn permissions(
        &self,
        user: Option<String>,
        report: Report,
        not_examined: Option<String>,
    ) -> Permissions {
        let findings = report.into_findings();
        Permissions {
            user,
            has_service_accounts: self.config.generic.use_service_account_credentials,
            findings: findings.iter().map(FindingRow::from).collect(),
            not_examined,
        }
    }

    /// Says what was not examined, and why.
    fn not_examined(&self, steps: &BTreeMap<&'static str, String>) -> Vec<String> {
        let mut texts: Vec<_> = steps
            .iter()
            .map(|(step, reason)| format!("{step}: {reason}"))
            .collect();
        for controller in self.provider.controllers() {
            if self.is_enabled(controller.name) {
                let name = controller.name;
                texts.push(format!("the changes of {name}, a controller of the cloud provider"));
            }
        }
        texts
    }

    fn served(
        &self,
        cluster: &ObservedCluster,
        changes: &[Difference],
        routes: Option<usize>,
    ) -> Served {
        let controllers = self.compared_controllers();
        let services = cluster.served_services.iter();
        let services = services.map(|service| adoption::served_service(service, changes));
        let has_services = controllers.contains(&names::SERVICE_LB);
        let nodes = cluster.nodes.iter();
        Served {
            services: has_services.then(|| services.collect()),
            controllers,
            nodes: nodes
                .map(|node| adoption::served_node(node, changes))
                .collect(),
            routes,
        }
    }

    /// Returns the controllers that were compared.
    fn compared_controllers(&self) -> Vec<&'static str> {
        self.controllers_to_check()
            .into_iter()
            .filter(|(_, reason)| reason.is_ok())
            .map(|(name, _)| name)
            .collect()
    }

    fn estimate_inputs(&self, cluster: &ObservedCluster) -> EstimateInputs {
        let config = &self.config;
        let running = self.compared_controllers();
        let period_of = |name: &str, period: Duration| {
            let is_running = running.contains(&name);
            is_running.then(|| estimate::seconds(period)).flatten()
        };
        let has_repeated_types = |node: &&Arc<NodeView>| {
            let kinds: BTreeSet<_> = node.addresses.iter().map(|a| a.kind.as_str()).collect();
            kinds.len() < node.addresses.len()
        };
        let foreign = || {
            let all = cluster.all_nodes.iter();
            all.filter(|node| node.ownership != NodeOwnership::Ours)
        };
        let is_watched = config.feature_gates.is_enabled(WATCH_BASED_ROUTES);
        let go_route_period = period_of(names::NODE_ROUTE, config.route.reconciliation_period);
        let instances = self.provider.instances();
        let searches_orphans =
            running.contains(&names::SERVICE_LB) && self.provider.inventory().is_some();
        EstimateInputs {
            nodes: cluster.nodes.len(),
            not_ready_nodes: cluster.nodes.iter().filter(|node| !node.is_ready()).count(),
            foreign_nodes: foreign().count(),
            foreign_not_ready_nodes: foreign().filter(|node| !node.node.is_ready()).count(),
            nodes_with_repeated_address_types: cluster
                .nodes
                .iter()
                .filter(has_repeated_types)
                .count(),
            services: cluster
                .served_services
                .iter()
                .filter(|service| service.is_load_balancer)
                .count(),
            instances_per_call: instances.map_or(1, |i| i.limits().max_batch.get()),
            node_status_update_seconds: period_of(
                names::CLOUD_NODE,
                config.node.status_update_frequency,
            ),
            node_monitor_seconds: period_of(
                names::CLOUD_NODE_LIFECYCLE,
                config.node_lifecycle.monitor_period,
            ),
            route_seconds: if is_watched {
                period_of(names::NODE_ROUTE, WATCH_BASED_PERIOD)
            } else {
                go_route_period
            },
            go_route_seconds: go_route_period.filter(|_| !is_watched),
            load_balancer_verify_seconds: period_of(
                names::SERVICE_LB,
                config.service.verify_period,
            ),
            orphan_report_seconds: estimate::seconds(config.orphans.report_period)
                .filter(|_| searches_orphans),
            leases: self.lease_names().len(),
            lease_retry_seconds: estimate::seconds(config.leader_election.retry_period)
                .filter(|_| config.leader_election.enabled),
        }
    }
}

fn read_service(balancers: &dyn LoadBalancers, service: &Arc<ServiceView>) -> ReadService {
    ReadService {
        interpretation: balancers.interpret(service),
        // They are in the comparison already.
        notices: Vec::new(),
        service: service.clone(),
    }
}

/// Reads from the metrics which calls of the cloud this process has made.
fn measured_calls(manager: &Manager) -> Vec<MeasuredCalls> {
    page_metrics::cloud_calls(&manager.registry.gather())
        .into_iter()
        .map(|(operation, calls, objects)| MeasuredCalls { operation, calls, objects })
        .collect()
}
