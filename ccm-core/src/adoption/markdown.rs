//! The adoption report as Markdown: CommonMark with GitHub's tables.
//!
//! All text from the cluster and the cloud is escaped, so that no name is read as markup.

use super::{
    ActiveManager, AdoptionReport, CloudFindings, Permissions, Served,
    estimate::{Counted, Estimate, EstimateRow, HourlyRate, number},
};
use crate::{
    check::FindingRow,
    runtime::shadow::{Difference, ObjectKind},
};

/// The maximum number of rows of a table. The JSON form has all of them.
const MAX_ROWS: usize = 200;
/// What stands in an empty cell.
const EMPTY: &str = "–";

/// Renders the whole report.
pub(super) fn render(report: &AdoptionReport) -> String {
    let mut page = Page::default();
    summary(&mut page, report);
    served(&mut page, &report.served);
    changes(&mut page, report);
    notices(&mut page, report);
    permissions(&mut page, &report.permissions, &report.cloud);
    defects(&mut page, report);
    other_findings(&mut page, report);
    estimate(&mut page, &report.estimate);
    page.heading("How to go back");
    page.numbered(&report.way_back);
    page.0
}

fn summary(page: &mut Page, report: &AdoptionReport) {
    let AdoptionReport { manager, cluster, active_manager, .. } = report;
    page.line(&format!("# Adoption report: {}", escape(&cluster.name)));
    let verdict = match report.verdict {
        "same" if is_complete(report) => "Nothing would change.",
        "same" => "Nothing that was compared would change.",
        "different" => "Some things would change; they are listed below.",
        _ => "Nothing was found that would change, but not everything could be compared.",
    };
    page.paragraph(verdict);
    if !is_complete(report) {
        page.paragraph("Not everything was examined: see [Not compared](#not-compared).");
    }
    let name = format!("`{} {}`, provider `{}`", manager.name, manager.version, manager.provider);
    let rows = [
        ("Made", report.at.to_string()),
        ("By", name),
        ("API server", format!("`{}`", code(&cluster.api_server))),
        ("Active manager", holder(active_manager)),
        ("Comparison", escape(&report.summary.to_string())),
        ("Defects seen", report.defects.len().to_string()),
    ];
    let rows = rows.map(|(what, value)| vec![what.to_owned(), value]);
    page.table(&["", ""], &rows);
    page.paragraph(
        "The comparison changed nothing: it took no Lease, and wrote neither to the API server nor to the cloud.",
    );
}

/// Returns true if everything was compared and examined.
fn is_complete(report: &AdoptionReport) -> bool {
    report.not_compared.is_empty() && report.not_examined.is_empty()
}

fn holder(manager: &ActiveManager) -> String {
    let ActiveManager { lease, holder, unreadable } = manager;
    let Some(lease) = lease else {
        return "not known: `--leader-elect` is off".to_owned();
    };
    match (holder, unreadable) {
        (Some(holder), _) => format!("`{}` holds the Lease `{lease}`", code(holder)),
        (None, Some(reason)) => {
            format!("the Lease `{lease}` could not be read: {}", escape(reason))
        }
        (None, None) => format!("nobody holds the Lease `{lease}`"),
    }
}

fn served(page: &mut Page, served: &Served) {
    page.heading("What is served now");
    let controllers: Vec<String> = served
        .controllers
        .iter()
        .map(|name| format!("`{name}`"))
        .collect();
    page.paragraph(&format!("Compared controllers: {}.", join_or(&controllers, "none")));
    if let Some(services) = &served.services {
        page.sub_heading(&format!("Services: {}", services.len()));
        let rows = services.iter().map(|service| {
            vec![
                escape(&service.name),
                escape_all(&service.addresses),
                escape_all(&service.ports),
                service.changes.to_string(),
            ]
        });
        page.table(&["Service", "Addresses", "Ports", "Changes"], &rows.collect::<Vec<_>>());
    } else {
        page.sub_heading("Services");
        page.paragraph("They were not looked at: the service controller does not run.");
    }
    page.sub_heading(&format!("Nodes: {}", served.nodes.len()));
    let nodes = served.nodes.iter().map(|node| {
        let state = match (node.initialized, node.ready) {
            (false, _) => "not initialised",
            (true, true) => "Ready",
            (true, false) => "not Ready",
        };
        vec![
            escape(&node.name),
            state.to_owned(),
            node.provider_id.as_deref().map_or(EMPTY.to_owned(), escape),
            escape_all(&node.addresses),
            escape_all(&node.pod_cidrs),
            node.changes.to_string(),
        ]
    });
    let columns = ["Node", "State", "Provider ID", "Addresses", "Pod networks", "Changes"];
    page.table(&columns, &nodes.collect::<Vec<_>>());
    match served.routes {
        Some(routes) => page.paragraph(&format!("Routes in the pod networks: {routes}.")),
        None => page.paragraph("Routes were not compared: the route controller does not run."),
    }
}

