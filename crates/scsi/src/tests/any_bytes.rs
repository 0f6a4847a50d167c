//! No CDB and no data, whatever they are, may panic or return more than there is room for.

use proptest::prelude::*;

use super::*;

/// Any bytes, mostly with an opcode that exists.
fn any_cdb() -> impl Strategy<Value = Vec<u8>> {
    let known: Vec<u8> = (0..=255u8)
        .filter(|op| {
            crate::opcodes::find(&Cdb::new(&[*op])).is_ok() || matches!(op, 0x48 | 0x9e | 0xa3)
        })
        .collect();
    let opcode = prop_oneof![9 => prop::sample::select(known), 1 => any::<u8>()];
    // Sparse bytes get past the checks of reserved bits more often.
    let byte = prop_oneof![3 => Just(0u8), 2 => 0..4u8, 1 => any::<u8>()];
    (opcode, prop::collection::vec(byte, 15..40)).prop_map(|(opcode, mut rest)| {
        rest.insert(0, opcode);
        rest
    })
}

/// Background work is done before the command answers.
struct Inline;

impl Host for Inline {
    fn abort_tasks(&self, _: u64, _: Vec<NexusId>) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }
    fn pause(&self, _: std::time::Duration) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }
    fn spawn(&self, mut work: BoxFuture) {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while work.as_mut().poll(&mut context).is_pending() {}
    }
}

/// A unit with every option, small enough to be sanitized thousands of times.
fn fixture() -> (Target, Nexus) {
    let target = Target::new(TargetConfig::new(NAME));
    target.set_host(Arc::new(Inline));
    let options = LunOptions::default()
        .with_removable(true)
        .with_atomic_write_bytes(4096)
        .with_space_threshold_bytes(1 << 20);
    target.add_lun(0, Arc::new(MemoryDevice::new(256 << 10, 512).unwrap()), options).unwrap();
    let usage = SpaceUsage { available_bytes: 1 << 30, used_bytes: 0 };
    target.report_space(0, usage).unwrap();
    let nexus = ready(target.nexus(INITIATOR));
    (target, nexus)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn never_panics(
        cdb in any_cdb(),
        data in prop::collection::vec(any::<u8>(), 0..1200),
        room in 0usize..3000,
        lun in prop_oneof![9 => Just(0u64), 1 => any::<u64>()],
    ) {
        let (_target, nexus) = fixture();
        let response = run_on(&nexus, lun, &cdb, data, room);
        prop_assert!(response.data_in.len() <= room);
        prop_assert!(response.data_in.len() as u64 <= response.data_len_wanted);
        prop_assert_eq!(response.sense.is_some(), response.status == Status::CHECK_CONDITION);
        if let Some(sense) = response.sense {
            prop_assert_eq!(sense.to_bytes().len(), 18);
            prop_assert!(response.data_in.is_empty());
        }
    }
}
