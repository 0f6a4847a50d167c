//! Any PDUs, losses and logins in any order, at every error recovery level: no panic, memory stays
//! counted, and in the end nothing is left.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

/// xorshift64*: the same steps for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as u32 % limit
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

/// A shell that executes, and an initiator that says anything.
struct Chaos {
    script: Script,
    random: Random,
    conns: Vec<(u16, ConnId)>,
    running: BTreeSet<Itt>,
    r2ts: Vec<(ConnId, R2t)>,
    acks: Vec<u32>,
    /// Bytes that each transfer tag asks for.
    lens: std::collections::BTreeMap<Ttt, u32>,
    now: Instant,
    executed: u32,
    reassigned: u32,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed | 1);
        let config = SessionConfig {
            command_window: 16,
            read_bytes_max: 16_384,
            buffered_bytes_max: 16_384,
            unacknowledged_max: 12,
            ..SessionConfig::default()
        };
        let params = SessionParams {
            error_recovery_level: [0, 1, 2, 2, 2, 2][random.below(6) as usize],
            data_pdu_in_order: random.one_in(2),
            data_sequence_in_order: random.one_in(2),
            default_time2retain: if random.one_in(8) { 0 } else { 10 },
            ..params()
        };
        let script = Script::with(params, config);
        let conns = vec![(1, script.conn)];
        Self {
            script,
            random,
            conns,
            running: BTreeSet::new(),
            r2ts: Vec::new(),
            acks: Vec::new(),
            lens: Default::default(),
            now: NOW,
            executed: 0,
            reassigned: 0,
        }
    }

    fn request(&mut self, conn: ConnId) -> Pdu {
        let random = &mut self.random;
        let (itt, cmd_sn) = (random.below(8), self.script.session.command_window().0.0);
        let cmd_sn = cmd_sn.wrapping_add(if random.one_in(8) { random.below(4) } else { 0 });
        let exp_stat_sn = StatSn(random.below(60));
        let len = 512 * random.below(16);
        let is_final = random.one_in(2);
        match random.below(12) {
            0..=2 => ScsiCommand { exp_stat_sn, ..read(itt, cmd_sn, len) }.into(),
            3 | 4 => ScsiCommand { exp_stat_sn, is_final, ..write(itt, cmd_sn, len) }.into(),
            5 => {
                let unsolicited = data_out(itt, Ttt::NONE, random.below(3), len / 8, is_final);
                DataOut { exp_stat_sn, ..unsolicited }.into()
            }
            6 | 7 => self.data_out(conn),
            8 => {
                let kind = SnackKind(random.below(4) as u8);
                let (beg_run, run_length) = (random.below(20), random.below(4));
                let itt = if kind == SnackKind::STATUS { Itt::NONE.0 } else { itt };
                let some = self.acks.last().copied().unwrap_or(5);
                let ttt_or_snack_tag = if random.one_in(4) { u32::MAX } else { some };
                let asked = snack(kind, itt, beg_run, run_length);
                SnackRequest { ttt_or_snack_tag, exp_stat_sn, ..asked }.into()
            }
            9 => {
                let function = TaskManagementFunction([1, 2, 5, 8, 8, 8][random.below(6) as usize]);
                let exp_data_sn = random.below(8);
                let request = abort(0x100 + itt, cmd_sn, itt, cmd_sn);
                TaskManagementRequest { function, exp_data_sn, exp_stat_sn, ..request }.into()
            }
            10 => LogoutRequest {
                immediate: true,
                reason: LogoutReason(if random.one_in(20) { 1 } else { 2 }),
                itt: Itt(0x200 + itt),
                cid: Cid(1 + random.below(3) as u16),
                cmd_sn: CmdSn(cmd_sn),
                exp_stat_sn,
            }
            .into(),
            _ => ping(0x300 + itt, cmd_sn, exp_stat_sn.0).into(),
        }
    }

    /// Data for one of the R2Ts that were seen, mostly the right one.
    fn data_out(&mut self, conn: ConnId) -> Pdu {
        let own = self.r2ts.iter().rposition(|(of, _)| *of == conn);
        let Some((_, r2t)) = own.map(|index| self.r2ts.remove(index)) else {
            return ping(9, 0, 0).into();
        };
        let odd = u32::from(self.random.one_in(6));
        let (data_sn, skip) = (odd, 256 * odd);
        data_out(r2t.itt.0, r2t.ttt, data_sn, r2t.buffer_offset + skip, true).into()
    }

    fn step(&mut self) {
        let at = self.random.below(self.conns.len().max(1) as u32) as usize;
        match self.random.below(30) {
            0 => {
                let cid = 1 + self.random.below(3) as u16;
                if self.script.session.admits(Cid(cid)) {
                    let conn = self.script.log_in(cid, self.now);
                    self.conns.push((cid, conn));
                }
            }
            1 if self.random.one_in(4) && !self.conns.is_empty() => {
                let (_, conn) = self.conns.swap_remove(at);
                self.lose(conn);
            }
            2 | 3 => {
                self.now = self.now + Duration::from_millis(u64::from(self.random.below(4000)));
                for n in 0..40 {
                    let _ = self.script.session.handle_timeout(ConnId(n), self.now);
                }
            }
            4..=9 => {
                if let Some(itt) = self.running.pop_first() {
                    let len = self.random.below(9000) as usize;
                    let failed = Completion { status: 2, ..Completion::default() };
                    let completion =
                        if self.random.one_in(5) { failed } else { good(&pattern(len)) };
                    self.script.session.complete(itt, completion);
                }
            }
            _ if !self.conns.is_empty() => self.say(self.conns[at].1),
            _ => {}
        }
        self.drain();
    }

    fn say(&mut self, conn: ConnId) {
        let pdu = self.request(conn);
        let len = match &pdu {
            Pdu::ScsiCommand(pdu) if pdu.write && self.random.one_in(2) => 256,
            Pdu::DataOut(pdu) if pdu.ttt == Ttt::NONE => 256,
            Pdu::DataOut(pdu) => self.lens.remove(&pdu.ttt).unwrap_or(512),
            _ => 0,
        };
        let header = pdu.encode(len);
        let Ok(placement) = self.script.session.handle_header(conn, self.now, &header) else {
            return self.lose(conn);
        };
        if self.random.one_in(150) {
            return self.lose(conn); // in the middle of a PDU
        }
        let received = match placement {
            Placement::Scratch => Received::Scratch(Bytes::new()),
            _ => Received::Placed,
        };
        let intact = len == 0 || !self.random.one_in(10);
        if self.script.session.handle_data(conn, received, intact).is_err() {
            self.lose(conn);
        }
    }

    fn lose(&mut self, conn: ConnId) {
        self.conns.retain(|(_, other)| *other != conn);
        self.script.session.handle_connection_lost(conn, self.now);
        self.script.session.remove_connection(conn);
    }

    fn drain(&mut self) {
        let mut closing = Vec::new();
        for (_, conn) in self.conns.clone() {
            while let Some(event) = self.script.session.poll_event(conn) {
                match event {
                    Event::Execute(execute) => {
                        self.executed += 1;
                        assert!(self.running.insert(execute.itt), "executed twice");
                    }
                    Event::Management { itt, .. } => {
                        let done = TaskManagementResponseCode::COMPLETE;
                        self.script.session.management_done(itt, done);
                    }
                    Event::Recovery(Recovery::Reassigned { .. }) => self.reassigned += 1,
                    Event::Close { .. } => closing.push(conn),
                    _ => {}
                }
            }
            for _ in 0..self.random.below(20) {
                match self.script.sent(conn) {
                    Some((Pdu::R2t(r2t), _)) => {
                        self.lens.insert(r2t.ttt, r2t.desired_data_transfer_length);
                        self.r2ts.push((conn, r2t));
                    }
                    Some((Pdu::DataIn(pdu), _)) if pdu.acknowledge => self.acks.push(pdu.ttt.0),
                    Some(_) => {}
                    None => break,
                }
            }
            assert!(self.script.session.run_count(conn) <= 64);
        }
        for conn in closing {
            if self.random.one_in(2) {
                self.lose(conn);
            }
        }
        while self.script.session.poll_wake().is_some() {}
    }

    /// What is counted as memory is what tasks hold.
    fn check(&self) {
        let session = &self.script.session;
        let granted: u64 = session.tasks.values().map(|task| u64::from(task.granted)).sum();
        assert_eq!(session.granted_bytes, granted);
        for (id, connection) in session.connections.iter() {
            let all = session.tasks.values().chain(session.answered.values().map(Box::as_ref));
            let own = all.filter(|task| task.conn == *id);
            let reading: u64 = own.map(|task| u64::from(task.reading)).sum();
            if connection.state != ConnectionState::Free {
                assert_eq!(connection.read_bytes, reading, "{id:?}");
            }
            assert!(connection.sent.len() <= 4097);
        }
    }

    fn end(mut self) -> (u32, u32) {
        for (_, conn) in std::mem::take(&mut self.conns) {
            self.lose(conn);
        }
        for n in 0..200 {
            let later = self.now + Duration::from_secs(60);
            let _ = self.script.session.handle_timeout(ConnId(n), later);
        }
        let session = &mut self.script.session;
        assert!(!session.awaits_recovery());
        for itt in std::mem::take(&mut self.running) {
            session.complete(itt, Completion::default());
        }
        session.close("the end");
        assert!(session.is_quiet());
        assert_eq!((session.task_count(), session.retained_count()), (0, 0));
        (self.executed, self.reassigned)
    }
}

#[test]
fn whatever_happens_is_survived_and_leaves_nothing() {
    let (mut executed, mut reassigned) = (0, 0);
    for seed in 1..1500u64 {
        let mut chaos = Chaos::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..600 {
            chaos.step();
            chaos.check();
            if chaos.script.session.is_closed() {
                break;
            }
        }
        let (e, r) = chaos.end();
        (executed, reassigned) = (executed + e, reassigned + r);
    }
    assert!(executed > 1000, "{executed}");
    assert!(reassigned > 100, "{reassigned}");
}
