//! Chooses how to query load balancers. Pure.

/// Up to this many are queried one by one in any case: an answer for one is small and fast.
pub(super) const MAX_SINGLE_REQUESTS: usize = 3;
/// Rows of a page, which is also Octavia's maximum unless its operator set another number.
pub(super) const PAGE: &str = "1000";
/// Maximum number of tags in one query: each contains the name of a Service, seldom longer than 80
/// characters.
pub(super) const MAX_TAGS: usize = 30;
/// Requests that a shared listing saves for each Service: its load balancer, listeners, pools,
/// floating IP.
const REQUESTS_SAVED: usize = 4;
/// The same for its security group: the group, ports of its nodes, ports that have it.
const REQUESTS_SAVED_BY_GROUPS: usize = 3;

/// How to query whether load balancers are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusQueryStrategy {
    /// One request for each.
    PerLoadBalancer,
    /// Those with certain tags, up to [`MAX_TAGS`] in one request.
    ByTags,
    /// All load balancers of the project, which fit on one page.
    ListAll,
}

/// Chooses the strategy with the fewest requests for this many pending load balancers. `tags`: they
/// have tags. `fits`: whether all load balancers of the project fit on one page, if that is known.
pub(super) fn choose_strategy(
    waiting: usize,
    tags: bool,
    fits: Option<bool>,
) -> StatusQueryStrategy {
    if waiting <= MAX_SINGLE_REQUESTS {
        return StatusQueryStrategy::PerLoadBalancer;
    }
    match (tags, fits) {
        (true, _) if waiting <= MAX_TAGS => StatusQueryStrategy::ByTags,
        (_, None | Some(true)) => StatusQueryStrategy::ListAll,
        (true, Some(false)) => StatusQueryStrategy::ByTags,
        (false, Some(false)) => StatusQueryStrategy::PerLoadBalancer,
    }
}

/// Returns how many pages may be listed for this many Services, each of which would otherwise be
/// read alone: no more than that would take. Load balancers of others make the lists long, and
/// nobody knows how long.
pub(super) fn max_listing_pages(services: usize, groups: bool) -> usize {
    let spared = if groups {
        REQUESTS_SAVED + REQUESTS_SAVED_BY_GROUPS
    } else {
        REQUESTS_SAVED
    };
    if services <= MAX_SINGLE_REQUESTS {
        0
    } else {
        services * spared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_with_the_fewest_requests_is_taken() {
        let rows = [
            (1, true, None, StatusQueryStrategy::PerLoadBalancer),
            (3, true, Some(true), StatusQueryStrategy::PerLoadBalancer),
            (4, true, None, StatusQueryStrategy::ByTags),
            (30, true, Some(true), StatusQueryStrategy::ByTags),
            (31, true, None, StatusQueryStrategy::ListAll),
            (31, true, Some(true), StatusQueryStrategy::ListAll),
            (300, true, Some(false), StatusQueryStrategy::ByTags),
            (4, false, None, StatusQueryStrategy::ListAll),
            (300, false, Some(false), StatusQueryStrategy::PerLoadBalancer),
        ];
        for (waiting, tags, fits, wanted) in rows {
            assert_eq!(choose_strategy(waiting, tags, fits), wanted, "{waiting} {tags} {fits:?}");
        }
    }

    #[test]
    fn a_shared_reading_takes_no_more_than_what_it_spares() {
        let pages = |groups| [0, 3, 4, 300].map(|services| max_listing_pages(services, groups));
        assert_eq!((pages(false), pages(true)), ([0, 0, 16, 1200], [0, 0, 28, 2100]));
    }
}
