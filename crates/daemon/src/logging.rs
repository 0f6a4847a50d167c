//! Logs to stderr: for people with time and colours, for the journal with priorities and without
//! either, because the journal has its own.

use std::fmt;
use std::io::IsTerminal;
use std::os::linux::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// A filter as `tracing` writes it. Names of modules and fields are ASCII; what is not makes the
/// parser panic, where it cuts a character in two.
pub(crate) fn parse_filter(text: &str) -> Option<EnvFilter> {
    text.is_ascii().then(|| EnvFilter::try_new(text).ok()).flatten()
}

/// Changes the log level of the running daemon.
pub(crate) struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Begins to log. `None` if somebody else has begun already.
    pub(crate) fn init(filter: &str) -> Option<Self> {
        let filter = parse_filter(filter).unwrap_or_else(|| EnvFilter::new("info"));
        let (filter, handle) = reload::Layer::new(filter);
        let registry = tracing_subscriber::registry().with(filter);
        let begun = if is_journal() {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(false)
                .event_format(Journal(Format::default().without_time().with_level(false)));
            registry.with(layer).try_init()
        } else {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal());
            registry.with(layer).try_init()
        };
        begun.ok().map(|()| Self(handle))
    }

    /// Logs by this filter from now on.
    pub(crate) fn set(&self, filter: &str) {
        if let Some(filter) = parse_filter(filter)
            && let Err(error) = self.0.reload(filter)
        {
            tracing::warn!(%error, "the log level stays as it was");
        }
    }
}

/// Is stderr the journal's socket? systemd says which one that is as `DEVICE:INODE`.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stderr) = std::fs::metadata("/proc/self/fd/2") else { return false };
    stream == format!("{}:{}", stderr.st_dev(), stderr.st_ino())
}

/// One line an event, with its priority in front (sd-daemon(3)).
struct Journal(Format<Full, ()>);

/// Priorities of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_those_of_syslog() {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(levels.map(priority), [3, 4, 6, 7, 7]);
    }
}
