//! Chooses how to query servers.

/// Maximum number of servers that are missing in a complete listing and are then requested one by
/// one. Each may be deleted, which needs proof, but a listing that lacks them all is more likely
/// one of another project.
pub const MAX_CONFIRMATIONS: usize = 20;
/// Up to this many servers are requested one by one in any case: an answer for one is small and
/// complete.
const MAX_SINGLE_REQUESTS: usize = 3;
/// Rows on one of Nova's pages, unless its operator set fewer.
const PAGE: usize = 1000;

/// How to query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupStrategy {
    /// One request for each.
    Each,
    /// All servers of the project.
    List,
}

/// Chooses the strategy with the fewest requests, for this many queries in a project whose last
/// listing had this many servers.
pub fn choose_strategy(asked: usize, listed: Option<usize>) -> LookupStrategy {
    let pages = listed.map_or(1, |listed| listed / PAGE + 1);
    if asked <= MAX_SINGLE_REQUESTS || asked < pages {
        LookupStrategy::Each
    } else {
        LookupStrategy::List
    }
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
