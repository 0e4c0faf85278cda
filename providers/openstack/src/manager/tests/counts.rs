//! How many requests the whole manager makes for a cluster of some size: the numbers are a promise,
//! which the table "OpenStack calls" of `docs/benchmarks.md` repeats.

use std::{collections::BTreeMap, time::Duration};

use super::cluster::{Cluster, MINUTE, Running};
use ccm_testkit::suite::sized;

/// How long a balancer takes to be made, and for a change, with virtual machines behind it.
const MAKING: Duration = Duration::from_secs(40);
const CHANGING: Duration = Duration::from_secs(4);

/// How often each request was made.
struct Tally(BTreeMap<String, usize>);

impl Tally {
    fn sum(&self) -> usize {
        self.0.values().sum()
    }

    fn of(&self, request: &str) -> usize {
        self.0.get(request).copied().unwrap_or_default()
    }

    /// Takes out requests that ask whether balancers are ready.
    fn without_polls(mut self) -> (Self, usize) {
        let polls = [
            "octavia GET loadbalancers/{id}",
            "octavia GET loadbalancers?tags-any",
            "octavia GET loadbalancers",
        ];
        let found = polls.iter().filter_map(|poll| self.0.remove(*poll)).sum();
        (self, found)
    }

    /// Takes out looks at the router.
    fn without_passes(mut self) -> (Self, usize) {
        let passes = self
            .0
            .remove("neutron GET routers/{id}")
            .unwrap_or_default();
        (self, passes)
    }

    /// Takes out requests about servers and their ports: those that a node itself costs.
    fn without_nodes(mut self) -> (Self, usize) {
        let before = self.sum();
        self.0.retain(|request, _| {
            !request.starts_with("nova") && !request.starts_with("neutron GET ports")
        });
        let left = self.sum();
        (self, before - left)
    }
}

impl std::fmt::Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Cluster {
    /// Counts the requests since the last count, without those for tokens and versions.
    fn tally(&self, what: &str) -> Tally {
        let journal = &self.stage.cloud.cloud().journal;
        let (mut tally, mut seconds) = (BTreeMap::new(), BTreeMap::<i64, usize>::new());
        let entries = journal.entries();
        for entry in &entries {
            let Some((service, route)) = shortened(&entry.route) else {
                continue;
            };
            let filter = ["name=", "tags-any=", "loadbalancer_id=", "port_id=", "device_id="];
            let filter = filter.iter().find(|filter| {
                entry
                    .query
                    .split('&')
                    .any(|pair| pair.starts_with(**filter))
            });
            let filter = filter
                .map(|filter| format!("?{}", &filter[..filter.len() - 1]))
                .unwrap_or_default();
            *tally
                .entry(format!("{service} {} {route}{filter}", entry.method))
                .or_default() += 1;
            *seconds.entry(entry.at.as_second()).or_default() += 1;
        }
        journal.clear();
        let tally = Tally(tally);
        // Shown by `--nocapture`.
        let (most, took) = (seconds.values().max(), entries.first().zip(entries.last()));
        let took = took.map(|(first, last)| last.at.duration_since(first.at));
        println!(
            "{what}: {} requests, at most {most:?} a second, {took:?}: {tally:#?}",
            tally.sum()
        );
        tally
    }

    /// The manager without routes. Addresses of nodes are not refreshed and orphans not looked for,
    /// which takes two lists each time, so that what Services cost stands alone.
    async fn serving(&self) -> Running {
        let controllers = "--controllers=cloud-node,cloud-node-lifecycle,service";
        let periods = [
            "--node-status-update-frequency=24h",
            "--load-balancer-verify-period=6h",
            "--orphan-report-period=0s",
        ];
        self.start(&[&[controllers], &periods[..]].concat()).await
    }

    /// A cluster with this many nodes and Services, all served.
    async fn served(nodes: usize, services: usize) -> (Self, Running) {
        let cluster = Self::new(nodes).await;
        let running = cluster.serving().await;
        cluster.join(|_, spec| spec).await;
        cluster.until_initialized().await;
        cluster.pending(MAKING).await;
        cluster.tally("start");
        for n in 0..services {
            cluster.serve(&format!("web{n}")).await;
        }
        cluster.until_served(services).await;
        cluster.pending(CHANGING).await;
        (cluster, running)
    }
}

