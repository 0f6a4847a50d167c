//! [`Catalogue`]: which videos there are, and on which volumes: one file in TOML that a person can
//! write (docs/media.md). What is in it is checked whole before anything of it counts.

mod file;
pub(crate) mod rules;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use backends::Location;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::recorded::Recorded;
use crate::text::hex;

/// Bytes of the file: 20,000 videos with all that is told of them.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// What a catalogue may have. A search looks at every video.
pub(crate) const VIDEOS_MAX: usize = 20_000;
/// Homes, of which each may have a session.
pub(crate) const HOMES_MAX: usize = 256;
/// Words of a search that count; what follows is left out.
const WORDS_MAX: usize = 8;

/// What is wrong with a catalogue, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct CatalogueError {
    /// File, and line if it is known.
    pub place: String,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

/// Where a volume is.
#[derive(Clone, Debug)]
pub enum Place {
    /// Served by somebody.
    Url(Location),
    /// An image or a block device of this machine.
    Path(PathBuf),
}

impl Place {
    /// The same for whoever uses it: without user and password.
    pub fn key(&self) -> String {
        match self {
            Self::Url(location) => location.key(),
            Self::Path(path) => path.display().to_string(),
        }
    }
}

/// A volume that videos are on.
#[derive(Clone, Debug)]
pub struct HomeSpec {
    /// Its name, which viewers see.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// What calls this server, since nobody can call it: its name, which is the host in the URL.
    pub uplink: Option<String>,
    /// Which partition; `None` is the only one with a file system that can be read.
    pub partition: Option<u32>,
    /// File whose first line is the password of the URL's user.
    pub password_file: Option<PathBuf>,
}

impl HomeSpec {
    /// Is it the same volume, reached in the same way?
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let user = |spec: &Self| match &spec.place {
            Place::Url(Location::Iscsi(url)) => url.user.clone(),
            _ => None,
        };
        self.name == other.name
            && self.place.key() == other.place.key()
            && self.uplink == other.uplink
            && user(self) == user(other)
            && self.partition == other.partition
            && self.password_file == other.password_file
    }
}

/// Words to a video, in a file beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subtitles {
    /// Path on the volume: SubRip (.srt) or WebVTT (.vtt).
    pub path: String,
    /// Language, as in BCP 47: `en`, `pt-BR`.
    pub language: Option<String>,
    /// What a viewer chooses by.
    pub label: Option<String>,
}

/// A video.
#[derive(Clone, Debug)]
pub struct Video {
    /// Made of home and path, so that it stays the same.
    pub id: String,
    /// What it is called.
    pub title: String,
    /// Name of its home.
    pub home: String,
    /// Path on the volume.
    pub path: String,
    /// A picture, on this machine.
    pub poster: Option<PathBuf>,
    /// A picture (JPEG), from a directory; instead of `poster`.
    pub thumbnail: Option<Bytes>,
    /// Accounts that may know of it, and nobody else; `None` is everybody who is let in.
    pub visible_to: Option<Vec<String>>,
    /// Words to it.
    pub subtitles: Vec<Subtitles>,
    /// What else it is found by.
    pub tags: Vec<String>,
    /// How long it is.
    pub duration_s: Option<f64>,
    /// How large its file is.
    pub bytes: Option<u64>,
    /// When it was recorded.
    pub recorded: Option<Recorded>,
    /// Container and codecs, as ffprobe calls them.
    pub container: Option<String>,
    /// See `container`.
    pub video_codec: Option<String>,
    /// See `container`.
    pub audio_codec: Option<String>,
    /// Which content all that was found in.
    pub version: Option<String>,
    /// What a search looks at, in small letters.
    pub(crate) found_by: String,
}

impl Video {
    /// One of which nothing else is known.
    pub(crate) fn new(title: String, home: &str, path: &str) -> Self {
        Self {
            id: id(home, path),
            title,
            home: home.to_owned(),
            path: path.to_owned(),
            poster: None,
            thumbnail: None,
            visible_to: None,
            subtitles: Vec::new(),
            tags: Vec::new(),
            duration_s: None,
            bytes: None,
            recorded: None,
            container: None,
            video_codec: None,
            audio_codec: None,
            version: None,
            found_by: String::new(),
        }
    }

    /// As one of a home, which makes its identifier.
    pub(crate) fn of_home(self, home: &str) -> Self {
        let id = id(home, &self.path);
        Self { id, home: home.to_owned(), ..self }.with_search_text()
    }

