//! The table of all flags. Parsing, help, the reference page, the warnings and the test of defaults
//! are made from it.
//!
//! After a change, update the reference page with `CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core
//! reference_page`.

mod controllers;
mod generic;
mod global;
mod leader_election;
mod serving;

use std::fmt;

use super::Product;
use super::value::FlagTarget;

/// A flag: its name, where its value is stored, and its description.
#[derive(Clone, Copy)]
pub struct Flag {
    pub(super) name: &'static str,
    pub(super) short: Option<char>,
    pub(super) group: Group,
    pub(super) target: FlagTarget,
    pub(super) default: &'static str,
    pub(super) help: &'static str,
    pub(super) support: FlagSupport,
    pub(super) deprecated: Option<&'static str>,
}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flag")
            .field("name", &self.name)
            .field("default", &self.default)
            .finish_non_exhaustive()
    }
}

impl Flag {
    const fn new(
        name: &'static str,
        group: Group,
        target: FlagTarget,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            short: None,
            group,
            target,
            default,
            help,
            support: FlagSupport::Supported,
            deprecated: None,
        }
    }

    /// Creates a provider's own flag with a value. Its text is in
    /// [`Config::extra`](super::Config::extra).
    #[must_use]
    pub const fn provider(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::new(name, Group::Provider, FlagTarget::Extra { switch: false }, default, help)
    }

    /// Creates a provider's own flag that is on or off, off by default: `true` or `false` in
    /// [`Config::extra`](super::Config::extra).
    #[must_use]
    pub const fn provider_switch(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Group::Provider, FlagTarget::Extra { switch: true }, "false", help)
    }

    /// Like [`provider_switch`](Self::provider_switch), but on by default.
    #[must_use]
    pub const fn provider_switch_on(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Group::Provider, FlagTarget::Extra { switch: true }, "true", help)
    }

    /// Creates a provider's own flag that may be repeated, each time with one value. Its texts are
    /// in [`Config::extra_lists`](super::Config::extra_lists).
    #[must_use]
    pub const fn provider_list(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Group::Provider, FlagTarget::ExtraList, "", help)
    }

    const fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    /// Marks the flag as permanently without effect, and says why.
    const fn without_effect(mut self, reason: &'static str) -> Self {
        self.support = FlagSupport::NoEffect(reason);
        self
    }

    const fn deprecated(mut self, advice: &'static str) -> Self {
        self.deprecated = Some(advice);
        self
    }

    /// Returns the name without leading dashes.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// Creates a flag of upstream's generic group, to which flags of several files belong.
const fn generic(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, Group::Generic, target, default, help)
}

/// The effect of setting a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagSupport {
    /// It has an effect.
    Supported,
    /// It never has an effect, for this reason.
    NoEffect(&'static str),
}

/// The groups of flags, in the order in which help shows them. Names are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    Generic,
    LeaderMigration,
    Debugging,
    CloudNode,
    CloudNodeLifecycle,
    ServiceLb,
    NodeIpam,
    Orphans,
    Shadow,
    SecureServing,
    Authentication,
    Authorization,
    Webhook,
    WebhookServing,
    Provider,
    Misc,
    Global,
}

impl Group {
    pub(super) const ALL: [Self; 17] = [
        Self::Generic,
        Self::LeaderMigration,
        Self::Debugging,
        Self::CloudNode,
        Self::CloudNodeLifecycle,
        Self::ServiceLb,
        Self::NodeIpam,
        Self::Orphans,
        Self::Shadow,
        Self::SecureServing,
        Self::Authentication,
        Self::Authorization,
        Self::Webhook,
        Self::WebhookServing,
        Self::Provider,
        Self::Misc,
        Self::Global,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Generic => "Generic",
            Self::LeaderMigration => "Leader-migration",
            Self::Debugging => "Debugging",
            Self::CloudNode => "Cloud-node-controller",
            Self::CloudNodeLifecycle => "Cloud-node-lifecycle-controller",
            Self::ServiceLb => "Service-lb-controller",
            Self::NodeIpam => "Node-ipam-controller",
            Self::Orphans => "Orphans",
            Self::Shadow => "Shadow",
            Self::SecureServing => "Secure serving",
            Self::Authentication => "Authentication",
            Self::Authorization => "Authorization",
            Self::Webhook => "Webhook",
            Self::WebhookServing => "Webhook serving",
            Self::Provider => "Provider",
            Self::Misc => "Misc",
            Self::Global => "Global",
        }
    }
}

/// Returns all flags of a product: the framework's, then the provider's own.
pub(super) fn all<'a>(product: &'a Product) -> impl Iterator<Item = &'a Flag> + Clone + 'a {
    framework().map(|flag| -> &'a Flag { flag }).chain(
        product
            .extra_flags
            .iter()
            .filter(|extra| framework().all(|own| own.name != extra.name)),
    )
}

fn framework() -> impl Iterator<Item = &'static Flag> + Clone {
    generic::GENERIC
        .iter()
        .chain(leader_election::LEADER_ELECTION)
        .chain(controllers::ORPHANS)
        .chain(generic::SHADOW)
        .chain(controllers::CONTROLLERS)
        .chain(generic::API_SERVER)
        .chain(serving::SECURE_SERVING)
        .chain(serving::DELEGATED_AUTH)
        .chain(serving::WEBHOOK)
        .chain(global::GLOBAL)
}
