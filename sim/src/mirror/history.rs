//! What images may hold: the guest's history, and nothing of how a mirror works.
//!
//! An image is *legal at a moment* T if a disk with a volatile cache could be left with it by a
//! power cut at T: of each sector it holds a write that had begun by T, and none that another
//! write, begun after the end of the first, had replaced *for good* by T, which is when that other
//! write was stable: told so by a flush that began after its end, or by its own FUA. So every write
//! has, in each of its sectors, an interval of moments at which it may be seen after a cut, and an
//! image is legal if all its sectors have a moment in common.
//!
//! What a leg may be left with by a cut of its own is many images. All of them are looked at at
//! once: intervals have a moment in common if each two of them have, so the worst pair decides.
//!
//! A cut of this host makes what its own disk is left with the truth: from that moment on, anything
//! else is gone. Zeroes say not whose they are: their interval is all that any write of zeroes
//! allows, so the oracle is a little blind there, and never wrong.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::content::Content;

/// The order of what the guest does and is told.
pub(crate) type Moment = u64;

/// It has not come, and may never.
pub(crate) const NEVER: Moment = Moment::MAX;

struct Write {
    range: Range<u64>,
    begun: Moment,
    ended: Moment,
    acknowledged: bool,
    stable: Moment,
}

/// A write in one of its sectors.
#[derive(Clone, Debug)]
struct Version {
    write: u32,
    zero: bool,
    begun: Moment,
    ended: Moment,
    /// From here on a cut cannot leave it.
    killed: Moment,
    /// A read that begins after this must not see it.
    hidden: Moment,
}

impl Version {
    const BLANK: Self =
        Self { write: 0, zero: true, begun: 0, ended: 0, killed: NEVER, hidden: NEVER };

    fn is(&self, content: &Content) -> bool {
        match content {
            Content::Zero => self.zero,
            Content::Guest(write) => !self.zero && self.write == *write,
            Content::Raw(_) => false,
        }
    }
}

/// The interval in which a content may be seen after a cut.
#[derive(Clone, Copy, Debug)]
struct Span {
    sector: u64,
    write: u32,
    begun: Moment,
    killed: Moment,
}

/// The moments at which all images that a leg may hold are legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The first one.
    pub(crate) begun: Moment,
    /// The first one at which none is any more.
    pub(crate) killed: Moment,
}

/// Number of the first write of a guest that has taken over: far above those of the one before.
const TAKEN_OVER: u32 = 1 << 20;

/// The guest's history.
pub(crate) struct History {
    /// Number of the first of `writes`.
    first: u32,
    /// When each moment was.
    times: Vec<Duration>,
    writes: Vec<Write>,
    sectors: BTreeMap<u64, Vec<Version>>,
}

impl History {
    pub(crate) fn new() -> Self {
        let blank = Write { range: 0..0, begun: 0, ended: 0, acknowledged: true, stable: 0 };
        let (times, writes) = (vec![Duration::ZERO], vec![blank]);
        Self { first: 0, times, writes, sectors: BTreeMap::new() }
    }

    /// Another guest begins with what somebody has left: that is what every later image has.
    pub(crate) fn take_over(&mut self, content: Vec<(u64, Content)>, now: Duration) {
        *self = Self { first: TAKEN_OVER, ..Self::new() };
        let moment = self.next(now);
        for (at, content) in content {
            let (write, zero) = match content {
                Content::Guest(write) => (write, false),
                Content::Zero | Content::Raw(_) => (0, true),
            };
            let (begun, ended) = (0, moment);
            let version = Version { write, zero, begun, ended, killed: NEVER, hidden: NEVER };
            self.sectors.insert(at, vec![version]);
        }
    }

    pub(crate) fn moment(&self) -> Moment {
        self.times.len() as Moment - 1
    }

    fn next(&mut self, now: Duration) -> Moment {
        self.times.push(now);
        self.moment()
    }

    /// The last moment that was at `time` or before.
    pub(crate) fn moment_at(&self, time: Duration) -> Moment {
        (self.times.partition_point(|at| *at <= time) as Moment).saturating_sub(1)
    }

