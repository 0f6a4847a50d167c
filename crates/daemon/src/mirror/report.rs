//! [`Report`]: what a mirror tells about itself, as JSON and as text for people.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use block::mirror::{
    Gathered, Guard, Home, HomeWay, LegState, LegStatus, Mode, Order, Sending, Status, Way,
};
use serde::{Deserialize, Serialize};

pub use self::verified::{VerdictReport, VerifyReport};
use super::pace::Pace;

/// Begins the line that an operator looks for: a sentence, not a column.
const PROMOTE: &str = "promote now";

/// A mirror at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// The process that runs it.
    pub pid: u32,
    /// When this was true, in seconds since 1970.
    pub time_s: f64,
    /// Seconds since it was opened.
    pub uptime_s: f64,
    /// Where it can be used: a file, a socket, an address.
    pub front: String,
    /// Size of what is offered, in bytes.
    pub size_bytes: u64,
    /// When a write is told complete.
    pub mode: Mode,
    /// Short name of the present generation.
    pub generation: String,
    /// Bytes written by the user since it was opened.
    pub written_bytes: u64,
    /// Seconds that writes waited for legs since then, all together.
    pub guest_wait_s: f64,
    /// Seconds that writes waited since then because a leg was as far behind as it may be.
    #[serde(default)]
    pub lag_wait_s: f64,
    /// Operations of the user that failed since then.
    pub failed_operations: u64,
    /// Why the local disk does not do its work: what is written is at the legs alone, or nowhere.
    pub local_failure: Option<String>,
    /// The legs, in their order.
    pub legs: Vec<LegReport>,
}

/// A leg at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LegReport {
    /// Its number, from 1.
    pub number: usize,
    /// Its URL or path.
    pub name: String,
    /// Where it stands.
    pub state: LegState,
    /// Seconds for which it has stood there.
    pub since_s: f64,
    /// Why, where there is more to say.
    pub message: Option<String>,
    /// What keeps others from writing there.
    #[serde(default)]
    pub guard: Guard,
    /// How epochs get there, in the asynchronous mode and once it was reached.
    #[serde(default)]
    pub sending: Option<Sending>,
    /// The image there is one that the local device might have had at one moment.
    pub consistent: bool,
    /// Age of the oldest write that is on its way there, in seconds.
    pub lag_s: f64,
    /// Bytes that are on their way there.
    pub lag_bytes: u64,
    /// Bytes of blocks that may differ and are not on their way.
    pub dirty_bytes: u64,
    /// Epochs that are on their way there.
    pub epochs: u64,
    /// The moment whose image is there, in seconds since 1970.
    pub image_time_s: Option<f64>,
    /// What would be missing if the leg were promoted now; nothing where there is no image that
    /// could be promoted without force.
    pub loss: Option<Loss>,
    /// The copy under way, if there is one.
    pub copy: Option<CopyReport>,
    /// Bytes sent to it since the mirror was opened.
    pub sent_bytes: u64,
    /// Bytes of its redo log, 0 without: catch-ups that fit it leave the image one of one moment.
    #[serde(default)]
    pub redo_bytes: u64,
    /// How what is in its redo log gets to its place, once it was reached.
    #[serde(default)]
    pub home: Option<Home>,
    /// Catch-ups since the mirror was opened that turned out not to fit, and went on in place.
    #[serde(default)]
    pub redo_overflows: u64,
    /// Batches of many epochs since the mirror was opened: in the asynchronous mode, where they are
    /// there sooner than epoch after epoch.
    #[serde(default)]
    pub batches: u64,
    /// Why they are sent, once there was one.
    #[serde(default)]
    pub gathered: Option<Gathered>,
    /// What the last verification found, once one has come to its end.
    #[serde(default)]
    pub verified: Option<VerdictReport>,
    /// Bytes of the image that are behind the verification which the mirror makes by itself now.
    #[serde(default)]
    pub verifying_bytes: Option<u64>,
}

