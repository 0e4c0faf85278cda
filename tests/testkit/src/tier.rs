//! Tiers of tests and their names. `xtask` includes this file by path, so it may use only std.

/// Environment variable with the tier of test programs: `quick`, `full` or `nightly`.
pub const TIER_VARIABLE: &str = "CCM_TEST_TIER";

/// Tier of tests in which a case runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Runs with every `cargo test`: needs only Rust, and takes seconds.
    #[default]
    Quick,
    /// Runs with `cargo xtask test --full`, as in continuous integration.
    Full,
    /// Runs with `cargo xtask test --nightly`.
    Nightly,
}

impl Tier {
    /// All tiers, in their order.
    pub(crate) const ALL: [Self; 3] = [Self::Quick, Self::Full, Self::Nightly];

    /// Returns the value of [`TIER_VARIABLE`] for this tier.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
            Self::Nightly => "nightly",
        }
    }

    /// Returns the command that runs this tier. Test programs give it as the reason why a case of a
    /// later tier was ignored.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Quick => "cargo xtask test",
            Self::Full => "cargo xtask test --full",
            Self::Nightly => "cargo xtask test --nightly",
        }
    }
}
