//! The page as HTML. Pure functions.

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};

use super::{
    CallCounts, CallTable, Cause, CheckRow, Link, NodeRow, Page, PageObjects, PageOptions,
    QueueRow, REFRESH_SECONDS, Rows, ServiceRow, Waiting,
};
use crate::{explain::RoutesExplanation, percent};

/// Returns the page as HTML.
pub(crate) fn render(page: &Page) -> String {
    let options = &page.options;
    let title = match &page.objects {
        Ok(objects) => format!("Explanations: {}", objects.provider),
        Err(_) => "Explanations".to_owned(),
    };
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                @if !options.keep {
                    meta http-equiv="refresh" content=(REFRESH_SECONDS);
                }
                title { (title) }
                link rel="stylesheet" href="style.css";
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    h1 { (title) }
                    (refresh(options, page.at))
                    (navigation(page))
                    @if page.objects.is_ok() {
                        (filter_form(options))
                    }
                }
                main id="main" {
                    @match &page.objects {
                        Ok(objects) => (objects_of(objects)),
                        Err(reason) => p { strong { (reason) } },
                    }
                    (queues(&page.queues))
                    (calls(&page.calls))
                    (checks(&page.checks))
                }
            }
        }
    };
    document.into_string()
}

fn refresh(options: &PageOptions, at: Timestamp) -> Markup {
    let target = PageOptions { keep: !options.keep, ..options.clone() };
    html! {
        p {
            "As of " time datetime=(at) { (at) } ". "
            @if options.keep {
                "This page stays as it is. "
                a href=(query(&target)) { "Refresh it every " (REFRESH_SECONDS) " seconds" }
            } @else {
                "This page refreshes itself every " (REFRESH_SECONDS) " seconds. "
                a href=(query(&target)) { "Stop refreshing" }
            }
        }
    }
}

/// Returns the query of the address of a page with these options.
fn query(options: &PageOptions) -> String {
    let refresh = if options.keep { "off" } else { "on" };
    format!("?refresh={refresh}&filter={}", percent::encode(&options.filter))
}

fn navigation(page: &Page) -> Markup {
    let mut sections = Vec::new();
    if let Ok(objects) = &page.objects {
        sections.extend([("waiting", "Waiting"), ("nodes", "Nodes"), ("services", "Services")]);
        if objects.routes.is_some() {
            sections.push(("routes", "Routes"));
        }
    }
    sections.extend([("queues", "Queues"), ("calls", "Cloud calls"), ("checks", "Checks")]);
    html! {
        nav aria-label="Sections" {
            ul {
                @for (id, text) in sections {
                    li { a href={ "#" (id) } { (text) } }
                }
            }
        }
    }
}

fn filter_form(options: &PageOptions) -> Markup {
    html! {
        form method="get" role="search" {
            @if options.keep {
                input type="hidden" name="refresh" value="off";
            }
            label for="filter" { "Name or cause contains" }
            " "
            input id="filter" type="search" name="filter" value=(options.filter);
            " "
            button { "Filter" }
        }
    }
}

fn objects_of(objects: &PageObjects) -> Markup {
    html! {
        section aria-labelledby="waiting" {
            h2 id="waiting" { "What waits, and why" }
            (waiting(&objects.waiting))
        }
        section aria-labelledby="nodes" {
            h2 id="nodes" { "Nodes" }
            (nodes(&objects.nodes))
        }
        section aria-labelledby="services" {
            h2 id="services" { "Services" }
            (services(&objects.services))
        }
        @if let Some(routes) = &objects.routes {
            section aria-labelledby="routes" {
                h2 id="routes" { "Routes" }
                (routes_of(routes))
            }
        }
    }
}

fn waiting(rows: &Rows<Waiting>) -> Markup {
    html! {
        @if rows.all == 0 {
            p { "Nothing is wrong as far as this manager knows." }
        }
        ul.waiting {
            @for row in &rows.shown {
                li {
                    p { (link(&row.object)) ": " strong { (row.cause.name()) } }
                    p { (row.message) }
                    p { "Next step: " (row.cause.next_step()) }
                    @if let Some(until) = row.until {
                        p { "Until " time datetime=(until) { (until) } ", unless something changes" }
                    }
                }
            }
        }
        (remainder(rows))
    }
}

fn nodes(rows: &Rows<NodeRow>) -> Markup {
    html! {
        @if rows.all == 0 {
            p { "There are no nodes." }
        }
        @if !rows.shown.is_empty() {
            table {
                caption { "Nodes, those with a cause first" }
                (head(&["Node", "State", "Instance", "Provider ID", "Causes"]))
                tbody {
                    @for row in &rows.shown {
                        tr {
                            th scope="row" { a href=(row.link.path) { (row.name) } }
                            td { (row.state) }
                            td { (row.instance) }
                            td.id { (or_none(&row.provider_id)) }
                            td { (causes(&row.causes)) }
                        }
                    }
                }
            }
        }
        (remainder(rows))
    }
}

