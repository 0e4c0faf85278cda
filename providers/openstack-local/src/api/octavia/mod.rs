//! Load balancers (Octavia v2).
//!
//! A body is made of an envelope around a resource: [`LoadBalancerBody`] around [`LoadBalancer`],
//! [`LoadBalancerCreate`] or [`LoadBalancerUpdate`]. In an update, each field is a [`Patch`]: Octavia takes an explicit
//! null as "back to the default".

mod health_monitor;
mod listener;
mod load_balancer;
mod member;
mod other;
mod patch;
mod pool;
mod tree;
mod words;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::{
    health_monitor::*, listener::*, load_balancer::*, member::*, other::*, patch::Patch, pool::*,
    tree::*, words::*,
};

/// Reference to a resource by its identifier.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IdRef {
    /// Identifier.
    pub id: String,
}

impl<T: Into<String>> From<T> for IdRef {
    fn from(id: T) -> Self {
        Self { id: id.into() }
    }
}

/// Link of a page or of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Address, absolute.
    pub href: String,
    /// Relation of the target: `next`, `previous` or `self`.
    pub rel: String,
}

/// Body of every error of Octavia.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fault {
    /// Who is at fault: `Client` (4xx) or `Server` (5xx).
    pub faultcode: String,
    /// Message for a person.
    pub faultstring: String,
    /// Trace of a server that is being debugged.
    pub debuginfo: Option<String>,
}

/// Reads null like an absent field.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Makes the envelope of a resource, and its page.
macro_rules! envelopes {
    ($one:ident: $body:ident, $many:ident: $page:ident, $links:ident of $resource:ty) => {
        /// Body with one resource: as answered, to create, or to change.
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $body<T = $resource> {
            /// The resource.
            pub $one: T,
        }

        /// Page of a list.
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $page {
            /// Resources.
            pub $many: Vec<$resource>,
            /// Links to the next page, if this one is full, and to the previous one.
            #[serde(default)]
            pub $links: Vec<$crate::api::octavia::Link>,
        }
    };
}
use envelopes;

#[cfg(test)]
mod tests;
