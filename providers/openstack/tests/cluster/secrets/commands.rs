//! What else `ccm-openstack` does: the subcommand, the single comparison, and mistakes in its
//! files.

use std::{ffi::OsString, path::Path, process::ExitStatus, sync::atomic::Ordering};

use anyhow::ensure;
use ccm_e2e::ccm::Ccm;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};

use super::{
    arguments,
    environment::{AuthMethod, CREDENTIAL_SECRET, PASSWORD, SOON, SecretsEnvironment},
    objects,
};

/// Runs to the end; returns how it ended and what it printed.
async fn run(
    world: &SecretsEnvironment,
    config: &Path,
    word: Option<&str>,
    flags: &[&str],
) -> anyhow::Result<(ExitStatus, String)> {
    let mut args: Vec<OsString> = word.map(OsString::from).into_iter().collect();
    args.extend(arguments(&world.kubeconfig()?, config, 0, "text"));
    args.extend(flags.iter().map(OsString::from));
    let program = Path::new(env!("CARGO_BIN_EXE_ccm-openstack"));
    let folder = tempfile::tempdir()?;
    let mut process = Ccm::start(program, folder.path(), "command", args).await?;
    let status = process.exit(SOON).await?;
    Ok((status, process.log()))
}

pub(crate) async fn no_command_shows_a_secret() -> anyhow::Result<()> {
    let world = SecretsEnvironment::new(AuthMethod::Trust).await?;
    let config = world.cloud_config(AuthMethod::Trust).await?;
    objects(&world).await?;
    // A comparison waits for a Node that is not ready and has no instance.
    Api::<Node>::all(world.api.client())
        .delete("node-0", &DeleteParams::default())
        .await?;
    let commands: [(Option<&str>, &[&str], &str); 3] = [
        (Some("orphans"), &["--output=json"], "\"orphans\""),
        (Some("orphans"), &[], "cloud objects are orphans"),
        (None, &["--shadow-once", "--shadow-settle=1s"], "web"),
    ];
    for (word, flags, said) in commands {
        let (status, log) = run(&world, &config, word, flags).await?;
        world.secrets.lock().check("a command", &log)?;
        let is_final = matches!(status.code(), Some(0 | 2));
        ensure!(is_final && log.contains(said) && log.contains("hyper_util"), "{status}: {log}");
        // Refused in words that repeat the request.
        world.refusing.store(401, Ordering::SeqCst);
        let (status, log) = run(&world, &config, word, flags).await?;
        world.refusing.store(0, Ordering::SeqCst);
        world
            .secrets
            .lock()
            .check("a command that is refused", &log)?;
        ensure!(status.code() == Some(1) && log.contains("refused POST"), "{status}: {log}");
    }
    world.spoil(&config)?;
    let (status, log) = run(&world, &config, Some("orphans"), &[]).await?;
    world
        .secrets
        .lock()
        .check("a command with a wrong secret", &log)?;
    ensure!(status.code() == Some(1) && log.contains("authentication at "), "{status}: {log}");
    world.close().await
}

// length: a file with a mistake after the other
pub(crate) async fn mistakes_around_a_secret_are_told_without_it() -> anyhow::Result<()> {
    let world = SecretsEnvironment::new(AuthMethod::Password).await?;
    let config = world.folder.path().join("cloud.conf");
    let file = |name: &str, text: &str| {
        let path = world.folder.path().join(name);
        std::fs::write(&path, text).map(|()| path.display().to_string())
    };
    let pem = file(
        "key",
        &format!("-----BEGIN PRIVATE KEY-----\n{PASSWORD}\n-----END PRIVATE KEY-----\n"),
    )?;
    let certificate = file("cert", &format!("{CREDENTIAL_SECRET}\n"))?;
    let yaml = file(
        "clouds.yaml",
        &format!("clouds: {{one: {{auth: [{CREDENTIAL_SECRET}, '{PASSWORD}']}}}}"),
    )?;
    let cut =
        file("cut.yaml", &format!("clouds:\n  one:\n    auth:\n      password: '{PASSWORD}\n"))?;
    let secret = PASSWORD.replace('"', "\\\"");
    let user = "[Global]\nauth-url = http://127.0.0.1:1/v3\nregion = R\nusername = u\ndomain-id = d\ntenant-id = t\n";
    let cases = [
        ("a quote that does not end", format!("{user}password = \"{secret}\n"), "cloud.conf"),
        (
            "a line that is none",
            format!("{user}password = \"{secret}\"\n\"{secret}\"\n"),
            "cloud.conf",
        ),
        (
            "a key that is none",
            format!("{user}password = x\n{CREDENTIAL_SECRET}\n[LoadBalancer]\nmonitor-delay = x\n"),
            "monitor-delay",
        ),
        ("an escape that is none", format!("{user}password = \"\\q{secret}\"\n"), "cloud.conf"),
        (
            "no user",
            format!("[Global]\nauth-url = http://a/v3\npassword = \"{secret}\"\n"),
            "username",
        ),
        (
            "a password in the URL",
            format!("[Global]\nauth-url = http://u:{CREDENTIAL_SECRET}@a/v3\npassword = x\n"),
            "auth-url",
        ),
        (
            "two secrets",
            format!("{user}application-credential-secret = {CREDENTIAL_SECRET}\n"),
            "application-credential",
        ),
        (
            "files of TLS that are none",
            format!("{user}password = x\ncert-file = {certificate}\nkey-file = {pem}\n"),
            "cert-file",
        ),
        (
            "clouds.yaml of another type",
            format!("[Global]\nuse-clouds = true\nclouds-file = {yaml}\ncloud = one\n"),
            "clouds.yaml",
        ),
        (
            "clouds.yaml that is cut",
            format!("[Global]\nuse-clouds = true\nclouds-file = {cut}\ncloud = one\n"),
            "cut.yaml",
        ),
    ];
    for (name, text, said) in cases {
        std::fs::write(&config, text)?;
        let (status, log) = run(&world, &config, None, &[]).await?;
        world.secrets.lock().check(name, &log)?;
        ensure!(
            status.code() == Some(1) && log.contains("error: ") && log.contains(said),
            "{name}: {status}: {log}"
        );
    }
    world.close().await
}
