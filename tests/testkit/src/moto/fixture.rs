//! AWS objects that a test needs as its environment: a VPC with subnets and route tables, instances,
//! addresses, certificates.

use std::net::Ipv4Addr;

use super::query_api::{CLASSIC, EC2, QueryClient, REGION, WireError, XmlResponse};

/// A VPC with an internet gateway.
#[derive(Debug, Clone)]
pub struct Vpc {
    /// ID.
    pub id: String,
    /// Its internet gateway.
    pub gateway: String,
    /// Its main route table, without a way to the internet.
    pub main_table: String,
}

/// A subnet.
#[derive(Debug, Clone)]
pub struct Subnet {
    /// ID.
    pub id: String,
    /// Zone.
    pub zone: String,
    /// Route table of its own; none when the main one serves.
    pub table: Option<String>,
}

/// An instance.
#[derive(Debug, Clone)]
pub struct Instance {
    /// ID.
    pub id: String,
    /// Private DNS name.
    pub private_dns_name: String,
    /// Private address.
    pub private_ip: String,
}

/// Makes things. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fixture {
    wire: QueryClient,
}

/// Tags as tests write them.
pub type Tags<'a> = &'a [(&'a str, &'a str)];

impl Fixture {
    /// Creates a fixture that sends its requests through `wire`.
    pub fn new(wire: QueryClient) -> Self {
        Self { wire }
    }

    /// Returns the client, for requests that have no method here.
    pub fn wire(&self) -> &QueryClient {
        &self.wire
    }

    /// Creates a VPC with an internet gateway.
    ///
    /// # Errors
    /// A request failed. So below.
    pub async fn vpc(&self, cidr: &str, tags: Tags<'_>) -> Result<Vpc, WireError> {
        let made = self.wire.ask(
            EC2,
            "CreateVpc",
            [("CidrBlock", cidr), ("AmazonProvidedIpv6CidrBlock", "true")],
        );
        let id = made.await?.text("vpcId")?;
        self.tag(&id, tags).await?;
        let gateway = self
            .wire
            .ask(EC2, "CreateInternetGateway", [])
            .await?
            .text("internetGatewayId")?;
        let attach = [("InternetGatewayId", &*gateway), ("VpcId", &*id)];
        self.wire.ask(EC2, "AttachInternetGateway", attach).await?;
        let filter = [("Filter.1.Name", "vpc-id"), ("Filter.1.Value.1", &*id)];
        let main_table = self
            .wire
            .ask(EC2, "DescribeRouteTables", filter)
            .await?
            .text("routeTableId")?;
        Ok(Vpc { id, gateway, main_table })
    }

    /// Returns the IPv6 network of a VPC.
    pub async fn ipv6_network(&self, vpc: &Vpc) -> Result<String, WireError> {
        self.wire
            .ask(EC2, "DescribeVpcs", [("VpcId.1", &*vpc.id)])
            .await?
            .text("ipv6CidrBlock")
    }

    /// Creates a subnet in a zone such as `a`; a public one gets a route table with a route to the
    /// internet.
    pub async fn subnet(
        &self,
        vpc: &Vpc,
        zone: &str,
        cidr: &str,
        public: bool,
        tags: Tags<'_>,
    ) -> Result<Subnet, WireError> {
        let zone = format!("{REGION}{zone}");
        let wanted = [("VpcId", &*vpc.id), ("CidrBlock", cidr), ("AvailabilityZone", &*zone)];
        let id = self
            .wire
            .ask(EC2, "CreateSubnet", wanted)
            .await?
            .text("subnetId")?;
        self.tag(&id, tags).await?;
        let table = if public {
            Some(self.public_table(vpc, &id).await?)
        } else {
            None
        };
        Ok(Subnet { id, zone, table })
    }

    async fn public_table(&self, vpc: &Vpc, subnet: &str) -> Result<String, WireError> {
        let table = self
            .wire
            .ask(EC2, "CreateRouteTable", [("VpcId", &*vpc.id)])
            .await?
            .text("routeTableId")?;
        let route = [
            ("RouteTableId", &*table),
            ("DestinationCidrBlock", "0.0.0.0/0"),
            ("GatewayId", &*vpc.gateway),
        ];
        self.wire.ask(EC2, "CreateRoute", route).await?;
        self.wire
            .ask(EC2, "AssociateRouteTable", [("RouteTableId", &*table), ("SubnetId", subnet)])
            .await?;
        Ok(table)
    }

    /// Creates a security group.
    pub async fn security_group(
        &self,
        vpc: &Vpc,
        name: &str,
        tags: Tags<'_>,
    ) -> Result<String, WireError> {
        let wanted = [("GroupName", name), ("GroupDescription", name), ("VpcId", &*vpc.id)];
        let id = self
            .wire
            .ask(EC2, "CreateSecurityGroup", wanted)
            .await?
            .text("groupId")?;
        self.tag(&id, tags).await?;
        Ok(id)
    }

