//! How far a manager is.

use std::{collections::HashSet, time::Duration};

use kube::Client;
use tokio::time::Instant;

use crate::{
    scenario::Scenario,
    watch::{Change, Node, Service, Watch, Watched},
};

/// When each part was done, from the start of the manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The last node without its taint and with addresses.
    pub(crate) nodes: Duration,
    /// The last service with an address; none when no services are made.
    pub(crate) services: Option<Duration>,
    /// The last node whose routes are marked as made; none when no routes are made.
    pub(crate) routes: Option<Duration>,
}

impl Progress {
    /// When all was done.
    pub(crate) fn all(&self) -> Duration {
        self.nodes
            .max(self.services.unwrap_or_default())
            .max(self.routes.unwrap_or_default())
    }
}

/// Follows the objects of a run.
pub(crate) struct ConvergenceWatcher {
    nodes: Watch<Node>,
    services: Watch<Service>,
}

impl ConvergenceWatcher {
    /// Opens the watches and reads all that is there, so that this is no load of the measured time.
    pub(crate) async fn open(client: Client, scenario: &Scenario) -> anyhow::Result<Self> {
        let mut follower = Self {
            nodes: Watch::new(client.clone()),
            services: Watch::new(client),
        };
        read(&mut follower.nodes, scenario.size.nodes).await?;
        read(&mut follower.services, scenario.size.services).await?;
        Ok(follower)
    }

    /// Waits until everything of the scenario is as it should be. Each object counts from when it
    /// first was so.
    pub(crate) async fn converged(
        &mut self,
        scenario: &Scenario,
        start: Instant,
    ) -> anyhow::Result<Progress> {
        let size = scenario.size;
        let nodes = async {
            let (mut initialised, mut routed) =
                (Expected::new(size.nodes), Expected::new(size.nodes));
            while !(initialised.reached() && (routed.reached() || !scenario.has_routes())) {
                if let (name, Change::Applied(node)) = self.nodes.next().await? {
                    initialised.observe(&name, node.is_initialised());
                    routed.observe(&name, node.is_routed());
                }
            }
            anyhow::Ok((initialised.at, routed.at))
        };
        let services = async {
            let mut served = Expected::new(size.services);
            while scenario.has_services() && !served.reached() {
                if let (name, Change::Applied(service)) = self.services.next().await? {
                    served.observe(&name, service.has_address());
                }
            }
            anyhow::Ok(served.at)
        };
        let ((initialised, routed), served) = tokio::try_join!(nodes, services)?;
        let since = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(start));
        Ok(Progress {
            nodes: since(initialised).unwrap_or_default(),
            services: if scenario.has_services() {
                since(served)
            } else {
                None
            },
            routes: if scenario.has_routes() {
                since(routed)
            } else {
                None
            },
        })
    }

    /// Waits until one node is initialised.
    pub(crate) async fn initialised(&mut self, name: &str) -> anyhow::Result<Instant> {
        loop {
            match self.nodes.next().await? {
                (seen, Change::Applied(node)) if seen == name && node.is_initialised() => {
                    return Ok(Instant::now());
                }
                _ => {}
            }
        }
    }

    /// Waits for the next node to be deleted.
    pub(crate) async fn deleted(&mut self) -> anyhow::Result<(String, Instant)> {
        loop {
            if let (name, Change::Deleted(_)) = self.nodes.next().await? {
                return Ok((name, Instant::now()));
            }
        }
    }
}

/// Reads until so many objects were seen.
async fn read<T: Watched>(watch: &mut Watch<T>, count: usize) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    while seen.len() < count {
        seen.insert(watch.next().await?.0);
    }
    Ok(())
}

/// So many objects shall have been right once.
struct Expected {
    count: usize,
    right: HashSet<String>,
    /// When the last one was.
    at: Option<Instant>,
}

impl Expected {
    fn new(count: usize) -> Self {
        let at = (count == 0).then(Instant::now);
        Self { count, right: HashSet::new(), at }
    }

    fn reached(&self) -> bool {
        self.at.is_some()
    }

    fn observe(&mut self, name: &str, right: bool) {
        if right && !self.right.contains(name) {
            self.right.insert(name.to_owned());
            if self.right.len() == self.count {
                self.at = Some(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_reached_by_the_last_object_and_stays_so() {
        let mut goal = Expected::new(2);
        goal.observe("a", true);
        goal.observe("a", true);
        goal.observe("b", false);
        assert!(!goal.reached());
        goal.observe("b", true);
        let at = goal.at;
        assert!(at.is_some());
        goal.observe("b", false);
        goal.observe("c", true);
        assert_eq!(goal.at, at);
        assert!(Expected::new(0).reached());
    }
}
