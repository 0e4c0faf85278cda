use serde_json::{Value, json};

use super::*;

const ATTRIBUTES: [&str; 10] = [
    "id",
    "name",
    "admin_state_up",
    "port",
    "owner",
    "fixed_ips",
    "security_groups",
    "tags",
    "parent",
    "created_at",
];

fn rows() -> Vec<Value> {
    vec![
        json!({"id": "c", "name": "x", "admin_state_up": true, "port": 80, "owner": null, "created_at": "2020-01-03",
            "fixed_ips": [{"subnet_id": "s1", "ip_address": "10.0.0.1"}, {"subnet_id": "s2", "ip_address": "10.1.0.1"}],
            "security_groups": ["g1", "g2"], "tags": ["a", "b"], "parent": "p1"}),
        json!({"id": "a", "name": "y", "admin_state_up": false, "port": 443, "owner": "o", "created_at": "2020-01-01",
            "fixed_ips": [{"subnet_id": "s1", "ip_address": "10.0.0.12"}],
            "security_groups": ["g2"], "tags": ["b", "c"], "parent": "p2"}),
        json!({"id": "b", "name": "x", "admin_state_up": true, "port": 8080, "owner": "o", "created_at": "2020-01-02",
            "fixed_ips": [], "security_groups": [], "tags": [], "parent": "p1"}),
    ]
}

fn query(query: &str) -> Query {
    Query::new(&format!("http://c/v2.0/things?{query}"))
}

fn ids(body: &Value, key: &str) -> String {
    body[key]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect()
}

fn rules(style: Style) -> Rules<'static> {
    let settings = Settings::default();
    match style {
        Style::Neutron => Rules::neutron("things", &ATTRIBUTES, &settings),
        Style::Octavia => Rules::octavia("things", &ATTRIBUTES, &settings),
        Style::Nova => Rules::nova("things", &ATTRIBUTES, &settings),
        Style::Keystone => Rules::keystone("things", &ATTRIBUTES),
    }
}

#[test]
fn filters_leave_what_was_asked_for() {
    for (asked, expected) in [
        ("", "abc"),
        ("name=x", "bc"),
        ("name=x&name=y", "abc"),
        ("name=x&port=80", "c"),
        ("name=z", ""),
        ("admin_state_up=True", "bc"),
        ("admin_state_up=false", "a"),
        ("port=443", "a"),
        ("owner=", "c"),
        ("security_groups=g2", "ac"),
        ("security_groups=g1&security_groups=g3", "c"),
        ("fixed_ips=subnet_id=s1", "ac"),
        ("fixed_ips=ip_address=10.0.0.1", "c"),
        ("fixed_ips=ip_address=10.0.0.1&fixed_ips=ip_address=10.0.0.12", "ac"),
        // The same address must fulfil both.
        ("fixed_ips=subnet_id%3Ds2&fixed_ips=ip_address%3D10.0.0.1", ""),
        ("fixed_ips=subnet_id%3Ds2&fixed_ips=ip_address%3D10.1.0.1", "c"),
        ("fixed_ips=ip_address_substr=10.0", "ac"),
        ("tags=b", "ac"),
        ("tags=a,b", "c"),
        ("tags=b&tags=c", "a"),
        ("tags-any=a,c", "ac"),
        ("not-tags=a,b", "ab"),
        ("not-tags-any=a,c", "b"),
        ("name=x&tags=a", "c"),
    ] {
        for style in [Style::Neutron, Style::Octavia] {
            let rules = Rules { order: &[], ..rules(style) };
            let body = list(&query(asked), &rules, rows()).unwrap();
            assert_eq!(ids(&body, "things"), expected, "{style:?} {asked}");
        }
    }
}

#[test]
fn what_cannot_be_filtered_by_is_refused_where_the_service_does_so() {
    let asked = query("colour=red");
    for (style, refused) in [
        (Style::Neutron, true),
        (Style::Octavia, true),
        (Style::Nova, false),
        (Style::Keystone, false),
    ] {
        let body = list(&asked, &rules(style), rows());
        assert_eq!(body.is_err(), refused, "{style:?}");
    }
    let error = list(&asked, &rules(Style::Octavia), rows()).unwrap_err();
    assert_eq!(
        (error.status.as_u16(), &*error.message),
        (400, "['colour'] is invalid attribute for filtering")
    );
    let tolerant = Rules { ignored: &["colour"], ..rules(Style::Octavia) };
    assert_eq!(ids(&list(&asked, &tolerant, rows()).unwrap(), "things").len(), 3);
    // Even when there is nothing to filter.
    assert!(list(&asked, &rules(Style::Octavia), Vec::new()).is_err());
    // Tags are no attribute of everything.
    let untagged = Rules { attributes: &["id"], ..rules(Style::Neutron) };
    assert!(list(&query("tags=a"), &untagged, rows()).is_err());
}

#[test]
fn rows_have_the_asked_order() {
    for (style, asked, expected) in [
        (Style::Neutron, "", "abc"),
        (Style::Neutron, "sort_key=name", "bca"),
        (Style::Neutron, "sort_key=name&sort_dir=desc", "abc"),
        (Style::Neutron, "sort_key=name&sort_dir=asc&sort_key=id&sort_dir=desc", "cba"),
        (Style::Neutron, "sort_key=port", "cab"),
        (Style::Neutron, "sort_key=owner", "cab"),
        (Style::Neutron, "sort_key=admin_state_up", "abc"),
        (Style::Octavia, "", "abc"),
        (Style::Octavia, "sort=created_at:desc", "cba"),
        (Style::Octavia, "sort=name:desc,id:desc", "acb"),
        (Style::Nova, "sort_key=created_at", "cba"),
        (Style::Nova, "sort_key=created_at&sort_dir=asc", "abc"),
        (Style::Keystone, "", "bca"),
    ] {
        let body = list(&query(asked), &rules(style), rows()).unwrap();
        assert_eq!(ids(&body, "things"), expected, "{style:?} {asked}");
    }
    for asked in ["sort_key=colour", "sort_key=name&sort_dir=up"] {
        assert_eq!(
            list(&query(asked), &rules(Style::Neutron), rows())
                .unwrap_err()
                .status,
            400,
            "{asked}"
        );
    }
}

