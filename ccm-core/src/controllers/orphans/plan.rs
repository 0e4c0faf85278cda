//! Decides which cloud objects are orphans, and whether they may be deleted automatically. Pure
//! functions.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    k8s::{NodeView, ServiceView},
    provider::{OwnedObject, Owner},
};

/// The number of orphans from which on they are suspected to be none, if they are more than half of
/// all objects. The cause is then more likely an error.
const MASS_ORPHAN_THRESHOLD: usize = 3;

/// The Services and Nodes that cloud objects can belong to.
#[derive(Clone, Debug, Default)]
pub struct LiveOwners {
    /// The UIDs of the Services that need cloud objects, by `namespace/name`.
    services: HashMap<Arc<str>, Box<str>>,
    nodes: HashSet<Arc<str>>,
}

impl LiveOwners {
    /// Collects the owners from the existing Services and Nodes. A Service only counts if it has
    /// type LoadBalancer or our finalizer; others need no cloud objects.
    pub fn new<S, N>(
        services: impl IntoIterator<Item = S>,
        nodes: impl IntoIterator<Item = N>,
    ) -> Self
    where
        S: AsRef<ServiceView>,
        N: AsRef<NodeView>,
    {
        let mut live_owners = Self::default();
        for service in services {
            let service = service.as_ref();
            if service.is_load_balancer || service.has_finalizer() {
                live_owners
                    .services
                    .insert(service.key().into(), service.uid.clone());
            }
        }
        live_owners.nodes = nodes
            .into_iter()
            .map(|node| node.as_ref().name.clone())
            .collect();
        live_owners
    }

    /// Returns the reason why the objects of this owner are orphans; `None` if they may be needed.
    ///
    /// Objects that belong to the cluster as a whole are never orphans.
    pub fn orphan_reason(&self, owner: &Owner) -> Option<OrphanReason> {
        match owner {
            Owner::Cluster => None,
            Owner::Service { namespace, name, uid } => {
                let Some(live_uid) = self.services.get(&*format!("{namespace}/{name}")) else {
                    return Some(OrphanReason::NoService);
                };
                match uid {
                    Some(uid) if uid != live_uid => Some(OrphanReason::OtherService),
                    _ => None,
                }
            }
            Owner::Node { name } if self.nodes.contains(&**name) => None,
            Owner::Node { .. } => Some(OrphanReason::NoNode),
        }
    }
}

/// The reason why an object is an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrphanReason {
    /// The Service does not exist, or it has neither type LoadBalancer nor our finalizer.
    NoService,
    /// The Service of this name is another one, with another UID.
    OtherService,
    /// The Node does not exist.
    NoNode,
}

impl fmt::Display for OrphanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoService => "no Service asks for it",
            Self::OtherService => "the Service of this name is another one",
            Self::NoNode => "there is no such Node",
        })
    }
}

/// A cloud object of this cluster that no Service or Node needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The cloud object.
    pub object: OwnedObject,
    /// The reason why it is an orphan.
    pub reason: OrphanReason,
}

impl Orphan {
    /// Returns the age of the object. If the cloud does not report its creation time, this is the
    /// time for which it has been seen.
    pub fn age(&self, now: Timestamp, seen_for: Duration) -> Duration {
        let Some(created) = self.object.created else {
            return seen_for;
        };
        // If the cloud's clock is ahead, the creation time may be in the future. It counts as now.
        Duration::try_from(now.duration_since(created)).unwrap_or_default()
    }
}

/// Selects the orphans, ordered by kind and ID.
pub fn find_orphans(
    owned: impl IntoIterator<Item = OwnedObject>,
    live_owners: &LiveOwners,
) -> Vec<Orphan> {
    let mut orphans = Vec::new();
    for object in owned {
        if let Some(reason) = live_owners.orphan_reason(&object.owner) {
            orphans.push(Orphan { object, reason });
        }
    }
    orphans.sort_by(|a, b| (&a.object.kind, &a.object.id).cmp(&(&b.object.kind, &b.object.id)));
    orphans
}

/// The default of `--cluster-name`, which every cluster without a name of its own has.
const DEFAULT_CLUSTER_NAME: &str = "kubernetes";