    /// With what a search looks at, which is made of all the rest.
    fn with_search_text(mut self) -> Self {
        let (title, home, path, tags) = (&self.title, &self.home, &self.path, self.tags.join("\n"));
        let day = self.recorded.map(Recorded::day).unwrap_or_default();
        self.found_by = format!("{title}\n{tags}\n{home}\n{path}\n{day}").to_lowercase();
        self
    }
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    homes: Vec<HomeSpec>,
    /// By title.
    videos: Vec<Video>,
    by_id: HashMap<String, usize>,
}

impl Catalogue {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong.
    pub fn load(path: &Path) -> Result<Self, CatalogueError> {
        Self::parse(&read(path)?, path)
    }

    /// Reads the text of a file at `path`, which names in it begin at.
    ///
    /// # Errors
    /// Something in it is wrong.
    pub fn parse(text: &str, path: &Path) -> Result<Self, CatalogueError> {
        file::parse(text, path)
    }

    /// The volumes.
    pub fn homes(&self) -> &[HomeSpec] {
        &self.homes
    }

    /// All videos, by title.
    pub fn videos(&self) -> &[Video] {
        &self.videos
    }

    /// One of them.
    pub fn video(&self, id: &str) -> Option<&Video> {
        self.by_id.get(id).map(|at| &self.videos[*at])
    }

    /// Those with every word of `query` in title, tags, name of the home, path or the day that it
    /// was recorded on (2026-11-27), whatever the case.
    pub fn search(&self, query: &str) -> impl Iterator<Item = &Video> {
        let query = query.to_lowercase();
        let words: Vec<String> =
            query.split_whitespace().take(WORDS_MAX).map(ToOwned::to_owned).collect();
        let videos = self.videos.iter();
        videos.filter(move |video| words.iter().all(|word| video.found_by.contains(word.as_str())))
    }

    pub(crate) fn with(homes: Vec<HomeSpec>, mut videos: Vec<Video>) -> Self {
        videos.sort_by_cached_key(|video| (video.title.to_lowercase(), video.id.clone()));
        let ids = videos.iter().enumerate().map(|(at, video)| (video.id.clone(), at));
        let by_id = ids.collect();
        Self { homes, videos, by_id }
    }
}

/// The text of a catalogue.
///
/// # Errors
/// It is no file that can be read, or too large.
pub(crate) fn read(path: &Path) -> Result<String, CatalogueError> {
    let place = || path.display().to_string();
    let wrong = |problem: String| CatalogueError { place: place(), problem };
    let metadata = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !metadata.is_file() {
        return Err(wrong("it is not a file".into()));
    }
    if metadata.len() > FILE_BYTES_MAX {
        let (len, max) = (metadata.len(), FILE_BYTES_MAX);
        return Err(wrong(format!("{len} bytes; at most {max} are taken")));
    }
    std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))
}

