//! The controller, as the modelled line asks it for a rate: one connection, and the pace is its.

use ::path::{Config, Controller};

use crate::Sample;

pub(crate) struct Control {
    controller: Controller,
    pace: Option<f64>,
    window: Option<f64>,
}

impl Control {
    pub(crate) fn new() -> Self {
        let one = Config { connections_initial: 1, connections_max: 1, ..Config::default() };
        Self { controller: Controller::new(one), pace: None, window: None }
    }

    /// Before the first byte.
    pub(crate) fn begin(&mut self, least_rtt_s: f64) {
        let pacing = self.controller.first(Some(least_rtt_s), 4).pacing;
        (self.pace, self.window) = (pacing.bytes_per_s, pacing.window_bytes);
    }

    /// Bytes a second at most.
    pub(crate) fn rate(&self) -> f64 {
        self.pace.unwrap_or(f64::INFINITY)
    }

    /// Bytes under way at most.
    pub(crate) fn window_bytes(&self) -> f64 {
        self.window.unwrap_or(f64::INFINITY)
    }

    /// The rate that it has found.
    pub(crate) fn pace(&self) -> Option<f64> {
        self.pace
    }

    /// Time in which a greedy sender is held up is told in the samples.
    pub(crate) fn counts_what_it_holds(&self) -> bool {
        true
    }

    pub(crate) fn take(&mut self, sample: Sample) {
        let orders = self.controller.handle_sample(&sample);
        (self.pace, self.window) = (orders.pacing.bytes_per_s, orders.pacing.window_bytes);
        if std::env::var_os("TRACE").is_some() {
            println!("{:?} {:?} {:?}", orders.state, orders.pacing, self.controller.estimate());
        }
    }
}
