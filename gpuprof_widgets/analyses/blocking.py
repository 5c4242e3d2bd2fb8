"""Blocking calls: where Python waited for anything but the GPU, and the user's code that waited.

`blocked` finds the waits in recorded Python frames or, without frames, in cProfile's calls. Which
functions wait, and for what (one of `KINDS`), follows from their names; the tables of names are
below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
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
from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.pstats import BUILT_IN, functions_of_frames
from gpuprof_widgets.trace.schema import NONE

COLUMNS = ("kind", "owner", "called", "ns", "calls", "line", "row")
IDLE = 0.9
"""A thread that waits for this share of its time does nothing else, if another thread works."""


@dataclass(frozen=True)
class Blocked:
    """The run's waits for anything but the GPU, and the time of threads that only waited.

    ``table``, the longest first: ``kind`` (position in `KINDS`), ``owner`` (the nearest function of
    the user's code, as ``train.py:12(step)``; "" without), ``called`` (what that function called:
    ``subprocess.run``), ``ns``, ``calls`` (of ``called``), ``line`` (row of `lines` around most of
    the time, -1), ``row`` (the longest slice, -1). ``idle_ns``: time of threads that only waited.
    """

    table: pd.DataFrame
    idle_ns: int


@remembered
def blocked(record: Record) -> Blocked:
    """Return the waits: exactly from recorded frames, else by callers' shares from cProfile."""
    if len(python_lanes(record)):
        return _in_frames(record)
    if record.calls is None or not len(record.calls.functions):
        return Blocked(pd.DataFrame(columns=list(COLUMNS)), 0)
    return _in_calls(record, record.calls)


def is_blocking(functions: pd.DataFrame) -> Mask:
    """Return which functions only wait or access files, so that their time is not Python's."""
    return np.asarray((self_kinds(functions) != NONE) | (total_kinds(functions) != NONE), bool)


def _in_frames(record: Record) -> Blocked:
    trace, parent = record.trace, record.trace.index.parent
    lane = trace.tracks["lane"].to_numpy()[trace.index.track]
    functions, function = functions_of_frames(trace)
    function = np.where(np.isin(lane, python_lanes(record)), function, NONE)
    frames = function >= 0
    total_kind = take(total_kinds(functions), function)
    self_kind = take(self_kinds(functions), function)
    self_ns = links.self_times(trace.index.ts, trace.index.end, parent)
    ns = np.where(total_kind != NONE, trace.index.dur, self_ns)
    within = links.nearest_ancestor(parent, total_kind != NONE) >= 0
    waits = np.where(within, NONE, np.where(total_kind != NONE, total_kind, self_kind))
    main, idle_ns = _threads(record, lane, frames, waits, ns)
    user_code = take(is_user_code(functions), function, False)
    excluded = take(is_excluded(functions), function, False)
    nearest = links.nearest_ancestor(parent, user_code | excluded)
    in_user_code, outside = take(user_code, nearest, False), nearest < 0
    row = np.flatnonzero((waits != NONE) & (lane == main) & (in_user_code | outside) & ~excluded)
    owner = np.where(in_user_code, links.nearest_ancestor(parent, user_code), NONE)[row]
    called_by_user = take(user_code, parent, True)
    called = links.itself_or_ancestor(parent, called_by_user)[row]
    rows = _rows(functions, take(function, owner), function[called], waits[row])
    line = lines_at(record, main, trace.index.ts[row])
    table = rows.assign(ns=ns[row], call=called, calls=1, line=line, row=row)
    return Blocked(_by_owner(table), idle_ns)


def _threads(record: Record, lane: Ints, frames: Mask, waits: Ints, ns: Ints) -> tuple[int, int]:
    """Return the thread whose waits are the run's, and the time of the threads that only wait."""
    trace = record.trace
    top = frames & (trace.index.parent < 0)
    lanes = int(trace.tracks["lane"].max()) + 1
    total = group_sums(lane[top], trace.index.dur[top], lanes)
    waited = group_sums(lane[waits != NONE], ns[waits != NONE], lanes)
    works = waited < IDLE * total
    main = run_lane(record)
    if main == NONE or not total[main]:
        main = int((total - waited).argmax())
    idle = ~works & (np.arange(lanes) != main)
    return main, int(total[idle].sum()) if works.any() else 0


