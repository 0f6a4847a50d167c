//! [`put`]: publishes a volume, and has a directory tell of its videos: what is new is added, what
//! is other than before is changed, what is gone is removed, and all the rest is left alone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use discovery::ldap::{Attributes, Change, Directory, Entry, Filter, LdapError, Search, dn};

use super::entry::{VideoEntry, VolumeEntry, is_thumbnail};
use crate::catalogue::{Catalogue, CatalogueError, VIDEOS_MAX, Video, rules};
use crate::home::Home;
use crate::publish::{Job, Outcome, PublishError, publish, seed};
use crate::text::{is_below, plain};

/// What is to be done.
#[derive(Clone, Debug)]
pub struct DirectoryJob {
    /// What is published, and the catalogue's file that notes it.
    pub job: Job,
    /// The file is for this time only: it begins with what the directory has.
    pub is_seeded: bool,
    /// What the directory says of the volume; name and `ekVolumeId` are found.
    pub volume: VolumeEntry,
}

/// What has become of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// New ones.
    pub added: usize,
    /// Those that were other than they should be.
    pub changed: usize,
    /// Those whose file is gone.
    pub removed: usize,
    /// Those that are as they were.
    pub same: usize,
    /// Names of entries that the directory did not change, and why.
    pub refused: Vec<(String, String)>,
    /// How long the changes took.
    pub time: Duration,
}

/// Why a directory does not tell of a volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The volume, or the file.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The directory.
    #[error(transparent)]
    Directory(#[from] LdapError),
    /// What the directory has does not fit what is wanted.
    #[error("{0}")]
    Wrong(String),
}

impl From<CatalogueError> for PutError {
    fn from(error: CatalogueError) -> Self {
        Self::Publish(error.into())
    }
}

/// What the directory has of a volume.
struct There {
    volume: Option<(Entry, VolumeEntry)>,
    /// By path.
    videos: BTreeMap<String, Entry>,
}

/// Publishes; tells what becomes of each file.
///
/// # Errors
/// [`PutError`]. What was published until then stays.
pub async fn put(
    directory: &impl Directory,
    work: DirectoryJob,
    mut tell: impl FnMut(&str, &Outcome),
) -> Result<Put, PutError> {
    let DirectoryJob { mut job, is_seeded, mut volume } = work;
    let (id, label) = identity(&job).await?;
    rules::name(&id, "the volume's identifier").map_err(PutError::Wrong)?;
    let there = There::read(directory, &id).await?;
    job.home.name = there.name(&job.home.name, label.as_deref().unwrap_or(&id))?;
    if is_seeded {
        let videos = there.videos.values().filter_map(|entry| VideoEntry::read(entry).ok());
        let videos: Vec<Video> = videos.map(|one| one.video.of_home(&job.home.name)).collect();
        seed(&job.catalogue, &job.home, &videos)?;
    }
    let (mut seen, mut left_out) = (HashSet::new(), Vec::new());
    let (paths, file, key) = (job.paths.clone(), job.catalogue.clone(), job.home.place.key());
    publish(job.clone(), |path, outcome| {
        match outcome {
            Outcome::LeftOut(_) => left_out.push(path.to_owned()),
            _ => drop(seen.insert(path.to_owned())),
        }
        tell(path, outcome);
    })
    .await?;
    let catalogue = Catalogue::load(&file)?;
    let home = catalogue.homes().iter().find(|home| home.place.key() == key);
    let home = home.map_or(job.home.name.as_str(), |home| home.name.as_str());
    // Its file was looked for, and is not there: what cannot be read is another matter.
    let is_gone = |path: &str| {
        let path = plain(path);
        is_below(&path, &paths) && !seen.contains(&path) && !is_below(&path, &left_out)
    };
    let wanted = catalogue.videos().iter().filter(|one| one.home == home && !is_gone(&one.path));
    volume.id.clone_from(&id);
    volume.name = there.volume.as_ref().map_or(home, |(_, known)| known.name.as_str()).to_owned();
    let wanted = wanted.map(|video| {
        let video = Video { thumbnail: picture(video.poster.as_deref()), ..video.clone() };
        VideoEntry { volume_id: id.clone(), video: video.of_home(&volume.name) }
    });
    let (wanted, base) = (wanted.collect(), directory.base());
    let known = there.volume.as_ref().map(|(entry, _)| entry);
    let of_volume = change(known, &volume.attributes(), &volume.name, &base);
    let (changes, mut put) = compare(wanted, there.videos, is_gone, &base);
    let begin = Instant::now();
    // Videos of a volume that nobody can find would be told as wrong.
    let refused = directory.apply(of_volume.into_iter().collect()).await?;
    if let Some((_, error)) = refused.into_iter().next() {
        return Err(error.into());
    }
    let refused = directory.apply(changes).await?;
    put.refused = refused.into_iter().map(|(dn, error)| (dn, error.to_string())).collect();
    put.time = begin.elapsed();
    Ok(put)
}

/// What has to be done so that the videos there are those that are wanted, and how much that is.
fn compare(
    wanted: Vec<VideoEntry>,
    mut there: BTreeMap<String, Entry>,
    is_gone: impl Fn(&str) -> bool,
    base: &str,
) -> (Vec<Change>, Put) {
    let (mut put, mut changes) = (Put::default(), Vec::new());
    for one in wanted {
        let known = there.remove(&plain(&one.video.path));
        let change = change(known.as_ref(), &one.attributes(), &one.video.id, base);
        match &change {
            Some(Change::Add { .. }) => put.added += 1,
            Some(_) => put.changed += 1,
            None => put.same += 1,
        }
        changes.extend(change);
    }
    for (path, entry) in there {
        if is_gone(&path) {
            put.removed += 1;
            changes.push(Change::Remove { dn: entry.dn });
        } else {
            put.same += 1;
        }
    }
    (changes, put)
}

