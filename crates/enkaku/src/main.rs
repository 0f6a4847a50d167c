//! The one binary: one subcommand per file, no logic here.

fn main() {}
