"""Waits for timers, the network, processes, threads and files: whose they are, and where."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch

from gpuprof_widgets.analyses.blocking import KINDS, blocked, self_kinds
from gpuprof_widgets.analyses.findings import FINDINGS, findings
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.python_calls import is_user_code
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.schema import SAMPLED
from tests.cells import recorded
from tests.traces import Row, annotation, calls_of, cell_line, op, python, trace_of

pytestmark = pytest.mark.slow

MS = 1_000_000
SLEEP = "<built-in method time.sleep>"
READ = "<method 'read' of '_io.BufferedReader' objects>"


def calling(builtin: str, waited: int) -> Record:
    """A function that calls this for so many of 1000 ms."""
    calls = calls_of((None, "step", 1, (1000 - waited) * MS), ("step", builtin, 4, waited * MS))
    return trace_of(op("x", ts=0, dur=MS), op("y", ts=999 * MS, dur=MS), calls=calls)


CASES = {
    "blocking_calls": (calling(SLEEP, 100), calling(SLEEP, 99)),
    "file_io": (calling(READ, 50), calling(READ, 49)),
}
"""A trace that fires the rule, and one just below its threshold."""


def said(record: Record, *rules: str) -> list[Finding]:
    return [one for rule in rules for one in FINDINGS[rule](record)]


def only(record: Record, rule: str) -> Finding:
    (finding,) = said(record, rule)
    return finding


SPELLINGS = {
    "timer": [SLEEP, "<built-in function sleep>"],
    "network": [
        "<method 'recv' of '_socket.socket' objects>",
        "<built-in method recv_into of socket object at 0x7f>",
        "<method 'accept' of '_socket.socket' objects>",
        "<built-in method sendall of socket object>",
        "<method 'read' of '_ssl._SSLSocket' objects>",
        "<built-in method _socket.getaddrinfo>",
    ],
    "process": ["<built-in method posix.waitpid>", "<built-in function waitpid>"],
    "thread": [
        "<method 'acquire' of '_thread.lock' objects>",
        "<built-in method acquire of _thread.lock object>",
        "<method '__enter__' of '_thread.RLock' objects>",
        "<method 'get' of '_queue.SimpleQueue' objects>",
    ],
    "input": ["<built-in method builtins.input>"],
    "pipe": [
        "<built-in method posix.read>",
        "<built-in function read>",
        "<built-in method poll of select.epoll object>",
        "<built-in method select.select>",
    ],
    "read": [
        READ,
        "<built-in method io.open>",
        "<built-in function open>",
        "<built-in method _pickle.load>",
        "<built-in method torch._C.get_storage_from_record>",
    ],
    "write": [
        "<method 'write' of '_io.TextIOWrapper' objects>",
        "<built-in method posix.fsync>",
        "<built-in method write_record of pybind11_builtins.pybind11_detail object>",
    ],
}
OTHERS = [
    "<method 'read' of '_io.BytesIO' objects>",
    "<method 'write' of '_io.StringIO' objects>",
    "<built-in method builtins.sorted>",
    "<method 'get' of 'dict' objects>",
    "<method 'wait' of 'torch._C._distributed_c10d.Work' objects>",
    "<built-in method posix.fork>",
    "<built-in method _pickle.loads>",
    "load",
    "sleepy.sleep_well",
]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in SPELLINGS.items() for name in names]
)
def test_built_ins_that_wait_are_known_in_either_spelling(kind: str, name: str) -> None:
    functions = pd.DataFrame({"file": ["~"], "name": [name]})
    assert KINDS[self_kinds(functions)[0]] == kind
    (row,) = blocked(calling(name, 500)).table.to_dict("records")
    assert (KINDS[row["kind"]], row["owner"], row["ns"]) == (kind, "cell.py:1(step)", 500 * MS)
    python = said(calling(name, 900), "python_time")[0]
    assert python.text.startswith("The Python function `cell.py:1(step)` itself took ")


@pytest.mark.parametrize("name", OTHERS)
def test_built_ins_that_do_something_are_no_waits(name: str) -> None:
    assert self_kinds(pd.DataFrame({"file": ["~"], "name": [name]})).tolist() == [-1]


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("models/gelu.py", True),
        ("Cell [3]", True),
        ("/home/me/gpuprof_widgets/notebooks/train.py", True),
        ("~", False),
        ("<frozen posixpath>", False),
        ("subprocess.py", False),
        ("multiprocessing/connection.py", False),
        ("torch/nn/modules/module.py", False),
        (r"C:\Python312\Lib\queue.py", False),
        ("/x/gpuprof_widgets/capture/modules/hooks.py", False),
        ("gpuprof_widgets/profiling.py", False),
        ("ipykernel/ipkernel.py", False),
    ],
)
def test_the_user_s_code_is_known_by_its_file(file: str, is_own: bool) -> None:
    assert is_user_code(pd.DataFrame({"file": [file], "name": ["f"]})).tolist() == [is_own]


def through_the_library(*edges: tuple[str | None, str, int, int], **files: str) -> Calls:
    """Calls of functions in these files."""
    calls = calls_of(*edges)
    file = [files.get(n, f) for n, f in zip(*(calls.functions[k] for k in ("name", "file")))]  # noqa: B905
    return Calls(calls.functions.assign(file=pd.Series(file, dtype=object)), calls.edges)


LIBRARY = "/opt/py/lib/python3.11/"


def test_a_wait_is_that_of_the_nearest_function_of_the_user() -> None:
    calls = through_the_library(
        (None, "main", 1, 5 * MS), ("main", "fetch", 2, 5 * MS), ("fetch", "urlopen", 6, MS),
        ("urlopen", "readinto", 6, MS), ("readinto", SPELLINGS["network"][0], 9, 188 * MS),
        urlopen=f"{LIBRARY}urllib/request.py", readinto=f"{LIBRARY}socket.py",
    )  # fmt: skip
    finding = only(trace_of(op("aten::mm", ts=0, dur=200 * MS), calls=calls), "blocking_calls")
    assert finding.text == (
        "`cell.py:2(fetch)` waited 189 ms (94 % of the time) for the network: 6 calls of "
        "`urllib.request.urlopen`."
    )
    assert "another thread" in finding.remedy


def test_a_wait_in_a_pipe_is_for_what_was_called() -> None:
    calls = through_the_library(
        (None, "work", 1, MS), ("work", "run", 2, MS), ("run", SPELLINGS["pipe"][0], 2, 98 * MS),
        run=f"{LIBRARY}subprocess.py",
    )  # fmt: skip
    text = only(trace_of(op("aten::mm", ts=0, dur=100 * MS), calls=calls), "blocking_calls").text
    assert "`cell.py:1(work)` waited 98.0 ms (98 % of the time) for another process" in text
    assert "2 calls of `subprocess.run`" in text


def test_two_callers_share_a_wait_as_cprofile_counted_it() -> None:
    calls = calls_of(
        (None, "a", 1, MS), (None, "b", 1, MS), ("a", SLEEP, 1, 60 * MS), ("b", SLEEP, 3, 20 * MS)
    )
    edges = calls.edges.assign(total_ns=calls.edges["self_ns"])
    table = blocked(trace_of(calls=Calls(calls.functions, edges))).table
    assert table[["owner", "ns", "calls"]].to_numpy().tolist() == [
        ["cell.py:1(a)", 60 * MS, 1],
        ["cell.py:2(b)", 20 * MS, 3],
    ]


def in_frames(*, threads: int = 1) -> list[Row]:
    """`main` calls `ask`, that the library, and that waits; other threads wait all the time."""
    idle = [
        python(name, ts=0, dur=100 * MS, thread=200 + n)
        for name in ("threading.py(1): _bootstrap", "multiprocessing/connection.py(413): _recv")
        for n in range(threads - 1)
    ]
    return [
        python("/home/me/train.py(1): main", ts=0, dur=100 * MS),
        python("/home/me/train.py(9): ask", ts=10 * MS, dur=70 * MS),
        python("socket.py(700): create_connection", ts=20 * MS, dur=50 * MS),
        python("<built-in method connect of socket object at 0x7>", ts=21 * MS, dur=40 * MS),
        python("/home/me/train.py(20): burn", ts=80 * MS, dur=20 * MS),
        *idle,
    ]


def test_recorded_frames_tell_whose_wait_it_is_and_when() -> None:
    finding = only(trace_of(*in_frames()), "blocking_calls")
    assert finding.text == (
        "`train.py:9(ask)` waited 50.0 ms (50 % of the time) for the network: 1 call of "
        "`socket.create_connection`."
    )
    assert (finding.start_ns, finding.end_ns) == (21 * MS, 61 * MS)


def test_threads_that_only_wait_are_no_python_time() -> None:
    """`connection._recv` of a thread for logs took most of all Python time."""
    alone, beside = (trace_of(*in_frames(threads=n)) for n in (1, 4))
    assert blocked(beside).idle_ns == 300 * MS
    for rule in ("python_time", "blocking_calls"):
        assert said(beside, rule) == said(alone, rule) != []
    assert "`train.py:20(burn)`" not in said(beside, "blocking_calls")[0].text
    assert "_recv" not in " ".join(one.text for one in findings(beside))


def test_a_thread_that_computes_counts() -> None:
    rows = [
        python("/home/me/train.py(1): main", ts=0, dur=100 * MS),
        python("<built-in method acquire of _thread.lock object>", ts=0, dur=100 * MS),
        python("/home/me/train.py(20): burn", ts=0, dur=100 * MS, thread=7),
    ]
    assert "`train.py:20(burn)` itself took 100 %" in only(trace_of(*rows), "python_time").text


def test_where_all_threads_wait_the_wait_is_told() -> None:
    frames = [
        python("/home/me/a.py(1): main", ts=0, dur=100 * MS),
        python("<built-in function sleep>", ts=1 * MS, dur=98 * MS),
    ]
    assert only(trace_of(*frames), "blocking_calls").text.startswith(
        "`a.py:1(main)` waited 98.0 ms"
    )


def test_cprofile_of_several_threads_leaves_out_those_that_only_wait() -> None:
    """From Python 3.12 on cProfile counts all threads, which begin in `_bootstrap`."""
    calls = through_the_library(
        (None, "main", 1, 60 * MS), ("main", "step", 1, 40 * MS),
        (None, "_bootstrap", 1, 0), ("_bootstrap", "_monitor", 1, 0),
        ("_monitor", "<method 'acquire' of '_thread.lock' objects>", 9, 100 * MS),
        (None, "_bootstrap", 1, 0), ("_bootstrap", "serve", 1, 0),
        ("serve", "<method 'accept' of '_socket.socket' objects>", 1, 90 * MS),
        _bootstrap=f"{LIBRARY}threading.py", _monitor=f"{LIBRARY}logging/handlers.py",
    )  # fmt: skip
    record = trace_of(op("end", ts=0, dur=100 * MS), calls=calls)
    assert blocked(record).idle_ns == 190 * MS
    assert said(record, "blocking_calls") == []
    record = trace_of(op("aten::mm", ts=0, dur=MS), op("end", ts=99 * MS, dur=MS), calls=calls)
    assert (
        "`cell.py:1(main)` itself took at most 60 % of the time" in only(record, "python_time").text
    )


def test_of_samples_no_calls_are_told() -> None:
    frames = [
        python("/home/me/a.py(1): main", ts=0, dur=100 * MS),
        python("subprocess.py(2001): _try_wait", ts=1 * MS, dur=90 * MS),
    ]
    text = only(trace_of(*frames, **{SAMPLED: True}), "blocking_calls").text
    assert "for another process: `subprocess._try_wait`." in text


def test_waits_of_a_dataloader_and_of_the_event_loop_have_findings_of_their_own() -> None:
    lock = "<method 'acquire' of '_thread.lock' objects>"
    for file in ("site-packages/torch/utils/data/dataloader.py", "asyncio/base_events.py"):
        calls = through_the_library(
            (None, "main", 1, MS), ("main", "inner", 1, MS), ("inner", lock, 1, 98 * MS),
            inner=LIBRARY + file,
        )  # fmt: skip
        assert len(blocked(trace_of(calls=calls)).table) == 0


def with_lines(*others: Row, builtin: str = SLEEP) -> Record:
    """A cell whose line 4 is open for 100 of 200 ms, and that waited for 90 ms."""
    calls = calls_of((None, "<module>", 1, 10 * MS), ("<module>", builtin, 1, 90 * MS))
    body = calls.functions["name"] == "<module>"
    calls.functions.loc[body, ["file", "line"]] = ["Cell [3]", 1]
    label = annotation("Cell [3]", ts=0, dur=200 * MS)
    line = cell_line(4, "pause()", ts=0, dur=100 * MS)
    return trace_of(label, line, *others, calls=calls, label="Cell [3]")


def test_the_line_is_named_where_it_must_be_the_one() -> None:
    other = cell_line(5, "y = 2", ts=100 * MS, dur=20 * MS)
    text = only(with_lines(other), "blocking_calls").text
    assert text == (
        "The cell waited 90.0 ms (45 % of the time) for a timer: 1 call of `time.sleep`, on line "
        "4 `pause()`."
    )
    busy = op("aten::mm", ts=100 * MS, dur=75 * MS)
    long = cell_line(5, "y = 2", ts=100 * MS, dur=80 * MS)
    assert "on line 4" in only(with_lines(long, busy), "blocking_calls").text


def test_no_line_is_named_where_another_might_have_waited_as_well() -> None:
    other = cell_line(5, "y = 2", ts=100 * MS, dur=80 * MS)
    text = only(with_lines(other), "blocking_calls").text
    assert text.endswith("1 call of `time.sleep`.")
    assert "line" not in text


@pytest.mark.parametrize(
    ("head", "beyond", "said"),
    [
        ("for _ in range(30000):", [5], "line 5 `pause()`"),
        ("while pause():", [5], "lines 4 and 5"),
        ("for _ in range(30000):", [], "line 4 `for _ in range(30000):`"),
    ],
)
def test_the_head_of_a_loop_is_not_blamed_for_waits_beyond_the_limit(
    head: str, beyond: list[int], said: str
) -> None:
    source = {"label": "Cell [3]", "source": "", "beyond_limit": beyond}
    calls = calls_of((None, "<module>", 1, 10 * MS), ("<module>", SLEEP, 30_000, 90 * MS))
    body = calls.functions["name"] == "<module>"
    calls.functions.loc[body, ["file", "line"]] = ["Cell [3]", 1]
    record = trace_of(
        annotation("Cell [3]", ts=0, dur=200 * MS),
        cell_line(4, head, ts=0, dur=100 * MS),
        cell_line(5, "pause()", ts=MS, dur=MS),
        calls=calls,
        label="Cell [3]",
        lines={"limit": 1, "cells": [source]},
    )
    text = only(record, "blocking_calls").text
    assert text.endswith(f"30,000 calls of `time.sleep`, on {said}.")


def test_the_costliest_line_is_not_told_of_as_well() -> None:
    rules = [one.rule for one in findings(with_lines(cell_line(5, "y", ts=100 * MS, dur=20 * MS)))]
    assert ("blocking_calls" in rules, "lines" in rules) == (True, False)


SOURCE = """
import subprocess, sys, time
import torch

