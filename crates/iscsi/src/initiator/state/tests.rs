//! Commands through the gate: what waits, what comes back, and that nothing is lost or doubled.

use block::{Bytes, Result};
use iscsi_proto::ids::{Cid, Isid, Tsih};
use iscsi_proto::initiator::durability::{Cache, Content, Ended, Ticket};
use iscsi_proto::initiator::{Config, Established, Session};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::pdu::{Pdu, Residual, ResponseCode, ScsiResponse};
use iscsi_proto::serial::{CmdSn, StatSn};

use super::*;
use crate::initiator::growth::Job;
use crate::initiator::op::Origin;
use crate::initiator::rejoin::Home;
use crate::initiator::url::Portal;

struct Rig {
    state: State,
    batch: Batch,
    id: ConnectionId,
    stat_sn: StatSn,
    last_slot: Option<std::sync::Arc<Slot>>,
}

fn at(seconds: u64) -> Instant {
    Instant(Duration::from_secs(seconds))
}

impl Rig {
    fn new(commands: usize) -> Self {
        let limits = Limits {
            commands,
            command_timeout: Duration::from_secs(60),
            replacement_timeout: Duration::from_secs(120),
            connections: 1,
            unflushed_len: 2000,
            writers: Writers::One,
            aborts_reads: false,
            after_loss: AfterLoss::GoOn,
        };
        let state = State::new(Lun(0), limits, std::time::Instant::now());
        let mut rig = Self {
            state,
            batch: Batch::default(),
            id: member().1,
            stat_sn: StatSn(1),
            last_slot: None,
        };
        rig.bring_up(0);
        rig
    }

    fn bring_up(&mut self, seconds: u64) {
        let (member, id) = member();
        (self.id, self.stat_sn) = (id, StatSn(1));
        self.state.begin(vec![member], at(seconds), &mut self.batch);
        self.state.durability.begin(Cache::Absent, Failure::lost);
        self.state.open(&mut self.batch);
    }

    fn send(&mut self, lba: u8, effect: Effect) {
        let mut cdb = [0; 16];
        cdb[4] = lba;
        let mut task = a_task(effect);
        task.ticket = self.state.durability.ask();
        self.last_slot = Some(task.slot.clone());
        self.state.enqueue(command(Lun(0), cdb), task, &mut self.batch);
    }

    /// Transmits what may go out; LBAs and tags in order.
    fn sent(&mut self) -> Vec<(u8, iscsi_proto::ids::Itt)> {
        let session = &mut self.state.members[0].session;
        let mut sent = Vec::new();
        while let Some(transmit) = session.poll_transmit(self.id, at(0)) {
            if let Ok(Pdu::ScsiCommand(command)) = Pdu::parse(&transmit.header) {
                sent.push((command.cdb[4], command.itt));
            }
        }
        sent
    }

    fn answer(&mut self, itt: iscsi_proto::ids::Itt, status: u8) {
        let response = ScsiResponse {
            response: ResponseCode::COMPLETED,
            status,
            status_qualifier: 0,
            residual: Residual::None,
            bidi_read_residual: Residual::None,
            itt,
            snack_tag: 0,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: CmdSn(1),
            max_cmd_sn: CmdSn(1000),
            exp_data_sn: 0,
        };
        let session = &mut self.state.members[0].session;
        session.handle_header(self.id, at(0), &response.encode(0)).unwrap();
        self.state.collect(0, None, &mut self.batch);
    }

    fn failed(&mut self) -> usize {
        self.batch.failed.drain(..).count()
    }
}

fn member() -> (Member, ConnectionId) {
    member_with(SessionParams::default())
}

fn member_with(session: SessionParams) -> (Member, ConnectionId) {
    let established = Established {
        tsih: Tsih(1),
        cid: Cid(1),
        session,
        connection: ConnectionParams::default(),
        cmd_sn: CmdSn(1),
        exp_cmd_sn: CmdSn(1),
        max_cmd_sn: CmdSn(1000),
        exp_stat_sn: StatSn(1),
    };
    let (session, id) = Session::new(Config::default(), &established, at(0));
    (Member::new(session, Isid::random(1, 0)), id)
}

/// The name of a connection, which only a session gives.
pub(in crate::initiator) fn a_connection() -> ConnectionId {
    member().1
}

fn a_task(effect: Effect) -> Task {
    Box::new(Asked {
        slot: Slot::new(&effect),
        origin: Origin::User,
        buf: None,
        effect,
        ticket: Ticket::default(),
        ended: Ended::Good,
        attempts: 0,
        asked_at: at(0),
        submitted_at: at(0),
        cmd_sn: None,
    })
}

