//! The numbers that `adaptive` decides by, each with its reason. No logic.

/// The line that the first number of connections is chosen for: a gigabit, of which the headers
/// take some. A faster one is found by growing.
pub(super) const GUESS_BYTES_PER_S: f64 = 118e6;
/// What a buffer holds varies with how its packets were cut; so many more are opened for that. One
/// that is missing shows late, and opening it then costs a stall; one that is spare is closed.
pub(super) const GUESS_SPARE: f64 = 1.15;
/// A buffer hardly holds more than this times what it holds as a rule (writes 1.08, reads 1.17 over
/// 50 ms): fewer connections than that needs are not tried, for a trial in vain makes every command
/// wait.
pub(super) const WINDOW_MARGIN: f64 = 1.1;
pub(super) const WINDOW_MARGIN_RECEIVING: f64 = 1.2;
/// And no more of them than this before anything was measured.
pub(super) const GUESS_MAX: u32 = 16;
/// A window is at least this long: shorter ones see the scheduler, not the path.
pub(super) const WINDOW_MIN_S: f64 = 0.25;
/// A window in round trips: one congestion-avoidance step of every flow is inside.
pub(super) const WINDOW_ROUND_TRIPS: f64 = 4.0;
/// A window where no round trip is known.
pub(super) const WINDOW_UNKNOWN_S: f64 = 0.3;
/// A window and a ramp-up end here even if the round trip is absurd.
pub(super) const WINDOW_MAX_S: f64 = 5.0;
/// Without traffic for so many windows, nothing is asked of the path.
pub(super) const SILENT_WINDOWS: f64 = 2.0;
/// What the plateau may lose for fewer connections: 2 % with the error of its measurement.
pub(super) const PLATEAU_SHARE: f64 = 0.985;
/// A step is still worth its connections if it brings this much.
pub(super) const GAIN_MIN: f64 = 0.025;
/// A step that brings this part of what it could is proven before its slow start has ended.
pub(super) const GAIN_CLEAR_SHARE: f64 = 0.6;
/// A step that brings this part of what it could says: the edge is far, so quadruple.
pub(super) const GAIN_LINEAR_SHARE: f64 = 0.8;
/// Where the line's rate is known, a search opens no more than carry it with this margin: one more
/// window than needed waits for the rate, twenty more overrun the queue with their slow starts.
pub(super) const LINE_MARGIN: f64 = 1.25;
/// A difference counts if it is this many standard deviations.
pub(super) const SIGMAS: f64 = 2.5;
/// Relative standard error of a median against that of a mean.
pub(super) const MEDIAN_ERROR: f64 = 1.25;
/// Windows that a verdict may take; what is not clear by then is not worth a move.
pub(super) const VERDICT_WINDOWS_MAX: usize = 24;
/// Windows that a verdict needs, so that one outlier is none.
pub(super) const VERDICT_WINDOWS_MIN: usize = 2;
/// Windows that a trial of fewer connections or a probe may take: it may be costing throughput.
pub(super) const TRIAL_WINDOWS_MAX: usize = 12;
/// The predicted edge is tried with this much to spare: a trial that fails costs more.
pub(super) const EDGE_MARGIN: f64 = 1.04;
/// A smaller step up than this is a probe from the plateau.
pub(super) const PROBE_STEP_MAX: f64 = 0.5;
/// Less than this part of the line's rate is not all that it carries.
pub(super) const LINE_SHARE: f64 = 0.92;
/// What was carried lagged behind the rate for all of a window, although not in each of its
/// samples, if it did so in so many.
pub(super) const LAGS_MEMORY_WINDOWS: f64 = 2.0;
/// A round trip longer by this factor needs windows that the present ones are not.
pub(super) const STRETCHED: f64 = 1.5;
/// A changed path shows in this many windows in a row.
pub(super) const CHANGE_WINDOWS: usize = 2;
/// A fall of the throughput shows in this many windows in a row where packets were lost: when many
/// connections lose something at once, their timeouts take half of it for 0.7 s, and no other
/// number of connections helps against that.
pub(super) const FALL_WINDOWS: usize = 5;
/// Connections that lost whole windows are back after this: three timeouts, each twice the one
/// before it, the first of 200 ms.
pub(super) const TIMEOUTS_S: f64 = 1.4;
/// Less than this is no change of the path.
pub(super) const CHANGE_MIN: f64 = 0.08;
/// Windows whose median shows a slow change.
pub(super) const DRIFT_WINDOWS: usize = 12;
/// Less than this is no slow change.
pub(super) const DRIFT_MIN: f64 = 0.04;
/// Windows for the level that changes are seen against.
pub(super) const LEVEL_WINDOWS: usize = 4;
/// First pause before looking again for more; doubles with each probe in vain.
pub(super) const LOOK_AGAIN_S: f64 = 12.0;
/// First pause before trying fewer after a change of the path: what has fallen often comes back,
/// and connections in reserve cost little meanwhile.
pub(super) const SHRINK_AFTER_CHANGE_S: f64 = 25.0;
/// Longest pause of both.
pub(super) const PAUSE_MAX_S: f64 = 160.0;
/// Connections asked for of which none has come for this many windows were refused.
pub(super) const REFUSED_WINDOWS: f64 = 16.0;
/// And not before this: a busy target takes its time for a login.
pub(super) const REFUSED_S_MIN: f64 = 5.0;
/// The same where no round trip is known: six of 300 ms, each sent again after a lost SYN.
pub(super) const REFUSED_UNKNOWN_S: f64 = 15.0;
/// First pause before the peer is asked again for what it refused; doubles with each refusal.
pub(super) const REFUSAL_PAUSE_S: f64 = 60.0;
/// The longest of these pauses.
pub(super) const REFUSAL_PAUSE_S_MAX: f64 = 960.0;
/// The plateau's level is believed when its standard error is below this.
pub(super) const LEVEL_ERROR_MAX: f64 = 0.01;
/// More connections that bring less than this part of what they could, bring nothing.
pub(super) const FLAT_GAIN_SHARE: f64 = 0.15;
/// And never more than this: it would be worth its connections.
pub(super) const FLAT_GAIN_MAX: f64 = 0.015;
/// Steps smaller than this say nothing about that.
pub(super) const FLAT_STEP_MIN: f64 = 0.1;
/// A level further below the plateau than this is no error of its measurement.
pub(super) const FLAT_SHARE: f64 = 0.94;
/// A queue this long, or of this part of the round trip, may be what loses: such losses say nothing
/// of the path.
pub(super) const LOSSY_QUEUE_S: f64 = 0.004;
pub(super) const LOSSY_QUEUE_SHARE: f64 = 0.06;
/// Where less than this part of the most is carried, which is forgotten over this time, only a
/// queue of as many bytes (64 packets) that stands for so long may lose.
pub(super) const LOSSY_BELOW_SHARE: f64 = 0.6;
pub(super) const LOSSY_MOST_MEMORY_S: f64 = 30.0;
pub(super) const LOSSY_QUEUE_BYTES: f64 = 96e3;
pub(super) const LOSSY_STANDS_S: f64 = 0.35;
/// And more of the segments than this are lost by load, not by chance.
pub(super) const LOSSY_SHARE_MAX: f64 = 0.02;
/// So many connections that lose at the same time are no chance.
pub(super) const LOSSY_ALL_MIN: usize = 3;
/// Below this part of their mean rate, a connection that loses nothing has only just begun.
pub(super) const LOSSY_YOUNG_SHARE: f64 = 0.5;
/// They show until so many round trips later, and so long.
pub(super) const LOSSY_CLEAR_ROUND_TRIPS: f64 = 6.0;
pub(super) const LOSSY_CLEAR_S: f64 = 0.6;
/// What was lost this long ago counts a third.
pub(super) const LOSSY_MEMORY_S: f64 = 1.5;
/// With fewer losses than this, their share is not known.
pub(super) const LOSSY_LOST_MIN: f64 = 2.5;
/// The number that losses ask for is worth a move if it is larger by this factor.
pub(super) const LOSSY_FACTOR_MIN: f64 = 1.5;
/// By this one at the end that receives: what each connection carries tells the other end's
/// congestion control there, and more of them make that less, as if it bore losses worse.
pub(super) const LOSSY_FACTOR_RECEIVING: f64 = 2.0;
/// Connections that carry more than losses leave cubic, by this factor, have something that bears
/// them.
pub(super) const LOSSY_BORNE: f64 = 3.0;
/// Connections that lose so many segments in a round trip have others beside them that carry on.
pub(super) const REPAIRING_SHARE: f64 = 0.25;
/// A better congestion control is there within this time, or it was refused.
pub(super) const LOSSY_CHANGE_S: f64 = 0.35;
/// So many losses, and intervals with one, were due since the last one: none comes any more.
pub(super) const LOSSY_DUE_MAX: f64 = 12.0;
pub(super) const LOSSY_DUE_INTERVALS_MAX: f64 = 4.0;
/// New connections are opened if there are so many times as many as the line needs.
pub(super) const RENEWAL_FACTOR_MIN: u32 = 2;
/// The first pause before that is done again; doubles while losses come back within so many of
/// them.
pub(super) const RENEWAL_PAUSE_S: f64 = 10.0;
pub(super) const RENEWAL_SOON: f64 = 4.0;
/// The path is the same, and nobody else's queue on it, if its round trip is longer by no more than
/// this.
pub(super) const SAME_RTT_S: f64 = 0.008;
pub(super) const SAME_RTT_SHARE: f64 = 0.25;
/// A line that carried so much more is remembered for this time.
pub(super) const FILLED_SHARE: f64 = 0.85;
pub(super) const FILLED_MEMORY_S: f64 = 120.0;
/// The most commands at once are remembered for about this time: an application that waits for its
/// flush has none.
pub(super) const COMMANDS_MEMORY_S: f64 = 20.0;
