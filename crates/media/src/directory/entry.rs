//! What an entry says (contrib/ldap/enkaku.schema), and how a volume or a video is told of in one.

use std::path::PathBuf;

use backends::Location;
use bytes::Bytes;
use discovery::ldap::{Attributes, Entry, dn};
use iscsi::initiator::Url;
use serde::{Deserialize, Serialize};

use crate::catalogue::rules::{self, SUBTITLES_MAX, TAGS_MAX};
use crate::catalogue::{HomeSpec, Place, Subtitles, Video};
use crate::recorded::Recorded;
use crate::respond::content_type;
use crate::text::extension;
use crate::uplinks::{NAME_RULE, is_name};

/// Bytes of a picture: a household's thousands of them are kept in memory.
pub(crate) const THUMBNAIL_BYTES_MAX: usize = 128 << 10;
/// Accounts that a video may be for.
const VISIBLE_TO_MAX: usize = 256;
/// What a JPEG begins with.
const JPEG: &[u8] = b"\xff\xd8\xff";
/// A day more than a year: no video is longer.
const DURATION_MS_MAX: u64 = 366 * 24 * 3_600_000;

/// A volume: the middle one of three levels. A video names it, it names target and logical unit,
/// and where those are, it says itself, or an uplink, or iSNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// `cn`: what viewers see.
    pub name: String,
    /// `ekVolumeId`: what its videos name.
    pub id: String,
    /// `ekIscsiName`.
    pub target: String,
    /// `ekLun`.
    pub lun: u16,
    /// `ekPortal`: host and port.
    pub portal: Option<String>,
    /// `ekUplink`: what calls the server, in place of a portal.
    pub uplink: Option<String>,
    /// `ekPartition`.
    pub partition: Option<u32>,
    /// `ekUser`: CHAP name.
    pub user: Option<String>,
}

impl VolumeEntry {
    /// Reads an entry.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(entry: &Entry) -> Result<Self, String> {
        let text = |name: &str| entry.text(name).map(str::to_owned);
        let needed = |name| text(name).ok_or_else(|| format!("it has no {name} that is a text"));
        let volume = Self {
            name: needed("cn")?,
            id: needed("ekvolumeid")?,
            target: needed("ekiscsiname")?,
            lun: number(entry, "eklun")?.ok_or("it has no eklun")?,
            portal: text("ekportal"),
            uplink: text("ekuplink"),
            partition: number(entry, "ekpartition")?,
            user: text("ekuser"),
        };
        rules::name(&volume.name, "cn")?;
        rules::name(&volume.id, "ekvolumeid")?;
        if let Some(uplink) = volume.uplink.as_deref().filter(|name| !is_name(name)) {
            return Err(format!("ekuplink {uplink:?}: {NAME_RULE}"));
        }
        // Where it says nothing, an address of nobody: all the rest has to be right.
        volume.home(Some("192.0.2.1"), None)?;
        Ok(volume)
    }

    /// What a server opens. `found` is the address that iSNS has for the target.
    ///
    /// # Errors
    /// It cannot be opened so.
    pub(crate) fn home(
        &self,
        found: Option<&str>,
        password_file: Option<&PathBuf>,
    ) -> Result<HomeSpec, String> {
        let host = self.uplink.as_deref().or(self.portal.as_deref()).or(found);
        let Some(host) = host else {
            let target = &self.target;
            return Err(format!("no ekportal, no ekuplink, and iSNS knows no portal of {target}"));
        };
        let wrong = |error: &dyn ToString| error.to_string();
        // As a URL, whose checks are those of every other volume; a user may hold anything.
        let url = format!("iscsi://{host}/{}/{}", self.target, self.lun);
        let mut url: Url = url.parse().map_err(|error| wrong(&error))?;
        if url.user.is_some() || url.password.is_some() {
            return Err("ekportal: HOST or HOST:PORT is allowed".into());
        }
        if let Some(user) = &self.user {
            rules::name(user, "ekuser")?;
            url.user = Some(user.clone());
        }
        Ok(HomeSpec {
            name: self.name.clone(),
            place: Place::Url(Location::Iscsi(Box::new(url))),
            uplink: self.uplink.clone(),
            partition: self.partition,
            password_file: password_file.filter(|_| self.user.is_some()).cloned(),
        })
    }

    /// All that an entry says of it; those without values are not there.
    pub(crate) fn attributes(&self) -> Attributes {
        let number = |number: u32| text(&number.to_string());
        vec![
            ("objectClass", vec![b"device".to_vec(), b"ekStorage".to_vec()]),
            ("cn", text(&self.name)),
            ("ekVolumeId", text(&self.id)),
            ("ekIscsiName", text(&self.target)),
            ("ekLun", number(self.lun.into())),
            ("ekPortal", optional(self.portal.as_deref())),
            ("ekUplink", optional(self.uplink.as_deref())),
            ("ekPartition", self.partition.map(number).unwrap_or_default()),
            ("ekUser", optional(self.user.as_deref())),
        ]
    }
}

