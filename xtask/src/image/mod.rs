//! Makes an image of one provider without a container engine: the file system that
//! `images/Dockerfile` makes, as an archive that engines and registries' tools read.
//!
//! The same program, packages and commit give the same bytes.

mod container;
mod debian;
mod elf;
mod layer;
mod oci;
// Programs of this machine have to be such as images hold.
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::json;

use crate::program::Program;
use crate::release::git;
use crate::{control_plane, notices, process, root, sbom};
use debian::Release;
use layer::Layer;
use oci::Image;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Whose image it is
    #[arg(long)]
    provider: Provider,
    /// Builds the program for FIPS 140-3; needs cmake, Perl and Go, and this machine's architecture
    #[arg(long = "fips")]
    is_fips: bool,
    /// Architecture that it is for; this machine's unless given
    #[arg(long)]
    arch: Option<Architecture>,
    /// Program that is built already, as the images have it; it is built unless given
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Folder of Debian's packages, into which those that it lacks are downloaded; a temporary one
    /// unless given
    #[arg(long)]
    debs: Option<PathBuf>,
    /// Where the sources are published, for a label
    #[arg(long)]
    source: Option<String>,
    /// Then runs its program as a container would, with `--version`; needs root, or user namespaces
    /// that everybody may make
    #[arg(long = "try")]
    is_tried: bool,
    /// Where the archive is written; in the target directory unless given
    #[arg(long)]
    output: Option<PathBuf>,
}

impl Arguments {
    fn cryptography(&self) -> Cryptography {
        if self.is_fips {
            Cryptography::Fips
        } else {
            Cryptography::Ring
        }
    }
}

/// A provider that there is an image of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Provider {
    Mock,
    Openstack,
    Aws,
}

impl Provider {
    /// Returns the package, whose program has the same name.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Mock => "ccm-mock",
            Self::Openstack => "ccm-openstack",
            Self::Aws => "ccm-aws",
        }
    }

    /// Returns the features of the image's program, which has none by default: a demo with its API
    /// server has no place in a cluster.
    pub(crate) fn features(self) -> &'static [&'static str] {
        match self {
            Self::Mock | Self::Openstack => &[],
            Self::Aws => &["sdk"],
        }
    }

    /// Describes how the image's program is built.
    fn program(self, cryptography: Cryptography, target: Option<String>) -> Program {
        let features = self.features().iter().chain(cryptography.features());
        Program {
            package: self.package().to_owned(),
            features: features.map(ToString::to_string).collect(),
            no_default_features: true,
            target,
        }
    }
}

/// The library of cryptography that a program is built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cryptography {
    Ring,
    Fips,
}

impl Cryptography {
    fn features(self) -> &'static [&'static str] {
        match self {
            Self::Ring => &[],
            Self::Fips => &["fips"],
        }
    }

    /// Returns the version of images with it.
    fn version(self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        match self {
            Self::Ring => version.to_owned(),
            Self::Fips => format!("{version}-fips"),
        }
    }
}

/// An architecture, by the name that images and Debian have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    fn host() -> anyhow::Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => anyhow::bail!("there are no images for {other}; name an architecture: --arch"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Folder of its libraries, which is also the prefix of its tool chain.
    fn folder(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    fn machine(self) -> u16 {
        match self {
            Self::Amd64 => object::elf::EM_X86_64,
            Self::Arm64 => object::elf::EM_AARCH64,
        }
    }
}

/// Where the program is in the image.
const ENTRYPOINT: &str = "usr/local/bin/cloud-controller-manager";
/// Where notices and SBOM are.
const DOCUMENTS: &str = "usr/share/doc/cloud-controller-manager";
/// User and group, by number, so that a kubelet can see that it is not root.
const USER: &str = "65532:65532";
/// Home of the user.
const HOME: &str = "home/nonroot";
const PORT: u16 = 10258;

