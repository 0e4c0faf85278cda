//! Declares every option of `cloud.conf`, by section. Parsing and the reference page are generated
//! from these tables.
//!
//! To add an option, for example one of `[LoadBalancer]`:
//! 1. Declare it here: field, type, key, default and description.
//! 2. Add a field with its default to the section's struct in `settings.rs`.
//! 3. Fill the field, and check the value: in `check_load_balancer.rs` for `[LoadBalancer]` and its
//!    classes, in `auth.rs` for credentials, else in `validate.rs`.
//! 4. Show the effective value in `effective.rs`.
//! 5. Hand it to the code that uses it: `lb/settings.rs` for load balancers,
//!    `provider/settings.rs` for instances.
//! 6. Add it to the tests of its section in `tests.rs`.
//! 7. Update the reference page: `CCM_UPDATE_REFERENCE=1 cargo test -p ccm-openstack
//!    reference_page`.

use std::time::Duration;

use ccm_core::{
    config::gcfg_keys::{ConfigType, required},
    config_keys,
};
use openstack_api::Secret;

/// Text that is never shown.
#[derive(Clone, Debug)]
pub(crate) struct SecretValue(pub(crate) Secret);

impl Default for SecretValue {
    fn default() -> Self {
        Self(Secret::from(""))
    }
}

impl ConfigType for SecretValue {
    const NAME: &str = "secret";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        self.0 = Secret::from(required(value)?);
        Ok(())
    }
}

config_keys! {
    /// Section `[Global]` as written.
    Global {
        upstream auth_url: String = "auth-url" "" "Keystone, with `/v3` or without. Required."
        upstream username: String = "username" "" "User by name, in `user-domain-*` or `domain-*`. Either this or `user-id`."
        upstream user_id: String = "user-id" "" "User by ID."
        upstream password: SecretValue = "password" "" "Password of the user."
        upstream domain_id: String = "domain-id" "" "Domain by ID for user and project where they name none. Without a project it is what the token is good for."
        upstream domain_name: String = "domain-name" "" "The same by name; the ID wins."
        upstream user_domain_id: String = "user-domain-id" "" "Domain of the user, by ID."
        upstream user_domain_name: String = "user-domain-name" "" "Domain of the user, by name. Not both."
        upstream tenant_id: String = "tenant-id" "" "Project by ID; wins over `tenant-name`."
        upstream tenant_name: String = "tenant-name" "" "Project by name, in `tenant-domain-*` or `domain-*`."
        upstream tenant_domain_id: String = "tenant-domain-id" "" "Domain of the project, by ID."
        upstream tenant_domain_name: String = "tenant-domain-name" "" "Domain of the project, by name; the ID wins."
        upstream trust_id: String = "trust-id" "" "Trust that the token is good for; projects and domains do not count then."
        upstream trustee_id: String = "trustee-id" "" "With `trust-id`: user by ID, in place of the user above."
        upstream trustee_password: SecretValue = "trustee-password" "" "With `trust-id`: password, in place of the one above."
        upstream credential_id: String = "application-credential-id" "" "Application credential by ID. With one, projects do not count: it has its own."
        upstream credential_name: String = "application-credential-name" "" "Application credential by name; needs its user as well."
        upstream credential_secret: SecretValue = "application-credential-secret" "" "Secret of the application credential."
        upstream token: SecretValue = "token" "" "A token in place of user and password, exchanged for one that is good for the project. It cannot be renewed for longer than it lives."
        upstream region: String = "region" "" "Region of the catalog's endpoints, of the nodes' label, and of provider IDs with a region."
        upstream endpoint_type: String = "os-endpoint-type" "public" "Which endpoints of the catalog are used: `public`, `internal` or `admin`."
        upstream ca_file: String = "ca-file" "" "Authorities (PEM) in place of the system's. Read again when it changes."
        upstream cert_file: String = "cert-file" "" "Client certificate (PEM); with `key-file`. Read again when it changes."
        upstream key_file: String = "key-file" "" "Key of the client certificate (PEM)."
        upstream insecure: String = "tls-insecure" "false" "`true`, spelled exactly so, turns the checks of certificates off."
        upstream use_clouds: bool = "use-clouds" "false" "What is missing here is taken from `clouds.yaml`. What is here wins, with `cloud` as without (upstream loses it when `cloud` is set)."
        upstream clouds_file: String = "clouds-file" "" "Path of `clouds.yaml`. Default: `OS_CLIENT_CONFIG_FILE`, else `clouds.yaml` or `clouds.yml` in the working directory, `~/.config/openstack`, `/etc/openstack`."
        upstream cloud: String = "cloud" "" "Entry of `clouds.yaml`. Default: `OS_CLOUD`, else the only one there is."
    }
}

config_keys! {
    /// Section `[Networking]` as written.
    Networking {
        upstream ipv6_disabled: bool = "ipv6-support-disabled" "false" "Nodes get no IPv6 addresses."
        upstream public: Vec<String> = "public-network-name" "" "Network of Nova whose addresses are external. Repeat it for several."
        upstream internal: Vec<String> = "internal-network-name" "" "If there is any, only these networks give internal addresses, and the others none. Repeat it for several."
        upstream sort_order: String = "address-sort-order" "" "Networks (CIDR), separated by commas or blanks: addresses in the first come first."
    }
}

config_keys! {
    /// Section `[Route]` as written.
    Route {
        upstream router: String = "router-id" "" "Router whose routes lead to pods. Without it there is no route controller."
    }
}

