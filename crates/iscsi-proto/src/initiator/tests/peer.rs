//! A target by hand: it remembers what it needs to number its PDUs and does nothing by itself.

use std::time::Duration;

use super::super::*;
use crate::connection::{Placement, Transmit};
use crate::keys::DigestKind;
use crate::pdu::{
    AsyncEvent, AsyncMessage, DataIn, DataInStatus, Header, Pdu, R2t, Residual, ResponseCode,
    ScsiCommand, ScsiResponse, TaskAttribute,
};
use crate::serial::{DataSn, R2tSn};

pub(in super::super) fn session_params() -> SessionParams {
    SessionParams { max_connections: 8, ..SessionParams::default() }
}

pub(super) fn at(ms: u64) -> Instant {
    Instant(Duration::from_millis(ms))
}

pub(super) struct Peer {
    pub(super) session: Session<u32>,
    pub(super) ids: Vec<ConnectionId>,
    pub(super) stat_sn: Vec<StatSn>,
    pub(super) exp_cmd_sn: CmdSn,
    pub(super) window: u32,
    pub(super) now: Instant,
}

impl Peer {
    pub(super) fn new(connections: usize) -> Self {
        Self::with(session_params(), connections)
    }

    pub(super) fn with(params: SessionParams, connections: usize) -> Self {
        let (session, id) = Session::new(Config::default(), &established(1, params), at(0));
        let window = 32;
        let mut peer = Self {
            session,
            ids: vec![id],
            stat_sn: vec![StatSn(u32::MAX)],
            exp_cmd_sn: CmdSn(u32::MAX - 2),
            window,
            now: at(0),
        };
        for cid in 2..=connections as u16 {
            let id = peer.session.add_connection(&established(cid, params), at(0)).unwrap();
            peer.ids.push(id);
            peer.stat_sn.push(StatSn(u32::MAX));
        }
        peer
    }

    /// One more connection, logged in now with what the target has got so far.
    pub(super) fn rejoin(&mut self, cid: u16) {
        let login = Established {
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            ..established(cid, self.session.params)
        };
        let id = self.session.add_connection(&login, self.now).unwrap();
        self.ids.push(id);
        self.stat_sn.push(login.exp_stat_sn);
    }

    pub(super) fn read(&mut self, len: u32, context: u32) -> Itt {
        self.session.submit(command(Bytes::new(), len), context).unwrap()
    }

    pub(super) fn write(&mut self, len: usize, context: u32) -> Itt {
        let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        self.session.submit(command(data.into(), 0), context).unwrap()
    }

    /// Everything the connection sends now.
    pub(super) fn drain(&mut self, k: usize) -> Vec<(Pdu, Bytes)> {
        let mut sent = Vec::new();
        while let Some(Transmit { header, payload }) =
            self.session.poll_transmit(self.ids[k], self.now)
        {
            assert_eq!(header.data_segment_length() as usize, payload.len());
            let pdu = Pdu::parse(&header).unwrap();
            if let Pdu::ScsiCommand(command) = &pdu {
                assert!(!command.immediate);
                if self.exp_cmd_sn.since(command.cmd_sn) <= 0 {
                    self.exp_cmd_sn = command.cmd_sn.next();
                }
            }
            sent.push((pdu, payload));
        }
        sent
    }

    /// The commands that the connection sends now, without anything else.
    pub(super) fn drain_commands(&mut self, k: usize) -> Vec<ScsiCommand> {
        let sent = self.drain(k).into_iter();
        sent.filter_map(|(pdu, _)| match pdu {
            Pdu::ScsiCommand(command) => Some(command),
            _ => None,
        })
        .collect()
    }

    pub(super) fn max_cmd_sn(&self) -> CmdSn {
        self.exp_cmd_sn.plus(self.window - 1)
    }

