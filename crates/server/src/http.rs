//! The doors over HTTP: `/v1` of our own, beside what the E2B SDKs call.

use crate::e2b;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

/// Every route of the daemon.
pub fn router(engine: Engine) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .merge(e2b::router(&engine))
        .fallback(|| async { ApiError::plain(Code::NoRoute, "find the route", "there is no such route") })
        .method_not_allowed_fallback(|| async {
            ApiError::plain(Code::NoMethod, "call the route", "it does not take this method")
        })
        .layer(from_fn_with_state(engine.clone(), e2b::by_sandbox))
        .with_state(engine)
}
