"""What would be saved if an op or a kernel took less time, everything else being as it was."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.critical_path import DELAYS, ON_GPU, critical_path, graph_of
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.path_range import Region, path_range
from gpuprof_widgets.analyses.path_replay import Changes, replayed
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.links import path_sum
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

COLUMNS = (
    *("name", "what", "scale", "calls", "time_ns", "path_ns"),
    *("span_ns", "new_span_ns", "saved_ns", "saved_share"),
)
LARGEST_SCALE = 1_000
"""A trace of days still has its times in 64 bits then."""
CANDIDATES = 8
"""Names of each sort that `what_ifs` tries: more would rarely save anything."""


def what_if(
    record: Record,
    name: str,
    *,
    scale: float = 0.0,
    step: int | None = None,
    region: Region = None,
) -> pd.DataFrame:
    """How long the run would take if what is called ``name`` took ``scale`` times as long: one row.

    Columns: ``name``, ``what`` ("op", or "function" of Python, with all that runs in it and all
    GPU work launched in it; or "kernel", GPU work of that name alone), ``scale``, ``calls``,
    ``time_ns`` (its CPU and GPU time in the range), ``path_ns`` (of that, on the critical path),
    ``span_ns`` (of the range, as recorded), ``new_span_ns``, ``saved_ns``, ``saved_share`` (of the
    span).

    The graph of `critical_path` is gone through anew, forwards, with the changed durations:

    - a thread's own time (of its ops, calls, Python) lasts as long as recorded, times the scale
      where it belongs to what is changed; time in which it waited lasts until what it waits for;
    - a GPU slice begins when its launch, all that had ended before it on its stream and all events
      it waits for allow it: the one that bound it with the delay that was recorded, the others with
      the usual delay of their kind in this trace (a median), or the recorded one if that was
      shorter; one that overlaps the slice that it follows begins as far into that as recorded;
    - the delay between the end of GPU work and the return of the call that waits for it stays.

    So a scale of 1 gives exactly the recorded span, and a larger scale never a shorter one. What a
    faster op would change beyond that (a launch queue that was full, clocks, cache, contention of
    streams for the GPU) is not modelled. The range is as in `critical_path`.
    """
    if not 0 <= scale <= LARGEST_SCALE:
        raise OptionError(f"a scale is 0 (no time at all) to {LARGEST_SCALE:,}, not {scale}")
    t0, t1 = path_range(record, step, region)
    if not _Named(record.trace, [name]).is_any.all():
        raise OptionError(_unknown(record.trace, name))
    path = critical_path(record, region=(t0, t1))
    if not len(path) and t1 > t0:
        return lacking(COLUMNS, what_is_lacking(path))
    return _table(record, path, (t0, t1), [name], scale)


def what_ifs(record: Record, *, step: int | None = None, region: Region = None) -> pd.DataFrame:
    """What each of the likeliest ops and kernels would save if it cost nothing, the most first.

    Columns and rules as in `what_if`: ``name``, ``what``, ``scale`` (0), ``calls``, ``time_ns``,
    ``path_ns``, ``span_ns``, ``new_span_ns``, ``saved_ns``, ``saved_share``. Tried
    are the eight ops, the eight ops called by Python and the eight kernels or copies that take most
    of the critical path.
    """
    t0, t1 = path_range(record, step, region)
    if (t0, t1) == (record.trace.start_ns, record.trace.end_ns):
        return _of_the_run(record)
    return _what_ifs(record, t0, t1)


@remembered
def _of_the_run(record: Record) -> pd.DataFrame:
    return _what_ifs(record, record.trace.start_ns, record.trace.end_ns)


def _what_ifs(record: Record, t0: int, t1: int) -> pd.DataFrame:
    path = critical_path(record, region=(t0, t1))
    if not len(path):
        return lacking(COLUMNS, what_is_lacking(path))
    names = _candidates(record.trace, path)
    if not names:
        return lacking(COLUMNS, "no op and no kernel is on the critical path")
    table = _table(record, path, (t0, t1), names, 0.0)
    return table.sort_values(["saved_ns", "path_ns"], ascending=False, kind="stable").reset_index(
        drop=True
    )


def _candidates(trace: Trace, path: pd.DataFrame) -> list[str]:
    """Names by their time on the path: of innermost ops, of outermost ops, of GPU work."""
    op, row = path["op"].to_numpy(), path["row"].to_numpy()
    around = np.append(trace.index.outermost_op, NONE)
    gpu = np.append(trace.index.is_gpu, False)[row] & path["kind"].isin(ON_GPU)
    chosen: list[str] = []
    for rows in (op, around[op], np.where(gpu, row, NONE)):
        time = np.zeros(len(trace.index.names) + 1, np.int64)
        np.add.at(time, np.append(trace.index.name, NONE)[rows], path["dur_ns"].to_numpy())
        by_name = pd.Series(time[:-1], trace.index.names, dtype=np.int64).drop("", errors="ignore")
        chosen += by_name[by_name > 0].sort_index().nlargest(CANDIDATES).index.tolist()
    return list(dict.fromkeys(chosen))


class _Named:
    """The slices that have one of these names, each name by its place among them.

    ``of``: per slice the place of its name, -1 for any other and where others are meant: those on
    GPUs (``on_gpu``: per name) where any is, else those on threads; ``on_cpu``: any ran there, not
    only Python frames.
    """

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        place = {name: at for at, name in enumerate(names)}
        places = np.array([*(place.get(name, NONE) for name in trace.index.names), NONE])
        of = places[trace.index.name]
        on_cpu, on_python = (trace.index.on_tracks(kind) for kind in ("cpu", "python"))
        self.on_gpu, self.on_cpu, on_threads = (
            np.bincount(of[chosen & (of >= 0)], minlength=len(names)) > 0
            for chosen in (trace.index.is_gpu, on_cpu, on_cpu | on_python)
        )
        meant = np.where(np.append(self.on_gpu, False)[of], trace.index.is_gpu, on_cpu | on_python)
        self.of = np.where(meant, of, NONE)
        self.is_any = self.on_gpu | on_threads

    @property
    def sorts(self) -> npt.NDArray[np.object_]:
        """Of each name whether it is an op, a function or a kernel."""
        return np.select([self.on_gpu, self.on_cpu], ["kernel", "op"], "function").astype(object)


def _unknown(trace: Trace, name: str) -> str:
    known = trace.index.names
    # The name of a recorded frame begins with its file: a function is in it, not near it.
    near = get_close_matches(name, known, 1) or [one for one in known if name and name in one]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"no op, kernel or Python function of this trace is called {name!r}{hint}; "
        "what_ifs() names those that would save most"
    )


def _changes(trace: Trace, named: _Named, scale: float) -> Changes:
    """What changes with each name: kernels alone, ops with all in them and all GPU work of theirs.

    An op outside of a window may own what is in it.
    """
    gpu, count = trace.index.gpu, len(named.is_any)
    bits = np.where(named.of >= 0, np.int64(1) << np.maximum(named.of, 0), 0)  # a bit per change
    changed = path_sum(np.where(trace.index.is_gpu, 0, bits), trace.index.parent, np.bitwise_or)
    changed[gpu] = bits[gpu] | np.append(changed, 0)[trace.index.launcher[gpu]]
    part, distinct = pd.factorize(np.append(changed, 0))
    scaled = distinct >> np.arange(count)[:, None] & 1
    return Changes(part, scaled.astype(bool), scale)


def _table(
    record: Record, path: pd.DataFrame, span: tuple[int, int], names: Sequence[str], scale: float
) -> pd.DataFrame:
    trace, graph, span_ns = record.trace, graph_of(record, *span), span[1] - span[0]
    named = _Named(trace, names)
    changes = _changes(trace, named, scale)
    threads, work = graph.threads, graph.work
    time = np.zeros(changes.scaled.shape[1], np.int64)
    on_path = np.zeros_like(time)
    own = ~graph.waiting * (threads.end - threads.start)
    np.add.at(time, changes.part[threads.row], own)
    np.add.at(time, changes.part[work.row], work.end - work.start)
    spent = ~path["kind"].isin(DELAYS).to_numpy(bool)
    rows, dur = (path[name].to_numpy(np.int64) for name in ("row", "dur_ns"))
    np.add.at(on_path, changes.part[rows], dur * spent)
    new = replayed(graph, changes)
    counted = named.of[(named.of >= 0) & (trace.index.column("count") > 0)]
    return pd.DataFrame(
        {
            "name": pd.Series(names, dtype=object),
            "what": pd.Series(named.sorts, dtype=object),
            "scale": float(scale),
            "calls": np.bincount(counted, minlength=len(names)),
            "time_ns": changes.scaled @ time,
            "path_ns": changes.scaled @ on_path,
            "span_ns": span_ns,
            "new_span_ns": new,
            "saved_ns": span_ns - new,
            "saved_share": (span_ns - new) / max(span_ns, 1),
        }
    )[list(COLUMNS)]
