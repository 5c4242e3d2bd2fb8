"""Bounded loops: warm up, record some of the steps, end the loop.

`steps` is what stands between a loop and its items, `iterations` counts and times them. For the
option ``--steps``, `training` finds the training loop in the source, `watching` rewrites the
loops so that they can be ended, `bound` chooses one while they run, `fetches` serves loops that no
source shows, and `recording` is the part of a recording that drives them.
"""