config_keys! {
    /// Section `[Metadata]` as written.
    Metadata {
        upstream search_order: String = "search-order" "configDrive,metadataService" "Checked, without effect: nothing here reads the metadata of an instance."
        upstream timeout: Option<Duration> = "request-timeout" "60s" "Longest time of one request to any service, with its answer."
    }
}

config_keys! {
    /// Section `[LoadBalancer]` as written.
    LoadBalancer {
        upstream enabled: Option<bool> = "enabled" "true" "Services get load balancers."
        upstream version: String = "lb-version" "" "Empty or `v2`."
        upstream provider: String = "lb-provider" "amphora" "Octavia's provider driver: `amphora`, `octavia`, `amphorav2`, `ovn`, `f5`, or another with a warning."
        upstream method: String = "lb-method" "ROUND_ROBIN" "How members are chosen: `ROUND_ROBIN`, `LEAST_CONNECTIONS`, `SOURCE_IP`, `SOURCE_IP_PORT` (`ovn` has only the last)."
        upstream subnet: String = "subnet-id" "" "Subnet of addresses of load balancers."
        upstream network: String = "network-id" "" "Network of addresses of load balancers."
        upstream member_subnet: String = "member-subnet-id" "" "Subnet of members."
        upstream floating_network: String = "floating-network-id" "" "External network of floating IPs. Without it one is looked for."
        upstream floating_subnet_id: String = "floating-subnet-id" "" "Subnet of floating IPs, by ID."
        upstream floating_subnet: String = "floating-subnet" "" "Subnet of floating IPs, by a pattern of names: `*` and `?`, or a regular expression after `~`, turned round by `!`."
        upstream floating_subnet_tags: String = "floating-subnet-tags" "" "Subnet of floating IPs, by tags."
        upstream create_monitor: bool = "create-monitor" "false" "Pools get health monitors."
        upstream monitor_delay: Option<Duration> = "monitor-delay" "5s" "Time between checks, in whole seconds. Octavia's default minimum for UDP ports is 3s; those ports get the minimum that Octavia names."
        upstream monitor_timeout: Option<Duration> = "monitor-timeout" "3s" "Longest time of a check, in whole seconds."
        upstream monitor_retries: Option<i64> = "monitor-max-retries" "1" "Good checks after which a member is online: 1 to 10."
        upstream monitor_retries_down: Option<i64> = "monitor-max-retries-down" "3" "Bad checks after which a member is in error: 1 to 10."
        upstream manage_groups: bool = "manage-security-groups" "false" "Nodes' ports get a security group that admits each load balancer."
        upstream internal: bool = "internal-lb" "false" "Every load balancer is internal, whatever its Service asks for."
        upstream node_selector: String = "node-selector" "" "Labels that members must have: `key=value,key`; a key alone takes any value."
        upstream cascade_delete: Option<bool> = "cascade-delete" "true" "A load balancer is deleted with all it has, in one request."
        upstream flavor: String = "flavor-id" "" "Octavia flavor."
        upstream zone: String = "availability-zone" "" "Octavia availability zone."
        upstream ingress_hostname: bool = "enable-ingress-hostname" "false" "With PROXY protocol the status has a hostname in place of the address."
        upstream ingress_suffix: String = "ingress-hostname-suffix" "nip.io" "Suffix of that hostname."
        upstream max_shared: Option<i64> = "max-shared-lb" "2" "Services that may share a load balancer."
        upstream tls_container: String = "default-tls-container-ref" "" "Reference of the certificate for Services that name none."
        upstream container_store: String = "container-store" "barbican" "Where references lead: `barbican` (checked there) or `external` (not checked)."
        upstream serial: bool = "provider-requires-serial-api-calls" "false" "The provider driver takes one object at a time: no load balancer complete in one request, no batches of members."
        ours allow_unenforced: bool = "allow-unenforced-source-ranges" "false" "New Services may have source ranges that nothing enforces (Octavia before 2.12; `ovn` without `manage-security-groups`), with a warning. Those that already have a load balancer may in any case."
        ours failover: bool = "failover-on-error" "false" "Load balancers in ERROR that do not serve are failed over. Octavia's default policy allows that only to administrators."
    }
}

config_keys! {
    /// A section `[LoadBalancerClass "name"]` as written.
    Class {
        upstream floating_network: String = "floating-network-id" "" "As in `[LoadBalancer]`."
        upstream floating_subnet_id: String = "floating-subnet-id" "" "As in `[LoadBalancer]`."
        upstream floating_subnet: String = "floating-subnet" "" "As in `[LoadBalancer]`."
        upstream floating_subnet_tags: String = "floating-subnet-tags" "" "As in `[LoadBalancer]`."
        upstream network: String = "network-id" "" "As in `[LoadBalancer]`."
        upstream subnet: String = "subnet-id" "" "As in `[LoadBalancer]`."
        upstream member_subnet: String = "member-subnet-id" "" "As in `[LoadBalancer]`."
    }
}

config_keys! {
    /// Section `[Requests]` as written.
    Requests {
        ours read_qps: Option<f64> = "read-qps" "50" "Reads of each service, per second."
        ours read_burst: Option<i64> = "read-burst" "200" "Reads of each service at once after a pause."
        ours write_qps: Option<f64> = "write-qps" "20" "Changes of each service, per second."
        ours write_burst: Option<i64> = "write-burst" "400" "Changes of each service at once after a pause."
        ours in_flight: Option<i64> = "max-in-flight" "32" "Requests that have no answer yet."
    }
}
