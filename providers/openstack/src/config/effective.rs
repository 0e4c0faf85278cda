//! The effective settings as text, for the log at startup, without secrets.

use std::{fmt::Display, path::Path};

use super::{
    Auth, ContainerStore, Domain, Identity, LbNetwork, Limits, LoadBalancer, Scope, Settings, User,
};

impl Settings {
    /// Returns every key with its effective value, empty where there is none. Secrets are left out.
    pub fn effective(&self) -> Vec<(String, String)> {
        let cloud = &self.cloud;
        let tls = &cloud.tls;
        let mut shown = named("Global", of_auth(&cloud.auth));
        shown.extend(named(
            "Global",
            vec![
                ("region", cloud.region.to_string()),
                ("os-endpoint-type", cloud.interface.as_str().to_owned()),
                ("ca-file", path(tls.ca_file.as_deref())),
                ("cert-file", path(tls.client.as_ref().map(|pair| &*pair.cert))),
                ("key-file", path(tls.client.as_ref().map(|pair| &*pair.key))),
                ("tls-insecure", tls.insecure.to_string()),
            ],
        ));
        let networking = &self.networking;
        shown.extend(named(
            "Networking",
            vec![
                ("ipv6-support-disabled", networking.ipv6_disabled.to_string()),
                ("public-network-name", list(&networking.public_networks)),
                ("internal-network-name", list(&networking.internal_networks)),
                ("address-sort-order", list(&networking.sort_order)),
            ],
        ));
        shown.extend(named("Route", vec![("router-id", option(self.router.as_ref()))]));
        shown.extend(named(
            "Metadata",
            vec![("request-timeout", format!("{:?}", cloud.request_timeout))],
        ));
        shown.extend(named("LoadBalancer", load_balancer_values(self.load_balancer.as_ref())));
        if let Some(load_balancer) = &self.load_balancer {
            for (name, class) in &load_balancer.classes {
                shown.extend(named(&format!("LoadBalancerClass {name:?}"), of_network(class)));
            }
        }
        shown.extend(named("Requests", self.request_limits()));
        shown
    }

    fn request_limits(&self) -> Vec<(&'static str, String)> {
        let Limits { read, write, in_flight } = &self.limits;
        vec![
            ("read-qps", read.per_second.to_string()),
            ("read-burst", read.burst.to_string()),
            ("write-qps", write.per_second.to_string()),
            ("write-burst", write.burst.to_string()),
            ("max-in-flight", in_flight.to_string()),
        ]
    }

    /// Logs what has no effect, what differs from the defaults, and everything at debug level.
    pub fn log(&self) {
        for warning in &self.warnings {
            tracing::warn!("cloud config: {warning}");
        }
        let defaults = Self::new(super::Cloud::new(self.cloud.auth.clone())).effective();
        let effective = self.effective();
        let set: Vec<String> = effective
            .iter()
            .filter(|entry| !defaults.contains(entry))
            .map(|(key, value)| format!("{key}={value:?}"))
            .collect();
        let auth = of_auth(&self.cloud.auth);
        let regional = self.regional_ids;
        let auth: Vec<String> = auth
            .iter()
            .map(|(key, value)| format!("{key}={value:?}"))
            .collect();
        tracing::info!(
            auth = auth.join(" "),
            regional,
            settings = set.join(" "),
            "cloud config: what differs from the defaults"
        );
        for (key, value) in effective {
            tracing::debug!(key, value, "cloud config");
        }
    }
}

fn named(section: &str, keys: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    keys.into_iter()
        .map(|(key, value)| (format!("[{section}] {key}"), value))
        .collect()
}