/// Identifier and label of the file system.
async fn identity(job: &Job) -> Result<(String, Option<String>), PublishError> {
    let home = Arc::new(Home::new(job.home.clone(), job.opening.clone()));
    let volume = job.home.place.key();
    let lease = home.enter().await;
    let lease = lease.map_err(|off| PublishError::Volume { volume, why: off.why })?;
    let identity = lease.identity().await;
    drop(lease);
    home.close().await;
    let label = identity.label.map(|label| label.to_string()).filter(|label| !label.is_empty());
    Ok((identity.id, label))
}

impl There {
    /// What the volume is called: as the directory does, as is wanted, or as it says of itself.
    fn name(&self, wanted: &str, own: &str) -> Result<String, PutError> {
        match &self.volume {
            Some((_, known)) if !wanted.is_empty() && wanted != known.name => {
                let name = &known.name;
                Err(PutError::Wrong(format!(
                    "the directory calls this volume {name:?}, not {wanted:?}: rename its entry \
                     there, or leave --home out"
                )))
            }
            Some((_, known)) => Ok(known.name.clone()),
            None if wanted.is_empty() => Ok(own.to_owned()),
            None => Ok(wanted.to_owned()),
        }
    }

    async fn read(directory: &impl Directory, id: &str) -> Result<Self, PutError> {
        let of = |class: &str, entries_max| Search {
            filter: Filter::All(vec![
                Filter::Is("objectClass", class.into()),
                Filter::Is("ekVolumeId", id.to_owned()),
            ]),
            attributes: vec!["*"],
            entries_max,
        };
        let mut volumes = Vec::new();
        directory.search(&of("ekStorage", 2), &mut |entry| volumes.push(entry)).await?;
        if let [one, other, ..] = &volumes[..] {
            let told =
                format!("two entries have the volume {id:?}: {:?} and {:?}", one.dn, other.dn);
            return Err(PutError::Wrong(told));
        }
        let volume = volumes.pop().map(|entry| match VolumeEntry::read(&entry) {
            Ok(volume) => Ok((entry, volume)),
            Err(why) => Err(PutError::Wrong(format!("entry {:?}: {why}", entry.dn))),
        });
        let mut videos = BTreeMap::new();
        let mut twice = None;
        directory
            .search(&of("ekVideo", VIDEOS_MAX), &mut |entry| {
                let path = plain(entry.text("ekpath").unwrap_or_default());
                let dn = entry.dn.clone();
                if let Some(other) = videos.insert(path, entry) {
                    twice = Some(format!("two entries are one video: {dn:?} and {:?}", other.dn));
                }
            })
            .await?;
        match twice {
            Some(twice) => Err(PutError::Wrong(twice)),
            None => Ok(Self { volume: volume.transpose()?, videos }),
        }
    }
}

/// What makes an entry say this, if it does not yet.
fn change(known: Option<&Entry>, wanted: &Attributes, cn: &str, base: &str) -> Option<Change> {
    let Some(known) = known else {
        let attributes = wanted.clone();
        return Some(Change::Add { dn: dn::below("cn", cn, base), attributes });
    };
    let differs = |(name, values): &&(&'static str, Vec<Vec<u8>>)| {
        let own = known.values(&name.to_ascii_lowercase());
        // A picture that could not be drawn now is better than none. Names stay.
        let is_kept =
            matches!(*name, "objectClass" | "cn") || (*name == "ekThumbnail" && values.is_empty());
        let set = |values: &[Vec<u8>]| values.iter().cloned().collect::<BTreeSet<Vec<u8>>>();
        !is_kept && set(own) != set(values)
    };
    let attributes: Attributes = wanted.iter().filter(differs).cloned().collect();
    let dn = known.dn.clone();
    (!attributes.is_empty()).then_some(Change::Replace { dn, attributes })
}

/// A picture that a directory takes.
fn picture(poster: Option<&Path>) -> Option<Bytes> {
    let bytes = std::fs::read(poster?).ok()?;
    is_thumbnail(&bytes).then(|| bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_is_left_alone() {
        let wanted: Attributes = vec![
            ("cn", vec![b"new".to_vec()]),
            ("ekTitle", vec![b"A".to_vec()]),
            ("ekTag", vec![b"x".to_vec(), b"y".to_vec()]),
            ("ekThumbnail", Vec::new()),
        ];
        let text = |name: &str, values: &[&[u8]]| {
            (name.to_owned(), values.iter().map(|value| value.to_vec()).collect())
        };
        let own = [
            text("cn", &[b"old"]),
            text("ektitle", &[b"A"]),
            text("ektag", &[b"y", b"x"]),
            text("ekthumbnail", &[b"\xff\xd8\xff"]),
            text("ekvisibleto", &[b"uid=anna"]),
        ];
        let mut known = Entry { dn: "cn=old,dc=a".into(), attributes: own.into_iter().collect() };
        assert_eq!(change(Some(&known), &wanted, "new", "dc=a"), None);
        known.attributes.remove("ektag");
        let Some(Change::Replace { dn, attributes }) = change(Some(&known), &wanted, "new", "dc=a")
        else {
            panic!()
        };
        assert_eq!((dn.as_str(), attributes.len(), attributes[0].0), ("cn=old,dc=a", 1, "ekTag"));
        let added = change(None, &wanted, "a,b", "dc=a").unwrap();
        assert_eq!(added.dn(), "cn=a\\2cb,dc=a");
    }
}
