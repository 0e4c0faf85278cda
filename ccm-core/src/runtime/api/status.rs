//! The API server's `Status`, in both encodings.

use std::{borrow::Cow, time::Duration};

use prost::Message;
use serde::Deserialize;

use crate::{
    redact::redact_credentials,
    runtime::encoding::{Encoding, proto},
};

/// The server's description of an error (`meta/v1` Status), reduced to the fields that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub message: String,
    pub reason: String,
    pub code: Option<u16>,
    pub causes: Vec<Cause>,
    pub retry_after: Option<Duration>,
}

/// One reason why validation rejected an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// The path of the field, in the server's notation.
    pub field: String,
    /// The machine-readable reason, for example `FieldValueInvalid`.
    pub reason: String,
    /// The explanation for people.
    pub message: String,
}

impl Status {
    /// Decodes the body of an error response. If it is not a Status, its first 200 characters
    /// become the message.
    pub(crate) fn from_body(encoding: Encoding, body: &[u8]) -> Self {
        let parsed = match encoding {
            Encoding::Json => serde_json::from_slice::<StatusJson>(body)
                .ok()
                .map(Self::from),
            Encoding::Protobuf => proto::unwrap_unknown(body.to_vec().into())
                .ok()
                .and_then(|raw| proto::StatusProto::decode(raw).ok())
                .map(Self::from),
        };
        let status = parsed.unwrap_or_else(|| {
            let text = String::from_utf8_lossy(body);
            // Redact before truncating, because half a token would not be recognized.
            Self {
                message: redact_credentials(text.trim()).chars().take(200).collect(),
                ..Self::default()
            }
        });
        status.redact_credentials()
    }

    /// Redacts credentials that the server repeats in its messages.
    fn redact_credentials(mut self) -> Self {
        let messages = self
            .causes
            .iter_mut()
            .map(|cause| &mut cause.message)
            .chain([&mut self.message]);
        for message in messages {
            if let Cow::Owned(redacted) = redact_credentials(message) {
                *message = redacted;
            }
        }
        self
    }
}

/// A Status in JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct StatusJson {
    message: Option<String>,
    reason: Option<String>,
    code: Option<i32>,
    details: Option<DetailsJson>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DetailsJson {
    causes: Option<Vec<CauseJson>>,
    retry_after_seconds: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CauseJson {
    field: Option<String>,
    reason: Option<String>,
    message: Option<String>,
}

impl From<CauseJson> for Cause {
    fn from(json: CauseJson) -> Self {
        Self {
            field: json.field.unwrap_or_default(),
            reason: json.reason.unwrap_or_default(),
            message: json.message.unwrap_or_default(),
        }
    }
}

impl From<proto::StatusCauseProto> for Cause {
    fn from(proto: proto::StatusCauseProto) -> Self {
        Self {
            field: proto.field,
            reason: proto.reason,
            message: proto.message,
        }
    }
}

impl From<StatusJson> for Status {
    fn from(json: StatusJson) -> Self {
        let details = json.details.unwrap_or_default();
        Self {
            message: json.message.unwrap_or_default(),
            reason: json.reason.unwrap_or_default(),
            code: json.code.and_then(|c| u16::try_from(c).ok()),
            causes: details
                .causes
                .unwrap_or_default()
                .into_iter()
                .map(Cause::from)
                .collect(),
            retry_after: details.retry_after_seconds.and_then(seconds),
        }
    }
}

impl From<proto::StatusProto> for Status {
    fn from(proto: proto::StatusProto) -> Self {
        let details = proto.details.unwrap_or_default();
        Self {
            message: proto.message,
            reason: proto.reason,
            code: u16::try_from(proto.code).ok().filter(|c| *c != 0),
            causes: details.causes.into_iter().map(Cause::from).collect(),
            retry_after: seconds(details.retry_after_seconds),
        }
    }
}

fn seconds(n: i32) -> Option<Duration> {
    u64::try_from(n)
        .ok()
        .filter(|n| *n > 0)
        .map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_no_status_is_kept_as_message() {
        assert_eq!(
            Status::from_body(Encoding::Json, b"404 page not found\n").message,
            "404 page not found"
        );
        assert_eq!(Status::from_body(Encoding::Protobuf, b"oops").message, "oops");
    }

    #[test]
    fn credentials_that_a_server_repeats_are_left_out() {
        let body = br#"{"message":"refused GET / [authorization: Bearer abcDEF0123456789]",
            "details":{"causes":[{"message":"Bearer abcDEF0123456789"}]}}"#;
        let status = Status::from_body(Encoding::Json, body);
        assert_eq!(status.message, "refused GET / [authorization: Bearer …]");
        assert_eq!(status.causes[0].message, "Bearer …");
        // Also one that the limit of the length would cut in two.
        let page = format!("{} Bearer abcDEF0123456789", "x".repeat(180));
        assert!(
            !Status::from_body(Encoding::Json, page.as_bytes())
                .message
                .contains("abc")
        );
    }

    #[test]
    fn causes_and_waiting_time_are_read() {
        let body = br#"{"kind":"Status","message":"m","reason":"Invalid","code":422,
            "details":{"retryAfterSeconds":3,"causes":[{"reason":"R","message":"M","field":"F"}]}}"#;
        let status = Status::from_body(Encoding::Json, body);
        assert_eq!((status.code, status.retry_after), (Some(422), Some(Duration::from_secs(3))));
        assert_eq!(
            status.causes,
            [Cause { field: "F".into(), reason: "R".into(), message: "M".into() }]
        );
    }
}
