use std::collections::BTreeSet;

use super::*;
use crate::{
    explain::{ExplainTime, FailedRoute},
    k8s::NodeView,
    provider::{CloudProvider, NodeOwnership},
    runtime::events::WallClock,
};

const HOSTILE: &str = "<script>alert('x')</script>\"&";

struct Cloud;
impl CloudProvider for Cloud {
    fn name(&self) -> &'static str {
        "test"
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        NodeOwnership::by_scheme("test", node)
    }
}

fn at() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn options(filter: &str) -> PageOptions {
    PageOptions { filter: filter.to_owned(), keep: false }
}

/// A node of another provider if it has a provider ID of one.
fn node(name: &str, provider_id: Option<&str>) -> NodeExplanation {
    let node = NodeView {
        provider_id: provider_id.map(Into::into),
        ..NodeView::named(name)
    };
    let mut explanation =
        NodeExplanation::new(&node, &Cloud, ExplainTime::new(&WallClock::system()));
    explanation.finish(&node);
    explanation
}

fn routes(errors: usize) -> RoutesExplanation {
    let causes = (0..errors)
        .map(|n| ExplainedCause::new(Cause::QuotaExceeded, format!("route {n} of {HOSTILE}")));
    RoutesExplanation {
        at: at(),
        summary: format!("{errors} changes failed"),
        causes: causes.collect(),
        cluster_cidrs: Vec::new(),
        last_pass: None,
        failed: Vec::<FailedRoute>::new(),
        nodes_without_pod_cidr: Vec::new(),
    }
}

fn page(options: PageOptions, nodes: Vec<NodeExplanation>) -> Page {
    let mut objects = PageObjects { provider: HOSTILE.to_owned(), ..PageObjects::default() };
    for node in nodes {
        objects.add_node(node, &options);
    }
    objects.finish();
    let queue = QueueRow {
        name: HOSTILE.to_owned(),
        queued: 2.0,
        delayed: 3.0,
        oldest_seconds: 1.25,
        retries: 4.0,
    };
    let counts = CallCounts { calls: 4.0, failed: 1.0, seconds: 2.0 };
    let call = CallRow {
        operation: HOSTILE.to_owned(),
        recent: counts,
        since_start: counts,
    };
    Page {
        at: at(),
        options,
        objects: Ok(Arc::new(objects)),
        queues: vec![queue],
        checks: vec![CheckRow { name: HOSTILE.to_owned(), failure: Some(HOSTILE.to_owned()) }],
        calls: CallTable { seconds: Some(240), rows: vec![call] },
    }
}

#[test]
fn what_others_wrote_is_text_wherever_it_stands() {
    let options = PageOptions { filter: HOSTILE.to_owned(), keep: true };
    let id = format!("other://{HOSTILE}");
    let mut page = page(options, vec![node(HOSTILE, Some(&id))]);
    if let Some(objects) = page.objects.as_mut().ok().and_then(Arc::get_mut) {
        objects.add_routes(routes(1));
        assert_eq!(objects.waiting.shown.len(), 1, "{objects:?}");
        objects.services.push(
            ServiceRow {
                link: Link { text: HOSTILE.to_owned(), path: HOSTILE.to_owned() },
                key: HOSTILE.to_owned(),
                ingress: HOSTILE.to_owned(),
                backends: String::new(),
                action: "wait",
                causes: Vec::new(),
            },
            true,
        );
    }
    let html = render(&page);
    assert!(!html.contains("<script"), "{html}");
    // Title twice, node, provider ID, message, route, Service twice, queue, call, check twice,
    // filter.
    let escaped = html.matches("&lt;script&gt;alert").count();
    assert!(escaped >= 13, "{escaped} times in {html}");
    assert!(!html.contains("'x')</"), "{html}");
    // No attribute ends early: the quotation mark never stands for itself before the ampersand.
    assert!(!html.contains("\"&\"") && html.contains("&quot;&amp;"), "{html}");
    page.objects = Err(HOSTILE.to_owned());
    assert!(!render(&page).contains("<script"));
}

#[test]
fn nothing_is_loaded_but_the_style_sheet() {
    let html = render(&page(options(""), vec![node("a", None)]));
    let attributes = ["href=\"", "src=\"", "action=\"", "content=\""];
    let mut targets = BTreeSet::new();
    for attribute in attributes {
        targets.extend(
            html.split(attribute)
                .skip(1)
                .filter_map(|rest| rest.split('"').next()),
        );
    }
    let outside: Vec<_> = targets
        .iter()
        .filter(|target| target.contains("//") || target.starts_with('/'))
        .collect();
    assert!(outside.is_empty(), "{outside:?}");
    assert!(targets.contains("style.css") && targets.contains("nodes/a?format=text"));
    for tag in ["<script", "<img", "<iframe", " style=", " onclick="] {
        assert!(!html.contains(tag), "{tag} in {html}");
    }
    assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
}

