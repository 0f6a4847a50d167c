//! Each cause from facts as a host has them, against the formula done by hand.

use path::Bottleneck;

use super::*;
use crate::facts::disk::Load;
use crate::facts::files::tests::Tree;
use crate::facts::{Initiator, Role, Transfer, host, open_iscsi, ss};
use crate::report::{Report, html, text};

const TARGET: &str = "iqn.2003-01.org.linux-iscsi.filer.x8664:sn.1";
/// open-iscsi 2.1.8 with its defaults, at LIO with its own, 50 ms away; Linux 6.1.
const HOST: &str = "
    sys/class/iscsi_session/session1/targetname: iqn.2003-01.org.linux-iscsi.filer.x8664:sn.1
    sys/class/iscsi_session/session1/state: LOGGED_IN
    sys/class/iscsi_session/session1/first_burst_len: 65536
    sys/class/iscsi_session/session1/max_burst_len: 262144
    sys/class/iscsi_session/session1/max_outstanding_r2t: 1
    sys/class/iscsi_session/session1/initial_r2t: 0
    sys/class/iscsi_session/session1/immediate_data: 1
    sys/class/iscsi_session/session1/device/target2:0:0/2:0:0:0/block/sdb/size: 2097152
    sys/class/iscsi_connection/connection1:0/address: 192.0.2.10
    sys/class/iscsi_connection/connection1:0/port: 3260
    sys/class/iscsi_connection/connection1:0/persistent_address: 192.0.2.10
    sys/class/iscsi_connection/connection1:0/persistent_port: 3260
    sys/class/iscsi_connection/connection1:0/data_digest: 0
    sys/class/scsi_host/host2/can_queue: 128
    sys/block/sdb/device/queue_depth: 32
    sys/block/sdb/queue/read_ahead_kb: 128
    sys/block/sdb/queue/max_sectors_kb: 1280
    sys/block/sdb/queue/max_hw_sectors_kb: 32767
    sys/class/net/eth0/speed: 1000
    sys/class/net/eth0/duplex: full
    sys/class/net/eth0/mtu: 1500
    sys/class/net/eth0/device/driver: ->drivers/igb
    proc/cpuinfo: flags : fpu sse4_2
    proc/sys/net/core/rmem_max: 212992
    proc/sys/net/core/wmem_max: 212992
    proc/sys/net/ipv4/tcp_rmem: 4096 131072 6291456
    proc/sys/net/ipv4/tcp_wmem: 4096 16384 4194304
    proc/sys/net/ipv4/tcp_window_scaling: 1
    proc/sys/net/ipv4/tcp_sack: 1
    proc/sys/net/ipv4/tcp_congestion_control: cubic
    proc/sys/net/ipv4/tcp_available_congestion_control: reno cubic";
const SOCKET: &str = "ESTAB 0 0 192.0.2.5:49152 192.0.2.10:3260
\t skmem:(r0,rb425984,t0,tb425984,f0,w0,o0,bl0,d0) ts sack cubic wscale:7,7 rtt:50.2/0.4 mss:1448 pmtu:1500 cwnd:44 data_segs_out:100 retrans:0/0 minrtt:50.0";
const RTT_S: f64 = 0.050;
const MBIT: f64 = 125_000.0;

/// The host with some of its files changed.
fn facts(changed: &str) -> Facts {
    let mut tree = Tree::of(HOST);
    tree.0.extend(Tree::of(changed).0);
    let mut facts = Facts {
        host: host::host(&tree),
        sessions: open_iscsi::sessions(&tree),
        ..Facts::default()
    };
    for session in &mut facts.sessions {
        session.sockets = ss::sockets(SOCKET);
        session.device = Some("eth0".to_owned());
    }
    facts
}

