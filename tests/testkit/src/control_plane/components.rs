//! Command lines of the control plane's programs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::pki::Pki;
use super::{ControllerManager, Options};
use crate::supervised::{CommandLine, free_port};

/// Service addresses: the range most installers use, and one of IPv6 for Services that ask for
/// that.
const SERVICE_RANGE: &str = "10.96.0.0/16,fd00:10:96::/112";

/// Common name of the only front proxy that may name users; the one that kubeadm uses.
pub(super) const PROXY_NAME: &str = "front-proxy-client";

/// Loopback ports of one attempt to start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) etcd_client: u16,
    pub(super) etcd_peer: u16,
    pub(super) apiserver: u16,
    pub(super) controller_manager: u16,
}

impl Ports {
    /// Ports that are free now. A stranger may take one before our program does: the caller tries
    /// again.
    pub(super) fn free() -> io::Result<Self> {
        Ok(Self {
            etcd_client: free_port()?,
            etcd_peer: free_port()?,
            apiserver: free_port()?,
            controller_manager: free_port()?,
        })
    }
}

/// Everything command lines are made from.
pub(super) struct Plan<'a> {
    pub(super) directory: &'a Path,
    pub(super) ports: Ports,
    pub(super) pki: &'a Pki,
    pub(super) options: &'a Options,
}

/// Builds arguments: `--name=value`, paths included.
struct Args(Vec<OsString>);

impl Args {
    fn flag(mut self, name: &str, value: impl Into<OsString>) -> Self {
        let mut argument = OsString::from(format!("--{name}="));
        argument.push(value.into());
        self.0.push(argument);
        self
    }

    fn extra(mut self, more: &[String]) -> Self {
        self.0.extend(more.iter().map(OsString::from));
        self
    }
}

impl Plan<'_> {
    /// Returns the path of the audit log.
    pub(super) fn audit_log(&self) -> PathBuf {
        self.directory.join("audit.log")
    }

    /// Returns the command line of etcd. It never syncs to disk, because nothing survives the test.
    pub(super) fn etcd(&self, program: &Path) -> CommandLine {
        let client = format!("http://127.0.0.1:{}", self.ports.etcd_client);
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        let args = Args(vec!["--unsafe-no-fsync".into()])
            .flag("name", "test")
            .flag("data-dir", self.directory.join("etcd"))
            .flag("listen-client-urls", &client)
            .flag("advertise-client-urls", &client)
            .flag("listen-peer-urls", &peer)
            .flag("initial-advertise-peer-urls", &peer)
            .flag("initial-cluster", format!("test={peer}"))
            // A member that is alone elects itself after this time.
            .flag("heartbeat-interval", "20")
            .flag("election-timeout", "200")
            .flag("log-level", "warn");
        CommandLine { name: "etcd", program: program.to_owned(), args: args.0 }
    }

    pub(super) fn apiserver(
        &self,
        program: &Path,
        token_file: &Path,
        audit_policy: Option<&Path>,
    ) -> CommandLine {
        let mut args = Args(Vec::new())
            .flag("etcd-servers", format!("http://127.0.0.1:{}", self.ports.etcd_client))
            .flag("bind-address", "127.0.0.1")
            .flag("secure-port", self.ports.apiserver.to_string())
            // Without a guess at the machine's address, and without the Endpoints that may not hold
            // a loopback one.
            .flag("advertise-address", "127.0.0.1")
            .flag("endpoint-reconciler-type", "none")
            .flag("service-cluster-ip-range", SERVICE_RANGE)
            .flag("tls-cert-file", &self.pki.certificate)
            .flag("tls-private-key-file", &self.pki.key)
            .flag("cert-dir", self.directory.join("certificates"))
            .flag("token-auth-file", token_file)
            // What the API server tells other servers of the cluster in a ConfigMap: how to
            // recognise clients.
            .flag("client-ca-file", &self.pki.ca)
            .flag("requestheader-client-ca-file", &self.pki.proxy_ca)
            .flag("requestheader-allowed-names", PROXY_NAME)
            .flag("requestheader-username-headers", "X-Remote-User")
            .flag("requestheader-group-headers", "X-Remote-Group")
            .flag("requestheader-extra-headers-prefix", "X-Remote-Extra-")
            .flag("authorization-mode", "Node,RBAC")
            .flag("service-account-issuer", "https://kubernetes.default.svc.cluster.local")
            .flag("service-account-key-file", &self.pki.service_account_public_key)
            .flag("service-account-signing-key-file", &self.pki.service_account_key)
            // A request in flight when the test stops is not worth waiting for.
            .flag("shutdown-delay-duration", "0s");
        if let Some(policy) = audit_policy {
            args = args
                .flag("audit-policy-file", policy)
                .flag("audit-log-path", self.audit_log());
        }
        args = self.feature_gates(args).extra(&self.options.apiserver_args);
        CommandLine {
            name: "kube-apiserver",
            program: program.to_owned(),
            args: args.0,
        }
    }

    pub(super) fn controller_manager(
        &self,
        program: &Path,
        kubeconfig: &Path,
        wanted: &ControllerManager,
    ) -> CommandLine {
        let mut args = Args(Vec::new())
            .flag("kubeconfig", kubeconfig)
            .flag("authentication-kubeconfig", kubeconfig)
            .flag("authorization-kubeconfig", kubeconfig)
            .flag("bind-address", "127.0.0.1")
            .flag("secure-port", self.ports.controller_manager.to_string())
            .flag("tls-cert-file", &self.pki.certificate)
            .flag("tls-private-key-file", &self.pki.key)
            .flag("leader-elect", "false")
            .flag("use-service-account-credentials", "true")
            .flag("service-account-private-key-file", &self.pki.service_account_key)
            .flag("root-ca-file", &self.pki.ca);
        if !wanted.controllers.is_empty() {
            args = args.flag("controllers", wanted.controllers.join(","));
        }
        args = self.feature_gates(args).extra(&wanted.args);
        CommandLine {
            name: "kube-controller-manager",
            program: program.to_owned(),
            args: args.0,
        }
    }

    fn feature_gates(&self, args: Args) -> Args {
        if self.options.feature_gates.is_empty() {
            return args;
        }
        let gates: Vec<_> = self
            .options
            .feature_gates
            .iter()
            .map(|(name, on)| format!("{name}={on}"))
            .collect();
        args.flag("feature-gates", gates.join(","))
    }
}