def pause():
    time.sleep(0.15)

def run_tool():
    subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(0.15)"], check=True)

def load(path):
    return torch.load(path)

def save(model, path):
    torch.save(model, path)

def read_often(path, times):
    for _ in range(times):
        with open(path, "rb") as file:
            content = file.read()
    return content

def burn(until):
    while time.perf_counter() < until:
        sum(range(1000))
"""
stack = pytest.mark.parametrize("stack", [False, True])


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module of the user's."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "my_waits.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    yield __import__("my_waits")
    sys.path.remove(str(folder))
    del sys.modules["my_waits"]


THREAD = """\
thread = threading.Thread(target=burn, args=(time.perf_counter() + 0.1,))
thread.start()
thread.join()"""
WAITS = {
    "in a function": ("x = 1\npause()\ny = 2", "`my_waits.py:5(pause)` waited ",
                      " for a timer: 1 call of `", ", called from line 3 `pause()`."),
    "in the cell": ("x = 1\ntime.sleep(0.1)\ny = 2", "The cell waited ",
                    " for a timer: 1 call of `", ", on line 3 `time.sleep(0.1)`."),
    "for a process": ("run_tool()\ny = 2", "`my_waits.py:8(run_tool)` waited ",
                      " for another process: 1 call of `subprocess.run`",
                      ", called from line 2 `run_tool()`."),
    "for a thread": (THREAD, "The cell waited ", " for another thread: 1 call of `threading.join`",
                     ", on line 4 `thread.join()`."),
}  # fmt: skip


@stack
@pytest.mark.parametrize("where", WAITS)
def test_a_recorded_wait_is_told_with_whose_it_is_and_its_line(
    mine: ModuleType, where: str, stack: bool
) -> None:
    body, whose, purpose, line = WAITS[where]
    outcome, record = recorded(body, {**vars(mine), "threading": threading}, stack=stack)
    assert not outcome.error
    longest = said(record, "blocking_calls")[0]  # on a busy machine, starting may be one too
    assert longest.text.startswith(whose)
    assert purpose in longest.text
    assert longest.text.endswith(line)


@stack
def test_recorded_checkpoints_are_told_with_whose_they_are(
    mine: ModuleType, tmp_path: Path, stack: bool
) -> None:
    names = {"save": mine.save, "load": mine.load, "path": tmp_path / "model.pt"}
    names["tensors"] = [torch.zeros(2_000_000) for _ in range(4)]
    outcome, record = recorded(
        "save(tensors, path)\nfor _ in range(3):\n    load(path)", names, stack=stack
    )
    assert not outcome.error
    by_text = {one.text.split(" ")[0]: one for one in said(record, "file_io")}
    assert set(by_text) == {"`my_waits.py:14(save)`", "`my_waits.py:11(load)`"}
    loading, saving = by_text["`my_waits.py:11(load)`"], by_text["`my_waits.py:14(save)`"]
    assert "reading files: 3 calls of `torch.load`" in loading.text
    assert "mmap=True" in loading.remedy
    assert "writing files: 1 call of `torch.save`" in saving.text
    assert "async_save" in saving.remedy
    assert said(record, "python_time", "blocking_calls") == []


@stack
def test_a_recorded_file_read_again_and_again_is_told(
    mine: ModuleType, tmp_path: Path, stack: bool
) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1 << 20) * 20)
    names = {"read_often": mine.read_often, "path": path}
    _, record = recorded("x = 1\nread_often(path, 10)\ny = 1", names, stack=stack)
    finding = said(record, "file_io")[0]  # on a busy machine, opening it may be told as well
    assert finding.text.startswith("`my_waits.py:17(read_often)` spent ")
    assert "reading files: 10 calls of `read`" in finding.text
    assert finding.remedy.startswith("Read it once, before the loop")
    # All but reading is short: were it counted as Python's, Python's would be most of the time.
    python = FINDINGS["python_time"](record, python_share=0.5)
    assert [one for one in python if "read" in one.text] == []


TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
"""


@stack
@pytest.mark.parametrize(
    "body",
    [
        TRAINING,
        "settings = open(path).read()\n" + TRAINING,
        "x = torch.randn(300, 300)\nfor _ in range(20):\n    x = torch.tanh(x @ x)",
        "import threading\nlock = threading.Lock()\nfor x in range(9):\n    with lock:\n        x",
    ],
)
def test_everyday_cells_wait_for_nothing(body: str, tmp_path: Path, stack: bool) -> None:
    (tmp_path / "settings.json").write_text("{}")
    names = {"torch": torch, "path": tmp_path / "settings.json"}
    outcome, record = recorded(body, names, stack=stack)
    assert not outcome.error
    table = blocked(record).table
    assert int(table["ns"].sum()) < 0.5 * record.metadata["wall_ns"]
    assert not table["kind"].isin([KINDS.index("timer"), KINDS.index("network")]).any()


@pytest.mark.parametrize("whole", [1000, 10])
def test_little_time_is_not_worth_a_finding(whole: int) -> None:
    calls = calls_of((None, "step", 1, MS // 100), ("step", READ, 1, MS - 1))
    assert said(trace_of(op("x", ts=0, dur=whole * MS // 10), calls=calls), "file_io") == []
