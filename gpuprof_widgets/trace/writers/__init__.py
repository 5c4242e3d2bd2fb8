"""Files that we write, each in one module: bytes from tables, nothing else.

Which of them a name asks for is in `gpuprof_widgets.exports`: some formats draw or analyse first.
"""