/// Names the service of a route, and what is left of it; nothing of those that open a service.
fn shortened(route: &str) -> Option<(&'static str, &str)> {
    let services = [
        ("/load-balancer/v2.0/lbaas/", "octavia"),
        ("/network/v2.0/", "neutron"),
        ("/compute/v2.1/", "nova"),
    ];
    services
        .iter()
        .find_map(|(prefix, service)| Some((*service, route.strip_prefix(prefix)?)))
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_take_a_few_lists_of_servers() {
    let nodes = sized(150, 1000).unwrap();
    let cluster = Cluster::new(nodes).await;
    let _running = cluster
        .start(&["--controllers=cloud-node,cloud-node-lifecycle"])
        .await;
    cluster.join(|_, spec| spec).await;
    cluster.until_initialized().await;
    let made = cluster.tally(&format!("initialise {nodes} nodes"));
    assert!(made.of("nova GET servers/detail") <= 5, "{made:?}");
    assert!(made.sum() <= 8, "{made:?}");

    // Addresses are refreshed every five minutes: a thousand servers are a page and an empty one.
    tokio::time::sleep(60 * MINUTE).await;
    let hour = cluster.tally(&format!("an hour of {nodes} nodes"));
    assert!(hour.sum() <= 39, "{hour:?}");
}

#[tokio::test(start_paused = true)]
async fn a_balancer_with_one_port_takes_at_most_six_requests_beside_polls() {
    let (cluster, _running) = Cluster::served(3, 0).await;
    cluster.pending(MAKING).await;
    cluster.serve("first").await;
    cluster.until_served(1).await;
    let (first, polls) = cluster
        .tally("create the first load balancer")
        .without_polls();
    assert!(first.sum() <= 4, "{first:?}");
    assert!((6..=12).contains(&polls), "it is looked at as often as ever: {polls}");
    cluster.serve("second").await;
    cluster.until_served(2).await;
    let (second, _) = cluster.tally("create a load balancer").without_polls();
    assert!(second.sum() <= 3, "{second:?}");

    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(cluster.tally("ten minutes").sum(), 0);

    cluster.pending(CHANGING).await;
    cluster.withdraw(&["second".to_owned()]).await;
    let (deleted, polls) = cluster.tally("delete a load balancer").without_polls();
    assert!(deleted.sum() <= 4, "{deleted:?}");
    assert!(polls <= 6, "the first look is among them: {polls}");
}

#[tokio::test(start_paused = true)]
async fn three_hundred_services_cost_nothing_but_what_changes() {
    let services = sized(40, 300).unwrap();
    let (mut cluster, running) = Cluster::served(3, services).await;
    let (made, polls) = cluster
        .tally(&format!("create {services} load balancers"))
        .without_polls();
    assert!(made.sum() <= 3 * services + 1, "{made:?}");
    assert!(polls <= 60, "{polls}");

    tokio::time::sleep(120 * MINUTE).await;
    assert_eq!(cluster.tally("nothing happens for two hours").sum(), 0);

    cluster.grow().await;
    cluster.until_initialized().await;
    tokio::time::sleep(4 * MINUTE).await;
    let (added, polls) = cluster.tally("a node is added").without_polls();
    let (added, nodes) = added.without_nodes();
    assert_eq!(
        (added.of("octavia PUT pools/{pool}/members"), added.sum()),
        (services, services),
        "{added:?}"
    );
    assert!(polls <= 30 && nodes <= 2, "{polls} {nodes}");

    drop(running);
    let _running = cluster.serving().await;
    tokio::time::sleep(10 * MINUTE).await;
    let restart = cluster.tally("restart");
    assert_eq!(restart.of("octavia GET pools/{pool}/members"), services, "{restart:?}");
    assert!(restart.sum() <= services + 25, "{restart:?}");

    cluster.end(&cluster.servers[1]).await;
    cluster
        .until("the node is gone", |nodes| nodes.len() == 3)
        .await;
    tokio::time::sleep(4 * MINUTE).await;
    let (removed, polls) = cluster.tally("a node is removed").without_polls();
    let (removed, nodes) = removed.without_nodes();
    assert_eq!(
        (removed.of("octavia PUT pools/{pool}/members"), removed.sum()),
        (services, services),
        "{removed:?}"
    );
    assert!(polls <= 30 && nodes <= 10, "{polls} {nodes}");

    let names: Vec<String> = (0..services).map(|n| format!("web{n}")).collect();
    cluster.withdraw(&names).await;
    let (deleted, polls) = cluster
        .tally(&format!("delete {services} load balancers"))
        .without_polls();
    assert!(deleted.sum() <= 4 * services + 1, "{deleted:?}");
    // Each is looked at before it is deleted, and asked for alone before it counts as gone.
    assert!(polls <= 2 * services + 30, "{polls}");
}

#[tokio::test(start_paused = true)]
async fn routes_cost_one_request_a_pass() {
    let nodes = sized(60, 300).unwrap();
    let cluster = Cluster::new(nodes).await;
    let flags =
        ["--controllers=cloud-node,cloud-node-lifecycle,route", "--cluster-cidr=10.240.0.0/12"];
    let _running = cluster
        .start(&[&flags[..], &["--node-status-update-frequency=24h"]].concat())
        .await;
    cluster
        .join(|n, spec| spec.pod_cidr(format!("10.{}.{}.0/24", 240 + n / 250, n % 250)))
        .await;
    cluster.until_initialized().await;
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(cluster.stage.router().routes.len(), nodes);
    let (made, passes) = cluster
        .tally(&format!("initialise {nodes} nodes and make their routes"))
        .without_passes();
    assert_eq!(made.of("neutron PUT ports/{id}"), nodes, "pairs of each node's port: {made:?}");
    assert!(made.sum() <= nodes + 25, "{made:?}");
    assert!(passes <= 40, "{passes}");

    tokio::time::sleep(10 * MINUTE).await;
    let (nothing, passes) = cluster
        .tally("ten minutes of routes, a pass every ten seconds")
        .without_passes();
    assert!(nothing.sum() == 0 && (59..=61).contains(&passes), "{nothing:?} {passes}");

    cluster.end(&cluster.servers[7]).await;
    cluster
        .until("the node is gone", |left| left.len() == nodes - 1)
        .await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(cluster.stage.router().routes.len(), nodes - 1);
    let (gone, passes) = cluster.tally("a node with a route goes").without_passes();
    assert!(gone.sum() <= 6 && passes <= 20, "{gone:?} {passes}");
}
