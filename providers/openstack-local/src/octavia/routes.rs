use std::sync::Arc;

use axum::Router;

use crate::server::Cloud;

/// Returns the routes of this service.
pub fn routes() -> Router<Arc<Cloud>> {
    Router::new()
}
