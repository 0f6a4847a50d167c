//! `enkaku diagnose`: names what limits an iSCSI transfer, of any initiator and target.

pub(super) mod live;
pub(super) mod packets;
mod pcap;
mod print;

use std::path::PathBuf;
use std::process::ExitCode;

/// Name what limits an iSCSI transfer, of any initiator and target
///
/// Says why, what to change, and the throughput to expect of it; causes: send_buffer,
/// receive_window, congestion_loss, congestion_window, r2t, queue_depth, storage, line_rate,
/// application. Exit code 3 if there was no transfer to judge.
///
/// Without --pcap it watches connections of this host from beside, whoever made them: nothing is
/// sent, nothing is changed, and no root is needed, though root sees more: where the kernel's
/// counters cannot tell two causes apart, packets do. It works best on the host that the data
/// leave: the target for reads, the initiator for writes.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples: enkaku diagnose --port 3260 --time 10s\n\
                        tcpdump -s 128 -w session.pcap port 3260; \
                        enkaku diagnose --pcap session.pcap")]
pub(crate) struct Args {
    /// A capture of the transfer (pcap or pcapng), made anywhere on the way; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["addr", "pid", "time", "line_rate", "events"])]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    live: live::LiveArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// There was nothing to judge.
const NOTHING: u8 = 3;

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let answer = match &args.pcap {
        Some(path) => pcap::answer(path, args.live.port())?,
        None => live::answer(&args.live, args.json)?,
    };
    match answer {
        Ok(answer) => answer.print(args.json).map(|()| ExitCode::SUCCESS),
        Err(why) => {
            eprintln!("enkaku: {why}");
            Ok(ExitCode::from(NOTHING))
        }
    }
}
