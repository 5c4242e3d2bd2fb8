"""Where Python stood still for something other than the GPU, and for whose code that was."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.lines import line_that_holds, lines_at
from gpuprof_widgets.analyses.python_calls import (
    carried_up,
    function_labels,
    is_user_code,
    library_names,
)
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import python_lanes, run_lane
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.pstats import BUILT_IN, functions_of_frames
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Amounts = npt.NDArray[np.float64]

COLUMNS = ("kind", "owner", "called", "ns", "calls", "line", "row")
IDLE = 0.9
"""Of a thread's time: from here on it only waits, where another one works."""


@dataclass(frozen=True)
class Blocked:
    """Waits of the run for anything but the GPU, and of threads that do nothing else.

    ``table``, the longest first: ``kind`` (see `blocking_names`), ``owner`` (the nearest function
    of the user's code, as ``train.py:12(step)``; "" where there is none), ``called`` (what that
    called for it: ``subprocess.run``), ``ns``, ``calls`` (of ``called``), ``line`` (row of `lines`,
    around most of it, -1), ``row`` (the longest, -1). ``idle_ns``: time of threads that only
    waited.
    """

    table: pd.DataFrame
    idle_ns: int


@remembered
def blocked(record: Record) -> Blocked:
    """From recorded frames exactly; from cProfile's calls by the shares of their callers."""
    if len(python_lanes(record)):
        return _in_frames(record)
    if record.calls is None or not len(record.calls.functions):
        return Blocked(pd.DataFrame(columns=list(COLUMNS)), 0)
    return _in_calls(record, record.calls)


def is_blocking(functions: pd.DataFrame) -> Mask:
    """Which functions do nothing but wait, or access files: their time is none of Python's."""
    known = (own_kinds(functions) != NONE) | (whole_kinds(functions) != NONE)
    return np.asarray(known, bool)


def _in_frames(record: Record) -> Blocked:
    trace = record.trace
    functions, function = functions_of_frames(trace)
    frames = trace.index.in_category("python_function")
    lane = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    frames = frames & np.isin(lane, python_lanes(record))
    parent = trace.slices["parent"].to_numpy()
    waits, ns = _waiting_frames(trace, functions, function, frames)
    main, idle_ns = _threads(record, lane, frames, waits, ns)
    marked = np.append(is_user_code(functions), False)[function] & frames
    aside = np.append(is_aside(functions), False)[function] & frames
    around = np.append(marked, False)[links.nearest_ancestor(parent, marked | aside)]
    outside = links.nearest_ancestor(parent, marked | aside) < 0
    row = np.flatnonzero((waits != NONE) & (lane == main) & (around | outside) & ~aside)
    owner = np.where(around, links.nearest_ancestor(parent, marked), NONE)[row]
    right_below = np.append(marked, True)[parent]
    called = links.itself_or_ancestor(parent, right_below)[row]
    labels = np.array([*function_labels(functions), ""], object)
    file, name = (functions[key].to_numpy(object) for key in ("file", "name"))
    kind = [
        kind_of_call(file[function[via]], name[function[via]], int(waits[one]))
        for via, one in zip(called, row, strict=True)
    ]
    table = pd.DataFrame(
        {
            "kind": np.array(kind, np.int64),
            "owner": labels[np.append(function, NONE)[owner]],
            "called": np.array(library_names(functions), object)[function[called]],
            "ns": ns[row],
            "call": called,
            "calls": 1,
            "line": lines_at(record, main, trace.slices["ts"].to_numpy()[row]),
            "row": row,
        }
    )
    return Blocked(_by_owner(table), idle_ns)


def _waiting_frames(
    trace: Trace, functions: pd.DataFrame, function: Ints, frames: Mask
) -> tuple[Ints, Ints]:
    """Per slice the kind of its wait, -1 for none, and how long it was (ns)."""
    ts, dur = trace.slices["ts"].to_numpy(), trace.slices["dur"].to_numpy()
    parent = trace.slices["parent"].to_numpy()
    whole = np.where(frames, np.append(whole_kinds(functions), NONE)[function], NONE)
    below = links.nearest_ancestor(parent, whole != NONE) >= 0
    own = np.where(frames, np.append(own_kinds(functions), NONE)[function], NONE)
    kind = np.where(below, NONE, np.where(whole != NONE, whole, own))
    ns = np.where(whole != NONE, dur, links.self_times(ts, ts + dur, parent))
    return kind, np.asarray(ns, np.int64)


