//! What AWS asks the policies for each request of the provider: actions, resources and context keys.
//!
//! Source: the Service Authorization Reference (Amazon EC2, Elastic Load Balancing, Elastic Load
//! Balancing V2), as of June 2026. A resource type that the reference does not mark as required is only
//! asked about if the request names such a resource:
//!
//! - Rules of security groups (`security-group-rule`) only if the request tags them, which it never does.
//! - The instance of a network interface, if the interface is attached to one.
//!
//! An action that tags what it creates also asks for `ec2:CreateTags` or `elasticloadbalancing:AddTags`
//! on the new object, with the key `CreateAction`. ARNs of new objects end with `*`, because AWS asks
//! before it has an ID.

use super::policy::AuthorizationRequest;
use crate::{
    api::{Action, Call, EniId, InstanceId, Tags},
    fake::{ACCOUNT, REGION},
};

/// What has to be known about an account to say what AWS asks the policies.
pub(crate) trait Objects {
    /// Returns the tags of an object, by ID (EC2), ARN (load balancers, target groups, listeners) or
    /// name (classic load balancers).
    fn tags(&self, object: &str) -> Tags;

    /// Returns the instance to which a network interface is attached.
    fn instance_of(&self, interface: &EniId) -> Option<InstanceId>;
}

/// Returns all that AWS asks the policies for a request. The request is denied if one of them is.
// length: one arm per request
pub(crate) fn authorization_requests(
    call: &Call,
    objects: &dyn Objects,
) -> Vec<AuthorizationRequest> {
    let action = call.action();
    let on = |arn: String, object: &str| on_existing(action, arn, &objects.tags(object));
    let on_ec2 = |kind: &str, id: &str| on(ec2_arn(kind, id), id);
    let on_elb = |arn: &str| on(arn.to_owned(), arn);
    let on_classic = |name: &str| on(classic_arn(name), name);
    match call {
        // EC2 and Elastic Load Balancing have no resources and keys for reads.
        Call::DescribeInstances(_)
        | Call::DescribeNetworkInterfaces(_)
        | Call::DescribeAvailabilityZones(_)
        | Call::DescribeInstanceTopology(_)
        | Call::DescribeSubnets(_)
        | Call::DescribeRouteTables(_)
        | Call::DescribeVpcs(_)
        | Call::DescribeSecurityGroups(_)
        | Call::DescribeLoadBalancers(_)
        | Call::DescribeLoadBalancerAttributes(_)
        | Call::DescribeCapacityReservation(_)
        | Call::DescribeTargetGroups(_)
        | Call::DescribeTargetGroupAttributes(_)
        | Call::DescribeTargetHealth(_)
        | Call::DescribeListeners(_)
        | Call::DescribeListenerAttributes(_)
        | Call::DescribeListenerCertificates(_)
        | Call::DescribeElbTags(_)
        | Call::DescribeClassic(_)
        | Call::DescribeClassicTags(_)
        | Call::DescribeClassicAttributes(_) => {
            vec![AuthorizationRequest::new(name(action), "*")]
        }
        // No policy is asked about it.
        Call::GetCallerIdentity(_) => Vec::new(),
        // Security groups.
        Call::CreateSecurityGroup(c) => {
            let mut requests = on_new(action, &ec2_arn("security-group", "*"), &c.tags);
            requests.push(on_ec2("vpc", &c.vpc));
            requests
        }
        Call::DeleteSecurityGroup(c) => vec![on_ec2("security-group", &c.id)],
        Call::AuthorizeSecurityGroupIngress(c) => vec![on_ec2("security-group", &c.id)],
        Call::RevokeSecurityGroupIngress(c) => vec![on_ec2("security-group", &c.id)],
        // Tags of EC2 objects.
        Call::CreateTags(c) => c
            .resources
            .iter()
            .map(|id| with_tags(on_ec2(ec2_kind(id), id), &c.tags))
            .collect(),
        Call::DeleteTags(c) => c
            .resources
            .iter()
            .map(|id| with_tags(on_ec2(ec2_kind(id), id), &c.tags))
            .collect(),
        // Routes.
        Call::CreateRoute(c) => vec![on_ec2("route-table", &c.table)],
        Call::ReplaceRoute(c) => vec![on_ec2("route-table", &c.table)],
        Call::DeleteRoute(c) => vec![on_ec2("route-table", &c.table)],
        Call::ModifyInstanceAttribute(c) => {
            vec![with_check(on_ec2("instance", &c.id), c.source_dest_check)]
        }
        Call::ModifyNetworkInterfaceAttribute(c) => {
            let interface = on_ec2("network-interface", &c.id);
            let instance = objects.instance_of(&c.id);
            [with_check(interface, c.source_dest_check)]
                .into_iter()
                .chain(instance.map(|id| on_ec2("instance", &id)))
                .collect()
        }
        // Load balancers.
        Call::CreateLoadBalancer(c) => {
            on_new(action, &elb_arn(&format!("loadbalancer/net/{}/*", c.name)), &c.tags)
        }
        Call::DeleteLoadBalancer(c) => vec![on_elb(&c.arn)],
        Call::ModifyLoadBalancerAttributes(c) => vec![on_elb(&c.arn)],
        Call::ModifyCapacityReservation(c) => vec![on_elb(&c.arn)],
        Call::SetSubnets(c) => vec![on_elb(&c.arn)],
        Call::SetIpAddressType(c) => vec![on_elb(&c.arn)],
        Call::SetSecurityGroups(c) => vec![on_elb(&c.arn)],
        // Target groups.
        Call::CreateTargetGroup(c) => {
            on_new(action, &elb_arn(&format!("targetgroup/{}/*", c.name)), &c.tags)
        }
        Call::ModifyTargetGroup(c) => vec![on_elb(&c.arn)],
        Call::ModifyTargetGroupAttributes(c) => vec![on_elb(&c.arn)],
        Call::DeleteTargetGroup(c) => vec![on_elb(&c.arn)],
        Call::RegisterTargets(c) => vec![on_elb(&c.arn)],
        Call::DeregisterTargets(c) => vec![on_elb(&c.arn)],
        // Listeners. A new one is asked about as a part of its load balancer. Its tags are documented
        // to be asked about on the listener, and users have seen the load balancer's ARN in denials,
        // so that both must be allowed.
        Call::CreateListener(c) => {
            let listener = c.load_balancer.replace(":loadbalancer/", ":listener/") + "/*";
            [with_tags(on_elb(&c.load_balancer), &c.tags)]
                .into_iter()
                .chain(tag_new(action, &c.load_balancer, &c.tags))
                .chain(tag_new(action, &listener, &c.tags))
                .collect()
        }
        Call::ModifyListener(c) => vec![on_elb(&c.arn)],
        Call::ModifyListenerAttributes(c) => vec![on_elb(&c.arn)],
        Call::DeleteListener(c) => vec![on_elb(&c.arn)],
        Call::AddListenerCertificates(c) => vec![on_elb(&c.arn)],
        Call::RemoveListenerCertificates(c) => vec![on_elb(&c.arn)],
        // Tags of load balancers, target groups and listeners.
        Call::AddElbTags(c) => c
            .arns
            .iter()
            .map(|arn| with_tags(on_elb(arn), &c.tags))
            .collect(),
        Call::RemoveElbTags(c) => c
            .arns
            .iter()
            .map(|arn| on_elb(arn).key("aws:TagKeys", c.keys.iter().map(|key| &**key)))
            .collect(),
        // Classic load balancers.
        Call::CreateClassic(c) => on_new(action, &classic_arn(&c.name), &c.tags),
        Call::CreateClassicListeners(c) => vec![on_classic(&c.name)],
        Call::DeleteClassicListeners(c) => vec![on_classic(&c.name)],
        Call::ConfigureClassicHealthCheck(c) => vec![on_classic(&c.name)],
        Call::ModifyClassicAttributes(c) => vec![on_classic(&c.name)],
        Call::SetClassicSecurityGroups(c) => vec![on_classic(&c.name)],
        Call::AttachClassicSubnets(c) => vec![on_classic(&c.name)],
        Call::DetachClassicSubnets(c) => vec![on_classic(&c.name)],
        Call::CreateClassicPolicy(c) => vec![on_classic(&c.name)],
        Call::SetClassicListenerPolicies(c) => vec![on_classic(&c.name)],
        Call::SetClassicBackendPolicies(c) => vec![on_classic(&c.name)],
        Call::AddClassicTags(c) => vec![with_tags(on_classic(&c.name), &c.tags)],
        Call::RegisterClassic(c) => vec![on_classic(&c.name)],
        Call::DeregisterClassic(c) => vec![on_classic(&c.name)],
        Call::DeleteClassic(c) => vec![on_classic(&c.name)],
    }
}

