//! Which suites there are, what each is for, and which of them have cases of later tiers.

use super::programs::Program;

/// A program of tests.
pub(super) struct Suite {
    /// Package it tests.
    pub(super) package: &'static str,
    /// `lib`, or the name of the test or binary.
    pub(super) target: &'static str,
    /// What it shows, in a line.
    pub(super) purpose: &'static str,
    /// Its arguments in the second tier; `None` when the first shows everything.
    pub(super) full: Option<&'static [&'static str]>,
    /// Its arguments in the third tier.
    pub(super) nightly: Option<&'static [&'static str]>,
    /// Whether the second tier's cases fail, instead of saying so, where there is no real
    /// kube-apiserver.
    pub(super) needs_kube_apiserver: bool,
    /// Whether the second tier's cases are run on the older Kubernetes too, in the third.
    pub(super) on_older_kubernetes: bool,
}

impl Suite {
    const fn new(package: &'static str, target: &'static str, purpose: &'static str) -> Self {
        Self {
            package,
            target,
            purpose,
            full: None,
            nightly: None,
            needs_kube_apiserver: false,
            on_older_kubernetes: false,
        }
    }

    const fn full(self, arguments: &'static [&'static str]) -> Self {
        Self { full: Some(arguments), ..self }
    }

    const fn nightly(self, arguments: &'static [&'static str]) -> Self {
        Self { nightly: Some(arguments), ..self }
    }

    const fn needs_kube_apiserver(self) -> Self {
        Self { needs_kube_apiserver: true, ..self }
    }

    const fn on_older_kubernetes(self) -> Self {
        Self { on_older_kubernetes: true, ..self }
    }

    pub(super) fn is(&self, program: &Program) -> bool {
        (self.package, self.target) == (&*program.package, &*program.target)
    }
}

/// Checks that every program that was built is a suite of this list, and the other way round: none
/// is left out in silence.
pub(super) fn check(programs: &[Program], suites: &[Suite]) -> anyhow::Result<()> {
    let unknown = programs
        .iter()
        .filter(|program| !suites.iter().any(|suite| suite.is(program)));
    let unknown: Vec<_> = unknown
        .map(|program| format!("{} {}", program.package, program.target))
        .collect();
    anyhow::ensure!(
        unknown.is_empty(),
        "xtask/src/test/suites.rs does not say what these are for: {}",
        unknown.join(", ")
    );
    let missing = suites
        .iter()
        .filter(|suite| !programs.iter().any(|program| suite.is(program)));
    let missing: Vec<_> = missing
        .map(|suite| format!("{} {}", suite.package, suite.target))
        .collect();
    anyhow::ensure!(missing.is_empty(), "cargo built none of these suites: {}", missing.join(", "));
    Ok(())
}

/// No arguments: the program itself chooses by its tier.
const ALL_OF_IT: &[&str] = &[];
/// The explorations of a library, without the hunts for planted bugs, which the first tier has.
const EXPLORATIONS: &[&str] = &["explore", "--skip", "planted"];

