//! Converts the configuration to the settings of each capability.

use crate::{
    config::Settings,
    instances::{InstanceSettings, addresses::AddressRules},
};

/// Builds the settings of instances.
pub(super) fn instance_settings(settings: &Settings) -> InstanceSettings {
    let networking = &settings.networking;
    InstanceSettings {
        region: settings.cloud.region.clone(),
        regional_ids: settings.regional_ids,
        addresses: AddressRules {
            no_ipv6: networking.ipv6_disabled,
            public: to_strings(&networking.public_networks),
            internal: to_strings(&networking.internal_networks),
            sort_order: networking.sort_order.clone(),
        },
    }
}

fn to_strings(names: &[Box<str>]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}
