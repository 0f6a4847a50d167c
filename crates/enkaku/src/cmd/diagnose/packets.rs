//! A look at the packets of connections that were watched, where the kernel's counters cannot tell
//! one cause from another: live, without a file, and nothing of it is kept.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tcpmon::capture::live::{Packet, Socket, drop_privileges};
use tcpmon::capture::{CaptureSummary, LinkType, decode};
use tcpmon::model::Analysis;
use tcpmon::verdict::from_packets::decide_between;
use tcpmon::verdict::from_samples::Watched;
use tcpmon::verdict::{Bottleneck, Judgement};

/// How often the time is looked at.
const TICK: Duration = Duration::from_millis(50);
/// What repeats with every command is seen by then.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Packets of this machine would tell what the counters do not.
pub(in crate::cmd) fn would_tell(judgement: &Judgement) -> bool {
    judgement.not_excluded.contains(&Bottleneck::R2t)
}

/// Reads packets for as long as was watched, but for no longer than it takes, and chooses among the
/// causes that the counters left; gives up root before the first one is decoded. `None` if they
/// show no transfer.
///
/// # Errors
/// Who has no CAP_NET_RAW gets none; those of the system calls.
pub(in crate::cmd) fn look(
    counters: &Judgement,
    watched: &[Watched],
    time: Duration,
) -> io::Result<Option<Judgement>> {
    let pairs: HashSet<(SocketAddr, SocketAddr)> = watched.iter().flat_map(both_ways).collect();
    let Some(port) = watched.iter().find_map(Watched::target_port) else { return Ok(None) };
    let mut socket = Socket::open(None, port)?;
    drop_privileges()?;
    let mut analysis = Analysis::new(Some(port));
    let mut summary = CaptureSummary::default();
    let begin = Instant::now();
    while begin.elapsed() < time.min(TIME_MAX) {
        socket.receive(TICK, |packet: &Packet<'_>| {
            let (length, at_ns) = (packet.wire_len, packet.time_ns);
            let segment = decode(LinkType::RAW, packet.bytes, length, at_ns, &mut summary);
            if let Some(segment) = segment.filter(|one| pairs.contains(&(one.src, one.dst))) {
                analysis.handle_segment(&segment);
            }
            Ok(())
        })?;
    }
    summary.lost_by_capture = socket.take_lost()?;
    let connections = analysis.report(summary).connections;
    let causes = [&[counters.verdict.cause], &counters.not_excluded[..]].concat();
    Ok(decide_between(&connections, &causes))
}

/// A connection's addresses as packets have them, in both directions.
fn both_ways(one: &Watched) -> Vec<(SocketAddr, SocketAddr)> {
    let Some(sample) = one.samples.last() else { return Vec::new() };
    let (local, remote) = (sample.connection.local, sample.connection.remote);
    vec![(local, remote), (remote, local)]
}