fn of_auth(auth: &Auth) -> Vec<(&'static str, String)> {
    let mut shown = vec![("auth-url", auth.url.to_string())];
    match &auth.identity {
        Identity::Password { user, .. } => shown.extend(of_user(user)),
        Identity::Credential { id, .. } => {
            shown.push(("application-credential-id", id.to_string()));
        }
        Identity::NamedCredential { name, user, .. } => {
            shown.push(("application-credential-name", name.to_string()));
            shown.extend(of_user(user));
        }
        Identity::Token(_) => shown.push(("token", "…".to_owned())),
    }
    match &auth.scope {
        Scope::Default => {}
        Scope::Project(id) => shown.push(("tenant-id", id.to_string())),
        Scope::ProjectName { name, domain } => {
            shown.push(("tenant-name", name.to_string()));
            shown.push(of_domain(domain, "tenant-domain-id", "tenant-domain-name"));
        }
        Scope::Domain(domain) => shown.push(of_domain(domain, "domain-id", "domain-name")),
        Scope::Trust(id) => shown.push(("trust-id", id.to_string())),
    }
    shown
}

fn of_user(user: &User) -> Vec<(&'static str, String)> {
    match user {
        User::Id(id) => vec![("user-id", id.to_string())],
        User::Name { name, domain } => {
            vec![
                ("username", name.to_string()),
                of_domain(domain, "user-domain-id", "user-domain-name"),
            ]
        }
    }
}

fn of_domain(domain: &Domain, id: &'static str, name: &'static str) -> (&'static str, String) {
    match domain {
        Domain::Id(value) => (id, value.to_string()),
        Domain::Name(value) => (name, value.to_string()),
    }
}

fn load_balancer_values(settings: Option<&LoadBalancer>) -> Vec<(&'static str, String)> {
    let Some(lb) = settings else {
        return vec![("enabled", "false".to_owned())];
    };
    let selector: Vec<String> = lb
        .node_selector
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let store = match &lb.container_store {
        ContainerStore::Barbican => "barbican",
        ContainerStore::External => "external",
        ContainerStore::Other(name) => name,
    };
    let mut shown = vec![
        ("enabled", "true".to_owned()),
        ("lb-provider", lb.provider.to_string()),
        ("lb-method", lb.method.to_string()),
        ("create-monitor", lb.create_monitor.to_string()),
        ("monitor-delay", format!("{:?}", lb.monitor_delay)),
        ("monitor-timeout", format!("{:?}", lb.monitor_timeout)),
        ("monitor-max-retries", lb.monitor_max_retries.to_string()),
        ("monitor-max-retries-down", lb.monitor_max_retries_down.to_string()),
        ("manage-security-groups", lb.manage_security_groups.to_string()),
        ("internal-lb", lb.internal.to_string()),
        ("node-selector", selector.join(",")),
        ("cascade-delete", lb.cascade_delete.to_string()),
        ("flavor-id", option(lb.flavor.as_ref())),
        ("availability-zone", option(lb.availability_zone.as_ref())),
        ("enable-ingress-hostname", lb.ingress_hostname.to_string()),
        ("ingress-hostname-suffix", lb.ingress_hostname_suffix.to_string()),
        ("max-shared-lb", lb.max_shared.to_string()),
        ("default-tls-container-ref", option(lb.tls_container.as_ref())),
        ("container-store", store.to_owned()),
        ("provider-requires-serial-api-calls", lb.serial_calls.to_string()),
        ("allow-unenforced-source-ranges", lb.allow_unenforced_source_ranges.to_string()),
        ("failover-on-error", lb.failover_on_error.to_string()),
    ];
    shown.extend(of_network(&lb.network));
    shown
}

fn of_network(network: &LbNetwork) -> Vec<(&'static str, String)> {
    vec![
        ("floating-network-id", option(network.floating_network.as_ref())),
        ("floating-subnet-id", option(network.floating_subnet_id.as_ref())),
        ("floating-subnet", option(network.floating_subnet.as_ref())),
        ("floating-subnet-tags", option(network.floating_subnet_tags.as_ref())),
        ("network-id", option(network.network.as_ref())),
        ("subnet-id", option(network.subnet.as_ref())),
        ("member-subnet-id", option(network.member_subnet.as_ref())),
    ]
}

fn path(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string())
        .unwrap_or_default()
}

fn option<T: Display>(value: Option<&T>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

fn list<T: Display>(values: &[T]) -> String {
    values
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}
