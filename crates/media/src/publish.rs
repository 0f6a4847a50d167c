//! [`publish`]: finds the videos of a volume, looks what is in each, and tells of them in a
//! catalogue. The volume is only read; what has not changed is not looked at again.

mod edit;
mod find;
mod probe;
mod seed;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::edit::{Edit, Entry};
use self::find::{Candidate, find};
use self::probe::{Found, picture, probe};
pub(crate) use self::seed::seed;
use crate::catalogue::{Catalogue, CatalogueError, HomeSpec, Video};
use crate::home::{Home, Opening};
use crate::lease::{Lease, Missing};
use crate::programs::ProbeError;
use crate::recorded::Recorded;
use crate::server::{Config, Server, ServerError};
use crate::text::{extension, hex, is_below, plain, unix_now};

/// Where pictures are, from the catalogue's folder.
const POSTERS: &str = "posters";
/// What was found is written after so many videos, so that an interruption costs little.
const SAVE_EVERY: usize = 16;
/// A picture is of this part of a video, and of no later second: before it, there are titles.
const POSTER_AT: f64 = 0.1;
const POSTER_AT_MAX_S: f64 = 90.0;

/// What is to be published.
#[derive(Clone, Debug)]
pub struct Job {
    /// The volume. Its name is that of a home of the catalogue, if it is not there by another one;
    /// empty, it is the label of the file system.
    pub home: HomeSpec,
    /// Videos, and folders in which all of them are meant.
    pub paths: Vec<String>,
    /// What they are to be found by.
    pub tags: Vec<String>,
    /// The catalogue's file, which need not be there.
    pub catalogue: PathBuf,
    /// How volumes are opened.
    pub opening: Opening,
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is in the catalogue now.
    Published,
    /// It was, and has not changed.
    Same,
    /// It is in the catalogue, without a picture.
    WithoutPicture(String),
    /// It is left out.
    LeftOut(String),
}