/// As if nothing but the path and what is changed limited.
fn tuned(changed: &str) -> Facts {
    let lines = format!(
        "sys/class/iscsi_session/session1/first_burst_len: 4194304
         sys/class/iscsi_session/session1/max_burst_len: 16776192
         sys/class/scsi_host/host2/can_queue: 1024
         sys/block/sdb/device/queue_depth: 512
         sys/block/sdb/queue/read_ahead_kb: 16384
         proc/sys/net/core/rmem_max: 33554432
         proc/sys/net/core/wmem_max: 33554432
         {changed}"
    );
    let mut facts = facts(&lines);
    for socket in facts.sessions.iter_mut().flat_map(|session| &mut session.sockets) {
        (socket.receive_buffer_bytes, socket.send_buffer_bytes) =
            (Some(33_554_432), Some(33_554_432));
    }
    facts
}

/// A session of which only the connection is known.
fn bare(initiator: Initiator, cause: Bottleneck, writes: bool) -> Facts {
    let mut facts = tuned(
        "proc/sys/net/ipv4/tcp_rmem: 4096 131072 33554432
        proc/sys/net/ipv4/tcp_wmem: 4096 16384 33554432",
    );
    let sockets = ss::sockets(SOCKET);
    facts.sessions = vec![Session {
        name: "to 192.0.2.10:3260".into(),
        initiator,
        sockets,
        transfer: Some(transfer(cause, writes, &[])),
        ..Session::default()
    }];
    facts
}

fn transfer(cause: Bottleneck, writes: bool, numbers: &[(&str, f64)]) -> Transfer {
    Transfer {
        writes,
        bytes_per_s: 65_536.0 / RTT_S,
        cause,
        advice: "Advice.".into(),
        evidence: numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        cannot_tell: vec![],
    }
}

fn causes(part: &Part) -> Vec<Cause> {
    part.findings.iter().map(|one| one.cause).collect()
}

fn near(found: Option<f64>, wanted: f64) -> bool {
    found.is_some_and(|found| (found / wanted - 1.0).abs() < 0.01)
}

fn commands(one: &Finding) -> Vec<&str> {
    one.changes.iter().map(|change| change.command.as_str()).collect()
}

#[test]
fn defaults_at_50_ms_are_named_in_order_with_what_each_change_gives() {
    let found = judge(&facts("")).remove(0);
    assert_eq!(found.goal.from, GoalFrom::Device("eth0".into()));
    let [reads, writes] = &found.parts[..] else { panic!("{found:?}") };
    assert_eq!(causes(reads), [Cause::ReadAhead, Cause::ReceiveWindow]);
    let [ahead, window] = &reads.findings[..] else { panic!() };
    // 128 KiB and half of 416 KiB in 50 ms; 941 Mbit/s × 50 ms are 5.9 MB, so 8 MiB.
    assert!(near(ahead.limit_bytes_per_s, 131_072.0 / RTT_S));
    assert!(near(window.limit_bytes_per_s, 212_992.0 / RTT_S));
    assert_eq!(commands(ahead), ["blockdev --setra 16384 /dev/sdb"]);
    assert!(near(ahead.expected_bytes_per_s, 212_992.0 / RTT_S));
    assert_eq!(ahead.then.as_deref(), Some("the receive window"));
    let node = format!("iscsiadm -m node -T {TARGET} -p 192.0.2.10:3260");
    let wanted = [
        "sysctl -w net.core.rmem_max=8388608".to_owned(),
        format!("{node} -o update -n 'node.conn[0].tcp.window_size' -v 8388608"),
        format!("{node} --logout"),
        format!("{node} --login"),
    ];
    assert_eq!(commands(window), wanted);
    // BBR's share of a line, by the plan.
    assert!(near(window.expected_bytes_per_s, 941.0 * MBIT * 0.97));
    assert_eq!(window.then.as_deref(), Some("the line"));
    assert!(near(reads.expected_bytes_per_s, 941.0 * MBIT * 0.97));
    // 32 writes of 1280 KiB are more than the path, but the buffer is first.
    assert_eq!(writes.findings[0].cause, Cause::SendBuffer);
    assert!(near(writes.findings[0].limit_bytes_per_s, 0.67 * 425_984.0 / RTT_S));
}

