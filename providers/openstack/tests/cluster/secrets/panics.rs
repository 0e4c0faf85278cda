//! A provider that panics with all that it knows in its message: the configuration shows no
//! secrets, and what looks like a credential is hidden. A password in plain words would be shown:
//! nothing can know it for one.

use std::{ffi::OsString, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::ensure;
use async_trait::async_trait;
use ccm_core::{
    app,
    provider::{CloudError, CloudProvider, ProviderContext},
};
use ccm_e2e::ccm::Ccm;
use ccm_openstack::{
    config::{self, Environment, Settings},
    manager::product,
};

use super::{
    arguments,
    environment::{AuthMethod, SOON, SecretsEnvironment},
};

/// What a library might repeat of a request.
const HEADER: &str = "Bearer header.Nf5/Ga2+Qe9=";
/// Files of the child, whose environment says no more.
const FILES: [&str; 2] = ["CHILD_KUBECONFIG", "CHILD_CLOUD_CONFIG"];

struct Panics(Settings);

#[async_trait]
impl CloudProvider for Panics {
    fn name(&self) -> &'static str {
        "openstack"
    }

    async fn start(&self, _: ProviderContext) -> Result<(), CloudError> {
        panic!("cannot go on with {:?} and {HEADER}", self.0);
    }
}

pub(crate) async fn a_panic_with_the_configuration_shows_no_secret() -> anyhow::Result<()> {
    for proof in [AuthMethod::Token, AuthMethod::Trust] {
        let world = SecretsEnvironment::new(proof).await?;
        world.secrets.lock().add("a header", HEADER);
        let files = [world.kubeconfig()?, world.cloud_config(proof).await?];
        let mut args: Vec<OsString> = FILES
            .iter()
            .zip(&files)
            .map(|(name, file)| format!("{name}={}", file.display()).into())
            .collect();
        args.push(std::env::current_exe()?.into());
        let mut child =
            Ccm::start("/usr/bin/env".as_ref(), world.folder.path(), "child", args).await?;
        let status = child.exit(SOON).await?;
        let log = child.log();
        world.secrets.lock().check("the log", &log)?;
        for said in ["panicked at ", "cannot go on with Settings {", "Secret(…)", "Bearer …"] {
            ensure!(log.contains(said), "{proof:?}: nothing of {said:?} in {log}");
        }
        ensure!(!status.success(), "{log}");
        world.close().await?;
    }
    Ok(())
}

/// Is the child, where this process is one: the manager with a provider that panics.
pub(crate) fn child() -> Option<ExitCode> {
    let [kubeconfig, file] = FILES.map(|name| std::env::var_os(name).map(PathBuf::from));
    let (kubeconfig, file) = (kubeconfig?, file?);
    let args = arguments(&kubeconfig, &file, 0, "text");
    let build = |_| async move {
        let settings = config::load(Some(&file), &Environment::of_process())?;
        Ok(Arc::new(Panics(settings)) as Arc<dyn CloudProvider>)
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    Some(runtime.block_on(app::run(product(), args, build)))
}
