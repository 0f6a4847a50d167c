//! A catalogue's file that begins with what is known from elsewhere, so that what has not changed
//! is not looked at again.

use std::path::Path;

use super::edit::{Edit, Entry};
use super::probe::Found;
use super::{POSTERS, PublishError, beside, save_picture};
use crate::catalogue::{HomeSpec, Video};

/// Writes a catalogue of one home and its videos, with their pictures beside it.
///
/// # Errors
/// It cannot be written.
pub(crate) fn seed(path: &Path, home: &HomeSpec, videos: &[Video]) -> Result<(), PublishError> {
    let mut edit = Edit::load(path)?;
    edit.add_home(home)?;
    for video in videos {
        let poster = format!("{POSTERS}/{}.jpg", video.id);
        if let Some(picture) = &video.thumbnail {
            save_picture(&beside(path, &poster), picture)?;
        }
        let found = Found {
            title: None,
            duration_s: video.duration_s,
            container: video.container.clone(),
            video_codec: video.video_codec.clone(),
            audio_codec: video.audio_codec.clone(),
            created: None,
        };
        edit.put_video(&Entry {
            home: &home.name,
            path: &video.path,
            title: &video.title,
            found: &found,
            bytes: video.bytes,
            recorded: video.recorded,
            poster: video.thumbnail.as_ref().map(|_| poster.as_str()),
            subtitles: &video.subtitles,
            tags: &video.tags,
            version: video.version.as_deref().unwrap_or_default(),
        })?;
    }
    edit.save()?;
    Ok(())
}
