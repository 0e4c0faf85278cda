//! How instances are asked for: which request is the cheapest, and how a batch with a bad ID is taken apart.

use std::collections::{BTreeSet, HashSet};

use crate::api::InstanceId;

/// Most IDs of one request (AWS).
pub const MAX_IDS: usize = 1000;
/// Most instances on a page of a listing (AWS).
pub const PAGE: u16 = 1000;
/// Most values of a filter that are used. AWS allows 200; upstream's 150 leaves room.
pub const MAX_FILTER_VALUES: usize = 150;
/// From how many IDs on the listing is worth it: it costs no more calls then, cannot fail for one bad ID, and answers
/// whoever asks next. Fewer are cheaper to answer than a whole cluster.
const LISTING_THRESHOLD: usize = 200;
/// So many suspects are asked for alone, where AWS' answer is typed; more by a filter, which costs a call for 150 of them.
const MAX_SINGLE_REQUESTS: usize = 4;

/// Tells whether the listing of the cluster comes before asking for `wanted` IDs; `listed` is the size of the listing
/// before, if there was one. A listing much smaller than what is wanted lacks most of it: the cluster's tag is missing on
/// instances, and they are asked for by ID at once.
pub fn prefers_listing(wanted: usize, listed: Option<usize>) -> bool {
    let listed = listed.unwrap_or(wanted);
    wanted >= LISTING_THRESHOLD && listed >= wanted / 2 && pages(listed) <= wanted.div_ceil(MAX_IDS)
}

/// Tells whether the listing of the cluster takes the place of asking for `wanted` names.
pub fn prefers_listing_for_names(wanted: usize, listed: Option<usize>) -> bool {
    pages(listed.unwrap_or(wanted)) < wanted.div_ceil(MAX_FILTER_VALUES)
}

fn pages(instances: usize) -> usize {
    instances.div_ceil(usize::from(PAGE)).max(1)
}

/// One request about some instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Batch {
    /// By ID: an unknown one fails it.
    Ids(Vec<InstanceId>),
    /// By a filter on IDs: an unknown one is missing in the answer.
    Filter(Vec<InstanceId>),
}

impl Batch {
    /// Returns what is asked for.
    pub fn ids(&self) -> &[InstanceId] {
        match self {
            Self::Ids(ids) | Self::Filter(ids) => ids,
        }
    }
}

/// Cuts IDs into requests. Those that do not look like EC2's are asked for apart, so that they cannot fail the others.
pub fn batches(ids: impl IntoIterator<Item = InstanceId>) -> Vec<Batch> {
    let (usual, odd): (BTreeSet<_>, BTreeSet<_>) = ids.into_iter().partition(|id| has_ec2_id_format(id));
    [usual, odd].into_iter().flat_map(|ids| by_ids(&Vec::from_iter(ids), MAX_IDS)).collect()
}

/// Cuts a batch that was refused for one of its IDs. Those that the message names are asked for apart: it is for people, so
/// that it says where to look and proves nothing. Where it names none, halves are asked for.
pub fn split(batch: &[InstanceId], message: &str) -> Vec<Batch> {
    let words: HashSet<&str> = message.split(|c: char| !c.is_ascii_alphanumeric() && !"-_.:".contains(c)).collect();
    let words: HashSet<&str> = words.iter().map(|word| word.trim_end_matches(['.', ':'])).collect();
    let (suspects, others): (Vec<_>, Vec<_>) = batch.iter().cloned().partition(|id| words.contains(&**id));
    if suspects.is_empty() {
        return by_ids(batch, batch.len().div_ceil(2).max(1));
    }
    let mut batches = by_ids(&others, MAX_IDS);
    match suspects.len() <= MAX_SINGLE_REQUESTS {
        true => batches.extend(by_ids(&suspects, 1)),
        false => batches.extend(split_safely(&suspects)),
    }
    batches
}

