//! What is cut in a run with a takeover, and what comes back afterwards.

use std::time::Duration;

use super::super::disk::lock;
use super::super::scenario::Trouble;
use super::{DOWN_MS_MAX, FAR, NEAR, Takeover};

impl Takeover {
    /// The old host is gone for good.
    pub(super) fn end_near(&mut self, power: bool) {
        self.hit("takeover: from a host that is gone");
        self.near_lives = false;
        self.stop_near(power);
    }

    fn stop_near(&mut self, power: bool) {
        self.executor.end_tasks_of(NEAR);
        self.near.disk.stop(power);
        self.near.metadata.stop(power);
        self.near.legs[0].cut_link(Duration::ZERO);
        lock(&self.board).near = None;
        let store = lock(&self.near.disk.store);
        let mut judge = lock(&self.near.judge);
        let now = self.executor.now();
        if self.giving {
            return; // The far host writes there as well, and its judge looks at it.
        }
        if let Err(wrong) = judge.history.restart(|at| store.visible(at), power, now) {
            judge.fail(wrong);
        }
    }

    fn stop_far(&mut self, power: bool) {
        self.executor.end_tasks_of(FAR);
        let promoted = lock(&self.board).promoted;
        self.far.metadata.stop(power);
        if promoted {
            self.far.disk.stop(power);
        }
        self.way.cut_link(Duration::ZERO);
        if self.far.legs[0].is_open() {
            self.far.legs[0].cut_link(Duration::ZERO);
        }
        lock(&self.board).far = None;
        if promoted {
            let store = lock(&self.far.disk.store);
            let mut judge = lock(&self.far.judge);
            let now = self.executor.now();
            if let Err(wrong) = judge.history.restart(|at| store.visible(at), power, now) {
                judge.fail(wrong);
            }
        }
    }

    pub(super) fn happen(&mut self, trouble: Trouble) {
        self.log(|| format!("{trouble:?}"));
        let down = Duration::from_millis(self.rng.skewed(DOWN_MS_MAX));
        let power = trouble != Trouble::EndProcess;
        let begun = self.begun.is_some();
        let promoted = lock(&self.board).promoted;
        match trouble {
            Trouble::CutHere | Trouble::EndProcess if begun => self.restart_far(power, down),
            Trouble::CutHere | Trouble::EndProcess => self.restart_near(power, down),
            Trouble::CutLeg(_) if promoted => self.restart_near(true, down),
            Trouble::CutLeg(_) => self.cut_unit(down),
            Trouble::CutLink(_) if promoted && self.far.legs[0].is_open() => {
                self.far.legs[0].cut_link(down);
            }
            Trouble::CutLink(_) if !promoted => self.near.legs[0].cut_link(down),
            Trouble::CutAll => {
                if !promoted {
                    self.cut_unit(down);
                }
                self.restart_near(true, down);
                if begun {
                    self.restart_far(true, down);
                }
            }
            _ => {}
        }
    }

    /// The power of the unit fails that the far host is about to take over.
    fn cut_unit(&mut self, down: Duration) {
        self.near.legs[0].cut_power(down);
        self.way.cut_link(down);
        if self.begun.is_some() {
            self.restart_far(false, down); // It would wait for an answer for ever.
        }
    }

    fn restart_far(&mut self, power: bool, down: Duration) {
        self.hit("takeover: the far host is cut");
        self.stop_far(power);
        self.boot_far(down);
    }

    fn restart_near(&mut self, power: bool, down: Duration) {
        if self.giving {
            self.hit("takeover: the giving back is cut");
            self.stop_near(power);
            if self.far.legs[0].is_open() {
                self.far.legs[0].cut_link(down);
            }
            if !lock(&self.board).handed_back {
                self.boot_giving(down);
            }
        } else if self.near_lives {
            self.stop_near(power);
            self.boot_near(down);
        }
    }
}
