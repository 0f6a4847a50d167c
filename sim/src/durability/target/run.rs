//! Executes commands: hands them to the real device server and polls what it makes of them, on a
//! small executor that knows no thread and no clock but the simulation's.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use block::{BlockDevice, Buf, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};
use bytes::Bytes;
use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::TaskAttribute;
use iscsi_proto::target::{Completion, ConnId, Execute, Receipt};
use scsi::{BoxFuture, Cdb, Command, Execution, NexusId, Response, Status};

use super::super::cdb;
use super::{Outcomes, SessionKey, Target};
use crate::durability::env::Env;
use crate::durability::sabotage::Sabotage;

/// Unit attentions that one nexus can have pending, with room to spare.
const ATTENTIONS_MAX: u32 = 16;

/// Commands that execute, by the order in which they began.
#[derive(Default)]
pub(super) struct Runs {
    runs: BTreeMap<u64, Run>,
    next: u64,
    /// Sabotage: writes that wait for their session to be over.
    withheld: Vec<Command>,
}

struct Run {
    execution: Execution,
    flag: Arc<Flag>,
    owner: Option<(SessionKey, ConnId, Itt)>,
}

/// Set when a command can go on.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Target {
    pub(super) fn execute(
        &mut self,
        env: &mut Env,
        key: SessionKey,
        conn: ConnId,
        execute: Execute,
        data: Vec<u8>,
    ) -> Outcomes {
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        if session.superseded {
            return Err(format!("{execute:?} in {key:?}, whose successor's login was answered"));
        }
        let expected = execute.expected_data_transfer_length as usize;
        if execute.write && data.len() != expected {
            return Err(format!("{execute:?} with {} bytes of data", data.len()));
        }
        let itt = execute.itt;
        if cdb::is_mode_sense(&execute.cdb) && env.rng.percent(env.scenario.target.mode_sense_fails)
        {
            env.coverage.hit("MODE SENSE refused");
            let refused = Response { status: Status::RESERVATION_CONFLICT, ..Response::good() };
            session.core.complete(itt, completion(refused));
            return Ok(());
        }
        let command = Command::new(execute.lun.0, Cdb::new(&execute.cdb))
            .with_data_out(Bytes::from(data))
            .with_data_in_max(if execute.read { expected } else { 0 })
            .with_attribute(attribute(execute.attribute))
            .with_tag(u64::from(itt.0));
        let early = cdb::is_flush(&execute.cdb) && env.has(Sabotage::FlushAnsweredEarly)
            || cdb::is_write(&execute.cdb) && env.has(Sabotage::WriteAnsweredEarly);
        let outlives = env.has(Sabotage::WriteOutlivesItsSession)
            && cdb::is_write(&execute.cdb)
            && env.rng.percent(10);
        if outlives {
            self.runs.withheld.push(command.clone());
        }
        *session.running.entry(conn).or_default() += 1;
        let execution = session.nexus.execute(command);
        let owner = (!early).then_some((key, conn, itt));
        self.runs.begin(execution, owner);
        if early {
            self.complete(env, (key, conn, itt), Response::good());
        }
        Ok(())
    }

    /// Polls whatever can go on, until nothing can. True if something ended.
    pub(crate) fn run_ready(&mut self, env: &mut Env) -> Result<bool, String> {
        let mut any = false;
        while let Some((owner, response)) = self.runs.poll_next() {
            any = true;
            let Some((key, conn, itt)) = owner else { continue };
            self.complete(env, (key, conn, itt), response);
            self.drain(env, key, Some(conn))?;
            self.forget_connection(key, conn);
            self.look_at_waiting(env)?;
            self.reap(env, key)?;
        }
        Ok(any)
    }

    fn complete(
        &mut self,
        env: &mut Env,
        (key, conn, itt): (SessionKey, ConnId, Itt),
        response: Response,
    ) {
        env.log(|| format!("target: {itt} is {:?} {:?}", response.status, response.sense));
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let Some(count) = session.running.get_mut(&conn) {
            *count -= 1;
        }
        session.core.complete(itt, completion(response));
    }

    /// Another initiator switches the cache on or off.
    pub(crate) fn mode_select(&mut self, env: &mut Env) {
        let nexus = self.scsi.nexus("iqn.2026-11.example:another,i,0x000000000001");
        swallow_attentions(&nexus);
        let sense = Command::new(0, Cdb::new(&cdb::mode_sense())).with_data_in_max(64);
        let Execution::Done(Response { data_in, .. }) = nexus.execute(sense) else { return };
        let Some(list) = cdb::mode_select_list(&data_in) else { return };
        env.coverage.hit("WCE changed by MODE SELECT");
        env.log(|| "another initiator changes WCE".into());
        let select = Command::new(0, Cdb::new(&cdb::mode_select(list.len())));
        let execution = nexus.execute(select.with_data_out(list.into()));
        self.runs.begin(execution, None);
    }

    /// Sabotage: writes of sessions that are over land now.
    pub(super) fn let_withheld_land(&mut self) {
        let nexus = self.scsi.nexus("iqn.2026-11.example:ghost,i,0x000000000002");
        swallow_attentions(&nexus);
        for command in std::mem::take(&mut self.runs.withheld) {
            let execution = nexus.execute(command);
            self.runs.begin(execution, None);
        }
    }
}

