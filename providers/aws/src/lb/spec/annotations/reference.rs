//! Generates the reference page of annotations from the table.

use std::fmt::Write as _;

use super::{ALL, Annotation, Origin, PREFIX, Section, ValueKind};

/// Generates the page, in Markdown.
pub fn reference() -> String {
    let mut page = format!(
        "# Annotations of Services on AWS\n\n\
         <!-- Made by a test: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-aws reference_page -->\n\n\
         What a Service of type LoadBalancer may say. Names begin with `{PREFIX}` unless a whole key is given. All mistakes \
         of a Service are told in one event, and it is left as it is until they are mended. An empty value counts as none.\n\n\
         Each Service is read in one of two dialects. `upstream`, the default, reads what upstream's manager reads on network \
         load balancers, in the same way; a Warning event names what it ignores. `extended` reads everything. \
         `AnnotationDialect` of [cloud.conf](aws-cloud-conf.md) chooses for the cluster, the annotation `annotation-dialect` for \
         one Service. [AWS](../providers/aws.md) says what changes with the dialect.\n\n\
         Origin: CCM is kubernetes/cloud-provider-aws (for network load balancers, or for classic ones), LBC is the AWS \
         load balancer controller.\n\n\
         Kinds: a bool is one of `1`, `t`, `T`, `true`, `True`, `TRUE` and their opposites. A list has commas; spaces around \
         entries and empty entries do not count. Key-values are `k=v,k=v`, where a missing `=` means no value. A map is \
         `k=v,k=v` where every entry needs its `=`, and `\\,` is a comma in a value.\n"
    );
    for section in Section::ALL {
        let _ = write!(page, "\n## {}\n\n", section.title());
        let rows = ALL.iter().filter(|row| row.section == section);
        if section == Section::WithoutEffect {
            let _ = write!(
                page,
                "One Normal event names those that a Service has, together with unknown ones that begin with the same prefix.\
                 \n\n| Annotation | Kind | Origin | Why |\n|---|---|---|---|\n"
            );
            for row in rows {
                let reason = row.without_effect.unwrap_or_default();
                let _ = writeln!(
                    page,
                    "| {} | {} | {} | {reason} |",
                    name(row),
                    kind(row),
                    row.from.title()
                );
            }
        } else {
            page.push_str(
                "| Annotation | Kind | Default | Origin | Dialect `extended` | Dialect `upstream` |\n|---|---|---|---|---|---|\n",
            );
            for row in rows.clone() {
                effect_row(&mut page, row);
            }
            errors_table(&mut page, rows.copied());
        }
    }
    page
}

fn effect_row(page: &mut String, row: &Annotation) {
    let _ = writeln!(
        page,
        "| {} | {} | {} | {} | {} | {} |",
        name(row),
        kind(row),
        row.default,
        row.from.title(),
        row.effect.replace('|', "\\|"),
        upstream_reading(row)
    );
}

/// Returns how the dialect `upstream` reads an annotation.
fn upstream_reading(row: &Annotation) -> &str {
    if row.is_unknown_upstream() {
        "ignored"
    } else if row.upstream.is_empty() {
        "the same"
    } else {
        row.upstream
    }
}

fn errors_table<'a>(page: &mut String, rows: impl Iterator<Item = &'a Annotation>) {
    let mut list = String::new();
    for row in rows {
        let texts: Vec<String> = row
            .error_texts()
            .iter()
            .map(|text| format!("`{text}`"))
            .collect();
        if !texts.is_empty() {
            let _ = writeln!(list, "- {}: {}", name(row), texts.join("; "));
        }
    }
    if !list.is_empty() {
        let _ = write!(page, "\nMistakes, as the event says them:\n\n{list}");
    }
}

fn name(row: &Annotation) -> String {
    format!("`{}{}`", row.name, row.port)
}

fn kind(row: &Annotation) -> String {
    let kind = match row.kind {
        ValueKind::Text | ValueKind::Flag => "text".to_owned(),
        ValueKind::Bool => "bool".to_owned(),
        ValueKind::Integer => "number".to_owned(),
        ValueKind::List => "list".to_owned(),
        ValueKind::KeyValues => "key-values".to_owned(),
        ValueKind::Map => "map".to_owned(),
        ValueKind::OneOf(values) => values
            .iter()
            .map(|value| format!("`{value}`"))
            .collect::<Vec<_>>()
            .join(", "),
    };
    if row.unit.is_empty() {
        kind
    } else {
        format!("{kind}: {}", row.unit)
    }
}

impl Section {
    const ALL: [Self; 8] = [
        Self::General,
        Self::Addresses,
        Self::Security,
        Self::Listeners,
        Self::Targets,
        Self::Health,
        Self::Attributes,
        Self::WithoutEffect,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::General => "General",
            Self::Addresses => "Subnets and addresses",
            Self::Security => "Who may connect",
            Self::Listeners => "Listeners",
            Self::Targets => "Target groups",
            Self::Health => "Health checks",
            Self::Attributes => "Attributes of the load balancer",
            Self::WithoutEffect => "Without effect here",
        }
    }
}

impl Origin {
    fn title(self) -> &'static str {
        match self {
            Self::Classic => "CCM, classic",
            Self::Lbc => "LBC",
            Self::Both => "CCM, LBC",
            Self::Ours => "here",
        }
    }
}
