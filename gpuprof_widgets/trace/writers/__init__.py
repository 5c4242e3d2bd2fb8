"""Formats that we write: bytes from tables, nothing else.

`gpuprof_widgets.exports` chooses the format by a file's name, and draws or analyses first.
"""
