//! Maps each call to a request of the SDK.

use async_trait::async_trait;

use super::{
    dry_run,
    ec2::{groups, instances, network, tags},
    elb::{attributes_and_tags, balancers, capacity, classic, classic_changes, listeners, targets},
    sts::{self, StsClient},
};
use crate::api::{AwsError, Call, DryRunAnswer, Reply, Service, Transport};

/// Implementation of [`Transport`] with the AWS SDK.
#[derive(Clone, Debug)]
pub(crate) struct SdkTransport {
    pub(super) ec2: aws_sdk_ec2::Client,
    pub(super) elb: aws_sdk_elasticloadbalancingv2::Client,
    pub(super) classic: aws_sdk_elasticloadbalancing::Client,
    pub(super) sts: StsClient,
}

/// Sends each call with its own function, and wraps the answer.
macro_rules! send {
    ($call:expr; $($client:expr => { $($name:ident: $function:path),* $(,)? })*) => {
        match $call {
            $($(Call::$name(call) => $function($client, call).await.map(Reply::$name),)*)*
        }
    };
}

#[async_trait]
impl Transport for SdkTransport {
    // length: a table with a line for each call
    async fn send(&self, call: Call) -> Result<Reply, AwsError> {
        send!(call;
            &self.ec2 => {
                DescribeInstances: instances::describe,
                DescribeInstanceTopology: instances::describe_topology,
                ModifyInstanceAttribute: instances::modify,
                DescribeNetworkInterfaces: network::describe_interfaces,
                ModifyNetworkInterfaceAttribute: network::modify_interface,
                DescribeAvailabilityZones: network::describe_zones,
                DescribeSubnets: network::describe_subnets,
                DescribeVpcs: network::describe_vpcs,
                DescribeRouteTables: network::describe_route_tables,
                CreateRoute: network::create_route,
                ReplaceRoute: network::replace_route,
                DeleteRoute: network::delete_route,
                DescribeSecurityGroups: groups::describe,
                CreateSecurityGroup: groups::create,
                DeleteSecurityGroup: groups::delete,
                AuthorizeSecurityGroupIngress: groups::authorize,
                RevokeSecurityGroupIngress: groups::revoke,
                CreateTags: tags::create,
                DeleteTags: tags::delete,
            }
            &self.elb => {
                DescribeLoadBalancers: balancers::describe,
                CreateLoadBalancer: balancers::create,
                DeleteLoadBalancer: balancers::delete,
                DescribeCapacityReservation: capacity::describe,
                ModifyCapacityReservation: capacity::modify,
                SetSubnets: balancers::set_subnets,
                SetIpAddressType: balancers::set_ip_address_type,
                SetSecurityGroups: balancers::set_security_groups,
                DescribeTargetGroups: targets::describe,
                CreateTargetGroup: targets::create,
                ModifyTargetGroup: targets::modify,
                DeleteTargetGroup: targets::delete,
                DescribeTargetHealth: targets::health,
                RegisterTargets: targets::register,
                DeregisterTargets: targets::deregister,
                DescribeListeners: listeners::describe,
                CreateListener: listeners::create,
                ModifyListener: listeners::modify,
                DeleteListener: listeners::delete,
                DescribeListenerCertificates: listeners::describe_certificates,
                AddListenerCertificates: listeners::add_certificates,
                RemoveListenerCertificates: listeners::remove_certificates,
                DescribeLoadBalancerAttributes: attributes_and_tags::describe_load_balancer_attributes,
                ModifyLoadBalancerAttributes: attributes_and_tags::modify_load_balancer_attributes,
                DescribeTargetGroupAttributes: attributes_and_tags::describe_target_group_attributes,
                ModifyTargetGroupAttributes: attributes_and_tags::modify_target_group_attributes,
                DescribeListenerAttributes: attributes_and_tags::describe_listener_attributes,
                ModifyListenerAttributes: attributes_and_tags::modify_listener_attributes,
                DescribeElbTags: attributes_and_tags::describe_tags,
                AddElbTags: attributes_and_tags::add_tags,
                RemoveElbTags: attributes_and_tags::remove_tags,
            }
            &self.classic => {
                DescribeClassic: classic::describe,
                DescribeClassicTags: classic::describe_tags,
                DescribeClassicAttributes: classic::describe_attributes,
                CreateClassic: classic_changes::create,
                CreateClassicListeners: classic_changes::create_listeners,
                DeleteClassicListeners: classic_changes::delete_listeners,
                ConfigureClassicHealthCheck: classic_changes::configure_health_check,
                ModifyClassicAttributes: classic_changes::modify_attributes,
                SetClassicSecurityGroups: classic_changes::set_security_groups,
                AttachClassicSubnets: classic_changes::attach_subnets,
                DetachClassicSubnets: classic_changes::detach_subnets,
                CreateClassicPolicy: classic_changes::create_policy,
                SetClassicListenerPolicies: classic_changes::set_listener_policies,
                SetClassicBackendPolicies: classic_changes::set_backend_policies,
                AddClassicTags: classic_changes::add_tags,
                RegisterClassic: classic_changes::register,
                DeregisterClassic: classic_changes::deregister,
                DeleteClassic: classic_changes::delete,
            }
            &self.sts => {
                GetCallerIdentity: sts::caller,
            }
        )
    }

    async fn would_allow(&self, call: Call) -> Result<DryRunAnswer, AwsError> {
        if call.action().service() != Service::Ec2 {
            return Ok(DryRunAnswer::Unknown);
        }
        let asking = Self { ec2: dry_run::client(&self.ec2), ..self.clone() };
        match asking.send(call).await {
            // EC2 answers each such request with an error. Emulators may not know the parameter.
            Ok(_) => Ok(DryRunAnswer::CarriedOut),
            Err(error) => DryRunAnswer::of_error(error),
        }
    }
}
