use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

/// Pause before a broken watch is opened again.
const PAUSE: Duration = Duration::from_millis(100);

/// What a watch tells.
pub(super) enum WatchChange<K> {
    /// Everything that is there, at the beginning and after a gap.
    All(Vec<K>),
    /// It appeared or changed.
    Here(K),
    /// It went.
    Gone(K),
}

/// Watches for ever, over broken connections and expired positions.
pub(super) async fn follow<K>(api: Api<K>, tell: impl Fn(WatchChange<K>))
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    loop {
        // Whatever breaks, the list that follows tells what was missed.
        let _ = follow_once(&api, &tell).await;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_once<K>(api: &Api<K>, tell: &impl Fn(WatchChange<K>)) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let list = api.list(&ListParams::default()).await?;
    let mut version = list.metadata.resource_version.unwrap_or_default();
    tell(WatchChange::All(list.items));
    loop {
        let params = WatchParams::default().timeout(240);
        let mut events = api.watch(&params, &version).await?.boxed();
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = object.resource_version().unwrap_or_default();
                    tell(WatchChange::Here(object));
                }
                WatchEvent::Deleted(object) => {
                    version = object.resource_version().unwrap_or_default();
                    tell(WatchChange::Gone(object));
                }
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
        }
    }
}