/// Suites that need no SDK, the longest first, so that none runs alone at the end.
pub(super) static ALL: [Suite; 30] = [
    Suite::new(
        "ccm-openstack",
        "lib",
        "the OpenStack provider on scripted answers; faults at each call; planted bugs are found",
    )
    .full(&["explore", "conformance_tests", "counts", "properties", "--include-ignored", "--skip", "planted"])
    .nightly(EXPLORATIONS),
    Suite::new("ccm-mock", "controllers", "each controller against the embedded API server, in virtual time")
        .full(&["--ignored"]),
    Suite::new(
        "ccm-e2e",
        "clusters",
        "the manager's process in whole clusters, manifests and chart: on embedded and real servers",
    )
    .full(ALL_OF_IT)
    .nightly(ALL_OF_IT)
    .on_older_kubernetes(),
    Suite::new(
        "ccm-realcluster",
        "realcluster",
        "chart and images on real kubelets with containerd and kube-proxy; Kubernetes' own tests",
    )
    .full(ALL_OF_IT)
    .nightly(ALL_OF_IT),
    Suite::new(
        "ccm-mock",
        "conformance",
        "the conformance kit: every rule holds, and each planted bug breaks its rule",
    ),
    Suite::new(
        "ccm-explore",
        "explore",
        "faults at each write and cloud call of the framework; planted bugs are found",
    )
    .full(ALL_OF_IT)
    .nightly(ALL_OF_IT),
    Suite::new(
        "ccm-openstack",
        "cluster",
        "the OpenStack manager and the local cloud: conformance, traffic, secrets, chart, demo",
    )
    .full(ALL_OF_IT)
    .nightly(ALL_OF_IT),
    Suite::new("ccm-meadow", "conformance", "the provider of the guide in the conformance kit, with planted bugs"),
    Suite::new(
        "ccm-quarry",
        "conformance",
        "the provider of a cloud whose changes run on in the conformance kit, with planted bugs",
    ),
    Suite::new("ccm-aws", "lib", "the AWS provider on an in-memory AWS; faults at each call; planted bugs are found")
        .full(&["explore", "conformance_tests", "counts", "--skip", "planted"])
        .nightly(EXPLORATIONS),
    Suite::new("ccm-core", "lib", "the framework: plans, caches, elections, serving, flags"),
    Suite::new("openstack-local", "lib", "the local OpenStack-style cloud, its data plane too"),
    Suite::new("openstack-local", "clients", "the local cloud as a program; OpenStack's own clients work with it")
        .full(ALL_OF_IT)
        .nightly(ALL_OF_IT),
    Suite::new("ccm-e2e", "programs", "the binary: bad input, secrets, the demo and its page, kubectl; what an image of it needs")
        .full(ALL_OF_IT)
        .nightly(ALL_OF_IT),
    Suite::new("ccm-fuzz", "corpus", "whatever reads text and bytes of others, on a corpus and by chance")
        .nightly(ALL_OF_IT),
    Suite::new("ccm-e2e", "files", "charts, manifests, Dockerfile and documents agree with the code").full(ALL_OF_IT),
    Suite::new("ccm-core", "sockets", "the framework's servers on both address families, where there are two"),
    Suite::new(
        "ccm-testkit",
        "servers",
        "the embedded API server beside the real one; simulated kubelets; caches on both",
    )
    .full(ALL_OF_IT)
    .on_older_kubernetes(),
    Suite::new("ccm-testkit", "lib", "the embedded API server, the conformance kit and the explorer themselves"),
    Suite::new("ccm-openstack", "takeover", "swap from upstream's OpenStack manager to ours, and back")
        .nightly(ALL_OF_IT),
    Suite::new(
        "ccm-openstack",
        "real_services",
        "the OpenStack manager on OpenStack's own services, and beside upstream's there",
    )
    .nightly(ALL_OF_IT),
    Suite::new("ccm-mock", "lib", "the scriptable cloud"),
    Suite::new("openstack-api", "lib", "requests to OpenStack, compared with literal bodies"),
    Suite::new("ccm-e2e", "lib", "what end-to-end suites observe with"),
    Suite::new("ccm-explore", "lib", "the framework's explorer itself"),
    Suite::new("ccm-fuzz", "lib", "the fuzz targets themselves"),
    Suite::new("ccm-fuzz", "memory", "what is read takes no more memory than allowed"),
    Suite::new("ccm-bench", "ccm-bench", "how benchmarks count, watch and print")
        .full(&["--ignored"])
        .needs_kube_apiserver(),
    Suite::new("xtask", "xtask", "these tasks").nightly(&["--ignored"]),
    Suite::new("ccm-meadow", "guide", "the guide for authors: its steps, compiled and run").full(ALL_OF_IT),
];

/// Suites of the AWS provider with its SDK.
pub(super) static SDK: [Suite; 3] = [
    Suite::new(
        "ccm-aws",
        "moto",
        "requests through the SDK, the conformance kit and the AWS manager, against moto",
    )
    .full(ALL_OF_IT)
    .nightly(ALL_OF_IT),
    Suite::new("ccm-aws", "lib", "how requests and answers of the SDK are made and read")
        .full(&["sdk::"]),
    Suite::new("ccm-aws", "takeover", "swap from upstream's AWS manager to ours, and back")
        .nightly(ALL_OF_IT),
];

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn neither_a_program_nor_a_suite_is_left_out_in_silence() {
        let suites = [Suite::new("a", "lib", "it"), Suite::new("a", "x", "it")];
        let program = |target: &str| Program {
            package: "a".to_owned(),
            target: target.to_owned(),
            executable: PathBuf::new(),
            folder: PathBuf::new(),
        };
        let refused = |programs: &[Program]| {
            check(programs, &suites)
                .err()
                .map(|error| error.to_string())
        };
        assert_eq!(refused(&[program("lib"), program("x")]), None);
        assert_eq!(refused(&[program("lib")]).unwrap(), "cargo built none of these suites: a x");
        let unknown = refused(&[program("lib"), program("x"), program("y")]).unwrap();
        assert!(unknown.ends_with("what these are for: a y"), "{unknown}");
    }
}
