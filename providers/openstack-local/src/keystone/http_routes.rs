use std::sync::Arc;

use crate::api::{
    keystone::{SUBJECT_TOKEN, TokenAnswer, TokenRequest, VersionValues, Versions},
    version::{Link, MediaType, Version, VersionDocument},
};
use axum::{
    Json, Router,
    extract::{FromRequestParts, State as From},
    response::{IntoResponse, Response},
    routing,
};
use http::{HeaderValue, StatusCode, request::Parts};
use jiff::SignedDuration;

use super::{RequestUser, auth, catalog, delegation, projects, token, users};
use crate::{
    server::{Cloud, Input, Origin, caller, list::Query, unauthorized},
    state::{ApiError, CloudState},
};

/// Returns the routes of this service.
pub fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/", routing::get(versions))
        .route("/v3", routing::get(version))
        .route("/v3/auth/tokens", routing::post(authenticate).get(validate).delete(revoke))
        .merge(catalog::routes())
        .merge(delegation::routes())
        .merge(projects::routes())
        .merge(users::routes())
}

impl FromRequestParts<Arc<Cloud>> for RequestUser {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, cloud: &Arc<Cloud>) -> Result<Self, ApiError> {
        caller(parts, cloud)
    }
}

/// The token that a request is about (`X-Subject-Token`).
struct Subject(String);

impl<S: Sync> FromRequestParts<S> for Subject {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let subject = parts
            .headers
            .get(SUBJECT_TOKEN)
            .and_then(|value| value.to_str().ok());
        let missing = || ApiError::bad_request("", "Expecting to find a token in X-Subject-Token.");
        subject
            .map(|subject| Self(subject.to_owned()))
            .ok_or_else(missing)
    }
}

fn entry(origin: &Origin) -> Version {
    Version {
        id: "v3.14".to_owned(),
        status: "stable".to_owned(),
        updated: Some("2020-04-07T00:00:00Z".to_owned()),
        links: vec![Link {
            rel: "self".to_owned(),
            href: format!("{origin}/identity/v3/"),
        }],
        media_types: vec![MediaType {
            base: "application/json".to_owned(),
            kind: "application/vnd.openstack.identity-v3+json".to_owned(),
        }],
        ..Version::default()
    }
}

async fn versions(origin: Origin) -> (StatusCode, Json<Versions>) {
    let versions = Versions { versions: VersionValues { values: vec![entry(&origin)] } };
    (StatusCode::MULTIPLE_CHOICES, Json(versions))
}

async fn version(origin: Origin) -> Json<VersionDocument> {
    Json(VersionDocument { version: entry(&origin) })
}

async fn authenticate(
    From(cloud): From<Arc<Cloud>>,
    origin: Origin,
    query: Query,
    Input(request): Input<TokenRequest>,
) -> Result<Response, ApiError> {
    let now = cloud.clock.now();
    let claim = cloud
        .store
        .read(|state| auth::claim(state, &request.auth.identity, now))
        .await?;
    let proved = claim.prove()?;
    let settings = cloud.settings();
    let lifetime = SignedDuration::try_from(settings.token_lifetime).unwrap_or(SignedDuration::MAX);
    let scope = request.auth.scope.as_ref();
    let catalog = !query.flag("nocatalog");
    let (text, token) = cloud
        .store
        .change(|state| {
            let (text, token) = auth::issue(state, proved, scope, now, lifetime)?;
            Ok((text, token::describe(state, &token, catalog.then_some((&origin, &*settings)))))
        })
        .await?;
    answer(StatusCode::CREATED, &text, token)
}

fn answer(
    status: StatusCode,
    text: &str,
    token: crate::api::keystone::Token,
) -> Result<Response, ApiError> {
    let mut header = HeaderValue::try_from(text).map_err(|_| unauthorized())?;
    header.set_sensitive(true);
    let vary = ("vary", HeaderValue::from_static("X-Auth-Token"));
    Ok((status, [(SUBJECT_TOKEN, header), vary], Json(TokenAnswer { token })).into_response())
}

async fn validate(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Subject(subject): Subject,
    origin: Origin,
    query: Query,
) -> Result<Response, ApiError> {
    let settings = cloud.settings();
    let catalog = !query.flag("nocatalog");
    let token = cloud.store.read(|state| {
        let token = subject_token(state, &caller, &subject)?;
        Ok(token::describe(state, token, catalog.then_some((&origin, &*settings))))
    });
    answer(StatusCode::OK, &subject, token.await?)
}

async fn revoke(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Subject(subject): Subject,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| {
            let digest = subject_token(state, &caller, &subject)?.digest.clone();
            state.keystone.tokens.remove(&digest);
            Ok(StatusCode::NO_CONTENT)
        })
        .await
}

/// Finds the token that a request is about: the user's own, or any for an administrator.
fn subject_token<'s>(
    state: &'s CloudState,
    caller: &RequestUser,
    subject: &str,
) -> Result<&'s Arc<super::Token>, ApiError> {
    let found = token::find(state, subject, caller.ctx.now);
    let found = found.ok_or_else(|| ApiError::not_found("", "Could not find token."))?;
    if caller.ctx.admin || found.user_id == *caller.ctx.user {
        Ok(found)
    } else {
        Err(ApiError::forbidden("", "You are not authorized to perform the requested action."))
    }
}
