"""Bounded loops: warm up, record some of the steps, end the loop.

`steps` is what stands between a loop and its items, `iterations` counts and times them. For the
option ``--steps``, `training` finds the training loop in the source, `bound` rewrites the loops and
chooses one while they run, and `recording` is the part of a recording that drives them.
"""
