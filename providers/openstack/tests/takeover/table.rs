//! What a change of managers changes in OpenStack, as data: the test compares it with what was
//! recorded, and the page for operators shows it.

use std::{fmt::Write as _, path::Path};

use anyhow::Context as _;

use crate::{calls::Changes, services::Round};

/// When changing calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// Upstream follows upstream: what it does at each of its own starts.
    Upstream,
    /// Ours follows upstream, and compares everything.
    Takeover,
    /// Ours follows ours.
    Restart,
    /// Upstream follows ours.
    Rollback,
}

/// Calls of one kind for one kind of Service.
struct Row {
    round: Round,
    situation: Situation,
    /// Name of the Service in the test.
    service: &'static str,
    /// What is special about it.
    kind: &'static str,
    call: &'static str,
    times: usize,
    why: &'static str,
}

impl Row {
    const fn at(self, situation: Situation) -> Self {
        Self { situation, ..self }
    }
}

const HEALTH_PORT: Row = Row {
    round: Round::Managed,
    situation: Situation::Takeover,
    service: "local",
    kind: "`provider-requires-serial-api-calls`, `externalTrafficPolicy: Local` with a health monitor",
    call: "PUT pools/{id}/members/{id}",
    times: 2,
    why: "Upstream forgets the health port of members that it makes one by one, so that checks for `/healthz` go to the \
          port of the Service. Each member gets it.",
};

const REWRITTEN: Row = Row {
    round: Round::Ovn,
    situation: Situation::Upstream,
    service: "local",
    kind: "`lb-provider=ovn`, `externalTrafficPolicy: Local` with a health monitor",
    call: "PUT pools/{id}/members",
    times: 1,
    why: "Upstream misses a health port that it never sets, and writes the members again at each look. No effect.",
};

const ROWS: &[Row] = &[HEALTH_PORT, REWRITTEN, REWRITTEN.at(Situation::Rollback)];

/// Something that ours makes otherwise than upstream.
pub(crate) struct Difference {
    /// How the line of a difference begins, and what it holds.
    at: (&'static str, &'static str),
    pub(crate) what: &'static str,
    why: &'static str,
}

impl Difference {
    /// Whether this is what a line of a difference tells of.
    pub(crate) fn is_of(&self, line: &str) -> bool {
        line.starts_with(self.at.0) && line.contains(self.at.1)
    }
}

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        at: ("node node-", "topology.openstack.org/host-id: upstream null"),
        what: "label `topology.openstack.org/host-id` of Nodes",
        why: "Set when a Node is initialised, as later releases of upstream do.",
    },
    Difference {
        at: ("event on Service locally: Warning LoadBalancerLocalWithoutMonitor", "upstream null"),
        what: "event `LoadBalancerLocalWithoutMonitor`",
        why: "`externalTrafficPolicy: Local` without a health monitor sends clients to nodes that drop them; upstream is \
              silent.",
    },
];

/// How often the cloud is asked.
pub(crate) struct Measure {
    pub(crate) what: &'static str,
    /// Upstream asks so often, or more often.
    pub(crate) upstream: usize,
    /// Ours asks so often, or less often.
    pub(crate) ours: usize,
}

/// In the order in which they are measured. How nodes that come at once fall together is chance,
/// and a busy machine's: each by itself would take two requests.
pub(crate) const MEASURES: [Measure; 5] = [
    Measure {
        what: "initialise 20 nodes that come at once",
        upstream: 60,
        ours: 42,
    },
    Measure { what: "make a load balancer", upstream: 14, ours: 8 },
    Measure { what: "delete it", upstream: 7, ours: 6 },
    Measure { what: "one node more, 20 Services", upstream: 120, ours: 41 },
    Measure { what: "start again, 20 Services", upstream: 140, ours: 102 },
];

/// What may be changed, and has to be.
pub(crate) fn expected(round: Round, situation: Situation) -> Changes {
    let rows = ROWS
        .iter()
        .filter(|row| row.round == round && row.situation == situation);
    rows.map(|row| ((row.service.to_owned(), row.call.to_owned()), row.times))
        .collect()
}

const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->\n";

/// The page for operators has this table. `CCM_UPDATE_REFERENCE=1` writes it.
pub(crate) fn page() -> anyhow::Result<()> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/providers/openstack-takeover.md");
    let page =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let (before, rest) = page
        .split_once(BEGIN)
        .context("the page has no mark where tables begin")?;
    let (_, after) = rest
        .split_once(END)
        .context("the page has no mark where tables end")?;
    let wanted = format!("{before}{BEGIN}{}{END}{after}", tables());
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        return Ok(std::fs::write(&path, wanted)?);
    }
    anyhow::ensure!(
        page == wanted,
        "{} is out of date; CCM_UPDATE_REFERENCE=1 refreshes it",
        path.display()
    );
    Ok(())
}

fn tables() -> String {
    let mut text = String::new();
    let situations = [
        (Situation::Takeover, "Ours takes over, and compares everything"),
        (Situation::Restart, "Ours starts again"),
        (Situation::Rollback, "Upstream takes back"),
        (Situation::Upstream, "For comparison: upstream starts again"),
    ];
    for (situation, title) in situations {
        let _ = write!(text, "\n### {title}\n\n");
        let rows: Vec<_> = ROWS
            .iter()
            .filter(|row| row.situation == situation)
            .collect();
        if rows.is_empty() {
            text.push_str("No changing call.\n");
            continue;
        }
        text.push_str("| kind of Service | calls | why, and effect |\n|---|---|---|\n");
        for row in rows {
            let times = if row.times == 1 {
                String::new()
            } else {
                format!(" ×{}", row.times)
            };
            let _ = writeln!(text, "| {} | {}{times} | {} |", row.kind, row.call, row.why);
        }
    }
    text.push_str("\n### What ours makes otherwise\n\n| what | why |\n|---|---|\n");
    for row in DIFFERENCES {
        let _ = writeln!(text, "| {} | {} |", row.what, row.why);
    }
    text.push_str(
        "\n### Requests\n\n| what | upstream, at least | ours, at most |\n|---|---|---|\n",
    );
    for row in &MEASURES {
        let _ = writeln!(text, "| {} | {} | {} |", row.what, row.upstream, row.ours);
    }
    text.push('\n');
    text
}
