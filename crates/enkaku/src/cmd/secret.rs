//! `enkaku secret`: a CHAP secret, made of random bits of the operating system (RFC 7143 §9.2.1).

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use iscsi_proto::login::chap::{SECRET_BYTES, secret_text};

use super::{Usage, say};

/// Make a CHAP secret of 128 random bits
///
/// As text of 32 hexadecimal digits, which every target and initiator takes. With FILE it is
/// written there, readable by its owner only, and printed nowhere; a file that exists is left as it
/// is.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: enkaku secret alice.secret")]
pub(crate) struct Args {
    /// Where it is written, instead of stdout.
    file: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let secret = generate()?;
    match &args.file {
        Some(path) => write(path, &secret)?,
        None => say(secret)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn generate() -> anyhow::Result<String> {
    let mut random = [0; SECRET_BYTES];
    getrandom::fill(&mut random).map_err(std::io::Error::other).context("no random bits")?;
    Ok(secret_text(random))
}

fn write(path: &Path, secret: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let mut file =
        options.write(true).create_new(true).mode(0o600).open(path).with_context(|| {
            Usage(format!("cannot create the password file {}", path.display()))
        })?;
    writeln!(file, "{secret}").with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cmd::read_secret;

    //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
    //= type=test
    //# Implementations MUST support the use of up to 128-bit random CHAP secrets, including the means
    //# to generate such secrets and to accept them from an external generation source.
    #[test]
    fn secrets_differ_and_their_files_are_their_owners_alone() {
        let folder = std::env::temp_dir().join(format!("enkaku-secret-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("alice");
        run(&Args { file: Some(path.clone()) }).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        let first = read_secret(&path);
        let again = run(&Args { file: Some(path.clone()) });
        let kept = read_secret(&path);
        std::fs::remove_dir_all(&folder).unwrap();
        let first = first.unwrap();
        assert_eq!(mode & 0o777, 0o600);
        assert!(again.is_err(), "the file is there");
        assert_eq!(kept.unwrap(), first, "and stays as it is");
        assert_eq!(first.len(), 32);
        assert_ne!(*first, generate().unwrap());
    }
}
