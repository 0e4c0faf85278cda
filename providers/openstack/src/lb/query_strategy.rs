//! Chooses how to query load balancers. Pure.

/// Maximum number of load balancers that are read one by one in any case, because a response for
/// one is small and fast.
pub(super) const MAX_SINGLE_REQUESTS: usize = 3;
/// Number of rows to request for a page. It is Octavia's maximum, unless its operator set another.
pub(super) const PAGE: &str = "1000";
/// Maximum number of tags in one query, which limits the length of its URL. A tag contains the name
/// of a Service, and is seldom longer than 80 characters.
pub(super) const MAX_TAGS: usize = 30;
/// Number of requests that a shared listing saves for each Service: for its load balancer,
/// listeners, pools and floating IP.
const REQUESTS_SAVED: usize = 4;
/// Number of requests that it saves for a security group: for the group, the ports of its nodes,
/// and the ports with this group.
const REQUESTS_SAVED_BY_GROUPS: usize = 3;

/// Strategy to poll the status of pending load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusQueryStrategy {
    /// Read each load balancer with a request of its own.
    PerLoadBalancer,
    /// List the load balancers with certain tags, up to [`MAX_TAGS`] in one request.
    ByTags,
    /// List the first page of all load balancers of the project.
    ListAll,
}

/// Chooses the strategy with the fewest requests. `waiting` is the number of pending load balancers,
/// `has_tags` is true if they have tags, and `fits_one_page` is true if all load balancers of the
/// project fit on one page, or `None` if that is not known yet.
pub(super) fn choose_strategy(
    waiting: usize,
    has_tags: bool,
    fits_one_page: Option<bool>,
) -> StatusQueryStrategy {
    if waiting <= MAX_SINGLE_REQUESTS {
        return StatusQueryStrategy::PerLoadBalancer;
    }
    match (has_tags, fits_one_page) {
        (true, _) if waiting <= MAX_TAGS => StatusQueryStrategy::ByTags,
        (_, None | Some(true)) => StatusQueryStrategy::ListAll,
        (true, Some(false)) => StatusQueryStrategy::ByTags,
        (false, Some(false)) => StatusQueryStrategy::PerLoadBalancer,
    }
}

/// Returns the maximum number of pages to list for this many Services: no more than the requests
/// that reading them one by one would take. In a project with many other load balancers the lists
/// may be very long.
pub(super) fn max_listing_pages(services: usize, with_security_groups: bool) -> usize {
    if services <= MAX_SINGLE_REQUESTS {
        return 0;
    }
    let saved_requests = if with_security_groups {
        REQUESTS_SAVED + REQUESTS_SAVED_BY_GROUPS
    } else {
        REQUESTS_SAVED
    };
    services * saved_requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strategy_with_the_fewest_requests_is_chosen() {
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
    fn a_listing_takes_no_more_requests_than_it_saves() {
        let pages = |groups| [0, 3, 4, 300].map(|services| max_listing_pages(services, groups));
        assert_eq!((pages(false), pages(true)), ([0, 0, 16, 1200], [0, 0, 28, 2100]));
    }
}
