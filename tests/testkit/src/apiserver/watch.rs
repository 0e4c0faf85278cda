//! Watches: a response body that reads the history as the client pulls, with no task behind it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch as signal;
use tokio::time::Instant;
use tower::BoxError;

use super::faults::{WatchFault, Watches};
use super::negotiate::Encoder;
use super::object::Object;
use super::read;
use super::request::RequestInfo;
use super::resources::ResourceDef;
use super::selectors::Selector;
use super::status::{ApiError, FieldError};
use super::store::{Change, Event, ResourceKey, Store};

/// Events taken from the history at a time, so that a watch from far back does not hold all of
/// them.
const BATCH: usize = 200;

/// Marks the bookmark after the initial events (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Settings of all watches of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchSettings {
    pub bookmark_period: Duration,
    pub default_timeout: Duration,
    pub streaming_lists: bool,
}

/// An open watch.
#[derive(Debug)]
pub(crate) struct Watch {
    store: Arc<Store>,
    key: ResourceKey,
    namespace: Option<String>,
    selector: Selector,
    encoder: Encoder,
    position: u64,
    /// Last version that was sent before the watch went back.
    sent_until: u64,
    pending: VecDeque<Bytes>,
    changed: signal::Receiver<()>,
    fate: WatchFault,
    deadline: Instant,
    bookmarks: Option<Bookmarks>,
    ended: bool,
    /// Nothing follows what is pending: an ERROR event ends the stream.
    last_words: bool,
}

#[derive(Debug)]
struct Bookmarks {
    period: Duration,
    next: Instant,
}

impl Watch {
    /// Opens the watch a request asks for.
    ///
    /// # Errors
    /// 400, 422 and 504 as the real server; a version that is too old is reported in the stream.
    pub(crate) fn open(
        store: Arc<Store>,
        def: &'static ResourceDef,
        info: &RequestInfo,
        encoder: Encoder,
        settings: WatchSettings,
        watches: &Watches,
    ) -> Result<Self, ApiError> {
        validate_options(info, settings.streaming_lists)?;
        let mut selector = read::selector(def, info)?;
        if !info.name.is_empty() {
            selector = selector.and_name(&info.name);
        }
        let version = read::version(info)?;
        // A plain watch from the future is held in silence until the present has caught up, as on
        // the real server.
        if let Some(version) = version.filter(|_| info.query("sendInitialEvents").is_some()) {
            read::check_not_ahead(&store, version)?;
        }
        let seconds = read::number(info, "timeoutSeconds")?;
        let timeout = if seconds == 0 {
            settings.default_timeout
        } else {
            Duration::from_secs(seconds)
        };
        let now = Instant::now();
        let key = def.storage_key();
        let bookmarks = info.flag("allowWatchBookmarks").then(|| Bookmarks {
            period: settings.bookmark_period,
            next: now + settings.bookmark_period,
        });
        let mut watch = Self {
            changed: store.subscribe(key),
            fate: watches.register(info),
            key,
            namespace: read::scope(info).map(str::to_owned),
            selector,
            encoder,
            position: version.unwrap_or(0),
            sent_until: 0,
            pending: VecDeque::new(),
            deadline: now + timeout,
            bookmarks,
            ended: false,
            last_words: false,
            store,
        };
        watch.queue_initial_events(info, version);
        Ok(watch)
    }

    /// Queues the first events: none, all objects, or all objects and a bookmark.
    fn queue_initial_events(&mut self, info: &RequestInfo, version: Option<u64>) {
        let streaming = info
            .query("sendInitialEvents")
            .map(|_| info.flag("sendInitialEvents"));
        let from_now = version.unwrap_or(0) == 0;
        if streaming == Some(false) && from_now {
            self.position = self.store.version();
        }
        if streaming == Some(true) || (streaming.is_none() && from_now) {
            let (objects, at) = self.store.list(self.key, self.namespace.as_deref());
            for object in objects.iter().filter(|o| self.selector.matches(o)) {
                let line = self.encoder.event("ADDED", object);
                self.pending.push_back(line);
            }
            self.position = at;
            if streaming == Some(true) && self.bookmarks.is_some() {
                let line = self
                    .encoder
                    .bookmark(at, json!({INITIAL_EVENTS_END: "true"}));
                self.pending.push_back(line);
            }
        }
    }