/// Returns the name of an action in policies.
pub(crate) fn name(action: Action) -> String {
    format!("{}:{}", action.service().iam_prefix(), action.name())
}

/// Returns the ARN of an EC2 object.
pub(crate) fn ec2_arn(kind: &str, id: &str) -> String {
    format!("arn:aws:ec2:{REGION}:{ACCOUNT}:{kind}/{id}")
}

/// Returns the ARN of a load balancer, target group or listener.
pub(crate) fn elb_arn(path: &str) -> String {
    format!("arn:aws:elasticloadbalancing:{REGION}:{ACCOUNT}:{path}")
}

fn classic_arn(name: &str) -> String {
    elb_arn(&format!("loadbalancer/{name}"))
}

fn ec2_kind(id: &str) -> &'static str {
    match id.split_once('-') {
        Some(("i", _)) => "instance",
        Some(("sg", _)) => "security-group",
        _ => panic!("the provider does not tag {id}"),
    }
}

/// An action on an object with these tags.
fn on_existing(action: Action, arn: String, tags: &Tags) -> AuthorizationRequest {
    let service = action.service().iam_prefix();
    let request = AuthorizationRequest::new(name(action), arn);
    tags.iter().fold(request, |request, (key, value)| {
        request
            .key(format!("aws:ResourceTag/{key}"), [&**value])
            .key(format!("{service}:ResourceTag/{key}"), [&**value])
    })
}

