//! A length that a message claims is believed only as far as there are bytes.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use ccm_fuzz::TARGETS;

/// Mebibytes of address space that this process had at most.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmPeak:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

/// A protobuf field with a length and nothing behind it.
fn claim(number: u8, length: u64) -> Vec<u8> {
    let (mut out, mut rest) = (vec![number << 3 | 2], length);
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap());
    out
}

#[test]
fn no_claimed_length_is_allocated() {
    const CLAIMS: [u64; 5] = [1 << 30, (1 << 31) - 1, u32::MAX as u64, 1 << 40, u64::MAX >> 1];
    let targets = TARGETS
        .iter()
        .filter(|target| ["protobuf", "watches"].contains(&target.name));
    let mut inputs = Vec::new();
    for length in CLAIMS {
        for number in 1..=15 {
            let inner = claim(number, length);
            inputs.push(inner.clone());
            inputs.push([b"k8s\0".to_vec(), inner.clone()].concat());
            // Inside a message that is as long as it says.
            inputs.extend(
                (1..=15).map(|outer| [claim(outer, inner.len() as u64), inner.clone()].concat()),
            );
        }
        let prefix = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
        inputs.push([&prefix[..], b"some bytes"].concat());
    }
    let before = peak();
    let mut runs = 0;
    for target in targets {
        for input in &inputs {
            (target.run)(input);
            runs += 1;
        }
    }
    let grown = peak() - before;
    assert!(runs > 2000, "{runs}");
    assert!(grown < 512, "{grown} MiB more after {runs} inputs that claim at least 1024 MiB each");
}
