//! The manager, from its arguments to the provider; with its controllers in [`cluster`].

mod cluster;
mod counts;

use ccm_core::config::{Invocation, parse};
use openstack_local::server::{Fault, FaultKind, LocalCloud, Settings as CloudSettings};

use super::*;
use crate::client::in_process::{HOST, InProcess};

fn try_config(args: &[&str]) -> Result<Config, String> {
    let args = std::iter::once("--cloud-provider=openstack").chain(args.iter().copied());
    match parse(&product(), args) {
        Ok(Invocation::Run(config)) => Ok(*config),
        other => Err(format!("{other:?}")),
    }
}

fn agents(args: &[&str]) -> Vec<String> {
    user_agents(&try_config(args).unwrap()).to_vec()
}

// C10, C11, C12, C13, C14, C15
#[test]
fn user_agents_are_kept_in_order_and_whole() {
    assert_eq!(agents(&[]), [""; 0]);
    assert_eq!(agents(&["--user-agent", "cluster/abc-123"]), ["cluster/abc-123"]);
    assert_eq!(agents(&["--user-agent", "a/b", "--user-agent=c/d"]), ["a/b", "c/d"]);
    assert_eq!(agents(&["--user-agent", "a b, c"]), ["a b, c"]);
    assert!(try_config(&["--user-agent"]).is_err());
    // A stray argument is no value of the flag; the framework refuses it.
    let error = try_config(&["--user-agent=a", "b"]).unwrap_err();
    assert!(error.contains("Positional") && error.contains("[\"b\"]"), "{error}");
}

#[test]
fn arguments_of_upstreams_manifests_are_taken() {
    let args = [
        "--v=1",
        "--cluster-name=kubernetes",
        "--cloud-config=/etc/config/cloud.conf",
        "--use-service-account-credentials=false",
        "--controllers=cloud-node,cloud-node-lifecycle,route,service",
        "--bind-address=127.0.0.1",
        "--user-agent=one",
    ];
    let config = try_config(&args).unwrap();
    assert_eq!(
        config.generic.cloud_config.as_deref(),
        Some(std::path::Path::new("/etc/config/cloud.conf"))
    );
}

/// A configuration file for a cloud, and the arguments that name it.
struct Files {
    _folder: tempfile::TempDir,
    flag: String,
}

impl Files {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cloud.conf");
        std::fs::write(&file, text).unwrap();
        let flag = format!("--cloud-config={}", file.display());
        Self { _folder: folder, flag }
    }

    fn of(cloud: &LocalCloud, more: &str) -> Self {
        let password = cloud.credentials().password("demo").unwrap().expose();
        Self::new(&format!(
            "[Global]\nauth-url=http://{HOST}/identity\nusername=demo\npassword=\"{password}\"\ntenant-name=demo\n\
             domain-id=default\nregion=RegionOne\n{more}"
        ))
    }

    async fn build(&self, cloud: &LocalCloud) -> Result<OpenStackProvider, String> {
        let config = try_config(&[&self.flag, "--user-agent=me"]).unwrap();
        let built = build(config, Environment::default(), |_, agents| {
            assert_eq!(agents, ["me"]);
            Ok(InProcess::new(cloud) as Arc<dyn Transport>)
        });
        built.await.map_err(|error| chain(&*error))
    }
}

// C17
#[tokio::test(start_paused = true)]
async fn a_file_for_the_cloud_makes_a_provider() {
    let cloud = LocalCloud::in_memory(CloudSettings::default());
    let provider = Files::of(&cloud, "").build(&cloud).await.unwrap();
    assert_eq!(provider.name(), "openstack");
    assert!(provider.instances().is_some());
    assert!(provider.routes().is_none(), "no router is configured");
    assert!(provider.load_balancers().is_some() && provider.inventory().is_some());
    let provider = Files::of(&cloud, "[Route]\nrouter-id=r\n")
        .build(&cloud)
        .await
        .unwrap();
    assert!(provider.routes().is_some());
}

#[tokio::test(start_paused = true)]
async fn mistakes_and_refused_credentials_end_the_process() {
    let cloud = LocalCloud::in_memory(CloudSettings::default());
    let error = Files::new("[Global]\nauth-url=nowhere\n")
        .build(&cloud)
        .await
        .unwrap_err();
    assert_eq!(error.lines().count(), 3, "{error}");
    let wrong = Files::of(&cloud, "[Global]\npassword=hunter2\n");
    let error = wrong.build(&cloud).await.unwrap_err();
    assert!(
        error.starts_with("the cloud returned no token: ")
            && error.contains("requires authentication"),
        "{error}"
    );
    assert!(!error.contains("hunter2"), "{error}");
    let config = try_config(&[]).unwrap();
    let connect =
        |_: &Cloud, _: &[String]| -> Result<Arc<dyn Transport>, BoxError> { panic!("connects") };
    let error = build(config, Environment::default(), connect)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "a cloud config is needed: --cloud-config names none");
}

#[tokio::test(start_paused = true)]
async fn without_octavia_there_are_no_load_balancers_and_that_has_to_be_said() {
    let without = |kind: &str| CloudSettings {
        without: [kind.to_owned()].into(),
        ..CloudSettings::default()
    };
    let cloud = LocalCloud::in_memory(without("load-balancer"));
    let error = Files::of(&cloud, "").build(&cloud).await.unwrap_err();
    assert!(error.starts_with("load balancers need a service that is missing"), "{error}");
    assert!(
        error.contains("no public endpoint of load-balancer in region \"RegionOne\""),
        "{error}"
    );
    let provider = Files::of(&cloud, "[LoadBalancer]\nenabled=false\n")
        .build(&cloud)
        .await
        .unwrap();
    assert!(provider.load_balancers().is_none());
    let cloud = LocalCloud::in_memory(without("key-manager"));
    Files::of(&cloud, "")
        .build(&cloud)
        .await
        .expect("only a warning");
    let cloud = LocalCloud::in_memory(without("compute"));
    assert!(
        Files::of(&cloud, "")
            .build(&cloud)
            .await
            .unwrap()
            .instances()
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn an_unknown_region_ends_the_process() {
    let cloud = LocalCloud::in_memory(CloudSettings::default());
    let error = Files::of(&cloud, "region=Elsewhere\n")
        .build(&cloud)
        .await
        .unwrap_err();
    assert!(error.contains("in region \"Elsewhere\"; it has: "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_at_the_start_is_waited_for() {
    let cloud = LocalCloud::in_memory(CloudSettings::default());
    let kind = FaultKind::Status { code: 503, retry_after: None, message: None };
    cloud
        .cloud()
        .faults
        .add(Fault::new("/identity", kind).times(8));
    Files::of(&cloud, "").build(&cloud).await.unwrap();
    let asked = cloud.cloud().journal.counts().values().sum::<u64>();
    assert!((9..20).contains(&asked), "no hot loop: {asked}");
}