    /// The time of a moment.
    pub(crate) fn time_of(&self, moment: Moment) -> Duration {
        let last = self.times.last().copied().unwrap_or_default();
        usize::try_from(moment).ok().and_then(|at| self.times.get(at)).copied().unwrap_or(last)
    }

    /// A write begins. Returns its number.
    pub(crate) fn begin_write(&mut self, range: Range<u64>, zero: bool, now: Duration) -> u32 {
        let begun = self.next(now);
        let write = self.first + self.writes.len() as u32;
        for at in range.clone() {
            let versions = self.sectors.entry(at).or_insert_with(|| vec![Version::BLANK]);
            let (killed, hidden) = (NEVER, NEVER);
            versions.push(Version { write, zero, begun, ended: NEVER, killed, hidden });
        }
        let (ended, stable) = (NEVER, NEVER);
        self.writes.push(Write { range, begun, ended, acknowledged: false, stable });
        write
    }

    /// A write has ended: well, and with FUA, or not.
    pub(crate) fn end_write(&mut self, write: u32, well: bool, fua: bool, now: Duration) {
        let ended = self.next(now);
        let this = &mut self.writes[(write - self.first) as usize];
        (this.ended, this.acknowledged) = (ended, well);
        let (range, begun) = (this.range.clone(), this.begun);
        for version in self.sectors.range_mut(range).flat_map(|(_, versions)| versions) {
            if version.write == write {
                version.ended = ended;
            } else if well && version.ended < begun {
                version.hidden = version.hidden.min(ended);
            }
        }
        if well && fua {
            self.settle(write, ended);
        }
    }

    fn settle(&mut self, write: u32, moment: Moment) {
        let this = &mut self.writes[(write - self.first) as usize];
        this.stable = moment;
        let (range, begun) = (this.range.clone(), this.begun);
        for version in self.sectors.range_mut(range).flat_map(|(_, versions)| versions) {
            if version.ended < begun {
                version.killed = version.killed.min(moment);
            }
        }
    }

    /// Something else begins.
    pub(crate) fn begin(&mut self, now: Duration) -> Moment {
        self.next(now)
    }

    /// A flush that began at `begun` has ended well.
    pub(crate) fn end_flush(&mut self, begun: Moment, now: Duration) -> Moment {
        let moment = self.next(now);
        let covered =
            |write: &Write| write.acknowledged && write.ended < begun && write.stable == NEVER;
        let numbers = self.writes.iter().zip(self.first..).filter(|(write, _)| covered(write));
        for number in numbers.map(|(_, number)| number).collect::<Vec<u32>>() {
            self.settle(number, moment);
        }
        moment
    }

    /// A read that began at `begun` has returned this.
    pub(crate) fn end_read(
        &mut self,
        begun: Moment,
        read: &[(u64, Content)],
        now: Duration,
    ) -> Result<(), String> {
        let ended = self.next(now);
        for (at, content) in read {
            let versions = self.sectors.entry(*at).or_insert_with(|| vec![Version::BLANK]);
            let seen = |version: &&Version| version.is(content) && version.hidden > begun;
            let Some(first) = versions.iter().filter(seen).map(|version| version.begun).min()
            else {
                return Err(format!(
                    "a read of sector {at} goes back in time or sees what nobody wrote: it returns \
                     {content:?}, of {}",
                    told(versions)
                ));
            };
            for version in versions.iter_mut().filter(|version| version.ended < first) {
                version.hidden = version.hidden.min(ended);
            }
        }
        Ok(())
    }

    /// This host has stopped, and its own disk is left with `content`; for good, if the power
    /// failed.
    pub(crate) fn restart(
        &mut self,
        content: impl Fn(u64) -> Content,
        power: bool,
        now: Duration,
    ) -> Result<(), String> {
        let before = self.moment();
        let moment = self.next(now);
        self.writes.iter_mut().filter(|w| w.ended == NEVER).for_each(|w| w.ended = moment);
        for (at, versions) in &mut self.sectors {
            let content = content(*at);
            versions.iter_mut().filter(|v| v.ended == NEVER).for_each(|v| v.ended = moment);
            if !versions.iter().any(|v| v.is(&content) && v.killed > before) {
                return Err(format!(
                    "after a cut here sector {at} of the local disk has {content:?}, of {}",
                    told(versions)
                ));
            }
            for version in versions.iter_mut() {
                if version.is(&content) && version.killed > before {
                    version.hidden = NEVER; // seen again, if a newer one was lost
                } else {
                    version.hidden = version.hidden.min(moment);
                    if power {
                        version.killed = version.killed.min(moment);
                    }
                }
            }
        }
        // What the cut has left is stable, and what it has not no flush brings back.
        for write in self.writes.iter_mut().filter(|write| power && write.stable == NEVER) {
            write.stable = moment;
        }
        Ok(())
    }

