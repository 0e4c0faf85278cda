//! The command line, an argument a line.

use ccm_core::{
    config::{Invocation, Product, parse},
    fuzz::configz,
};

use crate::input::text_of;

/// Arguments.
pub const WORDS: &[&str] = &[
    "--cloud-provider=mock\n",
    "--cloud-config=cloud.conf\n",
    "--controllers=*,-service\n",
    "--kube-api-qps=2.5\n",
    "--kube-api-burst=0x1f\n",
    "--node-monitor-period=90s\n",
    "--leader-elect=false\n",
    "--leader-elect-lease-duration=15s\n",
    "--cluster-cidr=10.0.0.0/8,fd00::/64\n",
    "--allocate-node-cidrs\n",
    "--node-cidr-mask-size=24\n",
    "--feature-gates=AllAlpha=true\n",
    "--vmodule=a=4,b=5\n",
    "--v=4\n",
    "-v4\n",
    "--secure-port=0\n",
    "--bind-address=::\n",
    "--tls-min-version=VersionTLS12\n",
    "--tls-sni-cert-key=a,b:*.example\n",
    "--authorization-always-allow-paths=/healthz,\"/a,b\"\n",
    "--webhooks=x\n",
    "--version=raw\n",
    "--help\n",
    "--\n",
    "=",
    "\n",
    ",",
    "_",
];

/// Reads the bytes as a command line.
pub fn run(data: &[u8]) {
    let text = text_of(data);
    let product = Product::new("ccm-fuzz", "v1.0.0", &["mock", "other"]);
    match parse(&product, text.lines()) {
        Ok(Invocation::Run(config)) => {
            let given = config.flags().iter().filter(|flag| flag.changed);
            let again: Vec<String> = given
                .map(|flag| format!("--{}={}", flag.name, flag.value))
                .collect();
            let read = parse(&product, &again);
            // A deprecated name makes a warning beside the flag that it stands for.
            let Ok(Invocation::Run(same)) = read else {
                panic!("{again:?}: {read:?}")
            };
            assert_eq!(same.flags(), config.flags(), "{again:?}");
            if config.leader_migration.config_file.is_none() {
                assert!(configz(&config, &product.controllers).is_object());
            }
        }
        Ok(Invocation::Help(text) | Invocation::Version(text)) => assert!(!text.is_empty()),
        Err(errors) => {
            assert!(!errors.errors().is_empty());
            assert!(
                errors
                    .errors()
                    .iter()
                    .all(|error| !error.to_string().is_empty())
            );
        }
    }
}
