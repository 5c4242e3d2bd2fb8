"""cProfile's tables: what each Python function cost, who called it, and whose code it is.

`carried_up` treats callers and callees as a graph: it estimates what amounts per function mean for
the functions above. `is_user_code` tells the user's functions from those of Python and libraries.
"""

from __future__ import annotations

import re
import sys

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.reasons import (
    CALLS,
    NO_TIMES,
    empty_table,
    of_the_whole_run,
    says_if_empty,
)
from gpuprof_widgets.analyses.waits import python_lanes
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.trace.arrays import Floats, Mask
from gpuprof_widgets.trace.libraries import PACKAGES, is_library
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.pstats import BUILT_IN, calls_from_slices
from gpuprof_widgets.trace.schema import SAMPLED

COLUMNS = (
    *("file", "line", "name", "calls", "primitive_calls"),
    *("self_ns", "self_per_call_ns", "total_ns", "total_per_call_ns"),
)


@says_if_empty(CALLS)
def python_calls(record: Record) -> pd.DataFrame:
    """One row per Python function, the largest self time first; empty without cProfile.

    A window does not cut it (``attrs["whole"]`` says why).

    Columns:

    - ``file``, ``line``, ``name``: the function.
    - ``calls``, ``primitive_calls``: all calls, and those that are not recursive.
    - ``self_ns``: cProfile's tottime.
    - ``self_per_call_ns``: ``self_ns`` / ``calls``.
    - ``total_ns``: cProfile's cumtime.
    - ``total_per_call_ns``: ``total_ns`` / ``primitive_calls``.

    Source: Python's cProfile and pstats.
    """
    if record.calls is None:
        if not len(python_lanes(record)):
            return empty_table(COLUMNS, CALLS)
        why = "the record has no calls of cProfile: `python_time` counts those of its frames"
        if record.metadata.get(SAMPLED):
            why = "samples count no calls: `python_time` has the functions and their times"
        return empty_table(COLUMNS, why)
    table = record.calls.functions
    table = table.assign(
        self_per_call_ns=table["self_ns"] / table["calls"].clip(lower=1),
        total_per_call_ns=table["total_ns"] / table["primitive_calls"].clip(lower=1),
    )[list(COLUMNS)]
    table = table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    return of_the_whole_run(table, NO_TIMES)


def function_labels(functions: pd.DataFrame) -> list[str]:
    """Return ``train.py:12(step)``; of built-in functions (cProfile's file ``~``) the name only."""
    places = zip(functions["file"], functions["line"], functions["name"], strict=True)
    return [
        str(name)
        if file == BUILT_IN
        else f"{str(file).replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}({name})"
        for file, line, name in places
    ]


def recorded_calls(record: Record) -> Calls:
    """Return the calls of cProfile, else those of recorded frames; else raise RecordingError.

    A sampler's frames are no calls, because samples do not tell how often a function was called.
    """
    if record.calls is not None:
        return record.calls
    if record.metadata.get(SAMPLED):
        raise RecordingError(
            "this profile was sampled, so that its calls are not known, and files of cProfile "
            "count calls; export stacks with their times (.speedscope.json, .collapsed)"
        )
    if len(python_lanes(record)):
        return calls_from_slices(record.trace, str(record.metadata.get("label")))
    metadata = record.metadata
    notes = [str(note) for note in metadata.get("notes", ()) if "Python calls" in str(note)]
    options = metadata.get("options") or {}
    source = f" ({metadata['source']})" if metadata.get("source") else ""
    why = f"the trace{source} holds neither cProfile's nor Python frames; record with either"
    if notes:
        why = notes[0].removeprefix("no Python calls: ")
    # Older profiles have a flag in its place.
    elif options.get("python") == "off" or options.get("cprofile") is False:
        why = (
            "it was recorded without Python functions (--python off); record it again with "
            "--python cprofile"
        )
    raise RecordingError(f"this profile has no Python calls: {why}")


Graph = list[list[int]]


def carried_up(calls: Calls, amounts: Floats) -> Floats:
    """Estimate per function the sum of its own amounts and those of everything below it.

    ``amounts`` has a row per function and any number of columns. Each function passes its amounts
    to its callers by the edges' shares of total time. Functions that call each other in a circle
    count as one; within it, each has its own amounts, or its share of the circle's by total time
    if that is more.
    """
    below = amounts.astype(np.float64)
    total = calls.functions["total_ns"].to_numpy(np.float64)
    graph = _Graph(calls)
    for circle in circles(graph.callees):
        whole = below[circle].sum(axis=0)
        for caller, share in graph.shares(circle):
            below[caller] += share * whole
        if len(circle) > 1:
            part = total[circle] / max(total[circle].max(), 1.0)
            shared = part[:, None] * whole
            larger = shared.sum(axis=1) > below[circle].sum(axis=1)
            below[circle] = np.where(larger[:, None], shared, below[circle])
    return below


