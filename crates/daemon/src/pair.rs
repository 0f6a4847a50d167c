//! [`Pair`]: what this daemon knows and says of the others that serve a target's units under the
//! same name: how well they can be reached at each (ALUA), kept in a file that all of them see.
//!
//! Persistent reservations are beside it, a file for each unit, and are the device server's
//! business ([`scsi::SharedStore`]). Not here: moving traffic; who shall be active, which an
//! operator or a cluster manager says by `enkaku target access set`.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scsi::{AccessState, Changed, Known, PortGroup, SharedState, SharedStore, Target, Versioned};
use tracing::{error, info};

use crate::config::pair::{ACCESS_STATES, PairSection, word};
use crate::config::{Problem, TargetSection};
use crate::daemon::Daemon;
use crate::lun::{Kept, Opening};
use crate::shared_place::{self, Opened};

/// Time between two looks at what is shared: several within a lease.
const LOOK_EVERY: Duration = Duration::from_millis(300);
const _: () = assert!(LOOK_EVERY.as_millis() * 4 < scsi::LEASE.as_millis());

/// Groups that are kept; more daemons than that serve nothing together.
const GROUPS_MAX: usize = 64;

/// A target's part in a pair.
pub(crate) struct Pair {
    section: PairSection,
    name: String,
    scsi: Target,
    place: Opened,
    states: Versioned<Groups>,
    /// Version of what is in force. Held while another is put in force: two readings at once may
    /// end in the other order than they began.
    in_force: Mutex<u64>,
    looking: AtomicBool,
    trouble: Mutex<Option<String>>,
}

/// States by group, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
struct Groups(Vec<(u16, AccessState)>);

impl SharedState for Groups {
    type Error = io::Error;

    /// `GROUP STATE`, a line each.
    fn encode(&self) -> Vec<u8> {
        let lines = self.0.iter().map(|(group, state)| format!("{group} {}\n", word(*state)));
        lines.collect::<String>().into_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<Self, io::Error> {
        let line = |line: &str| {
            let (group, state) = line.split_once(' ')?;
            let (_, state) = ACCESS_STATES.iter().find(|(word, _)| *word == state)?;
            Some((group.parse().ok()?, *state))
        };
        let text = std::str::from_utf8(bytes).ok();
        let groups = text.and_then(|text| text.lines().take(GROUPS_MAX).map(line).collect());
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
        groups.map(Self).ok_or_else(damaged)
    }
}

impl Pair {
    /// Adds this daemon's group to what is shared, if it is new. May block.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn open(
        section: &PairSection,
        name: &str,
        scsi: Target,
    ) -> Result<Arc<Self>, String> {
        let place = Opened::open(&section.shared)?;
        let store = place.store(&format!("{name}.access"))?;
        let pair = Self {
            section: section.clone(),
            name: name.to_owned(),
            scsi,
            place,
            states: Versioned::new(store),
            in_force: Mutex::new(0),
            looking: AtomicBool::new(false),
            trouble: Mutex::default(),
        };
        pair.apply(&pair.join()?);
        Ok(Arc::new(pair))
    }

