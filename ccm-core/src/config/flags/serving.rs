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
        "Address to serve HTTPS on. 0.0.0.0 and :: both stand for every address of both families.",
    ),
    secure(
        "secure-port",
        Int(|c| &mut c.raw.secure_port),
        "10258",
        "Port to serve HTTPS on; 0 turns the server off.",
    ),
    secure(
        "cert-dir",
        Path(|c| &mut c.serving.cert_dir),
        "",
        "Directory of the certificate cloud-controller-manager.crt and its key, made if they are not there. Without it they stay in memory.",
    ),
    secure(
        "tls-cert-file",
        Path(|c| &mut c.serving.tls_cert_file),
        "",
        "Certificate file, read again on change.",
    ),
    secure(
        "tls-private-key-file",
        Path(|c| &mut c.serving.tls_private_key_file),
        "",
        "Key file, read again on change.",
    ),
    secure(
        "tls-cipher-suites",
        List(|c| &mut c.serving.tls_cipher_suites),
        "",
        "Cipher suites of TLS 1.2 by IANA name, with commas; none stands for the library's own. Those of TLS 1.3 are always on.",
    ),
    secure(
        "tls-min-version",
        Choice(|c| &mut c.serving.tls_min_version),
        "",
        "Lowest TLS version: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13. Nothing below 1.2 is ever served.",
    ),
    secure(
        "tls-curve-preferences",
        Numbers(|c| &mut c.serving.tls_curve_preferences),
        "",
        "Key-exchange groups by IANA number, with commas; none stands for the library's own.",
    ),
    secure(
        "tls-sni-cert-key",
        Certificates(|c| &mut c.serving.tls_sni_certificates),
        "",
        "Certificate and key for further server names, as `certificate,key[:names]`; without names those in the certificate. May be repeated.",
    ),
    secure(
        "disable-http2-serving",
        Bool(|c| &mut c.serving.disable_http2),
        "false",
        "Serve HTTP/1.1 only.",
    ),
    secure(
        "http2-max-streams-per-connection",
        Int(|c| &mut c.raw.http2_max_streams),
        "0",
        "HTTP/2 streams of one connection; 0 stands for the library's own limit.",
    ),
    secure(
        "permit-port-sharing",
        Bool(|c| &mut c.serving.permit_port_sharing),
        "false",
        "Let other processes bind the same port (SO_REUSEPORT).",
    ),
    secure(
        "permit-address-sharing",
        Bool(|c| &mut c.serving.permit_address_sharing),
        "false",
        "Bind an address that is in TIME_WAIT (SO_REUSEADDR). This is always done.",
    ),
];

