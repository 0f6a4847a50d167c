//! Classes and ECN with the kernel's TCP: who gets which part of a line, what waits how long, and
//! who hears of congestion without a loss.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod common;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{alone, can_run, wait_for_line};
use serde_json::Value;
use wanlab::{ClassCounters, End, Lab, LabConfig, LabSpec, Settings, Topology};

/// DSCP 46 as programs want it, above the two bits of ECN.
const EF: &str = "0xb8";

/// How long something may take that is waited for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn config(text: &str) -> LabConfig {
    Settings::parse(text).unwrap().applied_to(&LabConfig::default()).unwrap()
}

fn server(lab: &Lab, end: End, port: &str) -> Child {
    let mut server = lab.command(end, "iperf3");
    server.args(["-s", "-1", "--forceflush", "-p", port]).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    wait_for_line(&mut server, "Server listening");
    server
}

/// An endless transfer, to be killed.
fn load(lab: &Lab, from: End, to: &str, port: &str, tos: &str) -> Child {
    let mut client = lab.command(from, "iperf3");
    client.args(["-C", "cubic", "-t", "600", "-S", tos, "-c", to, "-p", port]);
    client.stdout(Stdio::null()).spawn().unwrap()
}

fn end(children: impl IntoIterator<Item = Child>) {
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// The classes of the third node's line from the switch.
fn classes(lab: &Lab) -> Vec<ClassCounters> {
    lab.nodes().swap_remove(2).from_switch.classes
}

/// The median round-trip time in milliseconds.
fn ping_ms(lab: &Lab, tos: &str) -> f64 {
    let mut ping = lab.command(End::Node(1), "ping");
    let output = ping.args("-n -c 40 -i 0.02 -W 5 10.77.0.3 -Q".split(' ').chain([tos])).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let time = |line: &str| line.split_once("time=")?.1.split(' ').next()?.parse().ok();
    let mut times: Vec<f64> = text.lines().filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    assert!(times.len() > 20, "{text}");
    times[times.len() / 2]
}

/// Two senders, one receiver whose line is slow: first shares by weight, then messages before bulk
/// data, then all wait together.
#[test]
fn tcp_gets_the_share_of_its_class_and_messages_need_not_wait() {
    if !can_run("classes", &["iperf3", "ping"]) {
        return;
    }
    let _turn = alone();
    let topology = Topology::Star { nodes: 3, networks: 1 };
    let text = "rate=1gbit rtt=1ms queue=128k node=3.rate=1gbit:20mbit \
                node=3.classes=fifo:weighted,ef=3,rest=1";
    let mut lab = Lab::build(&LabSpec { config: config(text), topology, capture: None }).unwrap();
    let servers = [server(&lab, End::Node(3), "5201"), server(&lab, End::Node(3), "5202")];
    let loads = [
        load(&lab, End::Node(1), "10.77.0.3", "5201", EF),
        load(&lab, End::Node(2), "10.77.0.3", "5202", "0"),
    ];
    // Both have filled their queues once.
    let deadline = Instant::now() + PATIENCE;
    while classes(&lab).iter().any(|class| class.dropped_queue == 0) {
        assert!(Instant::now() < deadline, "{:?}", classes(&lab));
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = classes(&lab);
    // 20 Mbit/s for the time of 5 MB.
    let bytes = |class: &[ClassCounters], at: usize| class[at].bytes - before[at].bytes;
    let mut after = classes(&lab);
    while bytes(&after, 0) + bytes(&after, 1) < 5_000_000 {
        assert!(Instant::now() < deadline, "{after:?}");
        std::thread::sleep(Duration::from_millis(50));
        after = classes(&lab);
    }
    let (ef, rest) = (bytes(&after, 0) as f64, bytes(&after, 1) as f64);
    let share = ef / (ef + rest);
    println!("ef has {share:.4} of the line");
    assert!((share - 0.75).abs() < 0.03, "{share} of {before:?} to {after:?}");
    end(loads);
    end(servers);

    // An echo waits for one segment of 0.6 ms; without its class for a queue of 50 ms.
    let bulk = server(&lab, End::Node(3), "5203");
    let flow = load(&lab, End::Node(2), "10.77.0.3", "5203", "0");
    lab.set(&Settings::parse("node=3.classes=fifo:strict,ef,rest").unwrap()).unwrap();
    let drops = |lab: &Lab| classes(lab).iter().map(|class| class.dropped_queue).max();
    let before = drops(&lab);
    let urgent_before = classes(&lab).swap_remove(0);
    while drops(&lab) <= before {
        assert!(Instant::now() < deadline, "{:?}", classes(&lab));
        std::thread::sleep(Duration::from_millis(20));
    }
    let urgent = ping_ms(&lab, EF);
    let bulky = ping_ms(&lab, "0");
    let [ef, rest] = classes(&lab).try_into().unwrap();
    println!("echoes take {urgent} ms before and {bulky} ms behind bulk data");
    assert!(urgent < 8.0 && bulky > 15.0, "{urgent} {bulky}");
    assert_eq!(ef.dropped_queue, urgent_before.dropped_queue);
    assert!(rest.queued.mean_us() > 10_000.0, "{rest:?}");
    end([flow, bulk]);
}

/// Sender and receiver agree to hear marks: no segment is lost, and the queue stays short.
#[test]
fn marks_keep_a_queue_short_without_losses() {
    if !can_run("ecn", &["iperf3"]) {
        return;
    }
    let _turn = alone();
    let text = "rate=50mbit rtt=4ms queue=2000 ecn=60k classes=weighted,ef=1,rest=1 \
                sysctl=net.ipv4.tcp_ecn=1";
    let lab = Lab::new(&config(text)).unwrap();
    let mut far = server(&lab, End::Far, "5201");
    let mut client: Command = lab.command(End::Near, "iperf3");
    client.args(["-C", "cubic", "-J", "-n", "20M", "-c", "10.77.0.2"]);
    let result: Value = serde_json::from_slice(&client.output().unwrap().stdout).unwrap();
    far.wait().unwrap();
    assert_eq!(result["end"]["sender_tcp_congestion"], "cubic", "{result}");
    let mbit = result["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6;
    let there = lab.stop().near_to_far;
    println!("{mbit} of 50 Mbit/s, {} marked", there.marked);
    assert!(there.marked > 5 && there.classes[1].marked == there.marked, "{there:?}");
    assert_eq!((there.dropped_queue, there.dropped_loss), (0, 0));
    assert_eq!(result["end"]["sum_sent"]["retransmits"], 0, "{result}");
    // Marks are heard a round trip later; slow start sends twice as much meanwhile.
    assert!(there.queue_bytes_max < 400_000, "{there:?}");
    assert!(there.classes[1].queued.mean_us() < 20_000.0, "{there:?}");
    assert!(mbit > 35.0, "{mbit} of 50 Mbit/s");
}
