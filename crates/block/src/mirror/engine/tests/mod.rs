//! The engine over devices in memory: the failure matrix, copies, and seeds of random faults. Every
//! test of a fault compares what the legs hold in the end.

mod atomic;
mod batch;
mod before;
mod clock;
mod copies;
mod decisions;
mod failback;
mod fence;
mod inside;
mod lag;
mod life;
mod load;
mod losses;
mod members;
mod reserved;
mod restore;
mod seeds;
mod stream;
mod verify;
mod verify_every;
mod world;
