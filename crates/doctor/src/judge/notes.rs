//! What is not as it should be and has no formula: signs that an expert would point at, without a
//! promise of a rate, but for the one of delayed acknowledgements, whose time is known.

use super::case::evidence;
use super::commands::{now, quote, sysctl};
use super::{Cause, Evidence, Finding, Place};
use crate::facts::{Facts, Nic, Role, Session, Tcp};
use crate::units::{share, size, time};

/// TCP_DELACK_MIN of Linux, and the 200 ms of others: how long an acknowledgement is held back.
const DELAYED_S: [f64; 2] = [0.040, 0.200];
/// What timers and queues add to them.
const DELAYED_SLACK_S: f64 = 0.008;
/// Above this round trip such a delay cannot be told from the path's own.
const DELAYED_RTT_MAX_S: f64 = 0.020;
/// Timeouts in a row of the same segment that are no bad luck any more.
const TIMEOUTS_MIN: u64 = 3;
/// Packets that a device throws away without anybody noticing.
const DROPS_MIN: f64 = 1e-5;

/// The notes of a session.
pub(super) fn notes(facts: &Facts, session: &Session) -> Vec<Finding> {
    let nic = session.device.as_deref().and_then(|name| facts.host.device(name));
    let mut found = Vec::new();
    found.extend(state(session));
    found.extend(black_hole(facts, session, nic));
    found.extend(delayed_ack(session));
    found.extend(sack(facts));
    if let Some(nic) = nic {
        found.extend(half_duplex(nic));
        found.extend(drops(nic));
        found.extend(offloads(nic));
    }
    found.extend(digests(facts, session));
    found
}

fn note(cause: Cause, title: String, evidence: Vec<Evidence>) -> Finding {
    Finding {
        cause,
        measured: false,
        title,
        limit_bytes_per_s: None,
        formula: None,
        evidence,
        changes: Vec::new(),
        wanted: None,
        expected_bytes_per_s: None,
        then: None,
    }
}

fn state(session: &Session) -> Option<Finding> {
    let state = session.state.as_deref().filter(|state| *state != "LOGGED_IN")?;
    let title = format!("The session is not up: {state}. Its disk waits until it is.");
    let mut found = note(Cause::State, title, vec![evidence("state", state)]);
    found.changes.push(now("journalctl -u iscsid -n 20".to_owned()));
    Some(found)
}

/// Full segments vanish, small ones come through: the sender repeats the same one for ever.
fn black_hole(facts: &Facts, session: &Session, nic: Option<&Nic>) -> Option<Finding> {
    let stuck = |tcp: &&Tcp| tcp.timeouts_in_a_row >= TIMEOUTS_MIN && tcp.unacked_segments > 0;
    let tcp = session.sockets.iter().find(stuck)?;
    let mtu = tcp.path_mtu_bytes.or(nic.and_then(|nic| nic.mtu_bytes))?;
    let title = format!(
        "A segment was sent {} times and never acknowledged: packets of {mtu} bytes may not get \
         through (an MTU black hole), or the path is down.",
        tcp.timeouts_in_a_row + 1
    );
    let says = vec![
        evidence("timeouts in a row", tcp.timeouts_in_a_row.to_string()),
        evidence("path MTU", format!("{mtu} bytes")),
    ];
    let mut found = note(Cause::MtuBlackHole, title, says);
    // 20 bytes of IPv4 or 40 of IPv6, and 8 of ICMP.
    let headers = if tcp.remote.is_ipv4() { 28 } else { 48 };
    found.changes.push(now(format!(
        "ping -M do -c 3 -s {} {}",
        mtu.saturating_sub(headers),
        tcp.remote.ip()
    )));
    if facts.host.number("net.ipv4.tcp_mtu_probing").is_none_or(|value| value < 1.0) {
        found.changes.push(sysctl(Place::Here, "net.ipv4.tcp_mtu_probing", "1"));
    }
    Some(found)
}

