//! The medium behind the target: executes commands after delays of its own, so that they end in
//! any order, and keeps who wrote each block last. It also checks what the session core hands it:
//! right data, no command twice, order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::ids::Itt;
use iscsi_proto::serial::CmdSn;
use iscsi_proto::target::{Completion, ConnId, Execute};

use crate::env::{Env, Event};
use crate::sabotage::Sabotage;
use crate::wire_check::SessionKey;
use crate::workload::{Action, BLOCKS, Extent, OpId, UNITS, content, fill};

/// SCSI status CHECK CONDITION.
pub(crate) const CHECK_CONDITION: u8 = 2;

/// A command that executes.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) session: SessionKey,
    pub(crate) conn: ConnId,
    pub(crate) itt: Itt,
    op: OpId,
    unit: u64,
    action: Action,
    fails: bool,
    /// Takes effect (or looks) when it starts, not when it ends.
    early: bool,
    seen: Option<Vec<OpId>>,
}

/// All units.
#[derive(Debug)]
pub(crate) struct Storage {
    /// Who wrote each block last.
    units: Vec<Vec<OpId>>,
    running: BTreeMap<u64, Running>,
    next: u64,
    executed: BTreeSet<(SessionKey, Itt, OpId)>,
    /// Last command of each connection that came whole.
    last: BTreeMap<(SessionKey, ConnId), CmdSn>,
    /// A write kept for sabotage.
    kept: Option<(OpId, u64, Extent)>,
    count: u64,
}

/// Sense data that names the operation it is about.
pub(crate) fn sense(op: OpId) -> Bytes {
    let mut sense = vec![0x70, 0, 3, 0, 0, 0, 0, 10];
    sense.extend_from_slice(&op.0.to_be_bytes());
    sense.into()
}

impl Storage {
    pub(crate) fn new() -> Self {
        Self {
            units: vec![vec![OpId(0); BLOCKS as usize]; UNITS as usize],
            running: BTreeMap::new(),
            next: 0,
            executed: BTreeSet::new(),
            last: BTreeMap::new(),
            kept: None,
            count: 0,
        }
    }

    /// Starts a command. Returns its number if it ends at once, for [`Self::finish`].
    pub(crate) fn start(
        &mut self,
        env: &mut Env,
        session: SessionKey,
        conn: ConnId,
        execute: &Execute,
        data: &[u8],
    ) -> Result<Option<u64>, String> {
        let (op, action) = Action::parse(&execute.cdb).ok_or("the command block is damaged")?;
        check_transfer(op, action, execute, data)?;
        if !self.executed.insert((session, execute.itt, op)) {
            return Err(format!("{op} is executed twice in session {session:?}"));
        }
        self.check_order(env, session, conn, execute.itt)?;
        self.count += 1;
        env.coverage.hit("command executed");
        if self.count == 20 && env.sabotage == Some(Sabotage::LoseCommand) {
            return Ok(None);
        }
        let medium = env.scenario.medium;
        let mut running = Running {
            session,
            conn,
            itt: execute.itt,
            op,
            unit: execute.lun.0,
            action,
            fails: env.rng.percent(medium.errors),
            early: env.rng.coin(),
            seen: None,
        };
        if running.early {
            self.take_effect(env, &mut running)?;
        }
        let id = self.next;
        self.next += 1;
        self.running.insert(id, running);
        if env.rng.percent(medium.immediate) {
            return Ok(Some(id));
        }
        let delay = Duration::from_micros(env.rng.skewed(medium.delay_max.as_micros() as u64));
        env.clock.after(delay, Event::Storage(id));
        if self.count == 25 && env.sabotage == Some(Sabotage::DuplicateExecution) {
            return self.start(env, session, conn, execute, data);
        }
        Ok(None)
    }

