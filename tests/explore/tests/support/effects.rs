//! That faults do what they say, seen in what the processes do about them.

use std::{sync::Arc, time::Duration};

use ccm_explore::{Explorer, fault::parse_shots, interceptor::Step, scenario};
use ccm_testkit::suite::Tier;
use libtest_mimic::{Failed, Trial};

/// A run and what must be seen in it after the fault: the operations with their time since then.
struct Effect {
    scenario: &'static str,
    plan: &'static str,
    seen: fn(&After<'_>) -> bool,
}

struct After<'a> {
    fault: &'a Step,
    steps: &'a [Step],
}

impl After<'_> {
    /// How long after the fault the first operation begins whose name begins so.
    fn first(&self, name: &str) -> Option<Duration> {
        let mut steps = self.steps.iter();
        let found = steps.find(|step| step.point.label.starts_with(name))?;
        Some(found.at.saturating_sub(self.fault.at))
    }

    fn others_alone(&self) -> bool {
        !self.steps.is_empty()
            && self
                .steps
                .iter()
                .all(|step| step.process != self.fault.process)
    }

    fn another_writes(&self) -> bool {
        self.steps.iter().any(|step| {
            step.process != self.fault.process && step.point.label.starts_with("cloud.")
        })
    }
}

const SECOND: Duration = Duration::from_secs(1);

const EFFECTS: [Effect; 14] = [
    Effect {
        scenario: "service-created",
        plan: "cloud.create_load_balancer.default.web#1/crash-before",
        seen: |after| {
            after.others_alone()
                && after
                    .first("cloud.create_load_balancer.default.web#2")
                    .is_some()
        },
    },
    Effect {
        scenario: "service-created",
        plan: "cloud.create_load_balancer.default.web#1/crash-after",
        seen: |after| after.others_alone() && after.first("cloud.create_load_balancer").is_none(),
    },
    Effect {
        scenario: "service-created",
        plan: "cloud.create_load_balancer.default.web#1/broken",
        seen: |after| {
            after
                .first("cloud.create_load_balancer.default.web#2")
                .is_some()
        },
    },
    Effect {
        scenario: "service-created",
        plan: "cloud.create_load_balancer.default.web#1/hang",
        seen: |after| {
            after
                .first("cloud.create_load_balancer.default.web#2")
                .is_some_and(|time| time > 10 * SECOND)
        },
    },
    Effect {
        scenario: "service-created",
        plan: "api.patch.services.status.default.web#1/status-429",
        seen: |after| {
            after
                .first("api.patch.services.status.default.web#2")
                .is_some_and(|time| time >= 2 * SECOND)
        },
    },
    Effect {
        scenario: "service-changed",
        plan: "cloud.get_load_balancer.default.web#1/lag",
        seen: |after| {
            after
                .first("cloud.modify_load_balancer")
                .is_some_and(|time| time >= 29 * SECOND)
        },
    },
    Effect {
        scenario: "service-changed",
        plan: "cloud.get_load_balancer.default.web#1/expire",
        seen: |after| {
            after
                .first("api.watch.services#2")
                .is_some_and(|time| time < 5 * SECOND)
        },
    },
    Effect {
        scenario: "service-changed",
        plan: "cloud.get_load_balancer.default.web#1/missed",
        seen: |after| {
            after
                .first("api.watch.services#2")
                .is_some_and(|time| time >= 30 * SECOND)
        },
    },
    Effect {
        scenario: "service-changed",
        plan: "cloud.get_load_balancer.default.web#2/rewind",
        seen: |after| after.first("api.watch.services#2").is_none(),
    },
    Effect {
        scenario: "service-changed",
        plan: "cloud.get_load_balancer.default.web#1/stale-start",
        seen: |after| after.others_alone(),
    },
    Effect {
        scenario: "service-created",
        plan: "api.patch.services.status.default.web#1/crash-late",
        seen: |after| {
            after.others_alone()
                && after
                    .first("api.patch.services.status.default.web#2")
                    .is_some()
        },
    },
    Effect {
        scenario: "fail-over",
        plan: "api.patch.nodes.status.c#1/late",
        seen: |after| after.first("api.patch.nodes.status.c#2").is_some(),
    },
    Effect {
        scenario: "fail-over",
        plan: "api.patch.nodes.status.c#1/cut-off",
        seen: |after| after.another_writes() && after.first("api.update.leases").is_some(),
    },
    Effect {
        scenario: "fail-over",
        plan: "cloud.create_load_balancer.default.web#1/crash-before",
        seen: |after| after.another_writes() && after.others_alone(),
    },
];

/// A trial for each, in the first tier.
pub(crate) fn trials(explorer: &Arc<Explorer>, tier: Tier) -> Vec<Trial> {
    let trial = |effect: &'static Effect| {
        let explorer = explorer.clone();
        let name = format!("explore/effects/{}/{}", effect.scenario, effect.plan);
        Tier::Quick
            .case(tier, name, None::<&str>, move || check(&explorer, effect).map_err(Failed::from))
    };
    EFFECTS.iter().filter_map(trial).collect()
}

fn check(explorer: &Explorer, effect: &Effect) -> Result<(), String> {
    let scenario = scenario::all()
        .into_iter()
        .find(|s| s.name == effect.scenario)
        .ok_or("no such scenario")?;
    let outcome = explorer.run(scenario, &parse_shots(effect.plan)?, None, None);
    let steps: Vec<String> = outcome.steps.iter().map(ToString::to_string).collect();
    let at = outcome.steps.iter().position(|step| step.fault.is_some());
    let at = at.ok_or_else(|| format!("the fault did not happen:\n{}", steps.join("\n")))?;
    let after = After { fault: &outcome.steps[at], steps: &outcome.steps[at + 1..] };
    let had = outcome.happened.iter().all(|(_, had)| *had);
    if outcome.findings.is_empty() && had && (effect.seen)(&after) {
        return Ok(());
    }
    Err(format!(
        "it had an effect: {had}\n{}\n{}",
        outcome.findings.join("\n"),
        steps.join("\n")
    ))
}
