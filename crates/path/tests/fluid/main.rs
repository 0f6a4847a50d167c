//! The model against the fluid models that the tuner's policies are tested with, in virtual time.

mod count;
mod line;
mod path;
mod random;
