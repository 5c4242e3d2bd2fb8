"""The DataLoader's worker processes: what each did, on the clock of the trace."""
