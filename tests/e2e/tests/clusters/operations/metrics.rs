//! What a scrape of the process shows, against the reference page.

use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_testkit::metrics::{differences, documented, scraped};
use ccm_testkit::supervised::free_port;
use http::Request;
use tokio::time::Instant;

use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!("scrape", EVERYWHERE, a_scrape_shows_every_documented_family_and_no_other)]
}

const PAGE: &str = include_str!("../../../../../docs/reference/metrics.md");
/// How often the page is asked for until the process leads.
const POLL: Duration = Duration::from_millis(200);

async fn a_scrape_shows_every_documented_family_and_no_other(s: &Scenario) -> anyhow::Result<()> {
    let port = free_port()?;
    let flags = [
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        // A scrape without credentials; who may see the page is another subject.
        "--authorization-always-allow-paths=/metrics".to_owned(),
        // Nor is it asked whether such a caller may be known.
        "--authentication-skip-lookup=true".to_owned(),
        "--controllers=*,nodeipam".to_owned(),
        "--allocate-node-cidrs=true".to_owned(),
        "--cluster-cidr=10.128.0.0/16".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let ccm = s.start("a", &flags).await?;
    s.register_initialized(&s.names(1)).await?;
    let client = client(port)?;
    let give_up = Instant::now() + SOON;
    loop {
        let seen = match client
            .request_text(Request::get("/metrics").body(Vec::new())?)
            .await
        {
            Ok(page) => differences(&documented(PAGE), &scraped(&page), &[]),
            Err(error) => vec![error.to_string()],
        };
        if seen.is_empty() {
            return ccm.terminate().await;
        }
        anyhow::ensure!(
            Instant::now() < give_up,
            "the scrape differs from docs/reference/metrics.md: {seen:#?}"
        );
        tokio::time::sleep(POLL).await;
    }
}

/// The process serves with a certificate that it signed itself.
fn client(port: u16) -> anyhow::Result<kube::Client> {
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    config.accept_invalid_certs = true;
    kube::Client::try_from(config).context("make the client of the scrape")
}
