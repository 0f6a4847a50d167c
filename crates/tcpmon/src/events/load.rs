//! Loads the programs, attaches what the kernel permits, and reads their ring.

use std::os::unix::fs::MetadataExt;

use aya::maps::{MapData, RingBuf};
use aya::programs::{BtfTracePoint, FEntry, FExit, Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader, include_bytes_aligned};

use super::event::Kind;
use super::source::{Source, describe, seen};
use super::{Event, EventFilter, EventsError, privilege};

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/events.bpf.o"));
/// Room for some 35,000 events, what a few very bad seconds have; a power of two, which the kernel
/// demands.
const RING_BYTES: u32 = 1 << 22;
/// A connection tells how it stands at most so often; more would drown what is rare.
const PROBE_INTERVAL_NS: u64 = 1_000_000;
/// The kernel's own ENOTSUPP, which has no name in user space.
const ENOTSUPP: i32 = 524;

/// How a program is attached.
#[derive(Clone, Copy)]
enum Attach {
    Tracepoint,
    Entry,
    Exit,
}

/// A place in the kernel: its name for people, what it shows, and the programs that it takes: their
/// names in the object, and the kernel's function or tracepoint.
struct Place {
    name: &'static str,
    shows: &'static [Kind],
    programs: &'static [(&'static str, Attach, &'static str)],
}

const PLACES: &[Place] = &[
    Place {
        name: "tp_btf/tcp_probe",
        shows: &[Kind::Probe, Kind::DuplicateAck, Kind::Sack],
        programs: &[("tcp_probe", Attach::Tracepoint, "tcp_probe")],
    },
    Place {
        name: "tp_btf/tcp_retransmit_skb",
        shows: &[Kind::Retransmit],
        programs: &[("tcp_retransmit", Attach::Tracepoint, "tcp_retransmit_skb")],
    },
    Place {
        name: "fentry/tcp_enter_loss",
        shows: &[Kind::Rto],
        programs: &[("retransmission_timeout", Attach::Entry, "tcp_enter_loss")],
    },
    Place {
        name: "fentry/sk_stream_wait_memory",
        shows: &[Kind::SendWait],
        programs: &[
            ("send_wait_room", Attach::Entry, "sk_stream_write_space"),
            ("send_wait_end", Attach::Exit, "sk_stream_wait_memory"),
            ("send_wait_begin", Attach::Entry, "sk_stream_wait_memory"),
        ],
    },
    Place {
        name: "fentry/tcp_enter_cwr",
        shows: &[Kind::LocalCongestion],
        programs: &[("local_congestion", Attach::Entry, "tcp_enter_cwr")],
    },
];

/// Programs in the kernel. They see the network namespace that this process was in when they were
/// loaded, and end with this value.
pub struct Events {
    ring: RingBuf<MapData>,
    sources: Vec<Source>,
    lost: u32,
    /// Holds the programs.
    _programs: Ebpf,
}

impl Events {
    /// Loads and attaches what the kernel permits. Reading needs no privilege any more.
    ///
    /// # Errors
    /// There would be no events at all; the error says why.
    pub fn open(filter: &EventFilter) -> Result<Self, EventsError> {
        if let Some(lacking) = privilege::lacking() {
            return Err(EventsError::Privilege(lacking));
        }
        let types = Btf::from_sys_fs().map_err(|error| EventsError::NoTypes(error.to_string()))?;
        let refused = |error: &dyn std::error::Error| EventsError::Refused(chain(error));
        let netns = network_namespace().map_err(|error| refused(&error))?;
        let port = u32::from(filter.port.unwrap_or(0));
        let mut programs = EbpfLoader::new()
            .btf(Some(&types))
            .override_global("wanted_netns", &netns, true)
            .override_global("wanted_port", &port, true)
            .override_global("probe_interval_ns", &PROBE_INTERVAL_NS, true)
            .map_max_entries("events", RING_BYTES)
            .load(OBJECT)
            .map_err(|error| refused(&error))?;
        let ring = programs.take_map("events").ok_or(()).and_then(|map| {
            // The map is the object's own, so another type is a bug of the build.
            RingBuf::try_from(map).map_err(|_| ())
        });
        let ring = ring.map_err(|()| EventsError::Refused("its ring is missing".into()))?;
        let sources: Vec<Source> = PLACES
            .iter()
            .map(|place| Source {
                program: place.name,
                shows: place.shows,
                refused: attach(&mut programs, &types, place).err(),
            })
            .collect();
        if seen(&sources).is_empty() {
            return Err(EventsError::Nothing(describe(&sources).join("; ")));
        }
        Ok(Self { ring, sources, lost: 0, _programs: programs })
    }

