//! Signals, as whoever started this process left them.

use rustix::process::Signal;

/// Whether this process was started with a signal ignored, as by nohup.
pub fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let bit = u32::try_from(signal.as_raw() - 1).unwrap_or(u32::MAX);
    1_u64.checked_shl(bit).is_some_and(|bit| ignored & bit != 0)
}
