//! Plans listeners.

use std::collections::BTreeSet;

use super::{
    Planner,
    action::{ActionKind, ListenerRef, ListenerSettings, TargetGroupRef},
    changed_attributes,
    default_attributes::{self, without_defaults},
    join_keys,
    target_groups::{ListenerGroupPair, TargetGroupPairing},
};
use crate::{
    api::{ListenerArn, Tags, elb::ElbProtocol},
    lb::{model::ListenerKey, observe::observed::ObservedListener},
};

impl Planner<'_> {
    /// Plans the creation, changes and deletion of listeners. A listener that needs the port of a
    /// new one is deleted immediately before the new one is created. Other undesired listeners are
    /// deleted after all desired ones exist.
    pub(super) fn plan_listeners(&mut self, pairing: &TargetGroupPairing<'_>) {
        let already_deleted = self.deleted_listeners();
        let mut kept: Vec<&ObservedListener> = Vec::new();
        let mut undesired: Vec<&ObservedListener> = Vec::new();
        if let Some(load_balancer) = &self.observed.load_balancer {
            for listener in &load_balancer.listeners {
                if already_deleted.contains(&listener.resource.arn) {
                    continue;
                }
                if pairing
                    .pairs
                    .iter()
                    .any(|pair| listener.key() == Some(pair.key()))
                {
                    kept.push(listener);
                } else {
                    undesired.push(listener);
                }
            }
        }
        for pair in &pairing.pairs {
            let key = pair.key();
            if let Some(listener) = kept.iter().find(|listener| listener.key() == Some(key)) {
                self.update_listener(pair, listener);
                continue;
            }
            let (conflicting, others): (Vec<_>, Vec<_>) = undesired
                .into_iter()
                .partition(|listener| listener.key().is_some_and(|other| is_conflict(other, key)));
            undesired = others;
            for listener in conflicting {
                let reason = format!("listener {}/{} needs its port", key.1, key.0);
                self.add(ActionKind::DeleteListener(listener.resource.arn.clone()), reason);
            }
            self.create_listener(pair);
        }
        for listener in undesired {
            let listener = &listener.resource;
            let protocol = listener.protocol.map_or("unknown", ElbProtocol::as_str);
            let reason = format!("listener {protocol}/{} is not desired", listener.port);
            self.add(ActionKind::DeleteListener(listener.arn.clone()), reason);
        }
    }

    /// Returns the listeners that the plan already deletes.
    fn deleted_listeners(&self) -> BTreeSet<ListenerArn> {
        let mut deleted = BTreeSet::new();
        for planned in &self.actions {
            if let ActionKind::DeleteListener(arn) = &planned.action {
                deleted.insert(arn.clone());
            }
        }
        deleted
    }

    fn create_listener(&mut self, pair: &ListenerGroupPair<'_>) {
        let key = pair.key();
        let reason = format!("listener {}/{} is missing", key.1, key.0);
        self.add(
            ActionKind::CreateListener(listener_settings(pair, self.input.tags.clone())),
            reason,
        );
        // AWS accepts only one certificate per request.
        for certificate in pair
            .desired
            .tls
            .iter()
            .flat_map(|tls| &tls.certificates[1..])
        {
            let add =
                ActionKind::AddListenerCertificate(ListenerRef::New(key), certificate.clone());
            self.add(add, "a certificate for SNI is missing");
        }
        let attributes =
            without_defaults(&pair.desired.attributes, &default_attributes::listener());
        if !attributes.is_empty() {
            let reason = format!("{} differ from AWS' defaults", join_keys(&attributes));
            self.add(
                ActionKind::ModifyListenerAttributes(ListenerRef::New(key), attributes),
                reason,
            );
        }
    }

    fn update_listener(&mut self, pair: &ListenerGroupPair<'_>, observed: &ObservedListener) {
        let arn = &observed.resource.arn;
        let differences = listener_differences(pair, observed);
        if !differences.is_empty() {
            let modify =
                ActionKind::ModifyListener(arn.clone(), listener_settings(pair, Tags::new()));
            self.add(modify, format!("{} differ", differences.join(", ")));
        }
        if let Some(tls) = &pair.desired.tls
            && let Some(existing) = &observed.certificates
        {
            let desired: BTreeSet<_> = tls.certificates[1..].iter().cloned().collect();
            for certificate in desired.difference(existing) {
                let add = ActionKind::AddListenerCertificate(
                    ListenerRef::Existing(arn.clone()),
                    certificate.clone(),
                );
                self.add(add, "a certificate for SNI is missing");
            }
            // The default certificate may be listed once more, which is harmless.
            for certificate in existing
                .difference(&desired)
                .filter(|arn| **arn != tls.certificates[0])
            {
                let remove =
                    ActionKind::RemoveListenerCertificate(arn.clone(), certificate.clone());
                self.add(remove, "a certificate for SNI is not desired");
            }
        }
        if let Some(attributes) = &observed.attributes {
            let differing = changed_attributes(&pair.desired.attributes, attributes);
            if !differing.is_empty() {
                let reason = format!("{} differ", join_keys(&differing));
                self.add(
                    ActionKind::ModifyListenerAttributes(
                        ListenerRef::Existing(arn.clone()),
                        differing,
                    ),
                    reason,
                );
            }
        }
    }
}

/// Returns the names of the settings that differ from the desired ones.
fn listener_differences(
    pair: &ListenerGroupPair<'_>,
    observed: &ObservedListener,
) -> Vec<&'static str> {
    let listener = &observed.resource;
    let mut differences = Vec::new();
    let has_target_group = match pair.group() {
        TargetGroupRef::Existing(arn) => listener.target_group.as_ref() == Some(&arn),
        TargetGroupRef::New(_) => false,
    };
    if !has_target_group {
        differences.push("target group");
    }
    let Some(tls) = &pair.desired.tls else {
        return differences;
    };
    if listener.certificate.as_ref() != tls.certificates.first() {
        differences.push("default certificate");
    }
    if tls.policy.is_some() && listener.ssl_policy != tls.policy {
        differences.push("security policy");
    }
    // AWS may return no ALPN policy, or the policy with the name `None`.
    let current_alpn = listener.alpn_policy.as_deref().unwrap_or("None");
    if tls.alpn.as_deref().is_some_and(|alpn| alpn != current_alpn) {
        differences.push("ALPN policy");
    }
    differences
}

fn listener_settings(pair: &ListenerGroupPair<'_>, tags: Tags) -> ListenerSettings {
    let tls = pair.desired.tls.as_ref();
    ListenerSettings {
        key: pair.key(),
        group: pair.group(),
        certificate: tls.and_then(|tls| tls.certificates.first().cloned()),
        ssl_policy: tls.and_then(|tls| tls.policy.clone()),
        alpn_policy: tls.and_then(|tls| tls.alpn.clone()),
        tags,
    }
}

/// Returns true if two listeners cannot exist together. A port has only one listener, whatever its
/// protocol; a TCP_UDP listener serves both.
fn is_conflict(first: ListenerKey, other: ListenerKey) -> bool {
    first.0 == other.0
}