/// What a promotion would lose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Seconds of writes; not known of a leg that has not been seen in its image's time.
    pub seconds: Option<f64>,
    /// Bytes of blocks.
    pub bytes: u64,
}

/// A copy to a leg.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyReport {
    /// Bytes that it has moved; through the redo log both ways count, into it and to their place.
    pub done_bytes: u64,
    /// Bytes that it has to move yet.
    pub left_bytes: u64,
    /// Its rate over the last seconds, once known.
    pub bytes_per_s: Option<u64>,
    /// Seconds until it is done at this rate.
    pub left_s: Option<f64>,
    /// Which way it goes.
    #[serde(default)]
    pub way: Way,
}

/// What is known beside the mirror's own status.
pub(crate) struct Beside<'a> {
    pub(crate) name: &'a str,
    pub(crate) front: &'a str,
    pub(crate) uptime: Duration,
    pub(crate) now: SystemTime,
    pub(crate) failed_operations: u64,
    /// One for each leg.
    pub(crate) paces: &'a [Pace],
}

impl Report {
    pub(crate) fn new(status: &Status, beside: &Beside<'_>) -> Self {
        let legs = status.legs.iter().enumerate();
        Self {
            name: beside.name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            time_s: unix_s(beside.now),
            uptime_s: beside.uptime.as_secs_f64(),
            front: beside.front.to_owned(),
            size_bytes: status.size,
            mode: status.mode,
            generation: status.generation.clone(),
            written_bytes: status.written_bytes,
            guest_wait_s: status.guest_wait.as_secs_f64(),
            lag_wait_s: status.lag_wait.as_secs_f64(),
            failed_operations: beside.failed_operations,
            local_failure: status.local_failure.clone(),
            legs: legs
                .map(|(index, leg)| LegReport::new(index, leg, beside.now, beside.paces.get(index)))
                .collect(),
        }
    }

    /// The local disk works, and every leg has what was written, or has it on its way.
    pub fn in_sync(&self) -> bool {
        self.local_failure.is_none() && self.legs.iter().all(|leg| leg.state == LegState::InSync)
    }

