//! Compares a listener with its desired state.

use std::collections::BTreeSet;

use ipnet::IpNet;
use openstack_api::octavia::{ListenerUpdate, Patch};

use super::PlanInput;
use crate::{
    api::octavia::Listener,
    lb::{
        body::FORWARDED_FOR,
        model::{DesiredListener, ListenerProtocol, Timeouts},
        ownership::with_requested_tags,
    },
};

/// Octavia's defaults, for versions that do not show timeouts.
const DEFAULTS: Timeouts = Timeouts {
    client_data: 50_000,
    member_connect: 5_000,
    member_data: 50_000,
    tcp_inspect: 0,
};

/// Compares a listener with its desired state. Returns the update and the names of the fields that
/// differ, or `None` if nothing differs.
pub(super) fn diff_listener(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    observed: &Listener,
) -> Option<(ListenerUpdate, Vec<&'static str>)> {
    let mut update = ListenerUpdate::default();
    let mut fields = Vec::new();
    if input.features.tags {
        let own = input.ownership.with_own_tag(&observed.tags);
        let tags = with_requested_tags(own, &desired.tags);
        if tags != observed.tags {
            update.tags = Patch::Set(tags);
            fields.push("tags");
        }
    }
    if i64::from(desired.connection_limit) != observed.connection_limit {
        update.connection_limit = Patch::Set(desired.connection_limit.into());
        fields.push("connection limit");
    }
    update_insert_headers(desired, observed, &mut update, &mut fields);
    if let Some(container) = desired.tls_container.as_deref()
        && observed.default_tls_container_ref.as_deref() != Some(container)
    {
        update.default_tls_container_ref = Patch::Set(container.into());
        fields.push("certificate");
    }
    if let Some(timeouts) = &desired.timeouts {
        set_timeouts(timeouts, observed, &mut update, &mut fields);
    }
    if let Some(allowed) = &desired.allowed
        && !has_allowed_cidrs(observed, allowed)
    {
        update.allowed_cidrs = Patch::Set(allowed.iter().map(ToString::to_string).collect());
        fields.push("source ranges");
    }
    if fields.is_empty() {
        return None;
    }
    Some((update, fields))
}

/// Adds or removes the header `X-Forwarded-For`. Other headers stay.
fn update_insert_headers(
    desired: &DesiredListener,
    observed: &Listener,
    update: &mut ListenerUpdate,
    fields: &mut Vec<&'static str>,
) {
    let speaks_http =
        matches!(desired.protocol, ListenerProtocol::Http | ListenerProtocol::TerminatedHttps);
    // A listener that does not show its headers may have others, which an update would remove.
    let Some(headers) = &observed.insert_headers else {
        return;
    };
    let is_on = headers
        .get(FORWARDED_FOR)
        .is_some_and(|value| value == "true");
    if !speaks_http || is_on == desired.forwarded_for {
        return;
    }
    let mut headers = headers.clone();
    if desired.forwarded_for {
        headers.insert(FORWARDED_FOR.into(), "true".into());
    } else {
        headers.remove(FORWARDED_FOR);
    }
    update.insert_headers = Patch::Set(headers);
    fields.push("headers");
}

/// Sets the timeouts that differ.
fn set_timeouts(
    desired: &Timeouts,
    observed: &Listener,
    update: &mut ListenerUpdate,
    fields: &mut Vec<&'static str>,
) {
    let timeouts = [
        (
            desired.client_data,
            observed.timeout_client_data,
            DEFAULTS.client_data,
            &mut update.timeout_client_data,
        ),
        (
            desired.member_connect,
            observed.timeout_member_connect,
            DEFAULTS.member_connect,
            &mut update.timeout_member_connect,
        ),
        (
            desired.member_data,
            observed.timeout_member_data,
            DEFAULTS.member_data,
            &mut update.timeout_member_data,
        ),
        (
            desired.tcp_inspect,
            observed.timeout_tcp_inspect,
            DEFAULTS.tcp_inspect,
            &mut update.timeout_tcp_inspect,
        ),
    ];
    let mut has_changes = false;
    for (desired, observed, default, field) in timeouts {
        let desired = desired.unsigned_abs();
        if observed.unwrap_or(default.unsigned_abs()) != desired {
            *field = Patch::Set(desired);
            has_changes = true;
        }
    }
    if has_changes {
        fields.push("timeouts");
    }
}

/// Returns true if a listener admits exactly these networks. A listener without a list, or with an
/// empty one, admits everybody.
fn has_allowed_cidrs(observed: &Listener, desired: &[IpNet]) -> bool {
    match observed.allowed_cidrs.as_deref() {
        None | Some([]) => {
            !desired.is_empty() && desired.iter().all(|network| network.prefix_len() == 0)
        }
        Some(cidrs) => {
            let observed: Option<BTreeSet<IpNet>> =
                cidrs.iter().map(|text| text.parse().ok()).collect();
            observed.is_some_and(|observed| observed == desired.iter().copied().collect())
        }
    }
}
