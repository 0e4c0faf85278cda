use std::fs;

use super::*;

const TOKEN: &str = "s3cr3t-t0ken";

fn product() -> Product {
    Product {
        commit: "abc1234",
        ..Product::new("ccm-test", "v1.2.3", &["mock"])
    }
}

/// The directory that goes when the test ends.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("ccm-client-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
         clusters:\n- name: k\n  cluster: {cluster}\nusers:\n- name: u\n  user: {user}\n"
    )
}

async fn load_file(text: &str, master: &str) -> Result<kube::Config, String> {
    let directory = Directory::new();
    let path = directory.file("kubeconfig", text);
    let flags = KubeClientConfig {
        kubeconfig: Some(path.clone()),
        master: master.into(),
        ..KubeClientConfig::default()
    };
    load(&flags, &product(), "node-controller")
        .await
        .map(|client| client.kube)
        .map_err(|error| {
            let text = error.to_string();
            assert!(
                text.contains(&path.display().to_string()) || text.contains("--master"),
                "no file named: {text}"
            );
            assert!(!format!("{text} {error:?}").contains(TOKEN), "secret shown: {text}");
            text
        })
}

#[tokio::test]
async fn kubeconfig_gives_address_and_credentials_without_showing_them() {
    let text = kubeconfig("{server: 'https://10.0.0.1:6443'}", &format!("{{token: {TOKEN}}}"));
    let config = load_file(&text, "").await.unwrap();
    assert_eq!(config.cluster_url.to_string(), "https://10.0.0.1:6443/");
    assert!(config.auth_info.token.is_some());
    assert!(config.disable_compression);
    let agent = format!("ccm-test/v1.2.3 ({}/", std::env::consts::OS);
    let sent = config
        .headers
        .iter()
        .find(|(name, _)| name == header::USER_AGENT)
        .unwrap()
        .1
        .to_str()
        .unwrap();
    assert!(
        sent.starts_with(&agent) && sent.ends_with(") kubernetes/abc1234/node-controller"),
        "{sent}"
    );
    assert!(!format!("{config:?}").contains(TOKEN));
}

#[tokio::test]
async fn master_wins_over_the_kubeconfig_and_may_stand_in_for_its_server() {
    for (cluster, master, url) in [
        ("{server: 'https://10.0.0.1:6443'}", "https://10.0.0.2:6443", "https://10.0.0.2:6443/"),
        ("{server: 'https://10.0.0.1:6443'}", "10.0.0.2:6443", "https://10.0.0.2:6443/"),
        ("{}", "http://127.0.0.1:8001", "http://127.0.0.1:8001/"),
    ] {
        let config = load_file(&kubeconfig(cluster, "{}"), master).await.unwrap();
        assert_eq!(config.cluster_url.to_string(), url);
    }
}

#[tokio::test]
async fn master_alone_has_no_credentials() {
    for (master, url) in [
        ("127.0.0.1:8001", "http://127.0.0.1:8001/"),
        ("https://a.example", "https://a.example/"),
    ] {
        let flags = KubeClientConfig { master: master.into(), ..KubeClientConfig::default() };
        let config = load(&flags, &product(), "x").await.unwrap().kube;
        assert_eq!(config.cluster_url.to_string(), url);
        assert!(config.auth_info.token.is_none() && config.auth_info.token_file.is_none());
    }
    for (master, reason) in [
        ("ftp://a", "--master=ftp://a: must be an http or https address"),
        ("https://", "--master=https://: must be an address such as https://host:6443"),
        ("https://u:s3cr3t-t0ken@a", "--master=<redacted>@a: must not contain credentials"),
    ] {
        let flags = KubeClientConfig { master: master.into(), ..KubeClientConfig::default() };
        assert_eq!(load(&flags, &product(), "x").await.unwrap_err().to_string(), reason);
    }
}

#[tokio::test]
async fn errors_name_the_file_and_what_failed() {
    let server = "{server: 'https://10.0.0.1:6443'}";
    let token = format!("{{token: {TOKEN}}}");
    for (text, part) in [
        (
            kubeconfig(server, &token).replace("current-context: c\n", ""),
            "sets no current-context",
        ),
        (
            kubeconfig(server, &token).replace("current-context: c", "current-context: d"),
            "has no context \"d\"",
        ),
        (kubeconfig(server, &token).replace("cluster: k,", "cluster: l,"), "has no cluster \"l\""),
        (kubeconfig("{}", &token), "cluster url is missing"),
        (kubeconfig("{server: 'https://a b'}", &token), "failed to parse cluster url"),
        (
            kubeconfig("{server: 'https://a', certificate-authority-data: '!'}", &token),
            "certificate authority",
        ),
        (kubeconfig("{server: 'https://a', certificate-authority: gone.crt}", &token), "gone.crt"),
        (kubeconfig(server, &format!("[{TOKEN}]")), "is no kubeconfig: line"),
        (kubeconfig(server, &format!("{{token: {TOKEN}")), "is no kubeconfig: line"),
        (kubeconfig(server, &format!("{{token: {{a: {TOKEN}}}}}")), "is no kubeconfig: line"),
    ] {
        let message = load_file(&text, "").await.unwrap_err();
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[tokio::test]
async fn a_missing_file_is_named() {
    let flags = KubeClientConfig {
        kubeconfig: Some("/nowhere/kubeconfig".into()),
        ..KubeClientConfig::default()
    };
    let message = load(&flags, &product(), "x").await.unwrap_err().to_string();
    assert!(message.starts_with("--kubeconfig=/nowhere/kubeconfig: cannot be read: "), "{message}");
}

#[tokio::test]
async fn outside_a_cluster_the_flags_are_named() {
    // Only where the tests do not run in a pod themselves.
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return;
    }
    let message = load(&KubeClientConfig::default(), &product(), "x")
        .await
        .unwrap_err()
        .to_string();
    assert!(message.contains("--kubeconfig") && message.contains("--master"), "{message}");
}

fn variables(
    set: &'static [(&'static str, &'static str)],
) -> impl Fn(&'static str) -> Option<String> {
    move |name| {
        set.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| (*value).to_owned())
    }
}

