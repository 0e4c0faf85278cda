//! Resource usage of a process, from `/proc`.

use std::time::Duration;

/// Resources that a process used since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Processor time in user and kernel mode.
    pub cpu: Duration,
    /// Largest resident set so far, in bytes.
    pub peak_rss: u64,
    /// Resident set now, in bytes.
    pub rss: u64,
}

/// Returns the resources that the process has used, or `None` without `/proc` or without such a
/// process.
pub fn usage(pid: u32) -> Option<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Usage {
        cpu: cpu(&stat)?,
        peak_rss: bytes(&status, "VmHWM:")?,
        rss: bytes(&status, "VmRSS:")?,
    })
}

/// Length of the kernel's unit in `/proc/*/stat`: `USER_HZ`, which is 100 on every architecture we
/// build for.
const TICK: Duration = Duration::from_millis(10);

/// Parses the CPU time. utime and stime are fields 14 and 15 of the line; field 2, the name, is in
/// brackets and may contain any character.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let ticks = fields
        .next()?
        .parse::<u32>()
        .ok()?
        .checked_add(fields.next()?.parse().ok()?)?;
    Some(TICK * ticks)
}

fn bytes(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = "7 (odd ) name) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 3 4 20 0 1 0 100 1000 10";
        assert_eq!(cpu(stat), Some(Duration::from_secs(3)));
        assert_eq!(cpu("7 (x) S 1"), None);
        let status = "VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 3 kB\n";
        assert_eq!(bytes(status, "VmHWM:"), Some(2 * 1024 * 1024));
        assert_eq!(bytes(status, "VmRSS:"), Some(3 * 1024));
        assert_eq!(bytes("VmPeak: 9 kB\n", "VmHWM:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_something() {
        let used = usage(std::process::id()).unwrap();
        assert!(used.rss > 1024 * 1024 && used.peak_rss >= used.rss, "{used:?}");
        assert_eq!(usage(u32::MAX), None);
    }
}
