//! The file of a catalogue: its form, and the checks of what is in it.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use backends::Location;
use serde::Deserialize;
use toml::Spanned;
use toml::value::Datetime;

use super::rules::{self, SUBTITLES_MAX, TAGS_MAX};
use super::{Catalogue, CatalogueError, HOMES_MAX, HomeSpec, Place, Subtitles, VIDEOS_MAX, Video};
use crate::recorded::Recorded;
use crate::text::extension;
use crate::uplinks::{NAME_RULE, is_name};

/// Pictures that browsers show.
const PICTURES: &[&str] = &["jpg", "jpeg", "png", "webp"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    home: Vec<HomeEntry>,
    #[serde(default)]
    video: Vec<VideoEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HomeEntry {
    name: Spanned<String>,
    volume: Spanned<String>,
    uplink: Option<Spanned<String>>,
    partition: Option<u32>,
    password_file: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VideoEntry {
    title: Spanned<String>,
    home: Spanned<String>,
    path: Spanned<String>,
    poster: Option<Spanned<String>>,
    #[serde(default)]
    subtitles: Vec<SubtitlesEntry>,
    #[serde(default)]
    tags: Vec<Spanned<String>>,
    duration_s: Option<Spanned<f64>>,
    bytes: Option<u64>,
    recorded: Option<Spanned<Datetime>>,
    container: Option<Spanned<String>>,
    video_codec: Option<Spanned<String>>,
    audio_codec: Option<Spanned<String>>,
    version: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubtitlesEntry {
    path: Spanned<String>,
    language: Option<Spanned<String>>,
    label: Option<Spanned<String>>,
}

/// Where we are in which file.
struct Checker<'a> {
    text: &'a str,
    path: &'a Path,
}

type Checked<T> = Result<T, CatalogueError>;

pub(super) fn parse(text: &str, path: &Path) -> Checked<Catalogue> {
    let checker = Checker { text, path };
    let file: File = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        checker.wrong(at, error.message().replace('\n', " "))
    })?;
    for (what, count, max) in
        [("homes", file.home.len(), HOMES_MAX), ("videos", file.video.len(), VIDEOS_MAX)]
    {
        if count > max {
            return Err(checker.wrong(0, format!("{count} {what}; at most {max} are taken")));
        }
    }
    let mut homes: Vec<HomeSpec> = Vec::with_capacity(file.home.len());
    for entry in file.home {
        let at = entry.name.span().start;
        let home = checker.home(entry)?;
        if homes.iter().any(|other| other.name == home.name) {
            return Err(checker.wrong(at, format!("a second home {:?}", home.name)));
        }
        homes.push(home);
    }
    let mut videos = Vec::with_capacity(file.video.len());
    let mut ids = HashSet::new();
    for entry in file.video {
        let at = entry.path.span().start;
        let video = checker.video(entry, &homes)?;
        if !ids.insert(video.id.clone()) {
            let problem = format!("{:?} of home {:?} is there twice", video.path, video.home);
            return Err(checker.wrong(at, problem));
        }
        videos.push(video);
    }
    Ok(Catalogue::with(homes, videos))
}

