//! What may be in a catalogue, wherever it is kept.

use crate::text::extension;

/// Characters of a name or title: what a page can show.
const NAME_CHARS_MAX: usize = 300;
/// Bytes of a path on a volume: Linux' own limit, which [`files`] has, too.
const PATH_BYTES_MAX: usize = files::limits::PATH_BYTES_MAX;
/// Tags and subtitles of one video.
pub(crate) const TAGS_MAX: usize = 64;
pub(crate) const SUBTITLES_MAX: usize = 64;

/// What is wrong, and what is allowed.
type Checked = Result<(), String>;

/// A text that is shown.
pub(crate) fn name(text: &str, what: &str) -> Checked {
    let is_plain = !text.chars().any(char::is_control);
    if !(1..=NAME_CHARS_MAX).contains(&text.chars().count()) || !is_plain {
        let max = NAME_CHARS_MAX;
        return Err(format!("{what}: 1 to {max} characters without control characters"));
    }
    Ok(())
}

/// A path on a volume.
pub(crate) fn path(text: &str) -> Checked {
    if text.is_empty() || text.len() > PATH_BYTES_MAX || text.contains('\0') {
        let max = PATH_BYTES_MAX;
        return Err(format!("path: 1 to {max} bytes, none of them 0, are allowed"));
    }
    Ok(())
}

/// A file with words, by its path.
pub(crate) fn subtitles(path: &str) -> Checked {
    if !matches!(extension(path).as_deref(), Some("srt" | "vtt")) {
        return Err(format!("subtitles {path:?}: .srt and .vtt are allowed"));
    }
    Ok(())
}

/// A language, as in BCP 47.
pub(crate) fn language(text: &str) -> Checked {
    let is_tag = (1..=35).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_tag.then_some(()).ok_or_else(|| format!("language {text:?}: such as en or pt-BR is allowed"))
}