    /// What is seen and what is not.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Hands over what has happened since the last call, a ring full at most, also as the bytes
    /// that a recording keeps; returns how many that were. Events of one connection come in the
    /// order of time.
    pub fn drain(&mut self, mut each: impl FnMut(Event, &[u8])) -> usize {
        let most = RING_BYTES as usize / super::EVENT_BYTES;
        let mut count = 0;
        while count < most
            && let Some(item) = self.ring.next()
        {
            count += 1;
            if let Some(event) = Event::decode(&item) {
                self.lost = self.lost.max(event.lost);
                each(event, &item);
            }
        }
        count
    }

    /// Events that were lost because nobody fetched them in time, as the latest event says.
    pub fn lost(&self) -> u32 {
        self.lost
    }
}

/// Attaches all programs of a place or none; the error says why not.
fn attach(programs: &mut Ebpf, types: &Btf, place: &Place) -> Result<(), String> {
    let mut done = Ok(());
    for (name, how, function) in place.programs {
        let program = programs.program_mut(name).ok_or_else(|| format!("{name} is not built"))?;
        done = attach_one(program, *how, function, types).map_err(|error| reason(&error, function));
        if done.is_err() {
            break;
        }
    }
    if done.is_err() {
        for (name, ..) in place.programs {
            // Fails only where it was not loaded.
            let _ = match programs.program_mut(name) {
                Some(Program::FEntry(program)) => program.unload(),
                Some(Program::FExit(program)) => program.unload(),
                _ => Ok(()),
            };
        }
    }
    done
}

fn attach_one(
    program: &mut Program,
    how: Attach,
    function: &str,
    types: &Btf,
) -> Result<(), ProgramError> {
    match how {
        Attach::Tracepoint => {
            let program: &mut BtfTracePoint = program.try_into()?;
            program.load(function, types)?;
            program.attach().map(drop)
        }
        Attach::Entry => {
            let program: &mut FEntry = program.try_into()?;
            program.load(function, types)?;
            program.attach().map(drop)
        }
        Attach::Exit => {
            let program: &mut FExit = program.try_into()?;
            program.load(function, types)?;
            program.attach().map(drop)
        }
    }
}

/// One line: what the kernel said, and the verifier's last words if it had any.
fn reason(error: &ProgramError, function: &str) -> String {
    match error {
        ProgramError::Btf(_) => format!("this kernel has no {function} that can be traced"),
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let last = log.lines().rfind(|line| {
                let line = line.trim();
                !line.is_empty() && !line.starts_with("processed ")
            });
            match last {
                Some(line) => format!("{}: {}", errno(io_error), line.trim()),
                None => errno(io_error),
            }
        }
        ProgramError::SyscallError(failed) => errno(&failed.io_error),
        other => chain(other),
    }
}

fn errno(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(ENOTSUPP | libc::EOPNOTSUPP) => "it cannot trace functions (not supported)".into(),
        Some(libc::EPERM) => "operation not permitted (kernel lockdown?)".into(),
        _ => error.to_string(),
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text.replace('\n', " ")
}

/// The inode that names this thread's network namespace, as sock_diag sees it.
fn network_namespace() -> std::io::Result<u32> {
    let inode = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    u32::try_from(inode).map_err(std::io::Error::other)
}
