//! The monitor without a terminal: text or JSON, line by line.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use tcpmon::row::Row;

use super::events::words;
use super::rounds::{Round, Rounds};
use super::units::{bits, bytes, cause, time};

/// Runs until it is stopped, nobody reads any more, or the count is reached.
pub(super) fn run(
    rounds: &mut Rounds,
    count: Option<u64>,
    json: bool,
    about: &str,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut done = 0;
    if let Some(events) = &rounds.events {
        events.announce();
    }
    let mut noted = None;
    while count.is_none_or(|count| done < count) && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(rounds.wait());
        let round = rounds.tick()?;
        if json && let Some(events) = &mut rounds.events {
            let lines = events.lines()?;
            if !lines.is_empty() && !print(&lines)? {
                break;
            }
        }
        let Some(round) = round else { continue };
        done += 1;
        let text = if json {
            let mut line = serde_json::to_string(&round)?;
            line.push('\n');
            line
        } else {
            if round.note != noted {
                noted.clone_from(&round.note);
                eprintln!("enkaku: {}", noted.as_deref().unwrap_or("all processes are visible"));
            }
            text(&round, about, done == 1)
        };
        if !print(&text)? {
            break;
        }
    }
    Ok(())
}

/// Whether somebody still reads.
fn print(text: &str) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

fn text(round: &Round, about: &str, first: bool) -> String {
    let mut text = String::new();
    if first {
        text += &format!(
            "{:>7} {:<12} {:<22} {:<22} {:>6} {:>6} {:>6} {:>5} {:>6} {:>5} {:>4}  LIMIT\n",
            "TIME",
            "PROCESS",
            "LOCAL",
            "REMOTE",
            "SENT",
            "RECV",
            "RTT",
            "CWND",
            "FLIGHT",
            "QUEUE",
            "RTX",
        );
    }
    if round.connections.is_empty() {
        return text + &format!("{:>6.1}s no connection ({about})\n", round.at_s);
    }
    for row in &round.connections {
        text += &line(row, round.at_s);
        if let Some(words) = words(row) {
            text += &format!("        events: {words}\n");
        }
    }
    text
}

fn line(row: &Row, at_s: f64) -> String {
    format!(
        "{at_s:>6.1}s {:<12} {:<22} {:<22} {:>6} {:>6} {:>6} {:>5} {:>6} {:>5} {:>4}  {}\n",
        row.process.as_ref().map_or("-", |owner| owner.comm.as_str()),
        row.connection.local.to_string(),
        row.connection.remote.to_string(),
        bits(row.sent_bytes_per_s),
        bits(row.received_bytes_per_s),
        time(row.rtt_us),
        bytes(row.cwnd_bytes),
        bytes(row.in_flight_bytes),
        bytes(row.send_queue_bytes.into()),
        row.retransmitted_segments,
        cause(row.cause),
    )
}