/// A video, and which volume it is on.
#[derive(Clone, Debug)]
pub struct VideoEntry {
    /// `ekVolumeId`.
    pub volume_id: String,
    /// Of no home yet.
    pub video: Video,
}

/// A value of `ekSubtitles`, in JSON.
#[derive(Serialize, Deserialize)]
struct SubtitlesValue {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

impl VideoEntry {
    /// Reads an entry.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(entry: &Entry) -> Result<Self, String> {
        let needed = |name| {
            let text = entry.text(name).map(str::to_owned);
            text.ok_or_else(|| format!("it has no {name} that is a text"))
        };
        let shown = |name| {
            let text = entry.text(name).map(str::to_owned);
            text.map(|text| rules::name(&text, name).map(|()| text)).transpose()
        };
        let (volume_id, path) = (needed("ekvolumeid")?, needed("ekpath")?);
        let title = needed("ektitle")?;
        rules::name(&title, "ektitle")?;
        rules::path(&path)?;
        let duration_ms: Option<u64> = number(entry, "ekdurationms")?;
        if duration_ms.is_some_and(|ms| ms > DURATION_MS_MAX) {
            return Err(format!("ekdurationms: 0 to {DURATION_MS_MAX} is allowed"));
        }
        let video = Video {
            thumbnail: thumbnail(entry)?,
            visible_to: visible_to(entry)?,
            subtitles: subtitles(entry)?,
            tags: tags(entry)?,
            duration_s: duration_ms.map(|ms| ms as f64 / 1000.0),
            bytes: number(entry, "ekbytes")?,
            recorded: recorded(entry)?,
            container: shown("ekcontainer")?,
            video_codec: shown("ekvideocodec")?,
            audio_codec: shown("ekaudiocodec")?,
            version: shown("ekversion")?,
            ..Video::new(title, "", &path)
        };
        Ok(Self { volume_id, video })
    }

    /// All that `publish` says of it; what else an entry has is somebody else's.
    pub(crate) fn attributes(&self) -> Attributes {
        let video = &self.video;
        let extension = extension(&video.path).unwrap_or_default();
        let duration = video.duration_s.map(|seconds| format!("{:.0}", seconds * 1000.0));
        let subtitles = video.subtitles.iter().filter_map(|one| {
            let Subtitles { path, language, label } = one.clone();
            serde_json::to_vec(&SubtitlesValue { path, language, label }).ok()
        });
        let tags = video.tags.iter().map(|tag| tag.as_bytes().to_vec());
        vec![
            ("objectClass", text("ekVideo")),
            ("cn", text(&video.id)),
            ("ekVolumeId", text(&self.volume_id)),
            ("ekPath", text(&video.path)),
            ("ekTitle", text(&video.title)),
            ("ekDurationMs", optional(duration.as_deref())),
            ("ekBytes", optional(video.bytes.map(|bytes| bytes.to_string()).as_deref())),
            ("ekRecorded", optional(video.recorded.map(Recorded::in_directory).as_deref())),
            ("ekMediaType", text(content_type(extension.as_bytes()))),
            ("ekContainer", optional(video.container.as_deref())),
            ("ekVideoCodec", optional(video.video_codec.as_deref())),
            ("ekAudioCodec", optional(video.audio_codec.as_deref())),
            ("ekVersion", optional(video.version.as_deref())),
            ("ekTag", tags.collect()),
            ("ekSubtitles", subtitles.collect()),
            ("ekThumbnail", video.thumbnail.iter().map(|picture| picture.to_vec()).collect()),
        ]
    }
}

