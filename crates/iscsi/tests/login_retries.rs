//! An initiator that logs in over and over while one of its commands hangs in the storage: what
//! that costs does not grow with the number of its logins, and ends when the storage comes back.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;
mod hung;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hostile_common::{Arena, Attacker, resident_bytes, until};
use hung::Hung;
use iscsi_proto::pdu::LoginStatus;

/// More than a stack has room for, if each login left something that calls the next.
const LOGINS: usize = 3000;
/// Logins under way at once.
const CROWD: usize = 40;
/// What all of them together may cost. One session of a target takes some kilobytes.
const GROWTH_BYTES_MAX: usize = 24 << 20;
/// Tasks of this process that the logins may leave: one waits for the command.
const TASKS_LEFT_MAX: usize = 8;

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_while_a_command_hangs_cost_no_more_than_one() {
    let disk = Arc::new(Hung::new());
    let arena =
        Arena::on(disk.clone(), |config| config.login_timeout = Duration::from_secs(60)).await;
    let isid = hostile_common::isid();
    let attacker = Attacker::enter(arena.address, |config| config.isid = isid).await.unwrap();
    // What the unit has to tell comes first.
    let mut attacker = attacker;
    attacker.status_of(1, 0).await;
    attacker.write_command(100, 512, &[0; 512]).await;
    until("the write hangs", || disk.hanging() == 1).await;
    drop(attacker);

    let (tasks_before, resident_before) = (tasks(), resident_bytes());
    let mut refused = 0;
    for _ in 0..LOGINS / CROWD {
        let login = |_| Attacker::enter(arena.address, |config| config.isid = isid);
        let mut crowd: FuturesUnordered<_> = (0..CROWD).map(login).collect();
        // A login whose place another has taken is told. The last one waits, and gives up.
        for told in 1..CROWD {
            let outcome = tokio::time::timeout(Duration::from_secs(60), crowd.next()).await;
            match outcome.unwrap_or_else(|_| panic!("{told} of {CROWD} were told")) {
                Some(Err(LoginStatus::SESSION_DOES_NOT_EXIST)) => refused += 1,
                other => {
                    panic!("the command still hangs: {:?}", other.map(|login| login.map(drop)))
                }
            }
        }
    }
    assert_eq!(refused, LOGINS / CROWD * (CROWD - 1));
    // Only the healthy session's connection, and whatever waits for the command.
    until("the logins have ended", || arena.server.connection_count() <= 2).await;
    until("their tasks have ended", || tasks() <= tasks_before + TASKS_LEFT_MAX).await;
    let grown = resident_bytes().saturating_sub(resident_before);
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes");
    assert!(arena.server.sessions().len() <= 2, "the healthy session and the last one");
    arena.serves().await;

    // The storage comes back: the next login is let in, and all that waited is gone.
    let waiting = tokio::spawn(Attacker::enter(arena.address, move |config| config.isid = isid));
    until("it waits", || arena.server.connection_count() == 2).await;
    disk.come_back();
    drop(waiting.await.unwrap().unwrap());
    until("all is released", || tasks() <= tasks_before).await;
    arena.settles().await;
    arena.serves().await;
}