#[test]
fn sections_can_be_reached_and_tables_have_captions_and_headers() {
    let mut page = page(options(""), vec![node("a", None)]);
    if let Some(objects) = page.objects.as_mut().ok().and_then(Arc::get_mut) {
        objects.add_routes(routes(0));
    }
    let html = render(&page);
    assert!(html.starts_with("<!DOCTYPE html><html lang=\"en\">"), "{html}");
    let ids: Vec<_> = html
        .split(" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let unique: BTreeSet<_> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
    for rest in html.split("href=\"#").skip(1) {
        let id = rest.split('"').next().unwrap();
        assert!(unique.contains(id), "#{id} leads nowhere");
    }
    let tables = html.matches("<table>").count();
    assert_eq!((tables, html.matches("<caption>").count()), (4, tables));
    assert_eq!(html.matches("<th>").count(), 0, "a header without a scope");
    assert_eq!(html.matches("<label for=\"filter\"").count(), 1);
}

#[test]
fn refreshing_can_be_stopped_and_keeps_the_filter() {
    let with = |keep| PageOptions { filter: "a b&c".to_owned(), keep };
    let on = render(&page(with(false), Vec::new()));
    assert!(on.contains("<meta http-equiv=\"refresh\" content=\"30\">"), "{on}");
    assert!(on.contains("href=\"?refresh=off&amp;filter=a%20b%26c\">Stop refreshing"), "{on}");
    let off = render(&page(with(true), Vec::new()));
    assert!(!off.contains("http-equiv"), "{off}");
    assert!(off.contains("href=\"?refresh=on&amp;filter=a%20b%26c\""), "{off}");
    assert!(off.contains("type=\"hidden\" name=\"refresh\" value=\"off\""), "{off}");
}

#[test]
fn hundreds_of_nodes_are_counted_and_those_with_a_cause_come_first() {
    let mut nodes: Vec<_> = (0..300).map(|n| node(&format!("n{n:03}"), None)).collect();
    nodes.push(node("zz", Some("other://1")));
    let html = render(&page(options(""), nodes.clone()));
    assert_eq!(html.matches("href=\"nodes/n").count(), MAX_ROWS - 1, "{html}");
    assert!(html.contains("… and 201 more. The filter finds them."), "{html}");
    let first = html.split("<th scope=\"row\">").nth(1).unwrap();
    assert!(first.starts_with("<a href=\"nodes/zz?format=text\">zz</a>"), "{first}");
    // By name, and by cause.
    let html = render(&page(options("n299"), nodes.clone()));
    assert!(html.contains("1 of 301 pass the filter.") && !html.contains("… and"), "{html}");
    assert!(!html.contains("Nothing is wrong"), "the filter hides a cause: {html}");
    let html = render(&page(options("anotherprovider"), nodes));
    assert!(html.contains("href=\"nodes/zz") && !html.contains("href=\"nodes/n"), "{html}");
}

#[test]
fn an_empty_cluster_and_a_process_that_does_not_lead_say_so() {
    let mut page = page(options(""), Vec::new());
    page.queues.clear();
    page.calls.rows.clear();
    let html = render(&page);
    for text in [
        "Nothing is wrong as far as this manager knows.",
        "There are no nodes.",
        "There are no Services of type LoadBalancer",
        "No controller with a queue runs here.",
        "This process has not called the cloud yet.",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    page.objects = Err("the Lease names the leader".to_owned());
    let html = render(&page);
    assert!(html.contains("the Lease names the leader") && !html.contains("id=\"nodes\""));
}

#[test]
fn figures_of_queues_calls_and_long_lists_of_routes_are_shown() {
    let mut page = page(options(""), Vec::new());
    if let Some(objects) = page.objects.as_mut().ok().and_then(Arc::get_mut) {
        objects.add_routes(routes(MAX_ROWS + 7));
    }
    let html = render(&page);
    let cells = |cells: &[&str]| {
        let cells = cells.iter();
        let cells: Vec<_> = cells
            .map(|cell| format!("<td class=\"number\">{cell}</td>"))
            .collect();
        cells.concat()
    };
    assert!(html.contains(&cells(&["2", "1.2", "3", "4"])), "{html}");
    assert!(html.contains(&cells(&["4", "1", "0.50", "4", "1"])), "{html}");
    assert!(
        html.contains("Calls of the cloud in the last 4 minutes, and since the start")
            && html.contains("… and 7 more"),
        "{html}"
    );
    page.calls.seconds = None;
    assert!(render(&page).contains("Calls of the cloud since the start"));
}
