//! [`Known`]: what was last read of a directory. What has not changed there is not read again, and
//! what is wrong with an entry is told once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use discovery::ldap::{Directory, Entry, Filter, LdapError, Search};
use tracing::warn;

use super::entry::{VideoEntry, VolumeEntry};
use crate::catalogue::{Catalogue, HOMES_MAX, VIDEOS_MAX};

/// Bytes of all pictures that are kept in memory.
const THUMBNAILS_BYTES_MAX: usize = 192 << 20;
/// Problems of one reading that are told one by one.
const TOLD_MAX: usize = 20;
/// When an entry was last changed: OpenLDAP says it exactly, others by the second (RFC 4512 §3.4).
const STAMPS: [&str; 2] = ["entryCSN", "modifyTimestamp"];

/// What an entry was when it was read; nothing of a server that does not say.
type Stamp = [Option<String>; 2];

/// What was read.
#[derive(Default)]
pub(super) struct Known {
    volumes: BTreeMap<String, Result<VolumeEntry, String>>,
    videos: BTreeMap<String, (Stamp, Result<VideoEntry, String>)>,
    /// What was wrong, and has been told.
    told: BTreeSet<String>,
}

impl Known {
    /// Reads what has changed; tells whether anything has.
    ///
    /// # Errors
    /// [`LdapError`]; then what was known is as it was.
    pub(super) async fn read(&mut self, directory: &impl Directory) -> Result<bool, LdapError> {
        let mut volumes = BTreeMap::new();
        let wanted = search(Filter::Is("objectClass", "ekStorage".into()), &["*"], HOMES_MAX);
        directory
            .search(&wanted, &mut |entry| {
                volumes.insert(entry.dn.clone(), VolumeEntry::read(&entry));
            })
            .await?;
        let mut stamps: BTreeMap<String, Stamp> = BTreeMap::new();
        let is_video = || Filter::Is("objectClass", "ekVideo".into());
        let mut filter = is_video();
        if !self.videos.is_empty() {
            let wanted = search(is_video(), &STAMPS, VIDEOS_MAX);
            directory
                .search(&wanted, &mut |entry| drop(stamps.insert(entry.dn.clone(), stamp(&entry))))
                .await?;
            let changed: Vec<&Stamp> =
                stamps.iter().filter(|one| !self.has(one)).map(|one| one.1).collect();
            // Whatever has changed has done so then or later.
            let first = changed.iter().map(|stamp| stamp[1].clone()).min();
            match first {
                None => return Ok(self.replace(volumes, BTreeMap::new(), Some(stamps))),
                Some(Some(time)) => {
                    filter =
                        Filter::All(vec![is_video(), Filter::AtLeast("modifyTimestamp", time)]);
                }
                Some(None) => {}
            }
        }
        let mut videos = BTreeMap::new();
        let wanted = search(filter, &["*", STAMPS[0], STAMPS[1]], VIDEOS_MAX);
        directory
            .search(&wanted, &mut |entry| {
                videos.insert(entry.dn.clone(), (stamp(&entry), VideoEntry::read(&entry)));
            })
            .await?;
        let stamps = (!self.videos.is_empty()).then_some(stamps);
        Ok(self.replace(volumes, videos, stamps))
    }

    fn has(&self, (dn, stamp): &(&String, &Stamp)) -> bool {
        let is_told = stamp.iter().any(Option::is_some);
        is_told && self.videos.get(*dn).is_some_and(|(known, _)| known == *stamp)
    }

    /// Takes what was read; of `all` that are there, the others go.
    fn replace(
        &mut self,
        volumes: BTreeMap<String, Result<VolumeEntry, String>>,
        videos: BTreeMap<String, (Stamp, Result<VideoEntry, String>)>,
        all: Option<BTreeMap<String, Stamp>>,
    ) -> bool {
        let before = self.videos.len();
        if let Some(all) = all {
            self.videos.retain(|dn, _| all.contains_key(dn));
        }
        let has_changed =
            self.volumes != volumes || !videos.is_empty() || self.videos.len() != before;
        self.volumes = volumes;
        self.videos.extend(videos);
        has_changed
    }

    /// Targets whose portal somebody else has to know.
    pub(super) fn without_portal(&self) -> impl Iterator<Item = &str> {
        let read = self.volumes.values().filter_map(|volume| volume.as_ref().ok());
        read.filter(|volume| volume.portal.is_none() && volume.uplink.is_none())
            .map(|volume| volume.target.as_str())
    }

    /// What a server shows of it. What is wrong is left out, and told.
    pub(super) fn catalogue(
        &mut self,
        portals: &HashMap<String, String>,
        password_file: Option<&PathBuf>,
    ) -> Catalogue {
        let mut wrong = Vec::new();
        let mut homes = Vec::new();
        let (mut names, mut by_id) = (HashSet::new(), HashMap::new());
        for (dn, volume) in &self.volumes {
            let home = volume.as_ref().map_err(Clone::clone).and_then(|volume| {
                let found = portals.get(&volume.target).map(String::as_str);
                let home = volume.home(found, password_file)?;
                if by_id.contains_key(volume.id.as_str()) || names.contains(&home.name) {
                    return Err("another volume has its ekvolumeid or its cn".into());
                }
                names.insert(home.name.clone());
                by_id.insert(volume.id.as_str(), home.name.clone());
                Ok(home)
            });
            match home {
                Ok(home) => homes.push(home),
                Err(why) => wrong.push(format!("{dn}: {why}")),
            }
        }
        let (mut videos, mut ids, mut pictures) = (Vec::new(), HashSet::new(), 0);
        for (dn, (_, video)) in &self.videos {
            let video = video.as_ref().map_err(Clone::clone).and_then(|entry| {
                let Some(home) = by_id.get(entry.volume_id.as_str()) else {
                    return Err(format!("there is no volume {:?}", entry.volume_id));
                };
                let mut video = entry.video.clone().of_home(home);
                pictures += video.thumbnail.as_ref().map_or(0, bytes::Bytes::len);
                if pictures > THUMBNAILS_BYTES_MAX {
                    video.thumbnail = None;
                }
                if ids.insert(video.id.clone()) {
                    Ok(video)
                } else {
                    Err("it is there twice".into())
                }
            });
            match video {
                Ok(video) => videos.push(video),
                Err(why) => wrong.push(format!("{dn}: {why}")),
            }
        }
        if pictures > THUMBNAILS_BYTES_MAX {
            wrong.push(format!(
                "more than {THUMBNAILS_BYTES_MAX} bytes of pictures: some are left out"
            ));
        }
        self.tell(wrong);
        Catalogue::with(homes, videos)
    }

    fn tell(&mut self, wrong: Vec<String>) {
        let wrong: BTreeSet<String> = wrong.into_iter().collect();
        let new: Vec<&String> = wrong.difference(&self.told).collect();
        for problem in new.iter().take(TOLD_MAX) {
            warn!(entry = %problem.escape_debug(), "left out");
        }
        if new.len() > TOLD_MAX {
            warn!(more = new.len() - TOLD_MAX, "entries are left out, too");
        }
        self.told = wrong;
    }
}

fn search(filter: Filter, attributes: &[&'static str], entries_max: usize) -> Search {
    Search { filter, attributes: attributes.to_vec(), entries_max }
}

fn stamp(entry: &Entry) -> Stamp {
    STAMPS.map(|name| entry.text(&name.to_ascii_lowercase()).map(str::to_owned))
}
