//! Filters of server lists.

use jiff::Timestamp;
use regex::Regex;
use serde_json::Value;

use super::{Microversion, ServerRow, quotas::admin_only, view::View};
use crate::{
    server::{Origin, list::Query},
    state::{ApiError, CloudState, RequestContext},
};

/// Attributes that may be sorted by. They are in the rows, but not shown.
pub(super) const SORT_KEYS: [&str; 10] = [
    "created_at",
    "updated_at",
    "display_name",
    "uuid",
    "vm_state",
    "project_id",
    "user_id",
    "availability_zone",
    "host",
    "instance_type_id",
];

/// Parameters with which a list includes servers whose cell does not answer.
const HARMLESS: [&str; 4] = ["deleted", "all_tenants", "project_id", "tenant_id"];

/// Returns the rows that pass the filters, with their sort attributes.
///
/// # Errors
/// A filter is invalid, or needs an administrator.
pub(super) fn rows(
    state: &CloudState,
    ctx: &RequestContext,
    version: Microversion,
    origin: &Origin,
    query: &Query,
    details: bool,
) -> Result<Vec<Value>, ApiError> {
    let filter = Filter::read(ctx, version, query)?;
    let view = View::new(state, ctx, version, origin);
    let mut rows = Vec::new();
    for row in state.nova.servers.iter() {
        let shown = if row.cell_down {
            if version < Microversion(69) || !filter.harmless || !filter.of_project(row) {
                continue;
            }
            view.partial(row, details)
        } else if filter.passes(row, &view) {
            if details {
                view.full(row)
            } else {
                view.short(row)
            }
        } else {
            continue;
        };
        let mut shown = serde_json::to_value(shown).map_err(|error| {
            ApiError::new(
                http::StatusCode::INTERNAL_SERVER_ERROR,
                "",
                format!("A server cannot be shown: {error}"),
            )
        })?;
        shown["created_at"] = row.created.to_string().into();
        shown["updated_at"] = row.updated.to_string().into();
        shown["display_name"] = row.name.clone().into();
        shown["uuid"] = row.id.clone().into();
        shown["vm_state"] = row.status.clone().into();
        shown["project_id"] = row.project.clone().into();
        shown["availability_zone"] = row.zone.clone().into();
        rows.push(shown);
    }
    Ok(rows)
}

/// The requested filters.
struct Filter {
    /// Project; `None` for all.
    project: Option<String>,
    name: Option<Regex>,
    addresses: Vec<(u8, Regex)>,
    statuses: Vec<String>,
    /// Values that must be equal, by attribute.
    equal: Vec<(&'static str, String)>,
    changed_since: Option<Timestamp>,
    tags: [Option<Vec<String>>; 4],
    /// True when servers in cells that do not answer are included.
    harmless: bool,
}

const EQUAL: [&str; 8] = [
    "flavor",
    "image",
    "availability_zone",
    "uuid",
    "user_id",
    "key_name",
    "locked",
    "description",
];
const TAGS: [&str; 4] = ["tags", "tags-any", "not-tags", "not-tags-any"];

impl Filter {
    fn read(ctx: &RequestContext, version: Microversion, query: &Query) -> Result<Self, ApiError> {
        // First, decide which projects are listed.
        let all = query.flag("all_tenants");
        if all {
            admin_only(ctx, "os_compute_api:servers:index:get_all_tenants")?;
        }
        let asked = query.get("project_id").or_else(|| query.get("tenant_id"));
        let project = match (all, asked) {
            (true, asked) => asked.map(str::to_owned),
            (false, _) => Some(ctx.project.to_string()),
        };
        // Then parse the filters.
        let regex = |name: &str| {
            let pattern = query.get(name).filter(|pattern| !pattern.is_empty());
            pattern.map(Regex::new).transpose().map_err(|_| {
                ApiError::bad_request(
                    "",
                    format!("Invalid filter {name}: not a regular expression"),
                )
            })
        };
        let mut addresses = Vec::new();
        for (version, name) in [(4, "ip"), (6, "ip6")] {
            addresses.extend(regex(name)?.map(|regex| (version, regex)));
        }
        let changed_since = query.get("changes-since").map(|time| {
            let with_zone = time
                .parse::<Timestamp>()
                .or_else(|_| format!("{time}Z").parse());
            with_zone.map_err(|_| {
                ApiError::bad_request(
                    "",
                    format!("Invalid filter changes-since: '{time}' is no time"),
                )
            })
        });
        let tags = TAGS.map(|name| {
            let asked = query.get(name).filter(|_| version >= Microversion(26));
            asked.map(|tags| tags.split(',').map(str::to_owned).collect())
        });
        Ok(Self {
            project,
            name: regex("name")?,
            addresses,
            statuses: query.all("status").map(str::to_uppercase).collect(),
            equal: EQUAL
                .iter()
                .filter_map(|name| Some((*name, query.get(name)?.to_owned())))
                .collect(),
            changed_since: changed_since.transpose()?,
            tags,
            harmless: query.pairs().all(|(name, _)| HARMLESS.contains(&name)),
        })
    }

    fn of_project(&self, row: &ServerRow) -> bool {
        self.project
            .as_ref()
            .is_none_or(|project| *project == row.project)
    }

    fn passes(&self, row: &ServerRow, view: &View<'_>) -> bool {
        self.of_project(row)
            && self
                .name
                .as_ref()
                .is_none_or(|name| name.is_match(&row.name))
            && (self.statuses.is_empty() || self.statuses.contains(&row.status))
            && self.changed_since.is_none_or(|since| row.updated >= since)
            && self
                .equal
                .iter()
                .all(|(name, value)| equals(row, name, value))
            && self.passes_tags(row)
            && self.addresses.iter().all(|(version, regex)| {
                let addresses = view.addresses(row);
                let mut addresses = addresses.values().flatten();
                addresses.any(|address| {
                    address.version == *version && regex.is_match(&address.addr.to_string())
                })
            })
    }

    fn passes_tags(&self, row: &ServerRow) -> bool {
        let has = |tag: &String| row.tags.contains(tag);
        let [all, any, not_all, not_any] = &self.tags;
        all.as_ref().is_none_or(|tags| tags.iter().all(has))
            && any.as_ref().is_none_or(|tags| tags.iter().any(has))
            && !not_all.as_ref().is_some_and(|tags| tags.iter().all(has))
            && !not_any.as_ref().is_some_and(|tags| tags.iter().any(has))
    }
}

fn equals(row: &ServerRow, name: &str, value: &str) -> bool {
    match name {
        "flavor" => row.flavor.id == value,
        "image" => row.image.as_deref() == Some(value),
        "availability_zone" => row.zone == value,
        "uuid" => row.id == value,
        "user_id" => row.user == value,
        "key_name" => row.key_name.as_deref() == Some(value),
        "locked" => row.lock.is_some() == matches!(value.to_lowercase().as_str(), "true" | "1"),
        "description" => row
            .description
            .as_deref()
            .is_some_and(|text| text.contains(value)),
        _ => true,
    }
}
