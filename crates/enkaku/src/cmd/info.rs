//! `enkaku info`: what a volume is and what was negotiated.

use std::process::ExitCode;

use backends::Location;
use daemon::mirror::report::bytes;
use iscsi::initiator::{RemoteDisk, SessionReport};
use path::PolicyConfig;
use serde_json::{Value, json};

use super::remote::{Connections, RemoteArgs, parse_location};
use super::say;

/// Shows a volume's capacity, and behind iSCSI its identity and the parameters negotiated
///
/// Over one connection, unless --connections asks for more.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(help = backends::FORMS, value_parser = parse_location)]
    url: Location,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // A few questions are no load; against a target without MC/S each connection is a session.
    let one = args.remote.connections == Connections::Auto && args.remote.policy.is_none();
    let volume = args.remote.open_with(&args.url, |config| {
        if one {
            *config = std::mem::take(config).policy(beginning_with_one());
            // A few questions teach nothing of the path.
            config.path_memory = None;
        }
    });
    let volume = volume.await?;
    if let Some(disk) = volume.disk() {
        disk.gathered().await; // the first command does not wait for the others
    }
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
        text(&report).iter().try_for_each(say)?;
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
        report["portal"] = session.portal.as_ref().map(ToString::to_string).into();
        report["chap"] = session.chap.map(|algorithm| algorithm.as_str()).into();
        report["chap_mutual"] = session.chap_mutual.into();
        let rtt = session.connections.iter().find_map(|connection| connection.tcp_rtt);
        report["rtt_us"] = rtt.map(|rtt| rtt.as_micros() as u64).into();
        report["negotiated"] = negotiated(session);
    }
}

/// The usual policy, so that as much is negotiated as for a transfer, which opens one connection.
fn beginning_with_one() -> PolicyConfig {
    let mut policy = PolicyConfig::default();
    if let PolicyConfig::Adaptive(adaptive) = &mut policy {
        adaptive.connections_initial = 1;
    }
    policy
}

/// The keys of RFC 7143 §13 as they were agreed, for the session and its first connection.
fn negotiated(session: &SessionReport) -> Value {
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

/// The report for a person.
fn text(report: &Value) -> Vec<String> {
    let number = |key: &str| report[key].as_u64().unwrap_or_default();
    let word = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
    let is = |key: &str| report[key].as_bool().unwrap_or_default();
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name:<12}{value}"));
    let is_unit = report["target"].is_string();
    match is_unit {
        true => line("volume", format!("{} LUN {}", word("target"), number("lun"))),
        false => line("volume", word("url")),
    }
    line("size", format!("{} ({} bytes)", bytes(number("size")), number("size")));
    let (logical, physical) = (number("block_size"), number("physical_block_size"));
    line("blocks", format!("{logical} bytes, physical {physical}"));
    let cache = if is("volatile_cache") { "write cache" } else { "no write cache" };
    let thin = if is("thin") { "thin" } else { "thick" };
    let writes = if is("read_only") { "read-only" } else { "writable" };
    line("kind", [writes, thin, cache].join(", "));
    if !is_unit {
        let can = ["flush", "fua", "zero", "extents"];
        let can: Vec<&str> = can.into_iter().filter(|what| is(&format!("can_{what}"))).collect();
        line("can", or_none(can.join(", ")));
        return lines;
    }
    line("device", format!("{} {} {}", word("vendor"), word("product"), word("revision")));
    line("serial", or_none(word("serial")));
    line("name", or_none(named(&word("device_name"))));
    let rtt = report["rtt_us"].as_u64();
    let rtt = rtt.map_or_else(String::new, |us| format!(", RTT {:.2} ms", us as f64 / 1e3));
    line("portal", format!("{}{rtt}", word("portal")));
    line("login", login(report));
    let connections = match (number("connections"), number("sessions")) {
        (1, _) => "1 connection".to_owned(),
        (connections, 1) => format!("{connections} connections of one session"),
        (connections, sessions) => format!("{connections} connections, {sessions} sessions"),
    };
    line("session", connections);
    lines.push("negotiated".to_owned());
    let keys = report["negotiated"].as_object().into_iter().flatten();
    lines.extend(keys.map(|(key, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("  {key:<32}{value}")
    }));
    lines
}

fn login(report: &Value) -> String {
    let mutual = report["chap_mutual"].as_bool().unwrap_or_default();
    match (report["chap"].as_str(), mutual) {
        (None, _) => "without CHAP".to_owned(),
        (Some(algorithm), false) => format!("CHAP with {algorithm}"),
        (Some(algorithm), true) => format!("CHAP with {algorithm}, mutual"),
    }
}

/// A designator in hex, with the name of its kind (SPC-4 §7.8.6.6: NAA 2, 3, 5 and 6 of these
/// lengths), as `/dev/disk/by-id` and multipath have it.
fn named(designator: &str) -> String {
    let is_hex = designator.bytes().all(|byte| byte.is_ascii_hexdigit());
    match (is_hex, designator.len(), designator.as_bytes().first()) {
        (true, 16, Some(b'2' | b'3' | b'5')) | (true, 32, Some(b'6')) => {
            format!("naa.{designator}")
        }
        _ => designator.to_owned(),
    }
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_reads_what_there_is_and_json_what_it_was() {
        let report = json!({
            "target": "iqn.2026-01.a:b", "lun": 3, "size": 67_108_864, "block_size": 512,
            "physical_block_size": 4096, "read_only": false, "volatile_cache": true, "thin": true,
            "vendor": "ENKAKU", "product": "DISK", "revision": "0001", "serial": "",
            "device_name": "6ab000000000000000000000000000f1", "sessions": 1, "connections": 1,
            "portal": "192.0.2.1:3260", "chap": "SHA3-256", "chap_mutual": true, "rtt_us": 50_120,
            "negotiated": {"HeaderDigest": "None", "MaxConnections": 64},
        });
        let expected = "volume      iqn.2026-01.a:b LUN 3
size        67.1 MB (67108864 bytes)
blocks      512 bytes, physical 4096
kind        writable, thin, write cache
device      ENKAKU DISK 0001
serial      none
name        naa.6ab000000000000000000000000000f1
portal      192.0.2.1:3260, RTT 50.12 ms
login       CHAP with SHA3-256, mutual
session     1 connection
negotiated
  HeaderDigest                    None
  MaxConnections                  64";
        assert_eq!(text(&report).join("\n"), expected);
    }
}
