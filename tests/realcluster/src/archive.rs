//! Images of one program, for what runs beside the manager.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What an image of one program has.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    /// User and group, by number.
    pub user: &'a str,
    /// Path of the program in the image.
    pub path: &'a str,
    /// Whether the image starts it, instead of a pod's first argument.
    pub is_entrypoint: bool,
    /// The program; linked statically.
    pub program: &'a Path,
    /// A folder whose files the image has, too.
    pub files: Option<&'a Path>,
}

/// Writes an image to a file, as a layout in a tar archive.
///
/// # Errors
/// A file cannot be read or written.
pub fn write(image: &Image<'_>, archive: &Path) -> anyhow::Result<()> {
    // First, the only layer.
    let mut layer = tar::Builder::new(Vec::new());
    layer.follow_symlinks(false);
    if let Some(folder) = image.files {
        layer
            .append_dir_all("", folder)
            .with_context(|| format!("add {}", folder.display()))?;
    }
    let program = image.program;
    let bytes = std::fs::read(program).with_context(|| format!("read {}", program.display()))?;
    append(&mut layer, image.path.trim_start_matches('/'), &bytes)?;
    let layer = layer.into_inner()?;

    // Next, what describes it.
    let mut blobs = Vec::new();
    let mut add = |kind: &str, bytes: Vec<u8>| {
        let digest = digest(&bytes);
        let media_type = format!("application/vnd.oci.image.{kind}");
        let descriptor = json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len()});
        blobs.push((digest, bytes));
        descriptor
    };
    let layer: Value = add("layer.v1.tar", layer);
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let entrypoint = image.is_entrypoint.then_some([image.path]);
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"User": image.user, "Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = add("config.v1+json", config.to_string().into());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let manifest = add("manifest.v1+json", manifest.to_string().into());
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });

    // Last, the archive.
    let mut layout = tar::Builder::new(Vec::new());
    append(&mut layout, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append(&mut layout, "index.json", index.to_string().as_bytes())?;
    for (digest, bytes) in &blobs {
        append(&mut layout, &format!("blobs/sha256/{digest}"), bytes)?;
    }
    std::fs::write(archive, layout.into_inner()?)
        .with_context(|| format!("write {}", archive.display()))
}

/// Adds a file that everybody may read and run.
fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len().try_into()?);
    header.set_mode(0o555);
    archive
        .append_data(&mut header, path, bytes)
        .with_context(|| format!("add {path}"))
}

fn digest(bytes: &[u8]) -> String {
    let mut digest = String::new();
    for byte in Sha256::digest(bytes) {
        // Writing to a string cannot fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}