/// Asks so that no ID can fail the others: what looks like EC2's by a filter, the rest alone.
pub fn split_safely(ids: &[InstanceId]) -> Vec<Batch> {
    let (usual, odd): (Vec<_>, Vec<_>) = ids.iter().cloned().partition(|id| has_ec2_id_format(id));
    let mut batches: Vec<_> = usual.chunks(MAX_FILTER_VALUES).map(|ids| Batch::Filter(ids.to_vec())).collect();
    batches.extend(by_ids(&odd, 1));
    batches
}

fn by_ids(ids: &[InstanceId], size: usize) -> Vec<Batch> {
    ids.chunks(size).map(|ids| Batch::Ids(ids.to_vec())).collect()
}

/// Tells whether an ID looks like those of EC2: 8 or 17 hexadecimal digits.
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
        assert!(!prefers_listing(3, None));
        assert!(!prefers_listing(199, Some(500)));
        assert!(prefers_listing(200, Some(1000)));
        assert!(!prefers_listing(900, Some(1001)));
        assert!(prefers_listing(1001, Some(2000)));
        assert!(prefers_listing(1000, None));
        assert!(prefers_listing(1000, Some(500)));
        assert!(!prefers_listing(1000, Some(499)), "most of what is wanted is not in it");
    }

    #[test]
    fn names_are_listed_where_that_saves_calls() {
        assert!(!prefers_listing_for_names(150, None));
        assert!(prefers_listing_for_names(151, None));
        assert!(prefers_listing_for_names(1000, Some(1000)));
        assert!(!prefers_listing_for_names(200, Some(5000)));
    }

    #[test]
    fn batches_hold_each_id_once_and_odd_ones_apart() {
        let odd = InstanceId::from("i-simulated");
        let asked = ids(0..1500).into_iter().chain(ids(0..10)).chain([odd.clone()]);
        let batches = batches(asked);
        let sizes: Vec<usize> = batches.iter().map(|batch| batch.ids().len()).collect();
        assert_eq!(sizes, [1000, 500, 1]);
        assert_eq!(batches[2], Batch::Ids(vec![odd]));
        for (digits, usual) in
            [("1", false), ("0123abcd", true), ("0123abcde", false), ("0123456789abcdef0", true), ("0123xbcd", false)]
        {
            assert_eq!(has_ec2_id_format(&format!("i-{digits}")), usual, "{digits}");
        }
        assert!(!has_ec2_id_format("0123abcd"));
    }

    #[test]
    fn named_ids_are_asked_for_alone_and_the_others_again() {
        let message = "The instance IDs 'i-00000001, i-00000003' do not exist";
        let expected = vec![Batch::Ids(vec![id(0), id(2)]), Batch::Ids(vec![id(1)]), Batch::Ids(vec![id(3)])];
        assert_eq!(split(&ids(0..4), message), expected);
        // A longer ID that begins like one of ours is another one.
        assert_eq!(split(&ids(0..2), "The instance ID 'i-000000011' does not exist").len(), 2);
        for named in ["i-00000000", "i-a.b", "i-a_b", "i-a:b"].map(InstanceId::from) {
            let batches = split(&[named.clone(), id(1), id(2)], &format!("There is no instance {named}."));
            assert_eq!(batches, [Batch::Ids(vec![id(1), id(2)]), Batch::Ids(vec![named])]);
        }
    }

    #[test]
    fn many_named_ids_share_a_filter() {
        let all = ids(0..400);
        let named = all[..200].iter().map(|id| &**id).collect::<Vec<_>>().join(", ");
        let batches = split(&all, &format!("The instance IDs '{named}' do not exist"));
        let sizes: Vec<_> = batches.iter().map(|b| (matches!(b, Batch::Filter(_)), b.ids().len())).collect();
        assert_eq!(sizes, [(false, 200), (true, 150), (true, 50)]);
    }

    #[test]
    fn halves_are_asked_for_where_the_message_names_none() {
        assert_eq!(split(&ids(0..5), ""), [Batch::Ids(ids(0..3)), Batch::Ids(ids(3..5))]);
    }
}
