//! What a machine must be like for a real cluster. `xtask` includes this file by path, so it may
//! use only std.

use std::path::Path;

/// Reasons for which there is no real cluster on a machine, whatever is installed there.
pub(crate) const REASONS: [&str; 5] = [
    "a real cluster needs Linux",
    "a real cluster needs root",
    "a real cluster needs cgroup v1, and was tried with nothing else",
    "a real cluster needs a file system for overlays",
    OTHER_SYSTEM,
];

/// The reason that [`unfit`] does not see: images hold programs that were built on the machine, and
/// libraries of one release of Debian. `xtask` tells it with an empty name of the folder of programs.
pub(crate) const OTHER_SYSTEM: &str =
    "a real cluster needs Debian, and no newer release of it than the images'";

/// Returns why there can be no real cluster here; one of [`REASONS`].
pub(crate) fn unfit() -> Option<&'static str> {
    let [no_linux, no_root, no_cgroup, no_overlay, _] = REASONS;
    if !cfg!(target_os = "linux") {
        return Some(no_linux);
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    // All capabilities but a few: those that matter are to mount, to administer networks and to
    // enter namespaces.
    let status = read("/proc/self/status");
    let capabilities = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default();
    let needed = [0_u32, 12, 18, 21];
    if needed.iter().any(|bit| capabilities & (1 << bit) == 0) {
        return Some(no_root);
    }
    let controllers = ["memory", "cpuset", "pids", "cpu"];
    if controllers
        .iter()
        .any(|name| !Path::new("/sys/fs/cgroup").join(name).is_dir())
    {
        return Some(no_cgroup);
    }
    if !read("/proc/filesystems")
        .lines()
        .any(|line| line.ends_with("\toverlay"))
    {
        return Some(no_overlay);
    }
    None
}
