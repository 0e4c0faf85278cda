//! Requests of every kind, and on whose objects the documents allow them.

use std::num::NonZeroU16;

use super::{
    authorization::{Objects, ec2_arn, elb_arn},
    policy::AuthorizationRequest,
};
#[allow(
    clippy::wildcard_imports,
    reason = "the table below names nearly every type of these modules"
)]
use crate::api::{classic::*, ec2::*, elb::*, sts::*};
use crate::{
    api::{Action, Call, EniId, InstanceId, Request, Tags},
    fake::{ACCOUNT, CLUSTER},
    ownership_tags::RETAINED_TAG,
};

const INSTANCE: &str = "i-0000000000000000a";
const INTERFACE: &str = "eni-0000000000000000a";
const GROUP: &str = "sg-0000000000000000a";
const VPC: &str = "vpc-0000000000000000a";
const TABLE: &str = "rtb-0000000000000000a";
const CLASSIC: &str = "a0123456789abcdef0123456789abcde";

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The cluster created it.
    Cluster,
    /// The cluster may use it.
    Shared,
    /// Another cluster created it.
    OtherCluster,
    /// It has no tag of any cluster.
    Nobody,
    /// It was kept when its Service went, and belongs to nobody.
    Kept,
}

impl Owner {
    pub(super) const ALL: [Self; 5] =
        [Self::Cluster, Self::Shared, Self::OtherCluster, Self::Nobody, Self::Kept];

    pub(super) fn tags(self) -> Tags {
        let own = format!("kubernetes.io/cluster/{CLUSTER}");
        let (key, value) = match self {
            Self::Cluster => (own, "owned"),
            Self::Shared => (own, "shared"),
            Self::OtherCluster => (format!("kubernetes.io/cluster/{CLUSTER}-2"), "owned"),
            Self::Nobody => ("Name".to_owned(), "owned"),
            Self::Kept => (RETAINED_TAG.to_owned(), "00000000-0000-0000-0000-000000000000"),
        };
        [(key.into(), value.into())].into()
    }
}

/// An account in which every object has the same owner, but for the VPC and network interfaces, which
/// have no tags.
impl Objects for Owner {
    fn tags(&self, object: &str) -> Tags {
        if object == VPC || object == INTERFACE {
            Tags::new()
        } else {
            (*self).tags()
        }
    }

    fn instance_of(&self, _: &EniId) -> Option<InstanceId> {
        Some(INSTANCE.into())
    }
}

/// On which objects a document allows a request; for new objects, with which tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// On those that the cluster created.
    Owned,
    /// On those that the cluster created, and on those that are kept for whoever adopts them.
    Adoptable,
    /// On those with the cluster's tag, whatever its value.
    Tagged,
    /// On all. Reads have no limits in AWS, and listeners of old versions of upstream have no tags.
    Unlimited,
}

impl Limit {
    pub(super) fn allows(self, owner: Owner) -> bool {
        match self {
            Self::Owned => owner == Owner::Cluster,
            Self::Adoptable => matches!(owner, Owner::Cluster | Owner::Kept),
            Self::Tagged => matches!(owner, Owner::Cluster | Owner::Shared),
            Self::Unlimited => true,
        }
    }
}

fn one<R: Request>(limit: Limit, request: R) -> Vec<(Limit, Call)> {
    vec![(limit, request.into_call())]
}

fn text(text: &str) -> Box<str> {
    text.into()
}

fn pair(key: &str, value: &str) -> Tags {
    [(key.into(), value.into())].into()
}

fn load_balancer() -> String {
    elb_arn("loadbalancer/net/web/0123456789abcdef")
}

fn listener() -> String {
    elb_arn("listener/net/web/0123456789abcdef/0123456789abcdef")
}

fn target_group() -> String {
    elb_arn("targetgroup/web/0123456789abcdef")
}

fn health_check() -> HealthCheck {
    HealthCheck {
        protocol: HealthProtocol::Tcp,
        port: HealthPort::Traffic,
        path: None,
        interval: 10,
        timeout: 10,
        healthy: 3,
        unhealthy: 3,
        matcher: None,
    }
}

fn listener_spec() -> ListenerSpec {
    ListenerSpec {
        port: NonZeroU16::MIN,
        protocol: ElbProtocol::Tcp,
        target_group: target_group().into(),
        certificate: None,
        ssl_policy: None,
        alpn_policy: None,
    }
}

fn rules() -> Vec<Rule> {
    let source = RuleSource::Group("sg-0000000000000000b".into(), None);
    let rule = Rule {
        protocol: "tcp".into(),
        ports: Some((1, 1)),
        source,
        description: Box::default(),
    };
    vec![rule]
}