/// Makes an image.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let provider = arguments.provider;
    let cryptography = arguments.cryptography();
    let architecture = arguments.arch.map_or_else(Architecture::host, Ok)?;
    let release = release_of_images()?;
    let origin = Origin::find(arguments.source.clone())?;
    let binary = match &arguments.binary {
        Some(path) => path.clone(),
        None => build(provider, cryptography, architecture)?,
    };
    let temporary = tempfile::tempdir().context("make a temporary folder")?;
    let debs = arguments.debs.as_deref().unwrap_or(temporary.path());
    let packages = debian::packages(debs, &release, architecture)?;
    let program = provider.program(cryptography, Some(architecture.target().to_owned()));
    let mut bill = sbom::make(&program)?;
    let components = bill["components"].as_array_mut();
    components
        .context("a bill of materials has components")?
        .extend(packages.iter().map(|package| package.component(&release)));
    let parts = Parts {
        provider,
        version: cryptography.version(),
        architecture,
        base: debian::layer(&packages, &release)?,
        program: read(&binary)?,
        documents: vec![
            ("LICENSE".to_owned(), read(&root()?.join("LICENSE"))?),
            ("THIRD-PARTY.md".to_owned(), notices::make(&program)?.into()),
            ("rust-library.html".to_owned(), library_notices()?),
            (format!("{}.cdx.json", provider.package()), format!("{bill:#}\n").into()),
        ],
        origin,
    };
    let archive = parts.image()?.archive()?;
    let output = match &arguments.output {
        Some(output) => output.clone(),
        None => parts.default_output()?,
    };
    std::fs::write(&output, &archive.bytes)
        .with_context(|| format!("write {}", output.display()))?;
    println!("{}: {} bytes", output.display(), archive.bytes.len());
    println!("image {} for {}: {}", parts.reference(), architecture.name(), archive.digest);
    for package in &packages {
        println!("  {}", package.label());
    }
    if arguments.is_tried {
        try_version(&archive.bytes)
    } else {
        Ok(())
    }
}

/// Says why this machine cannot make an image of a program that it built.
pub(crate) fn missing() -> anyhow::Result<Option<&'static str>> {
    let machine = std::fs::read_to_string(OS_RELEASE).unwrap_or_default();
    Ok(unfit(Release::of_machine(&machine).as_ref(), &release_of_images()?))
}

/// The same for a machine with this release. A program runs with the glibc that it was linked with,
/// and with newer ones.
fn unfit(machine: Option<&Release>, images: &Release) -> Option<&'static str> {
    match machine {
        None => Some(NO_DEBIAN),
        Some(machine) if machine.number > images.number => Some(NEWER_DEBIAN),
        Some(_) => None,
    }
}

/// What [`missing`] says.
pub(crate) const NO_DEBIAN: &str = "the machine does not run a release of Debian";
pub(crate) const NEWER_DEBIAN: &str = "the machine's release of Debian is newer than the images'";

/// Where a machine says what it runs.
const OS_RELEASE: &str = "/etc/os-release";

/// Makes an image of the mock provider's program, and runs it.
pub(crate) fn make_and_try(program: PathBuf) -> anyhow::Result<()> {
    run(&Arguments {
        provider: Provider::Mock,
        arch: None,
        is_fips: false,
        binary: Some(program),
        debs: None,
        source: None,
        is_tried: true,
        output: None,
    })
}

/// Downloads packages of this machine's release of Debian, whose programs run on it.
pub(crate) fn download_for_machine(folder: &Path, names: &[&str]) -> anyhow::Result<()> {
    debian::download(folder, names, &release_of_machine()?, Architecture::host()?)
}

/// Downloads packages of the images' release of Debian with all that they depend on.
pub(crate) fn download_with_dependencies(folder: &Path, names: &[&str]) -> anyhow::Result<()> {
    debian::download_with_dependencies(folder, names, &release_of_images()?, Architecture::host()?)
}

/// Downloads those packages of images for this machine that a folder lacks.
pub(crate) fn download_base(folder: &Path) -> anyhow::Result<()> {
    debian::packages(folder, &release_of_images()?, Architecture::host()?).map(drop)
}

/// The release of Debian that images are based on.
pub(crate) fn release_of_images() -> anyhow::Result<Release> {
    let dockerfile = read(&root()?.join("images/Dockerfile"))?;
    Release::of(&String::from_utf8_lossy(&dockerfile))
}

/// The release of Debian that this machine runs.
pub(crate) fn release_of_machine() -> anyhow::Result<Release> {
    let machine = read(Path::new(OS_RELEASE))?;
    Release::of_machine(&String::from_utf8_lossy(&machine)).context(NO_DEBIAN)
}

/// Returns the name of the folder that has this machine's libraries.
pub(crate) fn library_folder() -> anyhow::Result<&'static str> {
    Ok(Architecture::host()?.folder())
}

/// Checks that no package lacks the notices that an image has to have.
pub(crate) fn check_notices() -> anyhow::Result<()> {
    for provider in Provider::value_variants() {
        for cryptography in [Cryptography::Ring, Cryptography::Fips] {
            notices::make(&provider.program(cryptography, None))?;
        }
    }
    println!("notices: those of all programs can be made");
    Ok(())
}

