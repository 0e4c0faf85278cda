//! Installs the browser that shows the page of explanations to a suite of the second tier.

use std::process::Command;

use anyhow::Context as _;

use crate::{openstack_real, process};

/// The program, and Debian's package of it.
const BROWSER: &str = "chromium";
/// A font, without which a page has no letters.
const FONT: &str = "fonts-dejavu-core";

/// What is left out without it, and how it can be had.
pub(crate) const MISSING: &str =
    "chromium, or root on Debian to install it: no test of the page of explanations in a browser";

/// Whether the browser is there, or can be installed.
pub(crate) fn can_be_prepared() -> bool {
    is_there() || (openstack_real::is_root() && process::runs("apt-get", &["--version"]))
}

/// Installs the browser where it is missing and can be installed.
pub(crate) fn prepare() -> anyhow::Result<()> {
    if is_there() || !can_be_prepared() {
        return Ok(());
    }
    println!("installing {BROWSER} with apt-get");
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(["--quiet", "--quiet"]).args(arguments);
        process::run(apt.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update"]).context("update the lists of packages")?;
    apt(&["install", "--yes", "--no-install-recommends", BROWSER, FONT])
        .with_context(|| format!("install {BROWSER}"))
}

fn is_there() -> bool {
    process::runs(BROWSER, &["--version"])
}
