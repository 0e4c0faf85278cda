//! Flags of the HTTPS server, of its authentication and authorization, and of the webhook server.

use super::Flag;
use super::Group::{Authentication, Authorization, SecureServing, Webhook, WebhookServing};
use crate::config::value::FlagTarget::{
    self, Bool, Certificates, Choice, Duration, Int, Ip, List, Numbers, Path,
};

const fn secure(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, SecureServing, target, default, help)
}

const fn authn(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, Authentication, target, default, help)
}

const fn authz(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, Authorization, target, default, help)
}

const NO_WEBHOOKS: &str = "admission webhooks are not supported";

const fn webhook(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, WebhookServing, target, default, help).without_effect(NO_WEBHOOKS)
}

/// The HTTPS server for health checks, metrics and configuration.
pub(super) static SECURE_SERVING: &[Flag] = &[
    secure(
        "bind-address",
        Ip(|c| &mut c.serving.bind_address),
        "0.0.0.0",
        "The IP address on which to serve HTTPS. 0.0.0.0 and :: both mean all addresses of both families.",
    ),
    secure(
        "secure-port",
        Int(|c| &mut c.raw.secure_port),
        "10258",
        "The port on which to serve HTTPS with authentication and authorization. 0 disables the server.",
    ),
    secure(
        "cert-dir",
        Path(|c| &mut c.serving.cert_dir),
        "",
        "The directory of the TLS certificate cloud-controller-manager.crt and its key, which are created if they do not exist. Without it, a self-signed certificate is kept in memory.",
    ),
    secure(
        "tls-cert-file",
        Path(|c| &mut c.serving.tls_cert_file),
        "",
        "File with the TLS certificate. It is reloaded when it changes.",
    ),
    secure(
        "tls-private-key-file",
        Path(|c| &mut c.serving.tls_private_key_file),
        "",
        "File with the private key of --tls-cert-file. It is reloaded when it changes.",
    ),
    secure(
        "tls-cipher-suites",
        List(|c| &mut c.serving.tls_cipher_suites),
        "",
        "Comma-separated list of TLS 1.2 cipher suites, by IANA name. If omitted, the defaults of the TLS library are used. TLS 1.3 cipher suites cannot be disabled.",
    ),
    secure(
        "tls-min-version",
        Choice(|c| &mut c.serving.tls_min_version),
        "",
        "Minimum TLS version supported: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13. Versions below 1.2 are never served.",
    ),
    secure(
        "tls-curve-preferences",
        Numbers(|c| &mut c.serving.tls_curve_preferences),
        "",
        "Comma-separated list of key exchange groups, by IANA number. If omitted, the defaults of the TLS library are used.",
    ),
    secure(
        "tls-sni-cert-key",
        Certificates(|c| &mut c.serving.tls_sni_certificates),
        "",
        "A certificate and private key file for further server names, as `certificate,key[:names]`. Without names, those of the certificate are used. May be repeated.",
    ),
    secure(
        "disable-http2-serving",
        Bool(|c| &mut c.serving.disable_http2),
        "false",
        "Disable HTTP/2 and serve HTTP/1.1 only.",
    ),
    secure(
        "http2-max-streams-per-connection",
        Int(|c| &mut c.raw.http2_max_streams),
        "0",
        "The maximum number of concurrent HTTP/2 streams per connection. 0 means 100.",
    ),
    secure(
        "permit-port-sharing",
        Bool(|c| &mut c.serving.permit_port_sharing),
        "false",
        "Set SO_REUSEPORT, so that more than one process can bind the same address and port.",
    ),
    secure(
        "permit-address-sharing",
        Bool(|c| &mut c.serving.permit_address_sharing),
        "false",
        "Set SO_REUSEADDR, so that an address in state TIME_WAIT can be bound. This is always done.",
    ),
];

