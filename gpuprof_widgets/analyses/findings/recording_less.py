"""Which of what was recorded can be left out, for times nearer to the truth."""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.trace.model import Record

COSTLY = {"stack": "stacks", "shapes": "shapes", "memory": "memory", "flops": "FLOPs"}
"""Options of a recording that cost time, and what they record."""


def what_to_leave_out(record: Record) -> str:
    """``stacks, shapes and cProfile``: what was on; "" where none of it was."""
    options: dict[str, Any] = record.metadata.get("options") or {}
    on = [words for name, words in COSTLY.items() if options.get(name)]
    # With stacks cProfile does not run: the calls are counted from the frames.
    counted = record.calls is not None and not options.get("stack")
    on += ["cProfile"] if counted else []
    return " and ".join([", ".join(on[:-1]), on[-1]] if len(on) > 1 else on)
