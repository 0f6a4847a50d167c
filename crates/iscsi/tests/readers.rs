//! Initiators that may only read: they cannot take the unit from those who write (RFC 7143 §11.5.1,
//! §11.6.1). What they may ask of the unit itself is tested in `scsi`.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;

use hostile_common::{Arena, Attacker};
use iscsi::target::AccessRule;
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::pdu::{
    Pdu, TaskManagementFunction as Function, TaskManagementResponseCode as Code,
};
use scsi::WriteProtection;

const RESERVE_6: u8 = 0x16;

async fn arena(protection: WriteProtection) -> Arena {
    let rules = |rules: &mut iscsi::target::AccessRules| {
        let rule = AccessRule { write_protection: protection, ..AccessRule::default() };
        rules.initiators.insert("iqn.2026-11.org.example:attacker".into(), rule);
    };
    Arena::with_rules(rules).await
}

async fn manage(reader: &mut Attacker, itt: u32, function: Function) -> Code {
    let request = reader.function(itt, function);
    reader.send(&request.encode(0), &[]).await;
    match reader.read().await {
        Some(Pdu::TaskManagementResponse(response)) => response.response,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_cannot_reset_what_others_use() {
    for protection in [WriteProtection::All, WriteProtection::Units([0].into())] {
        let arena = arena(protection).await;
        let mut reader = Attacker::log_in(arena.address, DigestPreference::Never).await;
        for (itt, function) in [
            Function::CLEAR_TASK_SET,
            Function::LOGICAL_UNIT_RESET,
            Function::TARGET_WARM_RESET,
            Function::TARGET_COLD_RESET,
        ]
        .into_iter()
        .enumerate()
        {
            let code = manage(&mut reader, 0x100 + itt as u32, function).await;
            assert_eq!(code, Code::AUTHORIZATION_FAILED, "{function:?}");
        }
        // What concerns only its own tasks it may end.
        let code = manage(&mut reader, 0x200, Function::ABORT_TASK_SET).await;
        assert_eq!(code, Code::COMPLETE);
        assert_ne!(reader.status_of(0x300, RESERVE_6).await, 0, "reserved");
        // The writer goes on writing, over the connection it had.
        arena.serves().await;
    }
}

/// The rule is one of a unit: whoever may not write to another may reset this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_to_one_unit_are_rights_to_reset_it() {
    let arena = arena(WriteProtection::Units([1].into())).await;
    let mut half = Attacker::log_in(arena.address, DigestPreference::Never).await;
    let code = manage(&mut half, 0x100, Function::LOGICAL_UNIT_RESET).await;
    assert_eq!(code, Code::COMPLETE);
    let code = manage(&mut half, 0x101, Function::TARGET_WARM_RESET).await;
    // The writer goes on only in a session of its own: its commands were ended by the first one.
    assert_eq!(code, Code::AUTHORIZATION_FAILED, "it concerns the other unit, too");
}
