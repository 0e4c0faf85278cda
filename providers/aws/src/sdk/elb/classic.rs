//! Classic load balancers: the requests to maintain and delete those that upstream created.

use aws_sdk_elasticloadbalancing::{Client, types};

use super::PAGE;
use crate::{
    api::{
        Action, AwsError, InstanceId, Page, Tags,
        elb::{
            ClassicLoadBalancer, DeleteClassic, DeregisterClassic, DescribeClassic,
            DescribeClassicTags, RegisterClassic,
        },
    },
    sdk::{
        convert::{id, list, maybe, structures, text, texts, time, token},
        error,
    },
};

pub(in crate::sdk) async fn describe(
    classic: &Client,
    call: DescribeClassic,
) -> Result<Page<ClassicLoadBalancer>, AwsError> {
    const ACTION: Action = Action::DescribeClassic;
    let request = classic
        .describe_load_balancers()
        .set_page_size(call.names.is_empty().then_some(PAGE))
        .set_load_balancer_names(list(&call.names))
        .set_marker(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let items = answer
        .load_balancer_descriptions
        .unwrap_or_default()
        .into_iter()
        .map(|from| {
            let instances = from.instances.unwrap_or_default().into_iter();
            Ok(ClassicLoadBalancer {
                name: id(ACTION, from.load_balancer_name, "a load balancer's name")?,
                dns_name: text(from.dns_name),
                instances: instances
                    .filter_map(|instance| maybe(instance.instance_id))
                    .collect(),
                security_groups: texts(from.security_groups),
                created: time(from.created_time),
            })
        });
    Ok(Page {
        items: items.collect::<Result<_, _>>()?,
        next: token(answer.next_marker),
    })
}

pub(in crate::sdk) async fn describe_tags(
    classic: &Client,
    call: DescribeClassicTags,
) -> Result<Vec<(Box<str>, Tags)>, AwsError> {
    let answer = classic
        .describe_tags()
        .set_load_balancer_names(list(&call.names))
        .send()
        .await;
    let answer = answer.map_err(|error| error::of(Action::DescribeClassicTags, error))?;
    let descriptions = answer.tag_descriptions.unwrap_or_default().into_iter();
    Ok(descriptions
        .map(|of| {
            let tags = of.tags.unwrap_or_default().into_iter();
            (
                text(of.load_balancer_name),
                tags.map(|tag| (tag.key.into(), text(tag.value))).collect(),
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
        .set_instances(structures(&call.instances, instance));
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
        .set_instances(structures(&call.instances, instance));
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
