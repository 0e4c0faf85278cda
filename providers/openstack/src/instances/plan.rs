//! In which way to ask about servers.

/// Most servers that a complete listing does not hold and that are then asked for one by one: each may be gone, which needs
/// proof, but a listing that lacks them all is more likely one of another project.
pub const MAX_CONFIRMATIONS: usize = 20;
/// Up to so many servers are asked for one by one in any case: an answer for one is small and says all.
const MAX_SINGLE_REQUESTS: usize = 3;
/// Rows on a page of Nova, unless its operator set fewer.
const PAGE: usize = 1000;

/// How to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupStrategy {
    /// One request for each.
    Each,
    /// All servers of the project.
    List,
}

/// Chooses the way that takes the fewest requests, for so many questions in a project where so many servers were listed
/// last.
pub fn choose_strategy(asked: usize, listed: Option<usize>) -> LookupStrategy {
    let pages = listed.map_or(1, |listed| listed / PAGE + 1);
    if asked <= MAX_SINGLE_REQUESTS || asked < pages { LookupStrategy::Each } else { LookupStrategy::List }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_with_the_fewest_requests_is_taken() {
        let rows = [
            (1, None, LookupStrategy::Each),
            (3, Some(10), LookupStrategy::Each),
            (4, None, LookupStrategy::List),
            (4, Some(999), LookupStrategy::List),
            (4, Some(3_500), LookupStrategy::List),
            (4, Some(5_000), LookupStrategy::Each),
            (1_000, Some(20_000), LookupStrategy::List),
            (15, Some(20_000), LookupStrategy::Each),
        ];
        for (asked, listed, wanted) in rows {
            assert_eq!(choose_strategy(asked, listed), wanted, "{asked} of {listed:?}");
        }
    }
}
