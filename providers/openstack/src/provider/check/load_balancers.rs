//! Octavia: driver and its features, flavor, availability zone, and load balancers of other
//! clusters.

use std::collections::BTreeSet;

use ccm_core::check::list_names;

use super::{Checks, OpenStackFinding, is_unreachable};
use crate::{
    api::{
        IdRef,
        octavia::{AvailabilityZone, LoadBalancer, Provider},
    },
    client::Call,
    config,
    lb::{
        features::{Driver, Features},
        names,
    },
};

/// Returns the cluster in the name of a load balancer, after which come namespace and name of a
/// Service. Those have no underscore; names of clusters may have some.
fn cluster_of(load_balancer: &str) -> Option<&str> {
    // A name that was cut off may lack its end.
    let is_whole = names::truncate(&format!("{load_balancer}x")).len() > load_balancer.len();
    let rest = load_balancer
        .strip_prefix(names::PREFIX)
        .filter(|_| is_whole)?;
    let (rest, _) = rest.rsplit_once('_')?;
    Some(rest.rsplit_once('_')?.0)
}

impl Checks<'_> {
    /// Checks what load balancers need of Octavia, and whose load balancers there are.
    pub(super) async fn check_octavia(&mut self) {
        let settings = self.settings;
        let Some(balancers) = &settings.load_balancer else {
            return;
        };
        let Ok(version) = self.client.session().octavia().await else {
            // Reported with the other services.
            return;
        };
        let driver = Driver::parse(&balancers.provider);
        let features = Features::new((version.0, version.1), &driver);
        self.check_driver(&driver, features).await;
        self.check_options(balancers, features).await;
        self.check_owners().await;
    }

    async fn check_driver(&mut self, driver: &Driver, features: Features) {
        let drivers = self
            .list::<Provider>(Call::ProviderList, &["providers"], &[])
            .await;
        let drivers = match drivers {
            Ok(drivers) => drivers,
            Err(error) if is_unreachable(&error) => return,
            // The list is for information only.
            Err(error) => return self.add_unknown("the drivers of Octavia", &error),
        };
        if drivers.iter().any(|found| driver.is_same(&found.name)) {
            let able = |is_able: bool, what: &'static str| is_able.then_some(what);
            let features: Vec<&str> = [
                able(features.tags, "tags"),
                able(features.timeouts, "timeouts"),
                able(features.allowed_cidrs, "source ranges"),
                able(features.http_monitor, "HTTP health checks"),
                able(features.additional_vips, "dual stack"),
            ]
            .into_iter()
            .flatten()
            .collect();
            return self.ok(format!("driver {}: {}", driver.as_str(), features.join(", ")));
        }
        let names: Vec<&str> = drivers.iter().map(|driver| driver.name.as_str()).collect();
        let message =
            format!("Octavia has no driver {}, only: {}", driver.as_str(), list_names(&names));
        self.add(OpenStackFinding::DriverUnknown.about(driver.as_str(), message));
    }

    async fn check_options(&mut self, settings: &config::LoadBalancer, features: Features) {
        if let Some(id) = settings.flavor.as_deref().filter(|_| features.flavors) {
            match self
                .find::<IdRef>(Call::LbFlavorGet, &["flavors", id])
                .await
            {
                Ok(Some(_)) => self.ok(format!("flavor-id {id} exists")),
                Ok(None) => {
                    let message = format!("Octavia has no flavor {id}");
                    self.add(OpenStackFinding::FlavorUnknown.about(id, message));
                }
                Err(error) => self.add_error(&format!("flavor {id}"), &error),
            }
        }
        let zone = settings.availability_zone.as_deref();
        if let Some(name) = zone.filter(|_| features.availability_zones) {
            let zones = self
                .list::<AvailabilityZone>(Call::LbZoneList, &["availabilityzones"], &[])
                .await;
            match zones {
                Ok(zones) if zones.iter().any(|zone| zone.name == name) => {
                    self.ok(format!("availability-zone {name} exists"));
                }
                Ok(_) => {
                    let message = format!("Octavia has no availability zone {name}");
                    self.add(OpenStackFinding::AvailabilityZoneUnknown.about(name, message));
                }
                Err(error) => self.add_error("the availability zones of Octavia", &error),
            }
        }
    }

    /// Checks whose load balancers there are, and how many more this project may have.
    async fn check_owners(&mut self) {
        let session = self.client.session();
        let (Ok(Some(project)), Ok(is_admin)) = (session.project().await, session.is_admin().await)
        else {
            return;
        };
        let own = [("project_id", &*project)];
        // Administrators see the load balancers of all projects.
        let query: &[(&str, &str)] = if is_admin { &[] } else { &own };
        let path = ["loadbalancers"];
        let listed = self
            .list::<LoadBalancer>(Call::LoadBalancerList, &path, query)
            .await;
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) if is_unreachable(&error) => return,
            Err(error) => return self.add_error("load balancers", &error),
        };
        let is_own = |lb: &&LoadBalancer| lb.project_id.is_empty() || *lb.project_id == *project;
        let (own, others): (Vec<_>, Vec<_>) = listed.iter().partition(is_own);
        self.check_names(&own);
        self.check_other_projects(&others);
        self.check_load_balancer_quota(&project, own.len()).await;
    }

    fn check_names(&mut self, load_balancers: &[&LoadBalancer]) {
        let cluster = self.op.cluster_name();
        let mut other_clusters = BTreeSet::new();
        for load_balancer in load_balancers {
            let named = cluster_of(&load_balancer.name);
            other_clusters.extend(named.filter(|named| *named != cluster));
        }
        let names: Vec<&str> = other_clusters.iter().copied().collect();
        if !names.is_empty() {
            self.ok(format!("other clusters in this project: {}", list_names(&names)));
        }
        let is_continuation = |longer: &str, shorter: &str| {
            longer
                .strip_prefix(shorter)
                .is_some_and(|rest| rest.starts_with('_'))
        };
        for other in other_clusters {
            if is_continuation(other, cluster) || is_continuation(cluster, other) {
                let message = format!(
                    "cluster {other} has load balancers in this project, and this is {cluster}"
                );
                self.add(OpenStackFinding::ClusterNameAmbiguous.about(other, message));
            }
        }
    }

    fn check_other_projects(&mut self, load_balancers: &[&LoadBalancer]) {
        let cluster = self.op.cluster_name();
        let mut projects = BTreeSet::new();
        for load_balancer in load_balancers {
            if cluster_of(&load_balancer.name) == Some(cluster) {
                projects.insert(&*load_balancer.project_id);
            }
        }
        for project in projects {
            let object = format!("project {project}");
            let message = format!("{object} has load balancers of a cluster {cluster}, too");
            self.add(OpenStackFinding::ClusterNameInOtherProject.about(object, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_load_balancer_contains_its_cluster() {
        assert_eq!(cluster_of("kube_service_a_shop_web"), Some("a"));
        assert_eq!(cluster_of("kube_service_a_b_shop_web"), Some("a_b"));
        for other in ["kube_service_a_web", "web", "kube_service_", ""] {
            assert_eq!(cluster_of(other), None, "{other}");
        }
        let cut = names::load_balancer("a", "shop", &"w".repeat(300));
        assert_eq!(cluster_of(&cut), None, "its end may be missing");
    }
}
