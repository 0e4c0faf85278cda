//! Label and field selectors of the embedded API server.

use std::{collections::BTreeMap, fmt::Write as _};

use ccm_testkit::apiserver::{
    parts::Selector,
    resources::{self, ResourceDef},
};
use serde_json::{Value, json};

use crate::input::{Input, text_of};

/// Words of selectors.
pub const WORDS: &[&str] = &[
    "app",
    "tier",
    "=",
    "==",
    "!=",
    "!",
    " in (",
    " notin (",
    "a,b",
    ")",
    "(",
    ",",
    " ",
    "metadata.name",
    "spec.type",
    "spec.unschedulable",
    "metadata.namespace",
    "\\,",
    "\\=",
    "\\\\",
    "\n",
];

const KEYS: &[&str] = &["app", "tier", "example.com/x", "in", "notin"];
const VALUES: &[&str] = &["", "a", "b", "c.d-e_f"];
const FIELDS: &[&str] = &["metadata.name", "metadata.namespace", "spec.type", "spec.clusterIP"];
const TEXTS: &[&str] = &["", "web", "ns", "LoadBalancer", "a,b", "a=b", "a\\b", "!=", "10.0.0.1"];

/// Reads the bytes as a selector, of labels up to the first line end and of fields behind it; and
/// draws one of them.
pub fn run(data: &[u8]) {
    let def = resources::find("", "v1", "services").expect("it is served");
    let text = text_of(data);
    let (labels, fields) = text.split_once('\n').unwrap_or((&text, ""));
    if let Ok(selector) = Selector::parse(def, labels, fields) {
        same_when_written(def, &selector);
    }
    drawn(def, &mut Input::new(data));
}

/// What is written is read again as the same.
fn same_when_written(def: &'static ResourceDef, selector: &Selector) {
    let (labels, fields) = selector.texts();
    assert_eq!(
        Selector::parse(def, &labels, &fields).as_ref(),
        Ok(selector),
        "{labels:?} {fields:?}"
    );
}

/// One demand of a label, and whether it is met.
enum Demand {
    In(Vec<&'static str>),
    NotIn(Vec<&'static str>),
    Exists,
    Absent,
}

/// A selector that is known for what it is means what it says.
fn drawn(def: &'static ResourceDef, input: &mut Input<'_>) {
    let labels: BTreeMap<&str, &str> = input
        .list(3, |input| (input.pick(KEYS), input.pick(VALUES)))
        .into_iter()
        .collect();
    let (name, namespace, kind, ip) =
        (input.pick(TEXTS), input.pick(TEXTS), input.pick(TEXTS), input.pick(TEXTS));
    let object = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"type": kind, "clusterIP": ip},
    });
    let demands = input.list(3, |input| (static_pick(input, KEYS), demand(input)));
    let fields = input
        .list(2, |input| (static_pick(input, FIELDS), static_pick(input, TEXTS), input.one_in(3)));
    let label_text: Vec<String> = demands
        .iter()
        .map(|(key, demand)| written(input, key, demand))
        .collect();
    let field_text: Vec<String> = fields
        .iter()
        .map(|(field, value, negated)| {
            let operator = if *negated {
                "!="
            } else {
                input.pick(&["=", "=="])
            };
            let value = value
                .replace('\\', "\\\\")
                .replace(',', "\\,")
                .replace('=', "\\=");
            format!("{field}{operator}{value}")
        })
        .collect();
    let (label_text, field_text) =
        (label_text.join(input.pick(&[",", " , "])), field_text.join(","));
    let selector = Selector::parse(def, &label_text, &field_text);
    let selector =
        selector.unwrap_or_else(|error| panic!("{label_text:?} {field_text:?}: {error}"));
    same_when_written(def, &selector);
    let by_label = demands
        .iter()
        .all(|(key, demand)| is_met(demand, labels.get(key).copied()));
    let by_field = fields
        .iter()
        .all(|(field, value, negated)| (text_at(&object, field) == *value) != *negated);
    assert_eq!(
        selector.matches(def, &object),
        by_label && by_field,
        "{label_text:?} {field_text:?} of {object}"
    );
}

fn static_pick(input: &mut Input<'_>, of: &[&'static str]) -> &'static str {
    of[input.up_to(of.len() - 1)]
}

fn demand(input: &mut Input<'_>) -> Demand {
    let mut values = || {
        let mut values = vec![static_pick(input, VALUES)];
        values.extend(input.list(2, |input| static_pick(input, VALUES)));
        values
    };
    let values = values();
    match input.up_to(3) {
        0 => Demand::In(values),
        1 => Demand::NotIn(values),
        2 => Demand::Exists,
        _ => Demand::Absent,
    }
}

fn is_met(demand: &Demand, value: Option<&str>) -> bool {
    match demand {
        Demand::In(values) => value.is_some_and(|value| values.contains(&value)),
        Demand::NotIn(values) => value.is_none_or(|value| !values.contains(&value)),
        Demand::Exists => value.is_some(),
        Demand::Absent => value.is_none(),
    }
}

/// Writes a demand in one of its ways.
fn written(input: &mut Input<'_>, key: &str, demand: &Demand) -> String {
    let mut text = String::new();
    let _ = match demand {
        Demand::In(values) if values.len() == 1 && input.one_in(2) => {
            write!(text, "{key}{}{}", input.pick(&["=", "==", " = "]), values[0])
        }
        Demand::NotIn(values) if values.len() == 1 && input.one_in(2) => {
            write!(text, "{key}!={}", values[0])
        }
        Demand::In(values) => write!(text, "{key} in ({})", values.join(input.pick(&[",", ", "]))),
        Demand::NotIn(values) => write!(text, "{key} notin ({})", values.join(",")),
        Demand::Exists => write!(text, "{key}"),
        Demand::Absent => write!(text, "!{key}"),
    };
    text
}

fn text_at<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .pointer(&format!("/{}", field.replace('.', "/")))
        .and_then(Value::as_str)
        .unwrap_or_default()
}
