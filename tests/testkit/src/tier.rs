//! Tiers of tests, and the words for them. `xtask`, which runs them, shares this file by path: std
//! only.

/// Names the tier in the environment of test programs: `quick`, `full` or `nightly`.
pub const TIER_VARIABLE: &str = "CCM_TEST_TIER";

/// When a case runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// With every `cargo test`: nothing but Rust is needed, and it takes seconds.
    #[default]
    Quick,
    /// With `cargo xtask test --full`, as in continuous integration.
    Full,
    /// With `cargo xtask test --nightly`.
    Nightly,
}

impl Tier {
    /// All of them, in their order.
    pub(crate) const ALL: [Self; 3] = [Self::Quick, Self::Full, Self::Nightly];

    /// What [`TIER_VARIABLE`] holds.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
            Self::Nightly => "nightly",
        }
    }

    /// What runs this tier; test programs give it as the reason why a case of a later tier did not
    /// run.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Quick => "cargo xtask test",
            Self::Full => "cargo xtask test --full",
            Self::Nightly => "cargo xtask test --nightly",
        }
    }
}