#[test]
fn the_proxy_of_the_environment_is_found_by_gos_rules() {
    const API: &str = "https://10.96.0.1:443";
    type Set = &'static [(&'static str, &'static str)];
    let cases: &[(&str, Set, Option<&str>)] = &[
        (API, &[], None),
        (API, &[("HTTPS_PROXY", "")], None),
        (API, &[("HTTPS_PROXY", "http://proxy:3128")], Some("http://proxy:3128/")),
        (API, &[("https_proxy", "proxy:3128")], Some("http://proxy:3128/")),
        (API, &[("HTTPS_PROXY", "http://a"), ("https_proxy", "http://b")], Some("http://a/")),
        (API, &[("HTTPS_PROXY", "socks5://proxy:1080")], Some("socks5://proxy:1080/")),
        (API, &[("HTTP_PROXY", "http://proxy")], None),
        ("http://api:8080", &[("HTTP_PROXY", "http://proxy")], Some("http://proxy/")),
        (API, &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "10.96.0.0/12,.svc")], None),
        (API, &[("HTTPS_PROXY", "http://proxy"), ("no_proxy", "10.96.0.1")], None),
        (API, &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "*")], None),
        (
            API,
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "10.1.0.0/16")],
            Some("http://proxy/"),
        ),
        (
            "https://api.example.org",
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "example.org")],
            None,
        ),
        (
            "https://10.96.0.1:443",
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "10.96.0.1:443")],
            None,
        ),
        (
            "https://api.example.org:6443",
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "api.example.org:443")],
            Some("http://proxy/"),
        ),
        (
            "https://api.example.org:6443",
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "x, *.example.org")],
            None,
        ),
        (
            "https://example.org",
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", ".example.org")],
            Some("http://proxy/"),
        ),
        (
            "https://badexample.org",
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "example.org")],
            Some("http://proxy/"),
        ),
        (
            "https://[fd00::1]:6443",
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "[fd00::1]:6443")],
            None,
        ),
        (
            "https://[fd00::1]:6443",
            &[("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", "fd00::1")],
            None,
        ),
        ("https://127.0.0.1:6443", &[("HTTPS_PROXY", "http://proxy")], None),
        ("https://[::1]:6443", &[("HTTPS_PROXY", "http://proxy")], None),
        ("https://localhost:6443", &[("HTTPS_PROXY", "http://proxy")], None),
    ];
    for (destination, set, expected) in cases {
        let found = proxy_for(&destination.parse().unwrap(), variables(set)).unwrap();
        assert_eq!(
            found.map(|proxy| proxy.to_string()).as_deref(),
            *expected,
            "{destination} {set:?}"
        );
    }
    let wrong = proxy_for(
        &API.parse().unwrap(),
        variables(&[("HTTPS_PROXY", "ftp://somebody:s3cr3t-t0ken@proxy")]),
    );
    let error = wrong.unwrap_err().to_string();
    assert!(
        error.starts_with("HTTPS_PROXY is not the address of a proxy") && !error.contains(TOKEN),
        "{error}"
    );
}

#[tokio::test]
async fn the_proxy_of_a_kubeconfig_is_taken_or_refused_by_name() {
    let with = |url: &str| {
        kubeconfig(&format!("{{server: 'https://10.0.0.1:6443', proxy-url: '{url}'}}"), "{}")
    };
    let config = load_file(&with(&format!("http://somebody:{TOKEN}@proxy:3128")), "")
        .await
        .unwrap();
    assert_eq!(config.proxy_url.unwrap().host(), Some("proxy"));
    assert!(load_file(&with(""), "").await.unwrap().proxy_url.is_none());
    for wrong in ["ftp://proxy", "://"] {
        let error =
            load_file(&with(&wrong.replace("://proxy", &format!("://a:{TOKEN}@proxy"))), "")
                .await
                .unwrap_err();
        assert!(error.contains("proxy-url"), "{error}");
    }
}
