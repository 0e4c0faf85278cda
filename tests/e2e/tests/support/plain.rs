//! Cases that are functions and need no cluster: they panic, or return an error, where something is
//! wrong.

use std::fmt;
use std::process::ExitCode;

use ccm_testkit::suite::{Tier, failed};
use libtest_mimic::{Arguments, Failed, Trial};

/// A case, named after its module and its function.
pub(crate) struct Case {
    /// Path of its module, with the name of the suite.
    pub(crate) module: &'static str,
    /// Says what must hold.
    pub(crate) name: &'static str,
    /// When it runs.
    pub(crate) tier: Tier,
    /// Why it cannot run here.
    pub(crate) missing: Option<String>,
    /// What it does.
    pub(crate) body: fn() -> Result<(), Failed>,
}

impl Case {
    fn trial(self, chosen: Tier) -> Option<Trial> {
        // The suite is told from others by its program.
        let module = self
            .module
            .split_once("::")
            .map_or("", |(_, module)| module);
        self.tier
            .case(chosen, format!("{module}::{}", self.name), self.missing, self.body)
    }
}

/// What cases return.
pub(crate) trait Outcome {
    /// Whether it is a failure.
    fn judge(self) -> Result<(), Failed>;
}

impl Outcome for () {
    fn judge(self) -> Result<(), Failed> {
        Ok(())
    }
}

impl Outcome for anyhow::Result<()> {
    fn judge(self) -> Result<(), Failed> {
        self.map_err(failed)
    }
}

/// Lists functions as cases of the first tier.
#[macro_export]
macro_rules! cases {
    ($($body:ident),+ $(,)?) => {
        vec![$($crate::plain::Case {
            module: module_path!(),
            name: stringify!($body),
            tier: ccm_testkit::suite::Tier::Quick,
            missing: None,
            body: || $crate::plain::Outcome::judge($body()),
        }),+]
    };
}

/// These cases, where nothing is missing.
pub(crate) fn needing(missing: Option<impl fmt::Display>, cases: Vec<Case>) -> Vec<Case> {
    let missing = missing.map(|missing| missing.to_string());
    cases
        .into_iter()
        .map(|case| Case { missing: missing.clone(), ..case })
        .collect()
}

/// Runs these cases as the arguments of the process say.
pub(crate) fn main(arguments: &Arguments, cases: Vec<Case>) -> anyhow::Result<ExitCode> {
    let chosen = Tier::chosen()?;
    let trials = cases.into_iter().filter_map(|case| case.trial(chosen));
    Ok(libtest_mimic::run(arguments, trials.collect()).exit_code())
}
