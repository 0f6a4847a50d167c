//! The command line as a whole: its commands in groups, by use, and what `--version` tells.
//!
//! clap knows headings for options, not for commands, so that the overview is written here.

use std::ffi::OsString;
use std::fmt::Write;

use clap::{Command, CommandFactory};

use crate::Cli;

/// Columns of the overview.
const WIDTH: usize = 80;
/// Columns before what a command does.
const INDENT: usize = 15;

/// Commands by use; what is in none of the groups is shown below them.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Use a volume",
        &["discover", "info", "attach", "detach", "copy", "ls", "cat", "media", "bench", "mirror"],
    ),
    ("Serve volumes", &["serve", "target", "csi", "isns", "secret"]),
    ("Watch and judge", &["doctor", "monitor", "diagnose", "nic", "conformance"]),
    ("Try in a lab", &["wan", "plan", "tune"]),
    ("This program", &["completions"]),
];

macro_rules! long_version {
    ($features:literal) => {
        concat!(
            env!("CARGO_PKG_VERSION"),
            "\ncommit    ",
            env!("ENKAKU_COMMIT"),
            "\ndate      ",
            env!("ENKAKU_DATE"),
            "\ntarget    ",
            env!("ENKAKU_TARGET"),
            "\nfeatures  ",
            $features
        )
    };
}

/// `enkaku --version`.
pub(crate) const LONG_VERSION: &str = if tcpmon::events::BUILT {
    long_version!("eBPF events")
} else {
    long_version!("no eBPF events (built without clang)")
};

/// All commands and options.
pub(crate) fn command() -> Command {
    let mut command = Cli::command();
    let template = template(&mut command);
    command.help_template(template)
}

fn template(command: &mut Command) -> String {
    // Names and words are complete only then.
    command.build();
    let header = *command.get_styles().get_header();
    let name = *command.get_styles().get_literal();
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n\n");
    for (heading, names) in groups(command) {
        let _ = writeln!(text, "{header}{heading}:{header:#}");
        for one in names {
            let Some(about) = command.find_subcommand(&one).and_then(Command::get_about) else {
                continue;
            };
            let about =
                wrapped(&about.to_string(), WIDTH - INDENT).join(&format!("\n{:INDENT$}", ""));
            let space = INDENT - 2;
            let _ = writeln!(text, "  {name}{one:<space$}{name:#}{about}");
        }
        text.push('\n');
    }
    let _ = write!(text, "{header}Options:{header:#}\n{{options}}\n\n");
    text.push_str("`enkaku help COMMAND` tells more of one of them.");
    text
}

/// The groups, and a last one of what is in none of them.
fn groups(command: &Command) -> Vec<(&'static str, Vec<String>)> {
    let known = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let mut groups: Vec<(&str, Vec<String>)> = GROUPS
        .iter()
        .map(|(heading, names)| (*heading, names.iter().map(ToString::to_string).collect()))
        .collect();
    let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
    let names = visible.map(Command::get_name).filter(|name| *name != "help" && !known(name));
    let rest: Vec<String> = names.map(ToOwned::to_owned).collect();
    if !rest.is_empty() {
        groups.push(("More", rest));
    }
    groups
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            let _ = write!(line, " {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// `help --help` is help of help, at every level of commands; clap takes `--help` for the name of a
/// command there. `help copy` is `copy --help`, where clap knows what a mistyped name is like.
pub(crate) fn help_of_help(
    command: &Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut level = command;
    for at in 1..arguments.len() {
        let word = arguments[at].to_str().unwrap_or_default();
        if word == "help" && level.has_subcommands() {
            match arguments.get(at + 1).and_then(|next| next.to_str()) {
                Some("--help" | "-h") => arguments[at + 1] = "help".into(),
                None | Some("help") => {}
                Some(_) => {
                    arguments.remove(at);
                    arguments.push("--help".into());
                }
            }
            break;
        }
        match level.find_subcommand(word) {
            Some(next) => level = next,
            None => break,
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_shown_once() {
        let command = Cli::command();
        let shown: Vec<String> =
            groups(&command).into_iter().flat_map(|(_, names)| names).collect();
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        for name in visible.map(Command::get_name) {
            assert_eq!(shown.iter().filter(|one| *one == name).count(), 1, "{name}");
        }
        for name in GROUPS.iter().flat_map(|(_, names)| *names) {
            assert!(command.find_subcommand(name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_overview_fits_a_terminal() {
        let text = command().render_help().to_string();
        assert!(text.contains("\nServe volumes:\n  serve        Serves files"), "{text}");
        assert!(text.contains("--version"), "{text}");
        // Options are wrapped by clap, at the width that there is.
        let ours = text.lines().take_while(|line| *line != "Options:");
        let long = ours.filter(|line| line.chars().count() > WIDTH).collect::<Vec<_>>();
        assert!(long.is_empty(), "{long:?}");
    }

    #[test]
    fn help_has_help_at_every_level() {
        let command = command();
        let said = |words: &str| {
            let words = help_of_help(&command, words.split(' ').map(OsString::from));
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(said("enkaku help --help"), "enkaku help help");
        assert_eq!(said("enkaku target help -h"), "enkaku target help help");
        assert_eq!(said("enkaku help copy"), "enkaku copy --help");
        assert_eq!(said("enkaku help target run"), "enkaku target run --help");
        assert_eq!(said("enkaku help"), "enkaku help");
        // A file of that name.
        assert_eq!(said("enkaku copy help --help"), "enkaku copy help --help");
        let asked = help_of_help(&command, ["enkaku", "help", "--help"].map(OsString::from));
        let shown = command.try_get_matches_from(asked).map_err(|error| error.kind());
        assert_eq!(shown.err(), Some(clap::error::ErrorKind::DisplayHelp));
    }

    #[test]
    fn the_version_tells_commit_date_target_and_features() {
        let lines: Vec<&str> =
            LONG_VERSION.lines().map(|line| line.split(' ').next().unwrap_or("")).collect();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(lines, [version, "commit", "date", "target", "features"]);
    }
}