    /// For people, several lines.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { name, pid, front, generation, .. } = self;
        let (count, mode) = (self.legs.len(), mode_word(self.mode));
        let legs = if count == 1 { "leg" } else { "legs" };
        let (size, age) = (bytes(self.size_bytes), time(self.uptime_s));
        let mut text = format!(
            "{name}: {size}, {mode}, {count} {legs}; running for {age} as {front} (process {pid}, \
             generation {generation})\n\
             written by its user: {}; writes have waited {} for legs{}\n",
            bytes(self.written_bytes),
            time(self.guest_wait_s),
            match self.mode {
                Mode::Sync => String::new(),
                Mode::Async => format!(", {} at the bound of the lag", time(self.lag_wait_s)),
            }
        );
        if self.failed_operations > 0 {
            let _ = writeln!(text, "operations that failed: {}", self.failed_operations);
        }
        if let Some(failure) = &self.local_failure {
            let _ = writeln!(text, "the local disk has failed: {failure}");
        }
        for leg in &self.legs {
            text.push('\n');
            leg.describe(&mut text, self.time_s);
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl LegReport {
    /// The state as JSON has it.
    pub(crate) fn state_word(&self) -> String {
        let value = serde_json::to_value(self.state).unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    }

    fn new(index: usize, leg: &LegStatus, now: SystemTime, pace: Option<&Pace>) -> Self {
        let copies = matches!(leg.state, LegState::Copying | LegState::CatchingUp);
        let left = leg.left_bytes;
        let copy = copies.then(|| CopyReport {
            done_bytes: leg.done_bytes(),
            left_bytes: left,
            bytes_per_s: pace.and_then(Pace::bytes_per_s),
            left_s: pace.and_then(|pace| pace.time_left(left)).map(|time| time.as_secs_f64()),
            way: leg.way,
        });
        Self {
            number: index + 1,
            name: leg.name.clone(),
            state: leg.state,
            since_s: leg.since.as_secs_f64(),
            message: leg.message.clone(),
            guard: leg.guard,
            sending: leg.sending.clone(),
            consistent: leg.consistent,
            lag_s: leg.lag.as_secs_f64(),
            lag_bytes: leg.lag_bytes,
            dirty_bytes: leg.dirty_bytes,
            epochs: leg.epochs,
            image_time_s: leg.image_time.map(unix_s),
            loss: loss(leg, now),
            copy,
            sent_bytes: leg.sent_bytes,
            redo_bytes: leg.redo_bytes,
            home: leg.home.clone().filter(|_| leg.redo_bytes > 0),
            redo_overflows: leg.fallbacks,
            batches: leg.batches,
            gathered: leg.gathered.clone(),
            verified: leg.verified.as_ref().map(VerdictReport::new),
            verifying_bytes: leg.verifying,
        }
    }

    fn describe(&self, text: &mut String, now_s: f64) {
        let mut line = |label: &str, what: String| {
            let _ = match label {
                PROMOTE => writeln!(text, "  {label} {what}"),
                _ => writeln!(text, "  {label:<13}{what}"),
            };
        };
        let state = state_words(self.state);
        let message = self.message.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        line(&format!("leg {}", self.number), self.name.clone());
        line("", format!("{state} for {}{message}", time(self.since_s)));
        if let Some(copy) = &self.copy {
            line("copy", copy.describe());
        }
        match (self.loss, self.consistent) {
            (Some(loss), _) => line(PROMOTE, format!("would lose: {}", loss.describe())),
            (None, true) => {}
            (None, false) => {
                line(PROMOTE, "is refused: the image there is not of one moment".into());
            }
        }
        if self.lag_bytes > 0 || self.state == LegState::InSync {
            let Self { lag_s, lag_bytes, epochs, .. } = self;
            let batches = match self.batches {
                0 => String::new(),
                batches => format!(", {batches} batches so far"),
            };
            let (lag, bytes) = (time(*lag_s), bytes(*lag_bytes));
            let what = format!("{lag}, {bytes} in {epochs} epochs{batches}");
            line("on its way", what);
        }
        if self.dirty_bytes > 0 && self.copy.is_none() {
            line("to be copied", bytes(self.dirty_bytes));
        }
        if let Some(at) = self.image_time_s {
            line("image of", format!("{} ({} ago)", clock(at), time((now_s - at).max(0.0))));
        }
        match self.guard {
            Guard::Unknown => {}
            Guard::Superblock => line("fence", "none: looked at every 5 s".into()),
            Guard::Reservation => line("fence", "reservation".into()),
        }
        if let Some(Sending { order, why }) = &self.sending {
            let order = match order {
                Order::Stream => "stream",
                Order::Waited => "waited, two round trips an epoch",
            };
            line("order", format!("{order}: {why}"));
        }
        if let Some(Home { way, why }) = &self.home {
            let way = match way {
                HomeWay::Inside => "inside the target",
                HomeWay::SentAgain => "sent again",
            };
            line("home", format!("{way}: {why}"));
        }
        if let Some(Gathered { now, why }) = &self.gathered {
            let of = if *now { "now in a batch" } else { "the last batch" };
            line("", format!("{of}: {why}"));
        }
        match &self.verified {
            Some(verdict) => line("verified", verdict.describe(now_s)),
            None if self.verifying_bytes.is_some() => line("verified", "never to its end".into()),
            None => {}
        }
        if let Some(done) = self.verifying_bytes {
            line("", format!("again now, {} so far", bytes(done)));
        }
        line("sent", bytes(self.sent_bytes));
    }
}

impl Loss {
    /// For people: `1.2 s, 3.4 MB`.
    pub fn describe(&self) -> String {
        match (self.seconds, self.bytes) {
            (Some(0.0), 0) => "nothing".into(),
            (Some(seconds), count) => format!("{}, {}", time(seconds), bytes(count)),
            (None, count) => format!("{} (of how long is not known)", bytes(count)),
        }
    }
}

impl CopyReport {
    /// For people: `120.0 MB done, 60.0 MB left, 30.0 MB/s, about 2.0 s`.
    pub fn describe(&self) -> String {
        let (done, left) = (bytes(self.done_bytes), bytes(self.left_bytes));
        let rate = self.bytes_per_s.map(|rate| format!(", {}/s", bytes(rate)));
        let time = self.left_s.map(|seconds| format!(", about {}", time(seconds)));
        let way = match self.way {
            Way::Atomic => " on both ways, into the redo log and to its place",
            Way::InPlace | Way::Unset => "",
        };
        let (rate, time) = (rate.unwrap_or_default(), time.unwrap_or_default());
        format!("{done} done, {left} left{rate}{time}{way}")
    }
}

/// What a promotion would lose. Only an image of one moment can be promoted without force.
fn loss(leg: &LegStatus, now: SystemTime) -> Option<Loss> {
    let bytes = leg.lag_bytes.saturating_add(leg.dirty_bytes);
    let age = || now.duration_since(leg.image_time?).ok();
    let seconds = match leg.state {
        LegState::InSync => Some(leg.lag),
        LegState::Lost | LegState::Paused | LegState::CatchingUp | LegState::Failed => {
            match (leg.dirty_bytes, leg.way) {
                // The image is that of the moment at which the batch ended, or of before.
                (0, Way::Atomic) if bytes > 0 => age(),
                // All that it lacks is on its way, in order.
                (0, _) => Some(leg.lag),
                _ => age(),
            }
        }
        // There is no image yet, or it is not ours to promote.
        _ => return None,
    };
    let seconds = seconds.map(|time| time.as_secs_f64());
    leg.consistent.then_some(Loss { seconds, bytes })
}

fn unix_s(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Sync => "sync",
        Mode::Async => "async",
    }
}

/// As people say it.
pub fn state_words(state: LegState) -> &'static str {
    match state {
        LegState::Connecting => "connecting",
        LegState::Copying => "first copy under way",
        LegState::InSync => "in sync",
        LegState::Lost => "lost",
        LegState::CatchingUp => "catching up",
        LegState::Paused => "paused",
        LegState::Fenced => "fenced",
        LegState::Diverged => "diverged (split-brain)",
        LegState::Unrelated => "unrelated",
        LegState::Failed => "failed",
    }
}

