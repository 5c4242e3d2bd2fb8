"""What torch's CUDA allocator dumps of itself: its history, its segments, the stacks of both."""

SNAPSHOT_PROCESS = "memory snapshot"
"""The process of the tracks of a snapshot: it does not say of which one it is."""
