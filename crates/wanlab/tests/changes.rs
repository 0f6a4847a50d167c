//! Lines that change while traffic flows, captures, seeds and stars, with real packets.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{alone, can_run, wait_for_line};
use wanlab::{
    CaptureConfig, End, Lab, LabConfig, LabSpec, Profile, RunSpec, Settings, Topology, run,
};

fn config(text: &str) -> LabConfig {
    Settings::parse(text).unwrap().applied_to(&LabConfig::default()).unwrap()
}

/// Round-trip times in milliseconds, in their order.
fn ping(mut command: Command, arguments: &str) -> Vec<f64> {
    let output = command.args(arguments.split(' ')).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| line.split_once("time=")?.1.split(' ').next()?.parse().ok())
        .collect()
}

#[test]
fn a_profile_changes_the_line_on_time() {
    if !can_run("profile", &["ping"]) {
        return;
    }
    let _turn = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times");
    let lab = config("rate=1gbit rtt=2ms");
    let profile = Profile::parse("0s loss=0\n700ms rtt=60ms\n", &lab, Topology::Pair).unwrap();
    let near = format!("ping -n -c 14 -i 0.1 10.77.0.2 > {}", file.display());
    let near = ["sh".into(), "-c".into(), near.into()].to_vec();
    let report = run(&RunSpec { lab, near, far: None, profile, capture: None }).unwrap();
    assert_eq!(report.exit_code, 0);
    assert_eq!(report.link.rtt(), Duration::from_millis(60));
    let text = std::fs::read_to_string(&file).unwrap();
    let times: Vec<f64> = text
        .lines()
        .filter_map(|line| line.split_once("time=")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(times.len(), 14, "{text}");
    assert!(times[..5].iter().all(|ms| (1.9..20.0).contains(ms)), "{times:?}");
    assert!(times[9..].iter().all(|ms| (59.9..80.0).contains(ms)), "{times:?}");
}

/// What arrives at the far end for about a second.
fn mbit_per_s(lab: &Lab) -> f64 {
    let (before, started) = (lab.stats().near_to_far.bytes, Instant::now());
    std::thread::sleep(Duration::from_millis(900));
    let bytes = lab.stats().near_to_far.bytes - before;
    bytes as f64 * 8e-6 / started.elapsed().as_secs_f64()
}

#[test]
fn tcp_takes_the_new_rate_at_once_each_way_its_own() {
    if !can_run("rates", &["iperf3"]) {
        return;
    }
    let _turn = alone();
    let mut lab = Lab::new(&config("rate=40mbit:5mbit rtt=4ms queue=64k")).unwrap();
    let mut server = lab.command(End::Far, "iperf3");
    server.args(["-s", "--forceflush"]).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    wait_for_line(&mut server, "Server listening");
    let mut client = lab.command(End::Near, "iperf3");
    client.args(["-C", "cubic", "-t", "4", "-c", "10.77.0.2"]).stdout(Stdio::null());
    let mut client = client.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let fast = mbit_per_s(&lab);
    lab.set(&Settings::parse("rate=10mbit:5mbit").unwrap()).unwrap();
    let slow = mbit_per_s(&lab);
    assert!(client.wait().unwrap().success());
    // IP bytes are 1500 of 1538 on the wire; the counters are up to 10 ms old.
    assert!((36.0..40.5).contains(&fast), "{fast} of 40 Mbit/s");
    assert!((8.5..11.0).contains(&slow), "{slow} of 10 Mbit/s");
    let mut back = lab.command(End::Near, "iperf3");
    back.args(["-C", "cubic", "-R", "-J", "-t", "2", "-c", "10.77.0.2"]);
    let result: serde_json::Value = serde_json::from_slice(&back.output().unwrap().stdout).unwrap();
    let back = result["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6;
    assert!((4.0..5.0).contains(&back), "{back} of 5 Mbit/s");
    let stats = lab.stats();
    assert!(stats.near_to_far.dropped_queue > 0 && stats.near_to_far.queue_bytes_max <= 65_536);
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_policer_lets_its_rate_pass_and_no_queue_stands() {
    if !can_run("policer", &["iperf3"]) {
        return;
    }
    let _turn = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policed");
    let capture = Some(CaptureConfig { path: path.clone(), snap_bytes: 64 });
    let config = config("rate=1gbit rtt=2ms police=10mbit,30k:0");
    let mut lab = Lab::build(&LabSpec { config, capture, ..LabSpec::default() }).unwrap();
    let mut server = lab.command(End::Far, "iperf3");
    server.args(["-s", "-1", "--forceflush"]).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    wait_for_line(&mut server, "Server listening");
    let (before, started) = (lab.stats().near_to_far, Instant::now());
    let mut client = lab.command(End::Near, "iperf3");
    client.args(["-u", "-b", "30M", "-l", "1400", "-t", "2", "-c", "10.77.0.2"]);
    assert!(client.stdout(Stdio::null()).status().unwrap().success());
    server.wait().unwrap();
    // The counters are up to 10 ms old.
    let elapsed_s = started.elapsed().as_secs_f64() + 0.02;
    let after = lab.stats().near_to_far;
    // IP bytes are less than what the policer counts.
    let most = 30.0 * 1024.0 + 10e6 / 8.0 * elapsed_s;
    let passed = (after.bytes - before.bytes) as f64;
    assert!(passed <= most, "{passed} of {most}");
    assert!(passed >= 10e6 / 8.0 * 2.0 * 0.8, "{passed}");
    lab.set(&Settings::parse("police=0").unwrap()).unwrap();
    assert_eq!(ping(lab.command(End::Near, "ping"), "-n -c 3 -i 0.1 10.77.0.2").len(), 3);
    let there = lab.stop().near_to_far;
    assert!(there.dropped_police > there.segments, "{there:?}");
    // What passed at once was a burst, and more never waited.
    assert!(there.dropped_queue == 0 && there.queue_bytes_max <= 32 * 1024, "{there:?}");
    let policed = |fate: &&(u32, Option<String>)| fate.1.as_deref() == Some("dropped: policer");
    assert_eq!(fates(&path).iter().filter(policed).count() as u64, there.dropped_police);
}

/// Interface and drop reason of each packet of a capture, in order.
fn fates(path: &Path) -> Vec<(u32, Option<String>)> {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let number = |bytes: &[u8]| u32::from_ne_bytes(bytes[..4].try_into().unwrap());
    let mut fates = Vec::new();
    while !rest.is_empty() {
        let length = number(&rest[4..]) as usize;
        let body = &rest[8..length - 4];
        if number(rest) == 6 {
            let options = &body[20 + (number(&body[12..]) as usize).next_multiple_of(4)..];
            let comment = options.len().checked_sub(4).filter(|len| *len > 0).map(|_| {
                let len = u16::from_ne_bytes([options[2], options[3]]);
                String::from_utf8(options[4..4 + usize::from(len)].to_vec()).unwrap()
            });
            fates.push((number(body), comment));
        }
        rest = &rest[length..];
    }
    fates
}

#[test]
fn the_same_seed_loses_the_same_packets_and_the_capture_says_which() {
    if !can_run("seed", &["ping"]) {
        return;
    }
    let _turn = alone();
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, seed: u64| {
        let path = folder.path().join(name);
        let text = format!("rate=1gbit rtt=0 loss=0.1:0 burst=0.02,0.3:0 seed={seed}");
        let capture = Some(CaptureConfig { path: path.clone(), snap_bytes: 64 });
        let spec = LabSpec { config: config(&text), capture, ..LabSpec::default() };
        let lab = Lab::build(&spec).unwrap();
        ping(lab.command(End::Near, "ping"), "-n -q -c 400 -i 0.002 -W 0.1 10.77.0.2");
        let stats = lab.stop();
        let all = fates(&path);
        let there: Vec<_> = all.into_iter().filter(|(line, _)| *line == 0).collect();
        let count = |reason: &str| {
            let with = |fate: &&(u32, Option<String>)| fate.1.as_deref() == Some(reason);
            there.iter().filter(with).count() as u64
        };
        let counted = stats.near_to_far;
        assert_eq!(there.len() as u64, counted.segments + counted.dropped_loss);
        assert_eq!(count("dropped: burst loss"), counted.dropped_burst);
        assert_eq!(count("dropped: random loss") + counted.dropped_burst, counted.dropped_loss);
        assert!(counted.dropped_burst > 0 && counted.dropped_loss > counted.dropped_burst);
        there[..400].to_vec()
    };
    let first = run("a", 7);
    assert_eq!(first, run("b", 7));
    assert_ne!(first, run("c", 8));
}

#[test]
fn jitter_spreads_the_round_trip_times() {
    if !can_run("jitter", &["ping"]) {
        return;
    }
    let _turn = alone();
    let lab = Lab::new(&config("rate=1gbit delay=20ms jitter=10ms,hold=1ms:0")).unwrap();
    let times = ping(lab.command(End::Near, "ping"), "-n -c 100 -i 0.025 10.77.0.2");
    assert_eq!(times.len(), 100);
    let mut sorted = times;
    sorted.sort_by(f64::total_cmp);
    // Uniform from 30 to 50 ms; a busy machine may delay some of the slowest.
    let (low, median, high) = (sorted[5], sorted[50], sorted[90]);
    assert!(sorted[0] >= 29.9, "{sorted:?}");
    assert!(low < 34.0 && (36.0..44.5).contains(&median), "{sorted:?}");
    assert!((46.0..52.0).contains(&high), "{sorted:?}");
}

#[test]
fn nodes_of_a_star_reach_each_other_on_each_of_its_networks() {
    if !can_run("star", &["ping"]) {
        return;
    }
    let _turn = alone();
    let topology = Topology::Star { nodes: 3, networks: 2 };
    let spec = LabSpec { config: config("rate=1gbit delay=3ms:7ms"), topology, capture: None };
    let lab = Lab::build(&spec).unwrap();
    for (from, to) in
        [(1, "10.77.0.3"), (3, "10.77.0.2"), (2, "10.78.0.1"), (3, "fd77::1"), (1, "fd78::2")]
    {
        let times = ping(lab.command(End::Node(from), "ping"), &format!("-n -c 5 -i 0.02 {to}"));
        assert_eq!(times.len(), 5, "node {from} to {to}");
        // Both lines there and both back; a busy machine adds to some.
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        assert!((20.0..22.0).contains(&least), "node {from} to {to}: {times:?}");
    }
    let lost = ping(lab.command(End::Node(1), "ping"), "-n -c 1 -W 0.2 10.77.0.4");
    assert!(lost.is_empty());
    assert!(lab.command(End::Node(4), "true").spawn().is_err());
    assert!(lab.command(End::Near, "true").spawn().is_err());
    let output = lab.command(End::Node(2), "env").output().unwrap();
    let environment = String::from_utf8(output.stdout).unwrap();
    for line in [
        "ENKAKU_NODE=2",
        "ENKAKU_NODES=10.77.0.1 10.77.0.2 10.77.0.3",
        "ENKAKU_NODES2=10.78.0.1 10.78.0.2 10.78.0.3",
    ] {
        assert!(environment.lines().any(|have| have == line), "{environment}");
    }
    let nodes = lab.nodes();
    assert_eq!(nodes.len(), 6);
    let of = |node, network| {
        nodes.iter().find(|stats| (stats.node, stats.network) == (node, network)).unwrap()
    };
    // Two echoes of five, and answers to another five.
    assert!(of(3, 1).to_switch.segments >= 15 && of(3, 1).from_switch.segments >= 15);
    assert!(of(3, 2).from_switch.segments == 0, "{nodes:?}");
    assert!(lab.stop().undeliverable >= 1);
}

/// Two senders, one receiver: the line from the switch is the bottleneck, and its queue drops.
#[test]
fn the_line_from_the_switch_is_shared() {
    if !can_run("incast", &["iperf3"]) {
        return;
    }
    let _turn = alone();
    let topology = Topology::Star { nodes: 3, networks: 1 };
    let config = config("rate=50mbit rtt=4ms queue=100");
    let lab = Lab::build(&LabSpec { config, topology, capture: None }).unwrap();
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for (node, port) in [(1, "5201"), (2, "5202")] {
        let mut server = lab.command(End::Node(3), "iperf3");
        server.args(["-s", "-1", "--forceflush", "-p", port]).stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        wait_for_line(&mut server, "Server listening");
        servers.push(server);
        let mut client = lab.command(End::Node(node), "iperf3");
        client.args(["-C", "cubic", "-J", "-t", "3", "-c", "10.77.0.3", "-p", port]);
        clients.push(client.stdout(Stdio::piped()).spawn().unwrap());
    }
    let rates: Vec<f64> = clients
        .into_iter()
        .map(|client| {
            let output = client.wait_with_output().unwrap();
            let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            result["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6
        })
        .collect();
    servers.iter_mut().for_each(|server| drop(server.wait()));
    let sum: f64 = rates.iter().sum();
    assert!((40.0..49.0).contains(&sum), "{rates:?}");
    let nodes = lab.nodes();
    assert!(nodes[2].from_switch.dropped_queue > 0, "{nodes:?}");
    assert_eq!(nodes[0].to_switch.dropped_loss, 0);
}
