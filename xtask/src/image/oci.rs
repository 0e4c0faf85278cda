//! Image layout in a tar archive, as `skopeo`, `podman load` and `ctr image import` read it.
//!
//! <https://github.com/opencontainers/image-spec/blob/v1.1.1/spec.md>

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};

use anyhow::Context as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::layer::Layer;

/// An image of one architecture.
pub(super) struct Image {
    /// From the lowest, with what each of them is.
    pub(super) layers: Vec<(Layer, String)>,
    pub(super) architecture: &'static str,
    /// Part of the configuration that a container starts with, labels included.
    pub(super) config: Value,
    pub(super) labels: BTreeMap<String, String>,
    /// Name of the image in the archive.
    pub(super) reference: String,
    /// Seconds since 1970, for everything that has a time.
    pub(super) time: u64,
}

/// An archive in memory.
pub(super) struct Archive {
    pub(super) bytes: Vec<u8>,
    /// Digest of the manifest, by which a registry knows the image.
    pub(super) digest: String,
}

/// The blobs of an image, by their digests.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Adds a blob and returns its descriptor.
    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = digest(&bytes);
        let descriptor = json!({"mediaType": media_type, "digest": digest, "size": bytes.len()});
        self.0.insert(digest, bytes);
        descriptor
    }
}

impl Image {
    /// Packs the image: the same bytes for the same image.
    pub(super) fn archive(&self) -> anyhow::Result<Archive> {
        let mut blobs = Blobs::default();
        let (mut layers, mut contents, mut history) = (Vec::new(), Vec::new(), Vec::new());
        let created = created(self.time)?;
        for (layer, what) in &self.layers {
            let tar = layer.tar(self.time)?;
            contents.push(digest(&tar));
            layers.push(blobs.add("application/vnd.oci.image.layer.v1.tar+gzip", gzip(&tar)?));
            history.push(json!({"created": created, "created_by": what}));
        }
        let config = json!({
            "created": created,
            "architecture": self.architecture,
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": contents},
            "history": history,
        });
        let config =
            blobs.add("application/vnd.oci.image.config.v1+json", config.to_string().into());
        let manifest_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": config,
            "layers": layers,
            "annotations": self.labels,
        });
        let mut manifest = blobs.add(manifest_type, manifest.to_string().into());
        let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
        manifest["platform"] = json!({"architecture": self.architecture, "os": "linux"});
        // The second is what containerd, and Docker with it, would make of the first, had it no colon.
        manifest["annotations"] = json!({
            "org.opencontainers.image.ref.name": self.reference,
            "io.containerd.image.name": format!("docker.io/library/{}", self.reference),
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        Ok(Archive { bytes: self.pack(&blobs, &index)?, digest })
    }

    /// Puts everything in its place.
    fn pack(&self, blobs: &Blobs, index: &Value) -> anyhow::Result<Vec<u8>> {
        let mut layout = Layer::default();
        layout.file("oci-layout", 0o644, json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
        layout.file("index.json", 0o644, index.to_string())?;
        for (digest, bytes) in &blobs.0 {
            layout.file(&format!("blobs/{}", digest.replace(':', "/")), 0o644, &**bytes)?;
        }
        layout.tar(self.time)
    }
}

/// Compresses, with a header that has neither a time nor a name nor a system.
fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let compression = flate2::Compression::best();
    let mut gzip = flate2::GzBuilder::new()
        .mtime(0)
        .operating_system(255)
        .write(Vec::new(), compression);
    gzip.write_all(bytes).context("compress a layer")?;
    gzip.finish().context("compress a layer")
}

/// Returns a time as RFC 3339 writes it.
fn created(seconds: u64) -> anyhow::Result<String> {
    let time = jiff::Timestamp::from_second(seconds.try_into()?).context("a time in reach")?;
    Ok(time.to_string())
}

/// Returns the digest of a blob.
pub(super) fn digest(bytes: &[u8]) -> String {
    let mut digest = "sha256:".to_owned();
    for byte in Sha256::digest(bytes) {
        // Writing to a string cannot fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

/// An image that was read from an archive.
pub(super) struct Contents {
    pub(super) config: Value,
    /// Compressed, from the lowest.
    pub(super) layers: Vec<Vec<u8>>,
}

/// Reads the image of an archive. What is not what its digest says is an error.
pub(super) fn read(archive: &[u8]) -> anyhow::Result<Contents> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        files.insert(entry.path()?.to_string_lossy().into_owned(), bytes);
    }
    let blob = |descriptor: &Value| {
        let name = descriptor["digest"]
            .as_str()
            .context("a descriptor has no digest")?;
        let bytes = files.get(&format!("blobs/{}", name.replace(':', "/")));
        let bytes = bytes.with_context(|| format!("there is no {name}"))?;
        let is_it = digest(bytes) == name && descriptor["size"] == bytes.len();
        anyhow::ensure!(is_it, "{name} is something else");
        Ok(bytes)
    };
    let index = files.get("index.json").context("there is no index")?;
    let index: Value = serde_json::from_slice(index)?;
    let manifest: Value = serde_json::from_slice(blob(&index["manifests"][0])?)?;
    let config = serde_json::from_slice(blob(&manifest["config"])?)?;
    let layers = manifest["layers"]
        .as_array()
        .context("a manifest has layers")?;
    let layers = layers.iter().map(|layer| blob(layer).cloned());
    Ok(Contents { config, layers: layers.collect::<anyhow::Result<_>>()? })
}
