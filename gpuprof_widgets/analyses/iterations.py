"""The iterations of a bounded loop, recorded or not, as the recorder timed them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.lacking import LOOP, says_if_empty, unless_recorded
from gpuprof_widgets.analyses.whole_run import of_the_whole_run
from gpuprof_widgets.trace.model import Record

UNRECORDED = ("wait", "warmup")


@says_if_empty(unless_recorded(LOOP))
def iterations(record: Record) -> pd.DataFrame:
    """One row per iteration of the loop that was bounded; none where no loop was.

    Columns: ``step`` (counted from 0, the number of its ``ProfilerStep#``), ``kind`` ("wait",
    "warmup", "recorded", or "cprofile" where only cProfile still ran), ``dur_ns`` (from the fetch
    of its item to the end of its body, with its part of the waits for the device around the
    window), ``complete`` (False where the loop was left in the middle of it). A window does not
    cut it (``attrs["whole"]`` says why).
    """
    noted: dict[str, Any] = record.metadata.get("steps") or {}
    rows: list[dict[str, Any]] = noted.get("iterations") or []
    table = pd.DataFrame(
        {
            "step": np.array([row["step"] for row in rows], dtype=np.int64),
            "kind": pd.Series([row["kind"] for row in rows], dtype=object),
            "dur_ns": np.array([row["dur_ns"] for row in rows], dtype=np.int64),
            "complete": np.array([not row.get("left") for row in rows], dtype=bool),
        }
    )
    return of_the_whole_run(table, "of iterations the recorder notes how long they took, not when")


def usual_steps(record: Record) -> tuple[pd.Series, pd.Series]:
    """Durations (ns) of the unrecorded and of the recorded iterations that can be compared.

    The loop's first iteration pays what is paid once, and one that was left is not whole.
    """
    table = iterations(record)
    table = table[table["complete"] & (table["step"] > 0)]
    plain = table["kind"].isin(UNRECORDED)
    return table.loc[plain, "dur_ns"], table.loc[table["kind"] == "recorded", "dur_ns"]


def calls_per_traced_step(record: Record) -> float:
    """How many iterations cProfile had for each one in the trace: 1, unless it went on longer.

    What the trace holds is to be multiplied by it before it is compared with Python calls.
    """
    kinds = iterations(record)["kind"]
    traced = int((kinds == "recorded").sum())
    return 1.0 + int((kinds == "cprofile").sum()) / traced if traced else 1.0
