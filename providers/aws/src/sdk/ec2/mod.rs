//! EC2.

pub(super) mod groups;
pub(super) mod instances;
pub(super) mod network;
pub(super) mod tags;

use aws_sdk_ec2::types;

use super::convert::non_empty_structures;
use crate::api::Filter;

/// Converts filters for a request.
fn filters(filters: Vec<Filter>) -> Option<Vec<types::Filter>> {
    non_empty_structures(filters, |filter| {
        let values = filter.values.into_iter().map(String::from).collect();
        types::Filter::builder()
            .name(filter.name)
            .set_values(Some(values))
            .build()
    })
}
