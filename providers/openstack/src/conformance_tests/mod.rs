//! The provider keeps the rules of the conformance kit on the local cloud, in process and in
//! virtual time.

#[path = "../../tests/cluster/conformance/skipped.rs"]
mod skipped;
#[path = "../../tests/cluster/conformance/adapter/mod.rs"]
pub(crate) mod stage;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_testkit::conformance::{Report, check_instances, check_load_balancers, check_routes};
use openstack_local::server::{LocalCloud, Settings as CloudSettings};

use self::stage::{
    OURS, OpenStackAdapter,
    cloud::{CloudBackend, Site},
};
use ccm_testkit::suite::sized;

use crate::{
    client::in_process::{HOST, InProcess},
    config::Settings,
};

/// A local cloud in memory, without a socket.
pub(crate) struct Memory(pub(crate) fn(&mut CloudSettings));

#[async_trait]
impl CloudBackend for Memory {
    async fn start(&self) -> anyhow::Result<Site> {
        let mut settings = CloudSettings::default();
        (self.0)(&mut settings);
        let local = LocalCloud::in_memory(settings);
        Ok(Site {
            transport: InProcess::new(&local),
            local,
            url: format!("http://{HOST}"),
        })
    }

    /// Each call in its turn, but for the quick tier: there the suite over sockets has every
    /// seventh.
    fn stride(&self) -> usize {
        sized(11, 1).unwrap()
    }
}

async fn stage(cloud: fn(&mut CloudSettings), config: fn(&mut Settings)) -> OpenStackAdapter {
    OpenStackAdapter::new(Arc::new(Memory(cloud)), config)
        .await
        .unwrap()
}

fn all_kept(suite: &str, report: Report) {
    let report = report.excuse(skipped::excuses(suite));
    assert!(report.passed(), "{report}");
}

macro_rules! provider_on {
    ($stage:expr) => {{
        let stage = $stage.clone();
        move || {
            let stage = stage.clone();
            async move { stage.provider(OURS).await }
        }
    }};
}

#[tokio::test(start_paused = true)]
async fn rules_about_instances_are_kept() {
    let stage = stage(|_| {}, |_| {}).await;
    all_kept("instances", check_instances(provider_on!(stage), &stage).await);
}

#[tokio::test(start_paused = true)]
async fn rules_about_routes_are_kept() {
    let stage = stage(|_| {}, |_| {}).await;
    all_kept("routes", check_routes(provider_on!(stage), &stage).await);
}

/// What network services may lack: routes are replaced as a whole then.
#[tokio::test(start_paused = true)]
// What differs is explored in the first tier.
#[ignore = "cargo xtask test --full"]
async fn rules_about_routes_are_kept_without_atomic_changes() {
    let older = |settings: &mut CloudSettings| {
        settings.hidden_extensions = ["extraroute-atomic".to_owned()].into();
    };
    let stage = stage(older, |_| {}).await;
    all_kept("routes", check_routes(provider_on!(stage), &stage).await);
}

#[tokio::test(start_paused = true)]
async fn rules_about_load_balancers_are_kept() {
    let stage = stage(|_| {}, |_| {}).await;
    all_kept("load balancers", check_load_balancers(provider_on!(stage), &stage).await);
}

fn balancers(settings: &mut Settings) -> &mut crate::config::LoadBalancer {
    settings.load_balancer.as_mut().unwrap()
}

#[tokio::test(start_paused = true)]
// What differs is explored in the first tier.
#[ignore = "cargo xtask test --full"]
async fn rules_about_load_balancers_are_kept_with_security_groups() {
    let stage = stage(|_| {}, |settings| balancers(settings).manage_security_groups = true).await;
    all_kept("load balancers", check_load_balancers(provider_on!(stage), &stage).await);
}

/// Drivers that take one change at a time, and no deletion of a whole tree.
#[tokio::test(start_paused = true)]
// What differs is explored in the first tier.
#[ignore = "cargo xtask test --full"]
async fn rules_about_load_balancers_are_kept_one_by_one() {
    let serial = |settings: &mut Settings| {
        let balancers = balancers(settings);
        (balancers.serial_calls, balancers.cascade_delete, balancers.create_monitor) =
            (true, false, true);
    };
    let stage = stage(|_| {}, serial).await;
    all_kept("load balancers", check_load_balancers(provider_on!(stage), &stage).await);
}