#[test]
fn a_session_that_has_what_the_path_needs_is_left_alone() {
    let facts = tuned("");
    let report = Report::new(facts);
    assert!(report.diagnoses[0].is_healthy(), "{:?}", report.diagnoses);
    let text = text(&report);
    assert!(text.contains("Nothing is wrong here.") && !text.contains("sysctl"), "{text}");
}

#[test]
fn queue_depth_and_commands_are_counted_in_requests_of_a_round_trip() {
    // 8 × 256 KiB in 50 ms; 5.89 MB are 23 of them, and one more.
    let facts = tuned(
        "sys/block/sdb/device/queue_depth: 8
         sys/block/sdb/queue/max_sectors_kb: 256
         sys/block/sdb/queue/max_hw_sectors_kb: 256",
    );
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert_eq!(causes(&reads), [Cause::QueueDepth]);
    let one = &reads.findings[0];
    assert!(near(one.limit_bytes_per_s, 8.0 * 262_144.0 / RTT_S));
    assert_eq!(one.wanted.as_ref().map(|wanted| wanted.value), Some(24.0));
    assert_eq!(commands(one)[0], "echo 24 > /sys/block/sdb/device/queue_depth");
    assert!(commands(one)[1].ends_with("-o update -n node.session.queue_depth -v 24"));
    let facts = tuned(
        "sys/class/scsi_host/host2/can_queue: 16
         sys/block/sdb/queue/max_sectors_kb: 64
         sys/block/sdb/queue/max_hw_sectors_kb: 64",
    );
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert_eq!(causes(&reads), [Cause::CommandsMax]);
    let said = commands(&reads.findings[0]);
    assert!(said[0].ends_with("-n node.session.cmds_max -v 128"), "{said:?}");
    assert!(said.last().unwrap().ends_with("--login"), "{said:?}");
}

#[test]
fn requests_that_are_cut_short_are_made_longer_first() {
    let facts = tuned(
        "sys/block/sdb/queue/max_sectors_kb: 64
         sys/block/sdb/device/queue_depth: 16",
    );
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert_eq!(causes(&reads), [Cause::RequestSize]);
    let one = &reads.findings[0];
    assert!(near(one.limit_bytes_per_s, 16.0 * 65_536.0 / RTT_S));
    assert_eq!(commands(one), ["echo 1024 > /sys/block/sdb/queue/max_sectors_kb"]);
}

#[test]
fn round_trips_of_a_write_are_those_of_the_rfc() {
    let keys = |first, burst, initial, immediate, together| crate::facts::Keys {
        first_burst_bytes: Some(first),
        max_burst_bytes: Some(burst),
        initial_r2t: Some(initial),
        immediate_data: Some(immediate),
        max_outstanding_r2t: Some(together),
        send_segment_bytes: Some(8192),
        ..crate::facts::Keys::default()
    };
    let kib = 1024.0;
    for (keys, bytes, wanted) in [
        (keys(65_536, 262_144, false, true, 1), 64.0 * kib, 1.0),
        (keys(65_536, 262_144, false, true, 1), 65.0 * kib, 2.0),
        (keys(65_536, 262_144, false, true, 1), 1280.0 * kib, 6.0),
        (keys(65_536, 262_144, false, true, 5), 1280.0 * kib, 2.0),
        (keys(65_536, 262_144, true, true, 1), 64.0 * kib, 2.0),
        (keys(65_536, 262_144, true, true, 1), 8.0 * kib, 1.0),
        (keys(65_536, 262_144, true, false, 1), 4.0 * kib, 2.0),
    ] {
        assert_eq!(block::rounds(&keys, bytes), Some(wanted), "{keys:?} {bytes}");
    }
    assert_eq!(block::rounds(&crate::facts::Keys::default(), 1.0), None);
}

