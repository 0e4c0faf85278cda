//! What is wrong with the configuration, a Service or the cloud is told, where somebody looks; and
//! nobody asks in a hot loop.

use openstack_local::{
    octavia::{self, rows::Outcome},
    server::{Fault, FaultKind},
};
use serde_json::Value;

use crate::fixture::{ClusterFixture, INTERNAL, service};

const FLAGS: [&str; 1] = ["--controllers=service"];
const BALANCERS: &str = "/load-balancer/v2.0/lbaas/loadbalancers";

/// Counts requests of the process for tokens.
fn tokens(stage: &ClusterFixture) -> usize {
    stage
        .cloud
        .local
        .cloud()
        .journal
        .count("POST", "/identity/v3/auth/tokens")
}

/// Starts the process with this configuration, and expects it to end and to say all of these.
async fn refused(stage: &mut ClusterFixture, what: &str, texts: &[&str]) -> anyhow::Result<()> {
    stage.start(&FLAGS).await?;
    refuses(stage, what, texts).await
}

async fn refuses(stage: &mut ClusterFixture, what: &str, texts: &[&str]) -> anyhow::Result<()> {
    let (well, log) = stage.exit().await?;
    anyhow::ensure!(!well, "{what}: it ended well: {log}");
    let missing: Vec<_> = texts.iter().filter(|text| !log.contains(**text)).collect();
    anyhow::ensure!(missing.is_empty(), "{what}: no {missing:?} in {log}");
    let password = stage.cloud.password().expose();
    anyhow::ensure!(!log.contains(password), "{what}: the password is in {log}");
    Ok(())
}

/// Wrong credentials, a region or a service that the cloud does not have, and every mistake in the
/// file end the process.
pub(crate) async fn a_configuration_that_cannot_work_is_refused(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.config.password = Some("wrong-secret".into());
    refused(stage, "password", &["no token", "401", "/identity/v3"]).await?;
    anyhow::ensure!(tokens(stage) == 1, "{} requests for a token", tokens(stage));
    stage.config.password = None;

    let right = stage.cloud_config();
    stage
        .start_with(right.replace("RegionOne", "Nowhere"), &FLAGS)
        .await?;
    refuses(stage, "region", &["Nowhere", "network"]).await?;

    stage
        .cloud
        .local
        .cloud()
        .set(|settings| settings.without.extend(["load-balancer".to_owned()]));
    refused(stage, "no Octavia", &["load-balancer", "[LoadBalancer] enabled=false"]).await?;

    let wrong = "[Global]\nauth-url = http://127.0.0.1:1/identity/v3\nusername = demo\npassword = \"not-shown\"\n\
                 tenant-name = demo\ndomain-id = default\n\
                 [LoadBalancer]\nmonitor-delay = 5\nmax-shared-lb = many\n";
    stage.start_with(wrong.into(), &FLAGS).await?;
    refuses(
        stage,
        "keys",
        &[
            "cloud.conf: line 8: [LoadBalancer] monitor-delay",
            "cloud.conf: line 9: [LoadBalancer] max-shared-lb",
        ],
    )
    .await?;
    stage
        .start_with("[Global]\nauth-url = \"http://\n".into(), &FLAGS)
        .await?;
    refuses(stage, "grammar", &["cloud.conf: line 2"]).await
}

/// Without Octavia the rest works, if nobody asks for load balancers.
pub(crate) async fn a_cloud_without_load_balancers_serves_nodes(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage
        .cloud
        .local
        .cloud()
        .set(|settings| settings.without.extend(["load-balancer".to_owned()]));
    stage.config.balancer = "enabled = false\n".into();
    let server = stage.make("node-0").await?;
    stage.start(&["--controllers=cloud-node,service"]).await?;
    stage
        .kubelets
        .register(ccm_testkit::kubelet::NodeSpec::new("node-0"))
        .await?;
    stage
        .until("initialised", async || {
            let id = stage
                .node_api()
                .get("node-0")
                .await?
                .spec
                .and_then(|spec| spec.provider_id);
            Ok(if id == Some(server.provider_id()) {
                Ok(())
            } else {
                Err(format!("{id:?}"))
            })
        })
        .await?;
    stage.stop().await
}

