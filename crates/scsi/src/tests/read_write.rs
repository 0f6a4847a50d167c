//! READ, WRITE, SYNCHRONIZE CACHE, PRE-FETCH: addresses, residuals, flags.

use block::layer::{Delay, DelayLayer, Delays, OpKind, StatsLayer};

use super::*;

const READS: [u8; 4] = [0x08, 0x28, 0xa8, 0x88];
const WRITES: [u8; 4] = [0x0a, 0x2a, 0xaa, 0x8a];

#[test]
fn every_form_reads_what_every_form_writes() {
    for block_size in [512, 4096] {
        let fixture = Fixture::with_block_size(block_size);
        for (index, (write, read)) in
            WRITES.into_iter().flat_map(|w| READS.map(|r| (w, r))).enumerate()
        {
            let data = vec![index as u8 + 1; 3 * fixture.block_size];
            let lba = 7 + index as u64;
            let written = fixture.run(&cdb(write, 0, lba, 3), data.clone(), 0);
            assert_good(&written);
            assert_eq!(written.data_len_wanted, data.len() as u64);
            let back = fixture.run(&cdb(read, 0, lba, 3), "", data.len());
            assert_eq!(back.data_in, data, "{write:#x} {read:#x}");
            assert_eq!(back.data_len_wanted, data.len() as u64);
        }
    }
}

#[test]
fn no_blocks_in_the_six_byte_form_are_256() {
    let fixture = Fixture::new();
    let response = fixture.run(&cdb(0x08, 0, 0, 0), "", 1 << 20);
    assert_eq!(response.data_in.len(), 256 * 512);
}

#[test]
fn beyond_the_end() {
    let fixture = Fixture::new();
    // As iscsi-test-cu: one block too many, far outside, all ones; also with no blocks at all.
    let longest = |opcode: u8| if opcode >> 5 == 4 { u64::MAX } else { 0xffff_ffff };
    let more = [0x2e, 0xae, 0x8e, 0x2f, 0xaf, 0x8f, 0x34, 0x90];
    for opcode in READS.into_iter().chain(WRITES).chain(more).filter(|op| op >> 5 != 0) {
        let data = vec![0; 2 * 512];
        let cases = [
            (BLOCKS, 1),
            (BLOCKS - 1, 2),
            (0x8000_0000, 1),
            (longest(opcode), 1),
            (BLOCKS + 1, 0),
            (0x8000_0000, 0),
            (longest(opcode), 0),
        ];
        for (lba, count) in cases {
            let response = fixture.run(&cdb(opcode, 0, lba, count), data.clone(), 1024);
            assert_sense(&response, 0x5, 0x21, 0x00);
            assert!(response.data_in.is_empty());
        }
        for lba in [0, BLOCKS - 1, BLOCKS] {
            assert_good(&fixture.run(&cdb(opcode, 0, lba, 0), "", 0));
        }
    }
    assert_sense(&fixture.run(&cdb(0x08, 0, 0x1f_ffff, 1), "", 512), 0x5, 0x21, 0x00);
    assert!(fixture.blocks(BLOCKS - 2, 2).iter().all(|b| *b == 0));
}

#[test]
fn protection_and_reserved_flags_are_refused() {
    let fixture = Fixture::new();
    let data = vec![0; 512];
    for opcode in [0x28, 0xa8, 0x88, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x2f, 0xaf, 0x8f] {
        for protect in 1..8u8 {
            let response = fixture.run(&cdb(opcode, protect << 5, 0, 1), data.clone(), 512);
            assert_eq!(response.sense.unwrap().additional.0, 0x24, "{opcode:#x} {protect}");
        }
        assert_good(&fixture.run(&cdb(opcode, 0x10, 0, 1), data.clone(), 512)); // DPO
    }
    for opcode in [0x28, 0xa8, 0x88, 0x2a, 0xaa, 0x8a] {
        for flags in [0x08, 0x18, 0x02, 0x0a, 0x1a] {
            assert_good(&fixture.run(&cdb(opcode, flags, 0, 1), data.clone(), 512));
        }
    }
}