def _by_owner(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per kind and owner; ``called``, line and row are those of most of the time."""
    table = table.sort_values("ns", ascending=False, kind="stable")
    table = table[table["ns"] > 0]
    rows = []
    for (kind, owner), part in table.groupby(["kind", "owner"], sort=False):
        by_called = part.groupby("called", sort=False)["ns"].sum()
        mostly = part[part["called"] == by_called.idxmax()]
        by_line = np.bincount(part["line"] + 1, part["ns"])
        calls = mostly.drop_duplicates("call")["calls"].sum()
        rows.append(
            {
                "kind": kind, "owner": owner, "called": by_called.idxmax(),
                "ns": int(part["ns"].sum()), "calls": int(calls),
                "line": int(by_line.argmax()) - 1, "row": int(part["row"].iloc[0]),
            }
        )  # fmt: skip
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values("ns", ascending=False, kind="stable", ignore_index=True)


def _in_calls(record: Record, calls: Calls) -> Blocked:
    functions, edges = calls.functions, calls.edges
    user_code, excluded = is_user_code(functions), is_excluded(functions)
    total_kind = total_kinds(functions)
    counts_in_total = total_kind != NONE
    kind = np.where(counts_in_total, total_kind, self_kinds(functions))
    ns = np.where(counts_in_total, functions["total_ns"], functions["self_ns"])
    waits = np.zeros((len(functions), len(KINDS)))  # per function and kind, how long it waited
    waiting = np.flatnonzero(kind != NONE)
    waits[waiting, kind[waiting]] = ns[waiting]
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    inner = ~(user_code | excluded)[callee] & ~counts_in_total[caller]
    carried = carried_up(Calls(functions, edges[inner].reset_index(drop=True)), waits)
    direct = edges[user_code[caller] & ~(user_code | excluded)[callee]]
    called = direct["callee"].to_numpy()
    share = direct["total_ns"].to_numpy() / functions["total_ns"].clip(lower=1).to_numpy()[called]
    amounts = carried[called] * np.minimum(share, 1.0)[:, None]
    of_run = _is_of_run(calls)[direct["caller"].to_numpy()]
    idle = amounts[~of_run].sum() + carried[_is_thread_start(functions)].sum()
    alone = np.setdiff1d(np.flatnonzero(waits.any(axis=1)), callee)
    uncalled = {"caller": NONE, "callee": alone, "calls": functions["calls"].to_numpy()[alone]}
    edges = pd.concat([direct[[*uncalled]][of_run], pd.DataFrame(uncalled)])
    amounts = np.concatenate([amounts[of_run], waits[alone]])
    at, kind = np.nonzero(amounts)
    owner, called, count = edges.to_numpy()[at].T
    per_step = calls_per_traced_step(record)
    table = _rows(functions, owner, called, kind).assign(
        ns=np.rint(amounts[at, kind] / per_step).astype(np.int64),
        call=called,
        calls=np.rint(count / per_step).astype(np.int64),
        line=NONE,
        row=NONE,
    )
    by_owner = _by_owner(table)
    by_owner["line"] = [line_that_holds(record, ns) for ns in by_owner["ns"]]
    return Blocked(by_owner, round(idle / per_step))


def _rows(functions: pd.DataFrame, owner: Ints, called: Ints, kind: Ints) -> pd.DataFrame:
    """Return kind, owner and called function of each wait, by their names."""
    labels = np.array([*function_labels(functions), ""], object)
    places = _places(functions)
    kinds = [  # the function that the user called may say more than the one that waited
        _first_match(_PURPOSE, places[at], of) if of in (PIPE, THREAD) else of
        for at, of in zip(called.tolist(), kind.tolist(), strict=True)
    ]
    names = np.array(library_names(functions), object)[called]
    return pd.DataFrame(
        {"kind": np.array(kinds, np.int64), "owner": labels[owner], "called": names}
    )


def _is_thread_start(functions: pd.DataFrame) -> Mask:
    """Return where Python's threads begin: cProfile counts all threads from Python 3.12 on."""
    file, name = functions["file"].astype(str), functions["name"]
    return np.asarray(file.str.endswith("threading.py") & (name == "_bootstrap"), bool)


def _is_of_run(calls: Calls) -> Mask:
    """Return which functions were called outside of the threads that Python started."""
    functions, edges = calls.functions, calls.edges
    thread_start = _is_thread_start(functions)
    if not thread_start.any():
        return np.ones(len(functions), bool)
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    known_calls = np.bincount(callee, edges["calls"].to_numpy(), len(functions))
    reached = (functions["calls"].to_numpy() > known_calls) & ~thread_start
    while len(new := callee[reached[caller] & ~reached[callee]]):
        reached[new] = True
    return reached


TIMER, NETWORK, PROCESS, THREAD, INPUT, PIPE, READ, WRITE = range(8)
KINDS = ("timer", "network", "process", "thread", "input", "pipe", "read", "write")
"""What a function waits for; the last two are files."""

BUILT_IN_METHOD = re.compile(r"<(?:built-in )?method '?(?P<name>\w+)'? of '?(?P<owner>[\w.]+)")
_FUNCTION = re.compile(r"<(?:built-in )?(?:method|function) (?P<name>[\w.]+)")

Patterns = dict[int, re.Pattern[str]]


def _full(patterns: dict[int, str]) -> Patterns:
    return {kind: re.compile(rf"(?:{pattern})$") for kind, pattern in patterns.items()}


_BUILT_IN = _full(
    {
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
)
"""Built-ins by type or module and name; torch's frames leave the module of a function out."""

_LIBRARY = _full(
    {
        NETWORK: r"(?:^|/)(?:socket\.py (?:readinto|accept|create_connection)"
        r"|ssl\.py (?:read|recv|recv_into|send|sendall|do_handshake|connect))",
        PROCESS: r"(?:^|/)(?:multiprocessing/"
        r"(?:connection\.py (?:_recv|_recv_bytes|_poll|_send|accept)|popen_\w+\.py (?:poll|wait)"
        r"|synchronize\.py (?:__enter__|acquire))"
        r"|subprocess\.py (?:_try_wait|_wait|_communicate))",
        THREAD: r"(?:^|/)(?:queue\.py get"
        r"|threading\.py (?:wait|join|acquire|_wait_for_tstate_lock))",
        PIPE: r"(?:^|/)selectors\.py select",
    }
)
"""Functions of Python's library whose self time is a wait in samples, which show no built-ins."""

_FILE_ACCESS = _full(
    {
        READ: r"(?:^|/)(?:torch/serialization\.py load|numpy/lib/_?npyio(?:_impl)?\.py "
        r"(?:load|loadtxt|genfromtxt)|json/__init__\.py load|pickle\.py _?load"
        r"|PIL/(?:Image\.py open|ImageFile\.py load)|pandas/io/(?:\w+/)*\w+\.py read_\w+"
        r"|safetensors/\w+\.py load_file|torchvision/io/\w+\.py (?:read|decode)_\w+"
        r"|pathlib(?:/\w+)?\.py read_(?:text|bytes))",
        WRITE: r"(?:^|/)(?:torch/serialization\.py save|numpy/lib/_?npyio(?:_impl)?\.py save\w*"
        r"|json/__init__\.py dump|pickle\.py _?dump|PIL/Image\.py save"
        r"|pandas/\w+/(?:\w+/)*\w+\.py to_(?:csv|parquet|pickle|json|feather|hdf)"
        r"|safetensors/\w+\.py save_file|torchvision/io/\w+\.py write_\w+"
        r"|shutil\.py (?:copy\w*|move)|pathlib(?:/\w+)?\.py write_(?:text|bytes))",
    }
)
"""Functions of libraries whose total time is file access, decoding and copying included."""

EXCLUDED = re.compile(
    r"^<frozen importlib|(?:^|/)(?:importlib|asyncio)/|(?:^|/)torch/utils/data/dataloader\.py "
    r"|(?:^|/)(?:ipykernel|zmq|tornado)/"
)
"""Other findings (`dataloader`, `suspended`) report waits within these; or it is an import."""

_PURPOSE = {
    NETWORK: re.compile(
        r"(?:^|/)(?:socket|ssl|ftplib|smtplib)\.py |(?:^|/)(?:http|urllib|urllib3|requests"
        r"|httpx|aiohttp|socketserver)(?:/|\.py )"
    ),
    PROCESS: re.compile(
        r"(?:^|/)(?:multiprocessing/|subprocess\.py |concurrent/futures/process\.py )"
    ),
    THREAD: re.compile(r"(?:^|/)(?:threading|queue)\.py |(?:^|/)concurrent/futures/"),
}
"""The purpose of a wait in a pipe or at a lock, by the library function that the user called."""


def self_kinds(functions: pd.DataFrame) -> Ints:
    """Return per function (``file``, ``name``) what its self time waits for; -1 for no wait."""
    places, built_in = _places(functions), functions["file"] == BUILT_IN
    kinds = [
        _built_in_kind(str(name)) if is_built_in else _first_match(_LIBRARY, place)
        for name, place, is_built_in in zip(functions["name"], places, built_in, strict=True)
    ]
    return np.array(kinds, np.int64)


def total_kinds(functions: pd.DataFrame) -> Ints:
    """Return per function the kind of file access that its total time is; -1 for none."""
    return np.array([_first_match(_FILE_ACCESS, place) for place in _places(functions)], np.int64)


def is_excluded(functions: pd.DataFrame) -> Mask:
    """Return which functions have waits that other findings report."""
    return np.array([EXCLUDED.search(place) is not None for place in _places(functions)], bool)


def _places(functions: pd.DataFrame) -> list[str]:
    """Return ``torch/serialization.py load`` of each function, with slashes on every system."""
    pairs = zip(functions["file"], functions["name"], strict=True)
    return [f"{file} {name}".replace("\\", "/") for file, name in pairs]


def _built_in_kind(name: str) -> int:
    # ``socket.recv`` for any spelling of a built-in; ``.sleep`` without a known module
    if match := BUILT_IN_METHOD.match(name):
        key = f"{match['owner'].rpartition('.')[2]}.{match['name']}"
    else:
        match = _FUNCTION.match(name)
        module, _, function = (match["name"] if match else name).rpartition(".")
        key = f"{module.rpartition('.')[2]}.{function}" if match or module else name
    search = "match" if " " not in key else "search"
    return next((kind for kind, p in _BUILT_IN.items() if getattr(p, search)(key)), NONE)


def _first_match(patterns: Patterns, text: str, default: int = NONE) -> int:
    return next((kind for kind, pattern in patterns.items() if pattern.search(text)), default)
