//! Nobody's data is overwritten unasked: what commands that write to a volume, a block device or a
//! file do first.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use block::BlockDevice;
use block::backend::PaddedFile;
use block::content::{Content, LOOKED_AT, look};

use super::Usage;

/// What the user allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayOverwrite {
    /// Anything (`--force`): it is not even looked at.
    Forced,
    /// What holds nothing; for the rest, a terminal is asked if there is one.
    OnAYes,
    /// What holds nothing: standard input has other things to say.
    Blank,
}

/// Lets a device be overwritten that holds nothing, or that the user gives up.
///
/// # Errors
/// [`Usage`] says what is there; or it cannot be read.
pub(crate) async fn device(
    device: &dyn BlockDevice,
    name: &str,
    may: MayOverwrite,
) -> anyhow::Result<()> {
    if device.info().read_only {
        return Err(Usage::error(format!("{name} is read-only for us; its target says so")));
    }
    if may == MayOverwrite::Forced {
        return Ok(());
    }
    let looked = look(device).await;
    match looked.with_context(|| format!("cannot see what {name} holds (--force does not look)"))? {
        Content::Blank => Ok(()),
        Content::Found(what) => {
            give_up(&format!("{name} {what}"), &format!(" (looked at: {LOOKED_AT})"), may)
        }
    }
}

/// As [`device`], for a regular file that is not empty: that it exists is enough.
///
/// # Errors
/// [`Usage`] says what is there.
pub(crate) async fn existing_file(path: &Path, may: MayOverwrite) -> anyhow::Result<()> {
    if may == MayOverwrite::Forced {
        return Ok(());
    }
    let shown = path.display();
    let found = match PaddedFile::open(path, 512) {
        Ok(file) => look(&file).await.unwrap_or(Content::Blank),
        Err(_) => Content::Blank, // whoever cannot read it may not know what is in it
    };
    let what = match found {
        Content::Blank => format!("{shown} exists"),
        Content::Found(what) => format!("{shown} exists and {what}"),
    };
    give_up(&what, "", may)
}

/// As [`device`], where the caller has looked: `what` is there.
///
/// # Errors
/// [`Usage`] says what is there.
pub(crate) fn ask(what: &str, may: MayOverwrite) -> anyhow::Result<()> {
    match may {
        MayOverwrite::Forced => Ok(()),
        _ => give_up(what, "", may),
    }
}

fn give_up(what: &str, looked_at: &str, may: MayOverwrite) -> anyhow::Result<()> {
    if may == MayOverwrite::OnAYes && std::io::stdin().is_terminal() {
        let mut terminal = std::io::stderr();
        write!(terminal, "{what}. Overwrite it? [y/N] ").and_then(|()| terminal.flush())?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
            return Ok(());
        }
        return Err(Usage::error("not overwritten"));
    }
    Err(Usage::error(format!("{what}; give --force to overwrite it{looked_at}")))
}