/// Runs the program of an image for its version.
fn try_version(archive: &[u8]) -> anyhow::Result<()> {
    let output = container::run(archive, &["--version"])?;
    let said = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(
        output.status.success() && said.contains(env!("CARGO_PKG_VERSION")),
        "the program of the image does not say its version: {}: {said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    println!("it runs: {}", said.lines().next().unwrap_or_default());
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}

/// Reads the notices of Rust's library, which every program is linked with.
fn library_notices() -> anyhow::Result<Vec<u8>> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(root()?).args(["--print", "sysroot"]);
    let sysroot = process::output(&mut rustc)?;
    read(&Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html"))
        .context("rustup's tool chains have the notices of Rust's library; this one does not")
}

/// What goes into an image.
struct Parts {
    provider: Provider,
    version: String,
    architecture: Architecture,
    base: Layer,
    program: Vec<u8>,
    /// Files beside the licence, by their names.
    documents: Vec<(String, Vec<u8>)>,
    origin: Origin,
}

impl Parts {
    fn image(&self) -> anyhow::Result<Image> {
        elf::check(&self.program, &self.base, self.architecture)?;
        let mut own = Layer::default();
        own.file(ENTRYPOINT, 0o555, &*self.program)?;
        for (name, bytes) in &self.documents {
            own.file(&format!("{DOCUMENTS}/{name}"), 0o644, &**bytes)?;
        }
        let labels = self.labels();
        Ok(Image {
            layers: vec![
                (self.base.clone(), "packages of Debian".to_owned()),
                (own, format!("program of {}", self.provider.package())),
            ],
            architecture: self.architecture.name(),
            config: json!({
                "User": USER,
                "ExposedPorts": {format!("{PORT}/tcp"): {}},
                "Env": [
                    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    format!("SSL_CERT_FILE=/{}", debian::CA_BUNDLE),
                ],
                "Entrypoint": [format!("/{ENTRYPOINT}")],
                "WorkingDir": format!("/{HOME}"),
                "Labels": labels,
            }),
            labels,
            reference: self.reference(),
            time: self.origin.time,
        })
    }

    /// Makes the folder for archives, and returns the path of this one.
    fn default_output(&self) -> anyhow::Result<PathBuf> {
        let folder = control_plane::target()?.join("images");
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(folder.join(format!(
            "{}-{}-linux-{}.tar",
            self.provider.package(),
            self.version,
            self.architecture.name()
        )))
    }

    fn reference(&self) -> String {
        format!("{}:{}", self.provider.package(), self.version)
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let labels = [
            ("title", Some(self.provider.package().to_owned())),
            ("licenses", Some(env!("CARGO_PKG_LICENSE").to_owned())),
            ("version", Some(self.version.clone())),
            ("revision", self.origin.revision.clone()),
            ("source", self.origin.source.clone()),
        ];
        let labels = labels.into_iter();
        labels
            .filter_map(|(name, value)| Some((format!("org.opencontainers.image.{name}"), value?)))
            .collect()
    }
}

/// What an image is made from, and when.
struct Origin {
    /// Seconds since 1970: of `SOURCE_DATE_EPOCH`, or of the last commit.
    time: u64,
    /// The last commit, `-dirty` behind it when there is more.
    revision: Option<String>,
    source: Option<String>,
}

impl Origin {
    fn find(source: Option<String>) -> anyhow::Result<Self> {
        let root = root()?;
        let git = |arguments: &[&str]| {
            let output = git(&root).args(arguments).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            output.status.success().then(|| text.trim().to_owned())
        };
        let given = std::env::var("SOURCE_DATE_EPOCH")
            .ok()
            .filter(|value| !value.is_empty());
        let time = given
            .or_else(|| git(&["log", "-1", "--format=%ct"]))
            .context("there is no commit to take the time from; set SOURCE_DATE_EPOCH")?;
        let time = time.parse().with_context(|| {
            format!("the time `{time}` is no number of seconds since 1970 (SOURCE_DATE_EPOCH)")
        })?;
        let changes = git(&["status", "--porcelain"]);
        let dirty = if changes.is_some_and(|changes| changes.is_empty()) {
            ""
        } else {
            "-dirty"
        };
        let revision = git(&["rev-parse", "HEAD"]).map(|commit| commit + dirty);
        Ok(Self { time, revision, source })
    }
}

/// Builds the program of an image, with the compilers that the Dockerfile has for another
/// architecture.
fn build(
    provider: Provider,
    cryptography: Cryptography,
    architecture: Architecture,
) -> anyhow::Result<PathBuf> {
    let package = provider.package();
    let features = provider.program(cryptography, None).features;
    let mut cargo = process::cargo()?;
    cargo.args(["build", "--locked", "--release", "--no-default-features", "--package", package]);
    cargo.args(["--bin", package]);
    if !features.is_empty() {
        cargo.arg("--features").arg(features.join(","));
    }
    let mut folder = control_plane::target()?;
    if Architecture::host().ok() != Some(architecture) {
        let target = architecture.target();
        let compiler = format!("{}-gcc", architecture.folder());
        let name = target.replace('-', "_");
        cargo.args(["--target", target]);
        cargo.env(format!("CC_{name}"), &compiler);
        cargo.env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), &compiler);
        folder.push(target);
    }
    process::run(&mut cargo)?;
    Ok(folder.join("release").join(package))
}
