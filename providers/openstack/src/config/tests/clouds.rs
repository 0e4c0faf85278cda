//! `clouds.yaml` beside `cloud.conf`.

use std::path::Path;

use super::*;

/// A folder with files, and surroundings in which it is the working directory.
fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Environment) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let environment = Environment {
        folder: Some(folder.path().to_owned()),
        ..Environment::default()
    };
    (folder, environment)
}

const ONE: &str = "clouds:\n  one:\n    auth:\n      auth_url: https://yaml/v3\n      user_id: yaml-user\n      \
    password: yaml-pass\n      project_id: 0123\n    region_name: 01\n    interface: internal\n    cacert: /yaml/ca\n";

fn read_in(text: &str, environment: &Environment) -> Settings {
    parse(text, environment).unwrap_or_else(|errors| panic!("{text}: {errors}"))
}

fn refused_in(text: &str, environment: &Environment) -> String {
    parse(text, environment).unwrap_err().to_string()
}

// C03
#[test]
fn cloud_conf_wins_and_the_rest_is_taken() {
    let yaml = "clouds:\n  local:\n    auth:\n      auth_url: https://yaml/v3\n      user_id: uid\n      username: uname\n      \
        password: yaml\n      project_name: tenant\n    region_name: region\n";
    let (_folder, environment) = folder(&[("clouds.yaml", yaml)]);
    let text = "[Global]\nuse-clouds\nauth-url=https://own/v3\ntrust-id=trust\npassword=own\n[LoadBalancer]\nmax-shared-lb=4\n";
    let raw = read_raw(text, &environment, &mut ValidationReport::default());
    let global = &raw.global;
    assert_eq!((&*global.auth_url.value, &*global.trust_id.value), ("https://own/v3", "trust"));
    assert_eq!(global.password.value.0.expose(), "own");
    assert_eq!((&*global.user_id.value, &*global.username.value), ("uid", "uname"));
    assert_eq!((&*global.tenant_name.value, &*global.region.value), ("tenant", "region"));
    assert_eq!(raw.load_balancer.max_shared.value, Some(4));
}

/// Upstream loses what cloud.conf says when the cloud is named.
#[test]
fn cloud_conf_wins_when_the_cloud_is_named_as_well() {
    let (folder, environment) = folder(&[("clouds.yaml", ONE)]);
    let text = "[Global]\nuse-clouds=true\ncloud=one\nauth-url=https://own/v3\npassword=own\nregion=here\n";
    let Settings { cloud, sources, .. } = read_in(text, &environment);
    assert_eq!(cloud.auth.url.as_str(), "https://own/v3");
    assert_eq!(
        cloud.auth.identity,
        Identity::Password { user: User::Id("yaml-user".into()), password: "own".into() }
    );
    assert_eq!((cloud.auth.scope, &*cloud.region), (Scope::Project("0123".into()), "here"));
    assert_eq!(
        (cloud.interface, cloud.tls.ca_file.as_deref()),
        (Interface::Internal, Some(Path::new("/yaml/ca")))
    );
    assert_eq!(sources, [folder.path().join("clouds.yaml")]);
    assert_eq!(
        &*read_in("[Global]\nuse-clouds\n", &environment).cloud.region,
        "01",
        "digits are text"
    );
}

#[test]
fn a_user_of_cloud_conf_takes_no_other_proof_from_the_file() {
    let yaml = "clouds:\n  one:\n    auth:\n      username: other\n      application_credential_id: c\n      \
        application_credential_secret: s\n";
    let (_folder, environment) = folder(&[("clouds.yml", yaml)]);
    let own = "[Global]\nuse-clouds\nauth-url=https://own/v3\n";
    let mine = read_in(&format!("{own}user-id=me\npassword=p\n"), &environment);
    let expected = Identity::Password { user: User::Id("me".into()), password: "p".into() };
    assert_eq!(mine.cloud.auth.identity, expected);
    let theirs = read_in(own, &environment);
    assert_eq!(
        theirs.cloud.auth.identity,
        Identity::Credential { id: "c".into(), secret: "s".into() }
    );
}

