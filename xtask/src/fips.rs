//! Checks builds for FIPS 140-3, which nothing else makes: their library needs cmake, Perl and Go,
//! and minutes.

use std::path::Path;

use anyhow::Context as _;
use object::Endianness;
use object::elf::{FileHeader64, SHT_SYMTAB};
use object::read::elf::{FileHeader as _, Sym as _};

use crate::{control_plane, process};

/// What the build of the library needs beside compilers: programs, and an argument with which each
/// ends well.
const TOOLS: [(&str, &str); 4] =
    [("cmake", "--version"), ("make", "--version"), ("perl", "-v"), ("go", "version")];

/// Runs of cargo: what each is for, and its arguments.
const RUNS: [(&str, &[&str]); 5] = [
    (
        "lints",
        &[
            "clippy",
            "--package=ccm-core",
            "--package=ccm-openstack",
            "--features=ccm-core/fips,ccm-openstack/fips",
            "--all-targets",
            "--",
            "-Dwarnings",
        ],
    ),
    (
        "the AWS manager",
        &["check", "--package=ccm-aws", "--no-default-features", "--features=sdk,fips", "--bins"],
    ),
    // Others name suites and groups that such a build refuses.
    (
        "the framework's tests of connections",
        &[
            "test",
            "--package=ccm-core",
            "--features=fips",
            "--lib",
            "--",
            "crypto::",
            "cipher_suites::",
            "serving::",
            "kubeconfig::",
        ],
    ),
    (
        "tests of the connections to OpenStack",
        &["test", "--package=ccm-openstack", "--features=fips", "--lib", "client::"],
    ),
    (
        "programs as images have them",
        &[
            "build",
            "--package=ccm-mock",
            "--package=ccm-openstack",
            "--no-default-features",
            "--features=ccm-mock/fips,ccm-openstack/fips",
        ],
    ),
];
/// The programs of the last run, in the target directory.
const PROGRAMS: [&str; 2] = ["debug/ccm-mock", "debug/ccm-openstack"];

/// How ring's functions begin, and those of AWS-LC in FIPS mode and otherwise.
const RING: &str = "ring_core_";
const FIPS: &str = "aws_lc_fips_";
const NOT_FIPS: &str = "aws_lc_0_";

/// Builds and tests.
pub(crate) fn run() -> anyhow::Result<()> {
    for (tool, argument) in TOOLS {
        anyhow::ensure!(process::runs(tool, &[argument]), "it needs {tool}");
    }
    for (what, arguments) in RUNS {
        process::run(process::cargo()?.args(arguments)).context(what)?;
        println!("{what}: fine");
    }
    for program in PROGRAMS {
        let path = control_plane::target()?.join(program);
        let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let names = symbols(&bytes).with_context(|| format!("read {}", path.display()))?;
        check(Path::new(program), &names)?;
        println!("{program}: has AWS-LC in FIPS mode, and no other cryptography library");
    }
    Ok(())
}

/// Reads the names of a program's symbols.
fn symbols(bytes: &[u8]) -> anyhow::Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let table = sections.symbols(endian, bytes, SHT_SYMTAB)?;
    let mut names = Vec::new();
    for symbol in table.iter() {
        names.push(String::from_utf8_lossy(symbol.name(endian, table.strings())?).into_owned());
    }
    Ok(names)
}

/// Checks that a program has the library, and no function of another one.
fn check(program: &Path, names: &[String]) -> anyhow::Result<()> {
    let first = |start: &str| names.iter().find(|name| name.starts_with(start));
    for library in [RING, NOT_FIPS] {
        if let Some(name) = first(library) {
            anyhow::bail!("{} has `{name}`, which is not of the FIPS module", program.display());
        }
    }
    anyhow::ensure!(
        first(FIPS).is_some(),
        "{} has nothing of the FIPS module; is it stripped?",
        program.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_module_and_nothing_else() {
        let is_fine = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            check(Path::new("it"), &names).is_ok()
        };
        assert!(is_fine(&["main", "aws_lc_fips_0_14_4_SHA256"]));
        assert!(!is_fine(&["main"]));
        assert!(!is_fine(&["aws_lc_fips_0_14_4_SHA256", "ring_core_0_17_14__x25519_sc_mask"]));
        assert!(!is_fine(&["aws_lc_fips_0_14_4_SHA256", "aws_lc_0_47_0_SHA256"]));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_programs_own_symbols_are_read() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let names = symbols(&bytes).unwrap();
        assert!(names.iter().any(|name| name == "main"));
    }
}
