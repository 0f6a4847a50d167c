//! `enkaku media share`: links to one video, which work without an account until they expire.

use std::process::ExitCode;
use std::time::Duration;

use media::{Catalogue, Shares, Video};
use wanlab::units;

use super::{StateArgs, told};
use crate::cmd::{Usage, say};

/// Makes a link to one video, for people without an account, until it expires or is taken back.
///
/// A running server knows of it within a second or two.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example: enkaku media share \"Kyoto in Spring\" --for 3d --catalogue catalogue.toml"
)]
pub(super) struct Args {
    /// Its title, path or identifier, if only one video has it.
    #[arg(value_name = "VIDEO", required_unless_present_any = ["list", "revoke"],
          requires = "time")]
    video: Option<String>,
    /// How long the link works: 3d, 12h; 366 days at most.
    #[arg(long = "for", value_name = "TIME", value_parser = units::parse_duration)]
    time: Option<Duration>,
    /// What the address begins with: scheme, host and port [default: what the server printed].
    #[arg(long, value_name = "URL")]
    address: Option<String>,
    /// Lists the links that work, by name, end and video.
    #[arg(long, conflicts_with_all = ["video", "revoke", "time"])]
    list: bool,
    /// Takes a link back, by its name in the list.
    #[arg(long, value_name = "LINK", conflicts_with_all = ["video", "time"])]
    revoke: Option<String>,
    #[command(flatten)]
    state: StateArgs,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = args.state.folder()?;
    let shares = Shares::new(&folder);
    if let Some(id) = &args.revoke {
        shares.remove(id).map_err(told)?;
        return Ok(ExitCode::SUCCESS);
    }
    if super::is_directory(&args.state.catalogue) && !args.list {
        let why = "the catalogue is in a directory: an owner's page makes links (/owner)";
        return Err(Usage::error(why));
    }
    let catalogue = match super::is_directory(&args.state.catalogue) {
        true => Ok(Catalogue::default()), // titles are the server's to know
        false => Catalogue::load(&args.state.catalogue),
    };
    let catalogue = catalogue.map_err(|error| Usage::error(error.to_string()))?;
    let (Some(wanted), Some(time)) = (&args.video, args.time) else {
        for (id, share) in shares.list().map_err(told)? {
            let title = catalogue.video(&share.video).map_or("?", |video| video.title.as_str());
            say(format_args!("{id}  until {}  {title}", media::time_text(share.until)))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let video = choose(&catalogue, wanted)?;
    let address = args.address.clone().or_else(|| folder.address());
    let Some(address) = address else {
        let why = "no server has run with this state folder yet: give its --address https://…";
        return Err(Usage::error(why));
    };
    let (id, token) = shares.add(&video.id, time).map_err(told)?;
    say(format_args!("{}/s/{token}", address.trim_end_matches('/')))?;
    tracing::info!(id, title = video.title, "a link");
    Ok(ExitCode::SUCCESS)
}

/// The one video that is meant.
fn choose<'a>(catalogue: &'a Catalogue, wanted: &str) -> anyhow::Result<&'a Video> {
    if let Some(video) = catalogue.video(wanted) {
        return Ok(video);
    }
    let is_it = |video: &&Video| {
        video.title.eq_ignore_ascii_case(wanted)
            || video.path.trim_matches('/') == wanted.trim_matches('/')
    };
    let found: Vec<&Video> = catalogue.videos().iter().filter(is_it).collect();
    match found[..] {
        [video] => Ok(video),
        [] => {
            let near: Vec<&str> =
                catalogue.search(wanted).take(5).map(|video| video.title.as_str()).collect();
            let why = format!("the catalogue has no video {wanted:?}");
            Err(Usage::error(match &near[..] {
                [] => why,
                near => format!("{why}; what has these words: {}", near.join(", ")),
            }))
        }
        ref several => {
            let each: Vec<String> =
                several.iter().map(|one| format!("{} ({})", one.id, one.path)).collect();
            let each = each.join(", ");
            Err(Usage::error(format!("several videos are called so; name one of {each}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_video_is_meant_by_title_path_or_identifier() {
        let text = "[[home]]\nname = \"a\"\nvolume = \"a.img\"\n\
                    [[video]]\ntitle = \"One\"\nhome = \"a\"\npath = \"/f/one.mp4\"\n\
                    [[video]]\ntitle = \"Two\"\nhome = \"a\"\npath = \"/f/two.mp4\"\n\
                    [[video]]\ntitle = \"Two\"\nhome = \"a\"\npath = \"/f/three.mp4\"\n";
        let catalogue = Catalogue::parse(text, Path::new("c.toml")).unwrap();
        let path = |wanted: &str| choose(&catalogue, wanted).map(|one| one.path.as_str());
        assert_eq!(path("one").unwrap(), "/f/one.mp4");
        assert_eq!(path("f/three.mp4").unwrap(), "/f/three.mp4");
        let id = &catalogue.videos()[0].id;
        assert_eq!(path(id).unwrap(), "/f/one.mp4");
        let said = |wanted: &str| path(wanted).unwrap_err().to_string();
        assert!(said("two").contains("/f/two.mp4") && said("two").contains("several"));
        assert!(said("x").ends_with("no video \"x\""), "{}", said("x"));
        assert!(said("mp4 one").ends_with("these words: One"), "{}", said("mp4 one"));
    }
}