/// Follows links from page to page, and returns the IDs of each.
fn walk(rules: &Rules<'_>, start: &str, rel: &str) -> Vec<String> {
    let mut pages = Vec::new();
    let mut address = format!("http://c/v2.0/things?{start}");
    for _ in 0..10 {
        let body = list(&Query::new(&address), rules, rows()).unwrap();
        pages.push(ids(&body, "things"));
        let links = body["things_links"].as_array().cloned().unwrap_or_default();
        let Some(link) = links.iter().find(|link| link["rel"] == rel) else {
            return pages;
        };
        link["href"].as_str().unwrap().clone_into(&mut address);
    }
    panic!("no last page: {pages:?}");
}

#[test]
fn pages_follow_each_other_to_the_end() {
    let small = |style| Rules { page_size: Some(2), order: &[], ..rules(style) };
    for (style, start, expected) in [
        (Style::Neutron, "limit=2", vec!["ab", "c"]),
        (Style::Octavia, "limit=2", vec!["ab", "c"]),
        (Style::Nova, "limit=2", vec!["ab", "c"]),
        // A full last page has a next one, which is empty.
        (Style::Neutron, "limit=1", vec!["a", "b", "c", ""]),
        (Style::Octavia, "limit=3", vec!["abc", ""]),
        // The filter stays.
        (Style::Neutron, "limit=1&name=x", vec!["b", "c", ""]),
        (Style::Octavia, "limit=2&sort_key=port&sort_dir=desc", vec!["ba", "c"]),
    ] {
        let rules = Rules { order: &[], ..rules(style) };
        assert_eq!(walk(&rules, start, "next"), expected, "{style:?} {start}");
    }
    for style in [Style::Neutron, Style::Octavia, Style::Nova] {
        assert_eq!(walk(&small(style), "", "next"), ["ab", "c"], "{style:?}: the service limits");
        assert_eq!(
            walk(&small(style), "limit=9", "next"),
            ["ab", "c"],
            "{style:?}: the service limits more"
        );
    }
}

#[test]
fn pages_can_be_walked_backwards() {
    for style in [Style::Neutron, Style::Octavia] {
        let rules = Rules { order: &[], ..rules(style) };
        assert_eq!(
            walk(&rules, "limit=1&marker=c&page_reverse=True", "previous"),
            ["b", "a", ""],
            "{style:?}"
        );
        let body = list(&query("limit=1&marker=c&page_reverse=True"), &rules, rows()).unwrap();
        let links = body["things_links"].as_array().unwrap();
        assert!(links.iter().any(|link| link["rel"] == "next"), "{links:?}");
        let body = list(&query("limit=1&marker=a"), &rules, rows()).unwrap();
        assert!(
            body["things_links"]
                .as_array()
                .unwrap()
                .iter()
                .any(|link| link["rel"] == "previous")
        );
    }
}

#[test]
fn links_are_where_each_service_has_them() {
    let keys = |style, asked| {
        let body = list(&query(asked), &rules(style), rows()).unwrap();
        body.as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "things")
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (style, asked, expected) in [
        (Style::Neutron, "", ""),
        (Style::Neutron, "limit=5", ""),
        (Style::Neutron, "limit=2", "things_links"),
        (Style::Octavia, "", "things_links"),
        (Style::Nova, "", ""),
        (Style::Nova, "limit=3", "things_links"),
        (Style::Keystone, "limit=1", "links"),
    ] {
        assert_eq!(keys(style, asked), expected, "{style:?} {asked}");
    }
    let body = list(&query("name=x&limit=1"), &rules(Style::Neutron), rows()).unwrap();
    let expected = json!([{"rel": "next", "href": "http://c/v2.0/things?name=x&limit=1&marker=b"}]);
    assert_eq!(body["things_links"], expected);
    let body = list(&query("x=y"), &rules(Style::Keystone), rows()).unwrap();
    assert_eq!(
        body["links"],
        json!({"next": null, "previous": null, "self": "http://c/v2.0/things"})
    );
}

#[test]
fn limits_and_markers_that_make_no_sense_are_refused() {
    for asked in ["limit=x", "limit=-1", "marker=z"] {
        for style in [Style::Neutron, Style::Octavia, Style::Nova] {
            assert_eq!(
                list(&query(asked), &rules(style), rows())
                    .unwrap_err()
                    .status,
                400,
                "{style:?} {asked}"
            );
        }
    }
    for (style, expected) in [(Style::Neutron, 3), (Style::Octavia, 3), (Style::Nova, 0)] {
        let body = list(&query("limit=0"), &rules(style), rows()).unwrap();
        assert_eq!(body["things"].as_array().unwrap().len(), expected, "{style:?}");
    }
}

#[test]
fn only_asked_fields_are_shown_and_hidden_ones_never() {
    let rules = Rules { hidden: &["parent"], ..rules(Style::Neutron) };
    let body = list(&query("parent=p2"), &rules, rows()).unwrap();
    assert_eq!(ids(&body, "things"), "a");
    assert!(body["things"][0].get("parent").is_none());
    let body = list(&query("name=y&fields=id&fields=port&fields=parent"), &rules, rows()).unwrap();
    assert_eq!(body["things"], json!([{"id": "a", "port": 443}]));
}
