//! TCP data arrive as they were sent while segments are dropped and super-packets cut.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use common::{can_run, wait_for_line};
use wanlab::{DirectionConfig, End, FAR_V4, FAR_V6, Lab, LabConfig};

const ROLE: &str = "WANLAB_TEST_ROLE";
const ADDRESS: &str = "WANLAB_TEST_ADDRESS";
const BYTES: &str = "WANLAB_TEST_BYTES";
const PORT: u16 = 7077;

/// Which bytes belong at each place of the stream: a generator that no cut, repetition or swap of
/// segments could agree with.
struct Pattern(u64);

impl Pattern {
    fn fill(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_mut(8) {
            // xorshift64.
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]);
        }
    }
}

/// Not a test: what this program does when a test runs it inside the lab.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let address: IpAddr = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let bytes: usize = std::env::var(BYTES).unwrap().parse().unwrap();
    let mut pattern = Pattern(0x1234_5678_9abc_def1);
    let mut expected = vec![0; 1 << 16];
    match role.as_str() {
        "receive" => {
            let listener = TcpListener::bind((address, PORT)).unwrap();
            println!("listening");
            let (mut peer, _) = listener.accept().unwrap();
            let mut got = vec![0; 1 << 16];
            for block in 0..bytes >> 16 {
                peer.read_exact(&mut got).unwrap();
                pattern.fill(&mut expected);
                assert!(got == expected, "block {block} of 64 KiB differs");
            }
            assert_eq!(peer.read(&mut got).unwrap(), 0, "more than was sent");
            peer.write_all(b"intact").unwrap();
        }
        "send" => {
            let mut peer = TcpStream::connect((address, PORT)).unwrap();
            for _ in 0..bytes >> 16 {
                pattern.fill(&mut expected);
                peer.write_all(&expected).unwrap();
            }
            peer.shutdown(Shutdown::Write).unwrap();
            let mut verdict = String::new();
            peer.read_to_string(&mut verdict).unwrap();
            assert_eq!(verdict, "intact");
        }
        other => panic!("no role {other}"),
    }
}

fn transfer(address: IpAddr, bytes: usize, line: DirectionConfig) {
    transfer_while(address, bytes, line, |_| {});
}

/// With something to be done to the lab again and again while data flow.
fn transfer_while(
    address: IpAddr,
    bytes: usize,
    line: DirectionConfig,
    mut disturb: impl FnMut(&mut Lab),
) {
    let config = LabConfig::symmetric(line, Duration::from_millis(4));
    let mut lab = Lab::new(&config).unwrap();
    let run = |end, role| {
        let mut command = lab.command(end, std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture"]).env(ROLE, role);
        command.env(ADDRESS, address.to_string()).env(BYTES, bytes.to_string());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut receiver = run(End::Far, "receive");
    wait_for_line(&mut receiver, "listening");
    let mut sender = run(End::Near, "send");
    while sender.try_wait().unwrap().is_none() {
        disturb(&mut lab);
        std::thread::sleep(Duration::from_millis(20));
    }
    let sender = sender.wait_with_output().unwrap();
    assert!(sender.status.success(), "{}", String::from_utf8_lossy(&sender.stdout));
    assert!(receiver.wait().unwrap().success());
    let link = lab.stop();
    println!("{address}: {} MiB intact, {link:?}", bytes >> 20);
    assert!(link.near_to_far.bytes >= bytes as u64);
    let dropped = link.near_to_far.dropped_loss + link.near_to_far.dropped_queue;
    assert!(dropped > 20, "nothing was dropped, so nothing was tested: {link:?}");
}

#[test]
fn data_arrive_intact_under_loss() {
    if !can_run("integrity", &[]) {
        return;
    }
    let lossy = DirectionConfig { loss: 1e-3, seed: 5, ..DirectionConfig::default() };
    transfer(FAR_V4.into(), 256 << 20, lossy.clone());
    transfer(FAR_V6.into(), 64 << 20, lossy);
}

/// A short queue cuts super-packets at their tail, many times more often than random loss does.
#[test]
fn data_arrive_intact_through_a_short_queue() {
    if !can_run("integrity", &[]) {
        return;
    }
    let short = DirectionConfig {
        queue: wanlab::Queue::Packets(30),
        seed: 5,
        ..DirectionConfig::default()
    };
    transfer(FAR_V4.into(), 64 << 20, short.clone());
    transfer(FAR_V6.into(), 64 << 20, short);
}

/// Packets that overtake each other, bursts that cut super-packets, and a line whose rate, delay,
/// queue, classes and MTU change fifty times a second.
#[test]
fn data_arrive_intact_on_a_line_that_changes() {
    if !can_run("integrity", &[]) {
        return;
    }
    let line = DirectionConfig {
        jitter: wanlab::Jitter::parse("1ms,reorder").unwrap(),
        burst: Some(wanlab::GilbertElliott::parse("0.0005,0.4").unwrap()),
        seed: 5,
        ..DirectionConfig::default()
    };
    let mut steps = [
        "rate=300mbit delay=1ms:5ms",
        "rate=2gbit rtt=1ms mtu=1400 classes=weighted,ef=3,rest=1",
        "mtu=1500 ecn=30k",
        "rate=500mbit classes=strict,ef,rest",
        "queue=64k jitter=0 ecn=0",
        "queue=500 jitter=500us,normal,reorder rate=1gbit classes=fifo",
    ]
    .map(|text| wanlab::Settings::parse(text).unwrap())
    .into_iter()
    .cycle();
    transfer_while(FAR_V4.into(), 64 << 20, line.clone(), |lab| {
        lab.set(&steps.next().unwrap()).unwrap();
    });
    transfer_while(FAR_V6.into(), 16 << 20, line, |lab| {
        lab.set(&steps.next().unwrap()).unwrap();
    });
}

#[test]
#[ignore = "takes minutes: cargo test -p enkaku-wanlab -- --ignored"]
fn a_gibibyte_arrives_intact_under_loss() {
    if !can_run("integrity", &[]) {
        return;
    }
    let lossy = DirectionConfig { loss: 1e-3, seed: 6, ..DirectionConfig::default() };
    transfer(FAR_V4.into(), 1 << 30, lossy);
}
