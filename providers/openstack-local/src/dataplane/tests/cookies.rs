//! Persistence by cookies.

use tokio::net::TcpStream;

use super::{
    fixture::Fixture,
    http::{Web, exchange, wanted},
};
use crate::dataplane::Persistence;

async fn rig(members: &[&Web], persistence: Persistence) -> Fixture {
    let mut config = wanted(members.iter().map(|web| web.member()));
    config.listeners[0].pool.as_mut().unwrap().persistence = Some(persistence);
    Fixture::new(config).await
}

/// Asks over a connection of its own: the answer's head, the member's name, and the cookies that
/// the member saw.
async fn ask(rig: &Fixture, target: &str, cookie: &str) -> (String, String, Option<String>) {
    let mut stream = TcpStream::connect(rig.address(0)).await.unwrap();
    let cookie = if cookie.is_empty() {
        String::new()
    } else {
        format!("cookie: {cookie}\r\n")
    };
    let request = format!("GET {target} HTTP/1.1\r\nhost: a\r\n{cookie}connection: close\r\n\r\n");
    let (head, body) = exchange(&mut stream, &request).await;
    let seen = body
        .lines()
        .find_map(|line| line.strip_prefix("cookie: "))
        .map(str::to_owned);
    (head.to_lowercase(), body[..1].to_owned(), seen)
}

#[tokio::test]
async fn a_cookie_of_ours_keeps_a_client_with_its_member() {
    let (a, b) = (Web::new("a").await, Web::new("b").await);
    let mut rig = rig(&[&a, &b], Persistence::HttpCookie).await;
    for name in ["a", "b"] {
        let (head, member, _) = ask(&rig, "/", "x=1").await;
        assert_eq!(member, name);
        assert!(head.contains(&format!("set-cookie: srv={name}; path=/\r\n")), "{head}");
        assert!(head.contains("cache-control: private\r\n"), "{head}");
    }
    for _ in 0..3 {
        let (head, member, seen) = ask(&rig, "/", "x=1; SRV=b; y=2").await;
        assert_eq!((member.as_str(), seen.as_deref()), ("b", Some("x=1; y=2")));
        assert!(!head.contains("set-cookie"), "it has one: {head}");
    }
    // At weight 0 it keeps its clients and gets no new ones.
    rig.change_pool(|pool| pool.members[1].weight = 0).await;
    assert_eq!(ask(&rig, "/", "SRV=b").await.1, "b");
    assert_eq!((ask(&rig, "/", "").await.1, ask(&rig, "/", "").await.1), ("a".into(), "a".into()));
    // A member that is away loses them to another.
    rig.change_pool(|pool| pool.members[1].enabled = false)
        .await;
    let (head, member, _) = ask(&rig, "/", "SRV=b").await;
    assert_eq!(member, "a");
    assert!(head.contains("set-cookie: srv=a; path=/\r\n"), "{head}");
    assert_eq!(ask(&rig, "/", "SRV=nobody").await.1, "a");
}

#[tokio::test]
async fn a_cookie_of_the_application_keeps_a_client_with_its_member() {
    let (a, b) = (Web::new("a").await, Web::new("b").await);
    let mut rig = rig(&[&a, &b], Persistence::AppCookie("id".into())).await;
    let (head, member, _) = ask(&rig, "/set?id=one", "").await;
    assert!(head.contains("set-cookie: id=one\r\n") && !head.contains("srv="), "{head}");
    assert_eq!(member, "a");
    assert_eq!(ask(&rig, "/set?id=two", "").await.1, "b");
    for _ in 0..3 {
        let (_, member, seen) = ask(&rig, "/", "x=1; id=two").await;
        assert_eq!((member.as_str(), seen.as_deref()), ("b", Some("x=1; id=two")));
    }
    // What is remembered outlives changes of the pool.
    rig.change_pool(|pool| pool.members[0].weight = 7).await;
    assert_eq!(ask(&rig, "/", "id=two").await.1, "b");
    assert_eq!(ask(&rig, "/", "id=one").await.1, "a");
    // And it is not another pool's.
    rig.change_pool(|pool| {
        pool.id = "other".into();
        pool.members[1].enabled = false;
    })
    .await;
    assert_eq!(ask(&rig, "/", "id=two").await.1, "a");
}
