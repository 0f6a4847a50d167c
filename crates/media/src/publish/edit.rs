//! [`Edit`]: changes of a catalogue's file that leave alone what a person wrote into it, and
//! writing it so that it is the old one or the new one at any moment.

use std::io::Write;
use std::path::{Path, PathBuf};

use toml_edit::{
    Array, ArrayOfTables, Datetime, DocumentMut, InlineTable, Item, Table, Value, value,
};

use super::probe::Found;
use crate::catalogue::{Catalogue, CatalogueError, HomeSpec, Place, Subtitles, read};
use crate::recorded::Recorded;

/// What begins a catalogue that is made here.
const HEAD: &str = "\
# Videos and the volumes that they are on (docs/media.md). Change what you like:
# `enkaku media publish` adds what is new, and keeps titles, tags, posters,
# subtitles and dates of recording that are here.
";

/// A catalogue that is being changed.
pub(super) struct Edit {
    path: PathBuf,
    /// What was there, if there was anything.
    before: Option<String>,
    document: DocumentMut,
}

/// What is told of one video.
pub(super) struct Entry<'a> {
    pub(super) home: &'a str,
    pub(super) path: &'a str,
    pub(super) title: &'a str,
    pub(super) found: &'a Found,
    pub(super) bytes: Option<u64>,
    pub(super) recorded: Option<Recorded>,
    pub(super) poster: Option<&'a str>,
    pub(super) subtitles: &'a [Subtitles],
    pub(super) tags: &'a [String],
    pub(super) version: &'a str,
}

impl Edit {
    /// Begins with what is there.
    pub(super) fn load(path: &Path) -> Result<Self, CatalogueError> {
        let before = match path.try_exists() {
            Ok(false) => None,
            _ => Some(read(path)?),
        };
        let text = before.as_deref().unwrap_or_default();
        let document = text.parse::<DocumentMut>().map_err(|error| CatalogueError {
            place: path.display().to_string(),
            problem: error.message().replace('\n', " "),
        })?;
        Ok(Self { path: path.to_owned(), before, document })
    }

    /// What it is now.
    pub(super) fn text(&self) -> String {
        match self.before {
            Some(_) => self.document.to_string(),
            None => format!("{HEAD}\n{}", self.document),
        }
    }

    /// Adds a home.
    pub(super) fn add_home(&mut self, spec: &HomeSpec) -> Result<(), CatalogueError> {
        let mut table = Table::new();
        table["name"] = value(&spec.name);
        table["volume"] = value(match &spec.place {
            Place::Url(location) => location.to_string(),
            Place::Path(path) => path.display().to_string(),
        });
        if let Some(partition) = spec.partition {
            table["partition"] = value(i64::from(partition));
        }
        if let Some(file) = &spec.password_file {
            table["password_file"] = value(file.display().to_string());
        }
        self.tables("home")?.push(table);
        Ok(())
    }

    /// Tells of a video, which may be there already.
    pub(super) fn put_video(&mut self, entry: &Entry<'_>) -> Result<(), CatalogueError> {
        let videos = self.tables("video")?;
        let is_it = |table: &Table| {
            let text = |key| table.get(key).and_then(Item::as_str);
            text("home") == Some(entry.home)
                && text("path").map(|path| path.trim_matches('/'))
                    == Some(entry.path.trim_matches('/'))
        };
        let there = videos.iter().position(is_it);
        let at = match there {
            Some(at) => at,
            None => {
                let mut table = Table::new();
                table["title"] = value(entry.title);
                table["home"] = value(entry.home);
                table["path"] = value(entry.path);
                videos.push(table);
                videos.len() - 1
            }
        };
        if let Some(table) = videos.get_mut(at) {
            fill(table, entry);
        }
        Ok(())
    }

    fn tables(&mut self, key: &'static str) -> Result<&mut ArrayOfTables, CatalogueError> {
        let item = self.document.entry(key);
        let item = item.or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
        let problem = format!("{key}: [[{key}]] is expected, once for each");
        let place = self.path.display().to_string();
        item.as_array_of_tables_mut().ok_or(CatalogueError { place, problem })
    }

