//! In which way to ask about balancers: pure.

/// Up to so many are asked for one by one in any case: an answer for one is small and comes soon.
pub(super) const FEW: usize = 3;
/// Rows of a page that is asked for, which is also the most that Octavia gives unless its operator set another number.
pub(super) const PAGE: &str = "1000";
/// Most tags in one query: each is the name of a Service, seldom longer than 80 characters.
pub(super) const MOST_TAGS: usize = 30;
/// Requests that a shared reading spares each Service: its balancer, listeners, pools, floating IP.
const SPARED: usize = 4;
/// And where it has a security group: the group, ports of its nodes, ports that have it.
const SPARED_BY_GROUPS: usize = 3;

/// How to ask whether balancers are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One request for each.
    Each,
    /// Those with certain tags, so many to a request.
    Tagged,
    /// All balancers of the project, which are on one page.
    Page,
}

/// Chooses the way that takes the fewest requests for so many balancers that are waited for. `tags`: they have tags.
/// `fits`: whether all balancers of the project are on one page, as far as that is known.
pub(super) fn way(waiting: usize, tags: bool, fits: Option<bool>) -> Way {
    if waiting <= FEW {
        return Way::Each;
    }
    match (tags, fits) {
        (true, _) if waiting <= MOST_TAGS => Way::Tagged,
        (_, None | Some(true)) => Way::Page,
        (true, Some(false)) => Way::Tagged,
        (false, Some(false)) => Way::Each,
    }
}

/// Returns how many pages of everything may be read for so many Services, each of which would be looked at alone otherwise:
/// no more than that would take. Others' balancers make the lists long, and nobody knows how long.
pub(super) fn most_pages(services: usize, groups: bool) -> usize {
    let spared = if groups { SPARED + SPARED_BY_GROUPS } else { SPARED };
    if services <= FEW { 0 } else { services * spared }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_with_the_fewest_requests_is_taken() {
        let rows = [
            (1, true, None, Way::Each),
            (3, true, Some(true), Way::Each),
            (4, true, None, Way::Tagged),
            (30, true, Some(true), Way::Tagged),
            (31, true, None, Way::Page),
            (31, true, Some(true), Way::Page),
            (300, true, Some(false), Way::Tagged),
            (4, false, None, Way::Page),
            (300, false, Some(false), Way::Each),
        ];
        for (waiting, tags, fits, wanted) in rows {
            assert_eq!(way(waiting, tags, fits), wanted, "{waiting} {tags} {fits:?}");
        }
    }

    #[test]
    fn a_shared_reading_takes_no_more_than_what_it_spares() {
        let pages = |groups| [0, 3, 4, 300].map(|services| most_pages(services, groups));
        assert_eq!((pages(false), pages(true)), ([0, 0, 16, 1200], [0, 0, 28, 2100]));
    }
}
