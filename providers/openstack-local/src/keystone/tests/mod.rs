mod catalog;
mod delegation;
mod key_manager;
mod resources;
mod tokens;

use serde_json::{Value, json};

use crate::server::{
    Settings,
    tests::{Answer, Asked},
};

fn cloud() -> Asked {
    Asked::new(Settings::default())
}

fn default() -> Value {
    json!({"id": "default"})
}

/// A request about a token.
async fn about(cloud: &Asked, method: &str, token: &str, subject: &str) -> Answer {
    let request = http::Request::builder()
        .method(method)
        .uri("/identity/v3/auth/tokens");
    let request = request
        .header("host", "cloud.test:5000")
        .header("x-auth-token", token);
    let request = request.header("x-subject-token", subject);
    cloud
        .send(request.body(axum::body::Body::empty()).unwrap())
        .await
}

/// What a token says.
async fn says(cloud: &Asked, token: &str) -> Value {
    let answer = about(cloud, "GET", token, token).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["token"].clone()
}

fn ids(rows: &Value) -> Vec<&str> {
    rows.as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect()
}

fn names(rows: &Value) -> Vec<&str> {
    rows.as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect()
}
