"""The DataLoader's worker processes: what each did, on the clock of the trace.

`process` and `patches` run in a worker, `recording` in the main process.
"""
