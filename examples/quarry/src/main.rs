//! `ccm-quarry`: the cloud-controller-manager for Quarry.

use std::{process::ExitCode, sync::Arc};

use ccm_core::{app, config::Product, provider::prelude::*, provider::rest::Https};
use ccm_quarry::{NAME, Quarry};

#[tokio::main]
async fn main() -> ExitCode {
    const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));
    let product = Product::new("ccm-quarry", VERSION, &[NAME]);
    let run = app::run(product, std::env::args_os().skip(1), |config| async move {
        let https = Https::new(&format!("ccm-quarry/{VERSION}"))?;
        let quarry = Quarry::new(&config.generic.read_cloud_config()?, Arc::new(https))?;
        Ok(Arc::new(quarry) as Arc<dyn CloudProvider>)
    });
    Box::pin(run).await
}
