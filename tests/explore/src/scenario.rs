//! What happens in a cluster, without faults.

mod clusters;
mod families;
mod foreign_nodes;
mod nodes;
mod orphans;
mod services;

use std::time::Duration;

use futures::future::BoxFuture;

use crate::{cluster::SimulatedCluster, final_state};

/// Something that users and operators do.
pub type Script = for<'a> fn(&'a SimulatedCluster) -> BoxFuture<'a, Result<(), String>>;

/// A sequence of steps in a cluster. It is over when the cluster has converged (`final_state`).
#[derive(Debug)]
pub struct Scenario {
    /// Its name, as on the command line.
    pub name: &'static str,
    /// What happens, in a line.
    pub about: &'static str,
    /// Controllers that run.
    pub controllers: &'static [Controller],
    /// Flags of the processes, those that select the controllers included.
    pub flags: &'static [&'static str],
    /// More configuration of the cloud (YAML).
    pub cloud: &'static str,
    /// How many processes run at a time. More than one elect a leader.
    pub processes: usize,
    /// What has happened before: no fault meets it.
    pub before: Option<Script>,
    /// What happens then, while no process runs.
    pub between: Option<Script>,
    /// What happens.
    pub story: Script,
}

/// A controller, as far as the state at the end depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Initialises nodes.
    Node,
    /// Taints and deletes nodes.
    Lifecycle,
    /// Serves Services.
    Service,
    /// Makes routes.
    Route,
    /// Gives nodes their pod networks.
    Ipam,
}

impl Scenario {
    /// Whether its processes elect a leader.
    pub fn is_elected(&self) -> bool {
        self.processes > 1
    }

    /// Whether nodes are marked out of service when their instances stay shut down.
    pub fn marks_out_of_service(&self) -> bool {
        self.flags
            .iter()
            .any(|flag| flag.starts_with("--out-of-service-after="))
    }

    /// Whether this controller runs.
    pub fn runs(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }
}

/// Every scenario.
pub fn all() -> Vec<&'static Scenario> {
    let all = services::ALL
        .iter()
        .chain(&nodes::ALL)
        .chain(&families::ALL);
    all.chain(&foreign_nodes::ALL)
        .chain(&orphans::ALL)
        .chain(&clusters::ALL)
        .collect()
}

/// Waits until the cluster has what it asks for by now.
async fn settled(world: &SimulatedCluster) -> Result<(), String> {
    world
        .until(Duration::from_secs(3600), final_state::not_converged)
        .await
}
