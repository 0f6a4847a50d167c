//! The power is cut at every moment of a run, and every image that the disk may be left with is a
//! new start: after the next flush that is GOOD all that was acknowledged is there, and before it
//! nothing that was never written.
//!
//! Both ends are the product's: its device server, and its rules of what an initiator has to write
//! again. Between them there are no sockets but a queue that a seed decides about, so that ten
//! thousand images take seconds. Users write, force, zero, trim and flush with several operations
//! under way; connections are lost while sessions are set up; the power is also cut a second time,
//! after the flush. `ENKAKU_POWER_CUT_IMAGES` is the number of images wanted, 12,000 by default.

#![allow(clippy::unwrap_used, unreachable_pub)] // in a test a panic is the result

mod client;
mod mistakes;
mod oracle;
mod server;

use block::layer::Choice;
use client::Client;
use iscsi_proto::initiator::durability::Writers;
use mistakes::Mistake;
use oracle::{SECTOR, SECTORS};
use scsi::{Execution, Nexus, Response};
use server::{Server, poll};

/// Images that the ordinary test run checks.
const IMAGES: u64 = 12_000;
/// Operations of a run, and of these under way at once.
const OPERATIONS: u32 = 24;
const UNDER_WAY: usize = 5;
/// Images of one moment, all of them if they are no more.
const IMAGES_PER_CUT: usize = 6;
/// Seeds in which a mistake has to show itself.
const SEEDS_PER_MISTAKE: u64 = 200;

/// SplitMix64.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

/// A run: what is under way between the ends.
struct Run {
    random: Random,
    client: Client,
    server: Server,
    nexus: Nexus,
    /// Sent and not begun, in order; begun; answered, and the answer not read.
    sent: Vec<(u32, scsi::Command)>,
    executing: Vec<(u32, Execution)>,
    answers: Vec<(u32, Response)>,
    asked: u32,
}

/// What was checked.
#[derive(Default)]
struct Checked {
    cuts: u64,
    images: u64,
    /// Of these, images after the flush that followed a cut.
    second: u64,
    losses_told: u64,
}

impl Run {
    fn new(seed: u64, mistake: Option<Mistake>) -> Self {
        let mut random = Random(seed);
        let can_fua = random.below(2) == 0;
        // A tight one is full after a few writes.
        let limit = [1 << 20, 6 << 10][random.below(2) as usize];
        let writers = [Writers::One, Writers::Several][random.below(2) as usize];
        let mut client = Client::new(limit, writers, mistake);
        let empty = vec![0; (SECTORS * SECTOR) as usize];
        let server = Server::new(empty, random.below(1 << 40), can_fua, mistake);
        let nexus = client.recover(&server, &mut random);
        let (sent, executing, answers) = (Vec::new(), Vec::new(), Vec::new());
        Self { random, client, server, nexus, sent, executing, answers, asked: 0 }
    }

    fn is_over(&self) -> bool {
        let under_way = self.sent.len() + self.executing.len() + self.answers.len();
        self.asked >= OPERATIONS && under_way == 0
    }

    /// One thing happens.
    fn step(&mut self) {
        let pick = |random: &mut Random, len: usize| random.below(len as u64) as usize;
        match self.random.below(40) {
            0 => self.lose_session(),
            1..=10 if self.asked < OPERATIONS && self.client.waiting.len() < UNDER_WAY => {
                self.asked += 1;
                self.sent.extend(self.client.ask(&mut self.random));
            }
            11..=18 if !self.sent.is_empty() => {
                let (number, command) = self.sent.remove(0);
                self.executing.push((number, self.nexus.execute(command)));
            }
            19..=30 if !self.executing.is_empty() => {
                let at = pick(&mut self.random, self.executing.len());
                if let Some(response) = poll(&mut self.executing[at].1) {
                    let (number, _) = self.executing.remove(at);
                    self.answers.push((number, response));
                }
            }
            31.. if !self.answers.is_empty() => {
                let at = pick(&mut self.random, self.answers.len());
                let (number, response) = self.answers.remove(at);
                self.client.answered(number, &response);
            }
            _ => {}
        }
    }

