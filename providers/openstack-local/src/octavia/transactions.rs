//! Requests to the store, after ending changes that are due.

use jiff::Timestamp;

use super::provisioning::finish_due;
use crate::{
    server::Cloud,
    state::{ApiError, CloudState},
};

/// Reads the current state.
pub(super) async fn read<T>(
    cloud: &Cloud,
    read: impl FnOnce(&CloudState) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    finish_due_changes(cloud).await?;
    cloud.store.read(read).await
}

/// Changes the current state.
pub(super) async fn change<T>(
    cloud: &Cloud,
    change: impl FnOnce(&mut CloudState) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    finish_due_changes(cloud).await?;
    cloud.store.change(change).await
}

/// Ends changes that are due, and returns when the next one is.
pub(super) async fn finish_due_changes(cloud: &Cloud) -> Result<Option<Timestamp>, ApiError> {
    let now = cloud.clock.now();
    let next = cloud.store.peek(|state| {
        state
            .octavia
            .load_balancers
            .iter()
            .filter_map(|row| row.due)
            .min()
    });
    match next {
        Some(due) if due <= now => cloud.store.change(|state| Ok(finish_due(state, now))).await,
        next => Ok(next),
    }
}
