//! Plans listeners.

use std::collections::BTreeSet;

use super::{
    Planner,
    action::{ActionKind, ListenerRef, ListenerSettings},
    changed_attributes,
    default_attributes::{self, without_defaults},
    keys,
    target_groups::{ListenerGroupPair, TargetGroupPairing},
};
use crate::{
    api::{Tags, elb::ElbProtocol},
    lb::{model::ListenerKey, observe::observed::ObservedListener},
};

impl Planner<'_> {
    /// Plans creation, changes and deletion of listeners. A listener on the port of a new one is
    /// deleted immediately before that is created; other listeners that are not desired are deleted
    /// after all desired ones exist.
    pub(super) fn listeners(&mut self, pairing: &TargetGroupPairing<'_>) {
        let cleared = self.deleted();
        let observed = self
            .observed
            .load_balancer
            .iter()
            .flat_map(|load_balancer| &load_balancer.listeners);
        let is_wanted = |seen: &&ObservedListener| {
            !cleared.contains(&seen.listener.arn)
                && pairing
                    .pairs
                    .iter()
                    .any(|pair| seen.key() == Some(pair.key()))
        };
        let (living, unwanted): (Vec<&ObservedListener>, Vec<&ObservedListener>) =
            observed.partition(is_wanted);
        let mut unwanted: Vec<_> = unwanted
            .into_iter()
            .filter(|seen| !cleared.contains(&seen.listener.arn))
            .collect();
        for pair in &pairing.pairs {
            if let Some(seen) = living.iter().find(|seen| seen.key() == Some(pair.key())) {
                self.existing_listener(pair, seen);
                continue;
            }
            let in_the_way =
                |seen: &&ObservedListener| seen.key().is_some_and(|key| conflicts(key, pair.key()));
            let (now, later) = unwanted.into_iter().partition(in_the_way);
            unwanted = later;
            for seen in now {
                let why = format!("listener {}/{} needs its port", pair.key().1, pair.key().0);
                self.add(ActionKind::DeleteListener(seen.listener.arn.clone()), why);
            }
            self.new_listener(pair);
        }
        for seen in unwanted {
            let protocol = seen
                .listener
                .protocol
                .map_or("unknown", ElbProtocol::as_str);
            let why = format!("listener {protocol}/{} is not wanted", seen.listener.port);
            self.add(ActionKind::DeleteListener(seen.listener.arn.clone()), why);
        }
    }

    fn deleted(&self) -> BTreeSet<crate::api::ListenerArn> {
        let deleted = self.steps.iter().filter_map(|step| match &step.action {
            ActionKind::DeleteListener(arn) => Some(arn.clone()),
            _ => None,
        });
        deleted.collect()
    }

    fn new_listener(&mut self, pair: &ListenerGroupPair<'_>) {
        let key = pair.key();
        let why = format!("listener {}/{} is missing", key.1, key.0);
        self.add(ActionKind::CreateListener(settings(pair, self.resolved.tags.clone())), why);
        // One per request: AWS rejects more.
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
            let why = format!("{} differ from AWS' defaults", keys(&attributes));
            self.add(ActionKind::ModifyListenerAttributes(ListenerRef::New(key), attributes), why);
        }
    }

    fn existing_listener(&mut self, pair: &ListenerGroupPair<'_>, observed: &ObservedListener) {
        let arn = &observed.listener.arn;
        let why = listener_differs(pair, observed);
        if !why.is_empty() {
            let modify = ActionKind::ModifyListener(arn.clone(), settings(pair, Tags::new()));
            self.add(modify, format!("{} differ", why.join(", ")));
        }
        if let (Some(tls), Some(have)) = (&pair.desired.tls, &observed.certificates) {
            let certificates: BTreeSet<_> = tls.certificates[1..].iter().cloned().collect();
            for certificate in certificates.difference(have) {
                let add = ActionKind::AddListenerCertificate(
                    ListenerRef::Existing(arn.clone()),
                    certificate.clone(),
                );
                self.add(add, "a certificate for SNI is missing");
            }
            // The default certificate may be listed once more, which is harmless.
            for certificate in have
                .difference(&certificates)
                .filter(|arn| **arn != tls.certificates[0])
            {
                let remove =
                    ActionKind::RemoveListenerCertificate(arn.clone(), certificate.clone());
                self.add(remove, "a certificate for SNI is not wanted");
            }
        }
        if let Some(attributes) = &observed.attributes {
            let differing = changed_attributes(&pair.desired.attributes, attributes);
            if !differing.is_empty() {
                let why = format!("{} differ", keys(&differing));
                self.add(
                    ActionKind::ModifyListenerAttributes(
                        ListenerRef::Existing(arn.clone()),
                        differing,
                    ),
                    why,
                );
            }
        }
    }
}

fn listener_differs(
    pair: &ListenerGroupPair<'_>,
    observed: &ObservedListener,
) -> Vec<&'static str> {
    let mut why = Vec::new();
    let group = match pair.group() {
        super::TargetGroupRef::Existing(arn) => {
            observed.listener.target_group.as_ref() == Some(&arn)
        }
        super::TargetGroupRef::New(_) => false,
    };
    if !group {
        why.push("target group");
    }
    let Some(tls) = &pair.desired.tls else {
        return why;
    };
    if observed.listener.certificate.as_deref() != tls.certificates.first().map(|arn| &**arn) {
        why.push("default certificate");
    }
    if tls.policy.is_some() && observed.listener.ssl_policy != tls.policy {
        why.push("security policy");
    }
    // No policy, and the policy with this name, are the same.
    let none = |policy: &Option<Box<str>>| policy.as_deref().unwrap_or("None").to_owned();
    if tls.alpn.is_some() && none(&observed.listener.alpn_policy) != none(&tls.alpn) {
        why.push("ALPN policy");
    }
    why
}

fn settings(pair: &ListenerGroupPair<'_>, tags: Tags) -> ListenerSettings {
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

/// Tells whether two listeners cannot exist together: a port has one listener, whatever its
/// protocol; TCP_UDP is the protocol for both.
fn conflicts(one: ListenerKey, other: ListenerKey) -> bool {
    one.0 == other.0
}
