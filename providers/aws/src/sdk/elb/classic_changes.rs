//! Classic load balancers: the requests that change them.

use aws_sdk_elasticloadbalancing::{Client, types};
use aws_smithy_types::error::operation::BuildError;

use crate::{
    api::{
        Action, AwsError, InstanceId, Tags,
        classic::{
            AddClassicTags, AttachClassicSubnets, ClassicAttributes, ClassicListener,
            ConfigureClassicHealthCheck, CreateClassic, CreateClassicListeners,
            CreateClassicPolicy, DeleteClassic, DeleteClassicListeners, DeregisterClassic,
            DetachClassicSubnets, ModifyClassicAttributes, RegisterClassic,
            SetClassicBackendPolicies, SetClassicListenerPolicies, SetClassicSecurityGroups,
        },
    },
    sdk::{
        convert::{non_empty_list, non_empty_structures, text_or_empty},
        error,
    },
};

/// Sends a request whose answer has no content.
macro_rules! send {
    ($action:ident, $request:expr) => {
        $request
            .send()
            .await
            .map(drop)
            .map_err(|error| error::of(Action::$action, error))
    };
}

/// Returns the error of a request that lacks a field. All required fields are set below.
fn incomplete(action: Action, error: BuildError) -> AwsError {
    AwsError::no_response(action, error)
}

pub(in crate::sdk) async fn create(
    classic: &Client,
    call: CreateClassic,
) -> Result<Box<str>, AwsError> {
    const ACTION: Action = Action::CreateClassic;
    // Without a scheme, AWS makes an internet-facing load balancer. It accepts only `internal`.
    let scheme = (call.scheme == crate::api::elb::Scheme::Internal).then(|| "internal".to_owned());
    let answer = classic
        .create_load_balancer()
        .load_balancer_name(call.name)
        .set_scheme(scheme)
        .set_subnets(non_empty_list(&call.subnets))
        .set_security_groups(non_empty_list(&call.security_groups))
        .set_listeners(Some(listeners(ACTION, &call.listeners)?))
        .set_tags(tags(ACTION, &call.tags)?)
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    Ok(text_or_empty(answer.dns_name))
}

fn listeners(
    action: Action,
    listeners: &[ClassicListener],
) -> Result<Vec<types::Listener>, AwsError> {
    let listener = |listener: &ClassicListener| {
        types::Listener::builder()
            .load_balancer_port(listener.port.into())
            .protocol(&*listener.protocol)
            .instance_port(listener.instance_port.into())
            .instance_protocol(&*listener.instance_protocol)
            .set_ssl_certificate_id(listener.certificate.as_deref().map(Into::into))
            .build()
    };
    let built: Result<_, _> = listeners.iter().map(listener).collect();
    built.map_err(|error| incomplete(action, error))
}

fn tags(action: Action, tags: &Tags) -> Result<Option<Vec<types::Tag>>, AwsError> {
    let built: Result<Vec<_>, _> = tags
        .iter()
        .map(|(key, value)| types::Tag::builder().key(&**key).value(&**value).build())
        .collect();
    let built = built.map_err(|error| incomplete(action, error))?;
    Ok((!built.is_empty()).then_some(built))
}

pub(in crate::sdk) async fn create_listeners(
    classic: &Client,
    call: CreateClassicListeners,
) -> Result<(), AwsError> {
    let request = classic
        .create_load_balancer_listeners()
        .load_balancer_name(call.name)
        .set_listeners(Some(listeners(Action::CreateClassicListeners, &call.listeners)?));
    send!(CreateClassicListeners, request)
}

pub(in crate::sdk) async fn delete_listeners(
    classic: &Client,
    call: DeleteClassicListeners,
) -> Result<(), AwsError> {
    let ports = call.ports.iter().copied().map(i32::from).collect();
    let request = classic
        .delete_load_balancer_listeners()
        .load_balancer_name(call.name)
        .set_load_balancer_ports(Some(ports));
    send!(DeleteClassicListeners, request)
}

pub(in crate::sdk) async fn configure_health_check(
    classic: &Client,
    call: ConfigureClassicHealthCheck,
) -> Result<(), AwsError> {
    const ACTION: Action = Action::ConfigureClassicHealthCheck;
    let check = types::HealthCheck::builder()
        .target(call.check.target)
        .interval(number(call.check.interval))
        .timeout(number(call.check.timeout))
        .healthy_threshold(number(call.check.healthy))
        .unhealthy_threshold(number(call.check.unhealthy))
        .build()
        .map_err(|error| incomplete(ACTION, error))?;
    let request = classic
        .configure_health_check()
        .load_balancer_name(call.name)
        .health_check(check);
    send!(ConfigureClassicHealthCheck, request)
}

