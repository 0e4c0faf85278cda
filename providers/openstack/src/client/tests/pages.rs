//! Lists: complete, or an error.

use super::*;

fn page(ids: &[u32], next: Option<&str>) -> Response<Bytes> {
    let items: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id.to_string(), "name": "n"}))
        .collect();
    let links = next
        .map(|href| json!([{"rel": "next", "href": href}]))
        .unwrap_or(json!([]));
    answer(200, json!({"networks": items, "networks_links": links}).to_string())
}

#[tokio::test(start_paused = true)]
async fn every_page_is_read_from_where_the_list_is() {
    let cloud = Tiny::new(|request: &http::Request<Bytes>, before| {
        let uri = request.uri();
        assert_eq!(
            (uri.host(), uri.path()),
            (Some("net.test"), "/v2.0/networks"),
            "the token goes nowhere else"
        );
        Ok(match before {
            0 => {
                assert_eq!(uri.query(), Some("name=x"));
                page(
                    &[1, 2],
                    Some("https://behind.proxy/network/v2.0/networks?limit=2&marker=2&name=x"),
                )
            }
            1 => {
                assert_eq!(uri.query(), Some("limit=2&marker=2&name=x"));
                // An empty page is not the end.
                page(&[], Some("/v2.0/networks?marker=3"))
            }
            _ => {
                assert_eq!(
                    uri.query(),
                    Some("marker=3&name=x"),
                    "a link without the filter gets it"
                );
                page(&[3], None)
            }
        })
    });
    let client = tiny(&cloud).await;
    let request = Request::new(Call::NetworkList, &["networks"]).query(&[("name", "x")]);
    let found: Vec<Network> = client.get_all(&op(), &request).await.unwrap();
    let ids: Vec<&str> = found.iter().map(|network| &*network.id).collect();
    assert_eq!((ids, cloud.requests()), (vec!["1", "2", "3"], 3));
}

#[tokio::test(start_paused = true)]
async fn pages_without_end_are_an_error() {
    let cloud = Tiny::new(|_: &http::Request<Bytes>, before| {
        Ok(page(&[1], Some(&format!("?marker={before}"))))
    });
    let error = networks(&tiny(&cloud).await).await.unwrap_err();
    assert!(error.to_string().contains("more than 1000 pages"), "{error}");
    assert_eq!((error.class(), cloud.requests()), (ErrorClass::Transient, 1000));
    let cloud = Tiny::new(|_: &http::Request<Bytes>, _| Ok(page(&[1], Some("?marker=1"))));
    let error = networks(&tiny(&cloud).await).await.unwrap_err();
    assert!(error.to_string().contains("the next page is the same page"), "{error}");
    assert_eq!(cloud.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_with_a_lost_page_is_no_list() {
    let cloud = Tiny::new(|_: &http::Request<Bytes>, before| match before {
        0 => Ok(page(&[1], Some("?marker=1"))),
        _ => Ok(answer(503, "busy")),
    });
    let error = networks(&tiny(&cloud).await).await.unwrap_err();
    assert_eq!((error.class(), cloud.requests()), (ErrorClass::Transient, 5));
}

#[tokio::test(start_paused = true)]
async fn the_local_clouds_pages_are_read_to_the_end() {
    let local =
        LocalCloud::in_memory(CloudSettings { page_size: Some(2), ..CloudSettings::default() });
    let client = client(&local).await;
    for _ in 0..5 {
        create(&client, &op()).await.unwrap();
    }
    let request =
        Request::new(Call::SecurityGroupList, &["security-groups"]).query(&[("name", "n")]);
    let found: Vec<Value> = client.get_all(&op(), &request).await.unwrap();
    assert_eq!(found.len(), 5);
    assert!(client.count(Call::SecurityGroupList) >= 3);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_read_costs_that_row_and_is_never_missing() {
    let cloud = Tiny::new(|_: &http::Request<Bytes>, before| {
        let odd = json!({"id": "odd", "name": "strange", "subnets": "none"});
        Ok(match before % 2 {
            0 => {
                let rows = json!({"networks": [{"id": "1"}, odd, null, "text"], "networks_links":
                    [{"rel": "next", "href": "?marker=1"}]});
                answer(200, rows.to_string())
            }
            _ => page(&[2], None),
        })
    });
    let client = tiny(&cloud).await;
    let request = Request::new(Call::NetworkList, &["networks"]);
    let found: Rows<Network> = client.get_rows(&op(), &request).await.unwrap();
    let ids: Vec<&str> = found.rows.iter().map(|network| &*network.id).collect();
    assert_eq!((ids, found.unreadable.len()), (vec!["1", "2"], 3));
    let [odd, null, text] = &found.unreadable[..] else {
        unreachable!()
    };
    assert_eq!((odd.text("id"), odd.text("subnets")), (Some("odd"), Some("none")));
    assert!(odd.may_have("name", "strange") && !odd.may_have("name", "other"));
    for unknown in [null, text] {
        assert!(unknown.may_have("name", "anything"), "nothing is known about it");
        assert!(unknown.shows("name"), "{unknown:?}");
    }
    // Whoever needs all rows gets an error that names the row.
    let error = client
        .get_all::<Network>(&op(), &request)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("\"odd\"") && !error.is_not_found(), "{error}");
    assert!(
        found
            .complete_for(|row| row.text("id") == Some("other"))
            .is_ok()
    );
}