    /// Returns the next piece of the stream; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if self.fate.is_aborted() {
                self.ended = true;
                return Some(Err("connection cut by a scripted fault".into()));
            }
            if self.ended || self.fate.is_closed() || Instant::now() >= self.deadline {
                return None;
            }
            if !self.fate.is_frozen() {
                if let Some(version) = self.fate.take_rewind() {
                    self.sent_until = self.sent_until.max(self.position);
                    self.position = version;
                }
                if let Some(line) = self.pending.pop_front() {
                    return Some(Ok(line));
                }
                if self.last_words {
                    return None;
                }
                if self.read_backlog() {
                    continue;
                }
                if let Some(line) = self.due_bookmark() {
                    return Some(Ok(line));
                }
            }
            self.wait().await;
        }
    }

    /// Queues what the history has; false when there was nothing.
    fn read_backlog(&mut self) -> bool {
        match self.store.backlog(self.key, self.position, BATCH) {
            Ok(backlog) => {
                self.position = backlog.upto;
                for event in &backlog.events {
                    let line = self.encode(event);
                    self.fate
                        .retell(u64::from(line.is_some() && event.version <= self.sent_until));
                    self.pending.extend(line);
                }
                // Events that the selector hides still count as progress.
                !backlog.events.is_empty()
            }
            Err(expired) => {
                let text =
                    format!("too old resource version: {} ({})", self.position, expired.oldest);
                self.pending
                    .push_back(Encoder::error(&ApiError::expired(text)));
                self.last_words = true;
                true
            }
        }
    }

    fn due_bookmark(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        let bookmarks = self.bookmarks.as_mut()?;
        if bookmarks.next > now {
            return None;
        }
        bookmarks.next = now + bookmarks.period;
        Some(self.encoder.bookmark(self.position, Value::Null))
    }

    async fn wait(&mut self) {
        let wake = self
            .bookmarks
            .as_ref()
            .map_or(self.deadline, |b| b.next.min(self.deadline));
        // A frozen watch sends no bookmark, so one that is due must not wake it for ever.
        let wake = if self.fate.is_frozen() {
            self.deadline
        } else {
            wake
        };
        tokio::select! {
            _ = self.changed.changed() => {}
            () = self.fate.changed() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
    }

    /// Returns an event as this watch sees it: objects that enter or leave the selection appear and
    /// vanish.
    fn encode(&mut self, event: &Event) -> Option<Bytes> {
        if self
            .namespace
            .as_ref()
            .is_some_and(|n| *n != event.object.namespace)
        {
            return None;
        }
        let before = event.previous.as_ref().filter(|o| self.selector.matches(o));
        let after = (event.change != Change::Deleted && self.selector.matches(&event.object))
            .then_some(&event.object);
        match (before, after) {
            (None, None) => None,
            (None, Some(object)) => Some(self.encoder.event("ADDED", object)),
            (Some(_), Some(object)) => Some(self.encoder.event("MODIFIED", object)),
            (Some(_), None) if event.change == Change::Deleted => {
                Some(self.encoder.event("DELETED", &event.object))
            }
            (Some(before), None) => {
                // The old state under the new version, as the watch cache sends it.
                let gone = Object::new(self.encoder.def(), before.value(), event.version);
                Some(self.encoder.event("DELETED", &gone))
            }
        }
    }
}

fn validate_options(info: &RequestInfo, streaming_lists: bool) -> Result<(), ApiError> {
    let field = "resourceVersionMatch";
    let mut errors = Vec::new();
    let matching = info.query(field);
    let initial = info.query("sendInitialEvents").is_some();
    if initial && matching != Some("NotOlderThan") {
        let message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(field, message));
    }
    if initial && !streaming_lists {
        let message =
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        errors.push(FieldError::forbidden("sendInitialEvents", message));
    }
    if let Some(matching) = matching {
        if !initial {
            let message =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(FieldError::forbidden(field, message));
        }
        if matching != "NotOlderThan" {
            errors.push(FieldError {
                reason: "FieldValueNotSupported".into(),
                message: format!(
                    "Unsupported value: \"{matching}\": supported values: \"NotOlderThan\""
                ),
                field: field.into(),
            });
        }
        if info.query("continue").is_some() {
            errors.push(FieldError::forbidden(
                field,
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &errors))
    }
}
