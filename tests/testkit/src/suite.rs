//! Tiers of tests, and cases that say why they did not run.
//!
//! `cargo xtask test` runs the first tier, which needs Rust alone; `--full` adds what needs Go,
//! Python or a cloud's SDK, and `--nightly` what takes long. A suite that has cases of several
//! tiers is one program, run once for each tier: it leaves out the cases of the tiers before, which
//! were shown, and reports those of later tiers as ignored. A case whose tools are not there is
//! ignored as well, with what is missing; it is never reported as passed. That nothing is missing
//! is for `cargo xtask test --require-all` to see to.

use std::fmt;

use anyhow::Context as _;
use libtest_mimic::{Completion, Failed, Trial};

pub use crate::tier::{TIER_VARIABLE, Tier};

impl Tier {
    /// The tier that [`TIER_VARIABLE`] chooses; [`Tier::Quick`] when it is not set.
    ///
    /// # Errors
    /// The variable holds another word.
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

    /// A case of this tier, as it is when `chosen` is run: `None` when an earlier run has shown it,
    /// ignored when it is of a later tier or when something is `missing`, which the reason then
    /// names.
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

/// How much a test does: less in the quick tier, which everybody waits for, than in the others.
///
/// # Errors
/// As [`Tier::chosen`].
pub fn sized(quick: usize, whole: usize) -> anyhow::Result<usize> {
    Ok(if Tier::chosen()? == Tier::Quick {
        quick
    } else {
        whole
    })
}

/// A case that does not run here, and why.
pub fn ignored(name: impl Into<String>, reason: impl fmt::Display) -> Trial {
    let reason = reason.to_string();
    Trial::ignorable_test(name, move || Ok(Completion::ignored_with(reason)))
}

/// What a case says that failed with this error, whole.
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
