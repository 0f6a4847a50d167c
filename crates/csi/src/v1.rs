//! The messages and services of the specification, version 1.12. The code is generated
//! (`proto/README.md`), and formatted by its generator.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, rustdoc::all)]

include!("csi.v1.inc");
