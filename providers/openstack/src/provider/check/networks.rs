//! The networks, subnets and the router that cloud.conf names.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Checks, OpenStackFinding};
use crate::{
    api::neutron::{Network, Router, Subnet},
    client::Call,
    config::{LbNetwork, LoadBalancer, Networking},
};

impl Checks<'_> {
    /// Checks that everything exists that cloud.conf names.
    pub(super) async fn check_networks(&mut self) {
        let settings = self.settings;
        if let Some(balancers) = &settings.load_balancer {
            self.check_load_balancer_networks(balancers).await;
        }
        self.check_network_names(&settings.networking).await;
        if let Some(router) = settings
            .router
            .as_deref()
            .filter(|_| self.cluster.creates_routes)
        {
            self.check_router(router).await;
        }
    }

    async fn check_load_balancer_networks(&mut self, settings: &LoadBalancer) {
        let mut sections = vec![("[LoadBalancer]".to_owned(), &settings.network)];
        for (name, network) in &settings.classes {
            sections.push((format!("[LoadBalancerClass {name:?}]"), network));
        }
        // Classes inherit values, and each is read once.
        let mut networks: BTreeMap<(&str, &str), String> = BTreeMap::new();
        let mut subnets: BTreeMap<(&str, &str), String> = BTreeMap::new();
        for (section, network) in sections {
            let LbNetwork {
                floating_network,
                floating_subnet_id,
                network,
                subnet,
                member_subnet,
                ..
            } = network;
            for (key, id) in [("floating-network-id", floating_network), ("network-id", network)] {
                if let Some(id) = id {
                    networks.entry((id, key)).or_insert_with(|| section.clone());
                }
            }
            let keys = [
                ("floating-subnet-id", floating_subnet_id),
                ("subnet-id", subnet),
                ("member-subnet-id", member_subnet),
            ];
            for (key, id) in keys {
                if let Some(id) = id {
                    subnets.entry((id, key)).or_insert_with(|| section.clone());
                }
            }
        }
        for ((id, key), section) in networks {
            self.check_network(id, key, &section).await;
        }
        for ((id, key), section) in subnets {
            let object = format!("{key} {id}");
            match self.find::<Subnet>(Call::SubnetGet, &["subnets", id]).await {
                Ok(Some(_)) => self.ok(format!("{object} of {section} exists")),
                Ok(None) => {
                    let message = format!("{object} of {section} does not exist in this project");
                    self.add(OpenStackFinding::SubnetUnknown.about(object, message));
                }
                Err(error) => self.add_error(&object, &error),
            }
        }
    }

    async fn check_network(&mut self, id: &str, key: &str, section: &str) {
        let object = format!("{key} {id}");
        match self
            .find::<Network>(Call::NetworkGet, &["networks", id])
            .await
        {
            Ok(Some(network)) if key == "floating-network-id" && !network.external => {
                let message = format!("{object} of {section} is not an external network");
                self.add(OpenStackFinding::NetworkNotExternal.about(key, message));
            }
            Ok(Some(_)) => self.ok(format!("{object} of {section} exists")),
            Ok(None) => {
                let message =
                    format!("{object} of {section} does not exist, or this project may not see it");
                self.add(OpenStackFinding::NetworkUnknown.about(object, message));
            }
            Err(error) => self.add_error(&object, &error),
        }
    }

    async fn check_network_names(&mut self, networking: &Networking) {
        let keys = [
            ("public-network-name", &networking.public_networks),
            ("internal-network-name", &networking.internal_networks),
        ];
        for (key, names) in keys {
            for name in names {
                let object = format!("{key} {name}");
                let query = [("name", &**name), ("limit", "1")];
                match self
                    .list::<Value>(Call::NetworkList, &["networks"], &query)
                    .await
                {
                    Ok(found) if found.is_empty() => {
                        let message = format!("no network is named as {object}");
                        self.add(OpenStackFinding::NetworkNameUnknown.about(object, message));
                    }
                    Ok(_) => self.ok(format!("{object} exists")),
                    Err(error) => self.add_error(&object, &error),
                }
            }
        }
    }

    async fn check_router(&mut self, id: &str) {
        let object = format!("router-id {id}");
        match self.find::<Router>(Call::RouterGet, &["routers", id]).await {
            Ok(Some(router)) => {
                self.ok(format!("{object} exists and has {} routes", router.routes.len()));
            }
            Ok(None) => {
                let message = format!("{object} does not exist, or this project may not see it");
                self.add(OpenStackFinding::RouterUnknown.about(object, message));
            }
            Err(error) => self.add_error(&object, &error),
        }
    }
}
