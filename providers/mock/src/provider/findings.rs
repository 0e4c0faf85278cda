//! What the subcommand `check` finds in the mock cloud: faults that somebody set, and reads that
//! fail.

use ccm_core::{
    error::chain,
    provider::{Area, CheckedCluster, Finding, Op, Routes},
};

use super::MockProvider;

ccm_core::finding_kinds! {
    /// What `check` finds in the mock cloud.
    pub enum MockFinding {
        FaultSet: Warning Cloud
            "calls of OBJECT fail, as somebody wanted"
            "replace the faults of the mock cloud (PUT /v1/faults) if OBJECT should work";
        RoutesUnreadable: Error Cloud
            "no routes are created"
            "see what the error of OBJECT says";
    }
}

impl MockProvider {
    /// Reads what controllers read, and lists the faults.
    pub(super) async fn find_problems(&self, op: &Op, cluster: CheckedCluster<'_>) -> Vec<Finding> {
        let mut findings = Vec::new();
        if cluster.creates_routes {
            findings.push(match Routes::list(self, op, cluster.nodes).await {
                Ok(routes) => Finding::ok(Area::Cloud, format!("routes: {}", routes.len())),
                Err(error) => MockFinding::RoutesUnreadable.about("list_routes", chain(&error)),
            });
        }
        let faults = match self.cloud() {
            Some(cloud) => cloud.active_faults(),
            None => Vec::new(),
        };
        for fault in faults {
            let operation = fault.operation().as_str();
            findings.push(MockFinding::FaultSet.about(operation, fault.describe()));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::check::reference;

    use super::*;

    const BEGIN: &str = "<!-- The mock cloud's findings are made by a test: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-mock reference_page -->\n";
    const END: &str = "<!-- end of the mock cloud's findings -->\n";

    #[test]
    fn reference_page_of_findings_matches_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/check.md");
        let update = std::env::var_os("CCM_UPDATE_REFERENCE").is_some();
        let table = reference::table(MockFinding::TABLE).unwrap();
        reference::compare(std::path::Path::new(page), (BEGIN, END), &table, update).unwrap();
    }
}
