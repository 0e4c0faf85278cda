//! The long exploration of faults.

use crate::process;

/// Packages with explorations. Their names, or those of their modules, have `explore` in them.
const PACKAGES: [&str; 3] = ["ccm-explore", "ccm-openstack", "ccm-aws"];

/// Arguments of `cargo xtask explore`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only this package; more than once for more of them
    #[arg(long, short)]
    package: Vec<String>,
    /// Tries the faults that differ most, as continuous integration does
    #[arg(long)]
    bounded: bool,
    /// Arguments for the test programs, for instance a part of the name of a test
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Tries every fault at every point of every exploration.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut cargo = process::cargo()?;
    cargo
        .args(command(arguments))
        .env("CCM_EXPLORE", if arguments.bounded { "bounded" } else { "full" });
    process::run(&mut cargo)
}

fn command(arguments: &Arguments) -> Vec<String> {
    let chosen: Vec<&str> = match &*arguments.package {
        [] => PACKAGES.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    let mut command = vec!["test", "--no-fail-fast"];
    command.extend(
        chosen
            .into_iter()
            .flat_map(|package| ["--package", package]),
    );
    command.push("--");
    match &*arguments.rest {
        [] => command.push("explore"),
        some => command.extend(some.iter().map(String::as_str)),
    }
    command.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_explored_unless_some_are_chosen() {
        let line = |package: &[&str], rest: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect();
            command(&Arguments { package: owned(package), bounded: false, rest: owned(rest) })
                .join(" ")
        };
        let all = "test --no-fail-fast --package ccm-explore --package ccm-openstack --package ccm-aws -- explore";
        assert_eq!(line(&[], &[]), all);
        let one = "test --no-fail-fast --package ccm-explore -- fail-over/split";
        assert_eq!(line(&["ccm-explore"], &["fail-over/split"]), one);
    }
}
