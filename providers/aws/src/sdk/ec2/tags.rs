//! Tags of EC2 objects.

use aws_sdk_ec2::{Client, types};

use crate::{
    api::{
        Action, AwsError, Tags,
        ec2::{CreateTags, DeleteTags},
    },
    sdk::{
        convert::{non_empty_list, non_empty_structures},
        error,
    },
};

/// Converts tags of an answer.
pub(super) fn read(tags: Option<Vec<types::Tag>>) -> Tags {
    let tags = tags.unwrap_or_default().into_iter();
    tags.map(|tag| (tag.key.unwrap_or_default().into(), tag.value.unwrap_or_default().into()))
        .collect()
}

/// Converts tags for a request.
pub(super) fn write(tags: Tags) -> Option<Vec<types::Tag>> {
    non_empty_structures(tags, |(key, value)| types::Tag::builder().key(key).value(value).build())
}

pub(in crate::sdk) async fn create(ec2: &Client, call: CreateTags) -> Result<(), AwsError> {
    let request = ec2
        .create_tags()
        .set_resources(non_empty_list(&call.resources))
        .set_tags(write(call.tags));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::CreateTags, error))
}

pub(in crate::sdk) async fn delete(ec2: &Client, call: DeleteTags) -> Result<(), AwsError> {
    let request = ec2
        .delete_tags()
        .set_resources(non_empty_list(&call.resources))
        .set_tags(write(call.tags));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeleteTags, error))
}
