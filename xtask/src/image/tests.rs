//! Images of made-up programs, with the libraries of this machine in the place of Debian's.

use std::collections::BTreeSet;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::Value;

use super::debian::Package;
use super::layer::{Content, Entry};
use super::*;

const DOCKERFILE: &str = include_str!("../../../images/Dockerfile");
const TIME: u64 = 1_700_000_000;

/// Finds a program of this machine.
fn tool(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let mut folders = std::env::split_paths(&path).map(|folder| folder.join(name));
    folders.find(|file| file.is_file()).unwrap()
}

/// Makes a layer of the libraries that a program of this machine is linked with.
fn libraries(program: &Path) -> Layer {
    let output = process::output(Command::new("ldd").arg(program)).unwrap();
    let mut layer = Layer::default();
    for path in output
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        layer
            .file(&path[1..], 0o755, std::fs::read(path).unwrap())
            .unwrap();
    }
    assert!(layer.entries.len() > 2, "{output}");
    layer
}

fn release() -> Release {
    Release::of(DOCKERFILE).unwrap()
}

/// Makes a package of this version with these files.
fn package(name: &str, version: &str, files: &[(&str, &str)]) -> Package {
    let mut layer = Layer::default();
    for (path, text) in files {
        layer.file(path, 0o644, *text).unwrap();
    }
    let control = format!("Package: {name}\nVersion: {version}\nArchitecture: amd64\n");
    Package::new(control, "sha256:ab".to_owned(), layer).unwrap()
}

/// Makes the packages that an image is made of.
fn packages() -> Vec<Package> {
    vec![
        package(
            "base-files",
            &format!("{}.4+deb", release().number),
            &[
                ("usr/lib/os-release", "ID=debian"),
                ("usr/share/base-files/motd", "left out"),
                ("usr/share/common-licenses/GPL-3", "free"),
                ("usr/share/doc/base-files/copyright", "free"),
            ],
        ),
        package(
            "ca-certificates",
            "1",
            &[
                ("usr/sbin/update-ca-certificates", "left out"),
                ("usr/share/ca-certificates/mozilla/b.crt", "B\n"),
                ("usr/share/ca-certificates/mozilla/a.crt", "A"),
                ("usr/share/doc/ca-certificates/copyright", "free"),
            ],
        ),
        package("gcc-14-base", "14", &[("usr/share/doc/gcc-14-base/copyright", "free")]),
        package(
            "libc6",
            "2.41-12+deb13u1",
            &[
                ("usr/lib/x86_64-linux-gnu/made-up", "library"),
                ("library", "left out"),
                ("usr/lib/x86_64-linux-gnu/gconv/X.so", "left out"),
                ("usr/share/doc/libc6/changelog.gz", "left out"),
                ("usr/share/doc/libc6/copyright", "free"),
            ],
        ),
        package("libgcc-s1", "14", &[]),
    ]
}

fn parts(program: &str) -> Parts {
    let program = tool(program);
    let mut base = debian::layer(&packages(), &release()).unwrap();
    for (path, entry) in libraries(&program).entries {
        base.add(&path, entry).unwrap();
    }
    Parts {
        provider: Provider::Mock,
        version: Cryptography::Ring.version(),
        architecture: Architecture::host().unwrap(),
        base,
        program: std::fs::read(program).unwrap(),
        documents: vec![("THIRD-PARTY.md".to_owned(), "be free".into())],
        origin: Origin {
            time: TIME,
            revision: Some("abc".to_owned()),
            source: Some("https://example.org/ccm".to_owned()),
        },
    }
}

/// Returns the names and bytes of an archive, in its order.
fn files(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        files.push((entry.path().unwrap().to_string_lossy().into_owned(), bytes));
    }
    files
}

fn json_of(files: &[(String, Vec<u8>)], name: &str) -> Value {
    let (_, bytes) = files.iter().find(|(known, _)| known == name).unwrap();
    serde_json::from_slice(bytes).unwrap()
}

fn unzip(bytes: &[u8]) -> Vec<u8> {
    let mut unzipped = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut unzipped).unwrap();
    unzipped
}

