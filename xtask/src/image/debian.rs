//! The lower layer: what of Debian a program needs, from Debian's packages.
//!
//! The same as the base image of `images/Dockerfile` has, as far as a program of ours uses it.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::layer::{Content, Entry, Layer};
use super::{Architecture, HOME, oci};
use crate::process;

/// Packages, and the files and folders of each that are in the image, beside its copyright.
///
/// Left out of libc6 are [`CONVERSIONS`], which nothing here asks for.
const PACKAGES: [(&str, &[&str]); 5] = [
    (
        "base-files",
        &["etc/debian_version", "lib", "lib64", "usr/lib/os-release", "usr/share/common-licenses"],
    ),
    ("ca-certificates", &[]),
    // The notices of libgcc.
    ("gcc-14-base", &[]),
    ("libc6", &["etc/ld.so.conf.d", "usr/lib", "usr/lib64"]),
    ("libgcc-s1", &["usr/lib", "usr/share/doc/libgcc-s1"]),
];

/// The folder of conversions between character sets, in libc6.
const CONVERSIONS: &str = "gconv";

/// Where the certificates are in their package.
const CERTIFICATES: &str = "usr/share/ca-certificates/";
/// Where programs look for all of them.
pub(super) const CA_BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// What apt trusts; the package debian-archive-keyring has it.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A release of Debian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) number: u32,
    pub(super) name: String,
}

impl Release {
    /// Reads what the Dockerfile is built on.
    pub(super) fn of(dockerfile: &str) -> anyhow::Result<Self> {
        let argument = |name: &str| {
            let mut lines = dockerfile.lines();
            lines
                .find_map(|line| line.strip_prefix(&format!("ARG {name}=")))
                .map(str::to_owned)
                .with_context(|| format!("images/Dockerfile has no `ARG {name}=`"))
        };
        let number = argument("DEBIAN")?;
        let number = number.parse().with_context(|| {
            format!("`{number}` of images/Dockerfile is no number of a release of Debian")
        })?;
        Ok(Self { number, name: argument("DEBIAN_NAME")? })
    }

    /// Reads what a machine runs from its `/etc/os-release`. There is none on another system, and
    /// none before a release is out, when it has no number.
    pub(super) fn of_machine(os_release: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = os_release.lines();
            lines
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .map(|value| value.trim_matches('"').to_owned())
        };
        if field("ID")? != "debian" {
            return None;
        }
        Some(Self {
            number: field("VERSION_ID")?.parse().ok()?,
            name: field("VERSION_CODENAME")?,
        })
    }
}

/// A package that was read.
#[derive(Debug, Clone)]
pub(super) struct Package {
    name: String,
    version: String,
    architecture: String,
    /// Its fields, as dpkg keeps them.
    control: String,
    /// Digest of the package's file.
    digest: String,
    files: Layer,
}

impl Package {
    /// Reads a package's file.
    fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let control = process::output(Command::new("dpkg-deb").arg("--field").arg(path))?;
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.arg("--fsys-tarfile").arg(path);
        let output = dpkg.output().context("run dpkg-deb")?;
        let why = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "unpack {}: {why}", path.display());
        Self::new(control, oci::digest(&bytes), files(&output.stdout)?)
    }

    /// Makes a package of its fields and files.
    pub(super) fn new(control: String, digest: String, files: Layer) -> anyhow::Result<Self> {
        let field = |name: &str| {
            let mut lines = control.lines();
            lines
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .map(str::to_owned)
                .with_context(|| format!("a package has no field {name}"))
        };
        Ok(Self {
            name: field("Package")?,
            version: field("Version")?,
            architecture: field("Architecture")?,
            control,
            digest,
            files,
        })
    }

    /// Describes the package for a bill of materials.
    pub(super) fn component(&self, release: &Release) -> Value {
        let purl = format!(
            "pkg:deb/debian/{}@{}?arch={}&distro=debian-{}",
            self.name,
            // A plus sign has a meaning of its own there.
            self.version.replace('+', "%2B"),
            self.architecture,
            release.number
        );
        json!({
            "type": "library",
            "bom-ref": purl,
            "name": self.name,
            "version": self.version,
            "purl": purl,
            "scope": "required",
            "hashes": [{"alg": "SHA-256", "content": self.digest.trim_start_matches("sha256:")}],
        })
    }

    /// Returns name and version.
    pub(super) fn label(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}

