//! The numbers that the pacer decides by, each with its reason. No logic.

/// A queue is this much time above the shortest round trip: what schedulers make is less.
pub(super) const QUEUE_MIN_S: f64 = 0.004;
/// And this part of it, which the jitter of a long path stays below.
pub(super) const QUEUE_SHARE: f64 = 0.06;
/// With this time in the queue, and this part of the shortest round trip, the rate is raised no
/// further: it takes a while to fill, and over a long path it goes on filling until that is seen.
pub(super) const QUEUE_SOME_S: f64 = 0.0016;
pub(super) const QUEUE_SOME_SHARE: f64 = 0.01;
/// A queue of this time is believed at once; a shorter one that is none of a long path's must be
/// there twice in a row, because whoever does not get his processor delays packets, too.
pub(super) const QUEUE_SURE_S: f64 = 0.01;
/// In the first round trips of a session a queue must be there for one of them: the first segments
/// are few, and one that is late lengthens the smoothed round trip as much as a queue would.
pub(super) const YOUNG_ROUND_TRIPS: f64 = 8.0;
/// A queue of up to so many times one that counts is none of the line's while more is carried than
/// ever before, by this factor: windows that double send in bursts, which queue for a moment.
pub(super) const BURSTS_MAX: f64 = 2.0;
pub(super) const RISES: f64 = 1.05;
/// More of the segments than this are lost by load, not by chance: few lines lose one in fifty.
pub(super) const LOSS_SHARE: f64 = 0.02;
/// Payload of a segment, to count segments by.
pub(super) const SEGMENT_BYTES: f64 = 1448.0;
/// What a change of the rate brings about is seen after so many round trips, and this time.
pub(super) const SETTLE_ROUND_TRIPS: f64 = 1.5;
pub(super) const SETTLE_S: f64 = 0.1;
/// After a rise it is enough that the first round trip with it has been acknowledged for the
/// greater part.
pub(super) const SETTLE_RISEN_ROUND_TRIPS: f64 = 1.5;
pub(super) const SETTLE_RISEN_S: f64 = 0.04;
/// A queue takes so many times its own length to empty at a rate that is a little lower, and is
/// waited for no longer than this.
pub(super) const DRAIN_FACTOR: f64 = 30.0;
pub(super) const DRAIN_S_MAX: f64 = 0.5;
/// The first rate comes from the midst of losses, which take longer to be repaired.
pub(super) const SETTLE_FIRST_ROUND_TRIPS: f64 = 4.0;
/// New connections need this for their login and to double their windows seven times.
pub(super) const SETTLE_NEW_ROUND_TRIPS: f64 = 10.0;
/// The rate is lowered by this factor while the line is looked for, and once it is known.
pub(super) const CUT_SEEKING: f64 = 0.9;
pub(super) const CUT: f64 = 0.96;
/// A queue that is still there at this part of the rate is not ours.
pub(super) const NOT_OURS_SEEKING: f64 = 0.4;
pub(super) const NOT_OURS: f64 = 0.8;
/// Less than this part of the rate over such a span, with a queue: the line is slower now.
pub(super) const SLOWER_SHARE: f64 = 0.85;
pub(super) const LINE_SPAN: f64 = 2.95;
/// Less than this part of what was carried just before is a stall.
pub(super) const STALLED_SHARE: f64 = 0.25;
/// At less than this part of what the line carries, a queue empties by itself; it is given so many
/// looks for that.
pub(super) const EMPTIES_SHARE: f64 = 0.975;
pub(super) const EMPTIES_MAX: u32 = 8;
/// Above this part of what the line carries, the rate is far too high.
pub(super) const FAR_SHARE: f64 = 1.05;
/// It is raised by half of what is missing to the rate at which the queue came; beyond that by this
/// part at first, then by twice as much each time, up to what a queue takes.
pub(super) const STEP_MIN: f64 = 0.01;
/// Of what is missing to a known rate no more than this at once.
pub(super) const STEP_MAX: f64 = 0.25;
/// The first of these steps, where the queue came and went by itself, as a part of the largest.
pub(super) const ELSEWHERE_SHARE: f64 = 0.5;
/// In a session so new it is looked for as on a new path once more, and again only if so many times
/// as much was carried by then.
pub(super) const NEW_S: f64 = 4.0;
pub(super) const NEW_ROUND_TRIPS: f64 = 20.0;
pub(super) const OPEN_AGAIN: f64 = 1.5;
/// So far below the rate at which the queue came it stays, for this time.
pub(super) const BELOW: f64 = 0.985;
pub(super) const HOLD_S: f64 = 1.5;
/// Or until there was less than this part of a queue that counts for that time: a line so full has
/// always something waiting, so this one has become faster.
pub(super) const FLAT: f64 = 0.1;
pub(super) const FLAT_S: f64 = 0.5;
/// The rate holds us if we reach this part of it, on average over such a span.
pub(super) const BINDS_SPAN: f64 = 3.95;
pub(super) const BINDS_SHARE: f64 = 0.9;
/// Or if commands wait for it in this part of the time, smoothed so: an application that has one
/// command at a time uses the rate in between, and carries less on average.
pub(super) const HELD_SHARE: f64 = 0.1;
pub(super) const HELD_SMOOTHING: f64 = 0.3;
/// In this part of the time, if they never pause; then what was carried in the last of these spans
/// has to reach only so much of a rate that rises.
pub(super) const ALWAYS_SHARE: f64 = 0.9;
pub(super) const LATEST_SPAN: f64 = 0.95;
pub(super) const FOLLOWS_SHARE: f64 = 0.85;
/// Of a step beyond the rate at which the queue came so much has to be missing, and an error of
/// measurement, until no further one is made.
pub(super) const OUTRUN_SHARE: f64 = 0.5;
pub(super) const OUTRUN_ERROR: f64 = 0.01;
/// Commands go in bursts of such a time, and more than what those and the path hold, by this
/// factor, waits in sockets.
pub(super) const OUTRUN_BURST_S: f64 = 0.02;
pub(super) const OUTRUN_FACTOR: f64 = 1.3;
/// Less than this part of it is far behind; and so is less than the rate where that is so many
/// times the one at which the queue came: the line has become faster.
pub(super) const LAGS_SHARE: f64 = 0.92;
pub(super) const LAGS_BEYOND: f64 = 1.1;
/// The round trip that is left then is the least one of this time.
pub(super) const LEFT_S: f64 = 1.0;
/// First and longest time that the rate is free where the queue is not ours.
pub(super) const FREE_S: f64 = 10.0;
pub(super) const FREE_S_MAX: f64 = 160.0;
/// The most that was carried is that of such a span: what is acknowledged at once when a hole is
/// filled is no rate.
pub(super) const BEST_SPAN: f64 = 1.95;
/// Time over which the most that was carried is remembered: a slow start and its end are inside.
pub(super) const BEST_S: f64 = 2.0;
pub(super) const BEST_ROUND_TRIPS: f64 = 8.0;
/// While something is lost, a queue of no more than so many that count is none of the rate's: a
/// line that became slower makes a longer one at once.
pub(super) const QUEUE_SHORT: f64 = 3.0;
/// Where this share of the samples has a round trip that is longer than that of the one before by
/// such a part of a queue that counts, and as many a shorter one, a machine on the way does not get
/// its processor all the time. Then a queue counts only if it was there in all samples of some
/// time.
pub(super) const JITTER: f64 = 0.75;
pub(super) const JITTER_SHARE: f64 = 0.1;
pub(super) const STANDING_S: f64 = 0.35;
/// So much of what a rate and the path hold has to be under way for a sender that could fill the
/// rate: a sample may be taken just before commands take the place of those that were answered.
pub(super) const ENOUGH_SHARE: f64 = 0.9;
/// TCP's smallest window while it loses nothing: with less, each segment waits for its own
/// acknowledgement, which the peer may delay.
pub(super) const WINDOW_MIN_SEGMENTS: f64 = 2.0;
/// The longest command that is made by default, and the time that it may take.
pub(super) const LARGE_COMMAND_BYTES: f64 = 1048576.0;
pub(super) const LARGE_COMMAND_S: f64 = 1.0;
/// Each socket may send this much more than its even share, so that the limit over all of them
/// binds first and none is held up by the choice of connections.
pub(super) const PART_HEADROOM: f64 = 1.25;
/// In the background only for what a share that is not quite even needs.
pub(super) const PART_HEADROOM_BACKGROUND: f64 = 1.05;
