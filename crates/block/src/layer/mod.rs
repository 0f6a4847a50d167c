//! Features stacked on any device.
