//! Initialised nodes follow the cloud, and cost nothing while nothing changes.

use ccm_core::k8s::AddressType;
use ccm_e2e::scenario::{SOON, Scenario, each};
use ccm_e2e::watcher::{addresses, is_tainted, label};
use ccm_mock::cloud::{Address, InstanceSpec, PowerState};
use ccm_testkit::kubelet::Ready;

use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!("moved", EVERYWHERE, addresses_follow_the_cloud),
        case!("quiet", EVERYWHERE, an_unchanged_dual_stack_node_is_never_written),
        case!("stable", EVERYWHERE, stable_labels_are_made_copies_of_beta_labels),
        case!("extra", EVERYWHERE, additional_labels_are_added_and_refreshed_only_behind_the_gate),
        case!(
            "power",
            EVERYWHERE,
            a_stopped_instance_gets_the_shutdown_taint_and_a_started_one_loses_it
        ),
    ]
}

const SHUTDOWN_TAINT: &str = "node.cloudprovider.kubernetes.io/shutdown";
const ZONE: &str = "topology.kubernetes.io/zone";
const ZONE_BETA: &str = "failure-domain.beta.kubernetes.io/zone";

fn instance(addresses: &[(AddressType, &str)]) -> InstanceSpec {
    let list = addresses
        .iter()
        .map(|(kind, address)| Address::new(*kind, *address))
        .collect();
    InstanceSpec { addresses: Some(list), ..InstanceSpec::default() }
}

async fn addresses_follow_the_cloud(s: &Scenario) -> anyhow::Result<()> {
    let names = s.names(2);
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&names).await?;
    let before = addresses(&*s.node(&names[1])?);
    let moved = [(AddressType::InternalIp, "10.30.0.7"), (AddressType::ExternalIp, "192.0.2.7")];
    s.cloud.put_instance(&names[0], instance(&moved))?;
    // The kubelet's host name stays when the cloud has none.
    let wanted = [
        "InternalIP=10.30.0.7".to_owned(),
        "ExternalIP=192.0.2.7".to_owned(),
        format!("Hostname={}", names[0]),
    ];
    s.eventually("the new addresses", SOON, |nodes| {
        each(nodes, &names[..1], |node| {
            let seen = addresses(node);
            if seen == wanted {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        })
    })
    .await?;
    anyhow::ensure!(addresses(&*s.node(&names[1])?) == before, "another node changed");
    ccm.terminate().await
}

async fn an_unchanged_dual_stack_node_is_never_written(s: &Scenario) -> anyhow::Result<()> {
    let name = s.name(0);
    let ccm = s.start("a", &[]).await?;
    let both = [
        (AddressType::InternalIp, "10.31.0.1"),
        (AddressType::InternalIp, "2001:db8:31::1"),
        (AddressType::Hostname, name.as_str()),
    ];
    s.cloud.put_instance(&name, instance(&both))?;
    let spec = s
        .spec(&name)
        .provided_ip("2001:db8:31::1".parse()?)
        .provided_ip("10.31.0.1".parse()?);
    s.register_one(spec).await?;
    s.initialized(std::slice::from_ref(&name), SOON).await?;
    let version = s.node(&name)?.metadata.resource_version.clone();
    // Three periods of the address update, and another, by when the third one's writes would be
    // seen.
    s.throughout("no write", 4, |nodes| {
        each(nodes, std::slice::from_ref(&name), |node| {
            let now = &node.metadata.resource_version;
            if *now == version {
                Ok(())
            } else {
                Err(format!("changed from {version:?} to {now:?}"))
            }
        })
    })
    .await?;
    let writes = s.node_writes("a").await?;
    anyhow::ensure!(writes.len() <= 2, "{writes:?}");
    ccm.terminate().await
}