#[test]
fn writes_that_wait_for_r2ts_are_told_the_keys() {
    let facts = tuned(
        "sys/class/iscsi_session/session1/first_burst_len: 65536
         sys/class/iscsi_session/session1/max_burst_len: 262144
         sys/class/iscsi_session/session1/initial_r2t: 1
         sys/class/iscsi_session/session1/immediate_data: 0
         sys/block/sdb/device/queue_depth: 8",
    );
    let writes = judge(&facts).remove(0).parts.remove(1);
    assert_eq!(writes.findings[0].cause, Cause::R2t);
    let one = &writes.findings[0];
    // 1280 KiB: five bursts, each after an R2T, behind the command.
    assert!(near(one.limit_bytes_per_s, 8.0 * 1_310_720.0 / RTT_S / 6.0));
    let keys: Vec<&str> = commands(one)
        .iter()
        .filter_map(|line| line.split("-n node.session.iscsi.").nth(1))
        .collect();
    let wanted = [
        "InitialR2T -v No",
        "ImmediateData -v Yes",
        "FirstBurstLength -v 2097152",
        "MaxBurstLength -v 2097152",
    ];
    assert_eq!(keys, wanted);
}

#[test]
fn windows_without_scaling_are_64_kib() {
    let facts = tuned("proc/sys/net/ipv4/tcp_window_scaling: 0");
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert_eq!(causes(&reads), [Cause::WindowScaling]);
    assert!(near(reads.findings[0].limit_bytes_per_s, 65_535.0 / RTT_S));
    assert_eq!(commands(&reads.findings[0])[0], "sysctl -w net.ipv4.tcp_window_scaling=1");
}

#[test]
fn losses_under_cubic_are_judged_by_the_plan_and_bbr_is_asked_for() {
    let mut facts = tuned("");
    let tcp = &mut facts.sessions[0].sockets[0];
    (tcp.data_segments_out, tcp.retransmitted_segments) = (Some(1_000_000), 1_000);
    facts.host.devices[0].qdisc = Some("fq_codel".into());
    let [reads, writes] = &judge(&facts).remove(0).parts[..] else { panic!() };
    assert!(reads.findings.is_empty(), "the target sends them, and has other counters");
    let one = &writes.findings[0];
    assert_eq!((one.cause, writes.findings.len()), (Cause::CongestionLoss, 1));
    // 1.27 / √1e-3 segments of 1448 bytes in 50 ms.
    assert!(near(one.limit_bytes_per_s, 1.27 / 1e-3_f64.sqrt() * 1448.0 / RTT_S));
    let said = commands(one);
    assert_eq!(said[0], "modprobe tcp_bbr");
    assert_eq!(said[1], "sysctl -w net.ipv4.tcp_congestion_control=bbr");
    assert_eq!(said[3], "tc qdisc replace dev eth0 root fq");
    assert!(one.expected_bytes_per_s.unwrap() > 800.0 * MBIT);
    let bbr = "proc/sys/net/ipv4/tcp_congestion_control: bbr";
    let mut facts = tuned(bbr);
    let tcp = &mut facts.sessions[0].sockets[0];
    (tcp.data_segments_out, tcp.retransmitted_segments) = (Some(1_000_000), 1_000);
    tcp.congestion_control = "bbr".into();
    assert!(judge(&facts)[0].is_healthy());
}

#[test]
fn a_slow_device_is_seen_where_the_line_is_known() {
    let mut facts = tuned("sys/class/net/eth0/speed: 100");
    facts.line_bits_per_s = Some(1e9);
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert_eq!(causes(&reads), [Cause::Device]);
    assert!(near(reads.findings[0].limit_bytes_per_s, 94.1 * MBIT));
    assert_eq!(commands(&reads.findings[0])[1], "ethtool -s eth0 autoneg on");
}

