use super::{Effort, Explorer, FaultKind, Faults, Report, Scenario};

impl Explorer {
    /// Runs a scenario without faults, and again with `faults`. `command` is [`Explorer::command`].
    pub async fn replay(scenario: &dyn Scenario, faults: Faults, command: &str) -> Report {
        let (replay, command) = (Some((scenario.name(), faults)), command.to_owned());
        // A replay is not random, so the seed does not matter.
        Self { effort: Effort::Full, seed: 0, pairs: 0, replay, command }
            .explore(scenario)
            .await
    }
}

/// Searches for a mutant's bug in a scenario: injects a fault of `kind` at one call after another,
/// or no fault, until a run fails with the text `how`.
///
/// # Errors
/// Describes what was observed instead.
pub async fn hunt(
    scenario: &dyn Scenario,
    kind: Option<FaultKind>,
    how: &str,
) -> Result<(), String> {
    let (mut points, mut seen) = (1, String::new());
    for at in 1.. {
        if at > points {
            break;
        }
        let faults = Faults(kind.map(|kind| (at, kind)).into_iter().collect());
        // No command repeats a run with the mutant.
        let report = Explorer::replay(scenario, faults, "").await;
        if report
            .failures
            .iter()
            .any(|failure| failure.seen.contains(how))
        {
            return Ok(());
        }
        points = if kind.is_some() { report.points } else { 1 };
        if seen.is_empty() || !report.failures.is_empty() {
            seen = report.to_string();
        }
    }
    Err(format!("it is not found as {how:?}: {seen}"))
}
