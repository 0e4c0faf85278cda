//! The files of one layer of an image.

use std::collections::BTreeMap;

use anyhow::Context as _;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Folder,
    File(Vec<u8>),
    /// A symbolic link, and where it leads.
    Link(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) mode: u32,
    /// User and group.
    pub(super) owner: u64,
    pub(super) content: Content,
}

/// Files by their paths, which have no slash in front, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) entries: BTreeMap<String, Entry>,
}

impl Layer {
    /// Adds a folder of root.
    pub(super) fn folder(&mut self, path: &str, mode: u32) -> anyhow::Result<()> {
        self.add(path, Entry { mode, owner: 0, content: Content::Folder })
    }

    /// Adds a file of root.
    pub(super) fn file(
        &mut self,
        path: &str,
        mode: u32,
        bytes: impl Into<Vec<u8>>,
    ) -> anyhow::Result<()> {
        self.add(path, Entry { mode, owner: 0, content: Content::File(bytes.into()) })
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) -> anyhow::Result<()> {
        let content = Content::Link(target.to_owned());
        self.add(path, Entry { mode: 0o777, owner: 0, content })
    }

    /// Adds what is at a path, and the folders above it. Two packages may have the same folder, and
    /// nothing else.
    pub(super) fn add(&mut self, path: &str, entry: Entry) -> anyhow::Result<()> {
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        anyhow::ensure!(path.split('/').all(is_plain), "`{path}` is no path in an image");
        for (at, _) in path.match_indices('/') {
            let above = Entry { mode: 0o755, owner: 0, content: Content::Folder };
            let above = self.entries.entry(path[..at].to_owned()).or_insert(above);
            let is_folder = above.content == Content::Folder;
            anyhow::ensure!(is_folder, "{path} is below something that is no folder");
        }
        let known = self.entries.get(path).map(|known| &known.content);
        let is_free =
            known.is_none_or(|known| *known == Content::Folder && entry.content == Content::Folder);
        anyhow::ensure!(is_free, "{path} is there twice");
        self.entries.insert(path.to_owned(), entry);
        Ok(())
    }

    /// Returns the file at a path, through links to files and folders.
    pub(super) fn find(&self, path: &str) -> Option<&[u8]> {
        let mut left: Vec<&str> = path.rsplit('/').collect();
        let mut at: Vec<&str> = Vec::new();
        // More links than anybody has in a row are a circle.
        let mut links_left = 8;
        while let Some(part) = left.pop() {
            match part {
                "" | "." => continue,
                ".." => {
                    at.pop();
                    continue;
                }
                _ => at.push(part),
            }
            match &self.entries.get(&at.join("/"))?.content {
                Content::Folder => {}
                Content::File(bytes) => return left.is_empty().then_some(bytes),
                Content::Link(target) => {
                    links_left -= 1;
                    if links_left == 0 {
                        return None;
                    }
                    at.pop();
                    if target.starts_with('/') {
                        at.clear();
                    }
                    left.extend(target.rsplit('/'));
                }
            }
        }
        None
    }

    /// Makes the archive of the layer: the same bytes for the same files and time.
    pub(super) fn tar(&self, time: u64) -> anyhow::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            add(&mut archive, path, entry, time).with_context(|| format!("pack {path}"))?;
        }
        archive.into_inner().context("end the archive of a layer")
    }
}

/// Adds an entry to an archive, with no name of a user and nothing else of this machine.
pub(super) fn add(
    archive: &mut tar::Builder<Vec<u8>>,
    path: &str,
    entry: &Entry,
    time: u64,
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(entry.mode);
    header.set_uid(entry.owner);
    header.set_gid(entry.owner);
    header.set_mtime(time);
    header.set_size(0);
    match &entry.content {
        Content::Folder => {
            header.set_entry_type(tar::EntryType::Directory);
            archive.append_data(&mut header, format!("{path}/"), &[][..])
        }
        Content::File(bytes) => {
            header.set_entry_type(tar::EntryType::Regular);
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, path, &**bytes)
        }
        Content::Link(target) => {
            header.set_entry_type(tar::EntryType::Symlink);
            archive.append_link(&mut header, path, target)
        }
    }
}
