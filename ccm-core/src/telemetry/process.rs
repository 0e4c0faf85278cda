//! Metrics of the process and of its build, with the names that Go programs use.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus::{
    Gauge, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::{Counter, LabelPair, Metric, MetricFamily, MetricType},
};

use super::metrics::register;

/// Clock ticks per second in `/proc` (`USER_HZ`), the same on every architecture that is supported.
const TICKS: f64 = 100.0;

/// Registers `kubernetes_build_info`, always 1. Labels that do not apply to a Rust program, or that
/// this build does not know, are empty.
///
/// # Errors
/// Returns an error if the name is already registered.
pub fn register_build_info(
    registry: &Registry,
    version: &str,
    commit: &str,
) -> prometheus::Result<()> {
    let labels = [
        "major",
        "minor",
        "git_version",
        "git_commit",
        "git_tree_state",
        "build_date",
        "go_version",
        "compiler",
        "platform",
    ];
    let help = "Always 1; the labels say which version this is and what it was built for.";
    let info = IntGaugeVec::new(Opts::new("kubernetes_build_info", help), &labels)?;
    let mut numbers = version.trim_start_matches('v').split('.');
    let major = numbers.next().unwrap_or_default();
    let minor = numbers.next().unwrap_or_default();
    let platform = crate::config::kubeconfig::platform();
    info.with_label_values(&[major, minor, version, commit, "", "", "", "rustc", &platform])
        .set(1);
    register(registry, info).map(drop)
}

/// Registers `process_cpu_seconds_total`, `process_resident_memory_bytes`,
/// `process_virtual_memory_bytes`, `process_open_fds`, `process_max_fds` and
/// `process_start_time_seconds`. They are read from `/proc` at each scrape; a system without it has
/// none of them.
///
/// # Errors
/// Returns an error if a name is already registered.
pub fn register_process(registry: &Registry) -> prometheus::Result<()> {
    registry.register(Box::new(Process::new()?))
}

/// The families: CPU time (a counter, for which this gauge only holds the description), and the
/// others.
struct Process {
    cpu: Gauge,
    resident: Gauge,
    virtual_size: Gauge,
    open_files: Gauge,
    max_files: Gauge,
    started: Gauge,
}

/// Values read at a scrape.
#[derive(Debug, PartialEq)]
struct ProcessStats {
    cpu_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
    open_files: f64,
    max_files: Option<f64>,
    started: f64,
}

impl Process {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            cpu: Gauge::new(
                "process_cpu_seconds_total",
                "User and system CPU time spent in seconds.",
            )?,
            resident: Gauge::new(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
            )?,
            virtual_size: Gauge::new(
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
            )?,
            open_files: Gauge::new("process_open_fds", "Open file descriptors.")?,
            max_files: Gauge::new("process_max_fds", "Most file descriptors that may be open.")?,
            started: Gauge::new(
                "process_start_time_seconds",
                "Start of the process in seconds since 1970.",
            )?,
        })
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        let families = [
            &self.cpu,
            &self.resident,
            &self.virtual_size,
            &self.open_files,
            &self.max_files,
            &self.started,
        ];
        families.iter().flat_map(|family| family.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(reading) = ProcessStats::take() else {
            return Vec::new();
        };
        self.resident.set(reading.resident_bytes);
        self.virtual_size.set(reading.virtual_bytes);
        self.open_files.set(reading.open_files);
        self.started.set(reading.started);
        let mut families = vec![counter(&self.cpu, reading.cpu_seconds)];
        families.extend(
            [&self.resident, &self.virtual_size, &self.open_files, &self.started]
                .iter()
                .flat_map(|f| f.collect()),
        );
        // Absent where there is no limit.
        if let Some(most) = reading.max_files {
            self.max_files.set(most);
            families.extend(self.max_files.collect());
        }
        families
    }
}

