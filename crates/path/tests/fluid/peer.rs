//! The count and a peer that opens connections slowly, or fewer than it is asked for.

use ::path::{Config, Controller, Sample, Why};

/// One connection's rate; ten fill the line.
const ONE: f64 = 10e6;
const LINE: f64 = 100e6;

/// The numbers wanted in a session without noise, sample by sample; its peer opens what `opens`
/// says of time, wanted and present number.
fn wanted(t_s: f64, opens: impl Fn(f64, u32, u32) -> u32) -> Vec<u32> {
    let mut controller = Controller::new(Config { paces: false, ..Config::default() });
    let mut open = 4;
    let mut all = Vec::new();
    for tick in 1..=(t_s * 10.0) as u32 {
        let t_s = f64::from(tick) / 10.0;
        let bytes_per_s = (ONE * f64::from(open)).min(LINE);
        let sample = Sample { t_s, connections_open: open, bytes_per_s, ..Sample::default() };
        let wanted = controller.handle_sample(&sample).connections;
        open = opens(t_s, wanted, open);
        all.push(wanted);
    }
    all
}

#[test]
fn connections_that_take_four_seconds_to_open_were_not_refused() {
    // All of those asked for arrive together.
    let wanted = wanted(60.0, |t_s, wanted, open| {
        let arrive = ((t_s * 10.0).round() as u32).is_multiple_of(40);
        if wanted < open || arrive { wanted } else { open }
    });
    assert!(wanted.last().is_some_and(|n| (10..=11).contains(n)), "{:?}", wanted.last());
}

#[test]
fn what_is_refused_is_taken_as_the_limit_and_asked_for_again_later() {
    let wanted = wanted(190.0, |t_s, wanted, _| wanted.min(if t_s < 30.0 { 6 } else { 64 }));
    assert_eq!(wanted[250], 6);
    assert!(wanted.last().is_some_and(|n| (10..=11).contains(n)), "{:?}", wanted.last());
}

#[test]
fn what_is_not_granted_is_not_waited_for() {
    let mut controller = Controller::new(Config { paces: false, ..Config::default() });
    assert!(controller.first(Some(0.3), 1).connections > 6);
    for tick in 1..=100_u32 {
        let (t_s, bytes_per_s) = (f64::from(tick) / 10.0, 6.0 * ONE);
        controller.grant(6);
        let sample = Sample { t_s, connections_open: 6, bytes_per_s, ..Sample::default() };
        let orders = controller.handle_sample(&sample);
        assert_eq!((orders.connections, orders.why), (6, Why::AtMost), "{t_s}");
    }
    // Another session grants more.
    controller.grant(64);
    controller.restart();
    let more = (101..200_u32).map(|tick| {
        let (t_s, bytes_per_s) = (f64::from(tick) / 10.0, 6.0 * ONE);
        let sample = Sample { t_s, connections_open: 6, bytes_per_s, ..Sample::default() };
        controller.handle_sample(&sample).connections
    });
    assert!(more.max() > Some(6));
}
