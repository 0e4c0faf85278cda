//! The rights of `rbac/`, and those that other managers' manifests grant, on a real API server with
//! RBAC: enough, and in `rbac/` no more than that.

mod https_server;
mod life;
pub(crate) mod upstream;

use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::manifests::{self, all_grants};
use ccm_e2e::permissions::{Exception, common, forbidden, judge};
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use https_server::HttpsServer;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::case;
use crate::run::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(
            "rbac",
            &[ServerKind::RealWithoutWatchList],
            the_rights_of_the_manifests_are_enough_and_all_are_needed
        ),
        case!(
            "roles",
            &[ServerKind::RealWithoutWatchList],
            each_controller_alone_needs_its_own_role_and_all_of_it
        ),
        case!(
            "less",
            &[ServerKind::RealWithoutWatchList],
            with_accounts_of_its_controllers_the_manager_needs_less
        ),
        case!(
            "theirs",
            &[ServerKind::Real],
            what_the_roles_of_go_managers_have_in_common_is_enough
        ),
        case!("theirs2", &[ServerKind::Real], with_accounts_of_its_controllers_too),
    ]
}

/// Account of `rbac/`.
const ACCOUNT: &str = "cloud-controller-manager";

/// Everything runs, and fails over soon.
const FLAGS: [&str; 9] = [
    "--controllers=*,node-ipam-controller",
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.244.0.0/16",
    "--route-reconciliation-period=2s",
    "--leader-elect-resource-name=cloud-controller-manager",
    "--enable-leader-migration",
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
];

async fn the_rights_of_the_manifests_are_enough_and_all_are_needed(
    s: &Scenario,
) -> anyhow::Result<()> {
    let mut applied = manifests::read(&manifests::rbac().join("optional"))?;
    applied.extend(manifests::read(&manifests::rbac())?);
    let before = s.requests(ACCOUNT).await?.len();
    let requests = s
        .with_manifests(ACCOUNT, &applied, async || {
            // The mock provider takes endpoints when it is told to.
            let life = ClusterLife {
                s,
                account: ACCOUNT,
                config: "features: {endpoints: true}\n",
                flags: &FLAGS,
                asks: true,
            };
            life.live().await?;
            Ok(s.requests(ACCOUNT).await?.split_off(before))
        })
        .await?;
    judge(&all_grants(&applied)?, &requests, &[])
}

const CREDENTIALS: &str = "--use-service-account-credentials";
/// The controllers' accounts, which every cluster binds to roles.
const CONTROLLERS: [&str; 3] = ["node-controller", "service-controller", "route-controller"];

async fn with_accounts_of_its_controllers_the_manager_needs_less(
    s: &Scenario,
) -> anyhow::Result<()> {
    let folder = manifests::rbac();
    let files = [
        "10-service-account.yaml",
        "service-account-credentials",
        "optional/endpoints.yaml",
        "25-serving.yaml",
        "30-cluster-role.yaml",
        "40-leader-election.yaml",
        "50-authentication-reader.yaml",
    ];
    let applied: Result<Vec<_>, _> = files
        .iter()
        .map(|file| manifests::read(&folder.join(file)))
        .collect();
    let applied = applied?.concat();
    let before = s.requests(ACCOUNT).await?.len();
    s.with_manifests(ACCOUNT, &applied, async || {
        let flags = [&FLAGS[..], &[CREDENTIALS]].concat();
        ClusterLife {
            s,
            account: ACCOUNT,
            config: "features: {endpoints: true}\n",
            flags: &flags,
            asks: true,
        }
        .live()
        .await?;
        with_their_own(s, ACCOUNT).await?;
        judge(&all_grants(&applied)?, &s.requests(ACCOUNT).await?[before..], &[])
    })
    .await?;
    forget_accounts(s).await
}

/// A request that is allowed by what they have in common is allowed by each.
async fn what_the_roles_of_go_managers_have_in_common_is_enough(
    s: &Scenario,
) -> anyhow::Result<()> {
    let account = "e2e-theirs";
    let applied = manifests::granted(account, &common(&upstream::roles()?));
    let requests = s
        .with_manifests(account, &applied, async || {
            ClusterLife { s, account, config: "", flags: &FLAGS, asks: false }
                .live()
                .await?;
            s.requests(account).await
        })
        .await?;
    let forbidden = forbidden(&requests);
    anyhow::ensure!(forbidden.is_empty(), "{forbidden:?}");
    Ok(())
}

