//! `enkaku target sessions`: who is connected, as a table or as JSON; and ending a session.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use daemon::admin::{Request, Session};

use super::table::bytes;
use super::{SocketArgs, complain, say, talk};

#[derive(clap::Args, Debug)]
pub(super) struct SessionsArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// End the session with this number instead.
    #[arg(long, value_name = "ID", conflicts_with = "json")]
    drop: Option<u16>,
}

pub(super) async fn run(args: SessionsArgs) -> anyhow::Result<ExitCode> {
    let request = args.drop.map_or(Request::Sessions {}, |id| Request::Drop { id });
    let answer = talk(&args.socket.socket, request).await?;
    if !answer.ok {
        return Ok(complain(answer.errors));
    }
    let sessions = answer.sessions.unwrap_or_default();
    match (args.drop, args.json) {
        (Some(id), _) => say(format_args!("session {id} is dropped"))?,
        (None, true) => say(serde_json::to_string_pretty(&sessions)?)?,
        (None, false) => say(table(&sessions, now()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const HEADINGS: [&str; 9] =
    ["ID", "INITIATOR", "TARGET", "PORTAL", "CONNS", "PEER", "AGE", "READ", "WRITTEN"];

fn table(sessions: &[Session], now: u64) -> String {
    let row = |session: &Session| {
        let peer = session.connections.first().map_or("-", |connection| &connection.peer);
        [
            session.id.to_string(),
            session.initiator.clone(),
            session.target.clone().unwrap_or_else(|| "(discovery)".to_owned()),
            session.portal.clone(),
            session.connections.len().to_string(),
            peer.to_owned(),
            age(now.saturating_sub(session.since)),
            bytes(session.read_bytes),
            bytes(session.written_bytes),
        ]
    };
    super::table::table(HEADINGS, sessions.iter().map(row).collect())
}

/// `5s`, `12m`, `3h`, `40d`.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let json = serde_json::json!({
            "id": 7, "initiator": "iqn.2026-11.org.example:host", "isid": "00023d000001",
            "initiator_alias": null, "target": null, "portal": "lan", "user": null, "since": 1000,
            "commands": 0, "read_bytes": 1536, "written_bytes": 3u64 << 30, "memory_bytes": 0,
            "parameters": {}, "connections": [],
        });
        let session: Session = serde_json::from_value(json).unwrap();
        let table = table(&[session], 8200);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines,
            [
                "ID  INITIATOR                     TARGET       PORTAL  CONNS  PEER  AGE  READ  WRITTEN",
                "7   iqn.2026-11.org.example:host  (discovery)  lan     0      -     2h   1.5k  3.0G",
            ]
        );
    }

    #[test]
    fn ages_and_sizes_are_short() {
        assert_eq!([0, 59, 60, 3599, 86_400].map(age), ["0s", "59s", "1m", "59m", "1d"]);
        assert_eq!([0, 1023, 1024].map(bytes), ["0", "1023", "1.0k"]);
        assert_eq!(bytes(u64::MAX), "16384.0P");
    }
}
