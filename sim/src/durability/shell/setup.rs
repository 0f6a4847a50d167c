//! Everything between login and the application's first command: unit attentions, the cache, and
//! the steps that the decisions ask for. Mirrors `probe.rs` and `supervisor.rs` of `crates/iscsi`.

use bytes::Bytes;
use iscsi_proto::initiator::durability::{Cache, Content, Refusal, Step};

use super::*;
use crate::durability::cdb;
use crate::durability::disk::{Run, SECTOR};
use crate::durability::sabotage::Sabotage;

/// Unit attentions a unit may have queued for a new session before it counts as broken.
const ATTENTIONS_MAX: u32 = 32;

/// Commands of a replay under way at once.
const REPLAY_DEPTH: usize = 16;

/// Unit attentions that may interrupt one command of a replay.
const REPLAY_ATTEMPTS_MAX: u32 = 8;

/// Longest write of a replay, in sectors.
const REPLAY_SECTORS: u64 = 8;

/// Time for a set-up behind its logins.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(15);

/// How far the set-up of an incarnation is.
#[derive(Debug, Default)]
pub(super) struct SetUp {
    pub(super) deadline: Instant,
    /// This incarnation was told of a power-on.
    pub(super) told: bool,
    /// A login that it needs has failed.
    pub(super) failed: bool,
    /// Sabotage: a replay was interrupted before.
    pub(super) cut_short: bool,
    attentions: u32,
    /// Writes of a portion that are still to be sent.
    writes: VecDeque<Command>,
    under_way: usize,
    refusal: Option<Refusal<Failure>>,
    began: bool,
}

impl Shell {
    /// All connections are there: the unit has its say.
    pub(super) fn settle(&mut self, env: &mut Env) {
        env.stage = Stage::Settling;
        let cut_short = self.setup.cut_short;
        let deadline = env.now() + SET_UP_TIMEOUT;
        self.setup = SetUp { deadline, cut_short, ..SetUp::default() };
        self.ask(env, cdb::TEST_UNIT_READY, 0);
    }

    fn ask(&mut self, env: &mut Env, cdb: cdb::Cdb, data_in_len: u32) {
        self.send(env, Origin::SetUp, cdb::command(cdb, Bytes::new(), data_in_len));
    }

    /// A command of the set-up has its answer.
    pub(super) fn setup_done(&mut self, env: &mut Env, id: u64, verdict: Verdict) -> Outcomes {
        let Some(task) = self.tasks.remove(&id) else { return Ok(()) };
        match env.stage {
            Stage::Settling => self.settled(env, verdict),
            Stage::Asking => {
                let cache = match verdict {
                    Verdict::Done => match cdb::write_cache(&task.buffer) {
                        Some(true) => Cache::Volatile,
                        Some(false) => Cache::Absent,
                        None => Cache::Unknown,
                    },
                    Verdict::Again(sense) => {
                        self.note_in_setup(sense);
                        return self.again(env, id, task);
                    }
                    Verdict::Later(_) => return self.again(env, id, task),
                    Verdict::Conflict | Verdict::Failed(_) => Cache::Unknown,
                };
                self.begin_replay(env, cache)
            }
            Stage::Replaying | Stage::Flushing => self.replayed(env, id, task, verdict),
            Stage::Down | Stage::LoggingIn | Stage::Up => Ok(()),
        }
    }

    fn note_in_setup(&mut self, sense: crate::durability::sense::Sense) {
        if sense.is_power_on() {
            self.keeper.power_on();
        }
    }

    /// Sends a command of the set-up once more.
    fn again(&mut self, env: &mut Env, id: u64, mut task: Task) -> Outcomes {
        task.attempts += 1;
        if task.attempts > ATTENTIONS_MAX {
            return self.end(env);
        }
        self.tasks.insert(id, task);
        self.submit_setup(env, id);
        Ok(())
    }

    fn settled(&mut self, env: &mut Env, verdict: Verdict) -> Outcomes {
        self.setup.attentions += 1;
        match verdict {
            Verdict::Done => {
                // Its answer may come when the next one has started.
                let boot = self.app.boot;
                let told = self.app.told_of_boot == boot || env.scenario.target.silent;
                if !told {
                    return Err(format!("start {boot} of the target was never told of (29/00)"));
                }
                env.stage = Stage::Asking;
                self.ask(env, cdb::mode_sense(), cdb::MODE_LEN.into());
                Ok(())
            }
            _ if self.setup.attentions > ATTENTIONS_MAX => self.end(env),
            Verdict::Again(sense) => {
                self.note_in_setup(sense);
                self.ask(env, cdb::TEST_UNIT_READY, 0);
                Ok(())
            }
            Verdict::Later(_) => {
                self.ask(env, cdb::TEST_UNIT_READY, 0);
                Ok(())
            }
            Verdict::Conflict | Verdict::Failed(_) => self.end(env),
        }
    }

    fn begin_replay(&mut self, env: &mut Env, cache: Cache) -> Outcomes {
        let kept = !self.keeper.unflushed().is_empty();
        env.stage = Stage::Replaying;
        if kept && cache == Cache::Absent {
            env.coverage.hit("replay to a unit without a cache");
        }
        if kept && cache == Cache::Unknown {
            env.coverage.hit("replay to a unit that does not tell its cache");
        }
        if kept && !self.setup.told {
            env.coverage.hit("replay without a power-on told");
        }
        let step = self.keeper.begin(cache, |len| format!("{len} bytes cannot be written again"));
        self.note_failure(env);
        self.take_step(env, step)
    }

    /// The log has come to know of a failure, or not.
    pub(super) fn note_failure(&mut self, env: &mut Env) {
        if self.keeper.has_failure() {
            env.oracle.shaken();
        }
    }