/// Creates a counter family with the given value.
fn counter(family: &Gauge, value: f64) -> MetricFamily {
    let mut counter = Counter::default();
    counter.set_value(value);
    let mut metric = Metric::from_label(Vec::<LabelPair>::new());
    metric.set_counter(counter);
    let mut families = family.collect();
    let mut counted = families.pop().unwrap_or_default();
    counted.set_field_type(MetricType::COUNTER);
    counted.set_metric(vec![metric]);
    counted
}

impl ProcessStats {
    fn take() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let limits = fs::read_to_string("/proc/self/limits").ok()?;
        // Reading the directory opens it, which adds one descriptor.
        let open_files = fs::read_dir("/proc/self/fd")
            .ok()?
            .count()
            .saturating_sub(1);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        Self::parse(&stat, &status, &uptime, &limits, open_files, now)
    }

    fn parse(
        stat: &str,
        status: &str,
        uptime: &str,
        limits: &str,
        open_files: usize,
        now: f64,
    ) -> Option<Self> {
        // The second field is the program's name in parentheses and may contain anything.
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
        let up: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let limit = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))?;
        Some(Self {
            cpu_seconds: seconds_of_field(&fields, 14)? + seconds_of_field(&fields, 15)?,
            virtual_bytes: bytes_of_line(status, "VmSize:")?,
            resident_bytes: bytes_of_line(status, "VmRSS:")?,
            open_files: open_files as f64,
            max_files: limit.split_whitespace().next()?.parse().ok(),
            started: now - up + seconds_of_field(&fields, 22)?,
        })
    }
}

/// Returns a field of `/proc/self/stat` that counts ticks, in seconds. The manual counts fields
/// from 1, and `fields` begins with the third.
fn seconds_of_field(fields: &[&str], field: usize) -> Option<f64> {
    let ticks: f64 = fields.get(field - 3)?.parse().ok()?;
    Some(ticks / TICKS)
}

/// Returns a size of `/proc/self/status`, which is in KiB, in bytes.
fn bytes_of_line(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "42 (a (b) c) S 1 42 42 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 5 0 12000 1000 25 18446744073709551615";
    const STATUS: &str = "Name:\tccm\nVmPeak:\t  900 kB\nVmSize:\t  800 kB\nVmRSS:\t   40 kB\n";
    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 524288               files     \n";

    #[test]
    fn fields_are_those_of_the_proc_manual() {
        let reading = ProcessStats::parse(STAT, STATUS, "1000.50 900.0\n", LIMITS, 7, 1_000_000.5);
        let expected = ProcessStats {
            cpu_seconds: 3.0,
            virtual_bytes: 819_200.0,
            resident_bytes: 40_960.0,
            open_files: 7.0,
            max_files: Some(1024.0),
            started: 999_120.0,
        };
        assert_eq!(reading, Some(expected));
        let unlimited = LIMITS.replace("1024  ", "unlimited");
        assert_eq!(
            ProcessStats::parse(STAT, STATUS, "1 1", &unlimited, 7, 2.0)
                .unwrap()
                .max_files,
            None
        );
        assert_eq!(ProcessStats::parse("", STATUS, "1 1", LIMITS, 7, 2.0), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_shown() {
        let registry = Registry::new();
        register_process(&registry).unwrap();
        register_build_info(&registry, "v1.2.3", "abc").unwrap();
        let families = registry.gather();
        let value = |name: &str| {
            let family = families
                .iter()
                .find(|family| family.name() == name)
                .expect(name);
            let metric = &family.get_metric()[0];
            match family.get_field_type() {
                MetricType::COUNTER => metric.get_counter().get_value(),
                _ => metric.get_gauge().get_value(),
            }
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(
            value("process_open_fds") >= 3.0
                && value("process_open_fds") < value("process_max_fds")
        );
        assert!(value("process_cpu_seconds_total") >= 0.0);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-1.0..86_400.0).contains(&age), "{age}");
        assert!(value("kubernetes_build_info") > 0.0);
    }
}