#[test]
fn what_was_measured_comes_first_and_refutes_what_is_only_calculated() {
    // One read of 64 KiB after another: fio, not read-ahead.
    let mut facts = facts("");
    let load = Load {
        reads_per_s: 20.0,
        read_bytes: 65_536.0,
        read_ms: 50.0,
        in_flight: 1.0,
        ..Load::default()
    };
    facts.sessions[0].disks[0].load = Some(load);
    facts.sessions[0].disks[0].read_ahead_kib = Some(4096);
    facts.sessions[0].transfer = Some(transfer(Bottleneck::QueueDepth, false, &[]));
    let parts = judge(&facts).remove(0).parts;
    assert_eq!(parts.len(), 1, "nothing was written");
    assert_eq!(causes(&parts[0]), [Cause::Depth, Cause::ReceiveWindow, Cause::QueueDepth]);
    let first = &parts[0].findings[0];
    assert!(first.measured && near(first.expected_bytes_per_s, 212_992.0 / RTT_S));
    assert_eq!(first.wanted.as_ref().map(|wanted| wanted.value), Some(91.0));
    // 80 Mbit/s come through a window that permits 34 by calculation: it is none.
    let mut fast = transfer(Bottleneck::QueueDepth, false, &[]);
    fast.bytes_per_s = 80.0 * MBIT;
    facts.sessions[0].transfer = Some(fast);
    let parts = judge(&facts).remove(0).parts;
    assert!(!causes(&parts[0]).contains(&Cause::ReceiveWindow), "{parts:?}");
}

#[test]
fn reading_in_order_is_known_by_what_is_under_way() {
    let mut facts = tuned("sys/block/sdb/queue/read_ahead_kb: 128");
    let load = Load {
        reads_per_s: 20.0,
        read_bytes: 131_072.0,
        read_ms: 50.0,
        in_flight: 1.0,
        ..Load::default()
    };
    facts.sessions[0].disks[0].load = Some(load);
    facts.sessions[0].transfer = Some(transfer(Bottleneck::QueueDepth, false, &[]));
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert_eq!(causes(&reads), [Cause::ReadAhead]);
    assert!(reads.findings[0].measured);
}

#[test]
fn a_session_of_ours_is_told_our_options() {
    let mut facts = bare(Initiator::Enkaku, Bottleneck::QueueDepth, false);
    facts.line_bits_per_s = Some(100e6);
    let numbers = [("burst_bytes", 65_536.0), ("share_queue_depth", 0.97)];
    facts.sessions[0].transfer = Some(transfer(Bottleneck::QueueDepth, false, &numbers));
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert_eq!(causes(&reads), [Cause::Depth]);
    let one = &reads.findings[0];
    assert!(near(one.limit_bytes_per_s, 65_536.0 / RTT_S));
    // 94.1 Mbit/s × 50 ms are 588 kB: nine of 64 KiB, and one more.
    assert_eq!(one.wanted.as_ref().map(|wanted| wanted.value), Some(10.0));
    assert!(near(one.expected_bytes_per_s, 94.1 * MBIT * 0.97));
    assert!(commands(one)[0].contains("--depth 10"), "{one:?}");
}

