//! [`StateStore`]: where registrations and reservation outlive a restart (APTPL, SPC-4 §5.12.5).
//!
//! The content is text, one registration a line, closed by a checksum: an operator can read it, and
//! a damaged file is recognised. Damaged state is an error at start, never an empty state: a
//! cluster whose reservation vanished silently would write to one disk from two nodes.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::state::{Kind, REGISTRATIONS_MAX, Registration, Registrations, Reservation};

/// Keeps a few kilobytes for one logical unit.
pub trait StateStore: Send + Sync + std::fmt::Debug {
    /// What was saved last; `None` when nothing ever was.
    ///
    /// # Errors
    /// It cannot be read.
    fn load(&self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces what was saved, atomically and on stable storage when it returns. May block.
    ///
    /// # Errors
    /// Nothing has changed then, or the new state was saved without being known to be stable.
    fn save(&self, state: &[u8]) -> io::Result<()>;
}

/// A file, replaced by way of `NAME.new` beside it.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// A store in this file. The folder must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl StateStore for FileStore {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(&self.path) {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn save(&self, state: &[u8]) -> io::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = self.path.with_file_name(name);
        let mut file = File::create(&new)?;
        file.write_all(state)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        // The rename itself is stable only with its folder.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// State that was saved cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The store does not give it.
    #[error("reading: {0}")]
    Read(#[from] io::Error),
    /// It is not what was saved.
    #[error("damaged ({what}); if no cluster depends on its reservations, remove it")]
    Damaged {
        /// What is wrong with it.
        what: &'static str,
    },
}

const MAGIC: &str = "enkaku reservations 1";

/// First line of what is kept for a unit that several targets serve: all registrations, since they
/// end with none of those targets.
const MAGIC_SHARED: &str = "enkaku reservations, shared 1";

/// What is saved. PRGENERATION is not: it begins at 0 (SPC-4 §6.15.2). State that shall not outlive
/// a restart is saved as no state.
pub(super) fn encode(state: &Registrations) -> Vec<u8> {
    let mut out = format!("{MAGIC}\n");
    if state.through_power_loss {
        write_lines(state, &mut out);
    }
    with_checksum(out)
}

/// What is stored for several targets: with PRGENERATION and APTPL, which all of them tell.
pub(super) fn encode_shared(state: &Registrations) -> Vec<u8> {
    let aptpl = u8::from(state.through_power_loss);
    let mut out = format!("{MAGIC_SHARED}\ngeneration {:#x} {aptpl:#x}\n", state.generation);
    write_lines(state, &mut out);
    with_checksum(out)
}

fn write_lines(state: &Registrations, out: &mut String) {
    for (port, registration) in &state.registered {
        let all = if registration.all_target_ports { " all-target-ports" } else { "" };
        *out += &format!("registration {:#018x} {port}{all}\n", registration.key);
    }
    if let Some(held) = &state.reservation {
        *out += &format!("reservation {:#x} {}\n", held.kind as u8, held.port);
    }
}

fn with_checksum(mut out: String) -> Vec<u8> {
    out += &format!("checksum {:#018x}\n", fnv1a(out.as_bytes()));
    out.into_bytes()
}

/// Reads what [`encode`] wrote.
pub(super) fn decode(bytes: &[u8]) -> Result<Registrations, StateError> {
    let mut state = read(bytes, MAGIC)?;
    state.through_power_loss = !state.registered.is_empty();
    Ok(state)
}

/// Reads what [`encode_shared`] wrote.
pub(super) fn decode_shared(bytes: &[u8]) -> Result<Registrations, StateError> {
    read(bytes, MAGIC_SHARED)
}

fn read(bytes: &[u8], magic: &str) -> Result<Registrations, StateError> {
    let damaged = |what| StateError::Damaged { what };
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
    let at = text.rfind("checksum ").ok_or(damaged("no checksum"))?;
    if text[at..] != format!("checksum {:#018x}\n", fnv1a(&bytes[..at])) {
        return Err(damaged("wrong checksum"));
    }
    let mut lines = text[..at].lines();
    if lines.next() != Some(magic) {
        return Err(damaged("unknown version"));
    }
    let mut state = Registrations::default();
    for line in lines {
        read_line(&mut state, line).ok_or(damaged("unreadable line"))?;
    }
    let holder = state.reservation.as_ref();
    let consistent = holder.is_none_or(|held| {
        state.registered.contains_key(&held.port)
            || held.kind.is_all_registrants() && !state.registered.is_empty()
    });
    if !consistent || state.registered.len() > REGISTRATIONS_MAX {
        return Err(damaged("inconsistent"));
    }
    Ok(state)
}

fn read_line(state: &mut Registrations, line: &str) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    match words[..] {
        ["generation", generation, aptpl] => {
            state.generation = u32::try_from(number(generation)?).ok()?;
            state.through_power_loss = number(aptpl)? == 1;
            Some(())
        }
        ["registration", key, port, ref rest @ ..] => {
            let all_target_ports = match rest {
                [] => false,
                ["all-target-ports"] => true,
                _ => return None,
            };
            let key = number(key).filter(|key| *key != 0)?;
            let registration = Registration { key, all_target_ports };
            state.registered.insert(Arc::from(port), registration).is_none().then_some(())
        }
        ["reservation", kind, port] => {
            let kind = Kind::from_code(u8::try_from(number(kind)?).ok()?)?;
            state
                .reservation
                .replace(Reservation { kind, port: Arc::from(port) })
                .is_none()
                .then_some(())
        }
        _ => None,
    }
}

/// FNV-1a, 64 bits: against accidents, not against forgery.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Registrations {
        let mut state = Registrations { through_power_loss: true, ..Registrations::default() };
        for (index, all_target_ports) in [false, true, false].into_iter().enumerate() {
            let port: Arc<str> =
                format!("iqn.2026-11.org.example:h{index},i,0x00000000000a").into();
            let key = index as u64 + 1;
            state.registered.insert(port.clone(), Registration { key, all_target_ports });
            let kind = Kind::WriteExclusiveRegistrantsOnly;
            state.reservation = Some(Reservation { kind, port });
        }
        state
    }

    #[test]
    fn survives_the_round_trip() {
        assert_eq!(decode(&encode(&state())).unwrap(), state());
        let volatile = Registrations { through_power_loss: false, generation: 7, ..state() };
        assert_eq!(decode_shared(&encode_shared(&volatile)).unwrap(), volatile);
        assert!(decode(&encode_shared(&volatile)).is_err(), "another kind of file");
        assert_eq!(decode(&encode(&volatile)).unwrap(), Registrations::default());
    }

    #[test]
    fn any_damage_is_noticed() {
        let good = encode(&state());
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(decode(&bytes).is_err(), "byte {at}");
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
        }
        assert!(decode(b"").is_err());
    }

    #[test]
    fn files_are_replaced() {
        let folder = std::env::temp_dir().join(format!("scsi-store-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let store = FileStore::new(folder.join("lun0"));
        assert!(store.load().unwrap().is_none());
        for state in [&b"one"[..], b"two"] {
            store.save(state).unwrap();
            assert_eq!(store.load().unwrap().unwrap(), state);
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(store.save(b"three").is_err());
    }
}