/// Returns the reason why no orphans of a cluster may be deleted automatically; `None` if they may
/// be. `confirmed` is the value of `--collect-orphans-confirm`.
///
/// The objects of another cluster with the same ID look like orphans of this one.
pub fn refuse_cluster(cluster_id: &str, confirmed: &str) -> Option<&'static str> {
    if !confirmed.is_empty() && confirmed != cluster_id {
        return Some("--collect-orphans-confirm is not the ID of this cluster");
    }
    match cluster_id {
        "" => Some("the cluster has no ID: set --cluster-name"),
        DEFAULT_CLUSTER_NAME if confirmed.is_empty() => Some(
            "other clusters may have the default name, too: set --collect-orphans-confirm=kubernetes if none does",
        ),
        _ => None,
    }
}

/// Returns the reason why these orphans must not be deleted automatically; `None` if they may be.
///
/// If an API server was restored empty, or the manager was pointed at another cluster, everything
/// looks like an orphan. `with_owner` is the number of objects that were created for a Service or a
/// Node, orphans included.
pub fn refuse_collection(
    orphans: usize,
    with_owner: usize,
    live_owners: &LiveOwners,
) -> Option<&'static str> {
    if live_owners.services.is_empty() {
        return Some("the cluster has no Service of type LoadBalancer at all");
    }
    if orphans >= MASS_ORPHAN_THRESHOLD && orphans * 2 > with_owner {
        return Some("more than half of the cluster's objects would be deleted");
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    fn service(name: &str, uid: &str) -> Arc<ServiceView> {
        Arc::new(ServiceView { uid: uid.into(), ..ServiceView::named("default", name) })
    }

    fn owner(name: &str, uid: Option<&str>) -> Owner {
        Owner::Service {
            namespace: "default".into(),
            name: name.into(),
            uid: uid.map(Into::into),
        }
    }

    fn object(kind: &str, id: &str, owner: Owner) -> OwnedObject {
        OwnedObject { kind: kind.into(), id: id.into(), owner, created: None }
    }

    #[test]
    fn a_cluster_with_the_default_name_has_to_be_confirmed() {
        for (cluster_id, confirmed, refusal) in [
            ("blue", "", None),
            ("blue", "blue", None),
            ("kubernetes", "kubernetes", None),
            ("kubernetes", "", Some("--collect-orphans-confirm=kubernetes")),
            ("", "", Some("--cluster-name")),
            ("blue", "kubernetes", Some("not the ID")),
            ("kubernetes", "blue", Some("not the ID")),
        ] {
            let found = refuse_cluster(cluster_id, confirmed);
            let matches = match refusal {
                Some(part) => found.is_some_and(|reason| reason.contains(part)),
                None => found.is_none(),
            };
            assert!(matches, "{cluster_id:?}, {confirmed:?}: {found:?}");
        }
    }

    fn sample_owners() -> LiveOwners {
        let plain = ServiceView {
            is_load_balancer: false,
            ..ServiceView::named("default", "plain")
        };
        let mut ending = plain.clone();
        ending.name = "ending".into();
        ending.finalizers = Box::new([crate::k8s::well_known::FINALIZER_LOAD_BALANCER.into()]);
        let services = [service("web", "u1"), Arc::new(plain), Arc::new(ending)];
        LiveOwners::new(services, [Arc::new(NodeView::named("n1"))])
    }

    #[test]
    fn what_somebody_may_still_need_is_no_orphan() {
        for owner in [
            Owner::Cluster,
            owner("web", None),
            owner("web", Some("u1")),
            owner("ending", None),
            Owner::Node { name: "n1".into() },
        ] {
            assert_eq!(sample_owners().orphan_reason(&owner), None, "{owner:?}");
        }
    }

    #[test]
    fn what_nobody_asks_for_is_an_orphan_and_says_why() {
        for (owner, cause) in [
            (owner("gone", None), OrphanReason::NoService),
            (owner("plain", None), OrphanReason::NoService),
            (owner("web", Some("u0")), OrphanReason::OtherService),
            (Owner::Node { name: "n2".into() }, OrphanReason::NoNode),
            (
                Owner::Service { namespace: "other".into(), name: "web".into(), uid: None },
                OrphanReason::NoService,
            ),
        ] {
            assert_eq!(sample_owners().orphan_reason(&owner), Some(cause), "{owner:?}");
        }
    }

    #[test]
    fn orphans_come_in_order_whatever_the_cloud_answers() {
        let owned = [
            object("target group", "b", owner("gone", None)),
            object("load balancer", "z", owner("gone", None)),
            object("load balancer", "y", owner("web", None)),
            object("load balancer", "a", owner("gone", None)),
        ];
        let mut reversed = owned.clone();
        reversed.reverse();
        let ids = |owned| {
            find_orphans(owned, &sample_owners())
                .iter()
                .map(|orphan| orphan.object.id.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(owned), [Box::from("a"), "z".into(), "b".into()]);
        assert_eq!(ids(reversed), [Box::from("a"), "z".into(), "b".into()]);
    }

    #[test]
    fn the_age_is_the_clouds_and_else_how_long_it_was_seen() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut orphan = Orphan {
            object: object("k", "i", owner("gone", None)),
            reason: OrphanReason::NoService,
        };
        let seen = Duration::from_secs(7);
        assert_eq!(orphan.age(at(1000), seen), seen);
        orphan.object.created = Some(at(900));
        assert_eq!(orphan.age(at(1000), seen), Duration::from_secs(100));
        orphan.object.created = Some(at(2000));
        assert_eq!(orphan.age(at(1000), seen), Duration::ZERO);
    }

    #[test]
    fn a_cluster_that_looks_like_another_is_doubted() {
        assert_eq!(refuse_collection(2, 10, &sample_owners()), None);
        assert_eq!(refuse_collection(2, 2, &sample_owners()), None, "two may well leak");
        assert_eq!(refuse_collection(5, 10, &sample_owners()), None);
        assert!(refuse_collection(6, 10, &sample_owners()).is_some());
        assert!(
            refuse_collection(1, 10, &LiveOwners::default()).is_some(),
            "without Services everything is an orphan"
        );
    }

    fn any_owner() -> impl Strategy<Value = Owner> {
        let uid = proptest::option::of(select(vec!["u1", "u2"]));
        prop_oneof![
            Just(Owner::Cluster),
            (select(vec!["default", "other"]), select(vec!["web", "db", "plain"]), uid).prop_map(
                |(namespace, name, uid)| {
                    Owner::Service {
                        namespace: namespace.into(),
                        name: name.into(),
                        uid: uid.map(Into::into),
                    }
                }
            ),
            select(vec!["n1", "n2", "n3"]).prop_map(|name| Owner::Node { name: name.into() }),
        ]
    }

    fn any_owned() -> impl Strategy<Value = Vec<OwnedObject>> {
        vec(any_owner(), 0..12).prop_map(|owners| {
            let owned = owners.into_iter().enumerate();
            owned
                .map(|(at, owner)| {
                    object(["load balancer", "group"][at % 2], &format!("id-{at}"), owner)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn what_is_asked_for_is_never_an_orphan_and_the_rest_is(owned in any_owned(), shuffled in any::<prop::sample::Index>()) {
            let standing = sample_owners();
            let found = find_orphans(owned.clone(), &standing);
            for object in &owned {
                let is_orphan = found.iter().any(|orphan| orphan.object == *object);
                let needed = match &object.owner {
                    Owner::Cluster => true,
                    Owner::Service { namespace, name, uid } => {
                        &**namespace == "default" && &**name == "web" && uid.as_deref().is_none_or(|uid| uid == "u1")
                    }
                    Owner::Node { name } => &**name == "n1",
                };
                prop_assert_eq!(is_orphan, !needed, "{:?}", object);
            }
            // The same objects in another order.
            let mut turned = owned.clone();
            turned.rotate_left(shuffled.index(owned.len().max(1)).min(owned.len()));
            prop_assert_eq!(find_orphans(turned, &standing), found.clone());
            // Once they are deleted, there are no more orphans.
            let left = owned.into_iter().filter(|object| found.iter().all(|orphan| orphan.object != *object));
            prop_assert_eq!(find_orphans(left, &standing), []);
        }
    }
}
