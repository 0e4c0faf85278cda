//! What tests need beside Rust: programs in Go, and Python's packages.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::assets::{self, Release};
use crate::tier::{TIER_VARIABLE, Tier};
use crate::{
    browser, control_plane, image, kubernetes_tests, machine, nodes, openstack_real, process,
    python,
};

/// Where prepared programs are, as variables for test programs.
#[derive(Debug, Default)]
pub(super) struct Tools {
    found: Vec<(&'static str, PathBuf)>,
}

/// Says what is missing of what a tier needs, and what is left out for that; fails when it is
/// `required`.
pub(super) fn check(tier: Tier, required: bool) -> anyhow::Result<()> {
    let missing = missing(tier);
    for line in &missing {
        eprintln!("missing: {line}");
    }
    anyhow::ensure!(
        missing.is_empty() || !required,
        "not everything is there that {} needs, and everything is required",
        tier.command()
    );
    Ok(())
}

fn missing(tier: Tier) -> Vec<String> {
    let mut missing = Vec::new();
    if tier == Tier::Quick {
        return missing;
    }
    if !control_plane::go_is_there() {
        let real = if control_plane::all_there(Release::chosen()) {
            ""
        } else {
            "a real kube-apiserver, helm, "
        };
        missing.push(format!(
            "Go (`go version` does not run): no tests with {real}Go's own controllers, kubelets"
        ));
    }
    for tool in [python::MOTO, python::OPENSTACK] {
        if !tool.can_be_prepared() {
            missing.push(format!("Python with venv: no {}", tool.skipped));
        }
    }
    if !process::runs("kubectl", &["version", "--client"]) {
        missing.push("kubectl: no tests with it".to_owned());
    }
    if !browser::can_be_prepared() {
        missing.push(browser::MISSING.to_owned());
    }
    if tier == Tier::Nightly && !openstack_real::can_be_prepared() {
        missing.push(openstack_real::MISSING.to_owned());
    }
    missing
}

impl Tools {
    /// Builds and installs what the tier needs and can be had here; the rest, [`check`] has told.
    pub(super) fn prepare(tier: Tier) -> anyhow::Result<Self> {
        let mut found = Vec::new();
        if tier == Tier::Quick {
            return Ok(Self { found });
        }
        let go = control_plane::go_is_there();
        if go || control_plane::all_there(Release::chosen()) {
            control_plane::build(Release::chosen())?;
        }
        if go {
            let upstreams = tier == Tier::Nightly;
            let programs =
                control_plane::build_go_programs(upstreams).context("build programs in Go")?;
            found.push((assets::GO_PROGRAMS_VARIABLE, programs));
            if upstreams {
                found.extend(control_plane::sources_of_upstream().context("find upstream")?);
            }
            if image::missing()?.is_some() {
                found.push((nodes::VARIABLE, PathBuf::new()));
            } else if machine::unfit().is_none() {
                found.push((nodes::VARIABLE, nodes::prepare().context("prepare nodes")?));
                if tier == Tier::Nightly {
                    let tests = kubernetes_tests::prepare().context("prepare Kubernetes' tests")?;
                    found.push((kubernetes_tests::VARIABLE, tests));
                }
            }
        }
        for tool in [python::MOTO, python::OPENSTACK] {
            if let Some(program) = tool.prepare()? {
                found.push((tool.variable, program));
            }
        }
        browser::prepare()?;
        found.push((nodes::XTASK_VARIABLE, std::env::current_exe().context("find this program")?));
        if tier == Tier::Nightly
            && let Some(state) = openstack_real::prepare()?
        {
            found.push((openstack_real::VARIABLE, state));
        }
        Ok(Self { found })
    }

    /// What test programs of a tier are told.
    pub(super) fn variables(&self, tier: Tier) -> Vec<(String, String)> {
        let tier = (TIER_VARIABLE.to_owned(), tier.word().to_owned());
        let found = self
            .found
            .iter()
            .map(|(name, path)| ((*name).to_owned(), path.to_string_lossy().into_owned()));
        std::iter::once(tier).chain(found).collect()
    }
}
