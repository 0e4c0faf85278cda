//! Attributes and tags of load balancers, target groups and listeners.

use aws_sdk_elasticloadbalancingv2::{Client, types};

use crate::{
    api::{
        Action, AwsError, Tags,
        elb::{
            AddElbTags, Attributes, DescribeElbTags, DescribeListenerAttributes,
            DescribeLoadBalancerAttributes, DescribeTargetGroupAttributes,
            ModifyListenerAttributes, ModifyLoadBalancerAttributes, ModifyTargetGroupAttributes,
            RemoveElbTags,
        },
    },
    sdk::{
        convert::{non_empty_list, non_empty_structures, text_or_empty},
        error,
    },
};

macro_rules! attributes {
    ($($describe:ident $read_call:ident, $modify:ident $write_call:ident, $arn:ident, $attribute:ident;)*) => {$(
        pub(in crate::sdk) async fn $describe(elb: &Client, call: $read_call) -> Result<Attributes, AwsError> {
            let answer = elb.$describe().$arn(&*call.arn).send().await;
            let answer = answer.map_err(|error| error::of(Action::$read_call, error))?;
            let attributes = answer.attributes.unwrap_or_default().into_iter();
            Ok(attributes
                .map(|attribute| (text_or_empty(attribute.key), text_or_empty(attribute.value)))
                .collect())
        }

        pub(in crate::sdk) async fn $modify(elb: &Client, call: $write_call) -> Result<(), AwsError> {
            let attributes = non_empty_structures(call.attributes, |(key, value)| {
                types::$attribute::builder().key(key).value(value).build()
            });
            let request = elb.$modify().$arn(&*call.arn).set_attributes(attributes);
            request.send().await.map(drop).map_err(|error| error::of(Action::$write_call, error))
        }
    )*};
}

attributes! {
    describe_load_balancer_attributes DescribeLoadBalancerAttributes,
    modify_load_balancer_attributes ModifyLoadBalancerAttributes, load_balancer_arn, LoadBalancerAttribute;
    describe_target_group_attributes DescribeTargetGroupAttributes,
    modify_target_group_attributes ModifyTargetGroupAttributes, target_group_arn, TargetGroupAttribute;
    describe_listener_attributes DescribeListenerAttributes,
    modify_listener_attributes ModifyListenerAttributes, listener_arn, ListenerAttribute;
}

/// Converts tags for a request.
pub(super) fn write(tags: Tags) -> Option<Vec<types::Tag>> {
    non_empty_structures(tags, |(key, value)| types::Tag::builder().key(key).value(value).build())
}

pub(in crate::sdk) async fn describe_tags(
    elb: &Client,
    call: DescribeElbTags,
) -> Result<Vec<(Box<str>, Tags)>, AwsError> {
    let answer = elb
        .describe_tags()
        .set_resource_arns(non_empty_list(&call.arns))
        .send()
        .await;
    let answer = answer.map_err(|error| error::of(Action::DescribeElbTags, error))?;
    let descriptions = answer.tag_descriptions.unwrap_or_default().into_iter();
    Ok(descriptions
        .map(|description| {
            let tags = description.tags.unwrap_or_default().into_iter();
            (
                text_or_empty(description.resource_arn),
                tags.map(|tag| (text_or_empty(tag.key), text_or_empty(tag.value)))
                    .collect(),
            )
        })
        .collect())
}

pub(in crate::sdk) async fn add_tags(elb: &Client, call: AddElbTags) -> Result<(), AwsError> {
    let request = elb
        .add_tags()
        .set_resource_arns(non_empty_list(&call.arns))
        .set_tags(write(call.tags));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::AddElbTags, error))
}

pub(in crate::sdk) async fn remove_tags(elb: &Client, call: RemoveElbTags) -> Result<(), AwsError> {
    let request = elb
        .remove_tags()
        .set_resource_arns(non_empty_list(&call.arns))
        .set_tag_keys(non_empty_list(&call.keys));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::RemoveElbTags, error))
}
