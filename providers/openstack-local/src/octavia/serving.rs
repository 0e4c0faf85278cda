//! Requests against the store: what is due comes first.

use jiff::Timestamp;

use super::{lock::settle, settings::Settings};
use crate::{
    server::{self, Cloud},
    state::{ApiError, State},
};

/// Reads the state as it is now.
pub(super) async fn read<T>(cloud: &Cloud, read: impl FnOnce(&State) -> Result<T, ApiError>) -> Result<T, ApiError> {
    bring_up_to_date(cloud).await?;
    cloud.store.read(read).await
}

/// Changes the state as it is now.
pub(super) async fn change<T>(
    cloud: &Cloud,
    change: impl FnOnce(&mut State) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    bring_up_to_date(cloud).await?;
    cloud.store.change(change).await
}

/// Ends what is due, and takes over the server's settings. Returns when the next change is due.
pub(super) async fn bring_up_to_date(cloud: &Cloud) -> Result<Option<Timestamp>, ApiError> {
    let (now, settings) = (cloud.clock.now(), cloud.settings());
    let (is_due, next) = cloud.store.peek(|state| {
        let next = state.octavia.load_balancers.iter().filter_map(|row| row.due).min();
        (differ(state, &settings) || next.is_some_and(|due| due <= now), next)
    });
    if !is_due {
        return Ok(next);
    }
    let update = |state: &mut State| {
        if differ(state, &settings) {
            Settings::change(state, |own| (own.pending_ms, own.newest_minor) = wanted(&settings));
        }
        Ok(settle(state, now))
    };
    cloud.store.change(update).await
}

fn wanted(settings: &server::Settings) -> (u64, u8) {
    let pending = u64::try_from(settings.pending.as_millis()).unwrap_or(u64::MAX);
    (pending, u8::try_from(settings.octavia_minor).unwrap_or(u8::MAX))
}

fn differ(state: &State, settings: &server::Settings) -> bool {
    let own = Settings::of(state);
    (own.pending_ms, own.newest_minor) != wanted(settings)
}
