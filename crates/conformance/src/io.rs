//! SCSI commands of a [`Session`]: CDBs, data in both directions, what a command came to.

use bytes::{Bytes, BytesMut};
use iscsi_proto::ids::{Itt, Ttt};
use iscsi_proto::pdu::{
    DataIn, DataOut, Pdu, R2t, Residual, ScsiCommand, TaskAttribute, TaskManagementFunction,
    TaskManagementRequest, TaskManagementResponseCode, parse_sense,
};
use iscsi_proto::serial::{CmdSn, DataSn, StatSn};

use crate::session::Session;
use crate::verdict::{Stop, ensure, failed};

/// SCSI status GOOD.
pub(crate) const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const BUSY: u8 = 8;
/// Sense key of a unit attention.
pub(crate) const UNIT_ATTENTION: u8 = 6;
/// Sense key of a command that the target does not have.
pub(crate) const ILLEGAL_REQUEST: u8 = 5;
/// Answers other than GOOD after which a unit is not waited for any longer: there is one unit
/// attention for every reset and change, and few can be pending.
const ATTENTIONS_MAX: usize = 16;

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: u8,
    pub(crate) sense: Bytes,
    pub(crate) residual: Residual,
    pub(crate) stat_sn: StatSn,
    pub(crate) exp_data_sn: Option<u32>,
    pub(crate) data: Vec<(DataIn, Bytes)>,
    pub(crate) r2ts: Vec<R2t>,
}

impl Done {
    /// All data, in the order it came.
    pub(crate) fn payload(&self) -> Bytes {
        let mut all = BytesMut::new();
        self.data.iter().for_each(|(_, data)| all.extend_from_slice(data));
        all.freeze()
    }

    /// Status and sense for people.
    pub(crate) fn describe(&self) -> String {
        let (key, code) = self.sense_codes();
        match self.status {
            CHECK_CONDITION => format!("CHECK CONDITION, sense key {key:#x}, code {code:#06x}"),
            status => format!("status {status:#04x}"),
        }
    }

    /// Sense key, and additional sense code with qualifier.
    pub(crate) fn sense_codes(&self) -> (u8, u16) {
        let sense = parse_sense(&self.sense);
        let at = |index: usize| sense.get(index).copied().unwrap_or(0);
        match at(0) & 0x7f {
            0x72 | 0x73 => (at(1) & 0xf, u16::from_be_bytes([at(2), at(3)])),
            _ => (at(2) & 0xf, u16::from_be_bytes([at(12), at(13)])),
        }
    }

    /// It must have ended with GOOD.
    pub(crate) fn good(self) -> Result<Self, Stop> {
        ensure(self.status == GOOD, || format!("a good command ended with {}", self.describe()))?;
        Ok(self)
    }
}