#[test]
fn the_same_parts_give_the_same_bytes() {
    let archive = |parts: &Parts| parts.image().unwrap().archive().unwrap();
    let first = archive(&parts("true"));
    let second = archive(&parts("true"));
    assert_eq!(first.digest, second.digest);
    assert_eq!(oci::digest(&first.bytes), oci::digest(&second.bytes));
    let mut later = parts("true");
    later.origin.time += 1;
    assert_ne!(archive(&later).digest, first.digest);
}

#[test]
fn every_blob_is_what_its_descriptor_says_and_none_is_left_over() {
    let archive = parts("true").image().unwrap().archive().unwrap();
    let files = files(&archive.bytes);
    let mut unseen: BTreeSet<_> = files
        .iter()
        .filter_map(|(name, bytes)| Some((name.strip_prefix("blobs/sha256/")?, bytes)))
        .filter(|(name, _)| !name.is_empty())
        .collect();
    let mut blob = |descriptor: &Value, media_type: &str| -> Vec<u8> {
        assert_eq!(descriptor["mediaType"], media_type);
        let name = descriptor["digest"].as_str().unwrap();
        let blob = unseen
            .iter()
            .find(|(blob, _)| format!("sha256:{blob}") == name)
            .copied();
        let blob = blob.unwrap();
        unseen.remove(&blob);
        assert_eq!(oci::digest(blob.1), name);
        assert_eq!(descriptor["size"], blob.1.len());
        blob.1.clone()
    };
    assert_eq!(json_of(&files, "oci-layout")["imageLayoutVersion"], "1.0.0");
    let index = json_of(&files, "index.json");
    assert_eq!(index["manifests"][0]["digest"], *archive.digest);
    let names = &index["manifests"][0]["annotations"];
    let name = format!("ccm-mock:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(names["org.opencontainers.image.ref.name"], *name);
    assert_eq!(names["io.containerd.image.name"], format!("docker.io/library/{name}"));
    let manifest = blob(&index["manifests"][0], "application/vnd.oci.image.manifest.v1+json");
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let config = blob(&manifest["config"], "application/vnd.oci.image.config.v1+json");
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["rootfs"]["type"], "layers");
    assert_eq!(config["created"], "2023-11-14T22:13:20Z");
    let layers = manifest["layers"].as_array().unwrap();
    let contents = config["rootfs"]["diff_ids"].as_array().unwrap();
    assert_eq!((layers.len(), contents.len()), (2, 2));
    for (layer, content) in layers.iter().zip(contents) {
        let layer = blob(layer, "application/vnd.oci.image.layer.v1.tar+gzip");
        assert_eq!(*content, oci::digest(&unzip(&layer)));
        // Neither flags, nor a time; the best compression on an unknown system.
        assert_eq!(layer[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255]);
    }
    assert!(unseen.is_empty(), "{:?}", unseen.iter().map(|(name, _)| name).collect::<Vec<_>>());
    assert_eq!(config, oci::read(&archive.bytes).unwrap().config);
}

#[test]
fn layers_are_in_order_and_of_root_at_one_time() {
    let archive = parts("true").image().unwrap().archive().unwrap();
    for layer in oci::read(&archive.bytes).unwrap().layers {
        let layer = unzip(&layer);
        let mut before = BTreeSet::new();
        let mut last = String::new();
        for entry in tar::Archive::new(&*layer).entries().unwrap() {
            let entry = entry.unwrap();
            let path = entry
                .path()
                .unwrap()
                .to_string_lossy()
                .trim_end_matches('/')
                .to_owned();
            let header = entry.header();
            assert!(path > last, "{path} after {last}");
            let above = path.rsplit_once('/');
            assert!(above.is_none_or(|(above, _)| before.contains(above)), "{path}");
            let owner = if path == "home/nonroot" { 65532 } else { 0 };
            let owners = (header.uid().unwrap(), header.gid().unwrap());
            assert_eq!(owners, (owner, owner), "{path}");
            assert_eq!(header.mtime().unwrap(), TIME, "{path}");
            assert_eq!(header.username_bytes(), Some(&[][..]), "{path}");
            before.insert(path.clone());
            last = path;
        }
        assert!(before.len() > 5);
    }
}