#[test]
fn secure_and_public_files_are_laid_over_and_under() {
    let own =
        "clouds:\n  one:\n    profile: vendor\n    auth:\n      user_id: me\n      project_id: p\n";
    let public = "public-clouds:\n  vendor:\n    auth:\n      auth_url: https://vendor/v3\n      user_id: nobody\n    region_name: r\n";
    let secure = "clouds:\n  one:\n    auth:\n      password: hidden\n";
    let files = [("clouds.yaml", own), ("clouds-public.yaml", public), ("secure.yaml", secure)];
    let (_folder, environment) = folder(&files);
    let settings = read_in("[Global]\nuse-clouds\n", &environment);
    assert_eq!(settings.cloud.auth.url.as_str(), "https://vendor/v3");
    let expected = Identity::Password { user: User::Id("me".into()), password: "hidden".into() };
    assert_eq!((settings.cloud.auth.identity, &*settings.cloud.region), (expected, "r"));
    assert_eq!(settings.sources.len(), 3);
}

#[test]
fn file_and_cloud_are_named_by_key_or_variable() {
    let two = format!(
        "{ONE}  two:\n    auth:\n      auth_url: https://two/v3\n      user_id: u\n      password: p\n"
    );
    let (folder, mut environment) = folder(&[("elsewhere.yaml", &two)]);
    let file = folder.path().join("elsewhere.yaml").display().to_string();
    let named = format!("[Global]\nuse-clouds\nclouds-file={file}\n");
    let error = refused_in(&named, &environment);
    assert!(
        error.contains("no cloud is chosen: set cloud, or OS_CLOUD, to one of \"one\", \"two\""),
        "{error}"
    );
    let url = |text: &str, environment: &Environment| {
        read_in(text, environment).cloud.auth.url.to_string()
    };
    assert_eq!(url(&format!("{named}cloud=two\n"), &environment), "https://two/v3");
    environment.variables =
        [("OS_CLOUD", "two".to_owned()), ("OS_CLIENT_CONFIG_FILE", file)].into();
    assert_eq!(url("[Global]\nuse-clouds\n", &environment), "https://two/v3");
    assert_eq!(url("[Global]\nuse-clouds\ncloud=one\n", &environment), "https://yaml/v3");
    let error = refused_in("[Global]\nuse-clouds\ncloud=three\n", &environment);
    assert!(error.contains("there is no cloud \"three\", only \"one\", \"two\""), "{error}");
}

#[test]
fn what_is_wrong_with_the_file_is_told_without_its_text() {
    let text = "[Global]\nuse-clouds\n";
    let (_folder, environment) = folder(&[]);
    let error = refused_in(text, &environment);
    assert!(error.contains("line 2: [Global] use-clouds: there is no clouds.yaml in "), "{error}");
    let (_folder, environment) =
        folder(&[("clouds.yaml", "clouds:\n  one:\n    auth: {password: hunter2\n  x: [\n")]);
    let error = refused_in(text, &environment);
    assert!(
        error.contains("clouds.yaml line ")
            && error.contains("is not a valid clouds.yaml")
            && !error.contains("hunter2"),
        "{error}"
    );
    let error = refused_in("[Global]\nuse-clouds\nclouds-file=/nonexistent/c.yaml\n", &environment);
    assert!(error.contains("/nonexistent/c.yaml: there is no such file"), "{error}");
}

#[test]
fn rotated_credentials_are_read_anew() {
    use crate::client::Credentials as _;
    let (folder, environment) = folder(&[("clouds.yaml", ONE)]);
    let file = folder.path().join("cloud.conf");
    std::fs::write(&file, "[Global]\nuse-clouds\n").unwrap();
    let reloaded = ReloadingCredentials::new(&file, environment);
    let password = |auth: Auth| match auth.identity {
        Identity::Password { password, .. } => password.expose().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(password(reloaded.read().unwrap()), "yaml-pass");
    let before = reloaded.file_version();
    assert_eq!(reloaded.file_version(), before);
    std::fs::write(folder.path().join("clouds.yaml"), ONE.replace("yaml-pass", "a-new-password"))
        .unwrap();
    assert_ne!(reloaded.file_version(), before);
    assert_eq!(password(reloaded.read().unwrap()), "a-new-password");
    std::fs::write(&file, "[Global]\nuse-clouds = what\n").unwrap();
    let error = reloaded.read().unwrap_err();
    assert!(error.contains("line 2: [Global] use-clouds: failed to parse"), "{error}");
}
