//! How many requests the whole manager makes for a cluster of some size: the numbers are a promise,
//! which the table "AWS calls" of `docs/benchmarks.md` repeats. Clusters are smaller in the quick
//! tier.

use std::time::Duration;

use ccm_testkit::kubelet::Ready;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use super::cluster::{Cluster, MINUTE, Running};
use crate::api::Action;
use ccm_testkit::suite::sized;

/// Period of the comparison of each balancer with AWS. The check of one balancer is due after 0.75
/// to 1.25 of it.
const CHECK: Duration = Duration::from_secs(6 * 3600);

/// How often each operation was requested, by name.
type Tally = Vec<(&'static str, usize)>;

impl Cluster {
    /// Counts the requests since the last count.
    fn tally(&self, what: &str) -> Tally {
        let mut tally = Tally::new();
        let mut actions: Vec<_> = self
            .world
            .aws
            .actions()
            .into_iter()
            .map(Action::name)
            .collect();
        actions.sort_unstable();
        for same in actions.chunk_by(|a, b| a == b) {
            tally.push((same[0], same.len()));
        }
        self.world.aws.reset_calls();
        // Shown by `--nocapture`.
        println!("{what}: {} requests, {tally:?}", sum(&tally));
        tally
    }

    /// The manager without routes. Addresses of nodes are not refreshed, so that what Services cost
    /// stands alone.
    async fn serving(&self) -> Running {
        let check = format!("--load-balancer-verify-period={}s", CHECK.as_secs());
        let controllers = "--controllers=cloud-node,cloud-node-lifecycle,service";
        // The search for orphans, a handful of calls a day, is counted nowhere.
        let flags = ["--node-status-update-frequency=24h", "--orphan-report-period=0s"];
        self.start(&[&[controllers, &check][..], &flags].concat())
            .await
    }

    async fn serve_network(&self, name: &str) {
        self.serve(name, &json!({"service.beta.kubernetes.io/aws-load-balancer-type": "nlb"}))
            .await;
    }

    /// Waits until so many Services have a host name.
    async fn until_served(&self, wanted: usize) {
        let wait = async {
            loop {
                let services = self
                    .services()
                    .list(&ListParams::default())
                    .await
                    .unwrap()
                    .items;
                let shown = services
                    .iter()
                    .filter_map(|s| s.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref());
                if shown.filter(|ingress| !ingress.is_empty()).count() == wanted {
                    break;
                }
                tokio::time::sleep(5 * MINUTE).await;
            }
        };
        assert!(
            tokio::time::timeout(120 * MINUTE, wait).await.is_ok(),
            "{wanted} Services are not served"
        );
        tokio::time::sleep(MINUTE).await;
    }

    /// A cluster with this many nodes and Services, all served.
    async fn served(nodes: usize, services: usize) -> (Self, Running) {
        let cluster = Self::quiet(nodes);
        cluster.world.aws.quotas(|quotas| {
            quotas.load_balancers = 1000;
            quotas.rules_per_security_group = 10_000;
        });
        let running = cluster.serving().await;
        cluster.join(|_, spec| spec).await;
        cluster.until_initialized().await;
        for n in 0..services {
            cluster.serve_network(&format!("web{n}")).await;
        }
        cluster.until_served(services).await;
        (cluster, running)
    }
}

fn sum(tally: &Tally) -> usize {
    tally.iter().map(|(_, count)| count).sum()
}

/// Takes the requests about instances out: those that the node itself costs.
fn without_instances(tally: Tally) -> (Tally, usize) {
    let (instances, rest): (Tally, Tally) = tally
        .into_iter()
        .partition(|(name, _)| *name == "DescribeInstances");
    (rest, sum(&instances))
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_take_twenty_requests_to_initialize_and_a_dozen_an_hour() {
    let count = sized(200, 1000).unwrap();
    let cluster = Cluster::quiet(count);
    let _running = cluster
        .start(&["--controllers=cloud-node,cloud-node-lifecycle"])
        .await;
    let names = cluster.join(|_, spec| spec).await;
    assert_eq!(names.len(), count);
    cluster.until_initialized().await;
    let made = cluster.tally(&format!("initialise {count} nodes"));
    assert!(sum(&made) <= 20, "{made:?}");

    // Addresses are refreshed every five minutes, by one look at all instances.
    tokio::time::sleep(60 * MINUTE).await;
    let hour = cluster.tally(&format!("an hour of {count} nodes"));
    assert!(sum(&hour) <= 13, "{hour:?}");

    // A node that is not ready is asked about every five seconds; answers are believed for ten.
    cluster
        .kubelets
        .set_ready(&names[0], Ready::Unknown)
        .await
        .unwrap();
    tokio::time::sleep(10 * MINUTE).await;
    let unready = cluster.tally(&format!("ten minutes of {count} nodes, one of them not ready"));
    assert!(sum(&unready) <= 62, "{unready:?}");
}

#[tokio::test(start_paused = true)]
async fn a_balancer_with_one_port_takes_at_most_seven_requests() {
    let (cluster, _running) = Cluster::served(3, 0).await;
    cluster.tally("initialise 3 nodes");
    cluster.serve_network("first").await;
    tokio::time::sleep(MINUTE).await;
    let first = cluster.tally("create the first load balancer");
    assert!(
        sum(&first) <= 10,
        "subnets, route tables, zones and security groups besides: {first:?}"
    );

    cluster.serve_network("second").await;
    tokio::time::sleep(MINUTE).await;
    let second = cluster.tally("create a load balancer");
    assert!(sum(&second) <= 7, "{second:?}");

    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(cluster.tally("ten minutes"), []);
    cluster.serve_network("later").await;
    tokio::time::sleep(MINUTE).await;
    let later = cluster.tally("create a load balancer after a pause");
    assert!(
        sum(&later) <= 8,
        "subnets and route tables are read again after five minutes: {later:?}"
    );
    cluster.until_served(3).await;

    cluster
        .services()
        .delete("second", &DeleteParams::default())
        .await
        .unwrap();
    tokio::time::sleep(10 * MINUTE).await;
    assert!(
        cluster
            .services()
            .get_opt("second")
            .await
            .unwrap()
            .is_none()
    );
    let deleted = cluster.tally("delete a load balancer");
    assert!(sum(&deleted) <= 12, "{deleted:?}");
}

#[tokio::test(start_paused = true)]
async fn three_hundred_services_cost_nothing_but_what_changes() {
    let count = sized(40, 300).unwrap();
    let (mut cluster, running) = Cluster::served(3, count).await;
    let made = cluster.tally(&format!("create {count} load balancers"));
    assert!(sum(&made) <= 7 * count, "{made:?}");

    tokio::time::sleep(120 * MINUTE).await;
    assert_eq!(cluster.tally("nothing happens for two hours"), []);

    cluster.grow().await;
    cluster.until_initialized().await;
    tokio::time::sleep(4 * MINUTE).await;
    let (added, instances) = without_instances(cluster.tally("a node is added"));
    assert_eq!(added, [("RegisterTargets", count)]);
    assert!(instances <= 2, "{instances}");

    cluster.end(&cluster.world.nodes[1]).await;
    cluster
        .until("the node is gone", |nodes| nodes.len() == 3)
        .await;
    tokio::time::sleep(4 * MINUTE).await;
    let (removed, instances) = without_instances(cluster.tally("a node is removed"));
    assert_eq!(removed, [("DeregisterTargets", count)]);
    assert!(instances <= 20, "{instances}");

    drop(running);
    let _running = cluster.serving().await;
    tokio::time::sleep(10 * MINUTE).await;
    let restart = cluster.tally("restart");
    assert!(sum(&restart) <= 2 * count + count / 10 + 20, "{restart:?}");

    // Each balancer has its turn once.
    tokio::time::sleep(CHECK.mul_f64(1.25)).await;
    let (check, _) =
        without_instances(cluster.tally(&format!("compare {count} load balancers with AWS")));
    let health = check
        .iter()
        .find(|(name, _)| *name == "DescribeTargetHealth");
    assert_eq!(health, Some(&("DescribeTargetHealth", count)));
    assert!(sum(&check) <= 10 * count, "{check:?}");
    assert_eq!(cluster.world.aws.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pass_over_routes_takes_one_request() {
    let cluster = Cluster::quiet(40);
    let flags = [
        "--controllers=cloud-node,route",
        "--configure-cloud-routes=true",
        "--cluster-cidr=10.244.0.0/16",
    ];
    let _running = cluster
        .start(&[&flags[..], &["--node-status-update-frequency=24h"]].concat())
        .await;
    cluster
        .join(|i, spec| spec.pod_cidr(format!("10.244.{i}.0/24")))
        .await;
    cluster.until_initialized().await;
    let aws = &cluster.world.aws;
    cluster
        .until("all routes are there", |_| aws.calls(Action::CreateRoute) == 40)
        .await;
    tokio::time::sleep(MINUTE).await;
    let made = cluster.tally("initialise 40 nodes and make their routes");
    assert!(sum(&made) <= 2 * 40 + 20, "{made:?}");
    tokio::time::sleep(10 * MINUTE).await;
    let passes = cluster.tally("ten minutes of routes, a pass every ten seconds");
    let [("DescribeRouteTables", 59..=61)] = passes[..] else {
        panic!("{passes:?}")
    };
}
