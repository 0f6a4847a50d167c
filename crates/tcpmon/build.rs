//! Compiles ebpf/events.bpf.c with clang where there is one. Without, the crate is built all the
//! same, and `events::open` says why there are none.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names under which Debian and others install it, the newest first.
const NAMES: &[&str] =
    &["clang", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-14"];
const SOURCES: &[&str] =
    &["events.bpf.c", "acknowledgement.h", "connection.h", "event.h", "kernel.h", "bpf.h"];

/// What the repository is called in the object, as in the packages (xtask/src/dist/release.rs).
const SOURCES_NAMED: &str = "/usr/src/enkaku";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(has_ebpf)");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-env-changed=PATH");
    // A link to the folder at the root, which a package has as files.
    let folder = Path::new("ebpf");
    for name in SOURCES {
        println!("cargo::rerun-if-changed={}", folder.join(name).display());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    match compile(folder, &out.join("events.bpf.o")) {
        Ok(()) => println!("cargo::rustc-cfg=has_ebpf"),
        Err(why) => {
            println!("cargo::warning=built without eBPF: {why}");
            println!("cargo::rustc-env=ENKAKU_WITHOUT_EBPF={why}");
        }
    }
}

/// The reason, in one line, if it cannot be compiled.
fn compile(folder: &Path, object: &Path) -> Result<(), String> {
    if env::var("CARGO_CFG_TARGET_ENDIAN").is_ok_and(|endian| endian == "big") {
        return Err("events are read on little-endian machines only".to_owned());
    }
    let clang = clang()?;
    let crate_folder = env::current_dir().map_err(|error| error.to_string())?;
    let done = Command::new(&clang)
        // CPU version 2 is what every kernel with a ring buffer runs.
        .args(["-target", "bpfel", "-mcpu=v2", "-O2", "-g", "-Wall", "-Wextra", "-c"])
        // The object must not depend on where it was built: neither by the names of its sources nor
        // by the folder of this crate, from which clang makes them absolute.
        .arg(format!("-ffile-prefix-map={}=ebpf", folder.display()))
        .arg(format!("-ffile-prefix-map={}={SOURCES_NAMED}", crate_folder.display()))
        .arg(folder.join("events.bpf.c"))
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| format!("{clang}: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    for line in said.lines().filter(|line| line.contains("warning:") || line.contains("error:")) {
        println!("cargo::warning={line}");
    }
    if done.status.success() {
        return Ok(());
    }
    let first = said.lines().find(|line| line.contains("error")).unwrap_or("no message");
    Err(format!("{clang} does not compile the eBPF programs: {first}"))
}

/// The first clang that runs: that of the environment, if it is named there.
fn clang() -> Result<String, String> {
    let runs = |name: &str| {
        Command::new(name).arg("--version").output().is_ok_and(|done| done.status.success())
    };
    if let Ok(name) = env::var("CLANG") {
        return if runs(&name) { Ok(name) } else { Err(format!("CLANG={name} does not run")) };
    }
    let found = NAMES.iter().find(|name| runs(name));
    found.map(ToString::to_string).ok_or_else(|| "clang was not found".to_owned())
}
