//! Whatever a target sends, in whatever order: no panic, data only inside buffers, and every
//! command ends exactly once.

use proptest::prelude::*;

use super::super::*;
use super::peer::Peer;
use crate::connection::Placement;
use crate::pdu::Header;

#[derive(Clone, Debug)]
enum Step {
    Read(u32),
    Write(usize),
    Transmit(usize),
    /// A legal end of the oldest sent command of a connection.
    Respond(usize),
    /// Any 48 bytes, with a plausible opcode and tag.
    Random {
        connection: usize,
        bhs: Vec<u8>,
        opcode: u8,
        pick: usize,
        len: u32,
    },
    Abort(usize),
    Remove(usize),
    Lose(usize),
    Time(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let opcodes =
        prop::sample::select(vec![0x20u8, 0x21, 0x22, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f]);
    let random = (0..3usize, prop::collection::vec(any::<u8>(), 48), opcodes, 0..8usize, 0..600u32)
        .prop_map(|(connection, bhs, opcode, pick, len)| Step::Random {
            connection,
            bhs,
            opcode,
            pick,
            len,
        });
    prop_oneof![
        6 => (1..20_000u32).prop_map(Step::Read),
        6 => (1..40_000usize).prop_map(Step::Write),
        8 => (0..3usize).prop_map(Step::Transmit),
        8 => (0..3usize).prop_map(Step::Respond),
        2 => random,
        1 => (0..8usize).prop_map(Step::Abort),
        1 => (0..3usize).prop_map(Step::Remove),
        1 => (0..3usize).prop_map(Step::Lose),
        1 => (0..9000u64).prop_map(Step::Time),
    ]
}

/// What the test keeps to check against.
#[derive(Default)]
struct Model {
    submitted: u32,
    ended: Vec<u32>,
    /// Tag, connection and read length of commands that were sent and have not ended.
    sent: Vec<(Itt, usize, u32)>,
}

impl Model {
    fn absorb(&mut self, peer: &mut Peer) {
        for event in peer.events() {
            match event {
                Event::TaskDone { itt, context, .. } => {
                    self.sent.retain(|(tag, ..)| *tag != itt);
                    self.ended.push(context);
                }
                Event::TaskRequeue { context, .. } => self.ended.push(context),
                _ => {}
            }
        }
    }

    fn run(&mut self, peer: &mut Peer, step: Step) {
        match step {
            Step::Read(len) => self.submit(peer, Bytes::new(), len),
            Step::Write(len) => self.submit(peer, vec![1; len].into(), 0),
            Step::Transmit(k) => {
                for command in peer.drain_commands(k) {
                    let len = if command.read { command.expected_data_transfer_length } else { 0 };
                    self.sent.push((command.itt, k, len));
                }
            }
            Step::Respond(k) => {
                let found = self.sent.iter().find(|(_, connection, _)| *connection == k);
                if let Some((itt, ..)) = found.copied().filter(|_| peer.session.is_open()) {
                    let header = peer.response(k, itt, 0).encode(0);
                    let _ = peer.give(k, &header, &[]);
                }
            }
            Step::Random { connection, bhs, opcode, pick, len } => {
                self.random(peer, connection, &bhs, opcode, pick, len);
            }
            Step::Abort(pick) => {
                if let Some((itt, ..)) = self.sent.get(pick) {
                    peer.session.abort(*itt);
                }
            }
            Step::Remove(k) => {
                let _ = peer.session.remove_connection(peer.ids[k]);
            }
            Step::Lose(k) => peer.session.handle_connection_lost(peer.ids[k], peer.now),
            Step::Time(ms) => {
                peer.now = peer.now + std::time::Duration::from_millis(ms);
                peer.session.handle_timeout(peer.now);
            }
        }
        self.absorb(peer);
    }

    fn submit(&mut self, peer: &mut Peer, data: Bytes, len: u32) {
        let command = super::peer::command(data, len);
        if peer.session.submit(command, self.submitted).is_ok() {
            self.submitted += 1;
        }
    }

    fn random(&mut self, peer: &mut Peer, k: usize, bhs: &[u8], opcode: u8, pick: usize, len: u32) {
        let mut header = Header { bhs: bhs.try_into().unwrap(), ahs: Bytes::new() };
        header.bhs[0] = opcode;
        header.bhs[4..8].copy_from_slice(&len.to_be_bytes());
        let named = self.sent.get(pick).copied();
        if let Some((itt, ..)) = named {
            header.bhs[16..20].copy_from_slice(&itt.0.to_be_bytes());
            header.bhs[24..28].copy_from_slice(&peer.stat_sn[k].0.to_be_bytes());
            // Small numbers get past the first checks.
            header.bhs[36..42].fill(0);
        }
        let scratch = vec![bhs[0]; len as usize];
        if let Ok(Placement::Task { itt, offset }) =
            peer.session.handle_header(peer.ids[k], peer.now, &header)
        {
            let (_, owner, limit) = named.expect("placed for a task that was never named");
            assert_eq!(owner, k);
            assert_eq!(Some(itt), named.map(|n| n.0));
            assert!(u64::from(offset) + u64::from(len) <= u64::from(limit));
        }
        let _ = peer.session.handle_data(peer.ids[k], peer.now, &scratch, bhs[1] & 7 != 0);
        let _ = peer.drain(k);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_command_ends_exactly_once(
        steps in prop::collection::vec(step(), 1..80),
        level in 0..3u8,
    ) {
        let params = SessionParams {
            error_recovery_level: level,
            default_time2wait: 0,
            ..super::peer::session_params()
        };
        let mut peer = Peer::with(params, 3);
        let mut model = Model::default();
        for step in steps {
            model.run(&mut peer, step);
        }
        peer.session.abandon();
        model.absorb(&mut peer);
        prop_assert_eq!(peer.session.in_flight(), 0);
        let mut ended = model.ended;
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..model.submitted).collect::<Vec<_>>());
    }
}
