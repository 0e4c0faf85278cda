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
use super::{
    Binaries, ClientError, Component, ControlPlane, Missing, Options, StartError, User, audit,
    write_kubeconfig,
};
use crate::supervised::{Supervised, spawn_janitor};

/// Pause between two looks at a program that is starting.
const POLL: Duration = Duration::from_millis(50);

/// Number of attempts if another process takes one of the ports in between.
const ATTEMPTS: u32 = 3;

/// Lines of a program's log that an error shows.
const LOG_LINES: usize = 20;

/// Namespaces that the API server makes by itself shortly after it is ready.
const SYSTEM_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-node-lease"];

pub(super) async fn start(
    binaries: &Binaries,
    options: Options,
) -> Result<ControlPlane, StartError> {
    let deadline = Instant::now() + options.start_timeout;
    let mut attempt = 1;
    loop {
        match try_start(binaries, &options, deadline).await {
            Err(StartError::Exited { log, .. })
                if attempt < ATTEMPTS && log.contains("address already in use") =>
            {
                attempt += 1;
            }
            other => return other,
        }
    }
}

async fn try_start(
    binaries: &Binaries,
    options: &Options,
    deadline: Instant,
) -> Result<ControlPlane, StartError> {
    let mut control_plane = prepare(binaries, options)?;
    // Both at once: the API server waits for etcd by itself.
    launch(&mut control_plane, Component::Etcd).await?;
    launch(&mut control_plane, Component::Apiserver).await?;
    wait_until_ready(&mut control_plane, Component::Apiserver, deadline).await?;
    if options.controller_manager.is_some() {
        launch(&mut control_plane, Component::ControllerManager).await?;
        wait_until_ready(&mut control_plane, Component::ControllerManager, deadline).await?;
    }
    Ok(control_plane)
}

/// Writes all files and decides all command lines; starts nothing but the janitor.
fn prepare(binaries: &Binaries, options: &Options) -> Result<ControlPlane, StartError> {
    let directory = tempfile::Builder::new()
        .prefix("ccm-control-plane-")
        .tempdir()?;
    let janitor = spawn_janitor(directory.path())?;
    let pki = Pki::create(directory.path())?;
    let plan = Plan {
        directory: directory.path(),
        ports: Ports::free()?,
        pki: &pki,
        options,
    };

    let admin = User::new("ccm-test-admin").group("system:masters");
    let tokens: String = std::iter::once(&admin)
        .chain(&options.users)
        .map(User::token_line)
        .collect();
    let token_file = write_private(plan.directory, "tokens.csv", &tokens)?;
    let audit_policy = options
        .audit
        .then(|| write_private(plan.directory, "audit-policy.json", audit::POLICY))
        .transpose()?;
    let endpoint = |port: u16| Endpoint {
        url: format!("https://127.0.0.1:{port}"),
        ca_pem: pki.ca_pem.clone(),
    };
    let apiserver = endpoint(plan.ports.apiserver);

    let mut commands = BTreeMap::from([
        (Component::Etcd, plan.etcd(&binaries.etcd)),
        (
            Component::Apiserver,
            plan.apiserver(&binaries.kube_apiserver, &token_file, audit_policy.as_deref()),
        ),
    ]);
    if let Some(wanted) = &options.controller_manager {
        let kubeconfig = plan.directory.join("controller-manager.kubeconfig");
        write_kubeconfig(&apiserver, &kubeconfig, &admin.token)?;
        let command =
            plan.controller_manager(controller_manager_binary(binaries)?, &kubeconfig, wanted);
        commands.insert(Component::ControllerManager, command);
    }
    Ok(ControlPlane {
        endpoint: apiserver,
        controller_manager: endpoint(plan.ports.controller_manager),
        admin,
        users: options.users.clone(),
        authorities: pki.authorities.clone(),
        audit_log: options.audit.then(|| plan.audit_log()),
        start_timeout: options.start_timeout,
        commands,
        programs: BTreeMap::new(),
        directory,
        _janitor: janitor,
    })
}

fn controller_manager_binary(binaries: &Binaries) -> Result<&PathBuf, Missing> {
    binaries
        .kube_controller_manager
        .as_ref()
        .ok_or_else(|| Missing {
            directory: binaries.kube_apiserver.parent().map(Into::into),
            names: vec!["kube-controller-manager"],
        })
}

/// Starts one program; waits for nothing.
pub(super) async fn launch(
    control_plane: &mut ControlPlane,
    component: Component,
) -> Result<(), StartError> {
    let command = control_plane
        .commands
        .get(&component)
        .ok_or(StartError::NotPrepared(component))?;
    let log = control_plane
        .directory
        .path()
        .join(format!("{}.log", command.name));
    let program = Supervised::spawn(command, &log).await?;
    control_plane.programs.insert(component, program);
    Ok(())
}

/// Waits until the program does its work; etcd does when the API server can.
pub(super) async fn wait_until_ready(
    control_plane: &mut ControlPlane,
    component: Component,
    deadline: Instant,
) -> Result<(), StartError> {
    let is_manager = component == Component::ControllerManager;
    let endpoint = if is_manager {
        &control_plane.controller_manager
    } else {
        &control_plane.endpoint
    };
    let config = endpoint
        .config(&control_plane.admin.token)
        .await
        .map_err(ClientError::from)?;
    let client = kube::Client::try_from(config).map_err(ClientError::from)?;
    if is_manager {
        wait(control_plane, component, deadline, || get(client.clone(), "/healthz")).await
    } else {
        wait(control_plane, Component::Apiserver, deadline, || apiserver_ready(client.clone()))
            .await
    }
}

async fn apiserver_ready(client: kube::Client) -> Result<(), String> {
    get(client.clone(), "/readyz").await?;
    let namespaces: kube::Api<Namespace> = kube::Api::all(client);
    let list = namespaces
        .list(&ListParams::default())
        .await
        .map_err(|error| error.to_string())?;
    let there = |name: &&str| {
        list.items
            .iter()
            .any(|namespace| namespace.metadata.name.as_deref() == Some(*name))
    };
    match SYSTEM_NAMESPACES.iter().find(|name| !there(name)) {
        Some(name) => Err(format!("no namespace {name} yet")),
        None => Ok(()),
    }
}

/// Calls `ready` repeatedly until it succeeds, a program ends, or the time is up.
async fn wait<F: Future<Output = Result<(), String>>>(
    control_plane: &mut ControlPlane,
    component: Component,
    deadline: Instant,
    ready: impl Fn() -> F,
) -> Result<(), StartError> {
    let mut last = "no answer yet".to_owned();
    loop {
        for program in control_plane.programs.values_mut() {
            if program.exited()?.is_some() {
                return Err(StartError::Exited {
                    program: program.name(),
                    log: tail(&program.log()),
                });
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
                after: control_plane.start_timeout,
                last,
                log: program
                    .map(Supervised::log)
                    .as_deref()
                    .map(tail)
                    .unwrap_or_default(),
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn get(client: kube::Client, path: &'static str) -> Result<(), String> {
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(|error| error.to_string())?;
    client
        .request_text(request)
        .await
        .map(drop)
        .map_err(|error| error.to_string())
}

fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}
