//! Log lines in JSON, with the keys of Go's JSON logger (`k8s.io/component-base/logs/json` v0.37),
//! so that programs that read a Go program's logs can read these.
//!
//! | key | meaning |
//! |---|---|
//! | `ts` | milliseconds since 1970, with a fraction |
//! | `level` | `error`, `warn`, `info`, `debug` or `trace`; Go's logger has no such key and does not distinguish warnings |
//! | `logger` | name of the current controller, absent elsewhere |
//! | `caller` | file (its folder and name) and line |
//! | `msg` | the message |
//! | `v` | verbosity from which on the line is shown: 0, 4 (debug) or 6 (trace); absent from errors |
//! | `err` | the error, with its causes |
//!
//! All other values follow under their own names, those of the current spans first. A value whose
//! name is one of the keys above is written as `fields.<name>`.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Write as _},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    registry::LookupSpan,
};

const KEYS: &[&str] = &["ts", "level", "logger", "caller", "msg", "v", "err"];

/// Log format that writes one JSON object per event.
#[derive(Clone, Copy, Debug)]
pub struct JsonLines {
    now: fn() -> SystemTime,
}

impl Default for JsonLines {
    fn default() -> Self {
        Self::new()
    }
}

impl JsonLines {
    /// Creates a format that uses the wall clock.
    pub fn new() -> Self {
        Self { now: SystemTime::now }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line::default();
        for span in context
            .event_scope()
            .into_iter()
            .flat_map(tracing_subscriber::registry::Scope::from_root)
        {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                // Written by `JsonFields`, so it is always an object.
                let fields: BTreeMap<String, Value> =
                    serde_json::from_str(&fields.fields).unwrap_or_default();
                for (name, value) in fields {
                    line.put(&name, value);
                }
            }
        }
        event.record(&mut line);
        let text = line
            .write((self.now)(), event.metadata())
            .map_err(|_| fmt::Error)?;
        writeln!(to, "{text}")
    }
}

/// Contents of one line.
#[derive(Default)]
struct Line {
    message: String,
    logger: Option<Value>,
    error: Option<Value>,
    /// In the order in which they were added; a later value of the same name replaces an earlier
    /// one.
    fields: Vec<(String, Value)>,
}

impl Line {
    fn put(&mut self, name: &str, value: Value) {
        match name {
            "error" => self.error = Some(value),
            "controller" => self.logger = Some(value),
            _ => {
                let name = if KEYS.contains(&name) {
                    format!("fields.{name}")
                } else {
                    name.to_owned()
                };
                match self.fields.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = value,
                    None => self.fields.push((name, value)),
                }
            }
        }
    }

    fn write(&self, now: SystemTime, metadata: &Metadata<'_>) -> serde_json::Result<String> {
        let mut text = Vec::with_capacity(256);
        let mut json = serde_json::Serializer::new(&mut text);
        let mut map = json.serialize_map(None)?;
        // A float as in Go: its 53 bits give a resolution of a quarter of a microsecond in this
        // century.
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        map.serialize_entry("ts", &(since.as_nanos() as f64 / 1e6))?;
        map.serialize_entry("level", level_name(*metadata.level()))?;
        if let Some(logger) = &self.logger {
            map.serialize_entry("logger", logger)?;
        }
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            map.serialize_entry("caller", &format!("{}:{line}", short(file)))?;
        }
        map.serialize_entry("msg", &self.message)?;
        if let Some(v) = verbosity(*metadata.level()) {
            map.serialize_entry("v", &v)?;
        }
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        if let Some(error) = &self.error {
            map.serialize_entry("err", error)?;
        }
        map.end()?;
        // The serializer writes only UTF-8.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message.clear();
            // Writing to a string cannot fail.
            let _ = write!(self.message, "{value:?}");
        } else {
            self.put(field.name(), Value::String(format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => self.put(name, value.into()),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value.into());
    }
}

/// Returns the last two parts of a path, as Go's loggers show callers.
fn short(file: &str) -> &str {
    let mut slashes = file.rmatch_indices('/').map(|(at, _)| at);
    slashes.nth(1).map_or(file, |at| &file[at + 1..])
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// Returns the verbosity from which on the level is shown ([`logging`](super::logging)).
fn verbosity(level: Level) -> Option<u32> {
    match level {
        Level::ERROR => None,
        Level::WARN | Level::INFO => Some(0),
        Level::DEBUG => Some(4),
        Level::TRACE => Some(6),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing_subscriber::{fmt::format::JsonFields, layer::SubscriberExt as _};

    use super::*;
    use crate::telemetry::log_capture::LogCapture;

    fn lines(say: impl FnOnce()) -> Vec<String> {
        let buffer = LogCapture::default();
        let writer = buffer.clone();
        let format = JsonLines {
            now: || UNIX_EPOCH + Duration::from_nanos(1_580_306_777_047_280_000),
        };
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .fmt_fields(JsonFields::new())
            .event_format(format);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), say);
        buffer.text().lines().map(str::to_owned).collect()
    }

    #[test]
    fn keys_and_their_order_are_those_of_gos_logger() {
        let line = line!() + 2;
        let said = lines(|| {
            tracing::info!(ns = "default", podnum = 2, "test");
            tracing::error!(ns = "default", error = "invalid namespace", "wrong \"namespace\"");
            tracing::debug!(took = ?Duration::from_secs(5), "detail");
        });
        assert_eq!(
            said,
            [
                format!(
                    r#"{{"ts":1580306777047.28,"level":"info","caller":"telemetry/json.rs:{line}","msg":"test","v":0,"ns":"default","podnum":2}}"#
                ),
                format!(
                    r#"{{"ts":1580306777047.28,"level":"error","caller":"telemetry/json.rs:{}","msg":"wrong \"namespace\"","ns":"default","err":"invalid namespace"}}"#,
                    line + 1
                ),
                format!(
                    r#"{{"ts":1580306777047.28,"level":"debug","caller":"telemetry/json.rs:{}","msg":"detail","v":4,"took":"5s"}}"#,
                    line + 2
                ),
            ]
        );
    }

    #[test]
    fn spans_lend_their_values_and_the_controller_is_the_logger() {
        let said = lines(|| {
            let outer =
                tracing::info_span!("reconcile", controller = "cloud-node", node = "n1", v = 7);
            let _outer = outer.enter();
            let inner = tracing::info_span!("call", operation = "describe", node = "n2");
            let _inner = inner.enter();
            tracing::warn!(operation = "list", f = f64::NAN, "slow");
        });
        let line: Value = serde_json::from_str(&said[0]).unwrap();
        for (key, value) in [
            ("logger", Value::from("cloud-node")),
            ("node", "n2".into()),
            ("operation", "list".into()),
            ("fields.v", 7.into()),
            ("v", 0.into()),
            ("level", "warn".into()),
            ("f", Value::Null),
        ] {
            assert_eq!(line[key], value, "{key}: {line}");
        }
        assert_eq!(said[0].matches("\"node\"").count(), 1, "{}", said[0]);
        assert!(line.get("controller").is_none());
    }

    #[test]
    fn callers_are_a_folder_and_a_file() {
        for (path, shown) in
            [("a/b/c.rs", "b/c.rs"), ("b/c.rs", "b/c.rs"), ("c.rs", "c.rs"), ("", "")]
        {
            assert_eq!(short(path), shown);
        }
    }
}
