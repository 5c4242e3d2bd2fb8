"""Bounded loops: warm up, record some of the steps, end the loop."""
