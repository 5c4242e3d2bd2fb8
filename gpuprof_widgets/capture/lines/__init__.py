"""The lines of a cell: statements marked while they run, and nothing of it left behind."""