#[test]
fn too_long_transfers_are_refused() {
    let device = MemoryDevice::new(64 << 20, 512).unwrap();
    let fixture = Fixture::on(Arc::new(device));
    for (opcode, byte) in [(0x88, 10), (0xa8, 6), (0x28, 7), (0x8f, 10), (0xaf, 6), (0x8b, 10)] {
        let response = fixture.run(&cdb(opcode, 0, 0, 32769), "", 0);
        assert_invalid_cdb(&response, byte, 7);
    }
    let response = fixture.run(&cdb(0x88, 0, 0, 32768), "", 16 << 20);
    assert_eq!(response.data_in.len(), 16 << 20);
}

/// The initiator expects more or fewer bytes than the CDB asks for.
#[test]
fn residuals_of_reads() {
    let fixture = Fixture::new();
    fixture.fill(0, 2, 7);
    for (count, room, len) in [(1, 0, 0), (1, 10_000, 512), (1, 200, 200), (2, 512, 512)] {
        let response = fixture.run(&cdb(0x28, 0, 0, count), "", room);
        assert_good(&response);
        assert_eq!(response.data_in, vec![7; len]);
        assert_eq!(response.data_len_wanted, u64::from(count) * 512);
    }
}

#[test]
fn residuals_of_writes() {
    for opcode in [0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e] {
        let flags = if matches!(opcode, 0x2e | 0xae | 0x8e) { 0x02 } else { 0 };
        // Blocks asked for, bytes sent, bytes written.
        let cases = [(1, 0, 0), (1, 10_000, 512), (1, 200, 200), (2, 512, 512), (3, 1100, 1100)];
        for (count, sent, written) in cases {
            let fixture = Fixture::new();
            fixture.fill(0, 20, b'a');
            let response = fixture.run(&cdb(opcode, flags, 0, count), vec![b'b'; sent], 0);
            assert_good(&response);
            assert_eq!(response.data_len_wanted, u64::from(count) * 512, "{opcode:#x}");
            let found = fixture.blocks(0, 20);
            assert!(found[..written].iter().all(|b| *b == b'b'), "{opcode:#x} {sent}");
            assert!(found[written..].iter().all(|b| *b == b'a'), "{opcode:#x} {sent}");
        }
    }
}

#[test]
fn ready_devices_answer_at_once() {
    let fixture = Fixture::new();
    let read = Command::new(0, Cdb::new(&cdb(0x28, 0, 0, 8))).with_data_in_max(4096);
    assert!(matches!(fixture.nexus.execute(read), Execution::Done(_)));
    let data = Bytes::from(vec![0; 4096]);
    let write = Command::new(0, Cdb::new(&cdb(0x2a, 0x08, 0, 8))).with_data_out(data);
    assert!(matches!(fixture.nexus.execute(write), Execution::Done(_)));
}

#[tokio::test]
async fn slow_devices_answer_later_and_side_by_side() {
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let delays = Delays::all(Delay::Fixed(std::time::Duration::from_millis(2)));
    let fixture = Fixture::on(Arc::new(DelayLayer::new(memory, delays, 1)));
    let write = |lba, byte| {
        let data = Bytes::from(vec![byte; 512]);
        fixture.nexus.execute(Command::new(0, Cdb::new(&cdb(0x2a, 0, lba, 1))).with_data_out(data))
    };
    let writes: Vec<_> = (0..32).map(|lba| write(lba, lba as u8)).collect();
    assert!(writes.iter().all(|write| matches!(write, Execution::Pending(_))));
    for write in writes.into_iter().rev() {
        assert_good(&write.await);
    }
    let read = Command::new(0, Cdb::new(&cdb(0x28, 0, 0, 32))).with_data_in_max(32 * 512);
    let found = fixture.nexus.execute(read).await.data_in;
    assert!(found.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / 512));
}

