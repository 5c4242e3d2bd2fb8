"""The ranks of a distributed run: their processes and their files."""
