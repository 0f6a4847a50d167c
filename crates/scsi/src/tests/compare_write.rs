//! COMPARE AND WRITE.

use super::*;

fn compare_and_write(lba: u64, count: u8) -> Vec<u8> {
    let mut cdb = cdb(0x89, 0, lba, 0);
    cdb[13] = count;
    cdb
}

#[test]
fn swaps_when_equal_and_only_then() {
    for block_size in [512, 4096] {
        let fixture = Fixture::with_block_size(block_size);
        for count in [1, 2, 255] {
            let len = usize::from(count) * fixture.block_size;
            for lba in [0, BLOCKS - u64::from(count)] {
                fixture.fill(lba, usize::from(count), b'A');
                let mut data = vec![b'A'; len];
                data.extend(vec![b'B'; len]);
                let mut wrong = data.clone();
                wrong[len - 27] = b'C';
                let response = fixture.run(&compare_and_write(lba, count), wrong, 0);
                assert_sense(&response, 0xe, 0x1d, 0x00);
                assert_eq!(response.sense.unwrap().information, Some(len as u64 - 27));
                assert_eq!(fixture.blocks(lba, usize::from(count)), vec![b'A'; len]);
                let response = fixture.run(&compare_and_write(lba, count), data, 0);
                assert_good(&response);
                assert_eq!(response.data_len_wanted, 2 * len as u64);
                assert_eq!(fixture.blocks(lba, usize::from(count)), vec![b'B'; len]);
            }
        }
    }
}

#[test]
fn the_data_must_be_two_runs_of_blocks() {
    let fixture = Fixture::new();
    for (count, len) in [(1, 2048), (3, 2048), (1, 0), (1, 512)] {
        let response = fixture.run(&compare_and_write(0, count), vec![0; len], 0);
        assert_sense(&response, 0x5, 0x0e, 0x03);
    }
    assert_good(&fixture.run(&compare_and_write(0, 0), "", 0));
    assert_invalid_cdb(&fixture.run(&compare_and_write(0, 0), vec![0; 262_144], 0), 13, 7);
    let response = fixture.run(&compare_and_write(BLOCKS, 1), vec![0; 1024], 0);
    assert_sense(&response, 0x5, 0x21, 0x00);
}

/// Many tasks increment one counter by compare and write, while plain writes hit the block beside:
/// no increment may get lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn is_atomic_against_itself_and_writes() {
    use block::layer::{Delay, DelayLayer, Delays};
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 25;
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let us = std::time::Duration::from_micros;
    let delay = Delay::Uniform(us(0), us(1200));
    let device = Arc::new(DelayLayer::new(memory, Delays::all(delay), 3));
    let target = Target::new(TargetConfig::new(NAME));
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let tasks = (0..TASKS).map(|task| {
        let nexus = ready(target.nexus(INITIATOR));
        tokio::spawn(async move {
            let read = Command::new(0, Cdb::new(&cdb(0x28, 0, 0, 1))).with_data_in_max(512);
            for _ in 0..ROUNDS {
                loop {
                    let old = nexus.execute(read.clone()).await.data_in;
                    let count = u64::from_be_bytes(old[..8].try_into().unwrap());
                    let mut data = old.to_vec();
                    data.extend((count + 1).to_be_bytes());
                    data.extend(&old[8..]);
                    let swap = Command::new(0, Cdb::new(&compare_and_write(0, 1)))
                        .with_data_out(data.into());
                    // Overlaps with nothing: must neither wait nor disturb.
                    let beside = Command::new(0, Cdb::new(&cdb(0x2a, 0, 1 + task, 1)))
                        .with_data_out(vec![1; 512].into());
                    let (swapped, beside) =
                        tokio::join!(nexus.execute(swap), nexus.execute(beside));
                    assert_good(&beside);
                    if swapped.status == Status::GOOD {
                        break;
                    }
                    assert_sense(&swapped, 0xe, 0x1d, 0x00);
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let nexus = ready(target.nexus(INITIATOR));
    let read = Command::new(0, Cdb::new(&cdb(0x28, 0, 0, 1))).with_data_in_max(512);
    let found = nexus.execute(read).await.data_in;
    assert_eq!(u64::from_be_bytes(found[..8].try_into().unwrap()), TASKS * ROUNDS);
}
