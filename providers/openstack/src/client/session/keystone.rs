//! The form of requests for tokens.

use openstack_api::Secret;
use serde_json::{Map, Value, json};

use crate::config::{Auth, Domain, Identity, Scope, User};

/// Makes the body of a request for a token.
pub(super) fn body(auth: &Auth) -> Value {
    let mut request = Map::new();
    request.insert("identity".to_owned(), identity(&auth.identity));
    if let Some(scope) = scope(&auth.scope) {
        request.insert("scope".to_owned(), scope);
    }
    json!({ "auth": request })
}

fn identity(identity: &Identity) -> Value {
    match identity {
        Identity::Password { user: who, password } => {
            let mut user = user(who);
            secret(&mut user, "password", password);
            json!({"methods": ["password"], "password": {"user": user}})
        }
        Identity::Credential { id, secret: text } => {
            let mut credential = Map::from_iter([("id".to_owned(), json!(id))]);
            secret(&mut credential, "secret", text);
            json!({"methods": ["application_credential"], "application_credential": credential})
        }
        Identity::NamedCredential { name, user: who, secret: text } => {
            let mut credential =
                Map::from_iter([("name".to_owned(), json!(name)), ("user".to_owned(), Value::Object(user(who)))]);
            secret(&mut credential, "secret", text);
            json!({"methods": ["application_credential"], "application_credential": credential})
        }
        Identity::Token(token) => json!({"methods": ["token"], "token": {"id": token.expose()}}),
    }
}

fn secret(into: &mut Map<String, Value>, key: &str, secret: &Secret) {
    into.insert(key.to_owned(), json!(secret.expose()));
}

fn user(user: &User) -> Map<String, Value> {
    match user {
        User::Id(id) => Map::from_iter([("id".to_owned(), json!(id))]),
        User::Name { name, domain: of } => {
            Map::from_iter([("name".to_owned(), json!(name)), ("domain".to_owned(), domain(of))])
        }
    }
}

fn domain(domain: &Domain) -> Value {
    match domain {
        Domain::Id(id) => json!({"id": id}),
        Domain::Name(name) => json!({"name": name}),
    }
}

fn scope(scope: &Scope) -> Option<Value> {
    Some(match scope {
        Scope::Default => return None,
        Scope::Project(id) => json!({"project": {"id": id}}),
        Scope::ProjectName { name, domain: of } => json!({"project": {"name": name, "domain": domain(of)}}),
        Scope::Domain(of) => json!({"domain": domain(of)}),
        Scope::Trust(id) => json!({"OS-TRUST:trust": {"id": id}}),
    })
}
