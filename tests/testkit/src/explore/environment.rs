use anyhow::Context as _;

use crate::suite::{TIER_VARIABLE, Tier};

/// Extent of an exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Takes seconds: some calls, few faults at each, always the same. It shows that the
    /// exploration works and that nothing is grossly wrong.
    Smoke,
    /// Takes minutes at most: every call, with the faults that differ most.
    #[default]
    Bounded,
    /// Every fault at every call, and many pairs.
    Full,
}

impl Effort {
    /// Returns the default effort of a tier.
    fn of_tier(tier: Tier) -> Self {
        match tier {
            Tier::Quick => Self::Smoke,
            Tier::Full => Self::Bounded,
            Tier::Nightly => Self::Full,
        }
    }
}

/// Settings of an exploration from the environment: `CCM_EXPLORE`, `CCM_EXPLORE_SEED`,
/// `CCM_EXPLORE_PAIRS` and `CCM_EXPLORE_REPLAY`. Every explorer reads the same variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// `CCM_EXPLORE`: `smoke`, `bounded` or `full`. The default follows from the [tier](Tier) of
    /// the tests, in the same order.
    pub effort: Effort,
    /// `CCM_EXPLORE_SEED`: seed of the pairs of faults. The default is fixed, and random in a full
    /// exploration.
    pub seed: u64,
    /// `CCM_EXPLORE_PAIRS`: number of pairs in each scenario.
    pub pairs: Option<usize>,
    /// `CCM_EXPLORE_REPLAY`: a single run, as a failure prints it: `<scenario>/<point>/<fault>`,
    /// with another `/<point>/<fault>` for each further fault.
    pub replay: Option<String>,
}

impl Environment {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// Names the variable that cannot be parsed.
    pub fn read() -> anyhow::Result<Self> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// Reads variables.
    ///
    /// # Errors
    /// Names the variable that cannot be parsed.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let given = |name: &str| variable(name).filter(|text| !text.is_empty());
        let effort = match given("CCM_EXPLORE").as_deref() {
            None => Effort::of_tier(Tier::of(given(TIER_VARIABLE).as_deref())?),
            Some("smoke") => Effort::Smoke,
            Some("bounded") => Effort::Bounded,
            Some("full") => Effort::Full,
            Some(other) => {
                anyhow::bail!("CCM_EXPLORE={other:?} is none of smoke, bounded and full")
            }
        };
        let number = |name: &str| match given(name) {
            Some(text) => text
                .parse::<u64>()
                .map(Some)
                .with_context(|| format!("{name}={text:?}")),
            None => Ok(None),
        };
        let chance = || {
            if effort == Effort::Full {
                rand::random()
            } else {
                1
            }
        };
        Ok(Self {
            effort,
            seed: number("CCM_EXPLORE_SEED")?.unwrap_or_else(chance),
            pairs: number("CCM_EXPLORE_PAIRS")?
                .map(usize::try_from)
                .transpose()?,
            replay: given("CCM_EXPLORE_REPLAY"),
        })
    }
}