fn lbas(sent: &[(u8, iscsi_proto::ids::Itt)]) -> Vec<u8> {
    sent.iter().map(|(lba, _)| *lba).collect()
}

fn write_effect(len: usize) -> Effect {
    Effect::Volatile(0, Content::Data(Bytes::from(vec![1; len])))
}

#[test]
fn what_was_under_way_comes_first_in_the_next_session_and_in_its_order() -> Result<()> {
    let mut rig = Rig::new(3);
    (1..=5).for_each(|lba| rig.send(lba, Effect::None));
    assert_eq!(lbas(&rig.sent()), [1, 2, 3]);
    rig.state.end("lost".into(), &mut rig.batch);
    rig.send(6, Effect::None);
    assert_eq!(rig.failed(), 0);
    rig.state.limit = 6;
    rig.bring_up(1);
    assert_eq!(lbas(&rig.sent()), [1, 2, 3, 4, 5, 6]);
    Ok(())
}

#[test]
fn a_full_queue_means_fewer_commands_and_more_again_after_a_calm_time() {
    let mut rig = Rig::new(8);
    (0..20).for_each(|lba| rig.send(lba, Effect::None));
    let sent = rig.sent();
    assert_eq!(sent.len(), 8);
    rig.state.shrink();
    assert_eq!(rig.state.limit, 6);
    rig.answer(sent[0].1, 0);
    assert!(rig.sent().is_empty(), "seven are still there, six are allowed");
    rig.answer(sent[1].1, 0);
    rig.answer(sent[2].1, 0);
    assert_eq!(rig.sent().len(), 1);
    rig.state.calm = 100;
    rig.answer(sent[3].1, 0);
    assert_eq!(rig.state.limit, 7);
}

#[test]
fn behind_the_command_that_is_being_answered_the_window_is_full() {
    let mut rig = Rig::new(9);
    // Each costs as much as a command without data.
    let window = 2 * iscsi_proto::initiator::COMMAND_COST_BYTES;
    rig.state.set_window(Some(window), &mut rig.batch);
    (0..6).for_each(|lba| rig.send(lba, Effect::None));
    let sent = rig.sent();
    assert_eq!(lbas(&sent), [0, 1, 2], "the first may be done as good as");
    rig.answer(sent[0].1, 0);
    assert_eq!(lbas(&rig.sent()), [3]);
    rig.state.set_window(Some(0), &mut rig.batch);
    sent[1..].iter().for_each(|(_, itt)| rig.answer(*itt, 0));
    assert!(rig.sent().is_empty(), "one may always be under way, and is");
}

#[test]
fn a_target_gone_for_too_long_fails_what_waits_and_what_comes() {
    let mut rig = Rig::new(2);
    (0..4).for_each(|lba| rig.send(lba, Effect::None));
    rig.sent();
    rig.state.end("lost".into(), &mut rig.batch);
    rig.state.give_up(Phase::Unreachable("gone".into()), "gone", &mut rig.batch);
    assert_eq!(rig.failed(), 4);
    rig.send(9, Effect::None);
    assert_eq!(rig.failed(), 1);
    rig.bring_up(200);
    rig.send(10, Effect::None);
    assert_eq!((rig.failed(), lbas(&rig.sent())), (0, vec![10]));
}

#[test]
fn a_command_that_ends_every_session_fails_in_the_end() {
    let mut rig = Rig::new(2);
    rig.send(1, Effect::None);
    for seconds in [1, 60, 119] {
        rig.sent();
        rig.state.end("lost".into(), &mut rig.batch);
        rig.bring_up(seconds);
        assert_eq!(rig.failed(), 0);
    }
    rig.state.end("lost".into(), &mut rig.batch);
    rig.bring_up(121);
    assert_eq!(rig.failed(), 1);
}

#[test]
fn an_unanswered_command_ends_the_session() {
    let mut rig = Rig::new(2);
    rig.send(1, Effect::None);
    rig.sent();
    rig.state.expire(at(59), &mut rig.batch);
    // The silent link is asked for a sign of life first; that is not what is tested here.
    assert!(rig.state.ended.is_none());
    rig.state.watch_at = at(61);
    rig.state.end_if_unanswered(at(61), &mut rig.batch);
    assert!(rig.state.ended.as_ref().is_some_and(|why| why.contains("no answer")));
}

