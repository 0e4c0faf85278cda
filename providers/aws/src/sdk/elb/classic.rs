//! Classic load balancers: the requests to maintain and delete those that cloud-provider-aws
//! created.

use aws_sdk_elasticloadbalancing::{Client, types};

use super::MAX_PAGE_SIZE;
use crate::{
    api::{
        Action, AwsError, InstanceId, Page, Tags,
        elb::{
            ClassicLoadBalancer, DeleteClassic, DeregisterClassic, DescribeClassic,
            DescribeClassicTags, RegisterClassic,
        },
    },
    sdk::{
        convert::{
            non_empty, non_empty_list, non_empty_structures, required, text_or_empty,
            texts_or_empty, time,
        },
        error,
    },
};

pub(in crate::sdk) async fn describe(
    classic: &Client,
    call: DescribeClassic,
) -> Result<Page<ClassicLoadBalancer>, AwsError> {
    let request = classic
        .describe_load_balancers()
        .set_page_size(call.names.is_empty().then_some(MAX_PAGE_SIZE))
        .set_load_balancer_names(non_empty_list(&call.names))
        .set_marker(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(Action::DescribeClassic, error))?;
    let items = answer
        .load_balancer_descriptions
        .unwrap_or_default()
        .into_iter()
        .map(load_balancer)
        .collect::<Result<_, _>>()?;
    Ok(Page { items, next: non_empty(answer.next_marker) })
}

fn load_balancer(from: types::LoadBalancerDescription) -> Result<ClassicLoadBalancer, AwsError> {
    let instances = from.instances.unwrap_or_default().into_iter();
    Ok(ClassicLoadBalancer {
        name: required(Action::DescribeClassic, from.load_balancer_name, "a load balancer's name")?,
        dns_name: text_or_empty(from.dns_name),
        instances: instances
            .filter_map(|instance| non_empty(instance.instance_id))
            .collect(),
        security_groups: texts_or_empty(from.security_groups),
        created: time(from.created_time),
    })
}

pub(in crate::sdk) async fn describe_tags(
    classic: &Client,
    call: DescribeClassicTags,
) -> Result<Vec<(Box<str>, Tags)>, AwsError> {
    let answer = classic
        .describe_tags()
        .set_load_balancer_names(non_empty_list(&call.names))
        .send()
        .await;
    let answer = answer.map_err(|error| error::of(Action::DescribeClassicTags, error))?;
    let descriptions = answer.tag_descriptions.unwrap_or_default().into_iter();
    Ok(descriptions
        .map(|description| {
            let tags = description.tags.unwrap_or_default().into_iter();
            (
                text_or_empty(description.load_balancer_name),
                tags.map(|tag| (tag.key.into(), text_or_empty(tag.value)))
                    .collect(),
            )
        })
        .collect())
}

fn instance(id: &InstanceId) -> types::Instance {
    types::Instance::builder().instance_id(&**id).build()
}

pub(in crate::sdk) async fn register(
    classic: &Client,
    call: RegisterClassic,
) -> Result<(), AwsError> {
    let request = classic
        .register_instances_with_load_balancer()
        .load_balancer_name(call.name)
        .set_instances(non_empty_structures(&call.instances, instance));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::RegisterClassic, error))
}

pub(in crate::sdk) async fn deregister(
    classic: &Client,
    call: DeregisterClassic,
) -> Result<(), AwsError> {
    let request = classic
        .deregister_instances_from_load_balancer()
        .load_balancer_name(call.name)
        .set_instances(non_empty_structures(&call.instances, instance));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeregisterClassic, error))
}

pub(in crate::sdk) async fn delete(classic: &Client, call: DeleteClassic) -> Result<(), AwsError> {
    let request = classic.delete_load_balancer().load_balancer_name(call.name);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeleteClassic, error))
}
