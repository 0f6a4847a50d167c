//! `enkaku mirror top`: all mirrors that run here, leg by leg, while they run. On a terminal a live
//! view, elsewhere text or JSON.

mod draw;
mod view;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use daemon::mirror::control::{Request, ask};
use daemon::mirror::files::{Files, Surroundings, check_name};
use ratatui::crossterm::event::{self, Event};
use tokio::task::JoinSet;
use wanlab::units::parse_duration;

use self::view::{Seen, View};
use crate::cmd::live::{KEY_WAIT, Key, key};
use crate::cmd::monitor::INTERVAL_MIN;
use crate::cmd::{Usage, say, stop_signal};

/// A mirror that does not answer within this time is shown as such.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A live view of the mirrors that run: each leg's state, lag, rate, what is left to copy and when
/// that is done.
///
/// On a terminal q quits and ↑ ↓ choose a leg; elsewhere, lines of text, once unless --count is
/// given.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Only these [default: all that run].
    #[arg(value_name = "NAME", value_parser = check_name)]
    names: Vec<String>,
    /// Where configurations are [default: /etc/enkaku/mirrors for root, else
    /// ~/.config/enkaku/mirrors].
    #[arg(long, value_name = "DIR", env = "ENKAKU_MIRROR_CONFIG_DIR")]
    config_dir: Option<PathBuf>,
    /// Time between two looks.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    interval: Duration,
    /// End after so many looks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Lines of text also on a terminal.
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// An array of what `status --json` prints, a line for each look.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.interval < INTERVAL_MIN {
        return Err(Usage::error("--interval must be 100ms or more"));
    }
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if args.json || args.plain || !terminal {
        return lines(&args).await;
    }
    // Wrong folders are told before the screen is taken.
    args.which()?;
    let mut terminal = ratatui::try_init()?;
    let outcome = screen(&mut terminal, &args).await;
    ratatui::restore();
    outcome.map(|()| ExitCode::SUCCESS)
}

impl Args {
    /// The mirrors to look at now: those named, or whose sockets are there.
    fn which(&self) -> anyhow::Result<Vec<Files>> {
        let (folder, around) = (self.config_dir.as_deref(), Surroundings::of_this_process());
        if self.names.is_empty() {
            return Files::of_sockets(folder, &around).map_err(Usage::error);
        }
        // Once each, whatever was typed.
        let names: BTreeSet<&String> = self.names.iter().collect();
        let files = names.into_iter().map(|name| Files::new(name, folder, &around));
        files.collect::<Result<_, _>>().map_err(Usage::error)
    }

    /// One look at all of them, in the order of their names.
    async fn look(&self) -> anyhow::Result<Vec<Seen>> {
        let mut asked = JoinSet::new();
        for files in self.which()? {
            asked.spawn(async move { look_at(&files).await });
        }
        let mut seen = asked.join_all().await;
        // A socket that nobody serves any more was left by a process that was killed.
        seen.retain(|seen| !self.names.is_empty() || !matches!(seen, Seen::Stopped(_)));
        seen.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(seen)
    }
}

async fn look_at(files: &Files) -> Seen {
    let name = files.name().to_owned();
    let answer = match tokio::time::timeout(ANSWER_MAX, ask(files.socket(), &Request::Status)).await
    {
        Ok(answer) => answer,
        Err(_) => {
            return Seen::Silent(name, format!("no answer within {} s", ANSWER_MAX.as_secs()));
        }
    };
    use std::io::ErrorKind as K;
    match answer {
        Ok(answer) => match answer.status {
            Some(report) => Seen::Running(Box::new(report)),
            None => Seen::Silent(name, answer.errors.join("; ")),
        },
        Err(error) if matches!(error.kind(), K::NotFound | K::ConnectionRefused) => {
            Seen::Stopped(name)
        }
        Err(error) => Seen::Silent(name, crate::cmd::without_numbers(&error.to_string())),
    }
}

async fn lines(args: &Args) -> anyhow::Result<ExitCode> {
    let mut view = View::new();
    let mut any = false;
    let stop = stop_signal();
    tokio::pin!(stop);
    for look in 0..args.count.unwrap_or(1) {
        if look > 0 {
            tokio::select! {
                () = tokio::time::sleep(args.interval) => {}
                _ = &mut stop => break,
            }
        }
        let began = Instant::now();
        view.show(args.look().await?, began);
        any = view.seen.iter().any(|seen| matches!(seen, Seen::Running(_)));
        match args.json {
            true => {
                let reports: Vec<_> = view.seen.iter().filter_map(Seen::report).collect();
                say(serde_json::to_string(&reports)?)?;
            }
            false => say(draw::text(&view))?,
        }
    }
    Ok(ExitCode::from(u8::from(!any)))
}

async fn screen(terminal: &mut ratatui::DefaultTerminal, args: &Args) -> anyhow::Result<()> {
    let mut view = View::new();
    let stop = tokio::spawn(stop_signal());
    let mut done = 0;
    let mut next = Instant::now();
    while args.count.is_none_or(|count| done < count) && !stop.is_finished() {
        if Instant::now() >= next {
            next = Instant::now() + args.interval;
            view.show(args.look().await?, Instant::now());
            done += 1;
        }
        terminal.draw(|frame| draw::frame(frame, &view))?;
        // Keys are waited for where no other task is.
        let wait = next.saturating_duration_since(Instant::now());
        let key = tokio::task::block_in_place(|| key_within(wait, &stop))?;
        match key {
            Some(Key::Quit) => break,
            Some(Key::Up) => view.step(false),
            Some(Key::Down) => view.step(true),
            None => {}
        }
    }
    stop.abort();
    Ok(())
}

/// The next key, or none when the time is over, the window has changed, or a signal has come.
fn key_within<T>(
    wait: Duration,
    stop: &tokio::task::JoinHandle<T>,
) -> std::io::Result<Option<Key>> {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if event::poll(left.min(KEY_WAIT))? {
            let event = event::read()?;
            match key(&event) {
                None if matches!(event, Event::Resize(..)) => return Ok(None),
                None => continue,
                some => return Ok(some),
            }
        }
        if left.is_zero() || stop.is_finished() {
            return Ok(None);
        }
    }
}
