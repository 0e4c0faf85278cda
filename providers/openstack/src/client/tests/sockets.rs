//! How long an answer may be, and which way requests go: by proxies, or not.

use std::process::Command;

use super::tls::{GOOD, Server, ask, https};
use crate::config::Tls;

#[tokio::test]
async fn an_answer_may_be_so_long_and_no_longer() {
    let says = |length: usize| {
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}", "x".repeat(length))
    };
    for (length, fits) in [(100_000, true), (100_001, false)] {
        let server = Server::start(None, String::leak(says(length))).await;
        let answer =
            ask(&https(Tls::default()).with_max_response_bytes(100_000), &server.url("http")).await;
        let seen = answer
            .map(|answer| answer.into_body().len())
            .map_err(|error| (error.maybe_sent, error.to_string()));
        let words = format!("the answer of http://{} is longer than 100000 bytes", server.address);
        assert_eq!(seen, if fits { Ok(length) } else { Err((true, words)) });
    }
}

/// Where the process below asks.
const URL: &str = "CCM_OPENSTACK_TEST_URL";

/// Not a test: the process that the next one starts, with an environment of its own.
#[tokio::test]
#[ignore = "run by another test"]
async fn asks_as_the_environment_says() {
    let Ok(url) = std::env::var(URL) else { return };
    // What comes of it is seen by the servers.
    drop(ask(&https(Tls { insecure: true, ..Tls::default() }), &url).await);
}

/// Variables, what is asked for, and what the proxy sees of it.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, Option<&'a str>);

#[tokio::test]
async fn proxies_are_those_of_the_environment() {
    // An address that leads to this machine and is not a loopback one.
    let here = |server: &Server| format!("0.0.0.0:{}", server.address.port());
    let (proxy, cloud) = (Server::start(None, GOOD).await, Server::start(None, GOOD).await);
    let by = format!("http://{}", proxy.address);
    let (plain, secure) =
        (format!("http://{}/v3", here(&cloud)), format!("https://{}/v3", here(&cloud)));
    let get = format!("GET {plain} HTTP/1.1");
    let connect = format!("CONNECT {} HTTP/1.1", here(&cloud));
    let cases: [Case<'_>; 7] = [
        (&[], &plain, None),
        (&[("http_proxy", &by)], &plain, Some(&get)),
        (&[("HTTP_PROXY", &by)], &plain, Some(&get)),
        (&[("HTTPS_PROXY", &by)], &secure, Some(&connect)),
        (&[("HTTPS_PROXY", &by)], &plain, None),
        (&[("HTTP_PROXY", &by), ("NO_PROXY", "0.0.0.0")], &plain, None),
        (&[("HTTP_PROXY", &by), ("no_proxy", "10.0.0.0/8, 0.0.0.0/8")], &plain, None),
    ];
    for (environment, url, expected) in cases {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "client::tests::sockets::asks_as_the_environment_says",
            "--ignored",
        ]);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"] {
            child.env_remove(name).env_remove(name.to_lowercase());
        }
        child.env(URL, url).envs(environment.iter().copied());
        let output = tokio::task::spawn_blocking(move || child.output())
            .await
            .unwrap()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let by_proxy = std::mem::take(&mut *proxy.heads.lock());
        let direct = std::mem::take(&mut *cloud.heads.lock());
        let first = by_proxy.first().and_then(|head| head.lines().next());
        assert_eq!(first, expected, "{environment:?}, {url}");
        assert_eq!(direct.is_empty(), expected.is_some(), "{environment:?}, {url}: {direct:?}");
    }
}