    /// What a section of the configuration says, `known` being that of the target that is served
    /// already. Its group is in the names that initiators know, so it stays.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn of(
        section: &TargetSection,
        known: Option<Option<&Arc<Self>>>,
        scsi: &Target,
        opening: Opening,
    ) -> Result<Option<Arc<Self>>, Problem> {
        match (&section.pair, known) {
            (None, None | Some(None)) => Ok(None),
            (Some(pair), Some(Some(known))) if *pair == known.section => Ok(Some(known.clone())),
            (Some(pair), None) => {
                // A trial joins nobody.
                let opened = match opening {
                    Opening::ToServe => Self::open(pair, &section.name, scsi.clone()).map(Some),
                    Opening::Trial => shared_place::check(&pair.shared).map(|()| None),
                };
                opened.map_err(|why| section.place.problem(format!("pair: {why}")))
            }
            (_, Some(_)) => Err(section.place.problem(
                "pair: cannot change while the target is served; remove the target, reload, and \
                 add it again",
            )),
        }
    }

    pub(crate) fn section(&self) -> &PairSection {
        &self.section
    }

    /// Where the reservations of a unit are.
    fn reservations(&self, lun: u16) -> Result<Arc<dyn SharedStore>, String> {
        self.place.store(&format!("{}_lun{lun}.reservations", self.name))
    }

    /// What is shared, as of now. May block.
    pub(crate) fn groups(&self) -> Result<Vec<(u16, AccessState)>, String> {
        Ok(self.load()?.state.0)
    }

    /// Says how well the units can be reached at a group, ours or another's. May block.
    pub(crate) fn set(&self, group: u16, state: AccessState) -> Result<(), String> {
        let known = self.change(|groups| match groups.iter_mut().find(|(id, _)| *id == group) {
            Some((_, known)) => {
                *known = state;
                Ok(())
            }
            None => {
                let known: Vec<String> = groups.iter().map(|(id, _)| id.to_string()).collect();
                Err(format!("there is no group {group} (there are: {})", known.join(", ")))
            }
        })?;
        self.apply(&known);
        Ok(())
    }

    /// What is in the way of it, if anything is.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.lock_trouble().clone()
    }

    /// Looks at everything that is shared. May block.
    fn look(&self) {
        let groups = self.load().map(|known| self.apply(&known));
        let reservations = self.scsi.refresh().map_err(|(lun, error)| {
            format!("the shared reservations of LUN {lun}: {error}; it answers BUSY")
        });
        let now = groups.and(reservations).err();
        let mut trouble = self.lock_trouble();
        match (&*trouble, &now) {
            (None, Some(why)) => error!(target_name = self.name, "{why}"),
            (Some(_), None) => info!(target_name = self.name, "what is shared can be read again"),
            _ => {}
        }
        *trouble = now;
    }

    fn join(&self) -> Result<Known<Groups>, String> {
        let (own, state) = (self.section.group, self.section.state);
        self.change(|groups| {
            if groups.iter().any(|(group, _)| *group == own) {
                return Ok(());
            }
            if groups.len() >= GROUPS_MAX {
                return Err(format!("there are {GROUPS_MAX} groups already"));
            }
            groups.push((own, state));
            groups.sort_unstable_by_key(|(group, _)| *group);
            Ok(())
        })
    }

    fn change(
        &self,
        change: impl Fn(&mut Vec<(u16, AccessState)>) -> Result<(), String>,
    ) -> Result<Known<Groups>, String> {
        match self.states.change(|groups| change(&mut groups.0)) {
            Ok(Changed::Done { known, .. }) => Ok(known),
            Ok(Changed::Refused(why)) => Err(why),
            Ok(Changed::Contended) => {
                Err("others change the access states all the time".to_owned())
            }
            Err(error) => Err(self.cannot(&error)),
        }
    }

    fn load(&self) -> Result<Known<Groups>, String> {
        self.states.load().map_err(|error| self.cannot(&error))
    }

    fn cannot(&self, why: &io::Error) -> String {
        format!("the access states in {}: {why}", self.section.shared)
    }

    /// Puts a reading in force, unless a newer one is.
    fn apply(&self, Known { version, state: Groups(groups) }: &Known<Groups>) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        if *version < *in_force {
            return;
        }
        *in_force = *version;
        let own = self.section.group;
        let is_own = |(group, _): &&(u16, AccessState)| *group == own;
        if let Some((_, state)) = groups.iter().find(is_own) {
            if self.scsi.access_state() != *state {
                info!(target_name = self.name, group = own, state = word(*state), "access state");
            }
            self.scsi.set_access_state(*state);
        }
        let others = groups.iter().filter(|each| !is_own(each));
        let others: Vec<PortGroup> = others
            .map(|(group, state)| PortGroup { group: *group, relative_port: *group, state: *state })
            .collect();
        self.scsi.set_other_groups(&others);
    }

    fn lock_trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the reservations of a LUN are kept. Names of targets hold no character that a path could