/// Authentication and authorization of users.
pub(super) static DELEGATED_AUTH: &[Flag] = &[
    authn(
        "authentication-kubeconfig",
        Path(|c| &mut c.authentication.kubeconfig),
        "",
        "kubeconfig for TokenReviews. Without it the pod's service account is used; outside a cluster every token is anonymous.",
    ),
    authn(
        "authentication-skip-lookup",
        Bool(|c| &mut c.authentication.skip_lookup),
        "false",
        "Do not read the cluster's client CAs from kube-system/extension-apiserver-authentication.",
    ),
    authn(
        "authentication-tolerate-lookup-failure",
        Bool(|c| &mut c.authentication.tolerate_lookup_failure),
        "false",
        "Start even if those cannot be read.",
    ),
    authn(
        "authentication-token-webhook-cache-ttl",
        Duration(|c| &mut c.authentication.token_webhook_cache_ttl),
        "10s",
        "How long the answer of a TokenReview is kept.",
    ),
    authn(
        "client-ca-file",
        Path(|c| &mut c.authentication.client_ca_file),
        "",
        "CAs of client certificates.",
    ),
    authn(
        "requestheader-client-ca-file",
        Path(|c| &mut c.authentication.requestheader_client_ca_file),
        "",
        "CAs of proxies that name the user in headers.",
    ),
    authn(
        "requestheader-allowed-names",
        List(|c| &mut c.authentication.requestheader_allowed_names),
        "",
        "Common names such proxies may have; none stands for any.",
    ),
    authn(
        "requestheader-username-headers",
        List(|c| &mut c.authentication.requestheader_username_headers),
        "x-remote-user",
        "Headers with the user's name.",
    ),
    authn(
        "requestheader-group-headers",
        List(|c| &mut c.authentication.requestheader_group_headers),
        "x-remote-group",
        "Headers with the user's groups.",
    ),
    authn(
        "requestheader-extra-headers-prefix",
        List(|c| &mut c.authentication.requestheader_extra_headers_prefix),
        "x-remote-extra-",
        "Prefixes of headers with further facts about the user.",
    ),
    authn(
        "requestheader-uid-headers",
        List(|c| &mut c.authentication.requestheader_uid_headers),
        "",
        "Headers with the user's UID.",
    ),
    authz(
        "authorization-kubeconfig",
        Path(|c| &mut c.authorization.kubeconfig),
        "",
        "kubeconfig for SubjectAccessReviews. Without it the pod's service account is used; outside a cluster all that is not always allowed is forbidden.",
    ),
    authz(
        "authorization-always-allow-paths",
        List(|c| &mut c.authorization.always_allow_paths),
        "/healthz,/readyz,/livez",
        "Paths that anybody may read; a `*` at the end makes one a prefix.",
    ),
    authz(
        "authorization-webhook-cache-authorized-ttl",
        Duration(|c| &mut c.authorization.webhook_cache_authorized_ttl),
        "10s",
        "How long a SubjectAccessReview's yes is kept.",
    ),
    authz(
        "authorization-webhook-cache-unauthorized-ttl",
        Duration(|c| &mut c.authorization.webhook_cache_unauthorized_ttl),
        "10s",
        "How long a SubjectAccessReview's no is kept.",
    ),
];

/// Admission webhooks.
pub(super) static WEBHOOK: &[Flag] = &[
    Flag::new(
        "webhooks",
        Webhook,
        List(|c| &mut c.webhook.enabled),
        "",
        "Webhooks to serve. There are none, so that any name is an error.",
    ),
    webhook(
        "webhook-bind-address",
        Ip(|c| &mut c.webhook.serving.bind_address),
        "0.0.0.0",
        "Address to serve webhooks on.",
    ),
    webhook(
        "webhook-secure-port",
        Int(|c| &mut c.raw.webhook_secure_port),
        "10260",
        "Port to serve webhooks on; 0 turns the server off. Nothing listens unless --webhooks is set.",
    ),
    webhook(
        "webhook-cert-dir",
        Path(|c| &mut c.webhook.serving.cert_dir),
        "",
        "Directory of the certificate cloud-controller-manager-webhook.crt and its key. Without it they stay in memory.",
    ),
    webhook(
        "webhook-tls-cert-file",
        Path(|c| &mut c.webhook.serving.tls_cert_file),
        "",
        "Certificate file.",
    ),
    webhook(
        "webhook-tls-private-key-file",
        Path(|c| &mut c.webhook.serving.tls_private_key_file),
        "",
        "Key file.",
    ),
    webhook(
        "webhook-tls-cipher-suites",
        List(|c| &mut c.webhook.serving.tls_cipher_suites),
        "",
        "As --tls-cipher-suites.",
    ),
    webhook(
        "webhook-tls-min-version",
        Choice(|c| &mut c.webhook.serving.tls_min_version),
        "",
        "As --tls-min-version.",
    ),
    webhook(
        "webhook-tls-curve-preferences",
        Numbers(|c| &mut c.webhook.serving.tls_curve_preferences),
        "",
        "As --tls-curve-preferences.",
    ),
    webhook(
        "webhook-tls-sni-cert-key",
        Certificates(|c| &mut c.webhook.serving.tls_sni_certificates),
        "",
        "As --tls-sni-cert-key.",
    ),
    webhook(
        "webhook-disable-http2-serving",
        Bool(|c| &mut c.webhook.serving.disable_http2),
        "false",
        "Serve HTTP/1.1 only.",
    ),
];
