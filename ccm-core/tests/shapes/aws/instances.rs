//! Instances: by id in batches, by name, and Fargate by interface.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::{AddressType, NodeAddress, NodeView},
    provider::{BatchLimits, CloudError, InstanceMetadata, Instances, NodeQuery, Op, Power, Presence},
};

use super::{
    Aws, ProviderId,
    api::{Filter, Instance, Interface},
};

type Answer = Result<Presence, CloudError>;

/// The questions of one batch, by the call that answers them.
#[derive(Default)]
struct Sorted {
    ids: BTreeMap<Box<str>, Vec<usize>>,
    names: BTreeMap<Box<str>, Vec<usize>>,
    interfaces: BTreeMap<IpAddr, Vec<usize>>,
}

#[async_trait]
impl Instances for Aws {
    fn limits(&self) -> BatchLimits {
        BatchLimits { window: Duration::from_millis(20), ..BatchLimits::default() }
    }

    async fn describe(&self, op: &Op, queries: &[NodeQuery]) -> Result<Vec<Answer>, CloudError> {
        let mut answers: Vec<Answer> =
            queries.iter().map(|_| Err(CloudError::transient("EC2 did not answer about this node"))).collect();
        let mut sorted = Sorted::default();
        for (at, query) in queries.iter().enumerate() {
            if let Err(error) = sorted.add(at, &query.node) {
                answers[at] = Err(error);
            }
        }
        op.run(async {
            self.ask_ids(sorted.ids, &mut answers).await;
            self.ask_names(sorted.names, &mut answers).await;
            self.ask_interfaces(sorted.interfaces, &mut answers).await;
            Ok(())
        })
        .await?;
        Ok(answers)
    }
}

impl Sorted {
    fn add(&mut self, at: usize, node: &NodeView) -> Result<(), CloudError> {
        match node.provider_id.as_deref().map(ProviderId::parse).transpose()? {
            Some(ProviderId::Instance(id)) => self.ids.entry(id).or_default().push(at),
            Some(ProviderId::Fargate(id)) => self.interfaces.entry(fargate_ip(&id)?).or_default().push(at),
            // Resource-based names carry the id.
            None if node.name.starts_with("i-") => {
                let id = node.name.split('.').next().unwrap_or(&node.name);
                self.ids.entry(Box::from(id)).or_default().push(at);
            }
            None => self.names.entry(Box::from(&*node.name)).or_default().push(at),
        }
        Ok(())
    }
}

impl Aws {
    /// Asks by id. EC2 refuses the whole request because of one unknown id, and names it: that one is proved absent,
    /// the others are asked about again.
    async fn ask_ids(&self, mut asked: BTreeMap<Box<str>, Vec<usize>>, answers: &mut [Answer]) {
        while !asked.is_empty() {
            let ids: Vec<_> = asked.keys().cloned().collect();
            let error = match self.api.describe_instances(Filter::Ids(&ids)).await {
                Ok(found) => {
                    for instance in &found {
                        let Some(places) = asked.remove(instance.id) else { continue };
                        fill(answers, &places, &Ok(self.presence(instance)));
                    }
                    // What a successful answer leaves out is in doubt: the error from the start stays.
                    return;
                }
                Err(error) => error,
            };
            let named: Vec<_> = ids.iter().filter(|id| error.message.contains(&format!("'{id}'"))).collect();
            if error.code != "InvalidInstanceID.NotFound" || named.is_empty() {
                let error = CloudError::from(error);
                fill(answers, &asked.into_values().flatten().collect::<Vec<_>>(), &Err(error));
                return;
            }
            for id in named {
                let places = asked.remove(id).unwrap_or_default();
                fill(answers, &places, &Ok(Presence::NotFound));
            }
        }
    }

