//! The product's mirror as what is put to the test.

use std::sync::{Arc, Mutex};

use block::Device;
use block::mirror::epoch;
use block::mirror::layout::{LegLayout, TAIL_BYTES};
use block::mirror::redo::Reader;
use block::mirror::superblock::{BYTES, Committed, Consistency, RemoteSuperblock, newest};
use block::mirror::{CreateOptions, LegSource, LegState, LegStatus, Mirror, Mode, Parts};

use super::content::{Content, SECTOR, SECTOR_BYTES};
use super::disk::lock;
use super::subject::{Later, Over, Place, Running, Subject};

/// [`Mirror`].
pub(crate) struct Engine;

impl Engine {
    fn parts(place: &Place) -> Parts {
        let legs = place.legs.iter().map(|leg| Arc::new(leg.clone()) as Arc<dyn LegSource>);
        Parts {
            local: place.local.clone(),
            metadata: place.metadata.clone(),
            legs: legs.collect(),
            host: place.host.clone(),
        }
    }
}

impl Subject for Engine {
    fn tail_bytes(&self) -> u64 {
        TAIL_BYTES
    }

    fn mode(&self) -> Option<Mode> {
        None
    }

    fn tells_units_apart(&self) -> bool {
        true
    }

    fn create(&self, place: Place) -> Later<Result<(), String>> {
        Box::pin(async move {
            // Whatever an earlier attempt that was cut has left may be overwritten.
            let options = CreateOptions { force: true, ..CreateOptions::default() };
            let made = Mirror::create(&Self::parts(&place), &place.config, options).await;
            made.map_err(|error| error.to_string())
        })
    }

    fn open(&self, place: Place) -> Later<Result<Arc<dyn Running>, String>> {
        Box::pin(async move {
            let opened = Mirror::open(Self::parts(&place), place.config).await;
            let mirror = opened.map_err(|error| error.to_string())?;
            let device = mirror.device();
            Ok(Arc::new(Run { mirror: Mutex::new(Some(Arc::new(mirror))), device }) as _)
        })
    }

    fn image(
        &self,
        leg_bytes: u64,
        content: &dyn Fn(u64) -> Content,
    ) -> Result<Option<Over>, String> {
        let Ok(layout) = LegLayout::new(leg_bytes, 0) else { return Ok(None) };
        let copy = |place| {
            let mut block = [0; BYTES];
            block.copy_from_slice(&bytes_of(content, layout.superblock(place), BYTES as u64));
            block
        };
        let Ok(superblock) = newest::<RemoteSuperblock>(&copy(0), &copy(1)) else {
            return Ok(None);
        };
        match superblock.consistency {
            Consistency::Consistent => Ok(Some(Over::new())),
            Consistency::InconsistentSince(_) => Ok(None),
            Consistency::Applying(committed) => {
                over(&layout, &superblock, committed, content).map(Some)
            }
        }
    }
}

fn bytes_of(content: &dyn Fn(u64) -> Content, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    let pieces = bytes.chunks_exact_mut(SECTOR).zip(at / SECTOR_BYTES..);
    pieces.for_each(|(out, at)| content(at).fill(at, out));
    bytes
}

/// What a batch puts over the image.
fn over(
    layout: &LegLayout,
    superblock: &RemoteSuperblock,
    committed: Committed,
    content: &dyn Fn(u64) -> Content,
) -> Result<Over, String> {
    let log = layout.with_redo(superblock.redo_bytes).redo_log();
    let mut reader = Reader::new(superblock.uuid, committed, superblock.data_bytes);
    let wrong = |fault| format!("it has committed what it does not hold: {fault}");
    let pieces = reader.feed(&bytes_of(content, log.start, committed.bytes)).map_err(wrong)?;
    reader.finish().map_err(wrong)?;
    let mut over = Over::new();
    for piece in pieces {
        let first = piece.offset / SECTOR_BYTES;
        match piece.content {
            epoch::Content::Data(data) => {
                let sectors = data.chunks_exact(SECTOR).zip(first..);
                over.extend(sectors.map(|(bytes, at)| (at, Content::of(at, bytes))));
            }
            epoch::Content::Zero(len) => {
                let sectors = first..first + len / SECTOR_BYTES;
                over.extend(sectors.map(|at| (at, Content::Zero)));
            }
        }
    }
    Ok(over)
}

struct Run {
    /// Gone once it is closed.
    mirror: Mutex<Option<Arc<Mirror>>>,
    device: Device,
}

impl Run {
    fn mirror(&self) -> Option<Arc<Mirror>> {
        lock(&self.mirror).clone()
    }

    fn leg(&self, leg: usize) -> Option<LegStatus> {
        self.mirror()?.status().legs.into_iter().nth(leg)
    }
}

impl Running for Run {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn in_sync(&self, leg: usize) -> bool {
        self.leg(leg).is_some_and(|leg| leg.state == LegState::InSync)
    }

    fn refuses(&self, leg: usize) -> bool {
        self.leg(leg).is_some_and(|leg| leg.state == LegState::Unrelated)
    }

    fn copies(&self, leg: usize) -> bool {
        let copies = |leg: LegStatus| matches!(leg.state, LegState::Copying | LegState::CatchingUp);
        self.leg(leg).is_some_and(copies)
    }

    fn seen(&self) -> Vec<&'static str> {
        let Some(status) = self.mirror().map(|mirror| mirror.status()) else { return Vec::new() };
        let left_behind = |leg: &LegStatus| {
            leg.message.as_deref().is_some_and(|message| message.starts_with("left behind"))
        };
        let each = [
            ("lag: a write waits", !status.lag_wait.is_zero()),
            ("lag: a leg is left behind", status.legs.iter().any(left_behind)),
            ("verify: by itself", status.legs.iter().any(|leg| leg.verified.is_some())),
        ];
        each.into_iter().filter(|(_, is)| *is).map(|(what, _)| what).collect()
    }

    fn told_to_differ(&self, leg: usize) -> u64 {
        let verified = self.leg(leg).and_then(|leg| leg.verified);
        verified.map_or(0, |verdict| verdict.mismatches)
    }

    fn settled(&self, leg: usize) -> bool {
        self.leg(leg).is_some_and(|leg| {
            leg.state == LegState::InSync && leg.lag_bytes == 0 && leg.dirty_bytes == 0
        })
    }

    fn look_after(&self, leg: usize) -> Later<()> {
        let waits = self.leg(leg).is_some_and(|leg| leg.state == LegState::Failed);
        let mirror = self.mirror().filter(|_| waits);
        Box::pin(async move {
            if let Some(mirror) = mirror {
                // It says no where the leg has come back by itself meanwhile.
                drop(mirror.resume(leg).await);
            }
        })
    }

    fn state(&self) -> String {
        let Some(mirror) = self.mirror() else { return "closed".into() };
        let each = |leg: &LegStatus| {
            let LegStatus { state, message, lag_bytes, dirty_bytes, epochs, .. } = leg;
            let message = message.as_deref().unwrap_or_default();
            format!("{state:?} {message} lag {lag_bytes} dirty {dirty_bytes} epochs {epochs}")
        };
        mirror.status().legs.iter().map(each).collect::<Vec<_>>().join("; ")
    }

    fn close(&self) -> Later<Result<(), String>> {
        let mirror = lock(&self.mirror).take().and_then(Arc::into_inner);
        Box::pin(async move {
            let mirror = mirror.ok_or("somebody else uses the mirror")?;
            mirror.close().await.map_err(|error| error.to_string())
        })
    }
}