impl Runs {
    fn begin(&mut self, execution: Execution, owner: Option<(SessionKey, ConnId, Itt)>) {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        self.runs.insert(self.next, Run { execution, flag, owner });
        self.next += 1;
    }

    /// The next command that ends now.
    #[allow(clippy::type_complexity)]
    fn poll_next(&mut self) -> Option<(Option<(SessionKey, ConnId, Itt)>, Response)> {
        loop {
            let woken = |(_, run): &(&u64, &mut Run)| run.flag.0.swap(false, Ordering::Relaxed);
            let (id, run) = self.runs.iter_mut().find(woken)?;
            let waker = Waker::from(run.flag.clone());
            let mut context = Context::from_waker(&waker);
            if let Poll::Ready(response) = Pin::new(&mut run.execution).poll(&mut context) {
                let id = *id;
                return self.runs.remove(&id).map(|run| (run.owner, response));
            }
        }
    }
}

/// A nexus that is not told what happened before it.
pub(super) fn swallow_attentions(nexus: &scsi::Nexus) {
    for _ in 0..ATTENTIONS_MAX {
        let command = Command::new(0, Cdb::new(&cdb::TEST_UNIT_READY));
        match nexus.execute(command) {
            Execution::Done(response) if response.status != Status::GOOD => {}
            _ => return,
        }
    }
}

/// As the target server does it.
fn completion(response: Response) -> Completion {
    Completion {
        status: response.status.0,
        sense: response.sense.map_or_else(Bytes::new, |sense| Bytes::from(sense.to_bytes())),
        data_in: response.data_in,
        wanted_length: response.data_len_wanted,
        status_qualifier: 0,
        receipt: response.receipt.map(|receipt| Receipt(receipt.0)),
    }
}

fn attribute(attribute: TaskAttribute) -> scsi::TaskAttribute {
    match attribute {
        TaskAttribute::ORDERED => scsi::TaskAttribute::Ordered,
        TaskAttribute::HEAD_OF_QUEUE => scsi::TaskAttribute::HeadOfQueue,
        TaskAttribute::ACA => scsi::TaskAttribute::Aca,
        _ => scsi::TaskAttribute::Simple,
    }
}

/// There is one initiator, which aborts nothing of others, and no work in the background.
pub(super) struct Surroundings;

impl scsi::Host for Surroundings {
    fn abort_tasks(&self, _: u64, _: Vec<NexusId>) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }

    fn pause(&self, _: Duration) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }

    fn spawn(&self, work: BoxFuture) {
        drop(work);
    }
}

/// Sabotage: a volatile cache that is not told of.
pub(super) struct Denying(pub(super) Device);

impl BlockDevice for Denying {
    fn info(&self) -> DeviceInfo {
        let mut info = self.0.info();
        info.volatile_cache = false;
        info
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.0.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.0.write(offset, data, flags)
    }

    fn flush(&self) -> Io<()> {
        self.0.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.0.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.0.zero(offset, len, flags)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.0.extents(offset, len)
    }
}
