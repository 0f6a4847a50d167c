//! Which buckets a session's commands go through, and what a reload makes of them.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use iscsi_proto::ids::{Itt, Lun};
use tokio::time::Instant;

use super::*;
use crate::target::access::{AccessRule, AccessRules};
use crate::target::catalog::{Limits, TargetSpec};

const TARGET: &str = "iqn.2026-11.test:disks";

fn catalog(own: Limit, units: &[(u16, Limit)]) -> Catalog {
    let scsi = scsi::Target::new(scsi::TargetConfig::new(TARGET));
    let mut target = TargetSpec::new(TARGET, scsi).unwrap();
    let rule = AccessRule { limit: own, ..AccessRule::default() };
    target.access = AccessRules { anyone: Some(rule), ..AccessRules::default() };
    target.lun_limits = units.iter().copied().collect();
    Catalog::new(Limits::default()).with_target(target)
}

fn iops(iops: u64) -> Limit {
    Limit::new(None, Some(iops)).with_burst(Duration::ZERO)
}

fn command(opcode: u8, lun: u16) -> Admission {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    Admission { itt: Itt(1), lun: Lun(u64::from(lun) << 48), cdb, bytes: 4096 }
}

async fn is_held(throttle: &Throttle, admission: &Admission) -> Option<Wait> {
    let mut wait = throttle.wait(admission)?;
    let polled = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await;
    polled.is_pending().then_some(wait)
}

const READ_10: u8 = 0x28;
const TEST_UNIT_READY: u8 = 0x00;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;

#[tokio::test(start_paused = true)]
async fn a_command_waits_for_its_initiator_and_its_unit() {
    let limiters = Limiters::default();
    let catalog = catalog(iops(10), &[(1, iops(2))]);
    let throttle = limiters.throttle(&catalog, TARGET, "a");
    let other = limiters.throttle(&catalog, TARGET, "b");
    assert!(throttle.limits());
    assert!(throttle.wait(&command(READ_10, 1)).is_none());
    let begin = Instant::now();
    throttle.wait(&command(READ_10, 0)).expect("the initiator's").await;
    assert_eq!(begin.elapsed(), Duration::from_millis(100));
    throttle.wait(&command(READ_10, 1)).expect("both").await;
    assert_eq!(begin.elapsed(), Duration::from_millis(500), "the unit's is the slower one");
    other.wait(&command(READ_10, 1)).expect("the unit's, which all share").await;
    assert_eq!(begin.elapsed(), Duration::from_secs(1));
    assert!(other.wait(&command(READ_10, 0)).is_none(), "another initiator");
    let units: Vec<_> = limiters.view().into_iter().filter(|view| view.lun == Some(1)).collect();
    assert_eq!((units.len(), units[0].commands, units[0].delayed), (1, 3, 2));
}

#[tokio::test(start_paused = true)]
async fn only_what_uses_the_medium_waits() {
    let limiters = Limiters::default();
    let throttle = limiters.throttle(&catalog(iops(1), &[]), TARGET, "a");
    assert!(throttle.wait(&command(SYNCHRONIZE_CACHE_10, 0)).is_none());
    let held = is_held(&throttle, &command(READ_10, 0)).await;
    assert!(held.is_some(), "the flush was one command");
    for _ in 0..100 {
        assert!(throttle.wait(&command(TEST_UNIT_READY, 0)).is_none());
    }
    drop(held);
    assert_eq!(limiters.view()[0].waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_reload_changes_what_runs() {
    let limiters = Limiters::default();
    let before = catalog(iops(1), &[]);
    let throttle = limiters.throttle(&before, TARGET, "a");
    assert!(throttle.wait(&command(READ_10, 0)).is_none());
    let held = is_held(&throttle, &command(READ_10, 0)).await.expect("it waits");
    limiters.apply(&catalog(Limit::default(), &[(0, iops(4))]));
    let begin = Instant::now();
    held.await;
    assert_eq!(begin.elapsed(), Duration::ZERO, "its limit is gone");
    let views = limiters.view();
    assert_eq!(views.len(), 1);
    assert_eq!((views[0].lun, views[0].limit.iops), (Some(0), Some(4)));
    let now = limiters.throttle(&catalog(Limit::default(), &[(0, iops(4))]), TARGET, "a");
    assert!(now.limits());
    let none = limiters.throttle(&catalog(Limit::default(), &[]), TARGET, "a");
    assert!(!none.limits());
}

/// Logging in anew is no way around a limit, and one that owes nothing is not kept.
#[tokio::test(start_paused = true)]
async fn a_debt_outlives_the_session() {
    let limiters = Limiters::default();
    let catalog = catalog(iops(1), &[]);
    assert!(limiters.throttle(&catalog, TARGET, "a").wait(&command(READ_10, 0)).is_none());
    let again = limiters.throttle(&catalog, TARGET, "a");
    assert!(is_held(&again, &command(READ_10, 0)).await.is_some());
    drop(again);
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(limiters.throttle(&catalog, TARGET, "b"));
    let names: Vec<_> =
        limiters.view().into_iter().filter_map(|view| view.initiator_name).collect();
    assert_eq!(names, ["b"]);
}
