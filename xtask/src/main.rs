//! Checks of the repository itself, `cargo xtask deps`, `cargo xtask tidy` and `cargo xtask
//! protocol`, and `cargo xtask dist`, which makes the packages.
//!
//! The checks also run as tests of this package, so `cargo test` fails where a rule is broken.
//! Nothing here is part of the product.

mod deps;
mod dist;
mod pages;
mod protocol;
#[cfg(test)]
mod schema;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask deps|tidy|protocol [--write]|dist [--binary PATH|--compare] [--out DIR]\n\
    deps      who depends on whom in the workspace, against the rule of ARCHITECTURE.md\n\
    tidy      file headers, lengths of files and functions, paths of somebody's machine; pages\n\
              of docs/ that no link leads to\n\
    protocol  requirements of RFC 7143 against the citations in code and tests, and against the\n\
              matrix in PROTOCOL.md, which --write brings up to date\n\
    dist      tarball, Debian package, container image, symbols, SBOM, checksums\n\
              (docs/install.md); --compare builds twice, byte by byte";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if std::env::args().nth(1).as_deref() == Some("dist") {
        return dist(arguments.skip(1));
    }
    let outcome = match (arguments.next().as_deref(), arguments.next().as_deref()) {
        (Some("deps"), None) => deps::check(root()),
        (Some("tidy"), None) => tidy::check(root()).and_then(|mut found| {
            found.extend(pages::check(root())?);
            Ok(found)
        }),
        (Some("protocol"), None) => protocol::check(root()),
        (Some("protocol"), Some("--write")) => protocol::write(root()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(violations) if violations.is_empty() => ExitCode::SUCCESS,
        Ok(violations) => {
            violations.iter().for_each(|violation| eprintln!("{violation}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dist(arguments: impl Iterator<Item = String>) -> ExitCode {
    match dist::run(root(), arguments) {
        Ok(made) => {
            made.iter().for_each(|name| println!("{name}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
