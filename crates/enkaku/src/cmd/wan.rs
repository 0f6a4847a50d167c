//! placeholder until wan lands