/// The same for `--use-service-account-credentials`, with the bootstrap roles of the controllers.
async fn with_accounts_of_its_controllers_too(s: &Scenario) -> anyhow::Result<()> {
    let account = "e2e-theirs-too";
    let applied = manifests::granted(account, &common(&upstream::roles_with_accounts()?));
    s.with_manifests(account, &applied, async || {
        let flags = [&FLAGS[..], &[CREDENTIALS]].concat();
        ClusterLife { s, account, config: "", flags: &flags, asks: false }
            .live()
            .await?;
        with_their_own(s, account).await
    })
    .await?;
    forget_accounts(s).await
}

/// Makes sure that each controller used its account, and that nothing was forbidden to it or to the
/// manager.
async fn with_their_own(s: &Scenario, account: &str) -> anyhow::Result<()> {
    let mut refused = forbidden(&s.requests(account).await?);
    for controller in CONTROLLERS {
        let requests = s.requests(controller).await?;
        anyhow::ensure!(!requests.is_empty(), "nothing was done as {controller}");
        refused.extend(forbidden(&requests));
    }
    anyhow::ensure!(refused.is_empty(), "{refused:?}");
    Ok(())
}

/// Deletes the controllers' accounts, which the manager made.
async fn forget_accounts(s: &Scenario) -> anyhow::Result<()> {
    let account = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "kube-system"},
        })
    };
    manifests::withdraw(&s.server.client(), &CONTROLLERS.map(account)).await
}

/// A controller that runs alone, with the rights of its role alone.
struct SingleController {
    role: &'static str,
    controller: &'static str,
    exceptions: &'static [Exception],
}

/// Why a right to count events is granted where each event comes once.
const COUNTED: &str =
    "an event that comes again is counted in place, as the service controller's are here";

const ALONE: [SingleController; 5] = [
    SingleController {
        role: "20-node.yaml",
        controller: "cloud-node-controller",
        exceptions: &[Exception {
            grant: "cloud-controller-manager:node: patch events",
            reason: COUNTED,
        }],
    },
    SingleController {
        role: "21-lifecycle.yaml",
        controller: "cloud-node-lifecycle-controller",
        exceptions: &[Exception {
            grant: "cloud-controller-manager:lifecycle: patch events",
            reason: COUNTED,
        }],
    },
    SingleController {
        role: "22-route.yaml",
        controller: "node-route-controller",
        exceptions: &[Exception {
            grant: "cloud-controller-manager:route: patch events",
            reason: COUNTED,
        }],
    },
    SingleController {
        role: "23-service.yaml",
        controller: "service-lb-controller",
        exceptions: &[],
    },
    SingleController {
        role: "24-ipam.yaml",
        controller: "node-ipam-controller",
        exceptions: &[Exception {
            grant: "cloud-controller-manager:ipam: patch events",
            reason: COUNTED,
        }],
    },
];

/// Networks of a cluster that is soon full.
const SMALL: [&str; 2] = ["--cluster-cidr=10.244.0.0/27", "--node-cidr-mask-size=31"];
const SMALL_BLOCKS: usize = 16;

async fn each_controller_alone_needs_its_own_role_and_all_of_it(
    s: &Scenario,
) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for (turn, alone) in ALONE.iter().enumerate() {
        let account = format!("e2e-alone-{turn}");
        let applied = alone.applied(&account)?;
        let judged = s.with_manifests(&account, &applied, async || {
            alone.live(s, &account, turn).await?;
            judge(&all_grants(&applied)?, &s.requests(&account).await?, alone.exceptions)
        });
        wrong.extend(
            judged
                .await
                .err()
                .map(|why| format!("{}: {why:#}", alone.controller)),
        );
        // The next one begins with an empty cluster.
        let nodes: Vec<_> = s
            .nodes()
            .values()
            .filter_map(|node| node.metadata.uid.clone())
            .collect();
        s.may_go(&nodes);
        s.clean_up().await?;
    }
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

impl SingleController {
    /// The role, and an account with it.
    fn applied(&self, account: &str) -> anyhow::Result<Vec<Value>> {
        let mut applied = manifests::read(&manifests::rbac().join(self.role))?;
        let role = applied[0]["metadata"]["name"].clone();
        applied.extend(manifests::bound(account, role.as_str().unwrap_or_default()));
        Ok(applied)
    }