    /// Sectors that the guest has ever touched.
    pub(crate) fn sectors(&self) -> impl Iterator<Item = u64> {
        self.sectors.keys().copied()
    }

    /// The moments at which all images are legal that hold of each sector any of its contents.
    pub(crate) fn window(
        &self,
        image: impl IntoIterator<Item = (u64, Vec<Content>)>,
    ) -> Result<Window, String> {
        let blank = [Version::BLANK];
        // The worst two of either end, each of another sector: one image has one content a sector.
        let (mut begins, mut ends): (Vec<Span>, Vec<Span>) = (Vec::new(), Vec::new());
        for (sector, contents) in image {
            let versions = self.sectors.get(&sector).map_or(&blank[..], Vec::as_slice);
            let mut here: Vec<Span> = Vec::new();
            for content in &contents {
                here.push(span(sector, content, versions)?);
            }
            begins.extend(here.iter().max_by_key(|span| span.begun));
            begins.sort_by_key(|span| std::cmp::Reverse(span.begun));
            begins.truncate(2);
            ends.extend(here.iter().min_by_key(|span| span.killed));
            ends.sort_by_key(|span| span.killed);
            ends.truncate(2);
        }
        for begin in &begins {
            for end in ends.iter().filter(|end| end.sector != begin.sector) {
                if begin.begun >= end.killed {
                    return Err(format!(
                        "no moment has both: sector {} with write {}, begun at {}, and sector {} with \
                         write {}, replaced for good at {}: {}",
                        begin.sector,
                        begin.write,
                        begin.begun,
                        end.sector,
                        end.write,
                        end.killed,
                        told(self.sectors.get(&end.sector).map_or(&blank[..], Vec::as_slice))
                    ));
                }
            }
        }
        let begun = begins.first().map_or(0, |span| span.begun);
        let killed = ends.first().map_or(NEVER, |span| span.killed);
        Ok(Window { begun, killed })
    }

    /// A sector in which `contents` may miss a write that was acknowledged by `moment`.
    pub(crate) fn missing(
        &self,
        image: impl IntoIterator<Item = (u64, Vec<Content>)>,
        moment: Moment,
    ) -> Option<String> {
        for (sector, contents) in image {
            let Some(versions) = self.sectors.get(&sector) else { continue };
            for content in &contents {
                let newest = versions.iter().filter(|v| v.is(content)).map(|v| v.hidden).max();
                if newest.is_some_and(|hidden| hidden <= moment) {
                    return Some(format!("sector {sector} has {content:?} of {}", told(versions)));
                }
            }
        }
        None
    }
}

fn span(sector: u64, content: &Content, versions: &[Version]) -> Result<Span, String> {
    let mut span: Option<Span> = None;
    for version in versions.iter().filter(|version| version.is(content)) {
        let Version { write, begun, killed, .. } = *version;
        let known = span.get_or_insert(Span { sector, write, begun, killed });
        known.begun = known.begun.min(begun);
        known.killed = known.killed.max(killed);
    }
    span.ok_or_else(|| {
        format!("sector {sector} has {content:?}, which nobody wrote there: {}", told(versions))
    })
}