def _threads(record: Record, lane: Ints, frames: Mask, waits: Ints, ns: Ints) -> tuple[int, int]:
    """The thread whose waits are the run's, and the time of the threads that only wait."""
    trace = record.trace
    top = frames & (trace.slices["parent"].to_numpy() < 0)
    size = int(trace.tracks["lane"].max()) + 1
    whole, waited = np.zeros(size, np.int64), np.zeros(size, np.int64)
    np.add.at(whole, lane[top], trace.slices["dur"].to_numpy()[top])
    np.add.at(waited, lane[waits != NONE], ns[waits != NONE])
    works = waited < IDLE * whole
    main = run_lane(record)
    if main == NONE or not whole[main]:
        main = int((whole - waited).argmax())
    idle = ~works & (np.arange(size) != main)
    return main, int(whole[idle].sum()) if works.any() else 0


def _by_owner(table: pd.DataFrame) -> pd.DataFrame:
    """One row per kind and owner; what was called, the line and the row are those of most of it."""
    table = table.sort_values("ns", ascending=False, kind="stable")
    table = table[table["ns"] > 0]
    found = []
    for (kind, owner), part in table.groupby(["kind", "owner"], sort=False):
        by_called = part.groupby("called", sort=False)["ns"].sum()
        mostly = part[part["called"] == by_called.idxmax()]
        by_line = np.bincount(part["line"] + 1, part["ns"])
        calls = mostly.drop_duplicates("call")["calls"].sum()
        found.append(
            {
                "kind": kind, "owner": owner, "called": by_called.idxmax(),
                "ns": int(part["ns"].sum()), "calls": int(calls),
                "line": int(by_line.argmax()) - 1, "row": int(part["row"].iloc[0]),
            }
        )  # fmt: skip
    return _sorted(found)


def _sorted(found: list[dict[str, object]]) -> pd.DataFrame:
    table = pd.DataFrame(found, columns=list(COLUMNS))
    return table.sort_values("ns", ascending=False, kind="stable", ignore_index=True)


def _in_calls(record: Record, calls: Calls) -> Blocked:
    functions, edges = calls.functions, calls.edges
    users, aside = is_user_code(functions), is_aside(functions)
    waits, is_whole = _waiting_functions(functions)
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    inner = ~(users | aside)[callee] & ~is_whole[caller]
    carried = carried_up(Calls(functions, edges[inner].reset_index(drop=True)), waits)
    direct = edges[users[caller] & ~(users | aside)[callee]]
    called = direct["callee"].to_numpy()
    share = direct["total_ns"].to_numpy() / functions["total_ns"].clip(lower=1).to_numpy()[called]
    amounts = carried[called] * np.minimum(share, 1.0)[:, None]
    of_run = _of_the_run(calls)[direct["caller"].to_numpy()]
    idle = amounts[~of_run].sum() + carried[_is_thread(functions)].sum()
    alone = np.setdiff1d(np.flatnonzero(waits.any(axis=1)), callee)
    uncalled = pd.DataFrame({"caller": NONE, "callee": alone})
    uncalled["calls"] = functions["calls"].to_numpy()[alone]
    parts = [_rows(functions, direct[of_run], amounts[of_run])]
    table = pd.concat([*parts, _rows(functions, uncalled, waits[alone])], ignore_index=True)
    per_step = calls_per_traced_step(record)
    for column in ("ns", "calls"):
        table[column] = (table[column] / per_step).round().astype(np.int64)
    found = _by_owner(table)
    found["line"] = [line_that_holds(record, ns) for ns in found["ns"]]
    return Blocked(found, round(idle / per_step))


def _waiting_functions(functions: pd.DataFrame) -> tuple[Amounts, Mask]:
    """Per function and kind how long it waited itself (ns), and of which all time is counted."""
    own, whole = own_kinds(functions), whole_kinds(functions)
    is_whole = whole != NONE
    kind = np.where(is_whole, whole, own)
    ns = np.where(is_whole, functions["total_ns"], functions["self_ns"])
    waits = np.zeros((len(functions), len(KINDS)))
    there = np.flatnonzero(kind != NONE)
    waits[there, kind[there]] = ns[there]
    return waits, is_whole


def _rows(functions: pd.DataFrame, edges: pd.DataFrame, amounts: Amounts) -> pd.DataFrame:
    """One row per edge (``caller``, ``callee``, ``calls``) and kind, for `_by_owner`."""
    labels = np.array([*function_labels(functions), ""], object)
    file, name = (functions[key].to_numpy(object) for key in ("file", "name"))
    at, kind = np.nonzero(amounts)
    called = edges["callee"].to_numpy()[at]
    said = [
        kind_of_call(file[one], name[one], int(of)) for one, of in zip(called, kind, strict=True)
    ]
    return pd.DataFrame(
        {
            "kind": np.array(said, np.int64),
            "owner": labels[edges["caller"].to_numpy()[at]],
            "called": np.array(library_names(functions), object)[called],
            "ns": amounts[amounts != 0],
            "call": called,
            "calls": edges["calls"].to_numpy()[at],
            "line": NONE,
            "row": NONE,
        }
    )