    async fn live(&self, s: &Scenario, account: &str, turn: usize) -> anyhow::Result<()> {
        let names = |what: &str, count: usize| -> Vec<String> {
            (0..count)
                .map(|n| format!("{}{what}-{turn}-{n}", s.prefix()))
                .collect()
        };
        let controllers = format!("--controllers={}", self.controller);
        let small: &[&str] = if self.controller == "node-ipam-controller" {
            &SMALL
        } else {
            &[]
        };
        let flags = [&FLAGS[1..], &[&*controllers, "--leader-elect=false"], small].concat();
        let mut ccm = s
            .start_as(account, "", &format!("alone-{turn}"), &flags)
            .await?;
        // An allocator waits long before it believes that nodes which it finds lack networks.
        ccm.logged("cache filled resource=\"nodes\"", SOON).await?;
        let nodes = names("node", 3);
        let is_read = async || {
            let requests = s.requests(account).await?;
            Ok(requests
                .iter()
                .any(|request| request.verb == "get" && request.resource == "nodes"))
        };
        match self.controller {
            "cloud-node-controller" => {
                life::join(s, &nodes[..2]).await?;
                life::wait_for_instance(s, &nodes[2]).await?;
                life::collide(s, &format!("{}late-{turn}", s.prefix()), is_read).await?;
            }
            "cloud-node-lifecycle-controller" => {
                life::initialize_by_hand(s, &nodes).await?;
                life::leave(s, &nodes[0], &nodes[1]).await?;
            }
            "node-route-controller" => {
                life::initialize_by_hand(s, &nodes[..1]).await?;
                life::route(s, &nodes[0]).await?;
            }
            "service-lb-controller" => {
                life::initialize_by_hand(s, &nodes).await?;
                let services = names("service", 3);
                life::serve(s, &services).await?;
                s.delete_service(&services[0]).await?;
                s.vanished(&services[0]).await?;
            }
            _ => life::crowd(s, &format!("{}crowd", s.prefix()), SMALL_BLOCKS, is_read).await?,
        }
        ccm.terminate().await
    }
}

/// A cluster in which everything happens that concerns a cloud-controller-manager.
struct ClusterLife<'a> {
    s: &'a Scenario,
    account: &'a str,
    config: &'a str,
    flags: &'a [&'a str],
    /// Whether the account may ask who somebody is and what they may do.
    asks: bool,
}

impl ClusterLife<'_> {
    async fn start(&self, process: &str, door: &HttpsServer) -> anyhow::Result<Ccm> {
        let serving = door.flags(&self.s.kubeconfig(process));
        let flags: Vec<&str> = self
            .flags
            .iter()
            .copied()
            .chain(serving.iter().map(String::as_str))
            .collect();
        self.s
            .start_as(self.account, self.config, process, &flags)
            .await
    }

    /// Who may not see the metrics is told so, which takes both questions.
    async fn served(&self, door: &HttpsServer) -> anyhow::Result<()> {
        door.answers("/healthz", None, 200).await?;
        match self.asks {
            true => {
                door.answers(
                    "/metrics",
                    Some(&https_server::token(self.s, self.account).await?),
                    403,
                )
                .await
            }
            false => Ok(()),
        }
    }

    async fn live(&self) -> anyhow::Result<()> {
        let s = self.s;
        let (nodes, services) = (s.names(5), s.names(4));
        // Whoever is first makes the Leases.
        let leases: Api<Lease> = Api::namespaced(s.server.client(), "kube-system");
        leases
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        let (first, second) = (HttpsServer::free()?, HttpsServer::free()?);
        let mut leader = self.start("a", &first).await?;
        leader.logged("became leader", SOON).await?;
        let mut standby = self.start("b", &second).await?;
        standby.logged("another process leads", SOON).await?;
        self.served(&first).await?;

        life::join(s, &nodes[..3]).await?;
        life::networked(s, &nodes[..3]).await?;
        s.routed(&[], SOON).await?;
        life::wait_for_instance(s, &nodes[3]).await?;
        life::serve(s, &services[..3]).await?;
        life::leave(s, &nodes[0], &nodes[2]).await?;
        s.routed(&[], SOON).await?;

        leader.signal(Signal::Kill).await?;
        standby.logged("became leader", SOON).await?;
        s.register_initialized(&nodes[4..]).await?;
        life::networked(s, &nodes[4..]).await?;
        s.create(&Scenario::manifest(&services[3])).await?;
        s.served(&[services[0].clone(), services[3].clone()], SOON)
            .await?;
        for name in [&services[0], &services[3]] {
            s.delete_service(name).await?;
            s.vanished(name).await?;
        }
        standby.terminate().await
    }
}