fn changes(page: &mut Page, report: &AdoptionReport) {
    page.heading("What would change");
    if report.changes.is_empty() {
        page.paragraph(if is_complete(report) {
            "Nothing."
        } else {
            "Nothing that was compared."
        });
    }
    let rows = report.changes.iter().map(|change| {
        vec![
            object(change),
            escape(&change.part),
            change.current.as_deref().map_or(EMPTY.to_owned(), escape),
            escape(&change.desired),
            escape(&change.why),
            format!("`{}`", change.controller),
        ]
    });
    let columns = ["Object", "Part", "Now", "Then", "Why", "Controller"];
    page.table(&columns, &rows.collect::<Vec<_>>());
    if is_complete(report) {
        return;
    }
    page.sub_heading("Not compared");
    let mut texts: Vec<String> = report
        .not_compared
        .iter()
        .map(|one| escape(&one.to_string()))
        .collect();
    texts.extend(report.not_examined.iter().map(|text| escape(text)));
    page.bullets(&texts);
}

fn object(change: &Difference) -> String {
    let kind = match change.kind {
        ObjectKind::Node => "Node",
        ObjectKind::Route => "Route",
        ObjectKind::Service => "Service",
    };
    format!("{kind} {}", escape(&change.object))
}

fn notices(page: &mut Page, report: &AdoptionReport) {
    page.heading("Dormant annotations and other notices");
    if report.notices.is_empty() {
        page.paragraph("None.");
    }
    let rows = report
        .notices
        .iter()
        .map(|notice| vec![escape(&notice.object), notice.reason.to_owned(), escape(&notice.note)]);
    page.table(&["Service", "Reason", "Notice"], &rows.collect::<Vec<_>>());
}

fn permissions(page: &mut Page, permissions: &Permissions, cloud: &CloudFindings) {
    page.heading("Missing permissions");
    page.sub_heading("In the cluster");
    let user = match &permissions.user {
        Some(user) => format!("the user `{}`", code(user)),
        None => "the user of this process".to_owned(),
    };
    let accounts = if permissions.has_service_accounts {
        ", and for the controllers' own ServiceAccounts (`--use-service-account-credentials`)"
    } else {
        ""
    };
    page.paragraph(&format!(
        "Asked for {user}{accounts}. If the manager will run as another one, run the report, or `check`, as that one."
    ));
    page.part(&permissions.findings, permissions.not_examined.as_deref(), "Nothing is missing.");
    page.sub_heading("In the cloud");
    page.paragraph("What the provider's own check found; access that is denied is among it.");
    page.part(&cloud.findings, cloud.not_examined.as_deref(), "The provider reported nothing.");
}

fn defects(page: &mut Page, report: &AdoptionReport) {
    page.heading("Defects of the active manager");
    if report.defects.is_empty() {
        page.paragraph(if is_complete(report) {
            "None was seen."
        } else {
            "None was seen in what was examined."
        });
        return;
    }
    let rows = report.defects.iter().map(|found| {
        vec![
            format!("{:?}", found.defect),
            escape(&found.object),
            escape(&found.evidence),
            escape(found.meaning),
            escape(found.remedy),
        ]
    });
    let columns = ["Defect", "Object", "Seen", "What follows", "What to do"];
    page.table(&columns, &rows.collect::<Vec<_>>());
}