    /// The session is lost and the target lives on: it ends what it has begun before it lets the
    /// initiator in again.
    fn lose_session(&mut self) {
        self.sent.clear();
        for (_, execution) in self.executing.drain(..) {
            server::finish(execution);
        }
        self.answers.clear();
        self.nexus = self.client.recover(&self.server, &mut self.random);
    }

    /// The power is cut now, and the target starts from `choice`.
    fn cut(&self, choice: Choice, seed: u64, checked: &mut Checked) -> Result<(), String> {
        let mut random = Random(seed);
        let left = image(&self.server, choice);
        self.client.oracle.check(&left, false)?;
        let can_fua = random.below(2) == 0;
        let mistake = self.mistake();
        let server = Server::new(left, random.below(1 << 40), can_fua, mistake);
        let mut client = self.client.clone();
        client.told_loss = false;
        let nexus = client.recover(&server, &mut random);
        client.oracle.check(&server.read(&nexus), false)?;
        let flushed = client.flush(&nexus) && !client.told_loss;
        checked.images += 1;
        checked.losses_told += u64::from(!flushed);
        if !flushed {
            return Ok(()); // a user was told, by this flush or by a command that was sent again
        }
        client.oracle.check(&server.read(&nexus), true)?;
        // And once more: what was flushed is there without any help.
        let cut = server.log.cut(server.log.moments(), SECTOR);
        for choice in cut.choose(2, seed) {
            checked.second += 1;
            let left = image(&server, choice);
            let lost = |why| format!("after the flush, in {choice:?}: {why}");
            client.oracle.check(&left, true).map_err(lost)?;
        }
        Ok(())
    }

    fn mistake(&self) -> Option<Mistake> {
        self.client.mistake()
    }
}

fn image(server: &Server, choice: Choice) -> Vec<u8> {
    let mut image = server.before.clone();
    server.log.cut(server.log.moments(), SECTOR).image(choice, &mut image);
    image
}

/// Cuts the power after each step of a run.
fn run(seed: u64, mistake: Option<Mistake>, checked: &mut Checked) -> Result<(), String> {
    let mut run = Run::new(seed, mistake);
    let mut step = 0;
    while !run.is_over() {
        run.step();
        step += 1;
        checked.cuts += 1;
        let cut = run.server.log.cut(run.server.log.moments(), SECTOR);
        for (n, choice) in (0..).zip(cut.choose(IMAGES_PER_CUT, seed << 20 | step)) {
            let seed_of_cut = seed << 32 | step << 8 | n;
            let outcome = run.cut(choice, seed_of_cut, checked);
            outcome.map_err(|why| format!("seed {seed}, step {step}, {choice:?}: {why}"))?;
        }
    }
    Ok(())
}

fn images_wanted() -> u64 {
    let wanted = std::env::var("ENKAKU_POWER_CUT_IMAGES").ok();
    wanted.map_or(IMAGES, |wanted| wanted.parse().unwrap())
}

#[test]
fn every_image_of_every_cut_keeps_what_was_acknowledged() {
    let start = std::time::Instant::now();
    let wanted = images_wanted();
    let mut checked = Checked::default();
    let mut seed = 0;
    while checked.images < wanted {
        seed += 1;
        run(seed, None, &mut checked).unwrap();
    }
    let Checked { cuts, images, second, losses_told } = checked;
    eprintln!(
        "{seed} runs, {cuts} cuts, {images} images, then {second} after a flush; {losses_told} \
         losses were told where others write too; {:.1} s",
        start.elapsed().as_secs_f64()
    );
    assert!(losses_told < images / 2, "too many runs end without a check");
}

#[test]
fn every_mistake_is_found() {
    let mut missed = Vec::new();
    for mistake in Mistake::ALL {
        let mut checked = Checked::default();
        let found =
            (1..=SEEDS_PER_MISTAKE).find_map(|seed| run(seed, Some(mistake), &mut checked).err());
        match found {
            Some(why) => {
                let why: String = why.chars().take(100).collect();
                eprintln!("{mistake:?}: after {} images: {why}", checked.images);
            }
            None => missed.push(mistake),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