/// Name of a Service, its annotations, and reason and texts of the event that it gets.
type Wrong<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, &'a [&'a str]);

/// What a Service names and the cloud lacks, and what it says that cannot be.
pub(crate) async fn what_is_not_there_is_told(stage: &mut ClusterFixture) -> anyhow::Result<()> {
    stage.nodes(1).await?;
    stage.start(&FLAGS).await?;
    let before = stage.world();
    let nowhere = "00000000-1111-2222-3333-444444444444";
    let certificate = format!("http://{}/key-manager/v1/containers/{nowhere}", stage.cloud.address);
    let cases: [Wrong<'_>; 9] = [
        ("subnet", &[("subnet-id", nowhere)], "OpenStackRequestRefused", &["Subnet", nowhere]),
        (
            "member-subnet",
            &[("member-subnet-id", nowhere)],
            "OpenStackRequestRefused",
            &["Subnet", nowhere],
        ),
        ("floating-network", &[("floating-network-id", nowhere)], "", &[nowhere]),
        ("flavor", &[("flavor-id", nowhere)], "OpenStackRequestRefused", &["flavor"]),
        (
            "zone",
            &[("availability-zone", "nowhere")],
            "OpenStackRequestRefused",
            &["vailability zone"],
        ),
        ("balancer", &[("load-balancer-id", nowhere)], "", &[nowhere]),
        (
            "certificate",
            &[("default-tls-container-ref", &certificate)],
            "SyncLoadBalancerFailed",
            &[nowhere],
        ),
        ("method", &[("lb-method", "DICE")], "LoadBalancerLbMethodUnknown", &["DICE"]),
        (
            "several",
            &[("class", "no-such"), ("proxy-protocol", "v1"), ("x-forwarded-for", "true")],
            "SyncLoadBalancerFailed",
            &[
                "invalid loadbalancer class \"no-such\"",
                "cannot be had together with x-forwarded-for",
            ],
        ),
    ];
    for (at, (name, annotations, ..)) in cases.iter().enumerate() {
        stage
            .create(&service(name, &[("TCP", 100 + u16::try_from(at)?)], annotations))
            .await?;
    }
    for (name, _, reason, texts) in cases {
        stage.event(name, reason, texts).await?;
    }
    // Put right, a Service is served at once.
    stage
        .annotate("several", &[("class", Value::Null), ("x-forwarded-for", Value::Null)])
        .await?;
    stage
        .annotate("subnet", &[("subnet-id", Value::Null)])
        .await?;
    stage.served(&["several", "subnet"]).await?;
    let names = cases.map(|(name, ..)| name);
    let balancers = stage
        .take_writes()
        .iter()
        .filter(|write| write.ends_with("/loadbalancers"))
        .count();
    anyhow::ensure!(balancers <= names.len() + 2, "{balancers} attempts to make balancers");
    for name in names {
        stage.delete(name).await?;
    }
    stage.vanished(&names).await?;
    stage
        .settles("nothing is left", |world| world.same(&before))
        .await?;
    stage.stop().await
}

