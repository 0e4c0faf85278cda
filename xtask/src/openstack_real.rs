//! Sets up OpenStack's own services, which a suite of the third tier runs on.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::{process, root};

/// Names the state of the services for tests; who sets it has set them up.
pub(crate) const VARIABLE: &str = "CCM_OPENSTACK_REAL";

/// What is left out without them, and why they cannot be had here.
pub(crate) const MISSING: &str = "root on Debian with Python and apt: no tests of the OpenStack provider on OpenStack's own services";

/// Returns where their state is, after setting them up if that was not done with this version of
/// the scripts. There is none where they cannot be had.
pub(crate) fn prepare() -> anyhow::Result<Option<PathBuf>> {
    if let Some(given) = given() {
        return Ok(Some(given));
    }
    if !can_be_prepared() {
        return Ok(None);
    }
    let started = Instant::now();
    println!("OpenStack's services: setting them up takes about eight minutes, the first time");
    let script = root()?.join("tests/control-plane/openstack-real/setup.sh");
    let mut setup = Command::new("bash");
    setup
        .arg(script)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let output = process::output(&mut setup).context("set up OpenStack's services")?;
    let state = output
        .lines()
        .next_back()
        .context("setup.sh did not print where the services are")?;
    println!(
        "OpenStack's services: there in {state} after {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(Some(state.into()))
}

/// Whether they are named, or can be set up.
pub(crate) fn can_be_prepared() -> bool {
    given().is_some()
        || (is_root()
            && process::runs("apt-get", &["--version"])
            && process::runs("python3", &["--version"]))
}

fn given() -> Option<PathBuf> {
    std::env::var_os(VARIABLE)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
