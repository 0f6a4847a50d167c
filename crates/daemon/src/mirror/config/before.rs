//! What the configuration says of the command before a leg's image is written over.

use std::path::Path;
use std::time::Duration;

use crate::config::reader::{Section, list, string, time};
use crate::mirror::hook::{Hook, TIMEOUT};
use crate::toml_text::quoted;

/// Longest time for the command that is taken for meant.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// `before_resync` and `before_resync_timeout`.
pub(super) fn hook(section: &mut Section<'_, '_>) -> Option<Hook> {
    let given = section.has("before_resync");
    let command = section.get("before_resync", |value| {
        let command = list(string)(value)?;
        match command.first().map(Path::new) {
            Some(program) if program.is_absolute() => Ok(command),
            Some(program) => {
                let program = program.display();
                Err(format!("{program} is relative; a path that begins with / is needed"))
            }
            None => Err("is empty; the path of a program, and its arguments, are needed".into()),
        }
    });
    let timeout = section.get("before_resync_timeout", time(TIMEOUT_MAX));
    if timeout.is_some() && !given {
        section.complain("before_resync_timeout is for before_resync, which is missing");
    }
    Some(Hook { command: command?, timeout: timeout.unwrap_or(TIMEOUT) })
}

/// Their lines.
pub(super) fn hook_toml(hook: &Hook) -> String {
    let words: Vec<String> = hook.command.iter().map(|word| quoted(word)).collect();
    let (words, timeout_ms) = (words.join(", "), hook.timeout.as_millis());
    format!("before_resync = [{words}]\nbefore_resync_timeout = \"{timeout_ms}ms\"\n")
}