fn services(rows: &Rows<ServiceRow>) -> Markup {
    html! {
        @if rows.all == 0 {
            p { "There are no Services of type LoadBalancer, or the service controller does not run here." }
        }
        @if !rows.shown.is_empty() {
            table {
                caption { "Services of type LoadBalancer, those with a cause first" }
                (head(&["Service", "Address", "Backends", "Next", "Causes"]))
                tbody {
                    @for row in &rows.shown {
                        tr {
                            th scope="row" { a href=(row.link.path) { (row.key) } }
                            td { (or_none(&row.ingress)) }
                            td { (or_none(&row.backends)) }
                            td { (row.action) }
                            td { (causes(&row.causes)) }
                        }
                    }
                }
            }
        }
        (remainder(rows))
    }
}

fn routes_of(routes: &RoutesExplanation) -> Markup {
    let shown = routes.causes.len().min(super::MAX_ROWS);
    html! {
        p { (routes.summary) ". " a href="routes?format=text" { "All about the routes" } }
        @if let Some(pass) = &routes.last_pass {
            p {
                "Compared with the cloud at " time datetime=(pass.at) { (pass.at) }
                @if let Some(error) = &pass.error { ": " (error) }
            }
        }
        ul.waiting {
            @for cause in &routes.causes[..shown] {
                li {
                    p { strong { (cause.cause.name()) } ": " (cause.message) }
                    p { "Next step: " (cause.next_step) }
                }
            }
        }
        @if routes.causes.len() > shown {
            p { "… and " (routes.causes.len() - shown) " more" }
        }
    }
}

fn queues(rows: &[QueueRow]) -> Markup {
    html! {
        section aria-labelledby="queues" {
            h2 id="queues" { "Queues" }
            @if rows.is_empty() {
                p { "No controller with a queue runs here." }
            } @else {
                table {
                    caption { "Work queues of the controllers" }
                    (head(&["Queue", "Queued", "Oldest (s)", "Delayed", "Retries since the start"]))
                    tbody {
                        @for row in rows {
                            tr {
                                th scope="row" { (row.name) }
                                td.number { (row.queued) }
                                td.number { (format!("{:.1}", row.oldest_seconds)) }
                                td.number { (row.delayed) }
                                td.number { (row.retries) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn calls(table: &CallTable) -> Markup {
    let period = match table.seconds {
        Some(seconds) if seconds < 120 => format!("in the last {seconds} seconds, and "),
        Some(seconds) => format!("in the last {} minutes, and ", seconds / 60),
        None => String::new(),
    };
    html! {
        section aria-labelledby="calls" {
            h2 id="calls" { "Cloud calls" }
            @if table.rows.is_empty() {
                p { "This process has not called the cloud yet." }
            } @else {
                table {
                    caption { "Calls of the cloud " (period) "since the start" }
                    (head(&["Call", "Recent", "Failed", "Mean (s)", "Since the start", "Failed since the start"]))
                    tbody {
                        @for row in &table.rows {
                            tr {
                                th scope="row" { (row.operation) }
                                td.number { (row.recent.calls) }
                                td.number { (row.recent.failed) }
                                td.number { (mean(row.recent)) }
                                td.number { (row.since_start.calls) }
                                td.number { (row.since_start.failed) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn mean(counts: CallCounts) -> String {
    if counts.calls > 0.0 {
        format!("{:.2}", counts.seconds / counts.calls)
    } else {
        "–".to_owned()
    }
}

fn checks(rows: &[CheckRow]) -> Markup {
    html! {
        section aria-labelledby="checks" {
            h2 id="checks" { "Checks" }
            table {
                caption { "Checks of this process and its controllers" }
                (head(&["Check", "Result"]))
                tbody {
                    @for row in rows {
                        tr {
                            th scope="row" { (row.name) }
                            td {
                                @match &row.failure {
                                    None => "ok",
                                    Some(reason) => { strong { "fails" } ": " (reason) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn head(columns: &[&str]) -> Markup {
    html! {
        thead {
            tr {
                @for column in columns {
                    th scope="col" { (column) }
                }
            }
        }
    }
}

fn link(link: &Link) -> Markup {
    html! { a href=(link.path) { (link.text) } }
}

fn causes(causes: &[Cause]) -> Markup {
    let names: Vec<_> = causes.iter().map(|cause| cause.name()).collect();
    or_none(&names.join(", "))
}

fn or_none(text: &str) -> Markup {
    html! { @if text.is_empty() { "–" } @else { (text) } }
}

/// Says how much of a table is not shown.
fn remainder<T>(rows: &Rows<T>) -> Markup {
    let hidden = rows.matching - rows.shown.len();
    html! {
        @if hidden > 0 {
            p { "… and " (hidden) " more. The filter finds them." }
        }
        @if rows.matching < rows.all {
            p { (rows.matching) " of " (rows.all) " pass the filter." }
        }
    }
}
