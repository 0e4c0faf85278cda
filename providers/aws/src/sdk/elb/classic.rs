//! Classic load balancers: the requests that read them.

use aws_sdk_elasticloadbalancing::{Client, types};

use super::MAX_PAGE_SIZE;
use crate::{
    api::{
        Action, AwsError, Page, Tags,
        classic::{
            ClassicAccessLog, ClassicAttributes, ClassicBackend, ClassicDraining,
            ClassicHealthCheck, ClassicListener, ClassicLoadBalancer, DescribeClassic,
            DescribeClassicAttributes, DescribeClassicTags, ObservedClassicListener,
        },
        elb::Scheme,
    },
    sdk::{
        convert::{non_empty, non_empty_list, required, text_or_empty, texts_or_empty, time},
        error,
    },
};

const DESCRIBE: Action = Action::DescribeClassic;

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
        .map_err(|error| error::of(DESCRIBE, error))?;
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
    let listeners = from.listener_descriptions.unwrap_or_default().into_iter();
    let backends = from.backend_server_descriptions.unwrap_or_default();
    let policies = from.policies.and_then(|policies| policies.other_policies);
    Ok(ClassicLoadBalancer {
        name: required(DESCRIBE, from.load_balancer_name, "a load balancer's name")?,
        dns_name: text_or_empty(from.dns_name),
        scheme: from.scheme.as_deref().and_then(Scheme::parse),
        subnets: texts_or_empty(from.subnets),
        security_groups: texts_or_empty(from.security_groups),
        instances: instances
            .filter_map(|instance| non_empty(instance.instance_id))
            .collect(),
        listeners: listeners.filter_map(listener).collect::<Result<_, _>>()?,
        backends: backends
            .into_iter()
            .map(backend)
            .collect::<Result<_, _>>()?,
        policies: texts_or_empty(policies),
        health_check: from.health_check.map(health_check).transpose()?,
        created: time(from.created_time),
    })
}

/// Converts a listener; `None` if the answer describes none.
fn listener(from: types::ListenerDescription) -> Option<Result<ObservedClassicListener, AwsError>> {
    let listener = from.listener?;
    let policies = texts_or_empty(from.policy_names);
    Some(port(listener.load_balancer_port).and_then(|number| {
        Ok(ObservedClassicListener {
            listener: ClassicListener {
                port: number,
                protocol: listener.protocol.into(),
                instance_port: port(listener.instance_port)?,
                instance_protocol: text_or_empty(listener.instance_protocol),
                certificate: non_empty(listener.ssl_certificate_id),
            },
            policies,
        })
    }))
}

fn backend(from: types::BackendServerDescription) -> Result<ClassicBackend, AwsError> {
    Ok(ClassicBackend {
        instance_port: port(from.instance_port.unwrap_or_default())?,
        policies: texts_or_empty(from.policy_names),
    })
}

fn health_check(from: types::HealthCheck) -> Result<ClassicHealthCheck, AwsError> {
    Ok(ClassicHealthCheck {
        target: from.target.into(),
        interval: number(DESCRIBE, from.interval)?,
        timeout: number(DESCRIBE, from.timeout)?,
        healthy: number(DESCRIBE, from.healthy_threshold)?,
        unhealthy: number(DESCRIBE, from.unhealthy_threshold)?,
    })
}

fn port(number: i32) -> Result<u16, AwsError> {
    u16::try_from(number).map_err(|_| error::unreadable(DESCRIBE, format_args!("port {number}")))
}

fn number(action: Action, number: i32) -> Result<u32, AwsError> {
    u32::try_from(number).map_err(|_| error::unreadable(action, format_args!("number {number}")))
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

pub(in crate::sdk) async fn describe_attributes(
    classic: &Client,
    call: DescribeClassicAttributes,
) -> Result<ClassicAttributes, AwsError> {
    const ACTION: Action = Action::DescribeClassicAttributes;
    let answer = classic
        .describe_load_balancer_attributes()
        .load_balancer_name(call.name)
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let Some(found) = answer.load_balancer_attributes else {
        return Err(error::unreadable(ACTION, "the attributes are missing"));
    };
    let optional = |value: Option<i32>| value.map(|value| number(ACTION, value)).transpose();
    let access_log = match found.access_log {
        Some(log) => Some(ClassicAccessLog {
            enabled: log.enabled,
            interval: optional(log.emit_interval)?,
            bucket: non_empty(log.s3_bucket_name),
            prefix: non_empty(log.s3_bucket_prefix),
        }),
        None => None,
    };
    let draining = match found.connection_draining {
        Some(draining) => Some(ClassicDraining {
            enabled: draining.enabled,
            timeout: optional(draining.timeout)?,
        }),
        None => None,
    };
    Ok(ClassicAttributes {
        access_log,
        draining,
        idle_timeout: optional(found.connection_settings.map(|it| it.idle_timeout))?,
        cross_zone: found.cross_zone_load_balancing.map(|it| it.enabled),
    })
}
