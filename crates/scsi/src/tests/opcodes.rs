//! REPORT SUPPORTED OPERATION CODES, as `ALL.ReportSupportedOpcodes` of iscsi-test-cu asks.

use super::*;

fn report(fixture: &Fixture, options: u8, opcode: u8, action: u16) -> Response {
    let [high, low] = action.to_be_bytes();
    fixture.run(&[0xa3, 0x0c, options, opcode, high, low, 0, 0, 0xff, 0xff, 0, 0], "", 65535)
}

#[test]
fn every_listed_command_can_be_asked_for_alone() {
    let fixture = Fixture::new();
    for timeouts in [0, 0x80] {
        let list = report(&fixture, timeouts, 0, 0).data_in;
        let len = u32::from_be_bytes(list[..4].try_into().unwrap()) as usize;
        assert_eq!(len, list.len() - 4);
        let step = if timeouts == 0 { 8 } else { 20 };
        assert_eq!(len % step, 0);
        for descriptor in list[4..].chunks(step) {
            let (opcode, flags) = (descriptor[0], descriptor[5]);
            let action = u16::from_be_bytes([descriptor[2], descriptor[3]]);
            let with_actions = flags & 1 == 1;
            assert_eq!(flags & 2 == 2, timeouts != 0);
            assert!(timeouts == 0 || descriptor[8..] == [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert!(with_actions || action == 0);
            let (right, wrong) = if with_actions { (2, 1) } else { (1, 2) };
            assert_invalid_cdb(&report(&fixture, wrong, opcode, action), 2, 2);
            for options in [right, 3] {
                let one = report(&fixture, timeouts | options, opcode, action).data_in;
                assert_eq!(one[1], timeouts | 3, "supported, {opcode:#x}");
                assert_eq!(one[3], descriptor[7], "CDB length");
                assert_eq!(one[4], opcode);
                assert_eq!(one.len(), 4 + usize::from(one[3]) + timeouts as usize / 0x80 * 12);
            }
        }
    }
}

#[test]
fn usage_tells_of_dpo_and_fua() {
    let fixture = Fixture::new();
    for opcode in [0x28, 0x2a, 0xa8, 0xaa, 0x88, 0x8a, 0x89, 0x8b] {
        assert_eq!(report(&fixture, 1, opcode, 0).data_in[5] & 0x18, 0x18, "{opcode:#x}");
    }
    for opcode in [0x2e, 0x2f, 0xae, 0xaf, 0x8e, 0x8f] {
        assert_eq!(report(&fixture, 1, opcode, 0).data_in[5] & 0x18, 0x10, "{opcode:#x}");
    }
}

#[test]
fn unknown_commands_are_not_supported() {
    let fixture = Fixture::new();
    for (options, opcode, action) in [(1, 0xff, 0), (2, 0x9e, 0x11), (3, 0xff, 0), (3, 0x28, 1)] {
        assert_eq!(report(&fixture, options, opcode, action).data_in[..], [0, 1, 0, 0]);
    }
    assert_invalid_cdb(&report(&fixture, 4, 0x28, 0), 2, 2);
    assert_sense(&fixture.run(&[0xff; 16], "", 0), 0x5, 0x20, 0x00);
    assert_invalid_cdb(&fixture.run(&[0x9e, 0x1f], "", 0), 1, 4);
}

#[test]
fn task_management_functions() {
    let fixture = Fixture::new();
    let cdb = |flags| [0xa3, 0x0d, flags, 0, 0, 0, 0, 0, 0, 16, 0, 0];
    assert_eq!(fixture.data(&cdb(0), 16), [0xfa, 0, 0, 0]);
    assert_eq!(fixture.data(&cdb(0x80), 16)[..4], [0xfa, 0, 0, 12]);
}

#[test]
fn start_stop_and_diagnostics() {
    let fixture = Fixture::new();
    let start_stop = |flags| fixture.run(&[0x1b, 0, 0, 0, flags, 0], "", 0);
    [0x00, 0x01, 0x04, 0x05, 0x10, 0x70].iter().for_each(|flags| assert_good(&start_stop(*flags)));
    assert_invalid_cdb(&start_stop(0x02), 4, 1); // eject
    assert_invalid_cdb(&start_stop(0x20), 4, 7); // idle
    assert_good(&fixture.run(&[0; 6], "", 0));
    assert_good(&fixture.run(&[0x1d, 0x04, 0, 0, 0, 0], "", 0));
    assert_invalid_cdb(&fixture.run(&[0x1d, 0x20, 0, 0, 0, 0], "", 0), 1, 5);
}

#[test]
fn what_holds_only_at_this_target_is_not_offered_where_others_come_by_other_ways() {
    let target = Target::new(TargetConfig::new("iqn.2026-11.org.example:gateway"));
    let device: Device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    for (lun, shared) in [(0, false), (1, true)] {
        let options = LunOptions::default().with_shared_beyond(shared);
        target.add_lun(lun, Arc::clone(&device), options).unwrap();
        let nexus = target.nexus("iqn.2026-11.org.example:host,i,0x1");
        let run = |cdb: &[u8], room: usize| {
            let command = Command::new(u64::from(lun) << 48, Cdb::new(cdb)).with_data_in_max(room);
            let _attention = now(nexus.execute(command.clone()));
            now(nexus.execute(command))
        };
        // RESERVE, RELEASE, READ KEYS, REGISTER, and COMPARE AND WRITE of no block.
        let mut compare = [0; 16];
        compare[0] = 0x89;
        let commands: [&[u8]; 5] = [
            &[0x16, 0, 0, 0, 0, 0],
            &[0x17, 0, 0, 0, 0, 0],
            &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0],
            &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &compare,
        ];
        for cdb in commands {
            let response = run(cdb, 8);
            match shared {
                true => assert_sense(&response, 0x5, 0x20, 0x00),
                false => assert_good(&response),
            }
            let ask = [0xa3, 0x0c, 1, cdb[0], 0, 0, 0, 0, 0xff, 0xff, 0, 0];
            if cdb[0] != 0x5e {
                assert_eq!(run(&ask, 65535).data_in[1], if shared { 1 } else { 3 }, "{cdb:x?}");
            }
        }
        let limits = run(&[0x12, 1, 0xb0, 0, 64, 0], 64).data_in;
        assert_eq!(limits[5], if shared { 0 } else { 255 }, "MAXIMUM COMPARE AND WRITE LENGTH");
    }
}