/// Is it a picture that is taken?
pub(crate) fn is_thumbnail(picture: &[u8]) -> bool {
    picture.starts_with(JPEG) && picture.len() <= THUMBNAIL_BYTES_MAX
}

fn text(text: &str) -> Vec<Vec<u8>> {
    vec![text.as_bytes().to_vec()]
}

fn optional(value: Option<&str>) -> Vec<Vec<u8>> {
    value.map(text).unwrap_or_default()
}

fn number<T: std::str::FromStr>(entry: &Entry, name: &str) -> Result<Option<T>, String> {
    if entry.values(name).is_empty() {
        return Ok(None);
    }
    let number = entry.text(name).and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| format!("{name}: it is no number that is allowed"))
}

fn recorded(entry: &Entry) -> Result<Option<Recorded>, String> {
    if entry.values("ekrecorded").is_empty() {
        return Ok(None);
    }
    let recorded = entry.text("ekrecorded").and_then(Recorded::of_directory);
    recorded.map(Some).ok_or_else(|| "ekrecorded: such as 20261127103000Z is allowed".into())
}

fn thumbnail(entry: &Entry) -> Result<Option<Bytes>, String> {
    let Some(picture) = entry.values("ekthumbnail").first() else { return Ok(None) };
    if !is_thumbnail(picture) {
        return Err(format!("ekthumbnail: JPEG of {THUMBNAIL_BYTES_MAX} bytes at most is allowed"));
    }
    Ok(Some(Bytes::copy_from_slice(picture)))
}

/// The accounts that are meant. A name that says no account is one that nobody has.
fn visible_to(entry: &Entry) -> Result<Option<Vec<String>>, String> {
    let values = entry.values("ekvisibleto");
    if values.len() > VISIBLE_TO_MAX {
        return Err(format!("ekvisibleto: at most {VISIBLE_TO_MAX} are taken"));
    }
    let accounts = values.iter().filter_map(|value| {
        let name = dn::first(std::str::from_utf8(value).ok()?, "uid")?;
        Some(name.trim().to_lowercase()) // as accounts are called
    });
    Ok((!values.is_empty()).then(|| accounts.collect()))
}

fn subtitles(entry: &Entry) -> Result<Vec<Subtitles>, String> {
    let values = entry.values("eksubtitles");
    if values.len() > SUBTITLES_MAX {
        return Err(format!("eksubtitles: at most {SUBTITLES_MAX} are taken"));
    }
    let mut all = Vec::with_capacity(values.len());
    for value in values {
        let one: SubtitlesValue =
            serde_json::from_slice(value).map_err(|error| format!("eksubtitles: {error}"))?;
        rules::path(&one.path)?;
        rules::subtitles(&one.path)?;
        one.language.as_deref().map_or(Ok(()), rules::language)?;
        one.label.as_deref().map_or(Ok(()), |label| rules::name(label, "label"))?;
        all.push(Subtitles { path: one.path, language: one.language, label: one.label });
    }
    // A directory keeps no order of values, and addresses count them.
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(all)
}