async fn stable_labels_are_made_copies_of_beta_labels(s: &Scenario) -> anyhow::Result<()> {
    let names = s.names(2);
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&names).await?;
    let holds = |beta: &str, stable: &str| {
        let (beta, stable) = (Some(beta.to_owned()), Some(stable.to_owned()));
        move |node: &k8s_openapi::api::core::v1::Node| {
            let seen =
                (label(node, ZONE_BETA).map(str::to_owned), label(node, ZONE).map(str::to_owned));
            if seen == (beta.clone(), stable.clone()) {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        }
    };
    let zone = s
        .cloud
        .instance(&names[0])
        .map(|instance| instance.zone)
        .unwrap_or_default();
    s.set_labels(&names[0], &[(ZONE, "elsewhere")]).await?;
    s.eventually("overwritten by beta", SOON, |nodes| {
        each(nodes, &names[..1], holds(&zone, &zone))
    })
    .await?;
    s.set_labels(&names[1], &[(ZONE_BETA, "moved")]).await?;
    s.eventually("beta is the truth", SOON, |nodes| {
        each(nodes, &names[1..], holds("moved", "moved"))
    })
    .await?;
    ccm.terminate().await
}

async fn additional_labels_are_added_and_refreshed_only_behind_the_gate(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (name, rack, kept, reserved) =
        (s.name(0), "example.com/rack", "example.com/kept", "team.kubernetes.io/x");
    let spec = |rack_value: &str| {
        let labels = [(rack, rack_value), (kept, "cloud"), (reserved, "no")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        InstanceSpec {
            additional_labels: Some(labels.into()),
            ..InstanceSpec::default()
        }
    };
    s.cloud.put_instance(&name, spec("r1"))?;
    s.register_one(s.spec(&name).label(kept, "kubelet")).await?;
    let ccm = s.start("a", &[]).await?;
    s.initialized(std::slice::from_ref(&name), SOON).await?;
    let shows = |rack_value: &'static str, kept_value: &'static str| {
        let one = std::slice::from_ref(&name);
        move |nodes: &ccm_e2e::watcher::Nodes| {
            each(nodes, one, |node| {
                let seen = [rack, kept, reserved].map(|key| label(node, key));
                if seen == [Some(rack_value), Some(kept_value), None] {
                    Ok(())
                } else {
                    Err(format!("{seen:?}"))
                }
            })
        }
    };
    s.eventually("the cloud's labels", SOON, shows("r1", "kubelet"))
        .await?;
    s.cloud.put_instance(&name, spec("r2"))?;
    s.throughout("not refreshed without the gate", 3, shows("r1", "kubelet"))
        .await?;
    ccm.terminate().await?;
    let ccm = s
        .start("a", &["--feature-gates=CloudNodeAdditionalLabelsReconciliation=true"])
        .await?;
    s.eventually("refreshed behind the gate", SOON, shows("r2", "cloud"))
        .await?;
    ccm.terminate().await
}

async fn a_stopped_instance_gets_the_shutdown_taint_and_a_started_one_loses_it(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(3);
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&names).await?;
    let tainted = |wanted: bool| {
        let names = &names;
        move |nodes: &ccm_e2e::watcher::Nodes| {
            each(nodes, &names[..1], |node| match is_tainted(node, SHUTDOWN_TAINT) == wanted {
                true => Ok(()),
                false => Err(format!("shutdown taint is not {wanted}")),
            })
        }
    };
    s.set_power(&names[0], PowerState::Stopped)?;
    s.kubelets.set_ready(&names[0], Ready::Unknown).await?;
    s.eventually("the shutdown taint", SOON, tainted(true))
        .await?;
    s.throughout("the taint stays, and so does the node", 4, tainted(true))
        .await?;
    s.set_power(&names[0], PowerState::Running)?;
    s.kubelets.set_ready(&names[0], Ready::True).await?;
    s.eventually("no shutdown taint", SOON, tainted(false))
        .await?;
    each(&s.nodes(), &names, |node| match is_tainted(node, SHUTDOWN_TAINT) {
        true => Err("has the shutdown taint".to_owned()),
        false => Ok(()),
    })
    .map_err(anyhow::Error::msg)?;
    ccm.terminate().await
}
