//! What there is in AWS, as lines of text that a test can write down: IDs are replaced by what they stand for.

use std::{collections::BTreeSet, fmt};

use ccm_aws::api::{
    Tags,
    ec2::{DescribeSecurityGroups, Rule, RuleSource, SecurityGroup},
    elb::{
        Attributes, DescribeElbTags, DescribeListenerAttributes, DescribeListenerCertificates, DescribeListeners,
        DescribeLoadBalancerAttributes, DescribeLoadBalancers, DescribeTargetGroupAttributes, DescribeTargetGroups,
        DescribeTargetHealth, ElbProtocol, HealthProtocol, Listener, LoadBalancer, TargetGroup,
    },
};

use super::Stage;

/// Tag with the Service of a load balancer.
const SERVICE_TAG: &str = "kubernetes.io/service-name";

/// Everything of load balancers and security groups, one fact a line:
///
/// ```text
/// default/web: internet-facing ipv4 subnets public-a public-b groups none
/// default/web: tag kubernetes.io/cluster/test=owned
/// default/web: attribute load_balancing.cross_zone.enabled=false
/// default/web:80: TCP to TCP 30080 instance
/// default/web:80: health TCP traffic-port path none every 30 within 10 up 3 down 3 codes none
/// default/web:80: target node-0 30080
/// group nodes: tcp 30080-30080 from 0.0.0.0/0 kubernetes.io/rule/nlb/client=default/web
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct World {
    lines: BTreeSet<String>,
}

impl World {
    /// Fails unless each of these lines is there; one that begins with `!` must have no line that begins so.
    pub(crate) fn has(&self, lines: &[&str]) -> Result<(), String> {
        let holds = |line: &&&str| match line.strip_prefix('!') {
            Some(start) => !self.lines.iter().any(|there| there.starts_with(start)),
            None => self.lines.contains(**line),
        };
        let wrong: Vec<_> = lines.iter().filter(|line| !holds(line)).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let owners: BTreeSet<_> = wrong.iter().map(|line| owner(line.trim_start_matches('!'))).collect();
        let near: Vec<_> = self.lines.iter().filter(|line| owners.contains(owner(line))).collect();
        Err(format!("{wrong:#?} do not hold of {near:#?}"))
    }

    /// Says what two differ in.
    pub(crate) fn same(&self, as_of: &Self) -> Result<(), String> {
        let less: Vec<_> = as_of.lines.difference(&self.lines).collect();
        let more: Vec<_> = self.lines.difference(&as_of.lines).collect();
        if less.is_empty() && more.is_empty() {
            Ok(())
        } else {
            Err(format!("missing: {less:#?}\ntoo much: {more:#?}"))
        }
    }

    pub(super) async fn read(stage: &Stage<'_>) -> anyhow::Result<Self> {
        let mut reader = Reader { stage, lines: Vec::new(), aliases: aliases(stage) };
        let groups = stage.ask(DescribeSecurityGroups::default()).await?.items;
        for group in &groups {
            reader.aliases.push((group.id.to_string(), group_alias(&group.name)));
        }
        let balancers = stage.ask(DescribeLoadBalancers::default()).await?.items;
        let mut free = stage.ask(DescribeTargetGroups::default()).await?.items;
        for balancer in &balancers {
            reader.balancer(balancer, &mut free).await?;
        }
        for group in &free {
            reader.lines.push(format!("target group of nobody: {}", group.name));
        }
        for group in &groups {
            reader.security_group(group);
        }
        let Reader { mut lines, aliases, .. } = reader;
        for (id, alias) in &aliases {
            lines.iter_mut().filter(|line| line.contains(id)).for_each(|line| *line = line.replace(id, alias));
        }
        Ok(Self { lines: lines.into_iter().collect() })
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Service or security group that a line is about.
fn owner(line: &str) -> &str {
    let end = if line.starts_with("group ") { line.find(": ") } else { line.find(':') };
    end.map_or(line, |end| &line[..end])
}

/// What IDs stand for.
fn aliases(stage: &Stage<'_>) -> Vec<(String, String)> {
    let network = &stage.network;
    let instances = stage.instances.iter().enumerate().map(|(at, made)| (made.id.clone(), format!("node-{at}")));
    let subnets = [("public", &network.public), ("private", &network.private)];
    let subnets = subnets.into_iter().flat_map(|(kind, subnets)| {
        subnets.iter().zip(["a", "b"]).map(move |(subnet, zone)| (subnet.id.clone(), format!("{kind}-{zone}")))
    });
    instances.chain(subnets).collect()
}

struct Reader<'a> {
    stage: &'a Stage<'a>,
    lines: Vec<String>,
    aliases: Vec<(String, String)>,
}

impl Reader<'_> {
    async fn balancer(&mut self, balancer: &LoadBalancer, free: &mut Vec<TargetGroup>) -> anyhow::Result<()> {
        let tags = self.tags(&balancer.arn).await?;
        // Two of one Service are two, and show as such.
        let owner = tags.get(SERVICE_TAG).map_or_else(|| balancer.name.to_string(), ToString::to_string);
        let twins = self.lines.iter().filter(|line| line.starts_with(&format!("{owner}: scheme"))).count();
        let owner = if twins == 0 { owner } else { format!("{owner} again ({twins})") };
        self.aliases.push((balancer.name.to_string(), owner.clone()));
        let subnets = self.words(balancer.zones.iter().filter_map(|zone| zone.subnet.as_deref()));
        let groups = self.words(balancer.security_groups.iter().map(|group| &**group));
        let scheme = balancer.scheme.map_or("?", |scheme| scheme.as_str());
        let family = balancer.ip_address_type.map_or("?", |family| family.as_str());
        self.line(&owner, &format!("scheme {scheme} {family}"));
        self.line(&owner, &format!("subnets {subnets}"));
        self.line(&owner, &format!("groups {groups}"));
        self.pairs(&owner, "tag", &tags);
        let mut attributes = self.stage.ask(DescribeLoadBalancerAttributes { arn: balancer.arn.clone() }).await?;
        // AWS always tells it, moto once it was set.
        attributes.entry("access_logs.s3.enabled".into()).or_insert_with(|| "false".into());
        self.pairs(&owner, "attribute", &attributes);
        let request = DescribeListeners { load_balancer: balancer.arn.clone(), token: None };
        for listener in self.stage.ask(request).await?.items {
            self.listener(&owner, &listener, free).await?;
        }
        Ok(())
    }

