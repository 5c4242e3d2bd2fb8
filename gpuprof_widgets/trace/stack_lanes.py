"""Python frames as slices: their category and their names."""

from __future__ import annotations

CATEGORY = "python_function"


def frame_name(name: str, file: str, line: int) -> str:
    """Return a frame as torch.profiler writes it: ``train.py(12): step``, or a name alone."""
    return f"{file}({line}): {name}" if file else name
