//! Which shared libraries a program needs, and whether an image has them in the versions that it
//! was linked with.

use std::collections::BTreeSet;

use anyhow::Context as _;
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64, VER_FLG_WEAK};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::Architecture;
use super::layer::Layer;

/// What the loader reads of a program or library.
#[derive(Debug, Default, PartialEq, Eq)]
struct Elf {
    machine: u16,
    /// The loader, which only programs name.
    loader: Option<String>,
    /// Libraries.
    needed: Vec<String>,
    /// Versions of a library's symbols: library, version.
    versions: Vec<(String, String)>,
    /// Versions of its own symbols.
    defined: BTreeSet<String>,
}

impl Elf {
    fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        let header = FileHeader64::<Endianness>::parse(bytes)?;
        let endian = header.endian()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut elf = Self { machine: header.e_machine(endian), ..Self::default() };
        for segment in header.program_headers(endian, bytes)? {
            if let Some(loader) = segment.interpreter(endian, bytes)? {
                elf.loader = Some(text(loader));
            }
        }
        let sections = header.sections(endian, bytes)?;
        let dynamic = sections.dynamic_table(endian, bytes)?;
        for entry in dynamic.iter().filter(|entry| entry.tag == DT_NEEDED) {
            elf.needed.push(text(dynamic.string(entry)?));
        }
        if let Some((mut libraries, names)) = sections.gnu_verneed(endian, bytes)? {
            let names = sections.strings(endian, bytes, names)?;
            while let Some((library, mut versions)) = libraries.next()? {
                while let Some(version) = versions.next()? {
                    // The loader does without a weak one.
                    if version.vna_flags.get(endian) & VER_FLG_WEAK == 0 {
                        let library = text(library.file(endian, names)?);
                        elf.versions
                            .push((library, text(version.name(endian, names)?)));
                    }
                }
            }
        }
        if let Some((mut definitions, names)) = sections.gnu_verdef(endian, bytes)? {
            let names = sections.strings(endian, bytes, names)?;
            while let Some((_, mut own)) = definitions.next()? {
                // The first name is its own, those after it are the versions that it goes on from.
                if let Some(version) = own.next()? {
                    elf.defined.insert(text(version.name(endian, names)?));
                }
            }
        }
        Ok(elf)
    }
}

/// Checks that a program runs with the libraries of a layer, and on this architecture.
pub(super) fn check(
    program: &[u8],
    layer: &Layer,
    architecture: Architecture,
) -> anyhow::Result<()> {
    let elf = Elf::read(program).context("the program is no ELF file of 64 bits")?;
    anyhow::ensure!(
        elf.machine == architecture.machine(),
        "the program is not for {}: its machine is {}",
        architecture.name(),
        elf.machine
    );
    if let Some(loader) = &elf.loader {
        layer
            .find(loader)
            .with_context(|| format!("the image has no {loader}"))?;
    }
    let mut known = BTreeSet::new();
    let mut todo = vec![("the program".to_owned(), elf)];
    while let Some((name, elf)) = todo.pop() {
        for needed in &elf.needed {
            let library = library(layer, architecture, needed)
                .with_context(|| format!("{name} needs {needed}"))?;
            for (_, version) in elf.versions.iter().filter(|(file, _)| file == needed) {
                anyhow::ensure!(
                    library.defined.contains(version),
                    "{name} needs {version} of {needed}, and the image's has up to {}: it was linked on a newer system",
                    library
                        .defined
                        .iter()
                        .max_by_key(|own| number(own))
                        .map_or("none", |own| own)
                );
            }
            if known.insert(needed.clone()) {
                todo.push((needed.clone(), library));
            }
        }
    }
    Ok(())
}

/// The numbers in a version, such as `GLIBC_2.36`, to order by.
fn number(version: &str) -> Vec<u32> {
    version
        .split(['_', '.'])
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// Reads a library where the loader looks for it.
fn library(layer: &Layer, architecture: Architecture, name: &str) -> anyhow::Result<Elf> {
    let folders = [format!("lib/{}", architecture.folder()), "lib64".to_owned(), "lib".to_owned()];
    let bytes = folders
        .iter()
        .find_map(|folder| layer.find(&format!("{folder}/{name}")));
    let library = Elf::read(bytes.context("which no package of the image has")?)
        .with_context(|| format!("read {name}"))?;
    anyhow::ensure!(library.machine == architecture.machine(), "which is for another machine");
    Ok(library)
}
