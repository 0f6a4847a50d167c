"""S2 (iSCSI-APT, 2009) again: its ns-2 model, our policies in its place, and its figures.

`session.tcl` is the model, `engine` runs it, `real` measures the same on the emulated line,
`measure` turns runs into numbers, `charts` into figures, `study` says what an experiment is.
"""