/// Bytes that no other seed yields, and no zeroing or shifting fakes.
pub(crate) fn pattern(seed: u64, length: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..length.div_ceil(8)).flat_map(|_| {
        // Xorshift: any generator does that does not repeat within a few blocks.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(length as usize).collect()
}

fn cdb16(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// READ (16).
pub(crate) fn read_cdb(lba: u64, blocks: u32) -> [u8; 16] {
    cdb16(0x88, lba, blocks)
}

/// WRITE (16).
pub(crate) fn write_cdb(lba: u64, blocks: u32) -> [u8; 16] {
    cdb16(0x8a, lba, blocks)
}

impl Session<'_> {
    /// A command with the next CmdSN, not sent yet. Without data its length is 0.
    pub(crate) fn command(&mut self, link: usize, cdb: [u8; 16], length: u32) -> ScsiCommand {
        ScsiCommand {
            immediate: false,
            is_final: true,
            read: false,
            write: false,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: self.lun(),
            itt: self.new_itt(),
            expected_data_transfer_length: length,
            cmd_sn: self.cmd_sn.take(),
            exp_stat_sn: self.links[link].exp_stat_sn,
            cdb,
            extended_cdb: Bytes::new(),
            bidi_read_length: None,
        }
    }

    /// A read, not sent yet.
    pub(crate) fn read_command(&mut self, link: usize, lba: u64, blocks: u32) -> ScsiCommand {
        let length = blocks * self.context.block;
        ScsiCommand { read: true, ..self.command(link, read_cdb(lba, blocks), length) }
    }

    /// A write, not sent yet.
    pub(crate) fn write_command(&mut self, link: usize, lba: u64, length: u32) -> ScsiCommand {
        let blocks = length / self.context.block.max(1);
        ScsiCommand { write: true, ..self.command(link, write_cdb(lba, blocks), length) }
    }

    /// Sends a read.
    pub(crate) fn read(&mut self, link: usize, lba: u64, blocks: u32) -> Result<Itt, Stop> {
        let command = self.read_command(link, lba, blocks);
        let itt = command.itt;
        self.send(link, command, &[])?;
        Ok(itt)
    }

    /// Sends a write of `length` bytes without any data.
    pub(crate) fn write(&mut self, link: usize, lba: u64, length: u32) -> Result<Itt, Stop> {
        let command = self.write_command(link, lba, length);
        let itt = command.itt;
        self.send(link, command, &[])?;
        Ok(itt)
    }

    /// SYNCHRONIZE CACHE (10) of the whole unit, not sent yet.
    pub(crate) fn flush_command(&mut self, link: usize) -> ScsiCommand {
        let mut cdb = [0; 16];
        cdb[0] = 0x35;
        self.command(link, cdb, 0)
    }

    /// A read to its end; all its data.
    pub(crate) fn read_all(&mut self, link: usize, lba: u64, blocks: u32) -> Result<Bytes, Stop> {
        let itt = self.read(link, lba, blocks)?;
        let payload = self.finish(link, itt)?.good()?.payload();
        let length = blocks * self.context.block;
        ensure(payload.len() == length as usize, || {
            format!("a read of {length} bytes brought {}", payload.len())
        })?;
        Ok(payload)
    }

    /// TEST UNIT READY.
    pub(crate) fn test_unit_ready(&mut self, link: usize) -> Result<Done, Stop> {
        let command = self.command(link, [0; 16], 0);
        let itt = command.itt;
        self.send(link, command, &[])?;
        self.finish(link, itt)
    }

    /// Asks until unit attentions are over.
    pub(crate) fn until_ready(&mut self) -> Result<(), Stop> {
        for _ in 0..ATTENTIONS_MAX {
            let done = self.test_unit_ready(0)?;
            match (done.status, done.sense_codes().0) {
                (GOOD, _) => return Ok(()),
                (CHECK_CONDITION, UNIT_ATTENTION) | (BUSY, _) => {}
                _ => return failed(format!("TEST UNIT READY: {}", done.describe())),
            }
        }
        failed("the unit never gets ready")
    }

    /// Bytes of a block, blocks, and whether the unit is write-protected.
    pub(crate) fn disk(&mut self) -> Result<(u32, u64, bool), Stop> {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
        let capacity = self.ask(cdb, 32)?.good()?.payload();
        let field = |at: usize| capacity.get(at..at + 4).and_then(|b| b.try_into().ok());
        let (Some(high), Some(low), Some(block)) = (field(0), field(4), field(8)) else {
            return failed("READ CAPACITY (16) is too short");
        };
        let last = u64::from(u32::from_be_bytes(high)) << 32 | u64::from(u32::from_be_bytes(low));
        let block = u32::from_be_bytes(block);
        ensure(block.is_power_of_two() && (512..=65536).contains(&block), || {
            format!("blocks of {block} bytes")
        })?;
        // MODE SENSE (6), all pages: bit 7 of byte 2 is WP. A unit without it is not protected.
        let mut cdb = [0; 16];
        (cdb[0], cdb[2], cdb[4]) = (0x1a, 0x3f, 192);
        let modes = self.ask(cdb, 192)?;
        let protected = modes.status == GOOD
            && modes.payload().get(2).is_some_and(|parameter| parameter & 0x80 != 0);
        Ok((block, last.saturating_add(1), protected))
    }

    /// A command that returns at most `length` bytes, on the first connection.
    pub(crate) fn ask(&mut self, cdb: [u8; 16], length: u32) -> Result<Done, Stop> {
        let command = ScsiCommand { read: true, ..self.command(0, cdb, length) };
        let itt = command.itt;
        self.send(0, command, &[])?;
        self.finish(0, itt)
    }

    /// Until the command has ended.
    pub(crate) fn finish(&mut self, link: usize, itt: Itt) -> Result<Done, Stop> {
        self.finish_write(link, itt, &[])
    }

    /// The same; R2Ts are answered from `data`.
    pub(crate) fn finish_write(
        &mut self,
        link: usize,
        itt: Itt,
        data: &[u8],
    ) -> Result<Done, Stop> {
        let (mut pieces, mut r2ts, mut aside) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let arrived = self.next(link)?;
            if arrived.header.itt() != itt {
                if let Pdu::Reject(reject) = &arrived.pdu {
                    return failed(format!("REJECT, reason {:#04x}", reject.reason.0));
                }
                aside.push(Box::new(arrived));
                continue;
            }
            let (status, sense, residual, stat_sn, exp_data_sn) = match arrived.pdu {
                Pdu::DataIn(pdu) => {
                    let (status, stat_sn) = (pdu.status, pdu.stat_sn);
                    pieces.push((pdu, arrived.data));
                    let Some(end) = status else { continue };
                    (end.status, Bytes::new(), end.residual, stat_sn, None)
                }
                Pdu::R2t(r2t) => {
                    self.answer_r2t(link, &r2t, data)?;
                    r2ts.push(r2t);
                    continue;
                }
                Pdu::ScsiResponse(p) => {
                    ensure(p.response.0 == 0, || format!("iSCSI service response {}", p.response))?;
                    (p.status, arrived.data, p.residual, p.stat_sn, Some(p.exp_data_sn))
                }
                _ => return failed(format!("{} for a SCSI command", arrived.header.opcode())),
            };
            self.links[link].stash.extend(aside);
            let data = pieces;
            return Ok(Done { status, sense, residual, stat_sn, exp_data_sn, data, r2ts });
        }
    }

    /// The next R2T of a command.
    pub(crate) fn next_r2t(&mut self, link: usize, itt: Itt) -> Result<R2t, Stop> {
        let arrived = self.next(link)?;
        match arrived.pdu {
            Pdu::R2t(r2t) if r2t.itt == itt => Ok(r2t),
            Pdu::Reject(reject) => {
                failed(format!("REJECT, reason {:#04x}, in place of an R2T", reject.reason.0))
            }
            _ => failed(format!("{} in place of an R2T", arrived.header.opcode())),
        }
    }

    /// Sends what an R2T asks for.
    pub(crate) fn answer_r2t(&mut self, link: usize, r2t: &R2t, data: &[u8]) -> Result<(), Stop> {
        let begin = r2t.buffer_offset as usize;
        let wanted = begin.checked_add(r2t.desired_data_transfer_length as usize);
        let Some(piece) = wanted.and_then(|end| data.get(begin..end)) else {
            return failed(format!(
                "an R2T wants {} bytes from {begin}, the command has {}",
                r2t.desired_data_transfer_length,
                data.len()
            ));
        };
        self.data_out(link, r2t.itt, r2t.ttt, r2t.buffer_offset, piece)
    }

    /// A sequence of Data-Out from `offset` on, the last one final.
    pub(crate) fn data_out(
        &mut self,
        link: usize,
        itt: Itt,
        ttt: Ttt,
        offset: u32,
        data: &[u8],
    ) -> Result<(), Stop> {
        let step = self.links[link].send_max.clamp(512, 1 << 20) as usize;
        let count = data.len().div_ceil(step);
        for (number, piece) in data.chunks(step).enumerate() {
            let pdu = DataOut {
                is_final: number + 1 == count,
                lun: if ttt == Ttt::NONE { iscsi_proto::ids::Lun(0) } else { self.lun() },
                itt,
                ttt,
                exp_stat_sn: self.links[link].exp_stat_sn,
                data_sn: DataSn(number as u32),
                buffer_offset: offset + (number * step) as u32,
            };
            self.send(link, pdu, piece)?;
        }
        Ok(())
    }

    /// A task management request, not sent yet; immediate, as is usual.
    pub(crate) fn management(
        &mut self,
        link: usize,
        function: TaskManagementFunction,
        task: Itt,
        ref_cmd_sn: CmdSn,
    ) -> TaskManagementRequest {
        TaskManagementRequest {
            immediate: true,
            function,
            lun: self.lun(),
            itt: self.new_itt(),
            referenced_task_tag: task,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.links[link].exp_stat_sn,
            ref_cmd_sn,
            exp_data_sn: 0,
        }
    }

    /// Sends it and waits for its answer. What comes before stays in the stash.
    pub(crate) fn manage(
        &mut self,
        link: usize,
        request: TaskManagementRequest,
    ) -> Result<TaskManagementResponseCode, Stop> {
        let itt = request.itt;
        self.send(link, request, &[])?;
        let mut aside = Vec::new();
        loop {
            let arrived = self.next(link)?;
            match arrived.pdu {
                Pdu::TaskManagementResponse(response) if response.itt == itt => {
                    self.links[link].stash.extend(aside);
                    return Ok(response.response);
                }
                Pdu::Reject(reject) => {
                    let reason = reject.reason.0;
                    return failed(format!("task management got REJECT, reason {reason:#04x}"));
                }
                _ => aside.push(Box::new(arrived)),
            }
        }
    }
}