/// Reads the files of a package from the archive in it.
fn files(tar: &[u8]) -> anyhow::Result<Layer> {
    let mut layer = Layer::default();
    for entry in tar::Archive::new(tar).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let path = path
            .trim_start_matches("./")
            .trim_end_matches('/')
            .to_owned();
        if path.is_empty() {
            continue;
        }
        let header = entry.header();
        let mode = header.mode()? & 0o7777;
        let content = match header.entry_type() {
            tar::EntryType::Directory => Content::Folder,
            tar::EntryType::Symlink => {
                let target = entry.link_name()?.context("a link leads nowhere")?;
                Content::Link(target.to_string_lossy().into_owned())
            }
            tar::EntryType::Regular => {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                Content::File(bytes)
            }
            other => anyhow::bail!("{path} is neither file, folder nor symbolic link: {other:?}"),
        };
        layer.add(&path, Entry { mode, owner: 0, content })?;
    }
    Ok(layer)
}

/// Finds the packages in a folder, and downloads those that it lacks.
pub(super) fn packages(
    folder: &Path,
    release: &Release,
    architecture: Architecture,
) -> anyhow::Result<Vec<Package>> {
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let mut missing = Vec::new();
    for (name, _) in PACKAGES {
        if find(folder, name, architecture)?.is_none() {
            missing.push(name);
        }
    }
    if !missing.is_empty() {
        download(folder, &missing, release, architecture).with_context(|| {
            format!(
                "download {} of Debian {}; that needs apt, {KEYRING} and a network, or the files in --debs",
                missing.join(", "),
                release.number
            )
        })?;
    }
    let mut packages = Vec::new();
    for (name, _) in PACKAGES {
        let path = find(folder, name, architecture)?.with_context(|| format!("no {name}"))?;
        packages.push(Package::read(&path)?);
    }
    Ok(packages)
}

/// Finds the file of a package. With two, nobody could say which is meant.
pub(super) fn find(
    folder: &Path,
    name: &str,
    architecture: Architecture,
) -> anyhow::Result<Option<PathBuf>> {
    let endings = [format!("_{}.deb", architecture.name()), "_all.deb".to_owned()];
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let is_it = file.starts_with(&format!("{name}_"))
            && endings.iter().any(|ending| file.ends_with(ending));
        found.extend(is_it.then_some(path.clone()));
    }
    anyhow::ensure!(found.len() < 2, "{} has two files of {name}", folder.display());
    Ok(found.pop())
}

/// Configuration that keeps apt from reading that of the machine.
const WITHOUT_THE_MACHINES: &str = "Dir::Etc::Main \"/dev/null\";\nDir::Etc::Parts \"/dev/null\";\n\
     Dir::Etc::Preferences \"/dev/null\";\nDir::Etc::PreferencesParts \"/dev/null\";\n";

/// Downloads packages. It uses nothing of this machine but its settings for the network: neither
/// its sources nor what is installed.
pub(super) fn download(
    folder: &Path,
    names: &[&str],
    release: &Release,
    architecture: Architecture,
) -> anyhow::Result<()> {
    let apt = Apt::new(release, architecture)?;
    process::run(
        apt.command()
            .current_dir(folder)
            .arg("download")
            .args(names),
    )
}

/// Downloads packages with all that they depend on.
pub(super) fn download_with_dependencies(
    folder: &Path,
    names: &[&str],
    release: &Release,
    architecture: Architecture,
) -> anyhow::Result<()> {
    let apt = Apt::new(release, architecture)?;
    let mut install = apt.command();
    install.args(["install", "--yes", "--download-only", "--no-install-recommends"]);
    process::run(install.args(names))?;
    for entry in std::fs::read_dir(apt.state.path().join("archives"))? {
        let entry = entry?;
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "deb")
        {
            std::fs::copy(entry.path(), folder.join(entry.file_name()))
                .with_context(|| format!("copy to {}", folder.display()))?;
        }
    }
    Ok(())
}

/// apt with Debian's lists, whose signatures it has checked, and as if nothing were installed.
struct Apt {
    state: tempfile::TempDir,
    options: Vec<String>,
}

