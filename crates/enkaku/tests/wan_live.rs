//! `enkaku wan up|exec|set|show|down`: a lab in the background, and nothing left when it ends.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take that should happen at once, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A runtime folder of its own, and the labs in it.
struct Labs {
    folder: PathBuf,
}

impl Labs {
    /// `None` where this machine cannot build labs.
    fn new(test: &str) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("enkaku-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let labs = Self { folder };
        let probe = labs.wan("run --rate 1gbit --rtt 0 -- true");
        if probe.status.success() {
            return Some(labs);
        }
        let why = String::from_utf8_lossy(&probe.stderr).into_owned();
        assert!(why.contains("user namespace") || why.contains("/dev/net/tun"), "{why}");
        eprintln!("SKIPPED {test}: {why}");
        None
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_enkaku"));
        command.arg("wan").args(arguments.split(' ')).env("XDG_RUNTIME_DIR", &self.folder);
        command
    }

    fn wan(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn json(&self, arguments: &str) -> Value {
        let output = self.wan(arguments);
        assert!(output.status.success(), "{arguments}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("enkaku/wan-lab.sock")
    }

    /// A process in the lab, and the inode of its namespace.
    fn inside(&self, end: &str) -> (Child, u64) {
        let mut command = self.command(&format!("exec lab {end} --"));
        let child = command.args(["sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        let inode = fs::metadata(format!("/proc/{}/ns/net", child.id())).unwrap().ino();
        (child, inode)
    }
}

impl Drop for Labs {
    fn drop(&mut self) {
        self.wan("down lab");
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Whether any process is in the namespace or holds it open.
fn is_used(inode: u64) -> bool {
    let link = format!("net:[{inode}]");
    let is_it = |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str() == link.as_str());
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|process| {
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten();
        is_it(&process.path().join("ns/net"))
            || files.filter_map(Result::ok).any(|file| is_it(&file.path()))
    })
}

#[test]
fn a_lab_lives_from_up_to_down() {
    let Some(labs) = Labs::new("live") else { return };
    let up = labs.json("up lab --rate 100mbit:20mbit --rtt 10ms --queue 500:64k --json");
    assert_eq!(up["link"]["far_to_near"]["rate_bits_per_s"], 20_000_000);
    assert_eq!(up["link"]["far_to_near"]["queue_bytes"], 65_536);
    assert_eq!(fs::metadata(labs.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    // The name is taken; the socket is the first lab's still.
    let again = labs.wan("up lab --rate 1gbit --rtt 0");
    assert_eq!(again.status.code(), Some(2), "{again:?}");

    let mut exec = labs.command("exec lab far --");
    exec.args(["sh", "-c", "test $ENKAKU_NEAR = 10.77.0.1"]);
    assert_eq!(exec.status().unwrap().code(), Some(0));
    let mut exec = labs.command("exec lab near --");
    assert_eq!(exec.args(["sh", "-c", "exit 9"]).status().unwrap().code(), Some(9));
    assert_eq!(labs.wan("exec lab near -- /no/such/program").status.code(), Some(127));

    let set =
        labs.json("set lab --loss 1 --rtt 30ms --wmem 8M --sysctl near.net.ipv4.tcp_sack=0 --json");
    assert_eq!(set["link"]["near_to_far"]["delay_us"], 15_000.0);
    assert_eq!(set["link"]["near_to_far"]["rate_bits_per_s"], 100_000_000);
    assert_eq!(set["tcp"]["near"]["tcp_wmem"], "4096 16384 8388608");
    assert_eq!(set["tcp"]["near"]["sysctls"]["net.ipv4.tcp_sack"], "0");
    assert_eq!(set["tcp"]["far"]["sysctls"]["net.ipv4.tcp_sack"], "1");
    let ping = labs.wan("exec lab near -- ping -c 2 -i 0.1 -W 0.2 10.77.0.2");
    assert_eq!(ping.status.code(), Some(1), "all is lost: {ping:?}");
    let show = labs.json("show lab --json");
    assert!(show["near_to_far"]["dropped_loss"].as_u64() >= Some(2), "{show}");
    for field in ["segments", "bytes", "dropped_police", "dropped_queue", "dropped_loss"] {
        assert!(show["far_to_near"][field].is_u64(), "{show}");
    }
    let policed = labs.json("set lab --loss 0 --police 10mbit,64k:0 --json");
    assert_eq!(policed["link"]["near_to_far"]["police"]["burst_bytes"], 65_536);
    assert!(policed["link"]["far_to_near"]["police"].is_null(), "{policed}");
    let text = String::from_utf8(labs.wan("show lab").stdout).unwrap();
    assert!(text.contains("policed at 10 Mbit/s, burst 65536 bytes"), "{text}");
    let classed = labs.json("set lab --classes weighted,ef=4,rest=1:fifo --ecn 0:30k --json");
    assert_eq!(classed["link"]["near_to_far"]["classes"], "weighted,ef=4,rest=1");
    assert_eq!(classed["link"]["far_to_near"]["ecn"]["queue_bytes"], 30_720);
    let ping = labs.wan("exec lab near -- ping -c 2 -i 0.1 -Q 0xb8 10.77.0.2");
    assert_eq!(ping.status.code(), Some(0), "{ping:?}");
    let show = labs.json("show lab --json");
    let ef = &show["near_to_far"]["classes"][0];
    assert!(ef["class"] == "ef" && ef["segments"].as_u64() >= Some(2), "{show}");
    assert!(ef["queued"]["p99_us"].is_f64(), "{show}");
    let text = String::from_utf8(labs.wan("show lab").stdout).unwrap();
    assert!(text.contains("for each of weighted,ef=4,rest=1"), "{text}");
    assert!(text.contains("ECN above 30720 bytes") && text.contains("class ef: "), "{text}");
    assert_eq!(labs.json("show --json").as_array().unwrap().len(), 1);

    let (mut sleeper, inode) = labs.inside("far");
    let down = labs.json("down lab --json");
    assert!(down["near_to_far"]["dropped_loss"].as_u64() >= Some(2), "{down}");
    assert!(!sleeper.wait().unwrap().success());
    assert!(!is_used(inode) && !labs.socket().exists());
    assert_eq!(labs.wan("show lab").status.code(), Some(2));
}

#[test]
fn a_killed_owner_leaves_nothing_behind() {
    let Some(labs) = Labs::new("killed") else { return };
    for signal in ["-KILL", "-TERM"] {
        let up = labs.json(
            "up lab --star 3 --networks 2 --rate 1gbit --rtt 1ms --node 2-3.rate=10mbit:20mbit \
             --node 3.queue=64k --json",
        );
        assert_eq!(up["nodes"].as_array().unwrap().len(), 6);
        let third = &up["link"]["nodes"]["3"];
        assert_eq!(third["from_switch"]["rate_bits_per_s"], 20_000_000);
        assert_eq!(third["to_switch"]["queue_bytes"], 65_536);
        let (mut sleeper, inode) = labs.inside("node2");
        assert!(is_used(inode));
        let owner = up["pid"].to_string();
        assert!(Command::new("kill").args([signal, &owner]).status().unwrap().success());
        assert!(!sleeper.wait().unwrap().success());
        let deadline = Instant::now() + PATIENCE;
        while is_used(inode) || labs.socket().exists() {
            assert!(Instant::now() < deadline, "{signal}: namespace or socket left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn wrong_requests_get_one_line_and_exit_code_2() {
    let Some(labs) = Labs::new("wrong") else { return };
    labs.json("up lab --rate 1gbit --rtt 1ms --json");
    for (arguments, why) in [
        ("up x --rtt 1ms", "a rate is needed"),
        ("up x --rate 1gbit", "a delay is needed"),
        ("up x --rate 1gbit --rtt -1ms", "is negative"),
        ("up x --rate 1gbit:2gbit:3gbit --rtt 1ms", "unknown unit"),
        ("up x --rate 1gbit --rtt 1ms --delay 1ms", "cannot be used with"),
        ("up x --rate 1gbit --rtt 1ms --burst 0.1,0", "never end"),
        ("up x --rate 1gbit --rtt 1ms --jitter 1ms,gauss", "gauss"),
        ("up x --rate 1gbit --rtt 1ms --queue 2k --mtu 9000", "at least 1 packet"),
        ("up x --rate 1gbit --rtt 1ms --star 1", "nodes"),
        ("up x --rate 1gbit --rtt 1ms --networks 2", "--star"),
        ("up x --rate 1gbit --rtt 1ms --node 2.rate=1mbit", "only a star"),
        ("up x --rate 1gbit --rtt 1ms --star 2 --node 3.rate=1mbit", "so many nodes"),
        ("up x --rate 1gbit --rtt 1ms --star 2 --node 3.mtu=9000", "3.rate=100mbit"),
        ("up x --rate 1gbit --rtt 1ms --classes strict,ef", "must be rest"),
        ("up x --rate 1gbit --rtt 1ms --ecn 1000b", "ECN threshold"),
        ("up a/b --rate 1gbit --rtt 1ms", "lab name"),
        ("up x --rate 1gbit --rtt 1ms --sysctl net.ipv4.no_such_thing=1", "net.ipv4.no_such"),
        ("up x --rate 1gbit --rtt 1ms --profile /no/such/file", "/no/such/file"),
        ("run --rate 1gbit --rtt 1ms --sysctl net.ipv4.no_such_thing=1 -- true", "no_such"),
        ("set lab", "nothing to set"),
        ("set lab --loss 1.5", "is above 1"),
        ("set lab --queue 1000b", "at least 1 packet"),
        ("set nobody --loss 0", "\"nobody\""),
        ("exec lab node1 -- true", "near, far"),
        ("down nobody", "\"nobody\""),
    ] {
        let output = labs.wan(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        assert!(text.contains(why) && text.lines().count() == 1, "{arguments}: {text}");
    }
    assert_eq!(labs.json("show --json").as_array().unwrap().len(), 1);
}