/// Converts a number of a request. AWS rejects one that is too large.
fn number(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(in crate::sdk) async fn modify_attributes(
    classic: &Client,
    call: ModifyClassicAttributes,
) -> Result<(), AwsError> {
    let request = classic
        .modify_load_balancer_attributes()
        .load_balancer_name(call.name)
        .load_balancer_attributes(attributes(call.attributes)?);
    send!(ModifyClassicAttributes, request)
}

fn attributes(from: ClassicAttributes) -> Result<types::LoadBalancerAttributes, AwsError> {
    let access_log = from.access_log.map(|log| {
        types::AccessLog::builder()
            .enabled(log.enabled)
            .set_emit_interval(log.interval.map(number))
            .set_s3_bucket_name(log.bucket.map(Into::into))
            .set_s3_bucket_prefix(log.prefix.map(Into::into))
            .build()
    });
    let draining = from.draining.map(|draining| {
        types::ConnectionDraining::builder()
            .enabled(draining.enabled)
            .set_timeout(draining.timeout.map(number))
            .build()
    });
    let settings = from.idle_timeout.map(|timeout| {
        types::ConnectionSettings::builder()
            .idle_timeout(number(timeout))
            .build()
    });
    let settings = settings
        .transpose()
        .map_err(|error| incomplete(Action::ModifyClassicAttributes, error))?;
    let cross_zone = from.cross_zone.map(|enabled| {
        types::CrossZoneLoadBalancing::builder()
            .enabled(enabled)
            .build()
    });
    Ok(types::LoadBalancerAttributes::builder()
        .set_access_log(access_log)
        .set_connection_draining(draining)
        .set_connection_settings(settings)
        .set_cross_zone_load_balancing(cross_zone)
        .build())
}

pub(in crate::sdk) async fn set_security_groups(
    classic: &Client,
    call: SetClassicSecurityGroups,
) -> Result<(), AwsError> {
    let request = classic
        .apply_security_groups_to_load_balancer()
        .load_balancer_name(call.name)
        .set_security_groups(non_empty_list(&call.groups));
    send!(SetClassicSecurityGroups, request)
}

pub(in crate::sdk) async fn attach_subnets(
    classic: &Client,
    call: AttachClassicSubnets,
) -> Result<(), AwsError> {
    let request = classic
        .attach_load_balancer_to_subnets()
        .load_balancer_name(call.name)
        .set_subnets(non_empty_list(&call.subnets));
    send!(AttachClassicSubnets, request)
}

pub(in crate::sdk) async fn detach_subnets(
    classic: &Client,
    call: DetachClassicSubnets,
) -> Result<(), AwsError> {
    let request = classic
        .detach_load_balancer_from_subnets()
        .load_balancer_name(call.name)
        .set_subnets(non_empty_list(&call.subnets));
    send!(DetachClassicSubnets, request)
}

pub(in crate::sdk) async fn create_policy(
    classic: &Client,
    call: CreateClassicPolicy,
) -> Result<(), AwsError> {
    let (name, value) = call.attribute;
    let attribute = types::PolicyAttribute::builder()
        .attribute_name(name)
        .attribute_value(value)
        .build();
    let request = classic
        .create_load_balancer_policy()
        .load_balancer_name(call.name)
        .policy_name(call.policy)
        .policy_type_name(call.kind)
        .policy_attributes(attribute);
    send!(CreateClassicPolicy, request)
}

/// Converts a list of policies that replaces another one. The parameter is required, so that an
/// empty list has to be sent as such.
fn policies(names: Vec<Box<str>>) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

pub(in crate::sdk) async fn set_listener_policies(
    classic: &Client,
    call: SetClassicListenerPolicies,
) -> Result<(), AwsError> {
    let request = classic
        .set_load_balancer_policies_of_listener()
        .load_balancer_name(call.name)
        .load_balancer_port(call.port.into())
        .set_policy_names(Some(policies(call.policies)));
    send!(SetClassicListenerPolicies, request)
}

pub(in crate::sdk) async fn set_backend_policies(
    classic: &Client,
    call: SetClassicBackendPolicies,
) -> Result<(), AwsError> {
    let request = classic
        .set_load_balancer_policies_for_backend_server()
        .load_balancer_name(call.name)
        .instance_port(call.instance_port.into())
        .set_policy_names(Some(policies(call.policies)));
    send!(SetClassicBackendPolicies, request)
}

pub(in crate::sdk) async fn add_tags(
    classic: &Client,
    call: AddClassicTags,
) -> Result<(), AwsError> {
    let request = classic
        .add_tags()
        .load_balancer_names(call.name)
        .set_tags(tags(Action::AddClassicTags, &call.tags)?);
    send!(AddClassicTags, request)
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
    send!(RegisterClassic, request)
}

pub(in crate::sdk) async fn deregister(
    classic: &Client,
    call: DeregisterClassic,
) -> Result<(), AwsError> {
    let request = classic
        .deregister_instances_from_load_balancer()
        .load_balancer_name(call.name)
        .set_instances(non_empty_structures(&call.instances, instance));
    send!(DeregisterClassic, request)
}

pub(in crate::sdk) async fn delete(classic: &Client, call: DeleteClassic) -> Result<(), AwsError> {
    let request = classic.delete_load_balancer().load_balancer_name(call.name);
    send!(DeleteClassic, request)
}
