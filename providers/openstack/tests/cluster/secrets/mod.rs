//! Credentials are shown nowhere: the whole process at the highest verbosity, in both formats, with
//! a cloud and an API server that repeat what they were sent in their errors.

mod commands;
mod environment;
pub(crate) mod panics;

use std::{ffi::OsString, path::Path, sync::atomic::Ordering};

use anyhow::ensure;
use ccm_e2e::{ccm::Ccm, https_endpoints};
use ccm_testkit::{
    apiserver::{Access, MASTERS, Match, Rule, User},
    supervised::free_port,
};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{Api, api::PostParams};
use serde_json::json;

pub(crate) use commands::{
    mistakes_around_a_secret_are_told_without_it, no_command_shows_a_secret,
};
use environment::{AuthMethod, CALLER_TOKEN, KUBE_TOKEN, SOON, STRANGER_TOKEN, SecretsEnvironment};
pub(crate) use panics::a_panic_with_the_configuration_shows_no_secret;

// length: the way of a secret through one process, from its start to its end
async fn journey(proof: AuthMethod, format: &str) -> anyhow::Result<()> {
    let world = SecretsEnvironment::new(proof).await?;
    let port = free_port()?;
    let kubeconfig = world.kubeconfig()?;
    let config = world.cloud_config(proof).await?;
    let args = arguments(&kubeconfig, &config, port, format);
    let program = Path::new(env!("CARGO_BIN_EXE_ccm-openstack"));
    let mut process = Ccm::start(program, world.folder.path(), "ccm", args.clone()).await?;
    let issued = world.issued.load(Ordering::SeqCst);
    process
        .until("a token", SOON, |_| world.issued.load(Ordering::SeqCst) > issued)
        .await?;
    objects(&world).await?;
    let mut pages =
        vec![https_endpoints::all(&mut process, port, CALLER_TOKEN, STRANGER_TOKEN, SOON).await?];
    // A bare token cannot be had anew for longer than it lives.
    if proof != AuthMethod::Token {
        let now = world.issued.load(Ordering::SeqCst);
        process
            .until("renewal", SOON, |_| world.issued.load(Ordering::SeqCst) > now)
            .await?;
    }
    for status in [401, 403, 500, 400] {
        // Written again, credentials are tried at once, also after a refusal.
        std::fs::write(&config, std::fs::read(&config)?)?;
        let before = world.refused.load(Ordering::SeqCst);
        world.refusing.store(status, Ordering::SeqCst);
        let seen = |_: &Ccm| world.refused.load(Ordering::SeqCst) > before;
        process
            .until("requests that are refused", SOON, seen)
            .await?;
    }
    // Among them is one for a token, which repeats the credentials.
    process
        .until("a refused request for a token", SOON, |process| {
            process.log().contains("refused POST")
        })
        .await?;
    world.refusing.store(0, Ordering::SeqCst);
    // Keystone does not take the secret, in its own words.
    let right = std::fs::read(&config)?;
    let begin = process.log().len();
    world.spoil(&config)?;
    let denied = |process: &Ccm| {
        process
            .log()
            .get(begin..)
            .is_some_and(|new| new.contains("authentication at "))
    };
    process
        .until("authentication that is denied", SOON, denied)
        .await?;
    std::fs::write(&config, right)?;
    // The API server does not know the process any more, then again.
    world
        .api
        .users()
        .set_access("ccm", Access::Rules(Rule::of_role(&json!({"rules": []}))?));
    world.api.users().revoke(KUBE_TOKEN);
    world.api.faults().close_watches(&Match::any());
    let unknown = |world: &SecretsEnvironment| {
        world
            .api
            .log()
            .entries()
            .iter()
            .filter(|entry| entry.status == Some(401))
            .count()
    };
    process
        .until("requests that the API server refuses", SOON, |_| unknown(&world) > 2)
        .await?;
    world
        .api
        .users()
        .add(KUBE_TOKEN, User::new("ccm", &[MASTERS]));
    pages.push(https_endpoints::all(&mut process, port, CALLER_TOKEN, STRANGER_TOKEN, SOON).await?);
    let events: Api<Event> = Api::all(world.api.client());
    let events =
        serde_json::to_string(&events.list(&kube::api::ListParams::default()).await?.items)?;
    let log = process.log();
    process.terminate().await?;
    // A process whose credentials are refused from the start says so, and ends.
    world.refusing.store(401, Ordering::SeqCst);
    let mut second = Ccm::start(program, world.folder.path(), "second", args).await?;
    ensure!(!second.exit(SOON).await?.success(), "credentials that are refused end the start");
    let secrets = world.secrets.lock().clone();
    secrets.check("the log", &log)?;
    secrets.check("the log of a refused start", &second.log())?;
    secrets.check("an event", &events)?;
    secrets.check("a page", &pages.concat())?;
    // The search is for nothing if there was nothing to see: of the HTTP client, and of what the
    // cloud repeated.
    for (what, text) in [("idle connection for", &log), ("refused POST", &log)] {
        ensure!(text.contains(what), "the log says nothing of {what}");
    }
    ensure!(events.contains("\"reason\""), "no event was written");
    world.close().await
}

fn arguments(kubeconfig: &Path, config: &Path, port: u16, format: &str) -> Vec<OsString> {
    let (kubeconfig, config) = (kubeconfig.display(), config.display());
    [
        "--cloud-provider=openstack".to_owned(),
        "--cluster-name=test".to_owned(),
        "--leader-elect=false".to_owned(),
        "--node-monitor-period=1s".to_owned(),
        "--node-status-update-frequency=1s".to_owned(),
        "--v=10".to_owned(),
        format!("--logging-format={format}"),
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--cloud-config={config}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
    ]
    .map(OsString::from)
    .to_vec()
}

/// A Node and a Service that make the process ask the cloud.
async fn objects(world: &SecretsEnvironment) -> anyhow::Result<()> {
    let client = world.api.client();
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "node-0"},
        "spec": {
            "providerID": "openstack:///7b9cf879-7146-417c-abfd-cb4272f0c935",
            "taints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}],
        },
    }))?;
    Api::<Node>::all(client.clone())
        .create(&PostParams::default(), &node)
        .await?;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    }))?;
    Api::<Service>::namespaced(client, "default")
        .create(&PostParams::default(), &service)
        .await?;
    Ok(())
}

pub(crate) async fn no_password_is_shown_in_text() -> anyhow::Result<()> {
    journey(AuthMethod::Password, "text").await
}

pub(crate) async fn nothing_of_clouds_yaml_is_shown_in_json() -> anyhow::Result<()> {
    journey(AuthMethod::CloudsYaml, "json").await
}

pub(crate) async fn no_secret_of_an_application_credential_is_shown_in_json() -> anyhow::Result<()>
{
    journey(AuthMethod::Credential, "json").await
}

pub(crate) async fn no_token_is_shown_in_text() -> anyhow::Result<()> {
    journey(AuthMethod::Token, "text").await
}

pub(crate) async fn no_password_of_a_trustee_is_shown_in_text() -> anyhow::Result<()> {
    journey(AuthMethod::Trust, "text").await
}

pub(crate) async fn no_key_of_a_client_certificate_is_shown_in_json() -> anyhow::Result<()> {
    journey(AuthMethod::Certificate, "json").await
}
