//! The page `docs/reference/metrics.md`, made from what the parts register.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use prometheus::{
    Registry,
    proto::{Bucket, Metric, MetricFamily, MetricType},
};

use super::process::{register_build_info, register_process};
use crate::{
    config::controller_names as names,
    controllers::{
        node::metrics::NodeMetrics, node_ipam::metrics::NodeIpamMetrics,
        node_lifecycle::metrics::LifecycleMetrics, orphans::metrics::OrphanMetrics,
        route::metrics::RouteMetrics, service::metrics::ServiceMetrics,
    },
    manager,
    provider::call_metrics::{CloudMetrics, MutationMetrics},
    runtime::{
        api::ApiMetrics,
        events::EventMetrics,
        health::{CheckKind, Health},
        leader_election::LeaderElectionMetrics,
        reflector::CacheMetrics,
        serving::auth::metrics::AuthMetrics,
        work_queue::WorkQueue,
    },
    telemetry::controller_metrics::ControllerMetrics,
};

const INTRODUCTION: &str = "\
# Metrics

<!-- Made by a test: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core reference_page -->

What `/metrics` shows. Families whose name begins with `ccm_` are this project's own; all others have the name, type,
labels and buckets of Go's framework, so that dashboards and alerts for it go on working. No label holds the name of an
object, an ID or an error text. A label's values are listed where they are known; all of them are there from the start,
at zero.
";

/// Labels whose values depend on the installation.
const OPEN: &[&str] =
    &["host", "code", "clusterCIDR", "major", "minor", "git_version", "git_commit", "platform"];

/// A heading, when its families are there, and what registers them. What is given back has to live
/// until they are read.
type Section = (&'static str, &'static str, fn(&Registry) -> prometheus::Result<Box<dyn Any>>);

fn keep<T: 'static>(value: T) -> Box<dyn Any> {
    Box::new(value)
}

const SECTIONS: &[Section] = &[
    ("Process", "Always there.", |registry| {
        register_build_info(registry, "v0.0", "unknown")?;
        register_process(registry)?;
        manager::register_own(registry)?;
        Ok(keep(()))
    }),
    ("Requests to the API server", "Always there.", |registry| {
        ApiMetrics::register(registry)?.init("kubernetes");
        Ok(keep(()))
    }),
    ("Leader election", "There with `--leader-elect`.", |registry| {
        LeaderElectionMetrics::register(registry)?.init("cloud-controller-manager");
        Ok(keep(()))
    }),
    ("Callers of the HTTPS server", "There with `--secure-port`.", |registry| {
        Ok(keep(AuthMetrics::register(registry)?))
    }),
    ("Events", "Always there.", |registry| Ok(keep(EventMetrics::register(registry)?))),
    (
        "Caches",
        "There in a process that leads; a resource when a controller needs it.",
        |registry| {
            let metrics = CacheMetrics::register(registry)?;
            for resource in ["nodes", "services", "endpointslices"] {
                metrics.init(resource);
            }
            Ok(keep(()))
        },
    ),
    (
        "Controllers and their queues",
        "There in a process that leads; a queue when its controller runs.",
        |registry| {
            let metrics = ControllerMetrics::register(registry)?;
            let queue = |name| WorkQueue::<u8>::named(name, &metrics.queues);
            Ok(keep(["Nodes", "Routes", "service", "cidrallocator_node"].map(queue)))
        },
    ),
    (
        "Health",
        "Always there; a name when its controller runs. Health checks are counted on a page of their own, `/metrics/slis`, as upstream.",
        |registry| {
            let health = Health::default();
            health.register(registry)?;
            Ok(keep(health.add(CheckKind::Progress, names::SERVICE_LB, || Ok(()))))
        },
    ),
    ("Calls of the cloud", "Always there.", |registry| {
        Ok(keep(CloudMetrics::register(registry)?))
    }),
    (
        "Changes of the cloud",
        "The operations are the provider's; `operation` stands for each. Every change leaves a log record as well: \
         [logging](logging.md#changes-of-the-cloud).",
        |registry| Ok(keep(MutationMetrics::register(registry, &["operation"])?)),
    ),
    ("Cloud-node controller", "There when it runs.", |registry| {
        Ok(keep(NodeMetrics::register(registry)?))
    }),
    ("Node-lifecycle controller", "There when it runs.", |registry| {
        Ok(keep(LifecycleMetrics::register(registry)?))
    }),
    ("Route controller", "There when it runs.", |registry| {
        Ok(keep(RouteMetrics::register(registry)?))
    }),
    ("Service controller", "There when it runs.", |registry| {
        Ok(keep(ServiceMetrics::register(registry)?))
    }),
    (
        "Orphans",
        "There when the service controller runs and the provider keeps an inventory.",
        |registry| Ok(keep(OrphanMetrics::register(registry)?)),
    ),
    ("Node-IPAM controller", "There when it runs.", |registry| {
        NodeIpamMetrics::register(registry)?.init("10.0.0.0/8");
        Ok(keep(()))
    }),
];

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (title, when, register) in SECTIONS {
        let registry = Registry::new();
        let _kept = register(&registry).unwrap();
        let _ = write!(page, "\n## {title}\n\n{when}\n\n");
        page += "| Name | Type | Labels | Buckets | Meaning | Upstream's |\n|---|---|---|---|---|---|\n";
        for family in registry.gather() {
            row(&mut page, &family);
        }
    }
    page
}