/// not.
pub(crate) fn kept_at(
    folder: Option<&Path>,
    pair: Option<&Pair>,
    target_name: &str,
    lun: u16,
) -> Kept {
    let kept = pair.map(|pair| pair.reservations(lun));
    match (kept, folder) {
        (Some(Ok(store)), _) => Kept::Together(store),
        // The name of the target made a store for its states already.
        (Some(Err(_)), _) | (None, None) => Kept::Nowhere,
        (None, Some(folder)) => {
            Kept::Here(folder.join(format!("{target_name}_lun{lun}.reservations")))
        }
    }
}

/// Looks at what is shared, again and again. Storage that hangs holds up its own target only.
pub(crate) async fn watch(daemon: Arc<Daemon>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let pairs = daemon.lock().pairs();
        for pair in pairs {
            if pair.looking.swap(true, Ordering::AcqRel) {
                continue; // the last look goes on
            }
            tokio::task::spawn_blocking(move || {
                pair.look();
                pair.looking.store(false, Ordering::Release);
            });
        }
    }
}

/// The state that a word means.
///
/// # Errors
/// The words that there are.
pub(crate) fn state_named(text: &str) -> Result<AccessState, String> {
    let found = ACCESS_STATES.iter().find(|(word, _)| *word == text);
    found.map(|(_, state)| *state).ok_or_else(|| {
        let words: Vec<&str> = ACCESS_STATES.iter().map(|(word, _)| *word).collect();
        format!("{text:?} is no access state (allowed: {})", words.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::pair::SharedPlace;
    use scsi::TargetConfig;

    fn pair(folder: &std::path::Path, group: u16, state: AccessState) -> Arc<Pair> {
        let shared = SharedPlace::Folder(folder.to_owned());
        let section = PairSection { group, shared, state };
        let name = "iqn.2026-11.org.example:pair";
        let scsi = Target::new(TargetConfig::new(name).with_group(group));
        Pair::open(&section, name, scsi).unwrap()
    }

    #[test]
    fn an_older_reading_is_not_put_over_a_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let one = pair(folder.path(), 1, AccessState::ActiveOptimized);
        let before = one.load().unwrap();
        one.set(1, AccessState::Standby).unwrap();
        one.apply(&before); // a look that began before the command, and was slow
        assert_eq!(one.scsi.access_state(), AccessState::Standby);
        // A file that went back is another's, and says nothing of ours.
        let file = folder.path().join("iqn.2026-11.org.example:pair.access");
        std::fs::write(&file, "enkaku shared 1\n1 active\n").unwrap();
        one.look();
        assert_eq!(one.scsi.access_state(), AccessState::Standby);
        assert!(one.trouble().unwrap().contains("version 2 was there, and now 1 is"));
        std::fs::remove_file(file).unwrap();
        one.look();
        assert!(one.trouble().unwrap().contains("version 2 was there, and now 0 is"));
    }

    #[test]
    fn each_knows_what_the_other_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let one = pair(folder.path(), 1, AccessState::ActiveOptimized);
        let two = pair(folder.path(), 2, AccessState::Standby);
        assert_eq!(two.scsi.access_state(), AccessState::Standby);
        one.set(2, AccessState::ActiveOptimized).unwrap();
        one.set(1, AccessState::Standby).unwrap();
        two.look();
        assert_eq!(one.scsi.access_state(), AccessState::Standby);
        assert_eq!(two.scsi.access_state(), AccessState::ActiveOptimized);
        assert!(one.set(3, AccessState::Standby).unwrap_err().contains("there are: 1, 2"));
        // What a command said outlives a restart.
        let again = pair(folder.path(), 1, AccessState::ActiveOptimized);
        assert_eq!(again.scsi.access_state(), AccessState::Standby);
        assert_eq!(again.trouble(), None);
        let file = folder.path().join("iqn.2026-11.org.example:pair.access");
        std::fs::write(file, "enkaku shared 9\n1 sleepy\n").unwrap();
        again.look();
        assert!(again.trouble().unwrap().contains("damaged"));
    }
}
