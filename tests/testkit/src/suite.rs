//! Tiers of tests, and cases that are ignored with a reason.
//!
//! `cargo xtask test` runs the first tier, which needs only Rust. `--full` adds tests that need Go,
//! Python or a cloud's SDK, and `--nightly` adds long tests. A suite with cases of several tiers is
//! one program that runs once for each tier. It omits the cases of earlier tiers, which have already
//! run, and reports those of later tiers as ignored. A case whose tools are missing is also ignored,
//! with their names; it is never reported as passed. `cargo xtask test --require-all` fails if any
//! tool is missing.

use std::fmt;

use anyhow::Context as _;
use libtest_mimic::{Completion, Failed, Trial};

pub use crate::tier::{TIER_VARIABLE, Tier};

impl Tier {
    /// Returns the tier that [`TIER_VARIABLE`] selects; [`Tier::Quick`] if it is not set.
    ///
    /// # Errors
    /// The variable has another value.
    pub fn chosen() -> anyhow::Result<Self> {
        Self::of(std::env::var(TIER_VARIABLE).ok().as_deref())
    }

    pub(crate) fn of(word: Option<&str>) -> anyhow::Result<Self> {
        let Some(word) = word.filter(|word| !word.is_empty()) else {
            return Ok(Self::default());
        };
        let found = Self::ALL.into_iter().find(|tier| tier.word() == word);
        found
            .with_context(|| format!("{TIER_VARIABLE}={word:?} is none of quick, full and nightly"))
    }

    /// Returns a case of this tier for a run of the tier `chosen`. `None` if an earlier tier's run
    /// includes it. Ignored if it is of a later tier, or if something is `missing`, which then is
    /// the reason.
    pub fn case<R>(
        self,
        chosen: Self,
        name: impl Into<String>,
        missing: Option<impl fmt::Display>,
        runner: R,
    ) -> Option<Trial>
    where
        R: FnOnce() -> Result<(), Failed> + Send + 'static,
    {
        if self < chosen {
            return None;
        }
        if self > chosen {
            return Some(ignored(name, self.command()));
        }
        Some(match missing {
            Some(missing) => ignored(name, missing),
            None => Trial::test(name, runner),
        })
    }
}

/// Returns the size of a test: smaller in the quick tier than in the others.
///
/// # Errors
/// Same as [`Tier::chosen`].
pub fn sized(quick: usize, whole: usize) -> anyhow::Result<usize> {
    Ok(if Tier::chosen()? == Tier::Quick {
        quick
    } else {
        whole
    })
}

/// Returns a case that is ignored for this reason.
pub fn ignored(name: impl Into<String>, reason: impl fmt::Display) -> Trial {
    let reason = reason.to_string();
    Trial::ignorable_test(name, move || Ok(Completion::ignored_with(reason)))
}

/// Converts an error with all its causes to the failure of a case.
pub fn failed(error: impl Into<anyhow::Error>) -> Failed {
    Failed::from(format!("{:#}", error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_one_of_three_words() {
        let of = |word| Tier::of(word).ok();
        assert_eq!(of(None), Some(Tier::Quick));
        assert_eq!(of(Some("quick")), Some(Tier::Quick));
        assert_eq!(of(Some("full")), Some(Tier::Full));
        assert_eq!(of(Some("nightly")), Some(Tier::Nightly));
        assert!(
            Tier::of(Some("all"))
                .unwrap_err()
                .to_string()
                .contains("CCM_TEST_TIER=\"all\"")
        );
    }

    #[test]
    fn a_case_runs_in_its_own_tier_alone() {
        let arguments =
            libtest_mimic::Arguments { quiet: true, ..libtest_mimic::Arguments::default() };
        let run = |of: Tier, chosen, missing: Option<&str>| {
            let trials: Vec<_> = of
                .case(chosen, "it", missing, || Err("it ran".into()))
                .into_iter()
                .collect();
            let seen = libtest_mimic::run(&arguments, trials);
            (seen.num_failed, seen.num_ignored)
        };
        assert_eq!(run(Tier::Full, Tier::Quick, None), (0, 1), "later");
        assert_eq!(run(Tier::Full, Tier::Full, None), (1, 0), "now");
        assert_eq!(run(Tier::Full, Tier::Full, Some("no Go")), (0, 1), "now, but not here");
        assert_eq!(run(Tier::Full, Tier::Nightly, None), (0, 0), "shown before");
    }
}
