use super::*;
use crate::k8s::{NodeFields, NodeView, ServiceFields, ServiceView, well_known};

fn node(name: &str, uid: &str, version: &str) -> NodeView {
    NodeView {
        uid: uid.into(),
        resource_version: version.into(),
        ..NodeView::named(name)
    }
}

/// A cache and the changes that its handler saw, as `kind name/uid@version`.
fn recorded() -> (Cache<NodeView>, Arc<Mutex<Vec<String>>>) {
    let cache = Cache::new(NodeFields::default());
    let log = record(&cache);
    (cache, log)
}

fn record(cache: &Cache<NodeView>) -> Arc<Mutex<Vec<String>>> {
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = log.clone();
    let reader = cache.clone();
    cache.on_change(move |change| {
        let (kind, node) = match change {
            Change::Added(new) => ("+", new),
            Change::Updated { new, .. } => ("~", new),
            Change::Deleted(old) => ("-", old),
        };
        // What a handler is told about can be read already.
        let held = reader.get(&node.name);
        assert_eq!(
            held.is_some_and(|held| held.uid == node.uid),
            kind != "-",
            "{kind}{}",
            node.name
        );
        sink.lock()
            .push(format!("{kind}{}/{}@{}", node.name, node.uid, node.resource_version));
    });
    log
}

fn listed<T: CachedObject>(objects: impl IntoIterator<Item = T>) -> ListSnapshot<T> {
    let mut listed = ListSnapshot::new();
    objects.into_iter().for_each(|object| listed.upsert(object));
    listed
}

#[test]
fn a_list_gives_the_differences() {
    let (cache, log) = recorded();
    cache.replace(listed([node("a", "1", "1"), node("b", "1", "2"), node("c", "1", "3")]));
    log.lock().clear();
    cache.replace(listed([node("b", "1", "2"), node("c", "1", "9"), node("d", "1", "8")]));
    let mut seen = log.lock().clone();
    seen.sort();
    assert_eq!(seen, ["+d/1@8", "-a/1@1", "~c/1@9"]);
}

#[test]
fn nothing_is_gone_from_a_list_with_an_object_that_has_not_even_a_name() {
    let (cache, log) = recorded();
    cache.replace(listed([node("a", "1", "1"), node("b", "1", "2")]));
    let mut list = listed([node("b", "1", "3")]);
    list.add_unreadable(None);
    cache.replace(list);
    assert!(cache.get("a").is_some(), "it may be the one that cannot be read");
    assert_eq!(log.lock().last().map(String::as_str), Some("~b/1@3"));
}

#[test]
fn unreadable_objects_are_neither_gone_nor_new() {
    let (cache, log) = recorded();
    cache.replace(listed([node("a", "1", "1")]));
    let mut list = ListSnapshot::new();
    list.add_unreadable(Some("a".to_owned()));
    list.add_unreadable(Some("b".to_owned()));
    cache.replace(list);
    assert_eq!(
        cache
            .get("a")
            .map(|n| n.resource_version.to_string())
            .as_deref(),
        Some("1")
    );
    assert_eq!(log.lock().len(), 1);
}

#[test]
fn a_late_deletion_does_not_hit_the_namesake() {
    let (cache, log) = recorded();
    cache.apply(node("a", "1", "1"));
    cache.apply(node("a", "2", "5"));
    cache.remove("a", "1");
    assert_eq!(&*cache.get("a").unwrap().uid, "2");
    cache.remove("a", "2");
    cache.remove("a", "2");
    assert!(cache.is_empty());
    assert_eq!(
        log.lock().iter().map(|l| &l[..4]).collect::<Vec<_>>(),
        ["+a/1", "-a/1", "+a/2", "-a/2"]
    );
}

#[test]
fn a_repeated_event_says_nothing() {
    let (cache, log) = recorded();
    cache.apply(node("a", "1", "1"));
    cache.apply(node("a", "1", "1"));
    assert_eq!(*log.lock(), ["+a/1@1"]);
}