    /// What the target says on its own on connection `k`, numbered as its next response there.
    pub(super) fn async_message(
        &mut self,
        k: usize,
        event: AsyncEvent,
        parameters: [u16; 3],
    ) -> AsyncMessage {
        AsyncMessage {
            event,
            vendor_code: 0,
            lun: Lun(0),
            stat_sn: self.stat_sn[k].take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            parameters,
        }
    }

    pub(super) fn give(
        &mut self,
        k: usize,
        header: &Header,
        data: &[u8],
    ) -> Result<Placement, ConnectionError> {
        let placement = self.session.handle_header(self.ids[k], self.now, header)?;
        if placement != Placement::None {
            let scratch = if placement == Placement::Scratch { data } else { &[] };
            self.session.handle_data(self.ids[k], self.now, scratch, true)?;
        }
        Ok(placement)
    }

    pub(super) fn response(&mut self, k: usize, itt: Itt, status: u8) -> ScsiResponse {
        ScsiResponse {
            response: ResponseCode::COMPLETED,
            status,
            status_qualifier: 0,
            residual: Residual::None,
            bidi_read_residual: Residual::None,
            itt,
            snack_tag: 0,
            stat_sn: self.stat_sn[k].take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            exp_data_sn: 0,
        }
    }

    pub(super) fn respond(&mut self, k: usize, itt: Itt) {
        let header = self.response(k, itt, 0).encode(0);
        self.give(k, &header, &[]).unwrap();
    }

    pub(super) fn data_in(&mut self, k: usize, itt: Itt, offset: u32, data_sn: u32) -> DataIn {
        let _ = k;
        DataIn {
            is_final: false,
            acknowledge: false,
            status: None,
            lun: Lun(0),
            itt,
            ttt: Ttt::NONE,
            stat_sn: StatSn(0),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            data_sn: DataSn(data_sn),
            buffer_offset: offset,
        }
    }

    pub(super) fn last_data_in(&mut self, k: usize, itt: Itt, offset: u32, sn: u32) -> DataIn {
        let stat_sn = self.stat_sn[k].take();
        let status = Some(DataInStatus { status: 0, residual: Residual::None });
        DataIn { is_final: true, status, stat_sn, ..self.data_in(k, itt, offset, sn) }
    }

    pub(super) fn r2t(&self, k: usize, itt: Itt, sn: u32, offset: u32, len: u32) -> R2t {
        R2t {
            lun: Lun(0),
            itt,
            ttt: Ttt(0x100 + sn),
            stat_sn: self.stat_sn[k],
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            r2t_sn: R2tSn(sn),
            buffer_offset: offset,
            desired_data_transfer_length: len,
        }
    }

    pub(super) fn events(&mut self) -> Vec<Event<u32>> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    /// Contexts of finished commands, in order.
    pub(super) fn done(&mut self) -> Vec<u32> {
        self.events()
            .into_iter()
            .filter_map(|event| match event {
                Event::TaskDone { context, .. } => Some(context),
                _ => None,
            })
            .collect()
    }
}

pub(super) fn command(data_out: Bytes, data_in_len: u32) -> Command {
    let attribute = TaskAttribute::SIMPLE;
    Command { lun: Lun(0), cdb: [0; 16], data_out, data_in_len, attribute }
}

/// Numbers start just before their wrap, so that every test crosses it.
pub(super) fn established(cid: u16, session: SessionParams) -> Established {
    Established {
        tsih: Tsih(7),
        cid: Cid(cid),
        session,
        connection: ConnectionParams {
            header_digest: DigestKind::None,
            data_digest: DigestKind::None,
            max_recv_data_segment_length: 65536,
            max_send_data_segment_length: 8192,
        },
        cmd_sn: CmdSn(u32::MAX - 2),
        exp_cmd_sn: CmdSn(u32::MAX - 2),
        max_cmd_sn: CmdSn(u32::MAX - 2).plus(31),
        exp_stat_sn: StatSn(u32::MAX),
    }
}