#[test]
fn too_much_unflushed_starts_a_flush_and_holds_writes_but_not_reads() {
    let mut rig = Rig::new(8);
    rig.state.durability.set_cache(Cache::Volatile);
    rig.send(1, write_effect(3000));
    let sent = rig.sent();
    rig.answer(sent[0].1, 0);
    let flush = rig.sent(); // SYNCHRONIZE CACHE has no LBA
    assert_eq!(lbas(&flush), [0]);
    rig.send(2, write_effect(10));
    rig.send(3, Effect::None);
    assert_eq!(lbas(&rig.sent()), [3]);
    rig.answer(flush[0].1, 0);
    assert_eq!(lbas(&rig.sent()), [2]);
}

/// Otherwise writes wait for ever once as much is kept as may be.
#[test]
fn a_flush_that_was_lost_with_its_session_does_not_keep_back_our_own() {
    let mut rig = Rig::new(8);
    rig.send(1, Effect::Flushed);
    assert_eq!(lbas(&rig.sent()), [1]);
    rig.state.end("lost".into(), &mut rig.batch);
    rig.bring_up(1);
    let again = rig.sent();
    assert_eq!(lbas(&again), [1]);
    rig.answer(again[0].1, 0);
    rig.state.durability.set_cache(Cache::Volatile);
    rig.send(2, write_effect(1500));
    let write = rig.sent();
    rig.answer(write[0].1, 0);
    assert_eq!(lbas(&rig.sent()), [0], "SYNCHRONIZE CACHE has no LBA");
}

const FAILED: u8 = 0x22; // COMMAND TERMINATED, which is obsolete: no reason is given

/// Answers that count by now, in their order: LBA, and whether its caller is told of a failure.
fn ended(rig: &mut Rig) -> Vec<(u8, bool)> {
    let finished = rig.batch.finished.drain(..);
    let told = finished.map(|(command, task, outcome)| {
        (command.cdb[4], matches!(task.ended, Ended::Failed(_)) || !is_done(&outcome))
    });
    told.collect()
}

/// Over two connections one may fail at the target, the other find nothing wrong any more, and its
/// answer come first. Found by the simulator.
#[test]
fn flushes_and_forced_writes_under_way_together_share_a_failure_and_wait_for_each_other() {
    let forced = Effect::Stable(0x1000, 10);
    for (status, other) in
        [0, FAILED].into_iter().flat_map(|s| [(s, Effect::Flushed), (s, forced.clone())])
    {
        let mut rig = Rig::new(8);
        rig.state.durability.set_cache(Cache::Volatile);
        rig.send(1, other);
        rig.send(2, Effect::Flushed);
        let sent = rig.sent();
        rig.answer(sent[1].1, 0);
        assert_eq!(ended(&mut rig), []);
        rig.send(3, Effect::Flushed);
        rig.send(4, write_effect(10));
        let later = rig.sent();
        assert_eq!(lbas(&later), [3, 4], "nothing waits to be sent");
        rig.answer(sent[0].1, status);
        // With GOOD it is held for the third one, which is under way by now.
        match status {
            0 => assert_eq!(ended(&mut rig), [(2, false)]),
            _ => assert_eq!(ended(&mut rig), [(1, true), (2, true)]),
        }
        rig.answer(later[0].1, 0);
        match status {
            0 => assert_eq!(ended(&mut rig), [(3, false), (1, false)]),
            _ => assert_eq!(ended(&mut rig), [(3, true)], "under way while the first one failed"),
        }
    }
}

/// As Linux' target tells it: NOT READY, logical unit communication failure.
#[test]
fn a_flush_that_failed_at_a_target_that_says_not_ready_is_not_sent_again() {
    let sense = Bytes::from(vec![0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0]);
    let residual = Residual::None;
    let outcome = TaskOutcome::Completed { status: 2, residual, data_in_len: 0, sense };
    for effect in [Effect::Flushed, Effect::Stable(0, 512)] {
        assert!(matches!(verdict(&a_task(effect), &outcome), Verdict::Failed(_)));
    }
    assert!(matches!(verdict(&a_task(Effect::None), &outcome), Verdict::Later(_)));
}

#[test]
fn a_flush_of_the_user_and_our_own_share_a_failure() {
    let mut rig = Rig::new(8);
    rig.state.durability.set_cache(Cache::Volatile);
    rig.send(1, write_effect(1500));
    let write = rig.sent();
    rig.answer(write[0].1, 0);
    assert_eq!(ended(&mut rig), [(1, false)]);
    let own = rig.sent(); // SYNCHRONIZE CACHE has no LBA
    rig.send(2, Effect::Flushed);
    let users = rig.sent();
    assert_eq!((lbas(&own), lbas(&users)), (vec![0], vec![2]));
    rig.answer(users[0].1, 0);
    assert_eq!(ended(&mut rig), []);
    rig.answer(own[0].1, FAILED);
    assert_eq!(ended(&mut rig), [(0, true), (2, true)]);
}