fn classic_listener() -> ClassicListener {
    ClassicListener {
        port: 80,
        protocol: "TCP".into(),
        instance_port: 30080,
        instance_protocol: "TCP".into(),
        certificate: None,
    }
}

/// Returns requests of a kind, with the objects that they are allowed on. New objects get the tags of
/// `owner`. A new kind of request does not compile without a row.
// length: one table
pub(super) fn requests(action: Action, owner: Owner) -> Vec<(Limit, Call)> {
    use Action as A;
    use Limit::{Adoptable, Owned, Tagged, Unlimited};
    let target = || RouteTarget::Instance(INSTANCE.into());
    let destination = || "10.244.1.0/24".parse().unwrap();
    match action {
        A::GetCallerIdentity => one(Unlimited, GetCallerIdentity),
        A::DescribeInstances => one(Unlimited, DescribeInstances::default()),
        A::DescribeNetworkInterfaces => one(Unlimited, DescribeNetworkInterfaces::default()),
        A::DescribeAvailabilityZones => one(Unlimited, DescribeAvailabilityZones),
        A::DescribeInstanceTopology => one(Unlimited, DescribeInstanceTopology::default()),
        A::DescribeSubnets => one(Unlimited, DescribeSubnets::default()),
        A::DescribeRouteTables => one(Unlimited, DescribeRouteTables::default()),
        A::DescribeVpcs => one(Unlimited, DescribeVpcs::default()),
        A::DescribeSecurityGroups => one(Unlimited, DescribeSecurityGroups::default()),
        A::CreateSecurityGroup => {
            let (name, description) = (text("web"), text("web"));
            let tags = owner.tags();
            one(Owned, CreateSecurityGroup { name, description, vpc: VPC.into(), tags })
        }
        A::DeleteSecurityGroup => one(Owned, DeleteSecurityGroup { id: GROUP.into() }),
        A::AuthorizeSecurityGroupIngress => {
            one(Tagged, AuthorizeSecurityGroupIngress { id: GROUP.into(), rules: rules() })
        }
        A::RevokeSecurityGroupIngress => {
            one(Tagged, RevokeSecurityGroupIngress { id: GROUP.into(), rules: rules() })
        }
        // Updates of a managed security group contain the Service's tags alone, and the mark of a
        // replaced one its name; the tagging controller tags instances.
        A::CreateTags => [
            (Adoptable, GROUP, pair("team", "red")),
            (Adoptable, GROUP, pair("kubernetes.io/service-name", "default/web")),
            (Tagged, INSTANCE, pair("team", "red")),
        ]
        .map(|(limit, id, tags)| {
            (limit, CreateTags { resources: vec![id.into()], tags }.into_call())
        })
        .into(),
        // A managed security group that is let go of loses the tags of its owner.
        A::DeleteTags => [(Owned, GROUP), (Tagged, INSTANCE)]
            .map(|(limit, id)| {
                let tags = pair("team", "red");
                (limit, DeleteTags { resources: vec![id.into()], tags }.into_call())
            })
            .into(),
        A::CreateRoute => {
            let destination = destination();
            one(Tagged, CreateRoute { table: TABLE.into(), destination, target: target() })
        }
        A::ReplaceRoute => {
            let destination = destination();
            one(Tagged, ReplaceRoute { table: TABLE.into(), destination, target: target() })
        }
        A::DeleteRoute => {
            one(Tagged, DeleteRoute { table: TABLE.into(), destination: destination() })
        }
        // The subcommand `check` asks with the value that the instance has.
        A::ModifyInstanceAttribute => [false, true]
            .map(|source_dest_check| {
                let id = INSTANCE.into();
                (Tagged, ModifyInstanceAttribute { id, source_dest_check }.into_call())
            })
            .into(),
        A::ModifyNetworkInterfaceAttribute => {
            let id = INTERFACE.into();
            one(Tagged, ModifyNetworkInterfaceAttribute { id, source_dest_check: false })
        }
        A::DescribeLoadBalancers => one(Unlimited, DescribeLoadBalancers::default()),
        A::DescribeLoadBalancerAttributes => {
            one(Unlimited, DescribeLoadBalancerAttributes { arn: load_balancer().into() })
        }
        A::DescribeCapacityReservation => {
            one(Unlimited, DescribeCapacityReservation { arn: load_balancer().into() })
        }
        A::DescribeTargetGroups => one(Unlimited, DescribeTargetGroups::default()),
        A::DescribeTargetGroupAttributes => {
            one(Unlimited, DescribeTargetGroupAttributes { arn: target_group().into() })
        }
        A::DescribeTargetHealth => {
            one(Unlimited, DescribeTargetHealth { arn: target_group().into() })
        }
        A::DescribeListeners => {
            one(Unlimited, DescribeListeners { load_balancer: load_balancer().into(), token: None })
        }
        A::DescribeListenerAttributes => {
            one(Unlimited, DescribeListenerAttributes { arn: listener().into() })
        }
        A::DescribeListenerCertificates => {
            one(Unlimited, DescribeListenerCertificates { arn: listener().into() })
        }
        A::DescribeElbTags => {
            one(Unlimited, DescribeElbTags { arns: vec![load_balancer().into()] })
        }
        A::CreateLoadBalancer => one(
            Owned,
            CreateLoadBalancer {
                name: text("web"),
                scheme: Scheme::Internal,
                ip_address_type: IpAddressType::Ipv4,
                subnets: Vec::new(),
                security_groups: vec![GROUP.into()],
                ipv6_source_nat: None,
                tags: owner.tags(),
            },
        ),
        A::DeleteLoadBalancer => one(Owned, DeleteLoadBalancer { arn: load_balancer().into() }),
        A::ModifyLoadBalancerAttributes => {
            let attributes = pair("a", "b");
            one(Owned, ModifyLoadBalancerAttributes { arn: load_balancer().into(), attributes })
        }
        A::ModifyCapacityReservation => one(
            Owned,
            ModifyCapacityReservation { arn: load_balancer().into(), capacity_units: 3000 },
        ),
        A::SetSubnets => one(
            Owned,
            SetSubnets {
                arn: load_balancer().into(),
                subnets: Vec::new(),
                ipv6_source_nat: None,
                ip_address_type: None,
            },
        ),
        A::SetIpAddressType => {
            let ip_address_type = IpAddressType::Dualstack;
            one(Owned, SetIpAddressType { arn: load_balancer().into(), ip_address_type })
        }
        A::SetSecurityGroups => {
            let (arn, groups) = (load_balancer().into(), vec![GROUP.into()]);
            one(Owned, SetSecurityGroups { arn, groups, private_link_rules: None })
        }
        A::CreateTargetGroup => one(
            Owned,
            CreateTargetGroup {
                name: text("web"),
                protocol: ElbProtocol::Tcp,
                port: NonZeroU16::MIN,
                vpc: VPC.into(),
                target_type: TargetType::Instance,
                ip_address_type: None,
                health_check: health_check(),
                tags: owner.tags(),
            },
        ),
        A::ModifyTargetGroup => {
            let health_check = health_check();
            one(Owned, ModifyTargetGroup { arn: target_group().into(), health_check })
        }
        A::ModifyTargetGroupAttributes => {
            let attributes = pair("a", "b");
            one(Owned, ModifyTargetGroupAttributes { arn: target_group().into(), attributes })
        }
        A::DeleteTargetGroup => one(Owned, DeleteTargetGroup { arn: target_group().into() }),
        A::RegisterTargets => {
            let targets = vec![Target { id: INSTANCE.into(), port: 1, zone: None }];
            one(Owned, RegisterTargets { arn: target_group().into(), targets })
        }
        A::DeregisterTargets => {
            let targets = vec![Target { id: INSTANCE.into(), port: 1, zone: None }];
            one(Owned, DeregisterTargets { arn: target_group().into(), targets })
        }
        A::CreateListener => {
            let (load_balancer, spec) = (load_balancer().into(), listener_spec());
            one(Owned, CreateListener { load_balancer, spec, tags: owner.tags() })
        }
        A::ModifyListener => {
            let spec = listener_spec();
            one(Unlimited, ModifyListener { arn: listener().into(), spec })
        }
        A::ModifyListenerAttributes => {
            let attributes = pair("a", "b");
            one(Unlimited, ModifyListenerAttributes { arn: listener().into(), attributes })
        }
        A::DeleteListener => one(Unlimited, DeleteListener { arn: listener().into() }),
        A::AddListenerCertificates => {
            let (arn, certificates) = (listener().into(), vec![text("arn")]);
            one(Unlimited, AddListenerCertificates { arn, certificates })
        }
        A::RemoveListenerCertificates => {
            let (arn, certificates) = (listener().into(), vec![text("arn")]);
            one(Unlimited, RemoveListenerCertificates { arn, certificates })
        }
        // One request tags load balancer, target groups and listeners. It is denied if one of them is.
        // What was kept is claimed by its tags, which make it the cluster's own.
        A::AddElbTags => [
            (Adoptable, vec![load_balancer(), listener()]),
            (Adoptable, vec![listener(), target_group()]),
            (Unlimited, vec![listener()]),
        ]
        .map(|(limit, arns)| {
            let arns = arns.into_iter().map(Into::into).collect();
            (limit, AddElbTags { arns, tags: pair("team", "red") }.into_call())
        })
        .into(),
        A::RemoveElbTags => [
            (Owned, vec![load_balancer(), listener()]),
            (Owned, vec![listener(), target_group()]),
            (Unlimited, vec![listener()]),
        ]
        .map(|(limit, arns)| {
            let arns = arns.into_iter().map(Into::into).collect();
            (limit, RemoveElbTags { arns, keys: vec![text("team")] }.into_call())
        })
        .into(),
        A::DescribeClassic => one(Unlimited, DescribeClassic::default()),
        A::DescribeClassicTags => {
            one(Unlimited, DescribeClassicTags { names: vec![text(CLASSIC)] })
        }
        A::DescribeClassicAttributes => {
            one(Unlimited, DescribeClassicAttributes { name: text(CLASSIC) })
        }
        A::CreateClassic => one(
            Owned,
            CreateClassic {
                name: text(CLASSIC),
                scheme: Scheme::Internal,
                subnets: Vec::new(),
                security_groups: vec![GROUP.into()],
                listeners: vec![classic_listener()],
                tags: owner.tags(),
            },
        ),
        A::CreateClassicListeners => {
            let listeners = vec![classic_listener()];
            one(Owned, CreateClassicListeners { name: text(CLASSIC), listeners })
        }
        A::DeleteClassicListeners => {
            one(Owned, DeleteClassicListeners { name: text(CLASSIC), ports: vec![80] })
        }
        A::ConfigureClassicHealthCheck => {
            let check = ClassicHealthCheck {
                target: text("TCP:30080"),
                interval: 10,
                timeout: 5,
                healthy: 2,
                unhealthy: 6,
            };
            one(Owned, ConfigureClassicHealthCheck { name: text(CLASSIC), check })
        }
        A::ModifyClassicAttributes => {
            let attributes = ClassicAttributes::default();
            one(Owned, ModifyClassicAttributes { name: text(CLASSIC), attributes })
        }
        A::SetClassicSecurityGroups => {
            let groups = vec![GROUP.into()];
            one(Owned, SetClassicSecurityGroups { name: text(CLASSIC), groups })
        }
        A::AttachClassicSubnets => {
            let subnets = vec!["subnet-1".into()];
            one(Owned, AttachClassicSubnets { name: text(CLASSIC), subnets })
        }
        A::DetachClassicSubnets => {
            let subnets = vec!["subnet-1".into()];
            one(Owned, DetachClassicSubnets { name: text(CLASSIC), subnets })
        }
        A::CreateClassicPolicy => one(
            Owned,
            CreateClassicPolicy {
                name: text(CLASSIC),
                policy: text("k8s-proxyprotocol-enabled"),
                kind: text("ProxyProtocolPolicyType"),
                attribute: (text("ProxyProtocol"), text("true")),
            },
        ),
        A::SetClassicListenerPolicies => {
            let policies = Vec::new();
            one(Owned, SetClassicListenerPolicies { name: text(CLASSIC), port: 80, policies })
        }
        A::SetClassicBackendPolicies => {
            let (instance_port, policies) = (30080, Vec::new());
            one(Owned, SetClassicBackendPolicies { name: text(CLASSIC), instance_port, policies })
        }
        A::AddClassicTags => {
            one(Owned, AddClassicTags { name: text(CLASSIC), tags: pair("team", "red") })
        }
        A::RegisterClassic => {
            let instances = vec![INSTANCE.into()];
            one(Owned, RegisterClassic { name: text(CLASSIC), instances })
        }
        A::DeregisterClassic => {
            let instances = vec![INSTANCE.into()];
            one(Owned, DeregisterClassic { name: text(CLASSIC), instances })
        }
        A::DeleteClassic => one(Owned, DeleteClassic { name: text(CLASSIC) }),
    }
}

