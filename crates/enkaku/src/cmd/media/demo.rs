//! `enkaku media demo`: a disk at home, a server far from it and the line between them on this
//! machine, to be looked at in a browser. Each part is the command that a user would start.

mod disk;
mod program;

use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use wanlab::{End, FAR_V4, Lab, LabConfig, LabError, NEAR_V4, Settings};

use self::program::{Program, Programs};
use super::parse_listen;
use crate::cmd::wan::line::{loss, rate, rtt};
use crate::cmd::{Usage, complain, say, stop_signal};

const IQN: &str = "iqn.2026-11.org.example:films";
const TARGET_PORT: u16 = 3260;
const ISNS_PORT: u16 = 3205;
/// Address of the page at the server's end of the line, in a network of its own.
const PAGE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), super::PORT);
/// How long the target may take until the name server knows it.
const REGISTERED_WITHIN: Duration = Duration::from_secs(20);
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// Shows it on this machine: a disk at home, its target, a name server, the catalogue and the page,
/// with an emulated line between home and server.
///
/// The disk has a test picture of a minute, and whatever videos are named. Prints the address of
/// the page, and goes on until interrupted; nothing of it is left then. Needs ffmpeg, mke2fs, and
/// root or a kernel that lets users make user namespaces.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Videos that are to be on the disk, too.
    #[arg(value_name = "VIDEO")]
    videos: Vec<PathBuf>,
    /// Bits per second of the line: 100mbit, or 500mbit:50mbit for what the home receives and what
    /// it sends.
    #[arg(long, default_value = "100mbit", value_parser = rate)]
    rate: Settings,
    /// Delay of the line, there and back.
    #[arg(long, value_name = "TIME", default_value = "40ms", value_parser = rtt)]
    rtt: Settings,
    /// Probability of each packet to be lost.
    #[arg(long, value_name = "P", default_value = "0", value_parser = loss)]
    loss: Settings,
    /// Address of the page, of this machine only; port 0 takes a free one.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:8080",
          value_parser = parse_listen)]
    listen: SocketAddr,
}