/// An action that creates an object, and tags it if there are tags.
fn on_new(action: Action, arn: &str, tags: &Tags) -> Vec<AuthorizationRequest> {
    let request = with_tags(AuthorizationRequest::new(name(action), arn), tags);
    [request]
        .into_iter()
        .chain(tag_new(action, arn, tags))
        .collect()
}

/// The tagging of an object that an action creates.
fn tag_new(action: Action, arn: &str, tags: &Tags) -> Option<AuthorizationRequest> {
    if tags.is_empty() {
        return None;
    }
    let service = action.service().iam_prefix();
    let tagging = if service == "ec2" {
        "CreateTags"
    } else {
        "AddTags"
    };
    let request = AuthorizationRequest::new(format!("{service}:{tagging}"), arn)
        .key(format!("{service}:CreateAction"), [action.name()]);
    Some(with_tags(request, tags))
}

/// Adds the keys for tags in a request.
fn with_tags(request: AuthorizationRequest, tags: &Tags) -> AuthorizationRequest {
    if tags.is_empty() {
        return request;
    }
    let request = request.key("aws:TagKeys", tags.keys().map(|key| &**key));
    tags.iter().fold(request, |request, (key, value)| {
        request.key(format!("aws:RequestTag/{key}"), [&**value])
    })
}

/// Adds the keys for a change of the source/destination check.
fn with_check(request: AuthorizationRequest, check: bool) -> AuthorizationRequest {
    request
        .key("ec2:Attribute", ["SourceDestCheck"])
        .key("ec2:Attribute/SourceDestCheck", [check.to_string()])
}
