//! `enkaku info`: what a volume is and what was negotiated.

use std::process::ExitCode;

use backends::Location;
use iscsi::initiator::{RemoteDisk, SessionReport};
use serde_json::{Value, json};

use super::remote::{LOCATION_HELP, RemoteArgs, parse_location};
use super::say;

/// Shows a volume's capacity, and behind iSCSI its identity and the parameters negotiated with its
/// target.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(help = LOCATION_HELP, value_parser = parse_location)]
    url: Location,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let volume = args.remote.open(&args.url).await?;
    let info = volume.device().info();
    let mut report = json!({
        "size": info.size,
        "block_size": info.block_size,
        "physical_block_size": info.preferred_block_size,
        "read_only": info.read_only,
        "volatile_cache": info.volatile_cache,
        "thin": info.can_trim,
        "connections": volume.backend().connection_count(),
    });
    match (&args.url, volume.disk()) {
        (Location::Iscsi(url), Some(disk)) => {
            report["target"] = json!(url.target);
            report["lun"] = json!(url.lun);
            of_unit(&mut report, disk);
        }
        (location, _) => {
            report["url"] = json!(location.to_string());
            report["can_flush"] = json!(info.can_flush);
            report["can_fua"] = json!(info.can_fua);
            report["can_zero"] = json!(info.can_zero);
            report["can_extents"] = json!(info.can_extents);
        }
    }
    volume.close_unwritten().await?;
    if args.json {
        say(&report)?;
    } else {
        print_tree(&report, 0)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What only a logical unit of a target tells.
fn of_unit(report: &mut Value, disk: &RemoteDisk) {
    let identity = disk.identity();
    report["vendor"] = json!(identity.vendor);
    report["product"] = json!(identity.product);
    report["revision"] = json!(identity.revision);
    report["serial"] = json!(identity.serial);
    report["device_name"] = json!(identity.name);
    let sessions = disk.sessions();
    report["sessions"] = json!(sessions.len());
    if let Some(session) = sessions.first() {
        report["negotiated"] = negotiated(session);
    }
}

/// The keys of RFC 7143 §13 as they were agreed, for the session and its first connection.
fn negotiated(session: &SessionReport) -> serde_json::Value {
    let params = &session.params;
    let mut keys = json!({
        "MaxConnections": params.max_connections,
        "InitialR2T": params.initial_r2t,
        "ImmediateData": params.immediate_data,
        "FirstBurstLength": params.first_burst_length,
        "MaxBurstLength": params.max_burst_length,
        "MaxOutstandingR2T": params.max_outstanding_r2t,
        "ErrorRecoveryLevel": params.error_recovery_level,
        "DefaultTime2Wait": params.default_time2wait,
        "DefaultTime2Retain": params.default_time2retain,
        "CommandWindow": session.window,
    });
    if let Some(connection) = session.connections.first() {
        let params = &connection.params;
        keys["HeaderDigest"] = params.header_digest.as_str().into();
        keys["DataDigest"] = params.data_digest.as_str().into();
        keys["MaxRecvDataSegmentLength"] = params.max_recv_data_segment_length.into();
        keys["TargetMaxRecvDataSegmentLength"] = params.max_send_data_segment_length.into();
    }
    keys
}

fn print_tree(value: &serde_json::Value, indent: usize) -> anyhow::Result<()> {
    let Some(object) = value.as_object() else { return Ok(()) };
    for (key, value) in object {
        if value.is_object() {
            say(format_args!("{:indent$}{key}", ""))?;
            print_tree(value, indent + 2)?;
        } else {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            say(format_args!("{:indent$}{key:<32} {text}", ""))?;
        }
    }
    Ok(())
}
