"""What a record says that recording cost, beside what it did cost: the same cell with and without.

A ratio of 1.0 means that the estimate is right; the aim is within 0.5 and 1.5.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from tests.cells import compiled, recorded

SETUP = """\
import torch
from torch import nn
small = nn.Sequential(*[nn.Identity() for _ in range(300)])
layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(300)])
x, large = torch.ones(4, 8), torch.ones(300, 300)
def nothing(n):
    return n
"""
CELLS = {
    "modules": "for _ in range(10): small(x)",
    "layers": "for _ in range(10): layers(x)",
    "lines": "n = 0\nfor i in range(3000):\n    n += i\n    n -= 1\n    n ^= 3",
    "small ops": "for _ in range(3000): x.mul_(1.0)",
    "training": "for _ in range(3): layers(x).sum().backward()",
    "calls": "for _ in range(20000): nothing(1)",
    "built-ins": "for _ in range(20000): len('')",
    "large ops": "for _ in range(50): large @ large",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "(none)": {},
    "--python off": {"python": "off"},
    "--shapes --memory": {"shapes": True, "memory": True},
    "--stack": {"stack": True},
    "all": {"shapes": True, "memory": True, "stack": True},
}
REPEATS = 3


def plain_ns(cell: str) -> int:
    """The best time of the cell alone."""
    times = []
    for _ in range(REPEATS):
        code = compiled(cell, names())
        began = perf_counter_ns()
        eval(code.statements, code.names)
        times.append(perf_counter_ns() - began)
    return min(times)


def names() -> dict[str, Any]:
    """What a cell finds."""
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP, found)
    return found


def main() -> None:
    """Print, for each cell and choice of options, what it cost and what the record says."""
    print(f"{'cell':<12}{'options':<20}{'plain':>10}{'cost':>10}{'estimate':>10}{'ratio':>8}")
    for kind, cell in CELLS.items():
        plain = plain_ns(cell + "\npass")
        for title, options in OPTIONS.items():
            runs = [
                recorded(cell + "\npass", names(), **options)[1].metadata for _ in range(REPEATS)
            ]
            best = min(runs, key=lambda run: int(run["wall_ns"]))
            cost, estimate = best["wall_ns"] - plain, best["overhead"]["estimate_ns"]
            ratio = estimate / cost if cost > 0 else float("nan")
            print(
                f"{kind:<12}{title:<20}{plain / 1e6:>8.2f}ms{cost / 1e6:>8.2f}ms"
                f"{estimate / 1e6:>8.2f}ms{ratio:>8.2f}"
            )


if __name__ == "__main__":
    main()