def _is_thread(functions: pd.DataFrame) -> Mask:
    """Where the threads that Python starts begin: from 3.12 on cProfile counts all of them."""
    file, name = functions["file"].astype(str), functions["name"]
    return np.asarray(file.str.endswith("threading.py") & (name == "_bootstrap"), bool)


def _of_the_run(calls: Calls) -> Mask:
    """Which functions were called from anywhere but in threads that Python started."""
    functions, edges = calls.functions, calls.edges
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    seen = np.bincount(callee, edges["calls"].to_numpy(), len(functions))
    reached = (functions["calls"].to_numpy() > seen) & ~_is_thread(functions)
    if not _is_thread(functions).any():
        return np.ones(len(functions), bool)
    while len(new := np.unique(callee[reached[caller] & ~reached[callee]])):
        reached[new] = True
    return np.asarray(reached, bool)


TIMER, NETWORK, PROCESS, THREAD, INPUT, PIPE, READ, WRITE = range(8)
KINDS = ("timer", "network", "process", "thread", "input", "pipe", "read", "write")
"""What is waited for; the last two are files."""

_METHOD = re.compile(r"<(?:built-in )?method '?(?P<name>\w+)'? of '?(?P<owner>[\w.]+)")
_FUNCTION = re.compile(r"<(?:built-in )?(?:method|function) (?P<name>[\w.]+)")

_BUILT_IN = {
    TIMER: r"(?:time)?\.sleep",
    NETWORK: r"socket\.(?:recv\w*|_?accept|connect|connect_ex|send\w*)"
    r"|_SSLSocket\.(?:read|write|do_handshake|shutdown)"
    r"|(?:_socket)?\.(?:getaddrinfo|gethostby\w+|getnameinfo)",
    PROCESS: r"(?:posix)?\.(?:wait|wait3|wait4|waitid|waitpid)|(?:_winapi)?\.WaitFor\w+"
    r"|SemLock\.(?:acquire|__enter__)",
    THREAD: r"R?[lL]ock\.(?:acquire|acquire_lock|__enter__)|SimpleQueue\.get",
    INPUT: r"(?:builtins)?\.input",
    PIPE: r"(?:select|poll|epoll|devpoll|kqueue)?\.(?:select|poll|control)|(?:posix)?\.read",
    READ: r"(?:Buffered\w+|FileIO|TextIOWrapper|_\w*IOBase)\.(?:read\w*|__next__)"
    r"|(?:io|_io|posix|builtins)?\.open|(?:posix)?\.preadv?"
    r"|\w*\.(?:get_storage_from_record|get_record)"
    r"|(?:_pickle|marshal)?\.load|(?:multiarray|numpy)?\.fromfile|ImagingDecoder\.decode",
    WRITE: r"(?:Buffered\w+|FileIO|TextIOWrapper|_\w*IOBase)\.(?:write\w*|flush|truncate|close"
    r"|__exit__)"
    r"|(?:posix)?\.(?:fsync|fdatasync|sync|sendfile|pwritev?|copy_file_range)"
    r"|\w*\.(?:write_record|write_end_of_file)"
    r"|(?:_pickle|marshal)?\.dump|ndarray\.tofile|ImagingEncoder\.encode(?:_to_file)?",
}
"""By type or module and name; torch's frames leave the module of a function out."""

_LIBRARY = {
    NETWORK: r"(?:^|/)(?:socket\.py (?:readinto|accept|create_connection)"
    r"|ssl\.py (?:read|recv|recv_into|send|sendall|do_handshake|connect))",
    PROCESS: r"(?:^|/)(?:multiprocessing/(?:connection\.py (?:_recv|_recv_bytes|_poll|_send|accept)"
    r"|popen_\w+\.py (?:poll|wait)|synchronize\.py (?:__enter__|acquire))"
    r"|subprocess\.py (?:_try_wait|_wait|_communicate))",
    THREAD: r"(?:^|/)(?:threading\.py (?:wait|join|acquire|_wait_for_tstate_lock)|queue\.py get)",
    PIPE: r"(?:^|/)selectors\.py select",
}
"""Functions of Python's library whose own time is that wait, where samplers see no built-ins."""

