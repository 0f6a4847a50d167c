//! Videos of a volume, and the subtitles beside them.

use std::collections::VecDeque;

use files::{Entry, EntryKind};

use super::PublishError;
use crate::catalogue::{Subtitles, VIDEOS_MAX};
use crate::lease::{Lease, Missing};
use crate::text::{extension, plain};

/// What is taken for a video where a folder is given.
const VIDEOS: &[&str] =
    &["mp4", "m4v", "mkv", "webm", "mov", "avi", "mpg", "mpeg", "ts", "m2ts", "ogv", "flv", "wmv"];
/// Folders that are looked at, and how far below the first.
const FOLDERS_MAX: usize = 50_000;
const DEPTH_MAX: usize = 32;

/// A file that may be a video.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) path: String,
    /// What it is called where it does not say so itself.
    pub(super) title: String,
    pub(super) subtitles: Vec<Subtitles>,
}

/// A video, or all that are in a folder and below it, in the order of their names.
pub(super) async fn find(
    lease: &Lease,
    path: &str,
    mut left_out: impl FnMut(&str, &str),
) -> Result<Vec<Candidate>, PublishError> {
    let wrong = |why: String| PublishError::Path { path: path.to_owned(), why };
    // In one form, whoever writes it: the path is part of the video's identity.
    let begin = plain(path);
    if begin.split('/').any(|part| part == "..") {
        return Err(wrong("a path from the root of the volume, without .., is allowed".into()));
    }
    let (folder, name) = begin.rsplit_once('/').unwrap_or(("", &begin));
    let told = |missing: Missing| match missing {
        Missing::NoFile(error) | Missing::Unreadable(error) => wrong(error.to_string()),
        Missing::Off(off) => wrong(off.why),
    };
    if !name.is_empty() {
        // One file has others beside it.
        let beside = lease.list(folder.as_bytes()).await.map_err(told)?;
        let one = beside.iter().find(|one| one.name.as_str() == Some(name));
        if one.is_some_and(|one| one.kind == EntryKind::File) {
            return Ok(vec![candidate(folder, name, &beside)]);
        }
    }
    let mut found = Vec::new();
    let mut folders = VecDeque::from([(begin.trim_end_matches('/').to_owned(), 0)]);
    let mut count = 0;
    while let Some((folder, depth)) = folders.pop_front() {
        let mut entries = match lease.list(format!("{folder}/").as_bytes()).await {
            Ok(entries) => entries,
            Err(Missing::Unreadable(error)) if depth > 0 => {
                left_out(&folder, &error.to_string());
                continue;
            }
            Err(missing) => return Err(told(missing)),
        };
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        for entry in &entries {
            let Some(name) = entry.name.as_str() else {
                left_out(&format!("{folder}/{}", entry.name), "its name is not UTF-8");
                continue;
            };
            let is_video = extension(name).is_some_and(|end| VIDEOS.contains(&end.as_str()));
            match entry.kind {
                EntryKind::Folder if depth < DEPTH_MAX => {
                    folders.push_back((format!("{folder}/{name}"), depth + 1));
                }
                EntryKind::File if is_video => found.push(candidate(&folder, name, &entries)),
                _ => {}
            }
        }
        count += 1;
        if count > FOLDERS_MAX || found.len() > VIDEOS_MAX {
            let why = format!("more than {VIDEOS_MAX} videos or {FOLDERS_MAX} folders");
            return Err(wrong(why));
        }
    }
    Ok(found)
}

/// What is said of a folder without a video.
pub(super) fn nothing() -> String {
    format!("no video there; looked for are {}", VIDEOS.join(", "))
}

fn candidate(folder: &str, name: &str, beside: &[Entry]) -> Candidate {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let title: String = stem
        .chars()
        .map(|char| if char == '_' || char.is_control() { ' ' } else { char })
        .take(200)
        .collect();
    let mut subtitles: Vec<Subtitles> = beside
        .iter()
        .filter(|one| one.kind == EntryKind::File)
        .filter_map(|one| subtitle(folder, stem, one.name.as_str()?))
        .collect();
    subtitles.sort_by(|one, other| one.path.cmp(&other.path));
    let title = title.trim();
    let title = if title.is_empty() { "(no name)" } else { title };
    Candidate { path: format!("{folder}/{name}"), title: title.to_owned(), subtitles }
}

/// `STEM.srt` or `STEM.LANGUAGE.srt`, of a video `STEM.mp4`.
fn subtitle(folder: &str, stem: &str, name: &str) -> Option<Subtitles> {
    let rest = name.strip_prefix(stem)?;
    let end = extension(name).filter(|end| matches!(end.as_str(), "srt" | "vtt"))?;
    let language = rest.get(..rest.len().checked_sub(end.len() + 1)?)?;
    let language = match language.strip_prefix('.') {
        None if language.is_empty() => None,
        Some(tag)
            if (2..=35).contains(&tag.len())
                && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') =>
        {
            Some(tag.to_owned())
        }
        _ => return None,
    };
    Some(Subtitles { path: format!("{folder}/{name}"), language, label: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtitles_are_called_as_their_video() {
        let language = |name: &str| {
            subtitle("/films", "A Film", name).map(|one| one.language.unwrap_or_default())
        };
        assert_eq!(language("A Film.srt").as_deref(), Some(""));
        assert_eq!(language("A Film.VTT").as_deref(), Some(""));
        assert_eq!(language("A Film.pt-BR.srt").as_deref(), Some("pt-BR"));
        for other in ["A Film 2.srt", "A Film.en.txt", "A Film.srt.mp4", "A.srt", "A Film.x y.srt"]
        {
            assert_eq!(language(other), None, "{other}");
        }
        let found = subtitle("/films", "A Film", "A Film.en.srt").unwrap();
        assert_eq!(found.path, "/films/A Film.en.srt");
    }
}