    /// Asks by private DNS name. The listing is complete, so a name that is not in it is proved absent.
    async fn ask_names(&self, asked: BTreeMap<Box<str>, Vec<usize>>, answers: &mut [Answer]) {
        if asked.is_empty() {
            return;
        }
        let names: Vec<_> = asked.keys().cloned().collect();
        let found = self.api.describe_instances(Filter::PrivateDnsNames(&names)).await;
        for (name, places) in asked {
            let answer = match &found {
                Err(error) => Err(error.clone().into()),
                Ok(all) => match all.iter().filter(|i| i.private_dns == &*name).collect::<Vec<_>>()[..] {
                    [] => Ok(Presence::NotFound),
                    [one] => Ok(self.presence(one)),
                    _ => Err(CloudError::invalid_input(format!("multiple instances found for name: {name}"))),
                },
            };
            fill(answers, &places, &answer);
        }
    }

    async fn ask_interfaces(&self, asked: BTreeMap<IpAddr, Vec<usize>>, answers: &mut [Answer]) {
        if asked.is_empty() {
            return;
        }
        let ips: Vec<_> = asked.keys().copied().collect();
        let found = self.api.describe_interfaces(&ips).await;
        for (ip, places) in asked {
            let answer = match &found {
                Err(error) => Err(error.clone().into()),
                Ok(all) => Ok(all.iter().find(|i| i.ip == ip).map_or(Presence::NotFound, |i| self.fargate(i))),
            };
            fill(answers, &places, &answer);
        }
    }

    fn presence(&self, instance: &Instance) -> Presence {
        let power = match instance.state {
            "running" => Power::Running,
            "stopped" => Power::Stopped,
            "terminated" => Power::Terminated,
            "pending" | "shutting-down" | "stopping" => Power::Transitional,
            _ => Power::Unknown,
        };
        let mut addresses: Vec<_> = instance
            .private_ips
            .iter()
            .map(|ip| NodeAddress::new(AddressType::InternalIp, ip.to_string()))
            .chain(instance.public_ip.map(|ip| NodeAddress::new(AddressType::ExternalIp, ip.to_string())))
            .collect();
        if !instance.private_dns.is_empty() {
            addresses.push(NodeAddress::new(AddressType::InternalDns, instance.private_dns));
            addresses.push(NodeAddress::new(AddressType::Hostname, instance.private_dns));
        }
        let meta = InstanceMetadata {
            provider_id: Some(format!("aws:///{}/{}", instance.zone, instance.id).into()),
            instance_type: Some(instance.kind.into()),
            zone: Some(instance.zone.into()),
            region: Some(self.region.as_str().into()),
            addresses,
            additional_labels: BTreeMap::from([("topology.k8s.aws/zone-id".into(), "usw2-az1".into())]),
        };
        Presence::Found { power, meta }
    }

    /// A Fargate node has no type, no power switch, and is never a load balancer's instance target.
    fn fargate(&self, interface: &Interface) -> Presence {
        let meta = InstanceMetadata {
            zone: Some(interface.zone.into()),
            region: Some(self.region.as_str().into()),
            addresses: vec![NodeAddress::new(AddressType::InternalIp, interface.ip.to_string())],
            ..InstanceMetadata::default()
        };
        Presence::Found { power: Power::Running, meta }
    }
}

fn fill(answers: &mut [Answer], places: &[usize], answer: &Answer) {
    for at in places {
        answers[*at].clone_from(answer);
    }
}

/// Reads the address out of `fargate-10.0.55.27` and `fargate-ip-10-0-55-27.us-west-2.compute.internal`.
fn fargate_ip(id: &str) -> Result<IpAddr, CloudError> {
    let name = id.trim_start_matches("fargate-");
    let text = match name.strip_prefix("ip-") {
        Some(dashed) => dashed.split('.').next().unwrap_or(dashed).replace('-', "."),
        None => name.to_owned(),
    };
    text.parse().map_err(|_| CloudError::invalid_input(format!("Fargate id {id:?} holds no address")))
}
