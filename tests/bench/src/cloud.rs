//! The cloud of one run: in the manager's process or in one of its own.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use ccm_testkit::{
    control_plane::usage,
    supervised::{CommandLine, Supervised, free_port},
};
use serde_json::json;

use crate::{
    admin::AdminClient,
    scenario::CloudProfile,
    subject::{BenchmarkedManager, CloudLocation},
};

/// A cloud, or the place for one.
pub(crate) struct Cloud {
    admin: AdminClient,
    /// For `--cloud-config`.
    config: PathBuf,
    /// The cloud's own process, if it has one.
    process: Option<Supervised>,
}

impl Cloud {
    /// Prepares the cloud of a manager, and starts it when it is not in the manager. `name` tells
    /// several apart.
    pub(crate) async fn start(
        contender: &BenchmarkedManager,
        setting: CloudProfile,
        folder: &Path,
        name: &str,
    ) -> anyhow::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let mut cloud = setting.cloud();
        cloud["adminAddress"] = address.to_string().into();
        if contender.is_go() {
            cloud["stateFile"] = folder.join("state.json").display().to_string().into();
        }
        let config = folder.join(format!("cloud-{name}.yaml"));
        std::fs::write(&config, cloud.to_string())?;
        let admin = AdminClient::new(address);
        if contender.place == CloudLocation::Inside {
            return Ok(Self { admin, config, process: None });
        }
        let args = vec!["cloud".into(), "--cloud-config".into(), config.clone().into_os_string()];
        let command = CommandLine { name: "cloud", program: contender.binary.clone(), args };
        let process =
            Supervised::spawn(&command, &folder.join(format!("cloud-{name}.log"))).await?;
        admin.ready().await.with_context(|| process.log())?;
        let endpoint = folder.join(format!("endpoint-{name}.yaml"));
        std::fs::write(&endpoint, json!({"endpoint": address.to_string()}).to_string())?;
        Ok(Self { admin, config: endpoint, process: Some(process) })
    }

    /// Its admin API.
    pub(crate) fn admin(&self) -> &AdminClient {
        &self.admin
    }

    /// The file for `--cloud-config`.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Seconds of processor time of the cloud's own process; none when it is in the manager's.
    pub(crate) fn cpu(&self) -> Option<f64> {
        Some(usage(self.process.as_ref()?.pid())?.cpu.as_secs_f64())
    }

    /// Ends it.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        match self.process {
            Some(process) => Ok(process.stop(Duration::from_secs(10)).await?),
            None => Ok(()),
        }
    }
}
