//! The disk at home: an ext4 with a test picture and the user's videos, made without mounting.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::process::Command;

use crate::cmd::Usage;

/// Folder of the videos, from the root of the disk.
pub(super) const VIDEOS: &str = "/films";
/// Length of the clip that is made, and how often it is repeated.
const CLIP_S: &str = "20";
const REPEATED: &str = "2";
/// What a phone records, and a byte rate that does not vary, so that the line has something to do.
const PICTURE: &str = "testsrc2=size=640x360:rate=25";
const SOUND: &str = "sine=frequency=440";
const H264: [&str; 8] =
    ["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-g", "25"];
const RATE: [&str; 8] =
    ["-b:v", "7800k", "-minrate", "7800k", "-maxrate", "7800k", "-bufsize", "7800k"];
const FILLED_UP: [&str; 2] = ["-x264-params", "nal-hrd=cbr"];
const SUBTITLES: &str = "1\n00:00:00,000 --> 00:00:10,000\nA test picture, from a disk at home\n";
/// Room on the disk besides its files, for tables and journal of the file system, in bytes.
const SPARE: u64 = 64 << 20;
/// Bytes of a block of the file system.
const BLOCK: u64 = 4096;

/// Makes the disk in `folder`; its path.
pub(super) async fn make(folder: &Path, videos: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let root = folder.join("root");
    let films = root.join(VIDEOS.trim_start_matches('/'));
    std::fs::create_dir_all(&films)?;
    // First: a mistyped name should not cost the time of a picture.
    if let Some(none) = videos.iter().find(|video| !video.is_file()) {
        return Err(Usage::error(format!("{} is not a file", none.display())));
    }
    test_picture(folder, &films).await?;
    for video in videos {
        put(video, &films)?;
    }
    let disk = folder.join("home.img");
    let size = used(&films)?;
    let size = (size + size / 20 + SPARE).next_multiple_of(BLOCK);
    std::fs::File::create(&disk)?.set_len(size)?;
    let block = BLOCK.to_string();
    let words = ["-q", "-F", "-t", "ext4", "-b", &block, "-m", "0", "-L", "attic", "-d"];
    let mke2fs = Command::new("mke2fs");
    run(mke2fs, words.map(OsStr::new).into_iter().chain([root.as_os_str(), disk.as_os_str()]))
        .await?;
    std::fs::remove_dir_all(&root)?;
    Ok(disk)
}

/// A file of the user's, under its name. Behind everything that writes here: it may be a link, and
/// the file itself that is written to.
fn put(video: &Path, films: &Path) -> anyhow::Result<()> {
    let shown = video.display();
    let to = films.join(video.file_name().unwrap_or_default());
    if to.exists() {
        return Err(Usage::error(format!("{shown}: there is another one of this name")));
    }
    // A link to a symbolic link would be one on the disk, too, and lead nowhere.
    let video = video.canonicalize()?;
    let linked = std::fs::hard_link(&video, &to);
    linked.or_else(|_| std::fs::copy(&video, &to).map(drop)).with_context(|| shown.to_string())
}

/// The test picture as MP4, and the same in a container that no browser plays.
async fn test_picture(folder: &Path, films: &Path) -> anyhow::Result<()> {
    let clip = folder.join("clip.mp4");
    let mut words: Vec<&OsStr> = Vec::new();
    for source in [PICTURE, SOUND] {
        words.extend(["-f", "lavfi", "-t", CLIP_S, "-i", source].map(OsStr::new));
    }
    words.extend(H264.iter().chain(&RATE).chain(&FILLED_UP).map(OsStr::new));
    words.extend(["-c:a", "aac", "-b:a", "128k"].map(OsStr::new));
    words.push(clip.as_os_str());
    ffmpeg(words).await?;
    for (name, title) in [("Test picture.mp4", "Test picture"), ("Camcorder.ts", "In MPEG-TS")] {
        let to = films.join(name);
        let title = format!("title={title}");
        let mut words = ["-stream_loop", REPEATED, "-i"].map(OsStr::new).to_vec();
        words.push(clip.as_os_str());
        words.extend(["-c", "copy", "-movflags", "+faststart", "-metadata"].map(OsStr::new));
        words.extend([OsStr::new(&title), to.as_os_str()]);
        ffmpeg(words).await?;
    }
    std::fs::remove_file(clip)?;
    std::fs::write(films.join("Test picture.en.srt"), SUBTITLES)?;
    Ok(())
}

async fn ffmpeg(words: Vec<&OsStr>) -> anyhow::Result<()> {
    let first = ["-v", "error", "-nostdin", "-y"].map(OsStr::new);
    run(Command::new("ffmpeg"), first.into_iter().chain(words)).await
}

async fn run<'a>(
    mut command: Command,
    words: impl IntoIterator<Item = &'a OsStr>,
) -> anyhow::Result<()> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    // mke2fs is where users have no path.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.kill_on_drop(true).output().await;
    let output = output.with_context(|| {
        format!("{name} cannot be run (in Debian, the packages ffmpeg and e2fsprogs)")
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name}: {}: {}", output.status, said.lines().last().unwrap_or_default());
    }
    Ok(())
}

fn used(folder: &Path) -> std::io::Result<u64> {
    let files = std::fs::read_dir(folder)?;
    files.map(|file| Ok(file?.metadata()?.len())).sum()
}