#[test]
fn every_measured_cause_says_what_and_where() {
    let numbers = [
        ("burst_bytes", 65_536.0),
        ("in_flight_bytes_max", 131_072.0),
        ("send_window_bytes", 131_072.0),
        ("receive_window_bytes", 131_072.0),
        ("share_storage", 0.75),
        ("share_application", 0.9),
        ("cwnd_bytes", 131_072.0),
    ];
    for (cause, wanted, gains) in [
        (Bottleneck::SendBuffer, Cause::SendBuffer, true),
        (Bottleneck::ReceiveWindow, Cause::ReceiveWindow, true),
        (Bottleneck::CongestionLoss, Cause::CongestionLoss, true),
        (Bottleneck::CongestionWindow, Cause::CongestionWindow, false),
        (Bottleneck::R2t, Cause::R2t, false),
        (Bottleneck::QueueDepth, Cause::Depth, true),
        (Bottleneck::Storage, Cause::Storage, true),
        (Bottleneck::Application, Cause::Application, false),
    ] {
        for role in [Role::Initiator, Role::Target] {
            let mut facts = bare(Initiator::Unknown, cause, true);
            let mut numbers = numbers.to_vec();
            if cause == Bottleneck::CongestionLoss {
                numbers.push(("loss", 1e-3));
            }
            facts.sessions[0].transfer = Some(transfer(cause, true, &numbers));
            facts.sessions[0].role = role;
            let writes = judge(&facts).remove(0).parts.remove(0);
            let one = &writes.findings[0];
            assert_eq!(one.cause, wanted);
            assert!(one.measured && one.title.ends_with('.') && one.formula.is_some(), "{one:?}");
            assert_eq!(one.expected_bytes_per_s.is_some(), gains, "{one:?}");
        }
    }
    let mut facts = bare(Initiator::Unknown, Bottleneck::Storage, false);
    facts.sessions[0].transfer = Some(transfer(Bottleneck::Storage, false, &numbers));
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert!(near(reads.expected_bytes_per_s, 4.0 * 65_536.0 / RTT_S), "without three quarters");
}

#[test]
fn a_buffer_of_the_other_end_is_to_be_changed_there() {
    let mut facts = bare(Initiator::Unknown, Bottleneck::ReceiveWindow, true);
    let numbers = [("send_window_bytes", 131_072.0)];
    facts.sessions[0].transfer = Some(transfer(Bottleneck::ReceiveWindow, true, &numbers));
    let writes = judge(&facts).remove(0).parts.remove(0);
    let change = &writes.findings[0].changes[0];
    assert_eq!(change.place, Place::AtTarget);
    assert_eq!(change.command, "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216'");
}

#[test]
fn a_full_line_is_nothing_to_mend() {
    let facts = bare(Initiator::Unknown, Bottleneck::LineRate, true);
    let found = judge(&facts).remove(0);
    assert!(found.is_healthy());
    assert_eq!(found.parts[0].remark.as_deref(), Some("Advice."));
    assert!(!found.is_certainly_healthy(), "nobody has said what the line carries");
}

#[test]
fn a_line_that_was_seen_to_carry_more_does_not_hide_a_window() {
    // Seen in a guest: reads at 16 Mbit/s through a window that permits 34, with bursts of 177.
    let mut facts = facts("");
    let numbers = [("peak_bytes_per_s", 22e6), ("share_receiving", 0.6)];
    let mut busy = transfer(Bottleneck::LineRate, false, &numbers);
    busy.bytes_per_s = 2e6;
    facts.sessions[0].transfer = Some(busy.clone());
    let reads = judge(&facts).remove(0).parts.remove(0);
    assert!(causes(&reads).contains(&Cause::ReceiveWindow), "{reads:?}");
    assert!(reads.findings.iter().all(|one| !one.measured));
    busy.evidence.insert("peak_bytes_per_s".into(), 2.5e6);
    facts.sessions[0].transfer = Some(busy);
    assert!(judge(&facts)[0].parts[0].findings.is_empty(), "it came at one rate");
}

#[test]
fn what_tcp_takes_for_the_line_is_doubted_where_the_line_is_known() {
    // 10.5 Mbit/s.
    let mut facts = bare(Initiator::Unknown, Bottleneck::LineRate, true);
    facts.line_bits_per_s = Some(100e6);
    let writes = judge(&facts).remove(0).parts.remove(0);
    assert_eq!(causes(&writes), [Cause::SlowerLine]);
    assert_eq!(writes.findings[0].expected_bytes_per_s, None);
    facts.line_bits_per_s = Some(11e6);
    assert!(judge(&facts)[0].is_certainly_healthy());
}

