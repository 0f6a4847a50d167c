//! `enkaku info`: what a volume is and what was negotiated.

use std::process::ExitCode;

use block::BlockDevice;
use iscsi::initiator::Url;
use serde_json::json;

use super::remote::RemoteArgs;

/// Shows a volume's capacity, identity and the parameters negotiated with its target.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// iscsi://[user[%password]@]host[:port]/target-iqn/lun
    url: Url,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let disk = args.remote.connect(&args.url).await?;
    let info = disk.info();
    let identity = disk.identity();
    let session = disk.session_params();
    let connection = disk.connection_params();
    let report = json!({
        "target": args.url.target_name(),
        "lun": args.url.lun(),
        "size": info.size,
        "block_size": info.block_size,
        "physical_block_size": info.preferred_block_size,
        "read_only": info.read_only,
        "volatile_cache": info.volatile_cache,
        "thin": info.can_trim,
        "vendor": identity.vendor,
        "product": identity.product,
        "revision": identity.revision,
        "serial": identity.serial,
        "connections": disk.connection_count(),
        "negotiated": {
            "MaxConnections": session.max_connections,
            "InitialR2T": session.initial_r2t,
            "ImmediateData": session.immediate_data,
            "FirstBurstLength": session.first_burst_length,
            "MaxBurstLength": session.max_burst_length,
            "MaxOutstandingR2T": session.max_outstanding_r2t,
            "ErrorRecoveryLevel": session.error_recovery_level,
            "DefaultTime2Wait": session.default_time2wait,
            "DefaultTime2Retain": session.default_time2retain,
            "HeaderDigest": connection.header_digest.as_str(),
            "DataDigest": connection.data_digest.as_str(),
            "MaxRecvDataSegmentLength": connection.max_recv_data_segment_length,
            "TargetMaxRecvDataSegmentLength": connection.max_send_data_segment_length,
        },
    });
    disk.close().await;
    if args.json {
        println!("{report}");
    } else {
        print_tree(&report, 0);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_tree(value: &serde_json::Value, indent: usize) {
    let Some(object) = value.as_object() else { return };
    for (key, value) in object {
        if value.is_object() {
            println!("{:indent$}{key}", "");
            print_tree(value, indent + 2);
        } else {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            println!("{:indent$}{key:<32} {text}", "");
        }
    }
}
