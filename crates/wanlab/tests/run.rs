//! `run`: order, readiness, exit codes, and nothing left behind however it ends.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod common;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::can_run;
use wanlab::{FarCommand, LabConfig, Ready, RunError, RunReport, RunSpec, run};

const ROLE: &str = "WANLAB_TEST_ROLE";
/// How long anything may take that should happen at once, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn spec(near: &str, far: Option<(&str, Option<&str>)>) -> RunSpec {
    let ready = |text: &str| Ready { text: text.into(), timeout: Duration::from_secs(5) };
    RunSpec {
        lab: LabConfig::default(),
        near: ["sh", "-c", near].map(OsString::from).to_vec(),
        far: far.map(|(shell, text)| FarCommand { shell: shell.into(), ready: text.map(ready) }),
        profile: wanlab::Profile::default(),
        capture: None,
    }
}

fn run_in_lab(near: &str, far: Option<(&str, Option<&str>)>) -> Result<RunReport, RunError> {
    run(&spec(near, far))
}

#[test]
fn the_exit_code_is_the_near_commands() {
    if !can_run("exit code", &[]) {
        return;
    }
    assert_eq!(run_in_lab("exit 0", None).unwrap().exit_code, 0);
    assert_eq!(run_in_lab("exit 7", None).unwrap().exit_code, 7);
    assert_eq!(run_in_lab("kill -9 $$", None).unwrap().exit_code, 137);
}

#[test]
fn the_far_command_is_ready_before_the_near_one_starts_and_ends_after_it() {
    if !can_run("far", &["ping"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("order").display().to_string();
    let far = format!(
        "trap 'echo far ends >> {file}; exit' TERM; sleep 0.3; echo far ready >> {file}; \
         echo now listening on nothing; while :; do sleep 0.05; done"
    );
    let near = format!("ping -c 1 -q $ENKAKU_FAR && echo near >> {file}");
    let report = run_in_lab(&near, Some((&far, Some("listening on")))).unwrap();
    assert_eq!(report.exit_code, 0);
    // The echo, and what IPv6 says to its multicast groups.
    assert!((1..5).contains(&report.stats.near_to_far.segments), "{report:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "far ready\nnear\nfar ends\n");
}

#[test]
fn a_far_command_that_fails_ends_the_run_and_is_named() {
    if !can_run("far fails", &[]) {
        return;
    }
    let started = Instant::now();
    let early = run_in_lab("sleep 60", Some(("exit 3", Some("ready")))).unwrap_err();
    assert!(matches!(early, RunError::FarEndedEarly { .. }), "{early:?}");
    assert!(early.to_string().contains("exit status: 3"), "{early}");
    let later = run_in_lab("sleep 60", Some(("sleep 0.2; kill -9 $$", None))).unwrap_err();
    assert!(matches!(later, RunError::FarFailed { .. }), "{later:?}");
    assert!(later.to_string().contains("signal: 9"), "{later}");
    let mut silent = spec("sleep 60", Some(("sleep 60", Some("ready"))));
    silent.far.as_mut().unwrap().ready.as_mut().unwrap().timeout = Duration::from_millis(100);
    let silent = run(&silent).unwrap_err();
    assert!(silent.to_string().contains("\"ready\" within 100ms"), "{silent}");
    let missing = RunSpec { near: vec!["/no/such/program".into()], ..spec("", None) };
    let missing = run(&missing).unwrap_err();
    assert!(missing.to_string().contains("/no/such/program"), "{missing}");
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn a_far_command_that_has_done_its_work_may_go() {
    if !can_run("far done", &[]) {
        return;
    }
    assert_eq!(run_in_lab("sleep 0.3; exit 5", Some(("exit 0", None))).unwrap().exit_code, 5);
}

/// Not a test: a process that holds a run, for the tests below to kill. The near command starts a
/// daemon that leaves its group and outlives any polite signal.
#[test]
fn role() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let near = "trap '' HUP INT; setsid sh -c 'trap \"\" TERM HUP; exec sleep 600' & \
                echo near $$ $!; sleep 600";
    let far = "echo far $$; setsid sleep 600 & sleep 600";
    let report = run_in_lab(near, Some((far, Some("far"))));
    println!("ended {:?}", report.map(|report| report.exit_code));
}

/// A process that holds a run.
struct Holder {
    child: Child,
    /// What it prints after the near command has begun.
    lines: mpsc::Receiver<String>,
    /// The namespace's.
    inode: u64,
}

impl Holder {
    /// Starts one that ignores these signals and no other: who runs the tests may ignore some, as
    /// the shell does for what it starts in the background.
    fn start(ignored: &[&str]) -> Self {
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", "--default-signal=INT", "--default-signal=TERM"]);
        command.args(ignored.iter().map(|signal| format!("--ignore-signal={signal}")));
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture"]).env(ROLE, "hold");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (said, lines) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| drop(said.send(line)));
        });
        let mut holder = Self { child, lines, inode: 0 };
        let line = holder.line_with("near ");
        let near = line.split(' ').nth(1).unwrap();
        holder.inode = fs::metadata(format!("/proc/{near}/ns/net")).unwrap().ino();
        holder
    }

    fn line_with(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|error| panic!("no line with {text:?}: {error}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Nobody waits for ten minutes because a test has failed.
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Whether any process is in the namespace or holds it open.
fn is_used(inode: u64) -> bool {
    let link = format!("net:[{inode}]");
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|process| {
        let inside = fs::metadata(process.path().join("ns/net"));
        let files = fs::read_dir(process.path().join("fd"));
        inside.is_ok_and(|inside| inside.ino() == inode)
            || files.into_iter().flatten().filter_map(Result::ok).any(|file| {
                fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == link.as_str())
            })
    })
}

fn wait_until_unused(inode: u64) {
    let deadline = Instant::now() + PATIENCE;
    while is_used(inode) {
        assert!(Instant::now() < deadline, "namespace {inode} is still in use");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    if !can_run("killed", &[]) {
        return;
    }
    let mut holder = Holder::start(&[]);
    assert!(is_used(holder.inode));
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    wait_until_unused(holder.inode);
}

#[test]
fn a_signal_ends_both_commands_and_leaves_nothing_behind() {
    if !can_run("signal", &[]) {
        return;
    }
    for (signal, code) in [("-HUP", 129), ("-INT", 130), ("-TERM", 143)] {
        let mut holder = Holder::start(&[]);
        holder.signal(signal);
        // It ends by itself, having taken down the lab.
        assert_eq!(holder.line_with("ended"), format!("ended Ok({code})"));
        assert!(!is_used(holder.inode), "{signal}");
        assert!(holder.child.wait().unwrap().success());
    }
}

#[test]
fn a_signal_that_was_ignored_stays_so() {
    if !can_run("ignored", &[]) {
        return;
    }
    let holder = Holder::start(&["HUP", "INT"]); // `nohup wanlab run ... &` of a shell
    for signal in ["-HUP", "-INT", "-TERM"] {
        holder.signal(signal);
    }
    assert_eq!(holder.line_with("ended"), "ended Ok(143)");
}