    /// A command ends.
    pub(crate) fn finish(
        &mut self,
        env: &mut Env,
        id: u64,
    ) -> Result<Option<(Running, Completion)>, String> {
        let Some(mut running) = self.running.remove(&id) else { return Ok(None) };
        if !running.early {
            self.take_effect(env, &mut running)?;
        }
        let op = running.op;
        if running.fails {
            env.coverage.hit("command failed");
            let status = CHECK_CONDITION;
            let completion = Completion { status, sense: sense(op), ..Completion::default() };
            return Ok(Some((running, completion)));
        }
        let (data_in, wanted_length) = match running.action {
            Action::Read(extent) => {
                let mut data = Vec::with_capacity(extent.len());
                let seen = running.seen.take().unwrap_or_default();
                for (block, op) in extent.blocks().zip(seen) {
                    fill(op, block, &mut data);
                }
                (data.into(), extent.len() as u64)
            }
            Action::Write(extent) => (Bytes::new(), extent.len() as u64),
            Action::Flush => (Bytes::new(), 0),
            Action::Inquire { wanted, .. } => {
                (vec![0xa5; wanted as usize].into(), u64::from(wanted))
            }
        };
        let completion = Completion { data_in, wanted_length, ..Completion::default() };
        Ok(Some((running, completion)))
    }

    fn take_effect(&mut self, env: &mut Env, running: &mut Running) -> Result<(), String> {
        let blocks = &mut self.units[running.unit as usize];
        match running.action {
            Action::Read(extent) => {
                running.seen = Some(extent.blocks().map(|block| blocks[block as usize]).collect());
            }
            Action::Write(extent) if !running.fails => {
                env.model.take_effect(running.op)?;
                extent.blocks().for_each(|block| blocks[block as usize] = running.op);
                if self.kept.is_none() {
                    self.kept = Some((running.op, running.unit, extent));
                }
            }
            _ => {}
        }
        self.land_stale_copy(env)
    }

    /// Sabotage: an old write comes out of a queue again.
    fn land_stale_copy(&mut self, env: &mut Env) -> Result<(), String> {
        let Some((op, unit, extent)) = self.kept else { return Ok(()) };
        match env.sabotage {
            Some(Sabotage::StaleExecution) if env.model.take_effect(op).is_err() => {
                env.model.take_effect(op)
            }
            // Nobody who could know is asked: only a later read can notice.
            Some(Sabotage::StaleData) if env.model.take_effect(op).is_err() => {
                let blocks = &mut self.units[unit as usize];
                extent.blocks().for_each(|block| blocks[block as usize] = op);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Commands that need no further data are executed in the order of their CmdSN, as far as one
    /// connection goes. Across connections the shell's threads decide (all commands are SIMPLE).
    fn check_order(
        &mut self,
        env: &Env,
        session: SessionKey,
        conn: ConnId,
        itt: Itt,
    ) -> Result<(), String> {
        let (cmd_sn, later) = env.wire.command(session, itt).ok_or("a command nobody sent")?;
        // Whom limits let go on first they do not say.
        if later || env.scenario.holding.is_some() {
            return Ok(());
        }
        if let Some(last) = self.last.insert((session, conn), cmd_sn)
            && !last.is_before(cmd_sn)
        {
            return Err(format!("command {cmd_sn} is executed after {last}"));
        }
        Ok(())
    }

    /// Where a command came from.
    pub(crate) fn owner(&self, id: u64) -> Option<(SessionKey, ConnId)> {
        self.running.get(&id).map(|running| (running.session, running.conn))
    }

    /// Who wrote the blocks of a unit.
    pub(crate) fn content(&self, unit: u64) -> &[OpId] {
        &self.units[unit as usize]
    }
}

fn check_transfer(op: OpId, action: Action, execute: &Execute, data: &[u8]) -> Result<(), String> {
    let expected = content(
        op,
        match action {
            Action::Write(extent) => extent,
            _ => Extent { first: 0, count: 0 },
        },
    );
    if expected != data {
        let at = expected.iter().zip(data).position(|(a, b)| a != b);
        let (len, wanted) = (data.len(), expected.len());
        return Err(format!("{op}: {len} of {wanted} bytes came, first difference at {at:?}"));
    }
    let moved = action.data_in_len().max(expected.len() as u32); // below 2³²: few blocks
    if execute.expected_data_transfer_length != moved || execute.too_long {
        return Err(format!("{op}: expected length {}", execute.expected_data_transfer_length));
    }
    if execute.lun.0 >= UNITS {
        return Err(format!("{op}: there is no unit {}", execute.lun));
    }
    Ok(())
}