class _Graph:
    """The edges of cProfile between different functions, and the calls that have no edge."""

    def __init__(self, calls: Calls) -> None:
        functions, edges = calls.functions, calls.edges
        size = len(functions)
        caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
        inside = np.bincount(callee, edges["calls"].to_numpy(), size)
        self._calls = functions["calls"].to_numpy(np.float64)
        self._from_outside = self._calls - inside
        self._primitive = functions["primitive_calls"].to_numpy(np.float64)
        self._total = functions["total_ns"].to_numpy(np.float64)
        self.callees: Graph = [[] for _ in range(size)]
        self._callers: list[list[tuple[int, float, int]]] = [[] for _ in range(size)]
        times, counts = edges["total_ns"].tolist(), edges["calls"].tolist()
        ends = zip(caller.tolist(), callee.tolist(), times, counts, strict=True)
        for above, below, time, count in ends:
            if above != below:
                self.callees[above].append(below)
                self._callers[below].append((above, float(time), count))

    def shares(self, circle: list[int]) -> list[tuple[int, float]]:
        """Return the callers from outside of the circle, and the share of each."""
        edges = [edge for function in circle for edge in self._callers[function]]
        entering = [edge for edge in edges if edge[0] not in set(circle)]
        time = sum(edge[1] for edge in entering)
        whole = time + self._outside_ns(circle, time)
        if whole > 0:
            return [(caller, ns / whole) for caller, ns, _ in entering]
        count = sum(edge[2] for edge in entering)
        return [(caller, number / count) for caller, _, number in entering if count]

    def _outside_ns(self, circle: list[int], entered_ns: float) -> float:
        """Return the time of calls that have no edge, because their caller is not in the table.

        That is the total time less that of the edges. Edges of recursive functions overlap; there
        it is the total by the share of such calls.
        """
        outside = [function for function in circle if self._from_outside[function] > 0]
        if len(circle) == 1 and self._calls[circle[0]] == self._primitive[circle[0]]:
            return sum(max(float(self._total[f]) - entered_ns, 0.0) for f in outside)
        shares = [self._from_outside[f] / max(self._primitive[f], 1) for f in outside]
        return float(
            sum(self._total[f] * min(s, 1.0) for f, s in zip(outside, shares, strict=True))
        )


def circles(callees: Graph) -> Graph:
    """Group functions that call each other in a circle; callees come before their callers.

    Most groups are one function. (Strongly connected components, after Kosaraju.)
    """
    callers: Graph = [[] for _ in callees]
    for function, called in enumerate(callees):
        for callee in called:
            callers[callee].append(function)
    seen = [False] * len(callees)
    order = [function for root in range(len(callees)) for function in _walk(root, callees, seen)]
    seen = [False] * len(callees)
    return [group for root in reversed(order) if (group := _walk(root, callers, seen))][::-1]


def _walk(root: int, graph: Graph, seen: list[bool]) -> list[int]:
    """Return the unseen functions that can be reached, in post-order."""
    reached: list[int] = []
    path = [] if seen[root] else [(root, iter(graph[root]))]
    seen[root] = True
    while path:
        function, rest = path[-1]
        new = next((other for other in rest if not seen[other]), None)
        if new is None:
            reached.append(function)
            path.pop()
        else:
            seen[new] = True
            path.append((new, iter(graph[new])))
    return reached


OF_MODULES = re.compile(r"(?:^|[/\\])torch[/\\]nn[/\\]modules[/\\]module\.py$")


def calls_modules(functions: pd.DataFrame) -> Mask:
    """Return which rows are torch's functions in which each call of a module runs."""
    are_calls = functions["name"].isin({"_wrapped_call_impl", "_call_impl"})
    return (functions["file"].astype(str).str.contains(OF_MODULES) & are_calls).to_numpy(bool)


LIBRARIES = """
accelerate aiohttp cv2 dask datasets deepspeed diffusers fsspec h5py httpx huggingface_hub ipykernel
IPython jax joblib jupyter_client lightning lightning_fabric matplotlib numpy pandas PIL polars
pyarrow pytorch_lightning pytest _pytest ray requests s3fs safetensors scipy skimage sklearn sympy
tensorflow timm tokenizers torch torchaudio torchdata torchmetrics torchvision tornado tqdm
traitlets transformers triton urllib3 vllm wandb xarray zmq
"""
SHORTENED = frozenset({*sys.stdlib_module_names, *LIBRARIES.split()})
"""Top-level modules of libraries, for files from which torch has cut ``sys.path``."""

_MODULE = re.compile(r"(?P<module>[^/].*?)(?:/__init__)?\.py$")
_PUBLIC = ((r"^torch\.serialization$", "torch"), (r"^numpy\.lib\._?npyio\w*$", "numpy"))
"""Modules of libraries whose functions users know by a shorter name."""


def is_user_code(functions: pd.DataFrame) -> Mask:
    """Return which rows (column ``file``) are of the user's code: scripts, modules and cells."""
    code, files = pd.factorize(functions["file"].astype(str))
    return np.array([_is_users(str(file)) for file in files], bool)[code]


def is_cell(file: str) -> bool:
    """Return whether a function's file is a cell of a notebook, labelled as ``Cell [3]``."""
    return file.startswith("Cell [")


def _is_users(file: str) -> bool:
    if file in (BUILT_IN, "") or is_library(file):
        return False
    parts = file.replace("\\", "/").split("/")
    is_whole_path = parts[0] == "" or ":" in parts[0]
    return is_whole_path or parts[0].removesuffix(".py") not in SHORTENED


def library_names(functions: pd.DataFrame) -> list[str]:
    """Return ``subprocess.run`` or ``torch.load`` for functions of libraries, other names as is."""
    names = []
    for file, name in zip(
        functions["file"].astype(str), functions["name"].astype(str), strict=True
    ):
        match = _MODULE.match(PACKAGES.sub("", file).replace("\\", "/"))
        module = match["module"].replace("/", ".").lstrip(".") if match else ""
        for defined, public in _PUBLIC:
            module = re.sub(defined, public, module)
        names.append(f"{module}.{name}" if match else name)
    return names
