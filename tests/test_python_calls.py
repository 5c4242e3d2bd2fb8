"""The table of what cProfile counted, and its labels."""

from __future__ import annotations

import cProfile
import pstats
import time
from pathlib import Path

import pandas as pd
import pytest

from gpuprof_widgets.analyses.columns import PSTATS_KEYS
from gpuprof_widgets.analyses.python_calls import function_labels, python_calls
from gpuprof_widgets.commands.printing import sorted_by
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.readers import load
from tests.traces import calls_of, trace_of


def test_functions_by_self_time_with_times_per_call() -> None:
    calls = calls_of((None, "main", 1, 100), ("main", "load", 4, 300))
    table = python_calls(trace_of(calls=calls))
    columns = ["file", "line", "name", "calls", "self_ns", "self_per_call_ns", "total_ns"]
    assert table[columns].to_numpy().tolist() == [
        ["cell.py", 2, "load", 4, 300, 75.0, 300],
        ["cell.py", 1, "main", 1, 100, 100.0, 400],
    ]
    assert table["total_per_call_ns"].tolist() == [75.0, 400.0]


@pytest.mark.parametrize(
    ("file", "line", "name", "label"),
    [
        ("/home/me/train.py", 12, "step", "train.py:12(step)"),
        ("C:\\work\\train.py", 12, "step", "train.py:12(step)"),
        ("~", 0, "<built-in method time.sleep>", "<built-in method time.sleep>"),
    ],
)
def test_labels_are_short(file: str, line: int, name: str, label: str) -> None:
    table = pd.DataFrame({"file": [file], "line": [line], "name": [name]})
    assert function_labels(table) == [label]


def profiled() -> cProfile.Profile:
    """Functions of several files, one of them recursive, and built-in ones."""

    def recurse(depth: int) -> int:
        return depth and recurse(depth - 1)

    profiler = cProfile.Profile()
    profiler.runcall(lambda: [time.sleep(0.001), recurse(5), sorted("abc", key=str.lower)])
    return profiler


def test_every_key_of_pstats_is_taken() -> None:
    keys = pstats.Stats.sort_arg_dict_default.keys()  # type: ignore[attr-defined]
    assert set(PSTATS_KEYS) == set(keys)


@pytest.mark.parametrize("key", PSTATS_KEYS)
def test_a_key_of_pstats_sorts_as_it_does_there(key: str, tmp_path: Path) -> None:
    profiled().dump_stats(tmp_path / "run.prof")
    stats = pstats.Stats(str(tmp_path / "run.prof")).sort_stats(key)
    numbers = stats.stats  # type: ignore[attr-defined]
    table = sorted_by(python_calls(load(tmp_path / "run.prof")), key)
    columns = [*PSTATS_KEYS[key]]
    wanted = [
        {
            "file": file,
            "line": line,
            "name": name,
            "calls": numbers[file, line, name][1],
            "primitive_calls": numbers[file, line, name][0],
            "self_ns": round(numbers[file, line, name][2] * 1e9),
            "total_ns": round(numbers[file, line, name][3] * 1e9),
        }
        for file, line, name in stats.fcn_list  # type: ignore[attr-defined]
    ]
    if key == "stdname":  # pstats compares numbers of lines as texts there
        wanted.sort(key=lambda row: (row["file"], row["line"], row["name"]))
    assert [[row[c] for c in columns] for row in wanted] == table[columns].to_numpy().tolist()


def test_an_unknown_key_of_functions_is_told_those_of_pstats() -> None:
    table = python_calls(trace_of(calls=calls_of((None, "main", 1, 100))))
    with pytest.raises(
        OptionError, match=r"Did you mean tottime\?.*pstats' keys: tottime, cumtime"
    ):
        sorted_by(table, "totime")
    with pytest.raises(OptionError) as raised:
        sorted_by(table[["name", "calls"]], "tottime")
    assert "pstats" not in str(raised.value)