/// The answer that it was held for is lost with the session, and with it perhaps a failure.
#[test]
fn a_flush_that_is_held_when_its_session_is_lost_is_sent_again() {
    let mut rig = Rig::new(8);
    (1..=3).for_each(|lba| rig.send(lba, Effect::Flushed));
    let sent = rig.sent();
    rig.answer(sent[0].1, 0);
    let given_up = rig.last_slot.clone().unwrap();
    rig.answer(sent[2].1, 0);
    rig.state.abandon(&given_up, &mut rig.batch);
    rig.state.end("lost".into(), &mut rig.batch);
    assert_eq!((ended(&mut rig), rig.failed()), (vec![], 1));
    rig.bring_up(1);
    let again = rig.sent();
    let mut numbers = lbas(&again);
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    again.iter().for_each(|(_, itt)| rig.answer(*itt, 0));
    assert_eq!(ended(&mut rig).len(), 2);
}

/// The target has lost it with its connection. A failure that it may have been told of would be
/// told to nobody, and the flush be GOOD the next time.
#[test]
fn a_flush_without_an_answer_ends_the_incarnation_while_anything_is_kept() {
    for kept in [false, true] {
        let mut rig = Rig::new(8);
        rig.state.durability.set_cache(Cache::Volatile);
        if kept {
            rig.send(1, write_effect(10));
            let write = rig.sent();
            rig.answer(write[0].1, 0);
        }
        rig.send(2, Effect::Flushed);
        rig.sent();
        let mut task = a_task(Effect::Flushed);
        task.ticket = rig.state.durability.ask();
        let command = command(Lun(0), [0; 16]);
        let mut returned = vec![(command, task, true)];
        let ticket = &mut returned[0].1.ticket;
        rig.state.durability.sent(&Effect::Flushed, ticket);
        rig.state.in_flight += 1;
        assert_eq!(rig.state.note_returned(returned, &mut rig.batch), kept);
    }
}

#[test]
fn a_forced_write_that_fails_makes_the_next_flush_fail() {
    let mut rig = Rig::new(8);
    rig.state.durability.set_cache(Cache::Volatile);
    let forced = Effect::Stable(0x1000, 10);
    let flush = Effect::Flushed;
    for (effect, status) in
        [(write_effect(10), 0), (forced, FAILED), (flush.clone(), 0), (flush, 0)]
    {
        rig.send(1, effect);
        let sent = rig.sent();
        rig.answer(sent[0].1, status);
    }
    let told = |(_, task, _): &(Command, Task, TaskOutcome)| matches!(task.ended, Ended::Failed(_));
    let told: Vec<bool> = rig.batch.finished.iter().map(told).collect();
    assert_eq!(told, [false, false, true, false]);
}

#[test]
fn connections_that_are_opened_together_wait_together() {
    let mut rig = Rig::new(1);
    let params =
        SessionParams { max_connections: 32, error_recovery_level: 2, ..Default::default() };
    let (mut member, _) = member_with(params);
    let lost = [Cid(7), Cid(8), Cid(9)];
    let cids = [&[Cid(1)], &lost[..]].concat();
    let portal = Portal { host: "198.51.100.1".into(), port: 3260 };
    member.home = Some(Home { portal, isid: Isid::random(1, 0), cids, proof: (None, false) });
    rig.state.members = vec![member];
    let mut pauses_ms = |wanted| {
        rig.state.growth.wanted = wanted;
        rig.state.members[0].rejoining.clear();
        let mut pauses = [Vec::new(), Vec::new()];
        for job in rig.state.jobs(at(1)) {
            let Job::Connection { cid, pause, .. } = job else { panic!("{job:?}") };
            pauses[usize::from(lost.contains(&cid))].push(pause.as_millis());
        }
        pauses
    };
    assert_eq!(pauses_ms(1), [vec![], vec![0; 3]]);
    assert_eq!(pauses_ms(1), [vec![], vec![20; 3]]); // those ended without a command
    // New ones have not failed: nothing is to be waited for.
    assert_eq!(pauses_ms(32), [vec![0; 28], vec![40; 3]]);
}

