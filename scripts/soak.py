"""Profile many cells in one kernel, with interrupts in between, and say what grew meanwhile.

The figures go into docs/reliability.md; the exit code is 1 where something was left behind.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kernels import Kernel, Outcome

SETUP = """
%load_ext gpuprof_widgets
%xmode Minimal
import gc, os, signal, tempfile, threading, torch
from torch.utils.data import DataLoader
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters())
batches = DataLoader(list(torch.randn(64, 64)), batch_size=8)
def measured():
    gc.collect()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "objects": len(gc.get_objects()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "temporary": sum(n.startswith("gpuprof") for n in os.listdir(tempfile.gettempdir())),
    }
"""
"""IPython's longer tracebacks keep the syntax tree of every file in them, profiled or not.

The first one through torch's modules was seen to add 50,000 objects that are no concern of ours.
"""

OPTIONS = ("", "--stack", "--memory --shapes", "--steps 3 --warmup 1", "--python off", "-q")
CELL = """%%gpuprofile {options}
for batch in batches:
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
{number}"""
INTERRUPTED = """%%gpuprofile {options}
timer = threading.Timer({after_s}, os.kill, (os.getpid(), signal.SIGINT))
timer.start()
while timer.is_alive():
    model(batch)
{number}"""
SMALL = "%%gpuprofile -q\ntorch.ones(3).sum().item()"
"""Runs before every look, so that the last profile, which stays, is always the same."""

WARM = 20
"""Cells after which everything that is loaded or remembered once is there."""

MIB = 40
OBJECTS = 2_000
"""How much more at the end is still no growth.

IPython's history takes 4 objects of every cell. A recorder that stays takes 230 or more: those of
the 14 cells with steps, which 100 have, would be beyond it.
"""


def main() -> int:
    """Run the cells, print a line now and then, and compare the end with the state when warm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="measure after that many cells")
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(None, Path(folder))
        try:
            warm, last = soak(kernel, given.cells, given.every, random.Random(given.seed))
        finally:
            kernel.stop()
    grown = growth(warm, last)
    print(f"grown: {', '.join(grown) or 'nothing'}")
    return 1 if grown else 0


def soak(
    kernel: Kernel, cells: int, every: int, chance: random.Random
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was measured when warm, and in the end."""
    check(kernel.run(SETUP), None)
    warm: dict[str, Any] = {}
    began = time.monotonic()
    print("cells  seconds  RSS (MiB)  Python objects  threads  files  temporary files")
    for number in range(1, WARM + cells + 1):
        options = OPTIONS[number % len(OPTIONS)]
        if number % 5:
            check(kernel.run(CELL.format(options=options, number=number)), str(number))
        else:
            interrupt(kernel, options.replace("--steps 3 --warmup 1", ""), number, chance)
        if number == WARM or number % every == 0:
            check(kernel.run(SMALL), "3.0")
            found = kernel.value("measured()")
            warm = warm or (found if number >= WARM else {})
            print(line(number, time.monotonic() - began, found), flush=True)
    return warm, found


def interrupt(kernel: Kernel, options: str, number: int, chance: random.Random) -> None:
    """Press Ctrl-C at a random moment around the end of a cell: in it, as it stops, or later."""
    after_s = round(chance.uniform(0.0, 0.05), 4)
    cell = INTERRUPTED.format(options=options, after_s=after_s, number=number)
    outcome = kernel.run(cell)
    if outcome.status != "ok" and outcome.errors[0]["ename"] != "KeyboardInterrupt":
        raise SystemExit(f"cell {number}: {outcome.errors[0]}")


def check(outcome: Outcome, result: str | None) -> None:
    """The cell must have ended as without us."""
    if (outcome.status, outcome.result) != ("ok", result):
        raise SystemExit(f"{outcome.status}: {outcome.errors} {outcome.stderr}")


def line(number: int, seconds: float, found: dict[str, Any]) -> str:
    return (
        f"{number:5}  {seconds:7.0f}  {found['rss_mib']:9.0f}  {found['objects']:14,}  "
        f"{found['threads']:7}  {found['files']:5}  {found['temporary']:15}"
    )


def growth(warm: dict[str, Any], last: dict[str, Any]) -> list[str]:
    """What there is more of than the last profile explains."""
    allowed = {"rss_mib": MIB, "objects": OBJECTS}
    return [
        f"{name} from {warm[name]:,.0f} to {last[name]:,.0f}"
        for name in warm
        if last[name] > warm[name] + allowed.get(name, 0)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