    /// Launches an instance. Each launch is a reservation of its own, since moto counts pages by
    /// reservation.
    pub async fn instance(
        &self,
        subnet: &Subnet,
        instance_type: &str,
        groups: &[&str],
        tags: Tags<'_>,
    ) -> Result<Instance, WireError> {
        self.launch(subnet, instance_type, groups, None, tags).await
    }

    /// Launches an instance with this private address, which is one of the subnet's.
    pub async fn instance_at(
        &self,
        address: Ipv4Addr,
        subnet: &Subnet,
        instance_type: &str,
        groups: &[&str],
        tags: Tags<'_>,
    ) -> Result<Instance, WireError> {
        self.launch(subnet, instance_type, groups, Some(&address.to_string()), tags)
            .await
    }

    async fn launch(
        &self,
        subnet: &Subnet,
        instance_type: &str,
        groups: &[&str],
        address: Option<&str>,
        tags: Tags<'_>,
    ) -> Result<Instance, WireError> {
        let mut wanted: Vec<(String, &str)> = vec![
            ("ImageId".into(), "ami-12c6146b"),
            ("MinCount".into(), "1"),
            ("MaxCount".into(), "1"),
            ("InstanceType".into(), instance_type),
            ("SubnetId".into(), &subnet.id),
        ];
        wanted.extend(address.map(|address| ("PrivateIpAddress".into(), address)));
        wanted.extend(
            groups
                .iter()
                .enumerate()
                .map(|(at, group)| (format!("SecurityGroupId.{}", at + 1), *group)),
        );
        let parameters = wanted.iter().map(|(name, value)| (&**name, *value));
        let made = self.wire.ask(EC2, "RunInstances", parameters).await?;
        let instance = Instance {
            id: made.text("instanceId")?,
            private_dns_name: made.text("privateDnsName")?,
            private_ip: made.text("privateIpAddress")?,
        };
        self.tag(&instance.id, tags).await?;
        Ok(instance)
    }

    /// Stops, starts or terminates an instance: `StopInstances`, `StartInstances`,
    /// `TerminateInstances`.
    pub async fn instance_state(&self, action: &str, id: &str) -> Result<(), WireError> {
        self.wire
            .ask(EC2, action, [("InstanceId.1", id)])
            .await
            .map(drop)
    }

    /// Allocates an Elastic IP address and returns its allocation ID.
    pub async fn elastic_ip(&self) -> Result<String, WireError> {
        self.wire
            .ask(EC2, "AllocateAddress", [("Domain", "vpc")])
            .await?
            .text("allocationId")
    }

    /// Requests a certificate and returns its ARN.
    pub async fn certificate(&self, domain: &str) -> Result<String, WireError> {
        let body = format!(r#"{{"DomainName":"{domain}"}}"#);
        let XmlResponse(made) = self
            .wire
            .ask_json("acm", "CertificateManager.RequestCertificate", body)
            .await?;
        let arn = made
            .split('"')
            .find(|part| part.starts_with("arn:"))
            .map(str::to_owned);
        arn.ok_or_else(|| WireError::Missing { element: "CertificateArn".to_owned(), body: made })
    }

    /// Creates a classic load balancer with one TCP listener.
    pub async fn classic(
        &self,
        name: &str,
        subnet: &Subnet,
        tags: Tags<'_>,
    ) -> Result<(), WireError> {
        let mut wanted: Vec<(String, &str)> = vec![
            ("LoadBalancerName".into(), name),
            ("Listeners.member.1.Protocol".into(), "TCP"),
            ("Listeners.member.1.LoadBalancerPort".into(), "80"),
            ("Listeners.member.1.InstancePort".into(), "30080"),
            ("Subnets.member.1".into(), &subnet.id),
        ];
        for (at, (key, value)) in tags.iter().enumerate() {
            wanted.push((format!("Tags.member.{}.Key", at + 1), key));
            wanted.push((format!("Tags.member.{}.Value", at + 1), value));
        }
        let parameters = wanted.iter().map(|(name, value)| (&**name, *value));
        self.wire
            .ask(CLASSIC, "CreateLoadBalancer", parameters)
            .await
            .map(drop)
    }

    /// Puts tags on something of EC2.
    pub async fn tag(&self, id: &str, tags: Tags<'_>) -> Result<(), WireError> {
        if tags.is_empty() {
            return Ok(());
        }
        let mut wanted = vec![("ResourceId.1".to_owned(), id)];
        for (at, (key, value)) in tags.iter().enumerate() {
            wanted.push((format!("Tag.{}.Key", at + 1), key));
            wanted.push((format!("Tag.{}.Value", at + 1), value));
        }
        let parameters = wanted.iter().map(|(name, value)| (&**name, *value));
        self.wire.ask(EC2, "CreateTags", parameters).await.map(drop)
    }
}