    fn take_step(&mut self, env: &mut Env, step: Step) -> Outcomes {
        env.log(|| format!("initiator: {step:?}"));
        match step {
            Step::Write(pieces) => {
                env.stage = Stage::Replaying;
                env.coverage.hit("replay");
                self.setup.began = true;
                let writes: VecDeque<Command> = pieces.into_iter().flat_map(writes).collect();
                if self.skips_replay(env) {
                    return self.portion_written(env);
                }
                if env.has(Sabotage::ReplayBehindUsers) {
                    for command in writes {
                        self.setup.writes.push_back(command);
                    }
                    return self.portion_written(env);
                }
                self.setup.writes = writes;
                self.write_on(env);
                Ok(())
            }
            Step::Flush => {
                env.stage = Stage::Flushing;
                if env.has(Sabotage::ReplayNotFlushed) || env.has(Sabotage::ReplayBehindUsers) {
                    let step = self.keeper.stable(None);
                    return self.take_step(env, step);
                }
                self.ask(env, cdb::flush(), 0);
                Ok(())
            }
            Step::Open => self.open(env),
        }
    }

    /// Sabotage: what is kept is not written again.
    fn skips_replay(&self, env: &Env) -> bool {
        use Sabotage as S;
        match env.sabotage {
            Some(S::NoReplay) => true,
            Some(S::ReplayOnlyIfTold) => !self.setup.told,
            Some(S::LogDroppedWithoutCache) => self.keeper.cache() == Cache::Absent,
            Some(S::ReplayCutShort) => self.setup.cut_short,
            _ => false,
        }
    }

    fn write_on(&mut self, env: &mut Env) {
        while self.setup.under_way < REPLAY_DEPTH {
            let Some(command) = self.setup.writes.pop_front() else { return };
            self.setup.under_way += 1;
            self.send(env, Origin::SetUp, command);
        }
    }

    /// A command of the replay has its answer.
    fn replayed(&mut self, env: &mut Env, id: u64, task: Task, verdict: Verdict) -> Outcomes {
        let refusal = match verdict {
            Verdict::Done => None,
            Verdict::Again(sense) if task.attempts < REPLAY_ATTEMPTS_MAX => {
                if sense.is_power_on() && self.keeper.power_on() {
                    return self.end(env);
                }
                return self.again(env, id, task);
            }
            Verdict::Later(_) => return self.again(env, id, task),
            Verdict::Again(_) => return self.end(env),
            Verdict::Conflict => Some(Refusal::Fenced("reserved".to_owned())),
            Verdict::Failed(why) => Some(Refusal::Failed(why)),
        };
        if refusal.is_some() {
            env.coverage.hit("replay refused");
        }
        if env.stage == Stage::Flushing {
            let step = self.keeper.stable(refusal);
            self.note_failure(env);
            return self.take_step(env, step);
        }
        self.setup.under_way -= 1;
        if refusal.is_some() {
            self.setup.refusal = refusal;
            self.setup.writes.clear();
        }
        self.write_on(env);
        match self.setup.under_way {
            0 => self.portion_written(env),
            _ => Ok(()),
        }
    }

    fn portion_written(&mut self, env: &mut Env) -> Outcomes {
        let refusal = self.setup.refusal.take();
        let step = self.keeper.written(refusal);
        self.note_failure(env);
        self.take_step(env, step)
    }

    fn open(&mut self, env: &mut Env) -> Outcomes {
        if self.setup.began {
            env.coverage.hit("replay finished");
        }
        self.setup.cut_short = false;
        env.coverage.hit("incarnation");
        env.stage = Stage::Up;
        env.log(|| "initiator: the gate opens".into());
        self.requeue();
        self.go_on(env);
        for command in std::mem::take(&mut self.setup.writes) {
            self.send(env, Origin::Stray, command);
        }
        self.drain(env)
    }

    /// The unit said that something changed: it is asked for its cache.
    pub(super) fn refresh(&mut self, env: &mut Env) {
        env.coverage.hit("told of a change");
        self.keeper.set_cache(Cache::Unknown);
        let command = cdb::command(cdb::mode_sense(), Bytes::new(), cdb::MODE_LEN.into());
        self.send(env, Origin::Refresh, command);
    }

    pub(super) fn refreshed(&mut self, env: &mut Env, id: u64, verdict: Verdict) -> Outcomes {
        let Some(task) = self.tasks.remove(&id) else { return Ok(()) };
        match verdict {
            Verdict::Done => {
                let cache = match cdb::write_cache(&task.buffer) {
                    Some(true) => Cache::Volatile,
                    Some(false) => Cache::Absent,
                    None => Cache::Unknown,
                };
                self.keeper.set_cache(cache);
            }
            Verdict::Again(sense) => {
                self.note_attention(env, sense);
                if !sense.is_changed() {
                    self.refresh(env);
                }
            }
            Verdict::Later(_) | Verdict::Conflict | Verdict::Failed(_) => {}
        }
        Ok(())
    }
}

/// The writes that a piece of the log is written again with.
fn writes((offset, content): (u64, Content)) -> impl Iterator<Item = Command> {
    let step = REPLAY_SECTORS * SECTOR as u64;
    let len = content.len();
    (0..len).step_by(step as usize).map(move |from| {
        let to = len.min(from + step);
        let data = match &content {
            Content::Data(data) => data.slice(from as usize..to as usize),
            Content::Zeroes(_) => Bytes::from(vec![0; (to - from) as usize]),
        };
        let first = ((offset + from) / SECTOR as u64) as u32; // within the disk
        let run = Run { first, count: (data.len() / SECTOR) as u32 };
        cdb::command(cdb::write(run, false), data, 0)
    })
}