#[test]
fn the_configuration_is_that_of_the_dockerfile() {
    let parts = parts("true");
    let image = parts.image().unwrap();
    let has = |line: &str| assert!(DOCKERFILE.contains(&format!("\n{line}\n")), "{line}");
    let config = &image.config;
    has(&format!("USER {}", config["User"].as_str().unwrap()));
    has(&format!("ENTRYPOINT {}", config["Entrypoint"]));
    let ports: Vec<_> = config["ExposedPorts"].as_object().unwrap().keys().collect();
    assert_eq!(ports.len(), 1);
    has(&format!("EXPOSE {}", ports[0].strip_suffix("/tcp").unwrap()));
    let entrypoint = config["Entrypoint"][0].as_str().unwrap();
    let copied = format!(
        "COPY --from=build --chown=0:0 --chmod=0555 /out/cloud-controller-manager {entrypoint}"
    );
    has(&copied);
    has(&format!("COPY --from=build --chown=0:0 --chmod=0644 /out/documents/* /{DOCUMENTS}/"));
    for made in [
        "    task notices THIRD-PARTY.md; \\",
        "    task sbom \"ccm-${PROVIDER}.cdx.json\"; \\",
        "    cp \"$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html\" /out/documents/rust-library.html; \\",
        "    cp LICENSE /out/documents",
    ] {
        has(made);
    }
    let (own, _) = image.layers.last().unwrap();
    let program = &own.entries[&entrypoint[1..]];
    assert_eq!((program.mode, &program.content), (0o555, &Content::File(parts.program.clone())));
    let label = |name: &str| image.labels[&format!("org.opencontainers.image.{name}")].clone();
    assert_eq!(label("title"), "ccm-mock");
    has("LABEL org.opencontainers.image.title=\"ccm-${PROVIDER}\" \\");
    has(&format!("      org.opencontainers.image.licenses=\"{}\"", label("licenses")));
    assert_eq!(label("version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(label("revision"), "abc");
    assert_eq!(label("source"), "https://example.org/ccm");
    assert_eq!(config["Labels"], serde_json::to_value(&image.labels).unwrap());
    // What the environment names is there.
    let mut bundle = config["Env"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str);
    let bundle = bundle.find_map(|value| value.strip_prefix("SSL_CERT_FILE="));
    assert_eq!(image.layers[0].0.find(bundle.unwrap()), Some(&b"A\nB\n"[..]));
    assert_eq!(own.find(&format!("{DOCUMENTS}/THIRD-PARTY.md")), Some(&b"be free"[..]));
    for provider in Provider::value_variants() {
        let feature = match provider.features() {
            [] => "*) features='' ;;".to_owned(),
            features => format!(
                "{}) features='--features {}' ;;",
                provider.package().trim_start_matches("ccm-"),
                features.join(",")
            ),
        };
        assert!(DOCKERFILE.contains(&feature), "{feature}");
    }
}

#[test]
fn the_lower_layer_has_what_it_keeps_of_each_package() {
    let layer = debian::layer(&packages(), &release()).unwrap();
    let text = |path: &str| {
        layer
            .find(path)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    assert_eq!(text(debian::CA_BUNDLE).as_deref(), Some("A\nB\n"));
    assert_eq!(text("etc/os-release").as_deref(), Some("ID=debian"));
    assert_eq!(text("usr/lib/x86_64-linux-gnu/made-up").as_deref(), Some("library"));
    assert_eq!(text("usr/share/common-licenses/GPL-3").as_deref(), Some("free"));
    assert!(
        text("etc/passwd")
            .unwrap()
            .contains("\nnonroot:x:65532:65532:")
    );
    for name in ["base-files", "ca-certificates", "gcc-14-base", "libc6"] {
        assert!(text(&format!("usr/share/doc/{name}/copyright")).is_some(), "{name}");
        let status = text(&format!("var/lib/dpkg/status.d/{name}")).unwrap();
        assert!(status.starts_with(&format!("Package: {name}\nVersion: ")), "{status}");
    }
    assert!(text("var/lib/dpkg/status.d/libgcc-s1").is_some());
    let is_left_out = |entry: &Entry| entry.content == Content::File(b"left out".into());
    assert!(!layer.entries.values().any(is_left_out), "{:?}", layer.entries.keys());
}

#[test]
fn the_links_of_base_files_lead_to_libraries() {
    let mut files = Layer::default();
    files
        .file("usr/share/doc/base-files/copyright", 0o644, "free")
        .unwrap();
    for name in ["bin", "lib", "lib64"] {
        files.link(name, &format!("usr/{name}")).unwrap();
    }
    let control = "Package: base-files\nVersion: 13.8\nArchitecture: amd64\n".to_owned();
    let mut packages = packages();
    packages[0] = Package::new(control, "sha256:ab".to_owned(), files).unwrap();
    let layer = debian::layer(&packages, &release()).unwrap();
    assert_eq!(layer.find("lib/x86_64-linux-gnu/made-up"), Some(&b"library"[..]));
    assert_eq!(layer.entries["lib64"].content, Content::Link("usr/lib64".to_owned()));
    assert!(!layer.entries.contains_key("bin"));
}

#[test]
fn an_image_is_made_where_programs_are_linked_for_its_release_or_an_older_one() {
    let why = |os_release: &str| {
        let images = Release::of("ARG DEBIAN=13\nARG DEBIAN_NAME=trixie\n").unwrap();
        unfit(Release::of_machine(os_release).as_ref(), &images)
    };
    let debian = |number: &str| {
        why(&format!(
            "NAME=\"Debian GNU/Linux\"\nVERSION_ID={number}\nVERSION_CODENAME=x\nID=debian\n"
        ))
    };
    for number in ["\"9\"", "\"12\"", "\"13\"", "13"] {
        assert_eq!(debian(number), None, "{number}");
    }
    for number in ["\"14\"", "\"100\""] {
        assert_eq!(debian(number), Some(NEWER_DEBIAN), "{number}");
    }
    let not_released = "ID=debian\nVERSION_CODENAME=forky\n";
    let other = "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"12\"\nVERSION_CODENAME=x\n";
    for os_release in [not_released, other, ""] {
        assert_eq!(why(os_release), Some(NO_DEBIAN), "{os_release}");
    }
}

#[test]
fn packages_of_a_machine_are_of_the_release_that_it_runs() {
    let bookworm = "VERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=debian\n";
    let release = Release { number: 12, name: "bookworm".to_owned() };
    assert_eq!(Release::of_machine(bookworm), Some(release));
}

#[test]
fn packages_that_are_missing_or_of_another_release_or_without_a_copyright_are_errors() {
    let changed = |change: fn(&mut Vec<Package>)| {
        let mut packages = packages();
        change(&mut packages);
        debian::layer(&packages, &release())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(changed(|all| drop(all.remove(3))), "no package libc6");
    let older = changed(|all| {
        all[0] = package("base-files", "11.1", &[("usr/share/doc/base-files/copyright", "free")]);
    });
    assert_eq!(older, "base-files 11.1 is not of Debian 13");
    assert_eq!(
        changed(|all| all[2] = package("gcc-14-base", "14", &[])),
        "gcc-14-base has no copyright"
    );
    let without = changed(|all| {
        all[1] =
            package("ca-certificates", "1", &[("usr/share/doc/ca-certificates/copyright", "free")]);
    });
    assert_eq!(without, "ca-certificates has no certificate");
}

#[test]
fn a_package_is_named_in_the_bill_of_materials() {
    let component = packages()[3].component(&release());
    let purl = "pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64&distro=debian-13";
    assert_eq!(
        (&component["purl"], &component["version"]),
        (&purl.into(), &"2.41-12+deb13u1".into())
    );
    assert_eq!(component["hashes"][0]["content"], "ab");
}

#[test]
fn one_file_of_a_package_is_found_and_two_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let find = || debian::find(folder.path(), "libc6", Architecture::Arm64);
    let make = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
    make("libc6_2.36_amd64.deb");
    make("libc6-dev_2.36_arm64.deb");
    make("libc6_2.36_arm64.deb.part");
    assert_eq!(find().unwrap(), None);
    make("libc6_2.36_arm64.deb");
    assert_eq!(find().unwrap(), Some(folder.path().join("libc6_2.36_arm64.deb")));
    make("libc6_2.37_arm64.deb");
    assert!(
        find()
            .unwrap_err()
            .to_string()
            .ends_with("has two files of libc6")
    );
}

#[test]
fn files_are_found_through_links_and_nothing_is_there_twice() {
    let mut layer = Layer::default();
    layer.file("lib/a/x.so.1", 0o644, "x").unwrap();
    layer.link("lib64/x.so", "/lib/a/x.so.1").unwrap();
    layer.link("lib/a/x.so", "../../lib64/x.so").unwrap();
    layer.link("lib/a/circle", "circle").unwrap();
    layer.link("b", "lib/a").unwrap();
    for path in ["/lib/a/x.so", "b/x.so"] {
        assert_eq!(layer.find(path), Some(&b"x"[..]), "{path}");
    }
    for nothing in ["lib", "lib/a/circle", "lib/b"] {
        assert_eq!(layer.find(nothing), None, "{nothing}");
    }
    layer.folder("lib/a", 0o755).unwrap();
    let error = |result: anyhow::Result<()>| result.unwrap_err().to_string();
    assert_eq!(error(layer.file("lib/a/x.so", 0o644, "y")), "lib/a/x.so is there twice");
    assert_eq!(error(layer.link("lib/a", "b")), "lib/a is there twice");
    let below = error(layer.file("lib/a/x.so/y", 0o644, "y"));
    assert_eq!(below, "lib/a/x.so/y is below something that is no folder");
    for path in ["", "/a", "a/", "a//b", "../a", "a/./b"] {
        let wrong = error(layer.file(path, 0o644, ""));
        assert_eq!(wrong, format!("`{path}` is no path in an image"));
    }
}

#[test]
fn a_program_that_would_not_start_in_the_image_is_an_error() {
    let program = std::env::current_exe().unwrap();
    let libraries = libraries(&program);
    let program = std::fs::read(program).unwrap();
    let host = Architecture::host().unwrap();
    let other = if host == Architecture::Amd64 {
        Architecture::Arm64
    } else {
        Architecture::Amd64
    };
    elf::check(&program, &libraries, host).unwrap();
    let error = |program: &[u8], libraries: &Layer, architecture| {
        format!("{:#}", elf::check(program, libraries, architecture).unwrap_err())
    };
    let foreign = error(&program, &libraries, other);
    assert!(foreign.starts_with("the program is not for "), "{foreign}");
    assert!(error(b"#!/bin/sh", &libraries, host).starts_with("the program is no ELF file"));
    let path = |start: &str| {
        let mut paths = libraries.entries.keys();
        paths.find(|path| path.contains(start)).unwrap().clone()
    };
    let (libc, loader, libgcc) = (path("/libc.so"), path("/ld-linux"), path("/libgcc_s.so"));
    let mut without = libraries.clone();
    without.entries.remove(&libc);
    let missing = error(&program, &without, host);
    assert!(missing.ends_with("needs libc.so.6: which no package of the image has"), "{missing}");
    let mut without = libraries.clone();
    without.entries.remove(&loader);
    assert_eq!(error(&program, &without, host), format!("the image has no /{loader}"));
    // A library that has the name, and not the versions.
    let mut older = libraries.clone();
    let wrong = libraries.entries[&libgcc].clone();
    older.entries.insert(libc, wrong);
    let versions = error(&program, &older, host);
    assert!(
        versions.contains("GLIBC_") && versions.ends_with(": it was linked on a newer system"),
        "{versions}"
    );
}

#[test]
#[ignore = "cargo xtask test --nightly"]
fn the_program_runs_on_the_images_own_root_read_only_as_an_unprivileged_user() {
    let run = |program, arguments: &[&str]| {
        let archive = parts(program).image().unwrap().archive().unwrap();
        container::run(&archive.bytes, arguments).unwrap()
    };
    let output = run("id", &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said.trim(), "uid=65532(nonroot) gid=65532(nonroot) groups=65532(nonroot)");
    let output = run("env", &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\n"), "{output:?}");
    assert!(!said.contains("CARGO"), "{said}");
    let output = run("touch", &["/tmp/file"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("Read-only file system"), "{output:?}");
}