/// Runs the command; call it before the process has a second thread.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = line(args)?;
    let listener = bind(args.listen)?;
    let lab = Lab::new(&config).map_err(|error| match error {
        error if error.is_usage() => Usage::error(error.to_string()),
        error @ LabError::Privilege { .. } => anyhow::Error::new(error),
        error => anyhow::Error::new(error).context("the line between home and server"),
    })?;
    let folder = tempfile::Builder::new().prefix("enkaku-media-demo-").tempdir()?;
    // One thread: what it starts dies with that.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let demo = Demo { lab: &lab, folder: folder.path(), config: &config };
        tokio::select! {
            stopped = stop_signal() => stopped.map(drop)?,
            ended = demo.show(listener, &args.videos) => ended?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn line(args: &Args) -> anyhow::Result<LabConfig> {
    let mut settings = args.rate.clone();
    settings.merge(args.rtt.clone());
    settings.merge(args.loss.clone());
    let config = settings.applied_to(&LabConfig::default());
    config.map_err(|error| Usage::error(error.to_string()))
}

/// The page's address, before the process is anywhere else than here.
fn bind(address: SocketAddr) -> anyhow::Result<StdListener> {
    if !address.ip().to_canonical().is_loopback() {
        let told = format!("--listen {address}: a demo has no accounts; 127.0.0.1 or ::1 is meant");
        return Err(Usage::error(told));
    }
    let listener = StdListener::bind(address).with_context(|| {
        format!("cannot listen on {address} (--listen 127.0.0.1:0 takes a free port)")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What all parts have in common.
struct Demo<'a> {
    lab: &'a Lab,
    /// With the disk, the catalogue and the logs; it goes with the demo.
    folder: &'a Path,
    config: &'a LabConfig,
}

impl Demo<'_> {
    async fn show(&self, listener: StdListener, videos: &[PathBuf]) -> anyhow::Result<()> {
        complain("a test picture and a disk with it are made");
        let disk = disk::make(self.folder, videos).await?;
        let mut programs = Programs::default();
        let home = self.start_home(&disk, &mut programs).await?;
        complain(&format!("the home's target is {home}, says the name server"));
        let catalogue = self.folder.join("catalogue.toml");
        let publish = ["media", "publish", &home, disk::VIDEOS, "--home", "attic", "--catalogue"];
        let publish = Program::new("publish", &publish).with(&catalogue);
        publish.run(self.lab, End::Far, self.folder).await?;
        let serve = Program::new("server", &["media", "serve"]).with(&catalogue);
        let server = serve.start(self.lab, End::Near, self.folder, "http://").await?;
        programs.add(server);
        let listener = TcpListener::from_std(listener)?;
        complain(&format!("between them: {}; Ctrl-C ends it", self.line()));
        say(format_args!("http://{}/", listener.local_addr()?))?;
        tokio::select! {
            ended = programs.ended() => Err(ended),
            relayed = self.relay(listener) => relayed,
        }
    }

    /// The name server beside the media server, and the target at home, which tells it that it is
    /// there; the disk's URL.
    async fn start_home(&self, disk: &Path, programs: &mut Programs) -> anyhow::Result<String> {
        let at = format!("{NEAR_V4}:{ISNS_PORT}");
        let isns = Program::new("name server", &["isns", "serve", "--listen", &at]);
        programs.add(isns.start(self.lab, End::Near, self.folder, "listening on").await?);
        let config = self.folder.join("target.toml");
        std::fs::write(&config, self.target_config(disk))?;
        let target = Program::new("target", &["target", "run", "--config"]).with(&config);
        programs.add(target.start(self.lab, End::Far, self.folder, "listening on").await?);
        let server = format!("isns://{at}");
        let discover = Program::new("discover", &["discover", &server, "--json"]);
        let known = async {
            loop {
                let said = discover.run(self.lab, End::Near, self.folder).await?;
                if let Some(url) = url_of_disk(&said) {
                    return anyhow::Ok(url);
                }
                tokio::time::sleep(ASKED_EVERY).await;
            }
        };
        tokio::select! {
            ended = programs.ended() => Err(ended),
            known = tokio::time::timeout(REGISTERED_WITHIN, known) => {
                known.context("the name server does not know the target")?
            }
        }
    }

    fn target_config(&self, disk: &Path) -> String {
        // A string of JSON is one of TOML (a basic string), too.
        let quoted = |path: &Path| Value::from(path.display().to_string()).to_string();
        let (socket, disk) = (quoted(&self.folder.join("target.sock")), quoted(disk));
        format!(
            "[server]\nadmin_socket = {socket}\n\n\
             [isns]\nserver = \"{NEAR_V4}:{ISNS_PORT}\"\nentity = \"home.example\"\n\n\
             [[portal]]\nname = \"line\"\nlisten = \"{FAR_V4}:{TARGET_PORT}\"\n\n\
             [[target]]\nname = \"{IQN}\"\nanyone = true\n\n\
             [[target.lun]]\nnumber = 0\npath = {disk}\nread_only = true\n"
        )
    }

    /// Takes browsers to the page, which is at the other side of a network that they are not in.
    async fn relay(&self, listener: TcpListener) -> anyhow::Result<()> {
        loop {
            let (mut browser, _) = listener.accept().await?;
            // In the same machine: it is there at once, or refused.
            let page = match self.lab.connect(End::Near, PAGE) {
                Ok(page) => page,
                Err(error) => {
                    complain(&format!("the page cannot be reached: {error}"));
                    continue;
                }
            };
            page.set_nonblocking(true)?;
            let mut page = TcpStream::from_std(page)?;
            tokio::spawn(async move {
                // One of them has gone, which the other sees.
                let _ = tokio::io::copy_bidirectional(&mut browser, &mut page).await;
            });
        }
    }

    fn line(&self) -> String {
        let (there, back) = (&self.config.near_to_far, &self.config.far_to_near);
        let mbit = |line: &wanlab::DirectionConfig| line.rate_bits_per_s as f64 / 1e6;
        let rtt = self.config.rtt();
        let rate = match (mbit(there), mbit(back)) {
            (there, back) if there == back => format!("{back} Mbit/s"),
            (there, back) => format!("{back} Mbit/s from the home, {there} to it"),
        };
        let loss = match back.loss {
            loss if loss > 0.0 => format!(", loss {loss}"),
            _ => String::new(),
        };
        format!("{rate}, RTT {rtt:?}{loss}")
    }
}

/// The URL of the disk in what `discover --json` says.
fn url_of_disk(said: &str) -> Option<String> {
    let said: Value = serde_json::from_str(said).ok()?;
    let ours = said.as_array()?.iter().find(|found| found["target"] == IQN)?;
    ours["luns"].as_array()?.first()?["url"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_found_by_the_name_of_its_target() {
        let said = format!(
            r#"[{{"target": "iqn.x", "portals": []}},
                {{"target": "{IQN}", "portals": ["10.77.0.2:3260"], "luns": [{{"url": "iscsi://a"}}]}}]"#
        );
        assert_eq!(url_of_disk(&said).as_deref(), Some("iscsi://a"));
        assert_eq!(url_of_disk("[]"), None);
        assert_eq!(url_of_disk(&format!(r#"[{{"target": "{IQN}", "luns": []}}]"#)), None);
    }

    #[test]
    fn strangers_are_not_let_in() {
        let error = bind("0.0.0.0:0".parse().unwrap()).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("no accounts"), "{error}");
        assert!(bind("[::1]:0".parse().unwrap()).is_ok());
    }
}
