use anyhow::Context as _;

use crate::suite::{TIER_VARIABLE, Tier};

/// How much is explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// A part that takes seconds: some calls, few faults at each, always the same. It shows that
    /// the exploration works and that nothing is grossly wrong.
    Smoke,
    /// A part that takes minutes at most: every call, the faults that differ most.
    #[default]
    Bounded,
    /// Every fault at every call, and many pairs.
    Full,
}

impl Effort {
    /// What a tier of tests explores when nobody says how much.
    fn of_tier(tier: Tier) -> Self {
        match tier {
            Tier::Quick => Self::Smoke,
            Tier::Full => Self::Bounded,
            Tier::Nightly => Self::Full,
        }
    }
}

/// What whoever runs an exploration asks for: `CCM_EXPLORE`, `CCM_EXPLORE_SEED`,
/// `CCM_EXPLORE_PAIRS` and `CCM_EXPLORE_REPLAY`. Every explorer reads the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// `CCM_EXPLORE`: `smoke`, `bounded` or `full`. By default the [tier](Tier) of the tests says
    /// it, in this order.
    pub effort: Effort,
    /// `CCM_EXPLORE_SEED`: seed of the pairs of faults. By default always the same, since others
    /// wait for it, and another each time when the exploration is full.
    pub seed: u64,
    /// `CCM_EXPLORE_PAIRS`: how many pairs are tried in each scenario.
    pub pairs: Option<usize>,
    /// `CCM_EXPLORE_REPLAY`: one run alone, as a failure names it: `<scenario>/<point>/<fault>`,
    /// with `/<point>/<fault>` for each fault more.
    pub replay: Option<String>,
}

impl Environment {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// Names what cannot be read.
    pub fn read() -> anyhow::Result<Self> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// Reads variables.
    ///
    /// # Errors
    /// Names what cannot be read.
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