/// The first load balancer of an account makes AWS create the role that it serves with.
pub(super) fn service_linked_role(service: &str) -> AuthorizationRequest {
    let role =
        "aws-service-role/elasticloadbalancing.amazonaws.com/AWSServiceRoleForElasticLoadBalancing";
    AuthorizationRequest::new(
        "iam:CreateServiceLinkedRole",
        format!("arn:aws:iam::{ACCOUNT}:role/{role}"),
    )
    .key("iam:AWSServiceName", [service])
}

/// An action on an object with the tags of an owner.
fn on(action: &str, arn: String, owner: Owner) -> AuthorizationRequest {
    let tags = owner.tags().into_iter();
    tags.fold(AuthorizationRequest::new(action, arn), |request, (key, value)| {
        request.key(format!("aws:ResourceTag/{key}"), [value])
    })
}

/// Requests that the provider never makes, and that would be a way to the objects of others. No
/// document may allow them.
pub(super) fn escapes() -> Vec<AuthorizationRequest> {
    let mut escapes = vec![service_linked_role("ec2.amazonaws.com")];
    // To take over an object of somebody else by its tags.
    let group = ec2_arn("security-group", GROUP);
    let network = load_balancer();
    let application = elb_arn("loadbalancer/app/web/0123456789abcdef");
    let gateway = elb_arn("loadbalancer/gwy/web/0123456789abcdef");
    let classic = elb_arn(&format!("loadbalancer/{CLASSIC}"));
    let (key, value) = Owner::Cluster.tags().pop_first().unwrap();
    let owned = |request: AuthorizationRequest| {
        request
            .key(format!("aws:RequestTag/{key}"), [value.clone()])
            .key("aws:TagKeys", [key.clone()])
    };
    for owner in [Owner::Shared, Owner::OtherCluster, Owner::Nobody] {
        escapes.push(owned(on("ec2:CreateTags", group.clone(), owner)));
        for arn in [&network, &application, &gateway, &classic, &target_group()] {
            escapes.push(owned(on("elasticloadbalancing:AddTags", arn.clone(), owner)));
            let remove = on("elasticloadbalancing:RemoveTags", arn.clone(), owner);
            escapes.push(remove.key("aws:TagKeys", [key.clone()]));
        }
    }
    // To change or delete what is kept without adopting it.
    for (action, arn) in [
        ("ec2:DeleteTags", &group),
        ("ec2:DeleteSecurityGroup", &group),
        ("elasticloadbalancing:RemoveTags", &network),
        ("elasticloadbalancing:DeleteLoadBalancer", &network),
        ("elasticloadbalancing:DeleteTargetGroup", &target_group()),
        ("elasticloadbalancing:AddTags", &application),
        ("elasticloadbalancing:AddTags", &classic),
    ] {
        escapes.push(on(action, arn.clone(), Owner::Kept));
    }
    for action in ["RunInstances", "AuthorizeSecurityGroupIngress"] {
        let tag = on("ec2:CreateTags", group.clone(), Owner::Nobody);
        escapes.push(owned(tag.key("ec2:CreateAction", [action])));
    }
    let tag = on("elasticloadbalancing:AddTags", application.clone(), Owner::Nobody);
    escapes.push(owned(tag.key("elasticloadbalancing:CreateAction", ["CreateRule"])));
    // Application and Gateway Load Balancers even with the cluster's tag are not the provider's, but for
    // the ARNs of classic ones, which cannot be told from them.
    for action in ["ModifyListener", "DeleteListener", "AddTags"] {
        let listener = elb_arn("listener/app/web/0123456789abcdef/0123456789abcdef");
        escapes.push(on(&format!("elasticloadbalancing:{action}"), listener, Owner::Cluster));
    }
    // To change nodes: user data is carried out at the next start.
    let node = |attribute: &str| {
        on("ec2:ModifyInstanceAttribute", ec2_arn("instance", INSTANCE), Owner::Cluster)
            .key("ec2:Attribute", [attribute])
    };
    for attribute in ["UserData", "InstanceType", "DisableApiTermination", "GroupSet", "Kernel"] {
        escapes.push(node(attribute));
        escapes.push(node(attribute).key(format!("ec2:Attribute/{attribute}"), ["false"]));
    }
    // To change network interfaces, or to turn the check on for those that forward packets.
    let action = "ec2:ModifyNetworkInterfaceAttribute";
    for owner in Owner::ALL {
        let interface = || on(action, ec2_arn("network-interface", INTERFACE), owner);
        escapes.push(interface());
        for (attribute, value) in
            [("Description", "x"), ("GroupSet", GROUP), ("SourceDestCheck", "true")]
        {
            let request = interface().key("ec2:Attribute", [attribute]);
            escapes.push(request.key(format!("ec2:Attribute/{attribute}"), [value]));
        }
    }
    for action in ["ec2:ModifyInstanceAttribute", action] {
        escapes.push(on(action, group.clone(), Owner::Cluster));
    }
    escapes
}
