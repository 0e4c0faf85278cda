//! Properties of every plan, over random clusters and route tables.

use proptest::prelude::*;

use super::{
    tests::{node, route},
    *,
};

const CLUSTER: &str = "10.244.0.0/16";

/// Few enough networks that nodes and routes meet: inside and outside the cluster, wide and narrow,
/// and no network at all.
const CIDRS: [&str; 10] = [
    "10.244.0.0/24",
    "10.244.0.1/24",
    "10.244.1.0/24",
    "10.244.1.0/25",
    "10.244.2.0/24",
    "10.244.0.0/16",
    "10.244.0.0/15",
    "10.1.0.0/24",
    "fd00::/64",
    "nonsense",
];
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

#[derive(Clone, Debug)]
struct Cluster {
    ours: Vec<Arc<NodeView>>,
    foreign: Vec<Arc<NodeView>>,
    routes: Vec<Route>,
}

impl Cluster {
    fn plan(&self) -> RoutePlan {
        let cluster = [CLUSTER.parse().unwrap()];
        let ours = &self.ours;
        let foreign = &self.foreign;
        let routes = &self.routes;
        plan(&PlanInput {
            ours,
            foreign,
            routes,
            cluster: &cluster,
            failures: &ChangeBackoff::default(),
            now: Duration::ZERO,
        })
    }

    /// Carries out the plan as the controller does; a change fails when `fails` says so.
    fn apply(&mut self, plan: &RoutePlan, mut fails: impl FnMut() -> bool) {
        for step in &plan.steps {
            let mut gone = true;
            for obsolete in &step.delete {
                if fails() {
                    gone = false;
                } else {
                    self.routes.retain(|route| route != obsolete);
                }
            }
            if let Some(node) = step.create.as_ref().filter(|_| gone && !fails()) {
                self.routes
                    .push(route(&format!("{} {}", node.name, step.destination)));
            }
        }
    }
}

fn clusters() -> impl Strategy<Value = Cluster> {
    let cidrs = || prop::collection::vec(prop::sample::select(&CIDRS[..]), 0..3);
    let nodes = prop::collection::vec((any::<bool>(), cidrs()), 0..=5);
    let networks = &CIDRS[..9];
    let targets = prop::sample::select(vec!["a", "b", "c", "d", "e", "f", "-"]);
    let listed = (targets, prop::sample::select(networks), prop::bool::weighted(0.2));
    let routes = prop::collection::btree_set(listed, 0..12);
    (nodes, routes).prop_map(|(nodes, listed)| {
        let mut cluster = Cluster { ours: Vec::new(), foreign: Vec::new(), routes: Vec::new() };
        for ((is_foreign, cidrs), name) in nodes.into_iter().zip(NAMES) {
            let list = if is_foreign {
                &mut cluster.foreign
            } else {
                &mut cluster.ours
            };
            list.push(node(name, &cidrs));
        }
        for (target, destination, blackhole) in listed {
            let mark = if blackhole { " !" } else { "" };
            let mut listed = route(&format!("{target} {destination}{mark}"));
            listed.destination = listed.destination.trunc();
            cluster.routes.push(listed);
        }
        cluster
    })
}

/// Returns true if two networks have an address in common, the slow way.
fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

proptest! {
    #[test]
    fn planning_on_its_own_result_changes_nothing(mut cluster in clusters()) {
        let plan = cluster.plan();
        cluster.apply(&plan, || false);
        let again = cluster.plan();
        prop_assert_eq!(&again.steps, &[]);
        prop_assert_eq!(&again.backed_off, &[]);
        // What was promised is what is there, and who was refused stays so.
        prop_assert_eq!(&again.rejected_cidrs, &plan.rejected_cidrs);
        for after in &again.nodes {
            let before = plan.nodes.iter().find(|before| before.node == after.node).unwrap();
            prop_assert_eq!(network_status(before, |_| CreateResult::Created), network_status(after, |_| CreateResult::Failed));
        }
    }

    #[test]
    fn the_order_of_nodes_and_routes_does_not_matter(cluster in clusters(), seed in any::<u64>()) {
        let plan = cluster.plan();
        let mut shuffled = cluster;
        let mut seed = seed | 1;
        let mut next = |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            usize::try_from(seed % u64::try_from(n).unwrap()).unwrap()
        };
        for i in (1..shuffled.ours.len()).rev() {
            shuffled.ours.swap(i, next(i + 1));
        }
        for i in (1..shuffled.routes.len()).rev() {
            shuffled.routes.swap(i, next(i + 1));
        }
        shuffled.foreign.reverse();
        prop_assert_eq!(shuffled.plan(), plan);
    }

    #[test]
    fn nothing_foreign_is_touched(cluster in clusters()) {
        let plan = cluster.plan();
        let own: IpNet = CLUSTER.parse().unwrap();
        let theirs: Vec<IpNet> = cluster.foreign.iter().flat_map(|n| n.pod_cidrs.iter()).filter_map(|c| network(c)).collect();
        for step in &plan.steps {
            prop_assert!(own.contains(&step.destination), "{}", step.destination);
            prop_assert!(!theirs.iter().any(|net| overlap(net, &step.destination)), "{}", step.destination);
            for gone in &step.delete {
                prop_assert!(!cluster.foreign.iter().any(|node| Some(&node.name) == gone.node.as_ref()));
            }
            if let Some(node) = &step.create {
                prop_assert!(cluster.ours.contains(node));
                prop_assert!(node.pod_cidrs.iter().any(|cidr| network(cidr) == Some(step.destination)));
            }
        }
    }

    #[test]
    fn whatever_fails_it_ends_where_it_would_have_ended(cluster in clusters(), fails in prop::collection::vec(any::<bool>(), 40)) {
        let mut smooth = cluster.clone();
        let plan = smooth.plan();
        smooth.apply(&plan, || false);
        let mut rough = cluster;
        let mut fails = fails.into_iter();
        // Every change is tried again until the failures are used up.
        for _ in 0..100 {
            let plan = rough.plan();
            rough.apply(&plan, || fails.next().unwrap_or(false));
            // In between no destination ever leads to two nodes that were not both listed in the
            // beginning.
            for step in &plan.steps {
                let mut targets: Vec<_> = rough.routes.iter().filter(|r| r.destination == step.destination).map(|r| &r.node).collect();
                targets.dedup();
                prop_assert!(targets.len() <= 1 || !step.delete.is_empty());
            }
        }
        let sorted = |mut routes: Vec<Route>| {
            routes.sort_by(|a, b| a.name.cmp(&b.name));
            routes
        };
        prop_assert_eq!(sorted(rough.routes), sorted(smooth.routes));
    }

    /// Of all nodes with one network at most one has a route, and it is never taken from it.
    #[test]
    fn a_route_that_works_stays_where_it_is(cluster in clusters()) {
        let plan = cluster.plan();
        for step in &plan.steps {
            let works = |gone: &&Route| {
                !gone.blackhole && cluster.ours.iter().any(|node| {
                    gone.node.as_ref() == Some(&node.name) && node.pod_cidrs.iter().any(|c| network(c) == Some(step.destination))
                })
            };
            for gone in step.delete.iter().filter(works) {
                let others = cluster.routes.iter().filter(|r| r.destination == step.destination && *r != gone);
                prop_assert!(others.filter(works).count() > 0 && step.create.is_none(), "{gone:?}");
            }
        }
    }
}