_WHOLE = {
    READ: r"(?:^|/)(?:torch/serialization\.py load|numpy/lib/_?npyio(?:_impl)?\.py "
    r"(?:load|loadtxt|genfromtxt)|json/__init__\.py load|pickle\.py _?load"
    r"|PIL/(?:Image\.py open|ImageFile\.py load)|pandas/io/(?:\w+/)*\w+\.py read_\w+"
    r"|safetensors/\w+\.py load_file|torchvision/io/\w+\.py (?:read|decode)_\w+"
    r"|pathlib(?:/\w+)?\.py read_(?:text|bytes))",
    WRITE: r"(?:^|/)(?:torch/serialization\.py save|numpy/lib/_?npyio(?:_impl)?\.py save\w*"
    r"|json/__init__\.py dump|pickle\.py _?dump|PIL/Image\.py save"
    r"|pandas/\w+/(?:\w+/)*\w+\.py to_(?:csv|parquet|pickle|json|feather|hdf)"
    r"|safetensors/\w+\.py save_file|torchvision/io/\w+\.py write_\w+|shutil\.py (?:copy\w*|move)"
    r"|pathlib(?:/\w+)?\.py write_(?:text|bytes))",
}
"""Functions of libraries that do but that, decoding and copying included: all of their time."""

ASIDE = re.compile(
    r"^<frozen importlib|(?:^|/)(?:importlib|asyncio)/|(?:^|/)torch/utils/data/dataloader\.py "
    r"|(?:^|/)(?:ipykernel|zmq|tornado)/"
)
"""Below these a wait has findings of its own (`dataloader`, `suspended`), or is an import."""

_BY_CALLED = {
    NETWORK: r"(?:^|/)(?:socket|ssl|ftplib|smtplib)\.py |(?:^|/)(?:http|urllib|urllib3|requests"
    r"|httpx|aiohttp|socketserver)(?:/|\.py )",
    PROCESS: r"(?:^|/)(?:multiprocessing/|subprocess\.py |concurrent/futures/process\.py )",
    THREAD: r"(?:^|/)(?:threading|queue)\.py |(?:^|/)concurrent/futures/",
}
"""What a wait in a pipe or at a lock is for, by the function of the library that was called."""


def _compiled(patterns: dict[int, str]) -> dict[int, re.Pattern[str]]:
    return {kind: re.compile(rf"(?:{pattern})$") for kind, pattern in patterns.items()}


_OWN = _compiled(_BUILT_IN), _compiled(_LIBRARY)
_ALL = _compiled(_WHOLE)
_CALLED = {kind: re.compile(pattern) for kind, pattern in _BY_CALLED.items()}


def own_kinds(functions: pd.DataFrame) -> Ints:
    """Per function (``file``, ``name``) what its own time waits for; -1 for what does not wait."""
    return np.array([_own_kind(*one) for one in _pairs(functions)], np.int64)


def whole_kinds(functions: pd.DataFrame) -> Ints:
    """Per function the kind of file access that all of its time is; -1 for others."""
    return np.array([_first(_ALL, place(*one)) for one in _pairs(functions)], np.int64)


def kind_of_call(file: str, name: str, kind: int) -> int:
    """The same wait by the function that the user called for it, where that says more."""
    if kind not in (PIPE, THREAD):
        return kind
    called = next((k for k, pattern in _CALLED.items() if pattern.search(place(file, name))), NONE)
    return kind if called == NONE else called


def is_aside(functions: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which functions have their waits told elsewhere."""
    return np.array([bool(ASIDE.search(place(*one))) for one in _pairs(functions)], bool)


def place(file: str, name: str) -> str:
    """``torch/serialization.py load``, with slashes on every system."""
    return f"{file} {name}".replace("\\", "/")


def _pairs(functions: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(functions["file"].astype(str), functions["name"].astype(str), strict=True))


def _own_kind(file: str, name: str) -> int:
    built_in, library = _OWN
    return _first(built_in, _key(name)) if file == BUILT_IN else _first(library, place(file, name))


def _key(name: str) -> str:
    """``socket.recv`` of either spelling of a built-in; ``.sleep`` where no module is known."""
    if found := _METHOD.match(name):
        return f"{found['owner'].rpartition('.')[2]}.{found['name']}"
    if found := _FUNCTION.match(name):
        module, _, own = found["name"].rpartition(".")
        return f"{module.rpartition('.')[2]}.{own}"
    module, _, own = name.rpartition(".")
    return f"{module.rpartition('.')[2]}.{own}" if module else name


def _first(patterns: dict[int, re.Pattern[str]], text: str) -> int:
    """The kind whose pattern holds from the start of a key, or anywhere in a place."""
    search = "match" if " " not in text else "search"
    return next((kind for kind, one in patterns.items() if getattr(one, search)(text)), NONE)