fn row(page: &mut String, family: &MetricFamily) {
    let name = family.name();
    let kind = match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::HISTOGRAM => "histogram",
        _ => "gauge",
    };
    let upstream = if name.starts_with("ccm_") {
        "no"
    } else {
        "yes"
    };
    let (labels, buckets, help) = (labels(family), buckets(family), family.help());
    let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {buckets} | {help} | {upstream} |");
}

fn labels(family: &MetricFamily) -> String {
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pair in family.get_metric().iter().flat_map(Metric::get_label) {
        labels.entry(pair.name()).or_default().insert(pair.value());
    }
    let is_lease = family.name().starts_with("leader_election_");
    let describe = |(name, values): (&str, BTreeSet<&str>)| {
        let values: Vec<String> = values
            .into_iter()
            .filter(|value| !value.is_empty())
            .map(|v| format!("`{v}`"))
            .collect();
        match OPEN.contains(&name)
            || is_lease
            || values.is_empty()
            || values == [format!("`{name}`")]
        {
            true => format!("`{name}`"),
            false => format!("`{name}`: {}", values.join(", ")),
        }
    };
    labels
        .into_iter()
        .map(describe)
        .collect::<Vec<_>>()
        .join("; ")
}

fn buckets(family: &MetricFamily) -> String {
    let Some(metric) = family
        .get_metric()
        .first()
        .filter(|_| family.get_field_type() == MetricType::HISTOGRAM)
    else {
        return String::new();
    };
    let bound = |bound: f64| {
        // Powers that were multiplied up are not exact.
        let bound: f64 = format!("{bound:.12e}").parse().unwrap();
        if bound < 0.001 {
            format!("{bound:e}")
        } else {
            bound.to_string()
        }
    };
    let bounds = metric
        .get_histogram()
        .get_bucket()
        .iter()
        .map(Bucket::upper_bound);
    bounds
        .filter(|bound| bound.is_finite())
        .map(bound)
        .collect::<Vec<_>>()
        .join(", ")
}

#[test]
fn reference_page_of_metrics_matches_what_is_registered() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
    let page = page();
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/metrics.md is out of date: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core reference_page"
    );
}

#[test]
fn every_family_is_documented_and_named_by_the_rules() {
    let mut seen = BTreeSet::new();
    for (title, _, register) in SECTIONS {
        let registry = Registry::new();
        let _kept = register(&registry).unwrap();
        for family in registry.gather() {
            let name = family.name().to_owned();
            assert!(!family.get_metric().is_empty(), "{name} shows nothing at the start");
            assert!(
                family.help().ends_with('.') || !name.starts_with("ccm_"),
                "{name}: {}",
                family.help()
            );
            let is_counter = family.get_field_type() == MetricType::COUNTER;
            // Upstream's exception.
            let is_named_so = name.ends_with("_total") || name == "authentication_attempts";
            assert!(is_counter == is_named_so, "{name} in {title}");
            assert!(!family.help().contains('|'), "{name} would break the table");
            assert!(seen.insert(name.clone()), "{name} twice");
        }
    }
    assert!(seen.len() > 60, "{seen:?}");
}
