//! Lives, owners and addresses of load balancers.

use std::{net::IpAddr, time::Duration};

use ccm_core::provider::ErrorKind;
use tokio::time::sleep;

use super::{
    tests::{balancer, cloud, key},
    *,
};

fn families(families: &[Family], requested: Option<&str>) -> LoadBalancerSettings {
    LoadBalancerSettings {
        families: families.to_vec(),
        requested_address: requested.map(|address| address.parse().unwrap()),
        ..balancer("c", "a").settings
    }
}

fn named(name: &str, settings: LoadBalancerSettings) -> LoadBalancerSpec {
    LoadBalancerSpec { settings, ..balancer("c", name) }
}

#[tokio::test(start_paused = true)]
async fn a_balancer_becomes_active_in_its_time() {
    let cloud = cloud("loadBalancerActivation: 30s");
    let made = cloud
        .create_load_balancer(&balancer("c", "slow"))
        .await
        .unwrap();
    assert_eq!(made.state, LoadBalancerState::Provisioning);
    let quick = LoadBalancerSpec {
        activation: Some(Duration::from_secs(5)),
        ..balancer("c", "quick")
    };
    cloud.create_load_balancer(&quick).await.unwrap();
    let at_once = LoadBalancerSpec { activation: Some(Duration::ZERO), ..balancer("c", "now") };
    assert_eq!(
        cloud.create_load_balancer(&at_once).await.unwrap().state,
        LoadBalancerState::Active
    );
    let states = || {
        cloud
            .load_balancers()
            .into_iter()
            .map(|b| (b.name, b.state == LoadBalancerState::Active))
    };
    let seen = |slow, quick| {
        states()
            .eq([("now", true), ("quick", quick), ("slow", slow)].map(|(n, s)| (n.to_owned(), s)))
    };
    sleep(Duration::from_millis(4999)).await;
    assert!(seen(false, false));
    sleep(Duration::from_millis(1)).await;
    assert!(seen(false, true));
    sleep(Duration::from_millis(24_999)).await;
    assert!(seen(false, true));
    sleep(Duration::from_millis(1)).await;
    assert!(seen(true, true));
    assert_eq!(
        cloud
            .get_load_balancer(&key("c", "slow"))
            .await
            .unwrap()
            .unwrap()
            .generation,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_is_being_deleted_holds_name_address_and_quota() {
    let cloud = cloud(
        "{loadBalancerDeletion: 10s, loadBalancerQuota: 1, loadBalancerAddressPool: 192.0.2.1/32}",
    );
    let made = cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    assert_eq!(cloud.delete_load_balancer(&key("c", "none")).await.unwrap(), DeleteResult::Gone);
    assert_eq!(cloud.delete_load_balancer(&key("c", "a")).await.unwrap(), DeleteResult::InProgress);
    sleep(Duration::from_secs(9)).await;
    assert_eq!(
        cloud.delete_load_balancer(&key("c", "a")).await.unwrap(),
        DeleteResult::InProgress,
        "not prolonged"
    );
    let seen = cloud
        .get_load_balancer(&key("c", "a"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(seen, LoadBalancer { state: LoadBalancerState::Deleting, ..made.clone() });
    let changes = [
        cloud.create_load_balancer(&balancer("c", "a")).await,
        cloud
            .modify_load_balancer(&key("c", "a"), &made.settings)
            .await,
        cloud
            .update_load_balancer(&key("c", "a"), &made.members)
            .await,
    ];
    assert!(
        changes
            .iter()
            .all(|c| c.as_ref().is_err_and(|e| e.kind() == ErrorKind::Conflict)),
        "{changes:?}"
    );
    let other = cloud
        .create_load_balancer(&balancer("c", "b"))
        .await
        .unwrap_err();
    assert_eq!(other.kind(), ErrorKind::QuotaExceeded);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(cloud.delete_load_balancer(&key("c", "a")).await.unwrap(), DeleteResult::Gone);
    let anew = cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    assert_eq!((anew.address, anew.state), (made.address, LoadBalancerState::Active));
    assert_ne!(anew.id, made.id, "an identifier is not used twice");
}

#[tokio::test]
async fn creating_again_changes_nothing() {
    let cloud = cloud("");
    let made = cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    let other = LoadBalancerSpec { members: Members::nodes(["n9"]), ..balancer("c", "a") };
    assert_eq!(cloud.create_load_balancer(&other).await.unwrap(), made);
    assert_eq!(cloud.load_balancers(), [made]);
}

#[tokio::test]
async fn only_a_change_counts_as_one() {
    let cloud = cloud("");
    let made = cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    let key = key("c", "a");
    let same = cloud
        .modify_load_balancer(&key, &made.settings)
        .await
        .unwrap();
    assert_eq!(same, made);
    assert_eq!(
        cloud
            .update_load_balancer(&key, &made.members)
            .await
            .unwrap(),
        made
    );
    let members = Members::nodes(["n3", "n2", "n3"]);
    let updated = cloud.update_load_balancer(&key, &members).await.unwrap();
    assert_eq!((updated.generation, &*updated.nodes), (2, &["n2".to_owned(), "n3".to_owned()][..]));
    let settings = LoadBalancerSettings {
        internal: true,
        listeners: Vec::new(),
        ..made.settings.clone()
    };
    let modified = cloud.modify_load_balancer(&key, &settings).await.unwrap();
    assert_eq!(
        (modified.generation, &modified.ports, &modified.nodes),
        (3, &vec![], &updated.nodes)
    );
    assert_eq!((modified.settings, modified.address), (settings, made.address));
}

#[tokio::test]
async fn an_owner_is_a_cluster_and_a_service() {
    let cloud = cloud("");
    let made = cloud
        .create_load_balancer(&balancer("one", "a"))
        .await
        .unwrap();
    let strangers =
        [key("two", "a"), LoadBalancerKey { uid: "other".to_owned(), ..key("one", "a") }];
    for stranger in strangers {
        assert_eq!(cloud.get_load_balancer(&stranger).await.unwrap(), None);
        assert_eq!(cloud.delete_load_balancer(&stranger).await.unwrap(), DeleteResult::Gone);
        let spec = LoadBalancerSpec { key: stranger.clone(), ..balancer("one", "a") };
        assert_eq!(
            cloud.create_load_balancer(&spec).await.unwrap_err().kind(),
            ErrorKind::Conflict
        );
        let changes = [
            cloud
                .modify_load_balancer(&stranger, &LoadBalancerSettings::default())
                .await,
            cloud
                .update_load_balancer(&stranger, &Members::default())
                .await,
        ];
        assert!(
            changes
                .iter()
                .all(|c| c.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound)),
            "{changes:?}"
        );
    }
    assert_eq!(cloud.load_balancers(), [made]);
}

// length: one scenario, in which each step starts from the addresses of the one before
#[tokio::test]
async fn addresses_follow_the_families_and_keep_what_fits() {
    let cloud = cloud(
        "{loadBalancerAddressPool: 192.0.2.0/30, loadBalancerIPv6AddressPool: '2001:db8::/127'}",
    );
    let ips = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| text.parse().unwrap())
            .collect::<Vec<IpAddr>>()
    };
    let a = cloud
        .create_load_balancer(&named("a", families(&[], None)))
        .await
        .unwrap();
    assert_eq!(a.addresses, ips(&["192.0.2.1"]), "the family of the first pool");
    let (v4, v6) = (Family::V4, Family::V6);
    let steps: [(&[Family], Option<&str>, &[&str]); 8] = [
        (&[v4, v6], None, &["192.0.2.1", "2001:db8::"]),
        (&[v6, v4], None, &["2001:db8::", "192.0.2.1"]),
        (&[], None, &["2001:db8::", "192.0.2.1"]),
        (&[v6], None, &["2001:db8::"]),
        (&[v6, v4], Some("192.0.2.2"), &["2001:db8::", "192.0.2.2"]),
        (&[v6, v4], Some("2001:db8::1"), &["2001:db8::1", "192.0.2.2"]),
        (&[v6, v4], None, &["2001:db8::1", "192.0.2.2"]),
        (&[v4], None, &["192.0.2.2"]),
    ];
    for (desired, requested, addresses) in steps {
        let modified = cloud
            .modify_load_balancer(&key("c", "a"), &families(desired, requested))
            .await
            .unwrap();
        assert_eq!(
            (modified.addresses, modified.address),
            (ips(addresses), ips(addresses)[0]),
            "{desired:?} {requested:?}"
        );
    }
    let b = cloud
        .create_load_balancer(&named("b", families(&[v4, v6], None)))
        .await
        .unwrap();
    assert_eq!(
        b.addresses,
        ips(&["192.0.2.1", "2001:db8::"]),
        "what was freed is handed out again"
    );
    let wrong: [(&[Family], Option<&str>, ErrorKind); 4] = [
        (&[v4], Some("192.0.2.1"), ErrorKind::Conflict),
        (&[v4], Some("192.0.2.3"), ErrorKind::InvalidInput),
        (&[v4], Some("2001:db8::1"), ErrorKind::InvalidInput),
        (&[v6, v4], Some("203.0.113.1"), ErrorKind::InvalidInput),
    ];
    for (desired, requested, kind) in wrong {
        let failed = cloud
            .modify_load_balancer(&key("c", "a"), &families(desired, requested))
            .await
            .unwrap_err();
        assert_eq!(failed.kind(), kind, "{failed}");
        assert_eq!(
            cloud
                .get_load_balancer(&key("c", "a"))
                .await
                .unwrap()
                .unwrap()
                .addresses,
            ips(&["192.0.2.2"])
        );
    }
    // The IPv6 address that was taken before the IPv4 one was refused is free again.
    cloud
        .modify_load_balancer(&key("c", "b"), &families(&[v4], None))
        .await
        .unwrap();
    let none = cloud
        .create_load_balancer(&named("x", families(&[v6, v4], None)))
        .await
        .unwrap_err();
    assert_eq!(none.kind(), ErrorKind::QuotaExceeded);
    let both: Vec<_> = [
        cloud
            .create_load_balancer(&named("y", families(&[v6], None)))
            .await
            .unwrap()
            .address,
        cloud
            .create_load_balancer(&named("z", families(&[v6], None)))
            .await
            .unwrap()
            .address,
    ]
    .into();
    let mut both = both;
    both.sort();
    assert_eq!(both, ips(&["2001:db8::", "2001:db8::1"]));
}

#[tokio::test]
async fn an_ipv6_network_as_first_pool_is_the_default_family() {
    let cloud = cloud("loadBalancerAddressPool: '2001:db8::/64'");
    let made = cloud
        .create_load_balancer(&named("a", families(&[], None)))
        .await
        .unwrap();
    assert_eq!(made.addresses, ["2001:db8::1".parse::<IpAddr>().unwrap()]);
    let v4 = cloud
        .create_load_balancer(&named("b", families(&[Family::V4], None)))
        .await
        .unwrap();
    assert_eq!(v4.address.to_string(), "198.18.0.1");
}

#[tokio::test(start_paused = true)]
async fn what_is_changed_by_hand_is_not_counted() {
    let cloud = cloud("");
    let made = cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    let calls = cloud.calls();
    assert_eq!(
        cloud
            .edit_load_balancer("none", LoadBalancerEdit::default())
            .unwrap(),
        None
    );
    assert_eq!(
        cloud
            .edit_load_balancer("a", LoadBalancerEdit::default())
            .unwrap(),
        Some(made.clone())
    );
    let stuck = LoadBalancerEdit {
        state: Some(LoadBalancerState::Provisioning),
        ..LoadBalancerEdit::default()
    };
    cloud.edit_load_balancer("a", stuck).unwrap();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        cloud.load_balancers()[0].state,
        LoadBalancerState::Provisioning,
        "until it is put again"
    );
    let deleting = LoadBalancerEdit {
        state: Some(LoadBalancerState::Deleting),
        ..LoadBalancerEdit::default()
    };
    assert_eq!(cloud.edit_load_balancer("a", deleting).unwrap_err().field, "state");
    assert!(cloud.remove_load_balancer("a"));
    assert!(!cloud.remove_load_balancer("a"));
    assert_eq!(cloud.calls(), calls);
    assert_eq!(
        cloud
            .create_load_balancer(&balancer("c", "b"))
            .await
            .unwrap()
            .address,
        made.address
    );
}
