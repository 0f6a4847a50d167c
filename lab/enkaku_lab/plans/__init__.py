"""`enkaku plan` against measurement: a grid of paths, on the emulated line and in ns-2."""