/// The name of a video in addresses. 64 bits: nobody gains by two that are the same.
fn id(home: &str, path: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(home.as_bytes());
    hash.update([0]);
    hash.update(path.trim_matches('/').as_bytes());
    hex(&hash.finalize()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[[home]]
name = "attic"
volume = "iscsi://anna@storage.example/iqn.2026-01.example:films/0"
password_file = "attic.secret"

[[home]]
name = "shed"
volume = "images/shed.img"
partition = 2

[[video]]
title = "Kyoto in Spring"
home = "attic"
path = "/films/kyoto.mp4"
poster = "posters/kyoto.jpg"
subtitles = [{ path = "/films/kyoto.en.srt", language = "en", label = "English" }]
tags = ["Japan", "2024"]
duration_s = 61.5
bytes = 1_500_000_000
recorded = 2023-04-02T10:00:00+09:00

[[video]]
title = "A Boat"
home = "shed"
path = "boat.mkv"
"#;

    /// A home that calls.
    fn calls(host: &str, uplink: &str) -> String {
        let volume = format!("iscsi://{host}/iqn.2026-01.example:films/0");
        format!("[[home]]\nname = \"a\"\nvolume = \"{volume}\"\nuplink = \"{uplink}\"\n")
    }

    fn parse(text: &str) -> Result<Catalogue, CatalogueError> {
        Catalogue::parse(text, Path::new("/videos/catalogue.toml"))
    }

    #[test]
    fn a_catalogue_is_homes_and_videos() {
        let catalogue = parse(TEXT).unwrap();
        let [attic, shed] = catalogue.homes() else { panic!("{catalogue:?}") };
        assert_eq!(attic.password_file, Some("/videos/attic.secret".into()));
        assert_eq!(shed.place.key(), "/videos/images/shed.img");
        assert_eq!(shed.partition, Some(2));
        let titles: Vec<&str> = catalogue.videos().iter().map(|one| one.title.as_str()).collect();
        assert_eq!(titles, ["A Boat", "Kyoto in Spring"]);
        let kyoto = &catalogue.videos()[1];
        assert_eq!(kyoto.poster, Some("/videos/posters/kyoto.jpg".into()));
        assert_eq!(kyoto.subtitles[0].label.as_deref(), Some("English"));
        assert_eq!(catalogue.video(&kyoto.id).unwrap().path, "/films/kyoto.mp4");
        assert_eq!(kyoto.id, id("attic", "films/kyoto.mp4"));
        let recorded = kyoto.recorded.map(|recorded| recorded.to_string());
        assert_eq!(recorded.as_deref(), Some("2023-04-02T01:00:00Z"));
        assert_eq!(kyoto.bytes, Some(1_500_000_000));
        // As before there were these two.
        assert_eq!((catalogue.videos()[0].bytes, catalogue.videos()[0].recorded), (None, None));
        assert!(catalogue.video("x").is_none());
        assert!(parse("").unwrap().videos().is_empty());
        assert_eq!(
            parse(&calls("attic", "attic")).unwrap().homes()[0].uplink.as_deref(),
            Some("attic")
        );
    }

    #[test]
    fn every_word_of_a_search_has_to_be_there() {
        let catalogue = parse(TEXT).unwrap();
        let found = |query: &str| catalogue.search(query).count();
        for (query, count) in [
            ("", 2),
            ("KYOTO", 1),
            ("japan spring", 1),
            ("japan boat", 0),
            ("attic", 1),
            ("mkv", 1),
            ("2023-04", 1),
        ] {
            assert_eq!(found(query), count, "{query}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let said = |text: &str| parse(text).unwrap_err().to_string();
        let home = "[[home]]\nname = \"a\"\nvolume = \"a.img\"\n";
        for (text, expected) in [
            ("[[home]\n", "line 1"),
            ("[[home]]\nname = \"a\"\n", "missing field `volume`"),
            ("[[home]]\nname = \"a\"\nvolum = \"x\"\n", "line 3"),
            ("[[home]]\nname = \"\"\nvolume = \"x\"\n", "name"),
            ("[[home]]\nname = \"a\"\nvolume = \"ftp://h/x\"\n", "no URL of a volume"),
            (
                "[[home]]\nname = \"a\"\nvolume = \"iscsi://u%secret@h/iqn.2026-01.a:b/0\"\n",
                "password_file",
            ),
            (&format!("{home}uplink = \"attic\"\n"), "line 4: uplink: volume has to be"),
            (&calls("b", "a"), "iscsi://a/"),
            (&calls("a", "A"), "letters a-z"),
            (&format!("{home}{home}"), "line 5: a second home \"a\""),
            (&format!("{home}[[video]]\ntitle = \"t\"\nhome = \"b\"\npath = \"x\"\n"), "line 6"),
            (
                &format!("{home}[[video]]\ntitle = \"t\"\nhome = \"a\"\npath = \"x\\u0000\"\n"),
                "line 7",
            ),
            (
                &format!(
                    "{home}[[video]]\ntitle = \"t\"\nhome = \"a\"\npath = \"x\"\nposter = \
                     \"../x.jpg\"\n"
                ),
                "line 8",
            ),
        ] {
            let said = said(text);
            assert!(
                said.starts_with("/videos/catalogue.toml") && said.contains(expected),
                "{said}"
            );
            assert!(!said.contains('\n'), "{said}");
        }
        let video = "[[video]]\ntitle = \"t\"\nhome = \"a\"\npath = \"x\"\n";
        assert!(said(&format!("{home}{video}{video}")).contains("twice"));
        for wrong in ["bytes = -1", "bytes = 1.5", "recorded = 10:00:00", "recorded = \"today\""] {
            let said = said(&format!("{home}{video}{wrong}\n"));
            assert!(said.contains("line 8") && !said.contains('\n'), "{said}");
        }
        let days = ["1987-07-14", "1987-07-14T20:15:00", "1987-07-14 20:15:00Z"];
        for day in days {
            let catalogue = parse(&format!("{home}{video}recorded = {day}\n")).unwrap();
            let recorded = catalogue.videos()[0].recorded.map(Recorded::day);
            assert_eq!(recorded.as_deref(), Some("1987-07-14"), "{day}");
        }
    }
}