#[test]
fn a_handler_that_comes_late_gets_what_is_there() {
    let (cache, early) = recorded();
    cache.apply(node("a", "1", "1"));
    let late = record(&cache);
    cache.apply(node("b", "1", "2"));
    assert_eq!(*late.lock(), ["+a/1@1", "+b/1@2"]);
    assert_eq!(*early.lock(), *late.lock());
}

fn service(name: &str, uid: &str, version: &str, is_load_balancer: bool) -> ServiceView {
    let base = ServiceView::named("shop", name);
    ServiceView {
        uid: uid.into(),
        resource_version: version.into(),
        is_load_balancer,
        ..base
    }
}

fn services() -> (Cache<ServiceView>, Arc<Mutex<Vec<String>>>) {
    let cache = Cache::<ServiceView>::new(ServiceFields::default());
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = log.clone();
    cache.on_change(move |change| {
        let (kind, service) = match change {
            Change::Added(new) => ("+", new),
            Change::Updated { new, .. } => ("~", new),
            Change::Deleted(old) => ("-", old),
        };
        assert!(service.is_relevant(), "{kind}{}", service.name);
        sink.lock()
            .push(format!("{kind}{}/{}@{}", service.name, service.uid, service.resource_version));
    });
    (cache, log)
}

#[test]
fn what_is_not_relevant_is_not_held() {
    let (cache, log) = services();
    cache.apply(service("a", "1", "1", false));
    cache.replace(listed([service("a", "1", "1", false), service("b", "1", "2", false)]));
    assert!(cache.is_empty() && cache.is_synced() && log.lock().is_empty());
}

#[test]
fn what_ceases_to_be_relevant_is_deleted_as_it_was() {
    let (cache, log) = services();
    cache.apply(service("a", "1", "1", true));
    cache.apply(service("a", "1", "2", false));
    cache.apply(service("a", "1", "3", false));
    cache.apply(service("a", "1", "4", true));
    cache.replace(listed([service("a", "1", "5", false)]));
    let finalized = ServiceView {
        finalizers: Box::new([well_known::FINALIZER_LOAD_BALANCER.into()]),
        ..service("a", "1", "6", false)
    };
    cache.apply(finalized);
    // Another object of the name: the one that is known is gone all the same.
    cache.apply(service("a", "2", "7", false));
    assert_eq!(*log.lock(), ["+a/1@1", "-a/1@1", "+a/1@4", "-a/1@4", "+a/1@6", "-a/1@6"]);
}

#[test]
fn the_last_word_in_a_list_counts() {
    let (cache, log) = services();
    cache.replace(listed(["a", "b", "c", "d"].map(|name| service(name, "1", "1", true))));
    log.lock().clear();
    let mut list = ListSnapshot::new();
    list.upsert(service("a", "1", "2", true));
    list.upsert(service("a", "1", "3", false));
    list.add_unreadable(Some("shop/b".to_owned()));
    list.upsert(service("b", "1", "4", false));
    list.add_unreadable(Some("shop/c".to_owned()));
    list.remove("shop/c");
    list.add_unreadable(Some("shop/d".to_owned()));
    list.upsert(service("d", "1", "5", true));
    cache.replace(list);
    let mut seen = log.lock().clone();
    seen.sort();
    assert_eq!(seen, ["-a/1@1", "-b/1@1", "-c/1@1", "~d/1@5"]);
}

#[tokio::test(start_paused = true)]
async fn synced_waits_for_a_complete_list() {
    let (cache, _) = recorded();
    cache.apply(node("a", "1", "1"));
    let second = std::time::Duration::from_secs(1);
    assert!(tokio::time::timeout(second, cache.synced()).await.is_err());
    cache.replace(ListSnapshot::new());
    cache.synced().await;
    assert!(cache.is_synced());
}