impl Apt {
    /// Downloads the lists of a release.
    fn new(release: &Release, architecture: Architecture) -> anyhow::Result<Self> {
        anyhow::ensure!(Path::new(KEYRING).is_file(), "there is no {KEYRING}");
        let state = tempfile::tempdir().context("make a temporary folder")?;
        let place = |name: &str| state.path().join(name).display().to_string();
        for lists in ["lists/partial", "archives/partial"] {
            std::fs::create_dir_all(place(lists))?;
        }
        let name = &release.name;
        let suites = [
            ("debian", name.clone()),
            ("debian", format!("{name}-updates")),
            ("debian-security", format!("{name}-security")),
        ];
        let sources = suites.map(|(archive, suite)| {
            format!("deb [signed-by={KEYRING}] http://deb.debian.org/{archive} {suite} main\n")
        });
        std::fs::write(place("sources.list"), sources.concat())?;
        std::fs::write(place("status"), "")?;
        // Read before the machine's own configuration, which would add hooks and a preferred
        // release.
        let network = process::output(Command::new("apt-config").args(["dump", "Acquire"]))?;
        std::fs::write(place("apt.conf"), format!("{network}{WITHOUT_THE_MACHINES}"))?;
        let options = vec![
            format!("Dir::Etc::SourceList={}", place("sources.list")),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State={}", place("")),
            format!("Dir::State::Status={}", place("status")),
            format!("Dir::Cache={}", place("")),
            format!("APT::Architecture={}", architecture.name()),
            format!("APT::Architectures={}", architecture.name()),
            "APT::Update::Error-Mode=any".to_owned(),
            "Acquire::Languages=none".to_owned(),
            // Another user could not write to folders of ours.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let apt = Self { state, options };
        process::run(apt.command().arg("update"))?;
        Ok(apt)
    }

    fn command(&self) -> Command {
        let mut apt = Command::new("apt-get");
        apt.args(["--quiet", "--quiet"]);
        apt.env("APT_CONFIG", self.state.path().join("apt.conf"));
        apt.args(self.options.iter().flat_map(|option| ["-o", option]));
        apt
    }
}

/// Makes the lower layer.
pub(super) fn layer(packages: &[Package], release: &Release) -> anyhow::Result<Layer> {
    let mut layer = Layer::default();
    for (name, kept) in PACKAGES {
        let package = packages.iter().find(|package| package.name == name);
        let package = package.with_context(|| format!("no package {name}"))?;
        let copyright = format!("usr/share/doc/{name}/copyright");
        let is_kept = |path: &str| {
            path == copyright
                || kept.iter().any(|kept| {
                    path.strip_prefix(kept)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                        && !path.split('/').any(|part| part == CONVERSIONS)
                })
        };
        for (path, entry) in package
            .files
            .entries
            .iter()
            .filter(|(path, _)| is_kept(path))
        {
            layer.add(path, entry.clone())?;
        }
        anyhow::ensure!(
            layer.find(&copyright).is_some() || name == "libgcc-s1",
            "{name} has no copyright"
        );
        // Where scanners look for packages in images that have no dpkg.
        layer.file(&format!("var/lib/dpkg/status.d/{name}"), 0o644, &*package.control)?;
        match name {
            "ca-certificates" => layer.file(CA_BUNDLE, 0o644, bundle(&package.files)?)?,
            "base-files" => anyhow::ensure!(
                package.version.split('.').next() == Some(&release.number.to_string()),
                "{} is not of Debian {}",
                package.label(),
                release.number
            ),
            _ => {}
        }
    }
    layer.link("etc/os-release", "../usr/lib/os-release")?;
    accounts(&mut layer)?;
    Ok(layer)
}

/// Joins all certificates, as `update-ca-certificates` does.
fn bundle(files: &Layer) -> anyhow::Result<Vec<u8>> {
    let mut bundle = Vec::new();
    for (path, entry) in &files.entries {
        match &entry.content {
            Content::File(bytes) if path.starts_with(CERTIFICATES) => {
                bundle.extend_from_slice(bytes);
                if !bundle.ends_with(b"\n") {
                    bundle.push(b'\n');
                }
            }
            _ => {}
        }
    }
    anyhow::ensure!(!bundle.is_empty(), "ca-certificates has no certificate");
    Ok(bundle)
}

/// Adds users, their folders, and where names are looked up.
fn accounts(layer: &mut Layer) -> anyhow::Result<()> {
    let users = format!(
        "root:x:0:0:root:/root:/sbin/nologin\n\
         nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n\
         nonroot:x:65532:65532:nonroot:/{HOME}:/sbin/nologin\n"
    );
    layer.file("etc/passwd", 0o644, users)?;
    layer.file("etc/group", 0o644, "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n")?;
    layer.file(
        "etc/nsswitch.conf",
        0o644,
        "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n",
    )?;
    layer.folder("root", 0o700)?;
    layer.folder("tmp", 0o1777)?;
    for mounted in ["dev", "proc", "run", "sys"] {
        layer.folder(mounted, 0o755)?;
    }
    let home = Entry { mode: 0o700, owner: 65532, content: Content::Folder };
    layer.add(HOME, home)
}
