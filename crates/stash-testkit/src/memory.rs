//! What a process weighs.

use std::fs;

/// The most memory this process had resident, in bytes, where the system says it (Linux: `VmHWM`).
pub fn peak_memory() -> Option<u64> {
    status("VmHWM:")
}

/// The memory this process has resident, in bytes, where the system says it (Linux: `VmRSS`).
pub fn resident_memory() -> Option<u64> {
    status("VmRSS:")
}

/// A number of the process's status that is told in kB, in bytes.
fn status(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_memory() {
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let (now, peak) = (resident_memory().unwrap(), peak_memory().unwrap());
        assert!(now > 0 && peak >= block.len() as u64, "{now} bytes now, {peak} at the most");
    }
}