/// A quota that is used up, and balancers that fail at first or later.
pub(crate) async fn trouble_of_load_balancers_is_told_and_heals(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.nodes(1).await?;
    stage.start(&FLAGS).await?;
    stage.cloud.limit_balancers(0).await?;
    stage.create(&service("many", &[("TCP", 80)], &[])).await?;
    stage
        .event(
            "many",
            "OpenStackQuotaExceeded",
            &["Quota has been met for resources: Load Balancer"],
        )
        .await?;
    let attempts = stage.take_writes();
    anyhow::ensure!(attempts.len() == 1, "{attempts:?}");
    stage.cloud.limit_balancers(-1).await?;
    stage
        .annotate("many", &[("connection-limit", "5".into())])
        .await?;
    stage.served(&["many"]).await?;

    // One that cannot be made is made anew.
    let fails = |octavia: &mut octavia::settings::Settings| {
        (octavia.failure, octavia.failures) = (Outcome::LoadBalancerFails, 1);
        octavia.failover_needs_admin = false;
    };
    stage.cloud.octavia(fails).await?;
    stage
        .create(&service("unlucky", &[("TCP", 81)], &[]))
        .await?;
    stage
        .event("unlucky", "LoadBalancerCreateFailed", &["could not be created"])
        .await?;
    stage.served(&["unlucky"]).await?;
    stage.holds(&["default/unlucky: is ACTIVE"]).await?;

    one_in_error_keeps_its_address(stage).await?;
    stage.delete("many").await?;
    stage.delete("unlucky").await?;
    stage.vanished(&["many", "unlucky"]).await?;
    stage
        .settles("nothing is left", |world| {
            world.has(&["!default/", "!floating ip", "!port of nobody"])
        })
        .await?;
    stage.stop().await
}

/// A load balancer that has served is in ERROR: an administrator fails it over, or the manager does if
/// its configuration says so.
async fn one_in_error_keeps_its_address(stage: &mut ClusterFixture) -> anyhow::Result<()> {
    let address = stage.address("many").await?;
    let break_it = |state: &mut openstack_local::state::CloudState,
                    _: &openstack_local::state::RequestContext| {
        let found = state
            .octavia
            .load_balancers
            .iter()
            .find(|row| row.body.name.ends_with("_many"));
        let id = found.map(|row| row.body.id.clone()).unwrap_or_default();
        octavia::force_error(state, &id)?;
        Ok(id)
    };
    let id = stage.cloud.change(break_it).await?;
    stage
        .annotate("many", &[("connection-limit", "7".into())])
        .await?;
    let command = format!("openstack loadbalancer failover {id}");
    stage
        .event("many", "SyncLoadBalancerFailed", &["is in error", &command])
        .await?;
    let as_administrator =
        move |state: &mut openstack_local::state::CloudState,
              ctx: &openstack_local::state::RequestContext| {
            octavia::load_balancers::failover(state, ctx, &id)
        };
    stage.cloud.change(as_administrator).await?;
    stage
        .holds(&["default/many: is ACTIVE", "default/many:80: at most 7"])
        .await?;
    anyhow::ensure!(stage.address("many").await? == address, "another address");

    // With the key, the manager does that itself, if it is allowed to.
    stage.stop().await?;
    stage.config.balancer = "failover-on-error = true".into();
    stage.start(&FLAGS).await?;
    stage.cloud.change(break_it).await?;
    stage
        .annotate("many", &[("connection-limit", "6".into())])
        .await?;
    stage
        .event("many", "LoadBalancerFailover", &["was in error"])
        .await?;
    stage
        .holds(&["default/many: is ACTIVE", "default/many:80: at most 6"])
        .await?;
    anyhow::ensure!(stage.address("many").await? == address, "another address");
    Ok(())
}

