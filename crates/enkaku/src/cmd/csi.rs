//! `enkaku csi`: the plugin of the Container Storage Interface.

use std::path::PathBuf;
use std::process::ExitCode;

use backends::Location;
use csi::{Controller, ControllerConfig, Node, NodeConfig, Services, StartError};
use iscsi::initiator::Config;

use super::target::SOCKET;
use super::{Usage, say, stop_signal};

/// The heading of options that a controller has.
const CONTROLLER: &str = "With --controller";
/// The heading of options that a node has.
const NODE: &str = "With --node";

/// Gives volumes of a target daemon to Kubernetes, by the Container Storage Interface: beside the
/// storage with --controller, on each machine with workloads with --node.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("role").required(true).multiple(true)
          .args(["controller", "node"]))]
pub(crate) struct Args {
    /// The Unix socket to listen on; one that a dead process has left is replaced.
    #[arg(long, value_name = "unix:///PATH", env = "CSI_ENDPOINT", value_parser = parse_endpoint)]
    endpoint: PathBuf,
    /// Create, delete, grow and keep volumes, and let nodes use them.
    #[arg(long, requires_all = ["portal", "folder"])]
    controller: bool,
    /// Attach, format and mount volumes here (as root).
    #[arg(long)]
    node: bool,
    /// The admin socket of the target daemon.
    #[arg(long, value_name = "PATH", default_value = SOCKET, env = "ENKAKU_TARGET_SOCKET",
          requires = "controller", help_heading = CONTROLLER)]
    target_admin: PathBuf,
    /// Where nodes reach that daemon: 192.0.2.1:3260, say.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_portal, requires = "controller", help_heading = CONTROLLER)]
    portal: Option<String>,
    /// Folder for the files of volumes, where the daemon has it, too. Snapshots and copies want a
    /// file system with reflinks (XFS, Btrfs).
    #[arg(long, value_name = "DIR", requires = "controller", help_heading = CONTROLLER)]
    folder: Option<PathBuf>,
    /// How the names of targets begin; each volume has one of its own.
    #[arg(long, value_name = "IQN", default_value = "iqn.2026-11.io.enkaku:csi",
          requires = "controller", help_heading = CONTROLLER)]
    target_base: String,
    /// What nodes have to prove: NAME of a table [chap.NAME] of the daemon's configuration. Its
    /// user and password reach them as a secret.
    #[arg(long, value_name = "NAME", requires = "controller", help_heading = CONTROLLER)]
    chap: Option<String>,
    /// What this node is called: a name, or an iSCSI name [default: the host's name].
    #[arg(long, value_name = "NAME", requires = "node", help_heading = NODE)]
    node_id: Option<String>,
    /// Folder for what is attached.
    #[arg(long, value_name = "DIR", default_value = "/run/enkaku-csi", requires = "node",
          help_heading = NODE)]
    run_folder: PathBuf,
    /// One more option of `enkaku attach`, such as --attach-option=--connections=8; may be
    /// repeated.
    #[arg(long, value_name = "OPTION", requires = "node", allow_hyphen_values = true,
          help_heading = NODE)]
    attach_option: Vec<String>,
}

fn parse_endpoint(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:"));
    let path = PathBuf::from(path.unwrap_or(text));
    match path.is_absolute() {
        true => Ok(path),
        false => Err("unix:///PATH is allowed".to_owned()),
    }
}

/// What stands in the URL of a volume.
fn parse_portal(text: &str) -> Result<String, String> {
    let url = format!("iscsi://{text}/iqn.2026-11.io.enkaku:csi/0").parse::<Location>();
    match url {
        Ok(_) if !text.contains(['/', '@', '?']) => Ok(text.to_owned()),
        _ => Err("ADDRESS or ADDRESS:PORT is allowed, as in 192.0.2.1:3260".to_owned()),
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let wrong = |error: StartError| Usage::error(error.to_string());
    let controller = match (args.controller, args.portal, args.folder) {
        (true, Some(portal), Some(folder)) => {
            let (admin, target_base, chap) = (args.target_admin, args.target_base, args.chap);
            let config = ControllerConfig { admin, portal, folder, target_base, chap };
            Some(Controller::new(config).map_err(wrong)?)
        }
        _ => None,
    };
    let node = match args.node {
        true => {
            let initiator = match args.node_id {
                Some(id) => csi::initiator_name(&id)
                    .map_err(|error| Usage::error(format!("--node-id: {error}")))?,
                None => Config::default().initiator_name,
            };
            let program = std::env::current_exe()?;
            let (run_folder, attach_options) = (args.run_folder, args.attach_option);
            let config = NodeConfig { initiator, run_folder, program, attach_options };
            Some(Node::new(config).map_err(wrong)?)
        }
        false => None,
    };
    let stop = async {
        if let Err(error) = stop_signal().await {
            tracing::warn!(%error, "signals");
        }
    };
    let endpoint = &args.endpoint;
    // If nobody reads stdout any more, the log says the same.
    let ready = || drop(say(format_args!("listening on unix://{}", endpoint.display())));
    csi::serve(endpoint, Services { controller, node }, ready, stop).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_sockets_of_this_machine() {
        for text in ["unix:///run/csi.sock", "unix:/run/csi.sock", "/run/csi.sock"] {
            assert_eq!(parse_endpoint(text), Ok(PathBuf::from("/run/csi.sock")), "{text}");
        }
        for text in ["", "csi.sock", "unix://csi.sock", "tcp://127.0.0.1:1"] {
            assert!(parse_endpoint(text).is_err(), "{text}");
        }
    }

    #[test]
    fn portals_are_parts_of_urls() {
        for text in ["192.0.2.1", "192.0.2.1:3260", "[2001:db8::1]:3260", "storage.example:860"] {
            assert_eq!(parse_portal(text).as_deref(), Ok(text));
        }
        for text in ["", "h:iscsi", "h/x", "me@h", "me%secret@h", "h:70000"] {
            assert!(parse_portal(text).is_err(), "{text}");
        }
    }
}
