//! Decides how to query many instances with few requests, and how to split a batch that AWS
//! rejected because of a bad ID. Pure functions.

use std::collections::{BTreeSet, HashSet};

use crate::api::InstanceId;

/// Maximum number of IDs in one request (AWS).
pub const MAX_IDS: usize = 1000;
/// Maximum number of instances per page of a listing (AWS).
pub const PAGE_SIZE: u16 = 1000;
/// Maximum number of values per filter. AWS allows 200; upstream uses 150.
pub const MAX_FILTER_VALUES: usize = 150;
/// Minimum number of IDs for which a listing is preferred. With that many IDs, a listing needs no
/// more calls than requests by ID, cannot fail because of one bad ID, and also answers later
/// lookups.
const LISTING_THRESHOLD: usize = 200;
/// Maximum number of suspected IDs that are queried one by one, because AWS' answer for a single ID
/// is unambiguous. More are queried with a filter, which costs one call per
/// [`MAX_FILTER_VALUES`] IDs.
const MAX_SINGLE_REQUESTS: usize = 4;

/// Returns true if the cluster's instances should be listed before this number of instances is
/// queried by ID.
///
/// `listed` is the size of the last listing, if there was one. If it is much smaller than the
/// number of IDs, most of these instances lack the cluster's tag. A listing would not contain them,
/// so they are queried by ID at once.
pub fn should_list_for_ids(ids: usize, listed: Option<usize>) -> bool {
    let listed = listed.unwrap_or(ids);
    ids >= LISTING_THRESHOLD && listed >= ids / 2 && page_count(listed) <= ids.div_ceil(MAX_IDS)
}

/// Returns true if the cluster's instances should be listed instead of searching for this number of
/// names.
pub fn should_list_for_names(names: usize, listed: Option<usize>) -> bool {
    page_count(listed.unwrap_or(names)) < names.div_ceil(MAX_FILTER_VALUES)
}

fn page_count(instances: usize) -> usize {
    instances.div_ceil(usize::from(PAGE_SIZE)).max(1)
}

/// The instances of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Batch {
    /// Queried by ID. One unknown ID fails the whole request.
    Ids(Vec<InstanceId>),
    /// Queried with a filter on IDs. Unknown IDs are missing from the answer.
    Filter(Vec<InstanceId>),
}

impl Batch {
    /// Returns the requested IDs.
    pub fn ids(&self) -> &[InstanceId] {
        match self {
            Self::Ids(ids) | Self::Filter(ids) => ids,
        }
    }

    /// Consumes the batch and returns the requested IDs.
    pub fn into_ids(self) -> Vec<InstanceId> {
        match self {
            Self::Ids(ids) | Self::Filter(ids) => ids,
        }
    }
}

/// Divides IDs among requests. IDs that do not have EC2's format get requests of their own, because
/// they would fail the others.
pub fn batches_of(ids: impl IntoIterator<Item = InstanceId>) -> Vec<Batch> {
    let (well_formed, malformed): (BTreeSet<_>, BTreeSet<_>) =
        ids.into_iter().partition(|id| has_ec2_id_format(id));
    let mut batches = divide(&Vec::from_iter(well_formed), MAX_IDS);
    batches.extend(divide(&Vec::from_iter(malformed), MAX_IDS));
    batches
}

/// Splits a batch that was rejected because of one of its IDs.
///
/// IDs that the error message names are queried separately. The message is written for humans, so
/// it is only a hint and proves nothing. If it names no ID, the batch is halved.
pub fn split_by_message(batch: &[InstanceId], message: &str) -> Vec<Batch> {
    let words: HashSet<&str> = message
        .split(|c: char| !c.is_ascii_alphanumeric() && !"-_.:".contains(c))
        .map(|word| word.trim_end_matches(['.', ':']))
        .collect();
    let (suspects, others): (Vec<_>, Vec<_>) =
        batch.iter().cloned().partition(|id| words.contains(&**id));
    if suspects.is_empty() {
        return divide(batch, batch.len().div_ceil(2).max(1));
    }
    let mut batches = divide(&others, MAX_IDS);
    if suspects.len() <= MAX_SINGLE_REQUESTS {
        batches.extend(divide(&suspects, 1));
    } else {
        batches.extend(split_safely(&suspects));
    }
    batches
}

/// Splits a batch so that no ID can fail another one. IDs with EC2's format are queried with a
/// filter, the others one by one.
pub fn split_safely(ids: &[InstanceId]) -> Vec<Batch> {
    let (well_formed, malformed): (Vec<_>, Vec<_>) =
        ids.iter().cloned().partition(|id| has_ec2_id_format(id));
    let mut batches: Vec<_> = well_formed
        .chunks(MAX_FILTER_VALUES)
        .map(|ids| Batch::Filter(ids.to_vec()))
        .collect();
    batches.extend(divide(&malformed, 1));
    batches
}

