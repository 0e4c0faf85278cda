//! Which form of an answer the client accepts, and writing it in that form.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use super::clock::Clock;
use super::convert;
use super::defaulting;
use super::object::Object;
use super::request::RequestInfo;
use super::resources::ResourceDef;
use super::status::ApiError;
use super::table::{self, IncludeObject};

/// Media types that a `Status` of code 406 lists.
const PRODUCED: &str = "application/json";

/// Form of an object in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object itself.
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `Table`, with this much of each object.
    Table(IncludeObject),
}

/// Chooses the form from an `Accept` header.
///
/// # Errors
/// 406 when nothing acceptable can be produced; only JSON is. 400 for an unknown `includeObject`.
pub(crate) fn choose(accept: &str, info: &RequestInfo) -> Result<Form, ApiError> {
    if accept.trim().is_empty() {
        return Ok(Form::Full);
    }
    let mut clauses: Vec<(f32, &str)> = accept.split(',').map(|c| (quality(c), c.trim())).collect();
    clauses.sort_by(|a, b| b.0.total_cmp(&a.0));
    let form = clauses.into_iter().find_map(|(_, clause)| form(clause));
    let conversion = accept
        .split(',')
        .any(|clause| parameter(clause, "as").is_some());
    match form.ok_or_else(|| ApiError::not_acceptable(PRODUCED, conversion))? {
        Form::Table(_) => IncludeObject::parse(info.query("includeObject"))
            .map(Form::Table)
            .map_err(ApiError::bad_request),
        other => Ok(other),
    }
}

fn quality(clause: &str) -> f32 {
    parameter(clause, "q")
        .and_then(|q| q.parse().ok())
        .unwrap_or(1.0)
}

fn parameter<'a>(clause: &'a str, name: &str) -> Option<&'a str> {
    clause
        .split(';')
        .skip(1)
        .find_map(|p| p.trim().strip_prefix(name)?.strip_prefix('='))
}

fn form(clause: &str) -> Option<Form> {
    let media = clause.split(';').next()?.trim();
    if !["application/json", "application/*", "*/*"].contains(&media) {
        return None;
    }
    let meta = parameter(clause, "g").unwrap_or("meta.k8s.io") == "meta.k8s.io"
        && parameter(clause, "v").is_none_or(|v| v == "v1");
    match parameter(clause, "as") {
        None => Some(Form::Full),
        Some("Table") if meta => Some(Form::Table(IncludeObject::default())),
        Some("PartialObjectMetadata" | "PartialObjectMetadataList") if meta => Some(Form::Metadata),
        Some(_) => None,
    }
}

/// Writes objects, lists and watch events in the chosen form.
#[derive(Debug)]
pub(crate) struct Encoder {
    def: &'static ResourceDef,
    form: Form,
    clock: Clock,
    /// Tables after the first of a watch come without column definitions.
    columns_sent: bool,
}

impl Encoder {
    pub(crate) fn new(def: &'static ResourceDef, form: Form, clock: Clock) -> Self {
        Self { def, form, clock, columns_sent: false }
    }

    pub(crate) fn def(&self) -> &'static ResourceDef {
        self.def
    }

    /// Encodes an object.
    pub(crate) fn object(&self, object: &Object) -> Bytes {
        match self.form {
            Form::Full if convert::is_converted(self.def) => {
                Bytes::from(self.value(object).to_string())
            }
            Form::Full => object.json(),
            Form::Metadata => {
                Bytes::from(partial(&object.value(), "PartialObjectMetadata").to_string())
            }
            Form::Table(include) => {
                Bytes::from(self.table(&[self.value(object)], include).to_string())
            }
        }
    }

    fn value(&self, object: &Object) -> Value {
        convert::outgoing(self.def, object.value())
    }

    fn table(&self, objects: &[Value], include: IncludeObject) -> Value {
        table::to_table(self.def, objects, include, self.clock.now())
    }

    /// Encodes a watch event, with its line end.
    pub(crate) fn event(&mut self, kind: &str, object: &Object) -> Bytes {
        let Form::Table(include) = self.form else {
            return event_line(kind, &self.object(object));
        };
        let mut table = self.table(&[self.value(object)], include);
        if std::mem::replace(&mut self.columns_sent, true) {
            table::strip_columns(&mut table);
        }
        event_line(kind, table.to_string().as_bytes())
    }

    /// Encodes a BOOKMARK event.
    pub(crate) fn bookmark(&mut self, version: u64, annotations: Value) -> Bytes {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if !annotations.is_null() {
            metadata["annotations"] = annotations;
        }
        let mut object = json!({"kind": self.def.kind, "apiVersion": self.def.api_version(), "metadata": metadata});
        // What the type cannot leave out is there even in a bookmark.
        match self.def.kind {
            "Service" => {
                object["spec"] = json!({});
                object["status"] = json!({"loadBalancer": {}});
            }
            _ => defaulting::default(self.def, &mut object),
        }
        let object = match self.form {
            Form::Full => object,
            Form::Metadata => partial(&object, "PartialObjectMetadata"),
            Form::Table(include) => {
                let mut table = self.table(&[object], include);
                if std::mem::replace(&mut self.columns_sent, true) {
                    table::strip_columns(&mut table);
                }
                table
            }
        };
        event_line("BOOKMARK", object.to_string().as_bytes())
    }

    /// Encodes an ERROR event.
    pub(crate) fn error(error: &ApiError) -> Bytes {
        event_line("ERROR", error.to_value().to_string().as_bytes())
    }

    /// Encodes a list.
    pub(crate) fn list(&self, page: &super::read::Page) -> Bytes {
        let mut metadata = json!({"resourceVersion": page.version.to_string()});
        if let Some(token) = &page.continue_token {
            metadata["continue"] = json!(token);
        }
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
        let (kind, version) = match self.form {
            Form::Table(include) => {
                let objects: Vec<Value> = page.objects.iter().map(|o| self.value(o)).collect();
                let mut table = self.table(&objects, include);
                table["metadata"] = metadata;
                return Bytes::from(table.to_string());
            }
            Form::Full => (self.def.list_kind(), self.def.api_version()),
            Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        let head = format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
            json!(kind),
            json!(version)
        );
        let mut out = BytesMut::from(head.as_bytes());
        for (at, object) in page.objects.iter().enumerate() {
            if at > 0 {
                out.put_u8(b',');
            }
            match self.form {
                Form::Full if !convert::is_converted(self.def) => out.put(object.item().clone()),
                _ => out.put(self.object(object)),
            }
        }
        out.put_slice(b"]}");
        out.freeze()
    }
}

fn partial(object: &Value, kind: &str) -> Value {
    json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn event_line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(object.len() + 40);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
    out.freeze()
}