/// Versions in one line.
fn told(versions: &[Version]) -> String {
    let moment = |moment: Moment| match moment {
        NEVER => "never".into(),
        moment => moment.to_string(),
    };
    let each = |version: &Version| {
        let Version { write, zero, begun, ended, killed, hidden } = version;
        let zero = if *zero { " (zeroes)" } else { "" };
        let [ended, killed, hidden] = [*ended, *killed, *hidden].map(moment);
        format!("{write}{zero} {begun}..{ended} hidden {hidden} gone {killed}")
    };
    versions.iter().map(each).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn write(history: &mut History, sector: u64, fua: bool) -> u32 {
        let write = history.begin_write(sector..sector + 1, false, NOW);
        history.end_write(write, true, fua, NOW);
        write
    }

    fn flush(history: &mut History) -> Moment {
        let begun = history.begin(NOW);
        history.end_flush(begun, NOW)
    }

    fn image(contents: &[&[u32]]) -> Vec<(u64, Vec<Content>)> {
        let content = |write: &u32| match write {
            0 => Content::Zero,
            write => Content::Guest(*write),
        };
        let each = |contents: &&[u32]| contents.iter().map(content).collect();
        (0..).zip(contents.iter().map(each)).collect()
    }

    #[test]
    fn without_a_flush_any_subset_is_legal_and_behind_one_none() {
        let mut history = History::new();
        let first = write(&mut history, 0, false);
        let second = write(&mut history, 1, false);
        assert!(history.window(image(&[&[0], &[second]])).is_ok());
        let flushed = flush(&mut history);
        let third = write(&mut history, 1, false);
        assert_eq!(history.window(image(&[&[first], &[second, third]])).unwrap().killed, NEVER);
        let old = history.window(image(&[&[0], &[second]])).unwrap();
        assert_eq!(old.killed, flushed, "legal until the flush");
        assert!(history.window(image(&[&[0], &[third]])).is_err());
        // One of the images that a cut may leave is bad.
        assert!(history.window(image(&[&[0, first], &[second, third]])).is_err());
        assert!(history.window(image(&[&[first + 100], &[0]])).is_err(), "nobody wrote it");
    }

    #[test]
    fn one_sector_holds_one_content() {
        let mut history = History::new();
        let first = write(&mut history, 0, true);
        let second = write(&mut history, 0, true);
        let third = write(&mut history, 0, false);
        // The first is gone for good before the third begins, and there is no image with both.
        assert!(history.window(image(&[&[first, second, third]])).is_ok());
    }

    #[test]
    fn fua_is_a_flush_of_itself_alone() {
        let mut history = History::new();
        write(&mut history, 0, false);
        let forced = write(&mut history, 1, true);
        let last = write(&mut history, 2, false);
        assert!(history.window(image(&[&[0], &[forced], &[last]])).is_ok());
        assert!(history.window(image(&[&[0], &[0], &[last]])).is_err());
    }

    #[test]
    fn what_overlaps_in_time_has_no_order() {
        let mut history = History::new();
        let first = history.begin_write(0..1, false, NOW);
        let second = history.begin_write(0..1, false, NOW);
        history.end_write(first, true, false, NOW);
        history.end_write(second, true, false, NOW);
        flush(&mut history);
        let last = write(&mut history, 1, false);
        assert!(history.window(image(&[&[first], &[last]])).is_ok());
        assert!(history.window(image(&[&[second], &[last]])).is_ok());
        assert!(history.window(image(&[&[0], &[last]])).is_err());
    }

    #[test]
    fn a_cut_here_makes_the_local_disk_the_truth() {
        let mut history = History::new();
        let first = write(&mut history, 0, false);
        history.restart(|_| Content::Zero, true, NOW).unwrap();
        let second = write(&mut history, 1, false);
        assert!(history.window(image(&[&[first], &[0]])).is_ok(), "legal until the cut");
        assert!(history.window(image(&[&[first], &[second]])).is_err());
        let begun = history.begin(NOW);
        assert!(history.end_read(begun, &[(0, Content::Guest(first))], NOW).is_err());
        assert!(history.end_read(begun, &[(0, Content::Zero)], NOW).is_ok());
        flush(&mut history);
        let lost = history.restart(|_| Content::Zero, true, NOW);
        assert!(lost.unwrap_err().contains("after a cut here"));
    }

    #[test]
    fn a_read_does_not_go_back_behind_another_read() {
        let mut history = History::new();
        let first = history.begin_write(0..1, false, NOW);
        let begun = history.begin(NOW);
        assert!(history.end_read(begun, &[(0, Content::Guest(first))], NOW).is_ok());
        let again = history.begin(NOW);
        assert!(history.end_read(again, &[(0, Content::Zero)], NOW).is_err());
    }
}
