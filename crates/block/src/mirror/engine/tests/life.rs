//! Rows of the failure matrix about taking over where no reservation decides: a mirror that lives
//! is seen by what it writes to its legs, whatever the clocks of the two sides say.

use std::time::Duration;

use super::clock::HostWithClock;
use super::world::*;
use crate::Buf;
use crate::mirror::{Host, LegState, MirrorError, PromoteOptions, Promoted, promote};

const HOUR: Duration = Duration::from_secs(3600);

/// The other site takes over, whose clock is ahead of ours by this time.
async fn promote_with(world: &World, ahead: Duration) -> Result<Promoted, MirrorError> {
    let site = HostWithClock::new("the other site", move |host| host.wall_clock() + ahead);
    promote(world.legs[0].elsewhere(), &site, PromoteOptions::default()).await
}

async fn whole(world: &World) -> Vec<u8> {
    let device = world.legs[0].device();
    device.read(0, Buf::new(device.info().size as usize)).await.unwrap().to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_leg_of_a_mirror_that_lives_is_not_taken_over_by_mistake() {
    for ahead in [Duration::ZERO, HOUR] {
        let world = World::in_sync(1).await;
        let start = tokio::time::Instant::now();
        let refused = promote_with(&world, ahead).await.unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let said = refused.to_string();
        let own = format!("process {}", std::process::id());
        assert!(said.contains("lives") && said.contains(&own), "who it is: {said}");
        assert!(said.contains("--force"), "what decides: {said}");
        assert_eq!(world.mirror().status().legs[0].state, LegState::InSync);
        world.write(0, 65536, 1).await.unwrap();
        world.assert_equal().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leg_of_a_mirror_that_is_gone_is_taken_over_within_ten_seconds() {
    let mut world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    let image = content(&*world.local).await;
    world.kill();
    let start = tokio::time::Instant::now();
    assert!(promote_with(&world, HOUR).await.unwrap().consistent);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(whole(&world).await[..image.len()] == image);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_ended_in_order_has_said_so() {
    let mut world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    world.mirror.take().unwrap().close().await.unwrap();
    let start = tokio::time::Instant::now();
    promote_with(&world, Duration::ZERO).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_without_anything_to_do_gives_signs_of_life() {
    let world = World::in_sync(1).await;
    for _ in 0..3 {
        let before = whole(&world).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(whole(&world).await != before, "no sign for 6 s");
        assert_eq!(world.mirror().status().legs[0].state, LegState::InSync);
    }
}