/// Why nothing could be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The catalogue cannot be read or written.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The volume cannot be used.
    #[error("{volume}: {why}")]
    Volume {
        /// Which one.
        volume: String,
        /// Why not.
        why: String,
    },
    /// Another home has the name.
    #[error("home {name:?} is {other} in the catalogue: give this one another name (--home)")]
    Name {
        /// The name.
        name: String,
        /// The volume that has it.
        other: String,
    },
    /// A path leads to nothing that can be published.
    #[error("{path}: {why}")]
    Path {
        /// As it was given.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A program is missing.
    #[error(transparent)]
    Program(#[from] ProbeError),
    /// Files cannot be handed to programs.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A picture cannot be written.
    #[error("{path}: {source}")]
    Picture {
        /// Where.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
}

/// Publishes, and tells what becomes of each file.
///
/// # Errors
/// [`PublishError`]. What was published until then stays.
pub async fn publish(job: Job, tell: impl FnMut(&str, &Outcome)) -> Result<(), PublishError> {
    let mut edit = Edit::load(&job.catalogue)?;
    let catalogue = Catalogue::parse(&edit.text(), &job.catalogue)?;
    let known = catalogue.homes().iter().find(|home| {
        let (partition, wanted) = (home.partition, job.home.partition);
        home.place.key() == job.home.place.key() && (wanted.is_none() || wanted == partition)
    });
    let spec = known.unwrap_or(&job.home).clone();
    let is_new = known.is_none();
    if spec.uplink.is_some() {
        let why = "it calls the server, and nobody can call it: publish where the volume is";
        return Err(PublishError::Volume { volume: spec.place.key(), why: why.into() });
    }
    let home = Arc::new(Home::new(spec.clone(), job.opening.clone()));
    let from = Source { catalogue: &catalogue, home: &home, spec, is_new };
    let done = publish_from(&job, &mut edit, from, tell).await;
    home.close().await; // whatever has come of it: the volume's target is told
    done
}

/// The volume, and what the catalogue has of it.
struct Source<'a> {
    catalogue: &'a Catalogue,
    home: &'a Arc<Home>,
    spec: HomeSpec,
    /// The catalogue does not have it yet.
    is_new: bool,
}

async fn publish_from(
    job: &Job,
    edit: &mut Edit,
    from: Source<'_>,
    mut tell: impl FnMut(&str, &Outcome),
) -> Result<(), PublishError> {
    let Source { catalogue, home, mut spec, is_new } = from;
    let lease = home.enter().await;
    let lease =
        lease.map_err(|off| PublishError::Volume { volume: spec.place.key(), why: off.why })?;
    if is_new {
        spec.name = name_of(&spec, &lease).await;
        if let Some(other) = catalogue.homes().iter().find(|home| home.name == spec.name) {
            let (name, other) = (spec.name, other.place.key());
            return Err(PublishError::Name { name, other });
        }
        edit.add_home(&spec)?;
    }
    let mut candidates: Vec<Candidate> = Vec::new();
    for path in &job.paths {
        let left_out = |path: &str, why: &str| tell(path, &Outcome::LeftOut(why.to_owned()));
        let found = find(&lease, path, left_out).await?;
        // A folder whose last video is gone is one; one that never had any is perhaps mistyped.
        let was = |video: &Video| {
            video.home == spec.name && is_below(&plain(&video.path), slice::from_ref(path))
        };
        if found.is_empty() && !catalogue.videos().iter().any(was) {
            return Err(PublishError::Path { path: path.clone(), why: find::nothing() });
        }
        candidates.extend(found);
    }
    let mut paths = HashSet::new();
    candidates.retain(|one| paths.insert(one.path.clone()));
    let looking = Looking::start(job, &spec, &candidates).await?;
    let (mut end, mut unsaved, mut is_any) = (Ok(()), 0, false);
    for candidate in &candidates {
        let known = catalogue.video(&looking.id(candidate));
        let outcome = match one(job, edit, &lease, &looking, candidate, known).await {
            Ok(outcome) => outcome,
            Err(error) => {
                end = Err(error);
                break;
            }
        };
        tell(&candidate.path, &outcome);
        if matches!(outcome, Outcome::Published | Outcome::WithoutPicture(_)) {
            (unsaved, is_any) = (unsaved + 1, true);
        }
        if unsaved == SAVE_EVERY {
            edit.save()?;
            unsaved = 0;
        }
    }
    if end.is_ok() || is_any {
        edit.save()?;
    }
    looking.stop().await;
    end
}

async fn name_of(spec: &HomeSpec, lease: &Lease) -> String {
    if !spec.name.is_empty() {
        return spec.name.clone();
    }
    let identity = lease.identity().await;
    let label = identity.label.map(|label| label.to_string());
    label.filter(|label| !label.is_empty()).unwrap_or(identity.id)
}

async fn one(
    job: &Job,
    edit: &mut Edit,
    lease: &Lease,
    looking: &Looking,
    candidate: &Candidate,
    known: Option<&Video>,
) -> Result<Outcome, PublishError> {
    let path = &candidate.path;
    let (resource, modified) = match lease.file(path).await {
        Ok(found) => found,
        Err(Missing::Off(off)) => {
            return Err(PublishError::Volume { volume: off.name, why: off.why });
        }
        Err(Missing::NoFile(error) | Missing::Unreadable(error)) => {
            return Ok(Outcome::LeftOut(error.to_string()));
        }
    };
    let (version, bytes) = (resource.version(), resource.file().size());
    let has_all_tags = |video: &Video| job.tags.iter().all(|tag| video.tags.contains(tag));
    let is_same = known.is_some_and(|video| {
        video.version.as_ref() == Some(&version)
            // A catalogue of an earlier version has no sizes: its videos are looked at once more.
            && video.bytes.is_some()
            && video.poster.as_ref().is_none_or(|poster| poster.exists())
            && has_all_tags(video)
    });
    if is_same {
        return Ok(Outcome::Same);
    }
    let url = looking.url(candidate);
    let found = match probe(&url).await {
        Ok(found) => found,
        Err(error @ ProbeError::Absent(_)) => return Err(error.into()),
        Err(error) => return Ok(Outcome::LeftOut(error.to_string())),
    };
    // A picture that a person has chosen stays.
    let drawn = format!("{POSTERS}/{}.jpg", looking.id(candidate));
    let own = beside(&job.catalogue, &drawn);
    let chosen = known.and_then(|video| video.poster.as_ref()).is_some_and(|path| *path != own);
    let mut outcome = Outcome::Published;
    let mut poster = None;
    if found.video_codec.is_some() && !chosen {
        match draw(&url, &found).await {
            Ok(picture) => {
                save_picture(&own, &picture)?;
                poster = Some(drawn.as_str());
            }
            Err(error @ ProbeError::Absent(_)) => return Err(error.into()),
            Err(error) => outcome = Outcome::WithoutPicture(error.to_string()),
        }
    }
    let now_s = i64::try_from(unix_now()).unwrap_or(i64::MAX);
    let created = found.created.as_deref().and_then(|text| Recorded::of_file(text, now_s));
    let changed = || modified.and_then(|modified| Recorded::of_entry(modified, now_s));
    edit.put_video(&Entry {
        home: &looking.home,
        path,
        title: found.title.as_deref().unwrap_or(&candidate.title),
        found: &found,
        bytes: Some(bytes),
        recorded: created.or_else(changed),
        poster,
        subtitles: &candidate.subtitles,
        tags: &job.tags,
        version: &version,
    })?;
    Ok(outcome)
}

/// A picture from a tenth of the video, or else from its start.
async fn draw(url: &str, found: &Found) -> Result<Vec<u8>, ProbeError> {
    let second = (found.duration_s.unwrap_or_default() * POSTER_AT).min(POSTER_AT_MAX_S);
    match picture(url, second).await {
        Err(ProbeError::Failed { .. }) if second > 0.0 => picture(url, 0.0).await,
        drawn => drawn,
    }
}

fn beside(catalogue: &Path, name: &str) -> PathBuf {
    catalogue.parent().unwrap_or(Path::new("")).join(name)
}

fn save_picture(path: &Path, picture: &[u8]) -> Result<(), PublishError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let saved = std::fs::create_dir_all(folder).and_then(|()| edit::write(path, picture));
    saved.map_err(|source| PublishError::Picture { path: path.display().to_string(), source })
}

