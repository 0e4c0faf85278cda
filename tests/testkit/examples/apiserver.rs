//! The embedded API server alone, for trying it by hand: `cargo run -p ccm-testkit --example
//! apiserver -- KUBECONFIG` writes an administrator's kubeconfig there and serves on loopback until
//! Ctrl-C.

use anyhow::Context as _;
use ccm_testkit::apiserver::{ApiServer, Options};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let path = std::env::args()
        .nth(1)
        .context("usage: apiserver KUBECONFIG")?;
    let serving = ApiServer::new(Options::default())
        .serve(([127, 0, 0, 1], 0).into())
        .await?;
    serving
        .write_kubeconfig(&path)
        .with_context(|| format!("write {path}"))?;
    tokio::signal::ctrl_c().await?;
    serving.stop().await;
    Ok(())
}