/// Divides IDs into batches of at most `size` IDs.
fn divide(ids: &[InstanceId], size: usize) -> Vec<Batch> {
    ids.chunks(size)
        .map(|ids| Batch::Ids(ids.to_vec()))
        .collect()
}

/// Returns true if an ID has EC2's format: `i-` and 8 or 17 hexadecimal digits.
fn has_ec2_id_format(id: &str) -> bool {
    let digits = id.strip_prefix("i-").unwrap_or_default();
    matches!(digits.len(), 8 | 17) && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> InstanceId {
        format!("i-{n:08x}").into()
    }

    fn ids(range: std::ops::Range<usize>) -> Vec<InstanceId> {
        range.map(id).collect()
    }

    #[test]
    fn the_listing_is_used_where_it_costs_no_more_calls() {
        assert!(!should_list_for_ids(3, None));
        assert!(!should_list_for_ids(199, Some(500)));
        assert!(should_list_for_ids(200, Some(1000)));
        assert!(!should_list_for_ids(900, Some(1001)));
        assert!(should_list_for_ids(1001, Some(2000)));
        assert!(should_list_for_ids(1000, None));
        assert!(should_list_for_ids(1000, Some(500)));
        assert!(!should_list_for_ids(1000, Some(499)), "most of what is wanted is not in it");
    }

    #[test]
    fn names_are_listed_where_that_saves_calls() {
        assert!(!should_list_for_names(150, None));
        assert!(should_list_for_names(151, None));
        assert!(should_list_for_names(1000, Some(1000)));
        assert!(!should_list_for_names(200, Some(5000)));
    }

    #[test]
    fn batches_hold_each_id_once_and_odd_ones_apart() {
        let odd = InstanceId::from("i-simulated");
        let asked = ids(0..1500)
            .into_iter()
            .chain(ids(0..10))
            .chain([odd.clone()]);
        let batches = batches_of(asked);
        let sizes: Vec<usize> = batches.iter().map(|batch| batch.ids().len()).collect();
        assert_eq!(sizes, [1000, 500, 1]);
        assert_eq!(batches[2], Batch::Ids(vec![odd]));
        for (digits, usual) in [
            ("1", false),
            ("0123abcd", true),
            ("0123abcde", false),
            ("0123456789abcdef0", true),
            ("0123xbcd", false),
        ] {
            assert_eq!(has_ec2_id_format(&format!("i-{digits}")), usual, "{digits}");
        }
        assert!(!has_ec2_id_format("0123abcd"));
    }

    #[test]
    fn named_ids_are_asked_for_alone_and_the_others_again() {
        let message = "The instance IDs 'i-00000001, i-00000003' do not exist";
        let expected =
            vec![Batch::Ids(vec![id(0), id(2)]), Batch::Ids(vec![id(1)]), Batch::Ids(vec![id(3)])];
        assert_eq!(split_by_message(&ids(0..4), message), expected);
        // A longer ID that begins like one of ours is another one.
        assert_eq!(
            split_by_message(&ids(0..2), "The instance ID 'i-000000011' does not exist").len(),
            2
        );
        for named in ["i-00000000", "i-a.b", "i-a_b", "i-a:b"].map(InstanceId::from) {
            let batches = split_by_message(
                &[named.clone(), id(1), id(2)],
                &format!("There is no instance {named}."),
            );
            assert_eq!(batches, [Batch::Ids(vec![id(1), id(2)]), Batch::Ids(vec![named])]);
        }
    }

    #[test]
    fn many_named_ids_share_a_filter() {
        let all = ids(0..400);
        let named = all[..200]
            .iter()
            .map(|id| &**id)
            .collect::<Vec<_>>()
            .join(", ");
        let batches = split_by_message(&all, &format!("The instance IDs '{named}' do not exist"));
        let sizes: Vec<_> = batches
            .iter()
            .map(|b| (matches!(b, Batch::Filter(_)), b.ids().len()))
            .collect();
        assert_eq!(sizes, [(false, 200), (true, 150), (true, 50)]);
    }

    #[test]
    fn halves_are_asked_for_where_the_message_names_none() {
        assert_eq!(
            split_by_message(&ids(0..5), ""),
            [Batch::Ids(ids(0..3)), Batch::Ids(ids(3..5))]
        );
    }
}
