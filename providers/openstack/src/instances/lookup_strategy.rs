//! Chooses how to query servers. Pure.

/// Maximum number of servers that are requested one by one because a complete listing lacks them.
/// Only the answer to such a request proves that a server is deleted. But if a listing lacks many
/// servers, it is more likely the listing of another project.
pub const MAX_CONFIRMATIONS: usize = 20;
/// Maximum number of servers that are requested one by one in any case, because a response for one
/// is small and complete.
const MAX_SINGLE_REQUESTS: usize = 3;
/// Number of rows on one of Nova's pages, unless its operator set fewer.
const PAGE: usize = 1000;

/// Strategy to look up servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupStrategy {
    /// Request each server with a request of its own.
    Each,
    /// List all servers of the project.
    List,
}

/// Chooses the strategy with the fewest requests. `queries` is the number of servers to look up, and
/// `listed` the number of servers in the last complete listing, if there was one.
pub fn choose_strategy(queries: usize, listed: Option<usize>) -> LookupStrategy {
    let pages = listed.map_or(1, |listed| listed / PAGE + 1);
    if queries <= MAX_SINGLE_REQUESTS || queries < pages {
        LookupStrategy::Each
    } else {
        LookupStrategy::List
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strategy_with_the_fewest_requests_is_chosen() {
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