/// A device without FUA is flushed after a FUA write and before a FUA read.
#[test]
fn fua_becomes_a_flush_where_the_device_has_none() {
    struct Cached(StatsLayer);
    impl block::BlockDevice for Cached {
        fn info(&self) -> block::DeviceInfo {
            let mut info = self.0.info();
            (info.can_fua, info.volatile_cache) = (false, true);
            info
        }
        fn read(&self, offset: u64, buf: Buf) -> block::Io<Buf> {
            self.0.read(offset, buf)
        }
        fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> block::Io<()> {
            assert!(!flags.fua, "asked for what it does not have");
            self.0.write(offset, data, flags)
        }
        fn flush(&self) -> block::Io<()> {
            self.0.flush()
        }
        fn trim(&self, offset: u64, len: u64) -> block::Io<()> {
            self.0.trim(offset, len)
        }
        fn zero(&self, offset: u64, len: u64, flags: block::ZeroFlags) -> block::Io<()> {
            self.0.zero(offset, len, flags)
        }
        fn extents(&self, offset: u64, len: u64) -> block::Io<Vec<block::Extent>> {
            self.0.extents(offset, len)
        }
    }
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let cached = Arc::new(Cached(StatsLayer::new(memory)));
    let fixture = Fixture::on(cached.clone());
    let flushes = || cached.0.snapshot().of(OpKind::Flush).operations;
    let data = || vec![1; 512];
    let cases: [(Vec<u8>, u64); 9] = [
        (cdb(0x2a, 0, 0, 1), 0),
        (cdb(0x2a, 0x08, 0, 1), 1),
        (cdb(0x0a, 0x08, 0, 1), 0), // no FUA in the 6-byte form: address bits there
        (cdb(0x28, 0, 0, 1), 0),
        (cdb(0x28, 0x08, 0, 1), 1),
        (cdb(0x2e, 0x02, 0, 1), 1), // WRITE AND VERIFY
        (cdb(0x35, 0, 0, 0), 1),    // SYNCHRONIZE CACHE
        (cdb(0x91, 0x02, 5, 9), 1),
        (vec![0x1b, 0, 0, 0, 0, 0], 1), // STOP
    ];
    for (cdb, expected) in cases {
        let before = flushes();
        assert_good(&fixture.run(&cdb, data(), 512));
        assert_eq!(flushes() - before, expected, "{cdb:x?}");
    }
}

#[test]
fn synchronize_cache_checks_its_range() {
    let fixture = Fixture::new();
    for opcode in [0x35, 0x91] {
        assert_good(&fixture.run(&cdb(opcode, 0, BLOCKS - 1, 1), "", 0));
        assert_good(&fixture.run(&cdb(opcode, 0x06, 0, 0), "", 0));
        let response = fixture.run(&cdb(opcode, 0, BLOCKS - 1, 2), "", 0);
        assert_sense(&response, 0x5, 0x21, 0x00);
    }
}

/// Cost of the hot path. Run with
/// `cargo test -p enkaku-scsi --release -- --ignored --nocapture cost`.
#[test]
#[ignore = "a measurement, not a check"]
fn cost_of_the_hot_path() {
    let memory = MemoryDevice::new(64 << 20, 512).unwrap();
    let target = Target::new(TargetConfig::new(NAME));
    target.add_lun(0, Arc::new(memory), LunOptions::default()).unwrap();
    let nexus = ready(target.nexus(INITIATOR));
    for (name, opcode, count) in [
        ("read 4k", 0x28, 8),
        ("write 4k", 0x2a, 8),
        ("read 256k", 0x28, 512),
        ("write 256k", 0x2a, 512),
    ] {
        let len = count as usize * 512;
        let data = Buf::zeroed(len).freeze();
        let rounds = (4u64 << 30) / len as u64 / 4;
        for _ in 0..2 {
            let start = std::time::Instant::now();
            for round in 0..rounds {
                let lba = round * 8_191 % (131_072 / u64::from(count)) * u64::from(count);
                let command = Command::new(0, Cdb::new(&cdb(opcode, 0, lba, count)))
                    .with_data_out(data.clone())
                    .with_data_in_max(len);
                match nexus.execute(command) {
                    Execution::Done(response) => assert_eq!(response.status, Status::GOOD),
                    Execution::Pending(_) => panic!("not ready"),
                }
            }
            let ns = start.elapsed().as_nanos() as f64 / rounds as f64;
            println!("{name}: {ns:.0} ns each, {:.2} GB/s", len as f64 / ns);
        }
    }
}