    async fn listener(&mut self, owner: &str, listener: &Listener, free: &mut Vec<TargetGroup>) -> anyhow::Result<()> {
        let at = format!("{owner}:{}", listener.port);
        self.line(&at, &format!("listens {}", protocol(listener.protocol)));
        for (what, value) in [("policy", &listener.ssl_policy), ("alpn", &listener.alpn_policy)] {
            if let Some(value) = value {
                self.line(&at, &format!("{what} {value}"));
            }
        }
        if listener.certificate.is_some() {
            let all = self.stage.ask(DescribeListenerCertificates { arn: listener.arn.clone() }).await?;
            for certificate in all.items {
                let kind = if certificate.default { "certificate" } else { "further certificate" };
                self.line(&at, &format!("{kind} {}", certificate.arn));
            }
        }
        let tags = self.tags(&listener.arn).await?;
        self.pairs(&at, "listener tag", &tags);
        let attributes = self.stage.ask(DescribeListenerAttributes { arn: listener.arn.clone() }).await?;
        self.pairs(&at, "listener attribute", &attributes);
        let found = free.iter().position(|group| Some(&group.arn) == listener.target_group.as_ref());
        match found {
            Some(found) => self.target_group(&at, &free.remove(found)).await,
            None => {
                self.line(&at, "no target group of its own");
                Ok(())
            }
        }
    }

    async fn target_group(&mut self, at: &str, group: &TargetGroup) -> anyhow::Result<()> {
        let kind = group.target_type.map_or("?", |kind| kind.as_str());
        self.line(at, &format!("to {} {} {kind}", protocol(group.protocol), group.port));
        if let Some(check) = &group.health_check {
            // moto keeps the path of an earlier protocol; AWS has none for TCP.
            let http = check.protocol != HealthProtocol::Tcp;
            let or_none = |text: &Option<Box<str>>| text.as_deref().filter(|_| http).unwrap_or("none").to_owned();
            self.line(at, &format!("health {} {} {}", check.protocol, check.port, or_none(&check.path)));
            self.line(at, &format!("health every {} within {}", check.interval, check.timeout));
            self.line(at, &format!("health up {} down {}", check.healthy, check.unhealthy));
            self.line(at, &format!("health codes {}", or_none(&check.matcher)));
        }
        for target in self.stage.ask(DescribeTargetHealth { arn: group.arn.clone() }).await? {
            self.line(at, &format!("target {} {}", target.target.id, target.target.port));
        }
        let tags = self.tags(&group.arn).await?;
        self.pairs(at, "tag", &tags);
        let attributes = self.stage.ask(DescribeTargetGroupAttributes { arn: group.arn.clone() }).await?;
        self.pairs(at, "attribute", &attributes);
        Ok(())
    }

    fn security_group(&mut self, group: &SecurityGroup) {
        let at = format!("group {}", group_alias(&group.name));
        self.line(&at, &format!("is {}", group.description));
        for given in &group.ingress {
            self.line(&at, &rule(given));
        }
        self.pairs(&at, "tag", &group.tags);
    }

    async fn tags(&self, arn: &str) -> anyhow::Result<Tags> {
        let found = self.stage.ask(DescribeElbTags { arns: vec![arn.into()] }).await?;
        Ok(found.into_iter().next().map(|(_, tags)| tags).unwrap_or_default())
    }

    /// What these IDs stand for, in order.
    fn words<'a>(&self, ids: impl Iterator<Item = &'a str>) -> String {
        let alias =
            |id: &str| self.aliases.iter().find(|(of, _)| of == id).map_or_else(|| id.to_owned(), |(_, a)| a.clone());
        let words: BTreeSet<_> = ids.map(alias).collect();
        if words.is_empty() { "none".to_owned() } else { words.into_iter().collect::<Vec<_>>().join(" ") }
    }

    fn line(&mut self, at: &str, fact: &str) {
        self.lines.push(format!("{at}: {fact}"));
    }

    fn pairs(&mut self, at: &str, what: &str, pairs: &Attributes) {
        for (key, value) in pairs {
            self.line(at, &format!("{what} {key}={value}"));
        }
    }
}

/// Name of a security group without the checksum that ends the name of a managed one.
fn group_alias(name: &str) -> String {
    let managed = name.strip_prefix("k8s-").and_then(|rest| rest.rsplit_once('-'));
    managed.map_or_else(|| name.to_owned(), |(of, _)| format!("managed-{of}"))
}

fn protocol(protocol: Option<ElbProtocol>) -> &'static str {
    protocol.map_or("?", |protocol| protocol.as_str())
}

fn rule(rule: &Rule) -> String {
    let ports = rule.ports.map_or_else(|| "all".to_owned(), |(from, to)| format!("{from}-{to}"));
    let source = match &rule.source {
        RuleSource::Cidr(network) => network.to_string(),
        RuleSource::Group(group, _) => group.to_string(),
        RuleSource::PrefixList(list) => list.to_string(),
    };
    format!("{} {ports} from {source} {}", rule.protocol, rule.description).trim_end().to_owned()
}
