//! TCP's events one by one, from eBPF programs in the kernel (`ebpf/`): retransmissions, duplicate
//! acknowledgements, SACKs, timeouts, waits for the send buffer.
//!
//! What the kernel does not permit is said, program by program, in [`Source::refused`]; a build
//! without clang has no programs and says so ([`EventsError::NotBuilt`]). Nothing is changed in the
//! kernel but that the programs run; they end with [`Events`]. Connections are filtered there, by
//! network namespace and port.

#[cfg_attr(not(has_ebpf), path = "absent.rs")]
mod load;

mod clock;
mod event;
mod evidence;
#[cfg_attr(not(has_ebpf), allow(dead_code, reason = "asked before loading"))]
mod privilege;
mod recording;
mod source;
mod tally;

pub use self::clock::{monotonic_ns, realtime_minus_monotonic_ns};
pub use self::event::{EVENT_BYTES, Event, KINDS, Kind};
pub use self::evidence::{Evidence, evidence};
pub use self::load::Events;
pub use self::recording::{Recorded, read_events, write_begin, write_event};
pub use self::source::{Source, describe, seen};
pub use self::tally::{Counts, Tally};

/// This build has the programs.
pub const BUILT: bool = cfg!(has_ebpf);

/// Why there are no events at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// The build script found no compiler.
    #[error("this build of enkaku has no eBPF programs ({0}); install clang and build it again")]
    NotBuilt(&'static str),
    /// The process may not load programs.
    #[error("events need CAP_BPF and CAP_PERFMON, or root; this process lacks {0}")]
    Privilege(&'static str),
    /// The kernel has no type information (CONFIG_DEBUG_INFO_BTF), by which fields are found.
    #[error("events need a kernel with BTF (/sys/kernel/btf/vmlinux): {0}")]
    NoTypes(String),
    /// The kernel refuses the programs' maps, or the object as a whole.
    #[error("the kernel does not take the eBPF programs (Linux 5.12 is needed): {0}")]
    Refused(String),
    /// Every program was refused.
    #[error("this kernel permits none of the programs: {0}")]
    Nothing(String),
}

/// Which connections' events.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventFilter {
    /// A port of either end.
    pub port: Option<u16>,
}