#[test]
fn without_a_round_trip_nothing_is_calculated() {
    let mut facts = facts("");
    facts.sessions[0].sockets.clear();
    let found = judge(&facts).remove(0);
    assert!(found.parts.is_empty() && found.rtt_s.is_none());
    assert!(text(&Report::new(facts)).contains("nsenter --target PID --net"));
}

#[test]
fn signs_without_a_formula_are_notes() {
    let note = |facts: &Facts| {
        judge(facts).remove(0).notes.iter().map(|one| one.cause).collect::<Vec<_>>()
    };
    assert_eq!(note(&tuned("sys/class/iscsi_session/session1/state: FAILED")), [Cause::State]);
    assert_eq!(note(&tuned("sys/class/net/eth0/duplex: half")), [Cause::HalfDuplex]);
    assert_eq!(note(&tuned("proc/sys/net/ipv4/tcp_sack: 0")), [Cause::Sack]);
    let digests = "sys/class/iscsi_connection/connection1:0/data_digest: 1";
    assert_eq!(note(&tuned(digests)), [], "the processor has an instruction for it");
    assert_eq!(note(&tuned(&format!("{digests}\nproc/cpuinfo: flags : fpu"))), [Cause::Digests]);
    let drops = "sys/class/net/eth0/statistics/rx_dropped: 5000
                 sys/class/net/eth0/statistics/rx_packets: 1000000";
    assert_eq!(note(&tuned(drops)), [Cause::Drops]);
    let mut facts = tuned("");
    facts.host.devices[0].offloads_off = vec!["tso".into(), "rx".into()];
    assert_eq!(note(&facts), [Cause::Offloads]);
    let mut facts = tuned("");
    let tcp = &mut facts.sessions[0].sockets[0];
    (tcp.timeouts_in_a_row, tcp.unacked_segments) = (4, 3);
    let found = judge(&facts).remove(0).notes.remove(0);
    assert_eq!(found.cause, Cause::MtuBlackHole);
    let wanted = ["ping -M do -c 3 -s 1472 192.0.2.10", "sysctl -w net.ipv4.tcp_mtu_probing=1"];
    assert_eq!(commands(&found), wanted);
}

#[test]
fn a_delayed_acknowledgement_is_known_by_its_40_ms() {
    let mut facts = tuned("");
    for tcp in &mut facts.sessions[0].sockets {
        (tcp.rtt_us, tcp.rtt_min_us) = (Some(2000.0), Some(2000.0));
    }
    let mut load = Load {
        writes_per_s: 23.0,
        write_bytes: 8192.0,
        write_ms: 42.5,
        in_flight: 1.0,
        ..Load::default()
    };
    facts.sessions[0].disks[0].load = Some(load);
    let found = judge(&facts).remove(0).notes.remove(0);
    assert_eq!(found.cause, Cause::DelayedAck);
    assert!(near(found.expected_bytes_per_s, 8192.0 / 0.002));
    load.write_ms = 12.0;
    facts.sessions[0].disks[0].load = Some(load);
    assert!(judge(&facts)[0].notes.is_empty(), "that is a slow disk");
}

#[test]
fn a_hostile_name_is_quoted_on_the_page_and_for_the_shell() {
    let name = "iqn.2026-11.x:<script>alert(1)</script>'\"&;reboot";
    let changed = format!("sys/class/iscsi_session/session1/targetname: {name}");
    let report = Report::new(facts(&changed));
    let page = html(&report, "now & then");
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert(1)"), "{page}");
    assert!(page.contains("now &amp; then") && !page.contains("http://") && !page.contains("src="));
    let command = commands(&report.diagnoses[0].parts[0].findings[1])[1];
    assert!(
        command.contains(r#"-T 'iqn.2026-11.x:<script>alert(1)</script>'\''"&;reboot' -p"#),
        "{command}"
    );
}

#[test]
fn lines_of_the_text_fit_a_terminal() {
    let report = Report::new(facts(""));
    let text = text(&report);
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:#?}");
    assert_eq!(text.matches("--logout").count(), 1, "one login is for all: {text}");
}