/// Authentication and authorization of users.
pub(super) static DELEGATED_AUTH: &[Flag] = &[
    authn(
        "authentication-kubeconfig",
        Path(|c| &mut c.authentication.kubeconfig),
        "",
        "kubeconfig file for TokenReviews. Without it, the pod's service account is used; outside a cluster, all token requests are anonymous.",
    ),
    authn(
        "authentication-skip-lookup",
        Bool(|c| &mut c.authentication.skip_lookup),
        "false",
        "Do not read the cluster's client CAs from the ConfigMap kube-system/extension-apiserver-authentication.",
    ),
    authn(
        "authentication-tolerate-lookup-failure",
        Bool(|c| &mut c.authentication.tolerate_lookup_failure),
        "false",
        "Start even if the cluster's client CAs cannot be read.",
    ),
    authn(
        "authentication-token-webhook-cache-ttl",
        Duration(|c| &mut c.authentication.token_webhook_cache_ttl),
        "10s",
        "The duration to cache responses to TokenReviews.",
    ),
    authn(
        "client-ca-file",
        Path(|c| &mut c.authentication.client_ca_file),
        "",
        "File with the CA bundle that verifies client certificates.",
    ),
    authn(
        "requestheader-client-ca-file",
        Path(|c| &mut c.authentication.requestheader_client_ca_file),
        "",
        "File with the CA bundle that verifies the client certificates of front proxies, which name the user in request headers.",
    ),
    authn(
        "requestheader-allowed-names",
        List(|c| &mut c.authentication.requestheader_allowed_names),
        "",
        "List of client certificate common names that front proxies may have. If empty, any name is allowed.",
    ),
    authn(
        "requestheader-username-headers",
        List(|c| &mut c.authentication.requestheader_username_headers),
        "x-remote-user",
        "List of request headers to inspect for usernames.",
    ),
    authn(
        "requestheader-group-headers",
        List(|c| &mut c.authentication.requestheader_group_headers),
        "x-remote-group",
        "List of request headers to inspect for groups.",
    ),
    authn(
        "requestheader-extra-headers-prefix",
        List(|c| &mut c.authentication.requestheader_extra_headers_prefix),
        "x-remote-extra-",
        "List of request header prefixes to inspect for extra user information.",
    ),
    authn(
        "requestheader-uid-headers",
        List(|c| &mut c.authentication.requestheader_uid_headers),
        "",
        "List of request headers to inspect for UIDs.",
    ),
    authz(
        "authorization-kubeconfig",
        Path(|c| &mut c.authorization.kubeconfig),
        "",
        "kubeconfig file for SubjectAccessReviews. Without it, the pod's service account is used; outside a cluster, all requests that are not always allowed are forbidden.",
    ),
    authz(
        "authorization-always-allow-paths",
        List(|c| &mut c.authorization.always_allow_paths),
        "/healthz,/readyz,/livez",
        "A list of HTTP paths that are authorized without contacting the API server. A trailing `*` makes an entry a prefix.",
    ),
    authz(
        "authorization-webhook-cache-authorized-ttl",
        Duration(|c| &mut c.authorization.webhook_cache_authorized_ttl),
        "10s",
        "The duration to cache SubjectAccessReviews that allow a request.",
    ),
    authz(
        "authorization-webhook-cache-unauthorized-ttl",
        Duration(|c| &mut c.authorization.webhook_cache_unauthorized_ttl),
        "10s",
        "The duration to cache SubjectAccessReviews that deny a request.",
    ),
];

/// Admission webhooks.
pub(super) static WEBHOOK: &[Flag] = &[
    Flag::new(
        "webhooks",
        Webhook,
        List(|c| &mut c.webhook.enabled),
        "",
        "A list of webhooks to enable. There are none, so any name is an error.",
    ),
    webhook(
        "webhook-bind-address",
        Ip(|c| &mut c.webhook.serving.bind_address),
        "0.0.0.0",
        "The IP address on which to serve webhooks.",
    ),
    webhook(
        "webhook-secure-port",
        Int(|c| &mut c.raw.webhook_secure_port),
        "10260",
        "The port on which to serve webhooks. 0 disables the server. Nothing is served unless --webhooks is set.",
    ),
    webhook(
        "webhook-cert-dir",
        Path(|c| &mut c.webhook.serving.cert_dir),
        "",
        "The directory of the TLS certificate cloud-controller-manager-webhook.crt and its key. Without it, a self-signed certificate is kept in memory.",
    ),
    webhook(
        "webhook-tls-cert-file",
        Path(|c| &mut c.webhook.serving.tls_cert_file),
        "",
        "File with the TLS certificate.",
    ),
    webhook(
        "webhook-tls-private-key-file",
        Path(|c| &mut c.webhook.serving.tls_private_key_file),
        "",
        "File with the private key of --webhook-tls-cert-file.",
    ),
    webhook(
        "webhook-tls-cipher-suites",
        List(|c| &mut c.webhook.serving.tls_cipher_suites),
        "",
        "Like --tls-cipher-suites.",
    ),
    webhook(
        "webhook-tls-min-version",
        Choice(|c| &mut c.webhook.serving.tls_min_version),
        "",
        "Like --tls-min-version.",
    ),
    webhook(
        "webhook-tls-curve-preferences",
        Numbers(|c| &mut c.webhook.serving.tls_curve_preferences),
        "",
        "Like --tls-curve-preferences.",
    ),
    webhook(
        "webhook-tls-sni-cert-key",
        Certificates(|c| &mut c.webhook.serving.tls_sni_certificates),
        "",
        "Like --tls-sni-cert-key.",
    ),
    webhook(
        "webhook-disable-http2-serving",
        Bool(|c| &mut c.webhook.serving.disable_http2),
        "false",
        "Disable HTTP/2 and serve HTTP/1.1 only.",
    ),
];