/// The files, as programs of this machine can read them: at addresses that nobody else knows.
struct Looking {
    /// Name of the home in the catalogue that is written.
    home: String,
    /// Name of the home in these addresses.
    secret: String,
    address: SocketAddr,
    server: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Looking {
    async fn start(
        job: &Job,
        spec: &HomeSpec,
        candidates: &[Candidate],
    ) -> Result<Self, PublishError> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(|error| PublishError::Volume {
            volume: spec.place.key(),
            why: format!("no random numbers: {error}"),
        })?;
        let secret = hex(&secret);
        let videos = candidates.iter();
        let videos = videos.map(|one| Video::new(one.title.clone(), &secret, &one.path)).collect();
        let spec_there = HomeSpec { name: secret.clone(), ..spec.clone() };
        let catalogue = Catalogue::with(vec![spec_there], videos);
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = Config::new(listen, job.opening.clone());
        let server = Server::bind_private(config, catalogue).await?;
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(server.run(async {
            let _ = stopped.await; // or we are gone, which is the same
        }));
        Ok(Self { home: spec.name.clone(), secret, address, server, stop })
    }

    /// The identifier of a video in the catalogue that is written.
    fn id(&self, candidate: &Candidate) -> String {
        Video::new(String::new(), &self.home, &candidate.path).id
    }

    fn url(&self, candidate: &Candidate) -> String {
        let id = Video::new(String::new(), &self.secret, &candidate.path).id;
        let extension = extension(&candidate.path).unwrap_or_else(|| "bin".into());
        format!("http://{}/video/{id}/video.{extension}", self.address)
    }

    /// Logs out.
    async fn stop(self) {
        let Self { server, stop, .. } = self;
        let _ = stop.send(()); // if it has ended, that is as well
        let _ = server.await;
    }
}
