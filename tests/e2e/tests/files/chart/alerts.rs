//! Prometheus' own tool judges the chart's alerts.

use ccm_testkit::control_plane::GoProgram;
use ccm_testkit::promtool;
use ccm_testkit::suite::Tier;

use crate::cases;
use crate::helm::{Helm, only};
use crate::plain::{Case, needing};

pub(crate) fn cases() -> Vec<Case> {
    let missing = ccm_testkit::control_plane::helm()
        .err()
        .or_else(|| GoProgram::Promtool.find().err());
    let judged = needing(missing, cases![promtool_takes_the_alerts_and_they_ring_when_they_should]);
    judged
        .into_iter()
        .map(|case| Case { tier: Tier::Full, ..case })
        .collect()
}

fn promtool_takes_the_alerts_and_they_ring_when_they_should() {
    let set =
        "provider=mock,metrics.prometheusRule.enabled=true,metrics.serviceMonitor.enabled=true";
    let objects = Helm::find().unwrap().objects(&["--set", set]).unwrap();
    let rule = only(&objects, "PrometheusRule").unwrap();
    promtool::check(&GoProgram::Promtool.find().unwrap(), &rule["spec"]).unwrap();
}