impl Checker<'_> {
    fn wrong(&self, at: usize, problem: impl Into<String>) -> CatalogueError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let place = format!("{} line {line}", self.path.display());
        CatalogueError { place, problem: problem.into() }
    }

    fn home(&self, entry: HomeEntry) -> Checked<HomeSpec> {
        let name = self.name(entry.name, "name")?;
        let (at, volume) = (entry.volume.span().start, entry.volume.into_inner());
        let place = if Location::is_meant(&volume) {
            let location = volume.parse::<Location>();
            Place::Url(location.map_err(|error| self.wrong(at, error.to_string()))?)
        } else if volume.is_empty() || volume.contains('\0') {
            return Err(self.wrong(at, "volume: a URL or a path is allowed"));
        } else {
            Place::Path(self.beside(&volume))
        };
        if let Place::Url(Location::Iscsi(url)) = &place
            && url.password.is_some()
        {
            let problem = "a password in the URL: it belongs into the first line of a file that \
                           password_file names";
            return Err(self.wrong(at, problem));
        }
        let uplink = entry.uplink.map(|name| self.uplink(name, &place)).transpose()?;
        let password_file = match entry.password_file {
            Some(file) => {
                let user = matches!(&place, Place::Url(Location::Iscsi(url)) if url.user.is_some());
                if !user {
                    let problem = "password_file: volume names no user (iscsi://USER@HOST/…)";
                    return Err(self.wrong(file.span().start, problem));
                }
                Some(self.beside(file.get_ref()))
            }
            None => None,
        };
        Ok(HomeSpec { name, place, uplink, partition: entry.partition, password_file })
    }

    /// A volume behind an uplink has no address: what calls from there stands in its place.
    fn uplink(&self, name: Spanned<String>, place: &Place) -> Checked<String> {
        let (at, text) = (name.span().start, name.get_ref());
        if !is_name(text) {
            return Err(self.wrong(at, format!("uplink: {text:?} is no name: {NAME_RULE}")));
        }
        let is_it = matches!(place, Place::Url(Location::Iscsi(url)) if url.portal.host == *text);
        if !is_it {
            let problem = format!("uplink: volume has to be iscsi://{text}/IQN/LUN then");
            return Err(self.wrong(at, problem));
        }
        Ok(name.into_inner())
    }

    fn video(&self, entry: VideoEntry, homes: &[HomeSpec]) -> Checked<Video> {
        let (home_at, home) = (entry.home.span().start, entry.home.into_inner());
        if !homes.iter().any(|one| one.name == home) {
            let known: Vec<String> =
                homes.iter().take(8).map(|one| format!("{:?}", one.name)).collect();
            let problem = format!("there is no home {home:?}; there are {}", known.join(", "));
            return Err(self.wrong(home_at, problem));
        }
        let title = self.name(entry.title, "title")?;
        let path = self.volume_path(entry.path)?;
        for (what, count, max) in [
            ("tags", entry.tags.len(), TAGS_MAX),
            ("subtitles", entry.subtitles.len(), SUBTITLES_MAX),
        ] {
            if count > max {
                return Err(self.wrong(home_at, format!("{count} {what}; at most {max} are taken")));
            }
        }
        let tags = entry.tags.into_iter().map(|tag| self.name(tag, "tag"));
        let tags = tags.collect::<Checked<Vec<String>>>()?;
        let subtitles = entry.subtitles.into_iter().map(|one| self.subtitles(one));
        let subtitles = subtitles.collect::<Checked<Vec<_>>>()?;
        let text = |value: Option<Spanned<String>>, what| {
            value.map(|value| self.name(value, what)).transpose()
        };
        let duration_s = match entry.duration_s {
            Some(seconds) if !seconds.get_ref().is_finite() || *seconds.get_ref() < 0.0 => {
                return Err(self.wrong(seconds.span().start, "duration_s: 0 or more is allowed"));
            }
            seconds => seconds.map(Spanned::into_inner),
        };
        let recorded = entry.recorded.map(|date| self.recorded(&date)).transpose()?;
        let video = Video {
            poster: entry.poster.map(|poster| self.poster(poster)).transpose()?,
            container: text(entry.container, "container")?,
            video_codec: text(entry.video_codec, "video_codec")?,
            audio_codec: text(entry.audio_codec, "audio_codec")?,
            version: text(entry.version, "version")?,
            subtitles,
            tags,
            duration_s,
            bytes: entry.bytes,
            recorded,
            ..Video::new(title, &home, &path)
        };
        Ok(video.with_search_text())
    }

    fn subtitles(&self, entry: SubtitlesEntry) -> Checked<Subtitles> {
        let at = entry.path.span().start;
        let path = self.volume_path(entry.path)?;
        rules::subtitles(&path).map_err(|problem| self.wrong(at, problem))?;
        if let Some(language) = &entry.language {
            let at = language.span().start;
            rules::language(language.get_ref()).map_err(|problem| self.wrong(at, problem))?;
        }
        let language = entry.language.map(Spanned::into_inner);
        let label = entry.label.map(|label| self.name(label, "label")).transpose()?;
        Ok(Subtitles { path, language, label })
    }

    fn recorded(&self, date: &Spanned<Datetime>) -> Checked<Recorded> {
        Recorded::of_toml(date.get_ref()).ok_or_else(|| {
            let problem = "recorded: a date such as 2026-11-27, or one with a time, is allowed";
            self.wrong(date.span().start, problem)
        })
    }

    /// A text that is shown.
    fn name(&self, text: Spanned<String>, what: &str) -> Checked<String> {
        let at = text.span().start;
        rules::name(text.get_ref(), what).map_err(|problem| self.wrong(at, problem))?;
        Ok(text.into_inner())
    }

    fn volume_path(&self, path: Spanned<String>) -> Checked<String> {
        let at = path.span().start;
        rules::path(path.get_ref()).map_err(|problem| self.wrong(at, problem))?;
        Ok(path.into_inner())
    }

    /// A picture is in the catalogue's folder, or in one below it: a catalogue that somebody else
    /// has written cannot show any other file of this machine.
    fn poster(&self, poster: Spanned<String>) -> Checked<PathBuf> {
        let path = Path::new(poster.get_ref());
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        let is_picture = extension(poster.get_ref())
            .is_some_and(|extension| PICTURES.contains(&extension.as_str()));
        if !is_below || !is_picture || poster.get_ref().contains('\0') {
            let problem = format!(
                "poster {:?}: {} below the catalogue's own folder are allowed",
                poster.get_ref(),
                PICTURES.join(", ")
            );
            return Err(self.wrong(poster.span().start, problem));
        }
        Ok(self.beside(poster.get_ref()))
    }

    /// A path of this machine begins at the catalogue's folder.
    fn beside(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }
}
