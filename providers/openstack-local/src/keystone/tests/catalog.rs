use super::*;
use crate::server::CatalogForm;

#[tokio::test(start_paused = true)]
async fn the_catalog_has_what_clients_look_for() {
    let cloud = cloud();
    let token = cloud.token("demo").await;
    let answer = cloud.get("/identity/v3/auth/catalog", &token).await;
    assert_eq!(answer.body["catalog"], says(&cloud, &token).await["catalog"]);
    let catalog = answer.body["catalog"].as_array().unwrap();
    let kinds: Vec<&str> = catalog
        .iter()
        .map(|service| service["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["compute", "identity", "image", "key-manager", "load-balancer", "network"]);
    for service in catalog {
        let endpoints = service["endpoints"].as_array().unwrap();
        let mut interfaces: Vec<&str> = endpoints
            .iter()
            .map(|row| row["interface"].as_str().unwrap())
            .collect();
        interfaces.sort_unstable();
        assert_eq!(interfaces, ["admin", "internal", "public"], "{service}");
        for endpoint in endpoints {
            assert_eq!(
                (&endpoint["region"], &endpoint["region_id"]),
                (&json!("RegionOne"), &json!("RegionOne"))
            );
            let url = endpoint["url"].as_str().unwrap();
            let path = url
                .strip_prefix("http://cloud.test:5000/")
                .expect("absolute, by the request's host");
            // Clients cut an address at what looks like the first version.
            let cuts = path.match_indices('v').filter(|(at, _)| {
                path[at + 1..].starts_with(|next: char| next.is_ascii_digit() || next == '.')
            });
            assert_eq!(cuts.count(), usize::from(path == "compute/v2.1"), "{url}");
        }
    }
    let unscoped = cloud
        .authenticate(cloud.password("demo"), Value::Null)
        .await
        .token();
    assert_eq!(
        cloud
            .get("/identity/v3/auth/catalog", &unscoped)
            .await
            .status,
        403
    );
}

#[tokio::test(start_paused = true)]
async fn addresses_have_versions_as_the_settings_say() {
    let cloud = cloud();
    for (form, expected) in [
        (
            CatalogForm::Usual,
            ["compute/v2.1", "identity", "image", "key-manager", "load-balancer", "network"],
        ),
        (
            CatalogForm::Unversioned,
            ["compute", "identity", "image", "key-manager", "load-balancer", "network"],
        ),
        (
            CatalogForm::Versioned,
            [
                "compute/v2.1",
                "identity/v3",
                "image/v2",
                "key-manager/v1",
                "load-balancer/v2.0",
                "network/v2.0",
            ],
        ),
    ] {
        cloud.local.cloud().set(|settings| settings.catalog = form);
        let token = cloud.token("demo").await;
        let catalog = says(&cloud, &token).await["catalog"].clone();
        let paths: Vec<&str> = catalog
            .as_array()
            .unwrap()
            .iter()
            .map(|service| {
                service["endpoints"][0]["url"]
                    .as_str()
                    .unwrap()
                    .trim_start_matches("http://cloud.test:5000/")
            })
            .collect();
        assert_eq!(paths, expected, "{form:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn services_endpoints_and_regions_are_listed() {
    let cloud = cloud();
    let token = cloud.token("demo").await;
    let list = async |path: &str| {
        cloud
            .get(&format!("/identity/v3/{path}"), &token)
            .await
            .body
    };
    let services = list("services").await;
    assert_eq!(
        names(&services["services"]),
        ["barbican", "glance", "keystone", "neutron", "nova", "octavia"]
    );
    let nova = list("services?type=compute").await["services"][0].clone();
    assert_eq!(nova["name"], "nova");
    let id = nova["id"].as_str().unwrap();
    assert_eq!(list(&format!("services/{id}")).await["service"], nova);
    let endpoints = list(&format!("endpoints?service_id={id}&interface=public")).await;
    assert_eq!(endpoints["endpoints"][0]["url"], "http://cloud.test:5000/compute/v2.1");
    let endpoint = endpoints["endpoints"][0]["id"].as_str().unwrap();
    assert_eq!(list(&format!("endpoints/{endpoint}")).await["endpoint"], endpoints["endpoints"][0]);
    assert_eq!(
        list("endpoints").await["endpoints"]
            .as_array()
            .unwrap()
            .len(),
        18
    );
    assert_eq!(ids(&list("regions").await["regions"]), ["RegionOne"]);
    assert_eq!(list("regions/RegionOne").await["region"]["id"], "RegionOne");
    for path in ["services/x", "endpoints/x", "regions/x"] {
        assert_eq!(
            cloud
                .get(&format!("/identity/v3/{path}"), &token)
                .await
                .status,
            404,
            "{path}"
        );
        assert_eq!(cloud.get(&format!("/identity/v3/{path}"), "").await.status, 401, "{path}");
    }
}