/// Requests that take a round trip and the time of a delayed acknowledgement.
fn delayed_ack(session: &Session) -> Option<Finding> {
    let rtt_s = session.rtt_s().filter(|rtt_s| *rtt_s <= DELAYED_RTT_MAX_S)?;
    let loads = session.disks.iter().filter_map(|disk| Some((disk, disk.load?)));
    for (disk, load) in loads {
        for writes in [true, false] {
            let more = load.request_s(writes) - rtt_s;
            let held = DELAYED_S.into_iter().find(|s| (more - s).abs() < DELAYED_SLACK_S);
            let Some(held_s) = held.filter(|_| load.in_flight < 2.0) else { continue };
            let title = format!(
                "Requests of {} take {} at a round trip of {}: the difference is the {} of a \
                 delayed acknowledgement. One end waits for more before it sends (Nagle), the other \
                 before it answers.",
                disk.name,
                time(load.request_s(writes)),
                time(rtt_s),
                time(held_s),
            );
            let says = vec![
                evidence("time of a request", time(load.request_s(writes))),
                evidence("size of a request", size(load.request_bytes(writes))),
            ];
            let mut found = note(Cause::DelayedAck, title, says);
            let bytes = load.in_flight.max(1.0) * load.request_bytes(writes);
            found.limit_bytes_per_s = Some(bytes / load.request_s(writes));
            found.formula = Some(format!("without it: {} / {}", size(bytes), time(rtt_s)));
            found.expected_bytes_per_s = Some(bytes / rtt_s);
            found.changes.push(super::Change {
                place: if session.role == Role::Target { Place::Here } else { Place::AtTarget },
                step: super::Step::Option,
                command: "TCP_NODELAY on the target's sockets (open-iscsi and enkaku set theirs)"
                    .into(),
            });
            return Some(found);
        }
    }
    None
}

fn sack(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "net.ipv4.tcp_sack";
    (facts.host.number(NAME) == Some(0.0)).then(|| {
        let title = "Selective acknowledgements are off: of a window with several losses one is \
                     repaired in each round trip (RFC 2018)."
            .to_owned();
        let mut found = note(Cause::Sack, title, vec![evidence(NAME, "0")]);
        found.changes.push(sysctl(Place::Here, NAME, "1"));
        found
    })
}

fn half_duplex(nic: &Nic) -> Option<Finding> {
    (nic.full_duplex == Some(false)).then(|| {
        let title = format!(
            "{} is half duplex: data and acknowledgements collide. One end of the cable does not \
             negotiate.",
            nic.name
        );
        let says = vec![evidence(format!("sys/class/net/{}/duplex", nic.name), "half")];
        let mut found = note(Cause::HalfDuplex, title, says);
        found.changes.push(now(format!("ethtool -s {} autoneg on", quote(&nic.name))));
        found
    })
}

fn drops(nic: &Nic) -> Option<Finding> {
    let bad = nic
        .receive_errors
        .unwrap_or_default()
        .saturating_add(nic.receive_drops.unwrap_or_default());
    let part = bad as f64 / nic.received_packets.filter(|count| *count > 0)? as f64;
    if part < DROPS_MIN {
        return None;
    }
    let title = format!("{} has lost {} of the packets that came in.", nic.name, share(part));
    let says = vec![
        evidence("rx_errors", nic.receive_errors.unwrap_or_default().to_string()),
        evidence("rx_dropped", nic.receive_drops.unwrap_or_default().to_string()),
    ];
    let mut found = note(Cause::Drops, title, says);
    let name = quote(&nic.name);
    found.changes = vec![now(format!("ethtool -S {name}")), now(format!("enkaku nic {name}"))];
    Some(found)
}

fn offloads(nic: &Nic) -> Option<Finding> {
    let matter = |name: &&String| ["tso", "gso", "gro", "sg"].contains(&name.as_str());
    let off: Vec<&str> = nic.offloads_off.iter().filter(matter).map(String::as_str).collect();
    // A device without hardware has none to switch on.
    if off.is_empty() || nic.mbit_per_s.is_none() {
        return None;
    }
    let title = format!("Offloads of {} are off: the processor cuts and joins packets.", nic.name);
    let mut found = note(Cause::Offloads, title, vec![evidence("off", off.join(", "))]);
    let words: Vec<String> = off.iter().map(|name| format!("{name} on")).collect();
    found.changes.push(now(format!("ethtool -K {} {}", quote(&nic.name), words.join(" "))));
    Some(found)
}

/// Each byte is summed by the one thread that a connection has.
fn digests(facts: &Facts, session: &Session) -> Option<Finding> {
    let keys = &session.keys;
    if keys.data_digest != Some(true) || facts.host.crc_in_hardware != Some(false) {
        return None;
    }
    let title = "Digests are on, and this processor has no instruction for CRC32C: one core sums \
                 each byte."
        .to_owned();
    let says = vec![evidence("DataDigest", "CRC32C"), evidence("sse4_2 or crc32", "absent")];
    let mut found = note(Cause::Digests, title, says);
    if let (Some(target), Some(portal)) = (&session.target, session.record.or(session.portal)) {
        let node =
            format!("iscsiadm -m node -T {} -p {}", quote(target), quote(&portal.to_string()));
        for key in ["HeaderDigest", "DataDigest"] {
            found.changes.push(super::Change {
                place: if session.role == Role::Initiator {
                    Place::Here
                } else {
                    Place::AtInitiator
                },
                step: super::Step::NextLogin,
                command: format!("{node} -o update -n 'node.conn[0].iscsi.{key}' -v None"),
            });
        }
    }
    Some(found)
}
