//! The doors over HTTP: `/v1` of our own, beside what the E2B SDKs call.
//!
//! One table ([`table`]) has every route of `/v1` with its scope: what is not in it is not served, and the OpenAPI
//! document is written from it.

mod admin;
mod ask;
mod execs;
pub(crate) mod files;
mod guard;
mod openapi;
pub mod ports;
mod sandboxes;
mod table;
mod whole;

pub(crate) use admin::{mint, views};
pub use ask::{Asked, Words};

use crate::caller::Scope;
use crate::door;
use crate::e2b;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};

/// Every route of the daemon.
pub fn router(engine: Engine) -> Router {
    let mut own = Router::new();
    for route in table::routes() {
        let handler = match route.scope {
            // A route that takes any method has none of its own to put the layer on.
            Some(scope) if route.method == "any" => {
                route.handler.layer(from_fn_with_state((engine.clone(), scope), admit))
            }
            Some(scope) => route.handler.route_layer(from_fn_with_state((engine.clone(), scope), admit)),
            None => route.handler,
        };
        own = own.route(route.path, handler);
    }
    own.route("/healthz", get(|| async { "ok\n" }))
        .merge(e2b::router())
        .fallback(|| async { ApiError::plain(Code::NoRoute, "find the route", "there is no such route") })
        .method_not_allowed_fallback(|| async {
            ApiError::plain(Code::NoMethod, "call the route", "it does not take this method")
        })
        .layer(from_fn_with_state(engine.clone(), ports::by_name))
        .layer(from_fn_with_state(e2b::Door::new(&engine), e2b::by_sandbox))
        .layer(from_fn_with_state(engine.clone(), guard::names))
        .layer(from_fn(whole::small))
        .with_state(engine)
}

/// The kill switch's own few routes.
pub fn kill_switch(engine: Engine) -> Router {
    Router::new()
        .route("/v1/halt", post(admin::halt))
        .route("/v1/release", post(admin::release))
        .route_layer(from_fn_with_state((engine.clone(), Scope::Halt), admit))
        .fallback(|| async { ApiError::plain(Code::NoRoute, "find the route", "this door only halts") })
        .layer(from_fn_with_state(engine.clone(), guard::names))
        .with_state(engine)
}

/// Lets in who has a key with the route's scope.
async fn admit(
    State((engine, scope)): State<(Engine, Scope)>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let caller = door::caller(&engine, &parts)?;
    caller.needs(scope)?;
    parts.extensions.insert(caller);
    Ok(next.run(Request::from_parts(parts, body)).await)
}
