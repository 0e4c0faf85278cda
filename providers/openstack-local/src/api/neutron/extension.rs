use serde::{Deserialize, Serialize};

use super::{Link, envelopes};
use crate::api::lenient::or_default;

/// Something the service offers beyond its core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// Name for programs, such as `extraroute-atomic`.
    pub alias: String,
    /// Name for people.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Description of the extension.
    #[serde(default, deserialize_with = "or_default")]
    pub description: String,
    /// Time of the last change.
    #[serde(default, deserialize_with = "or_default")]
    pub updated: String,
    /// Always empty.
    #[serde(default, deserialize_with = "or_default")]
    pub links: Vec<Link>,
}

envelopes!(ExtensionEnvelope, extension: Extension, Extensions, extensions, extensions_links);