#[test]
fn what_goes_before_the_first_connections_are_there_is_little() {
    let mut rig = Rig::new(100);
    let ask = |rig: &mut Rig| {
        for lba in 0..5 {
            let mut read = command(Lun(0), [0; 16]);
            (read.cdb[4], read.data_in_len) = (lba, 32 << 10);
            rig.state.enqueue(read, a_task(Effect::None), &mut rig.batch);
        }
    };
    rig.state.members[0].rejoining = vec![Cid(2), Cid(3)];
    rig.state.gather(at(1000));
    ask(&mut rig);
    let sent = rig.sent();
    assert_eq!(sent.len(), 2, "64 KiB over the one that there is");
    rig.answer(sent[0].1, 0);
    assert_eq!(rig.sent().len(), 1);
    // One that never comes is not waited for.
    rig.state.gather(at(0));
    rig.answer(sent[1].1, 0);
    assert_eq!(rig.sent().len(), 2);
    rig.state.gather(at(1000));
    rig.state.members[0].rejoining.clear();
    ask(&mut rig);
    assert_eq!(rig.sent().len(), 5, "all are there");
}

#[test]
fn a_newer_write_waits_for_one_that_was_given_up() {
    let mut rig = Rig::new(8);
    rig.send(1, write_effect(512));
    let old = rig.sent();
    let slot = rig.last_slot.clone().unwrap();
    rig.state.abandon(&slot, &mut rig.batch);
    rig.send(2, write_effect(512));
    rig.send(3, Effect::None);
    assert_eq!(lbas(&rig.sent()), [3], "a read may see either");
    rig.answer(old[0].1, 0);
    assert_eq!(lbas(&rig.sent()), [2]);
}

#[test]
fn what_was_given_up_is_withdrawn_or_not_sent_again() {
    let mut rig = Rig::new(1);
    rig.send(1, write_effect(512));
    let under_way = rig.last_slot.clone().unwrap();
    rig.send(2, write_effect(512));
    let waiting = rig.last_slot.clone().unwrap();
    rig.sent();
    rig.state.abandon(&waiting, &mut rig.batch);
    rig.state.abandon(&under_way, &mut rig.batch);
    rig.send(3, write_effect(512));
    rig.state.end("lost".into(), &mut rig.batch);
    rig.bring_up(1);
    assert_eq!(lbas(&rig.sent()), [3]);
}

#[test]
fn as_long_as_others_fare_well_a_command_is_sent_again_but_not_for_ever() {
    let mut rig = Rig::new(2);
    rig.send(1, Effect::None);
    for attempt in 0..REISSUES_MAX {
        assert_eq!(rig.failed(), 0, "attempt {attempt}");
        rig.sent();
        rig.state.end("lost".into(), &mut rig.batch);
        rig.state.progress_at = at(200);
        rig.bring_up(201);
    }
    assert_eq!(rig.failed(), 1);
}

/// Whatever is not GOOD ends a disk that has been asked for a barrier: those behind it are carried
/// out.
#[test]
fn a_command_that_is_not_carried_out_ends_a_disk_that_keeps_an_order() {
    for is_ordered in [false, true] {
        let mut rig = Rig::new(4);
        rig.state.limits.after_loss = AfterLoss::Die;
        if is_ordered {
            rig.state.begin_order(&mut rig.batch).unwrap();
        }
        rig.send(1, Effect::Stable(0, 512));
        rig.send(2, Effect::Flushed);
        let sent = rig.sent();
        rig.answer(sent[0].1, status::BUSY);
        assert_eq!(rig.state.ended.is_some(), is_ordered);
        assert_eq!(rig.failed(), usize::from(is_ordered), "the flush");
    }
}

/// A barrier does not overtake a write that waits.
#[test]
fn nothing_overtakes_where_there_is_an_order() {
    for is_ordered in [false, true] {
        let mut rig = Rig::new(4);
        if is_ordered {
            rig.state.begin_order(&mut rig.batch).unwrap();
        }
        let write = || Effect::Volatile(0, Content::Data(Bytes::from(vec![0; 512])));
        rig.send(1, write());
        let first = rig.sent()[0].1;
        let slot = rig.last_slot.clone().unwrap();
        rig.state.abandon(&slot, &mut rig.batch);
        rig.send(2, write()); // waits for the one that was given up
        rig.send(3, Effect::Flushed);
        let sent: Vec<u8> = rig.sent().iter().map(|(lba, _)| *lba).collect();
        let overtaken: &[u8] = if is_ordered { &[] } else { &[3] };
        assert_eq!(sent, overtaken);
        rig.answer(first, status::GOOD);
        let sent: Vec<u8> = rig.sent().iter().map(|(lba, _)| *lba).collect();
        let rest: &[u8] = if is_ordered { &[2, 3] } else { &[2] };
        assert_eq!(sent, rest);
    }
}