/// `3.4 MB`: powers of 1000, as lines are rated.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = "bytes";
    for next in ["kB", "MB", "GB", "TB", "PB"] {
        if value < 999.95 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if unit == "bytes" { format!("{count} bytes") } else { format!("{value:.1} {unit}") }
}

/// `0.3 s`, `12 s`, `4 min 10 s`, `3 h 5 min`, `2 d 4 h`.
pub fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    let two = |large, large_unit, small, small_unit| match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match whole {
        _ if seconds < 9.95 => format!("{seconds:.1} s"),
        0..60 => format!("{whole} s"),
        60..3600 => two(whole / 60, "min", whole % 60, "s"),
        3600..86_400 => two(whole / 3600, "h", whole % 3600 / 60, "min"),
        _ => two(whole / 86_400, "d", whole % 86_400 / 3600, "h"),
    }
}

/// Time of day, and the day: `2026-11-25 12:03:07.412 UTC`.
pub fn clock(unix_s: f64) -> String {
    let ms = (unix_s.max(0.0) * 1000.0).round() as u64;
    let (days, ms_of_day) = (ms / 86_400_000, ms % 86_400_000);
    let (year, month, day) = block::civil(days as i64);
    let (hour, minute) = (ms_of_day / 3_600_000, ms_of_day / 60_000 % 60);
    let (second, milli) = (ms_of_day / 1000 % 60, ms_of_day % 1000);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{milli:03} UTC")
}

#[cfg(test)]
mod tests;
mod verified;