fn other_findings(page: &mut Page, report: &AdoptionReport) {
    if report.findings.is_empty() {
        return;
    }
    page.heading("What else would not work");
    page.findings(&report.findings);
}

fn estimate(page: &mut Page, estimate: &Estimate) {
    page.heading("Calls and writes per hour, estimated");
    let name = |counted: Counted| match counted {
        Counted::CloudCalls => "Calls of the cloud",
        Counted::CloudWrites => "Changes of the cloud",
        Counted::ApiWrites => "Writes to the API server",
    };
    let totals = estimate.totals.iter().map(|total| {
        vec![name(total.counted).to_owned(), number(total.ours), number(total.go_manager)]
    });
    let columns = ["Per hour, estimated", "This manager", "A Go manager"];
    page.table(&columns, &totals.collect::<Vec<_>>());
    page.sub_heading("How it was calculated");
    let rate = |rate: &HourlyRate| format!("{}: {}", number(rate.per_hour), escape(&rate.formula));
    let row = |row: &EstimateRow| {
        let what = format!("{}: {}", name(row.counted), row.purpose);
        vec![what, rate(&row.ours), rate(&row.go_manager)]
    };
    let rows: Vec<_> = estimate.rows.iter().map(row).collect();
    page.table(&columns, &rows);
    let assumptions: Vec<String> = estimate
        .assumptions
        .iter()
        .map(|text| escape(text))
        .collect();
    page.bullets(&assumptions);
    page.sub_heading("Measured: calls of the cloud by this comparison");
    let measured = estimate.measured.iter().map(|row| {
        let objects = row.objects.map_or(EMPTY.to_owned(), number);
        vec![format!("`{}`", row.operation), number(row.calls), objects]
    });
    page.table(&["Operation", "Calls", "Objects"], &measured.collect::<Vec<_>>());
}

/// The page so far.
#[derive(Debug, Default)]
struct Page(String);

