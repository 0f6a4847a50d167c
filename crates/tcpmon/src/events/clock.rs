//! The clocks of events: the kernel stamps them with CLOCK_MONOTONIC, captures have the time of
//! day.

/// CLOCK_MONOTONIC in nanoseconds: the clock of `Instant` and of [`super::Event::at_ns`].
pub fn monotonic_ns() -> u64 {
    now_ns(libc::CLOCK_MONOTONIC)
}

/// What to add to [`super::Event::at_ns`] for nanoseconds since 1970; changes when somebody sets
/// the clock.
pub fn realtime_minus_monotonic_ns() -> u64 {
    // The reading between two others of the other clock is nearest to their middle.
    let before = monotonic_ns();
    let realtime = now_ns(libc::CLOCK_REALTIME);
    let after = monotonic_ns();
    realtime.saturating_sub(before + (after - before) / 2)
}

fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one timespec, which outlives the call. These two clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn both_clocks_meet() {
        let ours = u128::from(monotonic_ns() + realtime_minus_monotonic_ns());
        let theirs = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        assert!(theirs.abs_diff(ours) < 60_000_000_000, "{ours} {theirs}");
    }
}
