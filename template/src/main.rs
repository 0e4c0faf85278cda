//! `ccm-acme`: the cloud-controller-manager for Acme.

use std::{process::ExitCode, sync::Arc};

use ccm_acme::{Acme, NAME};
use ccm_core::{app, config::Product, provider::prelude::*, provider::rest::Https};

#[tokio::main]
async fn main() -> ExitCode {
    const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));
    let product = Product::new("ccm-acme", VERSION, &[NAME]);
    let run = app::run(product, std::env::args_os().skip(1), |config| async move {
        let https = Https::new(&format!("ccm-acme/{VERSION}"))?;
        let acme = Acme::new(&config.generic.read_cloud_config()?, Arc::new(https))?;
        Ok(Arc::new(acme) as Arc<dyn CloudProvider>)
    });
    Box::pin(run).await
}