    /// Writes it, if anything is other than before.
    pub(super) fn save(&mut self) -> Result<bool, CatalogueError> {
        let text = self.text();
        // What is written is never what could not be read.
        Catalogue::parse(&text, &self.path)?;
        if self.before.as_deref() == Some(&text) {
            return Ok(false);
        }
        let place = self.path.display().to_string();
        let wrong = |problem: String| CatalogueError { place: place.clone(), problem };
        let now = match self.path.try_exists() {
            Ok(false) => None,
            _ => Some(read(&self.path)?),
        };
        if now != self.before {
            return Err(wrong("somebody else has changed it meanwhile: try again".into()));
        }
        write(&self.path, text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        self.document = text.parse().map_err(|_| wrong("it cannot be read again".into()))?;
        self.before = Some(text);
        Ok(true)
    }
}

/// What is found is told anew; what a person may have written stays.
fn fill(table: &mut Table, entry: &Entry<'_>) {
    let found = entry.found;
    put(table, "duration_s", found.duration_s.map(Value::from));
    put(table, "bytes", entry.bytes.and_then(|bytes| i64::try_from(bytes).ok()).map(Value::from));
    put(table, "container", found.container.as_deref().map(Value::from));
    put(table, "video_codec", found.video_codec.as_deref().map(Value::from));
    put(table, "audio_codec", found.audio_codec.as_deref().map(Value::from));
    put(table, "version", Some(entry.version.into()));
    let is_there = |table: &Table, key: &str| table.get(key).is_some();
    if let Some(recorded) = entry.recorded.filter(|_| !is_there(table, "recorded")) {
        let date = recorded.to_string().parse::<Datetime>().ok();
        put(table, "recorded", date.map(Value::from));
    }
    if let Some(poster) = entry.poster.filter(|_| !is_there(table, "poster")) {
        put(table, "poster", Some(poster.into()));
    }
    if !entry.subtitles.is_empty() && !is_there(table, "subtitles") {
        let mut all = Array::new();
        for one in entry.subtitles {
            let mut subtitles = InlineTable::new();
            subtitles.insert("path", one.path.as_str().into());
            for (key, text) in [("language", &one.language), ("label", &one.label)] {
                if let Some(text) = text {
                    subtitles.insert(key, text.as_str().into());
                }
            }
            all.push(Value::InlineTable(subtitles));
        }
        put(table, "subtitles", Some(all.into()));
    }
    if !entry.tags.is_empty() {
        let tags = table.entry("tags").or_insert_with(|| value(Array::new()));
        if let Some(tags) = tags.as_array_mut() {
            for tag in entry.tags {
                if !tags.iter().any(|there| there.as_str() == Some(tag.as_str())) {
                    tags.push(tag.as_str());
                }
            }
        }
    }
}

/// A value that is the same stays as it is written.
fn put(table: &mut Table, key: &str, new: Option<Value>) {
    let Some(mut new) = new else {
        table.remove(key);
        return;
    };
    let is_same = table.get(key).and_then(Item::as_value).is_some_and(|old| match (old, &new) {
        (Value::String(old), Value::String(new)) => old.value() == new.value(),
        (Value::Float(old), Value::Float(new)) => old.value() == new.value(),
        (Value::Integer(old), Value::Integer(new)) => old.value() == new.value(),
        (Value::Integer(old), Value::Float(new)) => *old.value() as f64 == *new.value(),
        _ => false,
    });
    if !is_same {
        if let Some(old) = table.get(key).and_then(Item::as_value) {
            *new.decor_mut() = old.decor().clone(); // what is said behind it
        }
        table[key] = Item::Value(new);
    }
}

/// Writes a file so that, whatever happens, it is the old one or the new one.
pub(super) fn write(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = (|| {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(content)?;
        // What it may be read by is the owner's to say, and he has said it of the old one.
        if let Ok(metadata) = std::fs::metadata(path) {
            file.set_permissions(metadata.permissions())?;
        }
        file.sync_all()?;
        std::fs::rename(&new, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&new); // it was never ready
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Found {
        Found {
            duration_s: Some(61.5),
            container: Some("mov".into()),
            video_codec: Some("h264".into()),
            ..Found::default()
        }
    }

    fn entry<'a>(found: &'a Found, subtitles: &'a [Subtitles], tags: &'a [String]) -> Entry<'a> {
        let (home, path) = ("attic", "/films/a \"b\".mp4");
        let (title, poster) = ("a \"b\"", Some("posters/x.jpg"));
        let (bytes, recorded) = (Some(3 << 30), Recorded::of_directory("20240501100000Z"));
        let version = "1";
        Entry { home, path, title, found, bytes, recorded, poster, subtitles, tags, version }
    }

    fn home() -> HomeSpec {
        let place = Place::Path("/disks/a.img".into());
        HomeSpec {
            name: "attic".into(),
            place,
            uplink: None,
            partition: Some(2),
            password_file: None,
        }
    }

    #[test]
    fn what_is_written_can_be_read_and_is_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalogue.toml");
        let subtitles = [Subtitles {
            path: "/films/a.en.srt".into(),
            language: Some("en".into()),
            label: None,
        }];
        let (found, tags) = (found(), ["Japan".to_owned()]);
        for round in 0..2 {
            let mut edit = Edit::load(&path).unwrap();
            if round == 0 {
                edit.add_home(&home()).unwrap();
            }
            edit.put_video(&entry(&found, &subtitles, &tags)).unwrap();
            assert_eq!(edit.save().unwrap(), round == 0);
        }
        let catalogue = Catalogue::load(&path).unwrap();
        let [video] = catalogue.videos() else { panic!("{catalogue:?}") };
        assert_eq!(video.title, "a \"b\"");
        assert_eq!(video.path, "/films/a \"b\".mp4");
        assert_eq!(video.subtitles, subtitles);
        assert_eq!(video.tags, tags);
        assert_eq!((video.duration_s, video.bytes), (Some(61.5), Some(3 << 30)));
        assert_eq!(video.recorded, Recorded::of_directory("20240501100000Z"));
        assert_eq!(video.poster, Some(folder.path().join("posters/x.jpg")));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "and nothing else");
    }

    #[test]
    fn what_a_person_wrote_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalogue.toml");
        let text = "# mine\n[[home]]\nname = 'attic'  # up there\nvolume = \"/disks/a.img\"\n\n\
                    [[video]]\npath = 'films/a \"b\".mp4'\ntitle = \"My Title\"\nhome = \"attic\"\n\
                    duration_s = 3\nbytes = 3_221_225_472\nrecorded = 1987-07-14 # or so\n\
                    tags = [ \"old\", ]\n";
        std::fs::write(&path, text).unwrap();
        let mut edit = Edit::load(&path).unwrap();
        edit.put_video(&entry(&found(), &[], &["old".into(), "new".into()])).unwrap();
        assert!(edit.save().unwrap());
        let now = std::fs::read_to_string(&path).unwrap();
        for kept in [
            "# mine\n",
            "name = 'attic'  # up there\n",
            "title = \"My Title\"\n",
            "bytes = 3_221_225_472\n",
            "recorded = 1987-07-14 # or so\n",
        ] {
            assert!(now.contains(kept), "{now}");
        }
        assert!(now.contains("duration_s = 61.5\n") && !now.contains("a \\\"b"), "{now}");
        let catalogue = Catalogue::load(&path).unwrap();
        assert_eq!(catalogue.videos()[0].tags, ["old", "new"]);
    }

    #[test]
    fn who_else_changes_it_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalogue.toml");
        let mut edit = Edit::load(&path).unwrap();
        edit.add_home(&home()).unwrap();
        std::fs::write(&path, "# somebody's\n").unwrap();
        let error = edit.save().unwrap_err().to_string();
        assert!(error.contains("somebody else has changed it"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "# somebody's\n");
        std::fs::write(&path, "video = 3\n").unwrap();
        let error = Edit::load(&path).unwrap().put_video(&entry(&found(), &[], &[])).unwrap_err();
        assert!(error.to_string().contains("[[video]] is expected"), "{error}");
    }
}