impl Page {
    fn line(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    /// Starts a block, which a blank line separates from the one before.
    fn block(&mut self, text: &str) {
        self.line("");
        self.line(text);
    }

    fn heading(&mut self, text: &str) {
        self.block(&format!("## {text}"));
    }

    fn sub_heading(&mut self, text: &str) {
        self.block(&format!("### {text}"));
    }

    fn paragraph(&mut self, text: &str) {
        self.block(text);
    }

    fn bullets(&mut self, texts: &[String]) {
        self.line("");
        for text in texts.iter().take(MAX_ROWS) {
            self.line(&format!("- {text}"));
        }
        self.rest(texts.len());
    }

    fn numbered(&mut self, texts: &[String]) {
        self.line("");
        for (index, text) in texts.iter().enumerate() {
            self.line(&format!("{}. {text}", index + 1));
        }
    }

    /// Adds a table, or nothing if it would have no rows. The cells are Markdown.
    fn table(&mut self, columns: &[&str], rows: &[Vec<String>]) {
        if rows.is_empty() {
            return;
        }
        self.line("");
        self.line(&format!("| {} |", columns.join(" | ")));
        self.line(&format!("|{}", "---|".repeat(columns.len())));
        for row in rows.iter().take(MAX_ROWS) {
            self.line(&format!("| {} |", row.join(" | ")));
        }
        self.rest(rows.len());
    }

    /// Says how many rows were left out.
    fn rest(&mut self, rows: usize) {
        let more = rows.saturating_sub(MAX_ROWS);
        if more > 0 {
            self.paragraph(&format!("{more} more are in the JSON form (`--report=json`)."));
        }
    }

    /// Adds findings, and why there may be more, or `nothing` if there are none.
    fn part(&mut self, findings: &[FindingRow], not_examined: Option<&str>, nothing: &str) {
        if let Some(reason) = not_examined {
            self.paragraph(&format!("Not examined: {}.", escape(reason)));
        } else if findings.iter().all(|finding| finding.finding.is_empty()) {
            self.paragraph(nothing);
        }
        self.findings(findings);
    }

    fn findings(&mut self, findings: &[FindingRow]) {
        let is_problem = |finding: &&FindingRow| !finding.finding.is_empty();
        let problems = findings.iter().filter(is_problem).map(|finding| {
            vec![
                finding.severity.clone(),
                escape(&finding.message),
                escape(&finding.consequence),
                escape(&finding.advice),
            ]
        });
        let problems: Vec<_> = problems.collect();
        self.table(&["Severity", "Finding", "What follows", "What to do"], &problems);
    }
}

fn join_or(texts: &[String], otherwise: &str) -> String {
    if texts.is_empty() {
        return otherwise.to_owned();
    }
    texts.join(", ")
}

fn escape_all(texts: &[String]) -> String {
    let escaped: Vec<String> = texts.iter().map(|text| escape(text)).collect();
    join_or(&escaped, EMPTY)
}

/// Makes a text safe to stand in backquotes in a cell of a table.
fn code(text: &str) -> String {
    let replace = |c: char| match c {
        '`' => '\'',
        '|' => '¦',
        c if c.is_control() => ' ',
        c => c,
    };
    text.chars().map(replace).collect()
}

/// Escapes a text so that it is shown as it is, also in a cell of a table. Line breaks and other
/// control characters become spaces.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut last = ' ';
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        // Within a word an underscore is no markup, and many names have one.
        let in_word =
            last.is_alphanumeric() && characters.peek().is_some_and(|next| next.is_alphanumeric());
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\\' | '`' | '*' | '[' | ']' | '|' | '~' | '$' => escaped.extend(['\\', c]),
            '_' if !in_word => escaped.push_str("\\_"),
            '#' if escaped.is_empty() => escaped.push_str("\\#"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
        last = c;
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_read_as_markup() {
        for (text, expected) in [
            ("web-1.shop", "web-1.shop"),
            ("describe_instances", "describe_instances"),
            ("__init__ a_", "\\_\\_init\\_\\_ a\\_"),
            ("a|b", "a\\|b"),
            ("<script>&amp;", "&lt;script&gt;&amp;amp;"),
            (
                "*x* `y` [z](u) ~~s~~ $m$ \\",
                "\\*x\\* \\`y\\` \\[z\\](u) \\~\\~s\\~\\~ \\$m\\$ \\\\",
            ),
            ("# not a heading\n| nor | a row |", "\\# not a heading \\| nor \\| a row \\|"),
            ("tab\tbell\u{7}", "tab bell "),
        ] {
            assert_eq!(escape(text), expected);
        }
        assert_eq!(code("a`b|c\nd"), "a'b¦c d");
    }

    #[test]
    fn a_leader_that_could_not_be_read_is_not_called_nobody() {
        let manager = |holder: Option<&str>, unreadable: Option<&str>| ActiveManager {
            lease: Some("ns/l".to_owned()),
            holder: holder.map(str::to_owned),
            unreadable: unreadable.map(str::to_owned),
        };
        for (holder_name, reason, expected) in [
            (Some("a"), None, "`a` holds the Lease `ns/l`"),
            (None, None, "nobody holds the Lease `ns/l`"),
            (None, Some("forbidden"), "the Lease `ns/l` could not be read: forbidden"),
        ] {
            assert_eq!(holder(&manager(holder_name, reason)), expected);
        }
    }

    #[test]
    fn what_was_not_examined_is_not_called_fine() {
        for (reason, expected) in
            [(None, "\nFine.\n"), (Some("no answer"), "\nNot examined: no answer.\n")]
        {
            let mut page = Page::default();
            page.part(&[], reason, "Fine.");
            assert_eq!(page.0, expected);
        }
    }

    #[test]
    fn long_tables_are_cut() {
        let mut page = Page::default();
        let rows: Vec<_> = (0..=MAX_ROWS).map(|n| vec![n.to_string()]).collect();
        page.table(&["n"], &rows);
        assert_eq!(page.0.lines().filter(|line| line.starts_with("| ")).count(), MAX_ROWS + 1);
        assert!(
            page.0
                .ends_with("1 more are in the JSON form (`--report=json`).\n"),
            "{}",
            page.0
        );
        let mut empty = Page::default();
        empty.table(&["n"], &[]);
        assert_eq!(empty.0, "");
    }
}
