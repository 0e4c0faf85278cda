//! Our finalizer beside those of others.

use std::time::Duration;

use ccm_core::k8s::well_known::FINALIZER_LOAD_BALANCER;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::watcher::ingress_addresses;
use ccm_mock::cloud::Operation;
use ccm_testkit::apiserver::{Action, Match};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::FLAGS;
use crate::call_breakpoint::{At, CallBreakpoint};
use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!("others", EVERYWHERE, finalizers_of_others_stay_when_ours_comes_and_goes),
        case!(
            "taken",
            EVERYWHERE,
            a_finalizer_or_status_that_somebody_took_away_comes_back_without_a_cloud_write
        ),
    ]
}

const THEIRS: &str = "e2e.example/theirs";
const LATE: &str = "e2e.example/late";

async fn finalizers_of_others_stay_when_ours_comes_and_goes(s: &Scenario) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(2), s.names(2));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    let mut manifest = Scenario::manifest(&names[0]);
    manifest["metadata"]["finalizers"] = json!([THEIRS]);
    s.create(&manifest).await?;
    s.create(&Scenario::manifest(&names[1])).await?;
    s.served(&names, SOON).await?;
    let mut both = finalizers(s, &names[0])?;
    both.sort();
    anyhow::ensure!(both == [THEIRS, FINALIZER_LOAD_BALANCER], "{both:?}");

    // Deleted: ours goes, theirs keeps the Service.
    s.delete_service(&names[0]).await?;
    s.becomes("only theirs is left", SOON, || match finalizers(s, &names[0]) {
        Ok(left) if left == [THEIRS] => Ok(()),
        left => Err(format!("{left:?}")),
    })
    .await?;
    s.until("its balancer is gone", SOON, || s.cloud.load_balancers().len() == 1)
        .await?;
    s.stays("the service stays", Duration::from_secs(1), || s.service(&names[0]).map(drop))
        .await?;
    s.change(&names[0], json!({"metadata": {"finalizers": null}}))
        .await?;
    s.vanished(&names[0]).await?;

    // Ours is the only one when the balancer goes, and another is added in the midst of it: a patch
    // that empties the list would take it along. On the embedded server it comes even between the
    // last look and the patch.
    let delayed = s.server.as_embedded().ok().map(|server| {
        let release = Match::resource("services")
            .subresource("status")
            .verb("patch")
            .user_agent("ccm-mock/");
        (
            server.faults(),
            server
                .faults()
                .add_times(release, Action::Delay(Duration::from_millis(500)), 1),
        )
    });
    let gate = CallBreakpoint::shut(s, Operation::DeleteLoadBalancer, At::Answer);
    s.change(&names[1], json!({"spec": {"type": "ClusterIP"}}))
        .await?;
    gate.holds().await?;
    gate.open();
    let late = Patch::Strategic(json!({"metadata": {"finalizers": [LATE]}}));
    s.services_api()
        .patch(&names[1], &PatchParams::default(), &late)
        .await?;
    s.becomes("only the late one is left", SOON, || match finalizers(s, &names[1]) {
        Ok(left) if left == [LATE] => Ok(()),
        left => Err(format!("{left:?}")),
    })
    .await?;
    if let Some((faults, fault)) = delayed {
        anyhow::ensure!(faults.met(fault) == 1, "nothing was delayed");
    }
    s.in_line().map_err(anyhow::Error::msg)?;
    ccm.terminate().await
}

fn finalizers(s: &Scenario, name: &str) -> anyhow::Result<Vec<String>> {
    Ok(s.service(name)
        .map_err(anyhow::Error::msg)?
        .finalizers()
        .to_vec())
}

async fn a_finalizer_or_status_that_somebody_took_away_comes_back_without_a_cloud_write(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(2), s.names(2));
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(&nodes).await?;
    s.create_all(&names).await?;
    s.served(&names, SOON).await?;
    let calls = s.cloud.calls();
    s.may_be_bereft(&names[0]);
    let bare = s
        .change(&names[0], json!({"metadata": {"finalizers": null}}))
        .await?;
    s.caught_up(&bare).await?;
    s.served(&names, SOON).await?;
    let name = &names[1];
    // The server stores a mode where none is given, which makes no difference; another mode is one.
    for (mode, writes) in [(None, 0), (Some("Proxy"), 1)] {
        let before = s.service_writes("a").await?.len();
        let mut ingress =
            json!({"ip": ingress_addresses(&*s.service(name).map_err(anyhow::Error::msg)?)[0]});
        if let Some(mode) = mode {
            ingress["ipMode"] = json!(mode);
        }
        let patch = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": [ingress]}}}));
        let stored = s
            .services_api()
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
        s.caught_up(&stored).await?;
        let kept = stored
            .status
            .and_then(|status| status.load_balancer?.ingress?.pop()?.ip_mode);
        anyhow::ensure!(
            kept.as_deref() == Some(mode.unwrap_or("VIP")),
            "{mode:?} is stored as {kept:?}"
        );
        s.becomes("VIP again", SOON, || {
            let service = s.service(name)?;
            let ingress = service
                .status
                .as_ref()
                .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
            match ingress.and_then(|list| list.first()?.ip_mode.as_deref()) {
                Some("VIP") => Ok(()),
                mode => Err(format!("{mode:?}")),
            }
        })
        .await?;
        let served = || s.in_line();
        s.stays("nothing more is written", Duration::from_secs(1), served)
            .await?;
        let written = s.service_writes("a").await?.split_off(before);
        anyhow::ensure!(written.len() == writes, "{mode:?}: {written:?}");
    }
    let since = s.cloud.calls().since(&calls);
    anyhow::ensure!(since.writes() == 0, "{since}");
    ccm.terminate().await
}
