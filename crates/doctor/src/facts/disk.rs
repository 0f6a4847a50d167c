//! A block device of a session: what its queue takes, and what went through it.
//! Documentation/ABI/stable/sysfs-block and Documentation/block/stat.rst of Linux.

use serde::Serialize;

use super::files::{Files, Read, number, word};

const SECTOR_BYTES: f64 = 512.0;
/// Fewer requests in the time of a look say nothing of a load.
const REQUESTS_MIN: f64 = 3.0;

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Disk {
    /// As in `/dev`.
    pub name: String,
    /// Commands that it takes at once (`node.session.queue_depth`).
    pub queue_depth: Option<u64>,
    /// What is read ahead of somebody who reads in order.
    pub read_ahead_kib: Option<u64>,
    /// The longest request.
    pub max_sectors_kib: Option<u64>,
    /// The longest that the device could take.
    pub max_hw_sectors_kib: Option<u64>,
    /// Requests that the scheduler keeps.
    pub nr_requests: Option<u64>,
    /// The scheduler in use.
    pub scheduler: Option<String>,
    /// What went through it while it was watched.
    pub load: Option<Load>,
}

/// Means over the time of a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    /// Reads that ended.
    pub reads_per_s: f64,
    /// Bytes of one.
    pub read_bytes: f64,
    /// From its issue to its end.
    pub read_ms: f64,
    /// Writes that ended.
    pub writes_per_s: f64,
    /// Bytes of one.
    pub write_bytes: f64,
    /// From its issue to its end.
    pub write_ms: f64,
    /// Requests under way.
    pub in_flight: f64,
}

impl Load {
    /// Bytes of a request, in the direction that is asked about.
    pub fn request_bytes(&self, writes: bool) -> f64 {
        if writes { self.write_bytes } else { self.read_bytes }
    }

    /// Seconds that a request takes.
    pub fn request_s(&self, writes: bool) -> f64 {
        (if writes { self.write_ms } else { self.read_ms }) / 1e3
    }
}

/// `/sys/block/NAME/stat`: counters since the disk is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    reads: f64,
    sectors_read: f64,
    read_ms: f64,
    writes: f64,
    sectors_written: f64,
    write_ms: f64,
    queue_ms: f64,
}

impl Counters {
    /// The first eleven numbers; kernels since 4.18 have more behind them.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers: Option<Vec<u64>> =
            text.split_whitespace().take(11).map(|word| word.parse().ok()).collect();
        let numbers = numbers.filter(|numbers| numbers.len() == 11)?;
        let at = |index: usize| numbers[index] as f64;
        Some(Self {
            reads: at(0),
            sectors_read: at(2),
            read_ms: at(3),
            writes: at(4),
            sectors_written: at(6),
            write_ms: at(7),
            queue_ms: at(10),
        })
    }

    /// What happened since then; nothing where nearly nothing did.
    pub fn since(&self, before: &Self, seconds: f64) -> Option<Load> {
        let reads = self.reads - before.reads;
        let writes = self.writes - before.writes;
        if seconds <= 0.0 || reads < 0.0 || writes < 0.0 || reads + writes < REQUESTS_MIN {
            return None;
        }
        let mean = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        Some(Load {
            reads_per_s: reads / seconds,
            read_bytes: mean((self.sectors_read - before.sectors_read) * SECTOR_BYTES, reads),
            read_ms: mean(self.read_ms - before.read_ms, reads),
            writes_per_s: writes / seconds,
            write_bytes: mean(
                (self.sectors_written - before.sectors_written) * SECTOR_BYTES,
                writes,
            ),
            write_ms: mean(self.write_ms - before.write_ms, writes),
            in_flight: (self.queue_ms - before.queue_ms).max(0.0) / 1e3 / seconds,
        })
    }
}

/// Where the counters of a disk are.
pub fn stat_path(disk: &str) -> String {
    format!("sys/block/{disk}/stat")
}

/// The counters of a disk.
pub fn counters(files: &dyn Files, disk: &str) -> Option<Counters> {
    match files.read(&stat_path(disk)) {
        Read::Text(text) => Counters::parse(&text),
        _ => None,
    }
}

/// Reads a disk's settings.
pub fn disk(files: &dyn Files, name: &str) -> Disk {
    let queue = |attribute: &str| format!("sys/block/{name}/queue/{attribute}");
    let scheduler = word(files, &queue("scheduler"));
    Disk {
        name: name.to_owned(),
        queue_depth: number(files, &format!("sys/block/{name}/device/queue_depth")),
        read_ahead_kib: number(files, &queue("read_ahead_kb")),
        max_sectors_kib: number(files, &queue("max_sectors_kb")),
        max_hw_sectors_kib: number(files, &queue("max_hw_sectors_kb")),
        nr_requests: number(files, &queue("nr_requests")),
        scheduler: scheduler.map(|line| chosen(&line).to_owned()),
        load: None,
    }
}

/// The one in brackets.
fn chosen(line: &str) -> &str {
    let inside = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(line, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_looks_at_the_counters_are_a_load() {
        let before = "  114454    32506  6843878   249920   259451   224068 10994632  1310439        0   470788  1851202      172       30 82421988   157361   133857   133480";
        // 60 reads of 128 KiB in 3 s, each of 50.1 ms, one after another.
        let after = "114514 32506 6859238 252926 259451 224068 10994632 1310439 0 473788 1854208";
        let [before, after] = [before, after].map(|text| Counters::parse(text).unwrap());
        let load = after.since(&before, 3.0).unwrap();
        assert_eq!((load.reads_per_s, load.read_bytes, load.writes_per_s), (20.0, 131_072.0, 0.0));
        assert!((load.read_ms - 50.1).abs() < 1e-9 && (load.in_flight - 1.002).abs() < 1e-9);
        assert_eq!(load.request_bytes(false), 131_072.0);
        assert_eq!(before.since(&after, 3.0), None, "a disk that was taken away and came back");
        assert_eq!(after.since(&after, 3.0), None);
        for text in ["", "1 2 3", "a b c d e f g h i j k", "-1 0 0 0 0 0 0 0 0 0 0"] {
            assert_eq!(Counters::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_scheduler_is_the_one_in_brackets() {
        assert_eq!(chosen("[mq-deadline] kyber bfq none"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
    }
}