/// Answers that are no JSON or end early are doubt: nothing is made twice, and nothing is taken for
/// gone.
pub(crate) async fn answers_that_say_nothing_are_told_and_lose_nothing(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.nodes(1).await?;
    stage.start(&FLAGS).await?;
    let faults = || &stage.cloud.local.cloud().faults;
    // It is made, but the answer does not say so.
    faults().add(
        Fault::new(BALANCERS, FaultKind::Cut { after: 40 })
            .method("POST")
            .times(1),
    );
    stage
        .create(&service("web", &[("TCP", 80)], &[(INTERNAL, "true")]))
        .await?;
    stage
        .event("web", "SyncLoadBalancerFailed", &["loadbalancers"])
        .await?;
    stage.served(&["web"]).await?;
    stage.holds(&["default/web: is ACTIVE"]).await?;
    let made = stage
        .take_writes()
        .iter()
        .filter(|write| write.ends_with("/loadbalancers"))
        .count();
    anyhow::ensure!(made == 1, "made {made} times");

    let before = stage.world();
    let page = FaultKind::Body { code: 404, text: "<html>no such page</html>".into() };
    faults().add(Fault::new("/load-balancer", page));
    let page = FaultKind::Body { code: 200, text: "<html>welcome</html>".into() };
    faults().add(Fault::new("/network", page));
    stage
        .create(&service("more", &[("TCP", 81)], &[(INTERNAL, "true")]))
        .await?;
    stage
        .event("more", "SyncLoadBalancerFailed", &["not the service's"])
        .await?;
    stage.delete("web").await?;
    stage.event("web", "", &["not the service's"]).await?;
    // Each attempt asks a few times, and the next one comes after seconds.
    let requests = stage.take_requests().len();
    anyhow::ensure!(requests < 60, "{requests} requests");
    anyhow::ensure!(stage.services().get_opt("web").await?.is_some(), "it is not known to be gone");
    stage.world().same(&before).map_err(anyhow::Error::msg)?;
    faults().clear();
    stage.vanished(&["web"]).await?;
    stage.served(&["more"]).await?;
    stage.delete("more").await?;
    stage.vanished(&["more"]).await?;
    stage.stop().await
}

/// Credentials that the cloud takes no more are told by the Services that wait, and tried no more
/// often than that.
pub(crate) async fn credentials_that_are_refused_later_are_told(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.nodes(1).await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    let cloud = stage.cloud.local.cloud().clone();
    cloud.faults.add(Fault::new("/", FaultKind::status(401)));
    stage.take_requests();
    stage.create(&service("more", &[("TCP", 81)], &[])).await?;
    stage
        .event("more", "OpenStackPermissionDenied", &["authentication", "/identity/v3"])
        .await?;
    stage
        .annotate("web", &[("connection-limit", "5".into())])
        .await?;
    stage
        .event("web", "OpenStackPermissionDenied", &["authentication"])
        .await?;
    let requests = stage.take_requests();
    anyhow::ensure!(requests.len() < 20, "{} requests: {requests:#?}", requests.len());
    let password = stage.cloud.password().expose();
    anyhow::ensure!(!stage.log().contains(password), "the password is in the log");
    cloud.faults.clear();
    for name in ["web", "more"] {
        stage
            .annotate(name, &[("connection-limit", "6".into())])
            .await?;
    }
    stage.served(&["more"]).await?;
    stage
        .holds(&["default/web:80: at most 6", "default/more:81: at most 6"])
        .await?;
    stage.stop().await
}

/// A router that is not there is told with the key that names it, and asked for no more often than
/// it is due.
pub(crate) async fn a_router_that_is_not_there_is_told(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let router = "00000000-1111-2222-3333-444444444444";
    stage.config.router = Some(router.into());
    stage.make("node-0").await?;
    let flags = [
        "--controllers=cloud-node,route",
        "--configure-cloud-routes=true",
        "--cluster-cidr=10.244.0.0/16",
        "--allocate-node-cidrs=true",
        "--route-reconciliation-period=1s",
    ];
    stage.start(&flags).await?;
    stage
        .kubelets
        .register(ccm_testkit::kubelet::NodeSpec::new("node-0").pod_cidr("10.244.0.0/24"))
        .await?;
    stage
        .logged(&[router, "router-id", "[Route]", "does not exist"])
        .await?;
    let asked = || {
        stage
            .cloud
            .local
            .cloud()
            .journal
            .count("GET", "/network/v2.0/routers")
    };
    let (since, before) = (std::time::Instant::now(), asked());
    stage
        .until("asked again", async || {
            Ok(if asked() >= before + 2 {
                Ok(())
            } else {
                Err("not yet".into())
            })
        })
        .await?;
    let (rate, most) =
        (f64::from(u32::try_from(asked() - before)?), 3.0 * since.elapsed().as_secs_f64() + 3.0);
    anyhow::ensure!(rate <= most, "{rate} requests in {:?}", since.elapsed());
    stage.stop().await
}
