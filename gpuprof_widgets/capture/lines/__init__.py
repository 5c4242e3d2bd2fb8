"""The lines of a cell: its statements are regions on the timeline while a recording runs.

`rewrite` puts regions around statements, `regions` makes them, `suspended` closes them while a
generator or coroutine waits, `sources` rewrites functions that were defined earlier, `compiled`
spares what a compiler reads, and `recording` has the parts of the recording.
"""
