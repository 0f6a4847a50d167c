//! Commands that are aborted: they end soon, and nothing of them lands after they have ended.

use super::slow::{SlowDevice, look};
use super::*;

const MIB: u64 = 1 << 20;

/// A unit on a slow device, and a nexus that may use it.
fn slow(size: u64) -> (Arc<SlowDevice>, Target, Nexus) {
    let device = SlowDevice::new(size);
    let target = Target::new(TargetConfig::new(NAME));
    target.add_lun(0, device.clone(), LunOptions::default()).unwrap();
    let nexus = ready(target.nexus(INITIATOR));
    (device, target, nexus)
}

fn tagged(nexus: &Nexus, tag: u64, cdb: &[u8], data_out: impl Into<Bytes>) -> Execution {
    nexus.execute(Command::new(0, Cdb::new(cdb)).with_data_out(data_out.into()).with_tag(tag))
}

/// Bytes of the device that are `byte`, from the front.
fn filled(device: &SlowDevice, byte: u8) -> u64 {
    let len = device.memory.info().size as usize;
    let all = match device.memory.read(0, Buf::new(len)).try_ready() {
        Ok(result) => result.unwrap(),
        Err(_) => panic!("memory is always ready"),
    };
    all.iter().take_while(|found| **found == byte).count() as u64
}

use block::BlockDevice;

/// Polls a command of several steps, lets two of them finish, aborts it in the third, and sees that
/// the third is awaited and a fourth never begins.
fn ends_between_steps(device: &SlowDevice, nexus: &Nexus, mut command: Execution) {
    assert!(look(&mut command).is_none());
    device.permit(2);
    assert!(look(&mut command).is_none());
    let started = device.started();
    nexus.abort(7);
    assert!(look(&mut command).is_none(), "what the device was asked for comes back first");
    device.permit(1);
    let response = look(&mut command).expect("the next step does not begin");
    assert_ne!(response.status, Status::GOOD);
    assert_eq!(device.started(), started);
    device.permit(100);
    let ping = look(&mut tagged(nexus, 8, &[0; 6], "")).unwrap();
    assert_eq!(ping.status, Status::GOOD, "nothing is left behind");
}

#[test]
fn write_same_stops_after_a_step() {
    let (device, _target, nexus) = slow(16 * MIB);
    let blocks = (16 * MIB / 512) as u32;
    ends_between_steps(&device, &nexus, tagged(&nexus, 7, &cdb(0x93, 0, 0, blocks), vec![9; 512]));
    assert_eq!(filled(&device, 9), 3 * MIB);
    // The next one finds its range free, and goes to its end.
    let mut again = tagged(&nexus, 7, &cdb(0x93, 0, 0, blocks), vec![8; 512]);
    assert_eq!(look(&mut again).unwrap().status, Status::GOOD);
    assert_eq!(filled(&device, 8), 16 * MIB);
}

#[test]
fn zeroing_stops_after_a_step() {
    let (device, _target, nexus) = slow(16 * MIB);
    let blocks = (16 * MIB / 512) as u32;
    ends_between_steps(&device, &nexus, tagged(&nexus, 7, &cdb(0x93, 1, 0, blocks), ""));
}

#[test]
fn unmap_stops_after_a_step() {
    let (device, _target, nexus) = slow(512 * MIB);
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    list.extend(((512 * MIB / 512) as u32).to_be_bytes());
    list.extend([0; 4]);
    let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    ends_between_steps(&device, &nexus, tagged(&nexus, 7, &cdb, list));
}

#[test]
fn verify_stops_after_a_step() {
    let (device, _target, nexus) = slow(16 * MIB);
    let blocks = (16 * MIB / 512) as u32;
    ends_between_steps(&device, &nexus, tagged(&nexus, 7, &cdb(0x8f, 0, 0, blocks), ""));
}

#[test]
fn extended_copy_stops_after_a_step() {
    let (device, _target, nexus) = slow(32 * MIB);
    let page = run_on(&nexus, 0, &[0x12, 1, 0x83, 0, 255, 0], "", 255).data_in;
    let mut cscd = vec![0xe4, 0, 0, 0];
    cscd.extend(&page[4..16]);
    cscd.resize(28, 0);
    cscd.extend(512u32.to_be_bytes());
    let mut list = vec![1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    list.extend(cscd);
    list.extend([2, 0, 0, 24, 0, 0, 0, 0, 0, 0]);
    list.extend(((8 * MIB / 512) as u16).to_be_bytes());
    list.extend(0u64.to_be_bytes());
    list.extend((16 * MIB / 512).to_be_bytes());
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[13] = list.len() as u8;
    // Step one is a read and a write; the abort comes during the second read, and its write
    // follows.
    let mut command = tagged(&nexus, 7, &cdb, list);
    assert!(look(&mut command).is_none());
    device.permit(2);
    assert!(look(&mut command).is_none());
    nexus.abort(7);
    device.permit(2);
    assert_sense(&look(&mut command).unwrap(), 0xa, 0, 0);
    assert_eq!(device.started(), 4);
    // What became of it can be asked.
    let status = run_on(&nexus, 0, &[0x84, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], "", 64);
    assert_eq!(status.data_in[4] & 0x7f, 2, "completed with errors");
}

#[test]
fn who_waits_for_a_range_need_not_wait_on() {
    let (device, _target, nexus) = slow(16 * MIB);
    let mut swap =
        tagged(&nexus, 1, &[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], vec![0; 1024]);
    assert!(look(&mut swap).is_none());
    let mut same = tagged(&nexus, 7, &cdb(0x93, 0, 0, 8), vec![9; 512]);
    assert!(look(&mut same).is_none());
    nexus.abort(7);
    assert!(look(&mut same).is_some());
    device.permit(2);
    assert_eq!(look(&mut swap).unwrap().status, Status::GOOD);
    assert_eq!(filled(&device, 9), 0);
}

#[test]
fn short_commands_end_by_themselves() {
    let (device, _target, nexus) = slow(16 * MIB);
    let mut write = tagged(&nexus, 7, &cdb(0x8a, 0, 0, 1), vec![9; 512]);
    assert!(look(&mut write).is_none());
    nexus.abort(7);
    nexus.abort_all();
    assert!(look(&mut write).is_none());
    device.permit(1);
    assert_eq!(look(&mut write).unwrap().status, Status::GOOD);
}
