use serde_json::{Value, json};

use super::*;

fn keeps<T: serde::de::DeserializeOwned + Serialize>(body: &Value) -> T {
    let read: T = serde_json::from_value(body.clone()).unwrap();
    assert_eq!(&serde_json::to_value(&read).unwrap(), body);
    read
}

#[test]
fn requests_for_tokens_keep_their_form() {
    for (what, body) in [
        (
            "password by name, project by name",
            json!({"auth": {
                "identity": {"methods": ["password"], "password": {"user": {
                    "name": "demo", "domain": {"id": "default"}, "password": "s"}}},
                "scope": {"project": {"name": "demo", "domain": {"name": "Default"}}}}}),
        ),
        (
            "password by ID, domain",
            json!({"auth": {
                "identity": {"methods": ["password"], "password": {"user": {"id": "u", "password": "s"}}},
                "scope": {"domain": {"id": "default"}}}}),
        ),
        (
            "application credential by ID",
            json!({"auth": {"identity": {"methods": ["application_credential"],
                "application_credential": {"id": "a", "secret": "s"}}}}),
        ),
        (
            "application credential by name",
            json!({"auth": {"identity": {"methods": ["application_credential"], "application_credential": {
                "name": "a", "user": {"name": "demo", "domain": {"name": "Default"}}, "secret": "s"}}}}),
        ),
        (
            "token, system",
            json!({"auth": {"identity": {"methods": ["token"], "token": {"id": "t"}},
                "scope": {"system": {"all": true}}}}),
        ),
        (
            "trust",
            json!({"auth": {"identity": {"methods": ["password"], "password": {"user": {"id": "u", "password": "s"}}},
                "scope": {"OS-TRUST:trust": {"id": "t"}}}}),
        ),
        (
            "expressly unscoped",
            json!({"auth": {"identity": {"methods": ["token"], "token": {"id": "t"}}, "scope": {"unscoped": {}}}}),
        ),
    ] {
        let read: TokenRequest = keeps(&body);
        assert!(!format!("{read:?}").contains("\"s\""), "{what}: the secret shows");
    }
}

#[test]
fn constructors_make_what_a_service_reads() {
    let user = UserRef { id: Some("u".to_owned()), ..UserRef::default() };
    let identity = Identity::password(user, "s".into());
    let body = json!({"methods": ["password"], "password": {"user": {"id": "u", "password": "s"}}});
    assert_eq!(serde_json::to_value(identity).unwrap(), body);
    let body = json!({"methods": ["token"], "token": {"id": "t"}});
    assert_eq!(serde_json::to_value(Identity::token("t".into())).unwrap(), body);
}

#[test]
fn a_scoped_token_keeps_its_form() {
    let body = json!({"token": {
        "methods": ["password"],
        "user": {"id": "u", "name": "demo", "domain": {"id": "default", "name": "Default"}, "password_expires_at": null},
        "audit_ids": ["x"],
        "expires_at": "2030-01-01T00:00:00.000000Z",
        "issued_at": "2029-12-31T23:00:00.000000Z",
        "project": {"id": "p", "name": "demo", "domain": {"id": "default", "name": "Default"}},
        "is_domain": false,
        "roles": [{"id": "r", "name": "member"}],
        "catalog": [{"id": "s", "type": "compute", "name": "nova", "endpoints": [
            {"id": "e", "interface": "public", "region_id": "R", "region": "R", "url": "http://c/compute/v2.1"}]}]}});
    let read: TokenAnswer = keeps(&body);
    assert_eq!(read.token.catalog.unwrap()[0].kind, "compute");
}

#[test]
fn tokens_of_old_services_are_read() {
    let body = json!({"token": {
        "user": {"id": "u", "name": "demo", "domain": {"id": "default", "name": "Default"}},
        "expires_at": "2030-01-01T00:00:00Z",
        "extras": {},
        "catalog": [{"type": "compute", "name": null, "endpoints": [
            {"interface": "public", "region": null, "url": "http://c"}]}]}});
    let read: TokenAnswer = serde_json::from_value(body).unwrap();
    assert_eq!(read.token.catalog.unwrap()[0].endpoints[0].region_id, None);
}

#[test]
fn tokens_of_credentials_and_trusts_say_so() {
    let user = json!({"id": "u", "name": "demo", "domain": {"id": "d", "name": "D"}, "password_expires_at": null});
    let common =
        json!({"methods": [], "user": user, "audit_ids": [], "expires_at": "e", "issued_at": "i"});
    let with = |name: &str, value: Value| {
        let mut token = common.clone();
        token[name] = value;
        json!({"token": token})
    };
    let restricted = json!({"id": "a", "name": "n", "restricted": true});
    let read: TokenAnswer = keeps(&with("application_credential", restricted));
    assert!(read.token.application_credential.unwrap().restricted);
    let trust = json!({"id": "t", "impersonation": true, "trustor_user": {"id": "a"}, "trustee_user": {"id": "b"}});
    let read: TokenAnswer = keeps(&with("OS-TRUST:trust", trust));
    assert_eq!(read.token.trust.unwrap().trustee_user.id, "b");
}

#[test]
fn debug_shows_no_secret() {
    let user = json!({"name": "u", "domain": {"id": "d"}, "password": "s3cret"});
    let credential = json!({"name": "c", "secret": "s3cret", "id": "i", "project_id": "p"});
    let identity = |identity: Value| {
        let request: TokenRequest =
            serde_json::from_value(json!({"auth": {"identity": identity}})).unwrap();
        assert!(
            serde_json::to_string(&request).unwrap().contains("s3cret"),
            "it is there, so that it could be shown"
        );
        format!("{request:?}")
    };
    for shown in [
        identity(json!({"methods": ["password"], "password": {"user": user}})),
        identity(json!({"methods": ["token"], "token": {"id": "s3cret"}})),
        identity(
            json!({"methods": ["application_credential"], "application_credential": credential}),
        ),
        format!(
            "{:?}",
            serde_json::from_value::<ApplicationCredentialCreate>(credential.clone()).unwrap()
        ),
        format!(
            "{:?}",
            serde_json::from_value::<ApplicationCredential>(credential.clone()).unwrap()
        ),
    ] {
        assert!(shown.contains("Secret(…)") && !shown.contains("s3cret"), "{shown}");
    }
}
