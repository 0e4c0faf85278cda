//! Starts a control plane and waits for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use tokio::time::Instant;

use super::access::Endpoint;
use super::components::{Plan, Ports};
use super::pki::{Pki, write_private};
use super::supervised::{Supervised, spawn_janitor};
use super::{Binaries, Component, ControlPlane, Missing, Options, StartError, User, audit, write_kubeconfig};

/// Pause between two looks at a program that is starting.
const POLL: Duration = Duration::from_millis(50);

/// How often the start is tried when somebody else takes one of the ports in between.
const ATTEMPTS: u32 = 3;

/// Lines of a program's log that an error shows.
const LOG_LINES: usize = 20;

/// Namespaces that the API server makes by itself shortly after it is ready.
const SYSTEM_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-node-lease"];

pub(super) async fn start(binaries: &Binaries, options: Options) -> Result<ControlPlane, StartError> {
    let deadline = Instant::now() + options.start_timeout;
    let mut attempt = 1;
    loop {
        match try_start(binaries, &options, deadline).await {
            Err(StartError::Exited { log, .. }) if attempt < ATTEMPTS && log.contains("address already in use") => {
                attempt += 1;
            }
            other => return other,
        }
    }
}

async fn try_start(binaries: &Binaries, options: &Options, deadline: Instant) -> Result<ControlPlane, StartError> {
    let directory = tempfile::Builder::new().prefix("ccm-control-plane-").tempdir()?;
    let janitor = spawn_janitor(directory.path())?;
    let pki = Pki::create(directory.path())?;
    let plan = Plan { directory: directory.path(), ports: Ports::free()?, pki: &pki, options };

    let admin = User::new("ccm-test-admin").group("system:masters");
    let tokens: String = std::iter::once(&admin).chain(&options.users).map(User::token_line).collect();
    let token_file = write_private(plan.directory, "tokens.csv", &tokens)?;
    let audit_policy =
        options.audit.then(|| write_private(plan.directory, "audit-policy.json", audit::POLICY)).transpose()?;
    let endpoint = Endpoint { url: format!("https://127.0.0.1:{}", plan.ports.apiserver), ca_pem: pki.ca_pem.clone() };
    let audit_log = options.audit.then(|| plan.audit_log());

    let etcd = plan.etcd(&binaries.etcd);
    let apiserver = plan.apiserver(&binaries.kube_apiserver, &token_file, audit_policy.as_deref());
    let controller_manager = options
        .controller_manager
        .as_ref()
        .map(|wanted| -> Result<_, StartError> {
            let kubeconfig = plan.directory.join("controller-manager.kubeconfig");
            write_kubeconfig(&endpoint, &kubeconfig, &admin.token)?;
            Ok(plan.controller_manager(controller_manager_binary(binaries)?, &kubeconfig, wanted))
        })
        .transpose()?;
    let controller_manager_url = format!("https://127.0.0.1:{}", plan.ports.controller_manager);

    let log = |name: &str| plan.directory.join(format!("{name}.log"));
    let mut programs = BTreeMap::new();
    // Both at once: the API server waits for etcd by itself.
    programs.insert(Component::Etcd, Supervised::spawn(&etcd, &log(etcd.name)).await?);
    programs.insert(Component::Apiserver, Supervised::spawn(&apiserver, &log(apiserver.name)).await?);
    let mut control_plane = ControlPlane {
        endpoint,
        admin,
        users: options.users.clone(),
        audit_log,
        programs,
        directory,
        _janitor: janitor,
    };
    wait_for_apiserver(&mut control_plane, options.start_timeout, deadline).await?;
    if let Some(command) = controller_manager {
        let log = control_plane.directory.path().join(format!("{}.log", command.name));
        control_plane.programs.insert(Component::ControllerManager, Supervised::spawn(&command, &log).await?);
        let url = controller_manager_url;
        wait_for_controller_manager(&mut control_plane, url, options.start_timeout, deadline).await?;
    }
    Ok(control_plane)
}

fn controller_manager_binary(binaries: &Binaries) -> Result<&PathBuf, Missing> {
    binaries.kube_controller_manager.as_ref().ok_or_else(|| Missing {
        directory: binaries.kube_apiserver.parent().map(Into::into),
        names: vec!["kube-controller-manager"],
    })
}

async fn wait_for_apiserver(
    control_plane: &mut ControlPlane,
    timeout: Duration,
    deadline: Instant,
) -> Result<(), StartError> {
    let client = control_plane.client().await?;
    let ready = || apiserver_ready(client.clone());
    wait(control_plane, Component::Apiserver, timeout, deadline, ready).await
}

async fn apiserver_ready(client: kube::Client) -> Result<(), String> {
    get(client.clone(), "/readyz").await?;
    let namespaces: kube::Api<Namespace> = kube::Api::all(client);
    let list = namespaces.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
    let there = |name: &&str| list.items.iter().any(|namespace| namespace.metadata.name.as_deref() == Some(*name));
    match SYSTEM_NAMESPACES.iter().find(|name| !there(name)) {
        Some(name) => Err(format!("no namespace {name} yet")),
        None => Ok(()),
    }
}

async fn wait_for_controller_manager(
    control_plane: &mut ControlPlane,
    url: String,
    timeout: Duration,
    deadline: Instant,
) -> Result<(), StartError> {
    let endpoint = Endpoint { url, ca_pem: control_plane.endpoint.ca_pem.clone() };
    let config = endpoint.config(&control_plane.admin.token).await.map_err(super::ClientError::from)?;
    let client = kube::Client::try_from(config).map_err(super::ClientError::from)?;
    let ready = || get(client.clone(), "/healthz");
    wait(control_plane, Component::ControllerManager, timeout, deadline, ready).await
}

/// Asks `ready` again and again until it agrees, a program ended, or the time is up.
async fn wait<F: Future<Output = Result<(), String>>>(
    control_plane: &mut ControlPlane,
    component: Component,
    timeout: Duration,
    deadline: Instant,
    ready: impl Fn() -> F,
) -> Result<(), StartError> {
    let mut last = "no answer yet".to_owned();
    loop {
        for program in control_plane.programs.values_mut() {
            if program.exited()?.is_some() {
                return Err(StartError::Exited { program: program.name(), log: tail(&program.log()) });
            }
        }
        match tokio::time::timeout_at(deadline, ready()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(answer)) => last = answer,
            Err(_) => {}
        }
        if Instant::now() + POLL >= deadline {
            let program = control_plane.programs.get(&component);
            return Err(StartError::NotReady {
                program: program.map_or("a program", Supervised::name),
                after: timeout,
                last,
                log: program.map(Supervised::log).as_deref().map(tail).unwrap_or_default(),
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn get(client: kube::Client, path: &'static str) -> Result<(), String> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    client.request_text(request).await.map(drop).map_err(|error| error.to_string())
}

fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}
