"""What each Python function cost, and how much of that it waited for the GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.lacking import CALLS, says_if_empty, unless_recorded
from gpuprof_widgets.analyses.op_rows import has_ops
from gpuprof_widgets.analyses.python_wait_estimate import estimated_waits
from gpuprof_widgets.analyses.python_waits import FunctionWaits, recorded_waits
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.thread_waits import REASONS, python_lanes, thread_waits
from gpuprof_widgets.analyses.whole_run import NO_TIMES, of_the_whole_run
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.python_frames import calls_from_slices
from gpuprof_widgets.trace.schema import NONE, SAMPLED

COLUMNS = (
    *("file", "line", "name", "calls", "primitive_calls"),
    *("self_ns", "self_waiting_ns", "self_python_ns"),
    *("total_ns", "total_waiting_ns", "total_python_ns"),
    *REASONS,
    "exact",
)


@says_if_empty(unless_recorded(CALLS))
@remembered
def python_time(record: Record) -> pd.DataFrame:
    """One row per Python function, the largest self time first; empty without Python calls.

    Columns (times in ns):

    - ``file``, ``line``, ``name``, ``calls``, ``primitive_calls`` (not recursive): where samplers
      (pyinstrument, py-spy) recorded, no calls but how often samples in a row found the function;
    - ``self_ns`` (cProfile's tottime) = ``self_waiting_ns`` (stood still in a call that waits for
      the GPU) + ``self_python_ns`` (Python's own, and that of the ops it called);
    - ``total_ns`` (cProfile's cumtime) = ``total_waiting_ns`` + ``total_python_ns``;
    - ``waited_for`` (the kernel or copy after which most of its waiting was over),
      ``launched_by`` (the op), ``launched_at`` (the cell line, as "Cell [3]:12"); "" where not
      known;
    - ``exact``: the waiting is known from recorded frames (``--stack``), or there was none.
      Samples are never exact. Otherwise it is estimated: the waits of ops are given to the
      built-in functions that run them, and passed on to the callers by their shares of time.

    Where frames were recorded the table follows the window; what cProfile counted stays whole
    (``attrs["whole"]`` says why).
    """
    framed = len(python_lanes(record)) > 0
    label = str(record.metadata.get("label"))
    calls = calls_from_slices(record.trace, label) if framed else record.calls
    if calls is None or not len(calls.functions):
        return pd.DataFrame(columns=list(COLUMNS))
    waited = thread_waits(record)
    if framed:
        waits = recorded_waits(calls.functions, waited, record)
    else:
        waits = estimated_waits(calls, waited, record)
    known = framed or (len(record.trace) > 0 and not len(waited.table))
    is_sampled = bool(record.metadata.get(SAMPLED))
    exact = known and not is_sampled
    table = _table(calls, waits, waited.reasons).assign(exact=exact)[list(COLUMNS)]
    table = table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    if is_sampled:
        table.attrs[SAMPLED] = True
    return table if framed else of_the_whole_run(table, NO_TIMES)


def has_python_alone(record: Record) -> bool:
    """Whether there are Python functions, and neither an op nor GPU work."""
    return not has_ops(record.trace) and len(python_time(record)) > 0


def _table(calls: Calls, waits: FunctionWaits, reasons: pd.DataFrame) -> pd.DataFrame:
    functions = calls.functions
    own = np.clip(waits.self_ns, 0, functions["self_ns"].to_numpy())
    total = np.clip(waits.total_ns, 0, functions["total_ns"].to_numpy())
    texts = {name: np.append(reasons[name].to_numpy(object), "") for name in REASONS}
    reason = np.where(total > 0, waits.reason, NONE)
    return functions.assign(
        self_waiting_ns=own,
        self_python_ns=functions["self_ns"] - own,
        total_waiting_ns=total,
        total_python_ns=functions["total_ns"] - total,
        **{name: column[reason] for name, column in texts.items()},
    )
