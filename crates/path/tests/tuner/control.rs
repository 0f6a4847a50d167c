//! The pacer, and the opening of a path, as the modelled line asks them for a rate.

use ::path::tuner::{Opening, Pace, Pacer, Room};

use crate::Sample;

pub(crate) struct Control {
    pacer: Pacer,
    pace: Pace,
    opening: Opening,
    room: Option<Room>,
}

impl Control {
    pub(crate) fn new() -> Self {
        Self {
            pacer: Pacer::default(),
            pace: Pace::default(),
            opening: Opening::default(),
            room: Opening::default().first(0.05, 1),
        }
    }

    /// Before the first byte: what an opening gives is not of this round trip.
    pub(crate) fn begin(&mut self, _least_rtt_s: f64) {}

    /// Bytes a second at most.
    pub(crate) fn rate(&self) -> f64 {
        let room = self.room.map_or(f64::INFINITY, |room| room.bytes_per_s);
        self.pace().unwrap_or(room)
    }

    /// Bytes under way at most.
    pub(crate) fn window_bytes(&self) -> f64 {
        self.room.map_or(f64::INFINITY, |room| room.bytes)
    }

    /// The rate that it has found.
    pub(crate) fn pace(&self) -> Option<f64> {
        self.pace.bytes_per_s
    }

    /// Time in which a greedy sender is held up is told in the samples, while the path opens.
    pub(crate) fn counts_what_it_holds(&self) -> bool {
        self.pace().is_none()
    }

    pub(crate) fn take(&mut self, sample: Sample) {
        self.pace = self.pacer.handle_sample(&sample);
        let sample = Sample { pace: self.pace, ..sample };
        self.room = self.opening.handle_sample(&sample);
    }
}
