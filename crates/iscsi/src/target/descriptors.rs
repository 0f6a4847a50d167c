//! File descriptors: as many as the system allows, and some that connections cannot take, so that
//! whoever opens connections by the thousand keeps neither the server from accepting, nor an
//! operator from the admin socket, nor a unit from its file.

use std::io;

/// Descriptors that connections leave alone: standard streams, the runtime's own, portals, admin
/// socket, metrics and their clients, state files being written, and what a reload opens.
const RESERVE: u64 = 192;

/// Descriptors of one logical unit: its file, and once more while it is being replaced.
const PER_UNIT: u64 = 2;

/// Raises the soft limit of open files to the hard one. The number that holds then.
///
/// # Errors
/// The system's; the limit is what it was.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = limit()?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: setrlimit reads the structure that it is given, which lives until it returns.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}

fn limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit fills the structure that it is given, which lives until it returns.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many of `wanted` connections there are descriptors for, beside those of `units` and the
/// reserve. A quarter of what little there is, where that is less than the reserve.
pub(super) fn connections_max(wanted: usize, units: usize) -> usize {
    let Ok(limit) = limit() else { return wanted };
    let units = u64::try_from(units).unwrap_or(u64::MAX);
    wanted.min(left(limit.rlim_cur, units))
}

fn left(limit: u64, units: u64) -> usize {
    let kept = RESERVE.saturating_add(units.saturating_mul(PER_UNIT));
    usize::try_from(limit.saturating_sub(kept).max(limit / 4)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        assert_eq!(left(1024, 4), 824);
        assert_eq!(left(1024, 0), 832);
        assert_eq!(left(64, 1), 16, "an odd limit");
        assert_eq!(left(1024, u64::MAX), 256);
        let raised = raise_descriptor_limit().unwrap();
        assert!(raised >= 64);
        assert_eq!(connections_max(10, 1), 10);
        assert!((connections_max(usize::MAX, 1) as u64) < raised);
    }
}