fn tags(entry: &Entry) -> Result<Vec<String>, String> {
    let values = entry.values("ektag");
    if values.len() > TAGS_MAX {
        return Err(format!("ektag: at most {TAGS_MAX} are taken"));
    }
    let tags = values.iter().map(|value| {
        let tag = std::str::from_utf8(value).map_err(|_| "ektag: it is no text".to_owned())?;
        rules::name(tag, "ektag").map(|()| tag.to_owned())
    });
    let mut tags = tags.collect::<Result<Vec<String>, String>>()?;
    tags.sort();
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(attributes: &Attributes) -> Entry {
        let kept = attributes.iter().filter(|(_, values)| !values.is_empty());
        let kept = kept.map(|(name, values)| (name.to_ascii_lowercase(), values.clone()));
        Entry { dn: "cn=x".into(), attributes: kept.collect() }
    }

    fn with(mut entry: Entry, name: &str, value: &[u8]) -> Entry {
        entry.attributes.insert(name.into(), vec![value.to_vec()]);
        entry
    }

    fn video() -> VideoEntry {
        let subtitles = Subtitles {
            path: "/f/a\\b.en.srt".into(),
            language: Some("en".into()),
            label: Some("*)(uid=*".into()),
        };
        let video = Video {
            subtitles: vec![subtitles],
            tags: vec!["a,b".into(), "ü".into()],
            duration_s: Some(61.5),
            bytes: Some(u64::from(u32::MAX) + 1),
            recorded: Recorded::of_directory("20240501100000Z"),
            thumbnail: Some(Bytes::from_static(b"\xff\xd8\xff\0")),
            ..Video::new("*)(uid=*, \\ \u{202e}".into(), "", "/f/a\\b.mp4")
        };
        VideoEntry { volume_id: "v,1".into(), video }
    }

    #[test]
    fn what_is_written_is_read() {
        let read = VideoEntry::read(&entry(&video().attributes())).unwrap();
        assert_eq!(read.attributes(), video().attributes());
        assert_eq!((read.video.bytes, read.video.recorded), {
            let video = video().video;
            (video.bytes, video.recorded)
        });
        // As before there were these two.
        let mut old = entry(&video().attributes());
        old.attributes.retain(|name, _| !matches!(&name[..], "ekbytes" | "ekrecorded"));
        let old = VideoEntry::read(&old).unwrap().video;
        assert_eq!((old.bytes, old.recorded, old.duration_s), (None, None, Some(61.5)));
        let volume = VolumeEntry {
            name: "attic, left".into(),
            id: "v,1".into(),
            target: "iqn.2026-11.org.example:films".into(),
            lun: 3,
            portal: Some("[2001:db8::1]:3260".into()),
            uplink: None,
            partition: Some(2),
            user: Some("an@na%x".into()),
        };
        let read = VolumeEntry::read(&entry(&volume.attributes())).unwrap();
        assert_eq!(read, volume);
        let home = read.home(None, Some(&"/secret".into())).unwrap();
        let Place::Url(Location::Iscsi(url)) = &home.place else { panic!("{home:?}") };
        assert_eq!(
            (url.user.as_deref(), url.portal.host.as_str()),
            (Some("an@na%x"), "2001:db8::1")
        );
        assert_eq!(home.password_file, Some("/secret".into()));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let good = entry(&video().attributes());
        for (name, value) in [
            ("ektitle", &b"a\0b"[..]),
            ("ektitle", b"\xff"),
            ("ekpath", b""),
            ("ekpath", b"a\0"),
            ("ekdurationms", b"-1"),
            ("ekdurationms", b"99999999999"),
            ("ekbytes", b"-1"),
            ("ekbytes", b"18446744073709551616"),
            ("ekrecorded", b"20240501100000"),
            ("ekrecorded", b"\xff"),
            ("ekthumbnail", b"GIF89a"),
            ("eksubtitles", b"{\"path\": \"/etc/passwd\"}"),
            ("eksubtitles", b"["),
        ] {
            let broken = with(good.clone(), name, value);
            assert!(VideoEntry::read(&broken).is_err(), "{name} {value:?}");
        }
        let volume = [
            ("cn", "a"),
            ("ekvolumeid", "v"),
            ("ekiscsiname", "iqn.2026-11.org.example:a"),
            ("eklun", "0"),
        ];
        let volume = volume.map(|(name, value)| (name.to_owned(), text(value)));
        let volume = Entry { dn: String::new(), attributes: volume.into_iter().collect() };
        let told = VolumeEntry::read(&volume).unwrap().home(None, None).unwrap_err();
        assert!(told.contains("iSNS"), "{told}");
        for (name, value) in [
            ("ekiscsiname", "../x"),
            ("eklun", "70000"),
            ("ekportal", "user%password@h"),
            ("ekportal", "h/iqn.2026-11.org.example:b/0?"),
            ("ekuplink", "A B"),
            ("ekuser", ""),
        ] {
            let broken = with(volume.clone(), name, value.as_bytes());
            assert!(VolumeEntry::read(&broken).is_err(), "{name} {value:?}");
        }
    }

    #[test]
    fn it_is_for_those_accounts_that_names_say() {
        let good = entry(&video().attributes());
        let of = |value: &[u8]| {
            VideoEntry::read(&with(good.clone(), "ekvisibleto", value)).unwrap().video.visible_to
        };
        assert_eq!(of(b"uid=Anna,ou=people,dc=example"), Some(vec!["anna".into()]));
        assert_eq!(of(b"cn=everybody,dc=example"), Some(Vec::new()), "nobody, and not everybody");
        assert_eq!(VideoEntry::read(&good).unwrap().video.visible_to, None);
    }
}
