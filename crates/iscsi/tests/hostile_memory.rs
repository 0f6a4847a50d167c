//! What a peer can make the target hold is charged to it, whatever it is held for: promises of
//! data, buffers of the device server, ping data that is kept until it is acknowledged.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;
mod hung;

use std::sync::Arc;

use block::{BlockDevice, Bytes, WriteFlags};
use hostile_common::{Arena, Attacker, VICTIM_LBA, resident_bytes, until};
use hung::Hung;
use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Itt, Lun, Ttt};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::pdu::{NopOut, Pdu, ScsiCommand, TaskAttribute};
use iscsi_proto::serial::{CmdSn, StatSn};

const MEMORY: u64 = 128 << 20;
/// What one name may have of the half that is for everybody.
const OF_ONE_NAME: u64 = MEMORY / 4;
/// Resident memory beyond what is charged: buffers kept for reuse, sockets, and the allocator's
/// own.
const SLACK: usize = 96 << 20;
const TASK_SET_FULL: u8 = 0x28;

async fn arena(disk: block::Device) -> Arena {
    Arena::on(disk, |config| {
        config.limits.memory_bytes_max = MEMORY;
        config.limits.sessions_max = 64;
    })
    .await
}

/// WRITE SAME(16) of four megabytes that hang, with one block of data.
fn write_same(attacker: &Attacker, itt: u32) -> Vec<u8> {
    let mut cdb = [0; 16];
    cdb[0] = 0x93;
    cdb[2..10].copy_from_slice(&VICTIM_LBA.to_be_bytes());
    cdb[10..14].copy_from_slice(&(8192_u32).to_be_bytes());
    let command = ScsiCommand {
        immediate: false,
        is_final: true,
        read: false,
        write: true,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        lun: Lun(0),
        itt: Itt(itt),
        expected_data_transfer_length: 512,
        cmd_sn: CmdSn(attacker.cmd_sn().0.wrapping_add(itt - FIRST)),
        exp_stat_sn: StatSn(0),
        cdb,
        extended_cdb: Bytes::new(),
        bidi_read_length: None,
    };
    Framing::default().pdu_bytes(&command.encode(512), &[0x5a; 512])
}

/// ITT of the first WRITE SAME.
const FIRST: u32 = 1000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_same_is_charged_what_it_multiplies() {
    const COMMANDS: u32 = 500;
    let disk = Arc::new(Hung::new());
    let arena = arena(disk.clone()).await;
    let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
    attacker.status_of(1, 0).await;
    let resident = resident_bytes();
    let bytes: Vec<u8> =
        (FIRST..FIRST + COMMANDS).flat_map(|itt| write_same(&attacker, itt)).collect();
    assert!(attacker.try_send_bytes(&bytes).await);
    // All that find no memory are answered; the others hang.
    // A megabyte each; the session's own share of one has the data that came with them.
    let fit = (OF_ONE_NAME >> 20) as usize;
    for _ in 0..COMMANDS as usize - fit {
        let answer = attacker.read().await;
        let Some(Pdu::ScsiResponse(response)) = answer else { panic!("{answer:?}") };
        assert_eq!(response.status, TASK_SET_FULL);
    }
    until("the others hang", || disk.hanging() == fit).await;
    let (used, _) = arena.server.memory();
    assert!(used >= (fit as u64) << 20, "{used} bytes are said to be in use");
    let growth = resident_bytes().saturating_sub(resident);
    assert!(growth < OF_ONE_NAME as usize + SLACK, "{growth} bytes");
    arena.serves().await;
    disk.come_back();
    for _ in 0..fit {
        let answer = attacker.read().await;
        let Some(Pdu::ScsiResponse(response)) = answer else { panic!("{answer:?}") };
        assert_eq!(response.status, 0);
    }
    drop(attacker);
    arena.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_data_that_nobody_acknowledges_is_charged() {
    const SESSIONS: usize = 24;
    const PINGS: u32 = 31;
    const LEN: usize = 256 << 10;
    let arena = arena(Arc::new(Hung::new())).await;
    let resident = resident_bytes();
    let data = vec![7; LEN];
    let mut attackers = Vec::new();
    let mut shown_out = 0;
    for _ in 0..SESSIONS {
        let mut attacker = Attacker::recoverable(arena.address, 1, 0).await;
        let mut answered = 0;
        for itt in 0..PINGS {
            let ping = NopOut {
                immediate: true,
                lun: Lun(0),
                itt: Itt(itt),
                ttt: Ttt::NONE,
                cmd_sn: attacker.cmd_sn(),
                exp_stat_sn: StatSn(0),
            };
            attacker.send(&ping.encode(LEN as u32), &data).await;
            match attacker.read_with_data().await {
                Some((Pdu::NopIn(_), answer)) => {
                    assert!(!answer.is_empty());
                    answered += 1;
                }
                Some((other, _)) => panic!("{other:?}"),
                None => break,
            }
        }
        shown_out += usize::from(answered < PINGS);
        attackers.push(attacker);
    }
    let (used, _) = arena.server.memory();
    assert!(used > OF_ONE_NAME / 2 && used <= MEMORY, "{used} bytes are said to be in use");
    assert!(shown_out > 0, "the memory of one name is limited");
    let growth = resident_bytes().saturating_sub(resident);
    assert!(growth < OF_ONE_NAME as usize + SLACK, "{growth} bytes");
    arena.serves().await;
    drop(attackers);
    arena.settles().await;
}

/// As many promises as would fill the common half several times, with 512 bytes of each: they cost
/// what has come, and a long write of somebody else finds its memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_pin_nothing_that_others_need() {
    const PROMISES: u32 = 84;
    let arena = arena(Arc::new(Hung::new())).await;
    let mut attackers = Vec::new();
    for name in ["iqn.2026-11.org.example:one", "iqn.2026-11.org.example:two"] {
        let attacker = Attacker::enter(arena.address, |config| config.initiator_name = name.into());
        let attacker = attacker.await.unwrap();
        for itt in 0..PROMISES {
            attacker.write_command(itt, 16 << 20, &[0xee; 512]).await;
        }
        attackers.push(attacker);
    }
    for attacker in &mut attackers {
        let mut asked_for = 0;
        // As much as one session may be promised at once; the others wait for their turn.
        while asked_for < 4 {
            let answer = attacker.read().await;
            let Some(Pdu::R2t(_)) = answer else { panic!("{answer:?}") };
            asked_for += 1;
        }
        let (_, alive) = attacker.ping().await;
        assert!(alive);
    }
    let (used, refusals) = arena.server.memory();
    assert!(used < 2 << 20, "{used} bytes");
    let disk = arena.connect().await;
    disk.write(4 << 20, vec![0; 8 << 20].into(), WriteFlags::NONE).await.unwrap();
    assert_eq!(arena.server.memory().1, refusals, "nobody was refused");
    arena.serves().await;
    attackers.into_iter().for_each(Attacker::reset);
    disk.close().await.unwrap();
    arena.settles().await;
}
