//! Whether this process may load eBPF programs, before the kernel says no without a reason.

/// Of linux/capability.h.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// What is lacking, `None` if nothing is.
pub(super) fn lacking() -> Option<&'static str> {
    lacking_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The same of a proc(5) status; a kernel that does not say so is asked to load instead.
fn lacking_in(status: &str) -> Option<&'static str> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let held = u64::from_str_radix(line.trim(), 16).ok()?;
    let has = |capability: u32| held & 1 << capability != 0;
    match (has(CAP_SYS_ADMIN), has(CAP_BPF), has(CAP_PERFMON)) {
        (true, ..) | (_, true, true) => None,
        (_, true, false) => Some("CAP_PERFMON"),
        (_, false, true) => Some("CAP_BPF"),
        (_, false, false) => Some("both"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_capabilities_or_the_old_one_are_enough() {
        for (held, lacks) in [
            (0_u64, Some("both")),
            (1 << CAP_BPF, Some("CAP_PERFMON")),
            (1 << CAP_PERFMON, Some("CAP_BPF")),
            (1 << CAP_PERFMON | 1 << CAP_BPF, None),
            (1 << CAP_SYS_ADMIN, None),
        ] {
            let status = format!("Name:\tx\nCapPrm:\tffff\nCapEff:\t{held:016x}\nCapBnd:\t0\n");
            assert_eq!(lacking_in(&status), lacks, "{status}");
        }
        assert_eq!(lacking_in("CapEff:\tnot hex"), None);
        assert_eq!(lacking_in(""), None);
    }
}
