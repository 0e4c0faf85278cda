//! `ccm-openstack`: the cloud-controller-manager for OpenStack.

use std::{process::ExitCode, sync::Arc};

use ccm_core::app::BoxError;
use ccm_openstack::{
    client::{Https, Transport},
    config::{Cloud, Environment},
    manager,
};

#[tokio::main]
async fn main() -> ExitCode {
    Box::pin(manager::run(std::env::args_os().skip(1), Environment::of_process(), connect)).await
}

fn connect(cloud: &Cloud, agents: &[String]) -> Result<Arc<dyn Transport>, BoxError> {
    Ok(Arc::new(Https::new(cloud, agents)?))
}
