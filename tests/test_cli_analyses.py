"""Each analysis as a command: its options, its order, its range, and its files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gpuprof_widgets.analyses import ANALYSES, Analysis, plain_analyses
from gpuprof_widgets.analyses.columns import format_ns
from gpuprof_widgets.analyses.reasons import LINES
from gpuprof_widgets.commands import analysis as signature
from gpuprof_widgets.commands.analysis import ROWS, option_of, options_of
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from gpuprof_widgets.trace.writers.tables import csv_bytes, json_bytes
from tests.command_lines import gpuprof, small_trace
from tests.traces import kernel, op, python, trace_of

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_trace(tmp_path_factory.mktemp("traces"))


@pytest.fixture(scope="module")
def profile(trace: Path) -> Profile:
    return Profile.load(trace)


def rows_of(text: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def as_json(table: pd.DataFrame) -> list[dict[str, Any]]:
    return rows_of(json_bytes(table).decode())


@pytest.mark.parametrize("one", plain_analyses(), ids=lambda one: one.name)
def test_every_analysis_is_a_command_with_the_rows_of_its_function(
    one: Analysis, trace: Path, profile: Profile, capsys: Capsys
) -> None:
    shown = gpuprof(capsys, one.name, trace)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.strip()
    if one.name != "analyze":  # which has options of its own: see test_analyze.py
        called = gpuprof(capsys, one.name, trace, "--json", "-")
        assert called.code == 0
        assert rows_of(called.out) == as_json(one.function(profile))


@pytest.mark.parametrize(
    ("name", "asked", "argument"),
    [("attribution", "op", "op"), ("what_if", "aten::mm", "aten::mm"), ("owners", "0", 0)],
)
def test_what_an_analysis_is_asked_of_comes_behind_the_trace(
    name: str, asked: str, argument: object, trace: Path, profile: Profile, capsys: Capsys
) -> None:
    called = gpuprof(capsys, name, trace, asked, "--json", "-")
    expected = getattr(profile, name)(argument)
    assert len(expected)
    assert rows_of(called.out) == as_json(expected)
    without = gpuprof(capsys, name, trace)
    assert without.code == 2
    assert "Missing argument" in without.err


@pytest.mark.parametrize("one", ANALYSES.values(), ids=lambda one: one.name)
def test_every_keyword_of_an_analysis_can_be_given(one: Analysis) -> None:
    if one.name == "analyze":
        return
    keywords = list(inspect.signature(one.function).parameters)[1:]
    options = {option.name for option in options_of(one.function)}
    assert set(keywords) - options - set(signature.SHARED) <= {
        "peaks"
    }  # which only a program can make


def test_ops_is_another_name_of_operators(trace: Path, capsys: Capsys) -> None:
    by_alias = gpuprof(capsys, "ops", trace)
    assert by_alias == gpuprof(capsys, "operators", trace)
    assert by_alias.code == 0
    assert gpuprof(capsys, "device-busy", trace) == gpuprof(capsys, "device_busy", trace)


def test_keywords_of_the_function_are_options(
    trace: Path, profile: Profile, capsys: Capsys
) -> None:
    called = gpuprof(capsys, "ops", trace, "--by-shape", "--json", "-")
    assert rows_of(called.out) == as_json(profile.operators(by_shape=True))
    assert {"[[64, 32], [32, 16]]"} <= {row["input_shapes"] for row in rows_of(called.out)}
    wrong = gpuprof(capsys, "kernels", trace, "--by", "colour")
    assert wrong.code == 1
    assert "colour" in wrong.err


@pytest.mark.parametrize(
    ("key", "column", "rising"),
    [
        ("calls", "calls", False),
        ("cpu_self", "cpu_self_ns", False),
        ("cpu_self_ns", "cpu_self_ns", False),
        ("+cpu_self", "cpu_self_ns", True),
        ("-cpu_self", "cpu_self_ns", False),
        ("name", "name", True),
        ("-name", "name", False),
        ("self_cpu_time_total", "cpu_self_ns", False),
    ],
)
def test_rows_are_sorted_by_any_column(
    key: str, column: str, rising: bool, trace: Path, capsys: Capsys
) -> None:
    called = gpuprof(capsys, "ops", trace, "--sort", key, "--json", "-")
    values = [row[column] for row in rows_of(called.out)]
    assert len(set(values)) > 1
    assert values == sorted(values, reverse=not rising)


@pytest.mark.parametrize("words", [(), ("--top", 1), ("--sort", "name", "--top", 1)])
def test_the_self_times_of_all_ops_stand_below_the_table(
    words: tuple[Any, ...], trace: Path, profile: Profile, capsys: Capsys
) -> None:
    table = profile.operators()
    own = table["category"].isin(GPU_CATEGORIES)
    cpu, gpu = int(table["cpu_self_ns"].sum()), int(table.loc[own, "device_self_ns"].sum())
    assert gpu > 0
    below = [f"Self CPU time total: {format_ns(cpu)}", f"Self GPU time total: {format_ns(gpu)}"]
    lines = gpuprof(capsys, "ops", trace, *words).out.splitlines()
    at = lines.index(below[0])
    assert lines[at : at + 2] == below
    assert at == 1 + (words[-1] if words else len(table))
    assert "time total" not in gpuprof(capsys, "kernels", trace).out
    assert "time total" not in gpuprof(capsys, "ops", trace, *words, "--csv", "-").out


def test_an_unknown_sort_key_is_told_the_right_one(trace: Path, capsys: Capsys) -> None:
    called = gpuprof(capsys, "kernels", trace, "--sort", "totl_ns")
    assert called.code == 1
    assert "there is no column 'totl_ns' to sort by. Did you mean total_ns?" in called.err


def test_top_keeps_the_first_rows_after_sorting(trace: Path, capsys: Capsys) -> None:
    words = ("ops", trace, "--sort", "+cpu_self", "--json", "-")
    every = rows_of(gpuprof(capsys, *words).out)
    assert rows_of(gpuprof(capsys, *words, "--top", 2).out) == every[:2]


def test_a_step_is_the_window_of_that_step(trace: Path, profile: Profile, capsys: Capsys) -> None:
    called = gpuprof(capsys, "kernels", trace, "--step", 1, "--json", "-")
    assert rows_of(called.out) == as_json(profile.window(10_000, 19_000).kernels())
    window = gpuprof(capsys, "kernels", trace, "--window", "10us:19us", "--json", "-")
    assert window == called
    in_ns = gpuprof(capsys, "kernels", trace, "--window", "10000:19,000", "--json", "-")
    assert in_ns == called


def test_a_step_that_is_not_there_is_told_those_that_are(trace: Path, capsys: Capsys) -> None:
    called = gpuprof(capsys, "kernels", trace, "--step", 7)
    assert (called.code, called.err) == (
        1,
        "gpuprof: the trace has no step 7; its steps are 0, 1\n",
    )


@pytest.mark.parametrize(
    ("range_", "code"),
    [
        ("0ms:2ms", 0),
        ("0.0000015s:2us", 0),
        ("1ms:2ms", 1),
        ("5", 2),
        ("a:b", 2),
        ("2:1", 2),
        ("-1:5", 2),
    ],
)
def test_a_range_is_two_times(range_: str, code: int, trace: Path, capsys: Capsys) -> None:
    called = gpuprof(capsys, "device_busy", trace, f"--window={range_}")
    assert called.code == code
    assert ("which is from 0 ns to 20.1 µs" in called.err) == (code == 1)


def test_long_tables_are_cut_and_say_so(tmp_path: Path, capsys: Capsys) -> None:
    kernels = [kernel(f"k{number}", ts=10 * number, dur=5) for number in range(ROWS + 3)]
    save(trace_of(*kernels), tmp_path / "many.gpuprof")
    shown = gpuprof(capsys, "kernels", tmp_path / "many.gpuprof").out.splitlines()
    assert len(shown) == ROWS + 2
    assert shown[-1] == f"{ROWS} of {ROWS + 3} rows; --top N prints more"
    every = gpuprof(capsys, "kernels", tmp_path / "many.gpuprof", "--top", 99).out.splitlines()
    assert len(every) == 1 + ROWS + 3
    written = gpuprof(capsys, "kernels", tmp_path / "many.gpuprof", "--csv", "-")
    assert len(written.out.splitlines()) == 1 + ROWS + 3


def test_json_holds_what_is_no_plain_value() -> None:
    table = pd.DataFrame(
        {"grid": [[1, 2], None], "size": np.array([np.int64(3), None], object), "p": [Path("a"), 1]}
    )
    assert as_json(table) == [
        {"grid": [1, 2], "size": 3, "p": "a"},
        {"grid": None, "size": None, "p": 1},
    ]
    assert json_bytes(table.head(0)) == b"[]\n"


def test_one_call_writes_several_files(
    trace: Path, profile: Profile, tmp_path: Path, capsys: Capsys
) -> None:
    csv, parquet = tmp_path / "k.csv", tmp_path / "k.parquet"
    called = gpuprof(
        capsys, "kernels", trace, "--csv", csv, "--parquet", parquet, "--json", "-", "--top", 1
    )
    assert (called.code, called.err) == (0, "")
    expected = profile.kernels().head(1)
    assert rows_of(called.out) == as_json(expected)
    assert csv.read_bytes() == csv_bytes(expected)
    pd.testing.assert_frame_equal(pd.read_parquet(parquet), expected, check_dtype=False)


def test_two_tables_do_not_go_to_standard_output(trace: Path, capsys: Capsys) -> None:
    called = gpuprof(capsys, "kernels", trace, "--csv", "-", "--json", "-")
    assert (called.code, called.out) == (2, "")


def test_a_file_that_cannot_be_written_is_an_error(trace: Path, capsys: Capsys) -> None:
    called = gpuprof(capsys, "kernels", trace, "--csv", "/nowhere/k.csv")
    assert (called.code, called.out) == (1, "")
    assert called.err.startswith("gpuprof: /nowhere/k.csv: cannot be written")


def test_what_a_trace_lacks_stands_beside_an_empty_file(tmp_path: Path, capsys: Capsys) -> None:
    save(trace_of(op("aten::mm", ts=0, dur=9)), tmp_path / "cpu.gpuprof")
    shown = gpuprof(capsys, "kernels", tmp_path / "cpu.gpuprof")
    written = gpuprof(capsys, "kernels", tmp_path / "cpu.gpuprof", "--json", "-")
    assert written.out == "[]\n"
    assert written.err == f"note: {shown.out}"
    assert "GPU" in shown.out


def test_a_keyword_that_nobody_can_type_and_nobody_may_leave_out_is_refused() -> None:
    parameter = inspect.Parameter("peaks", inspect.Parameter.KEYWORD_ONLY)
    with pytest.raises(TypeError, match="no option of type"):
        option_of(parameter, Sequence[str])


def test_rows_of_a_tree_say_where_they_stand(trace: Path, capsys: Capsys) -> None:
    def printed(*words: str) -> list[str]:
        lines = gpuprof(capsys, "call_tree", trace, *words).out.splitlines()
        starts = lines[0].index("name"), lines[0].index("category")
        return [line[slice(*starts)].rstrip() for line in lines[1:]]

    assert printed() == [
        "all threads",
        "  ProfilerStep*",
        "    encoder",
        "      aten::mm",
        "        cudaLaunchKernel",
        "  aten::add",
        "  GPU work without a launch in the trace",
    ]
    assert "  aten::add" not in printed("--time", "device")
    assert printed("--sort", "self", "--top", "2") == [
        "ProfilerStep*",
        "ProfilerStep* > encoder",
    ]
    assert printed("--sort", "depth", "--top", "1") == [
        "ProfilerStep* > encoder > aten::mm > cudaLaunchKernel"
    ]


def test_what_a_trace_lacks_stands_without_a_row_of_nobodys(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "ops.gpuprof"
    save(trace_of(op("aten::mm", ts=0, dur=9)), path)
    called = gpuprof(capsys, "attribution", path, "line")
    assert called.out == f"{LINES}\n"


def test_what_belongs_to_nobody_has_a_name_where_it_is_printed(
    trace: Path, profile: Profile, capsys: Capsys
) -> None:
    for words in (("modules", trace), ("attribution", trace, "module")):
        assert gpuprof(capsys, *words).out.splitlines()[-1].startswith("(in no module) ")
        written = gpuprof(capsys, *words, "--json", "-").out
        assert [row["name"] for row in rows_of(written)] == ["encoder", ""]
    assert profile.modules()["name"].tolist() == ["encoder", ""]


@pytest.mark.parametrize("command", ["python_time", "call_tree"])
def test_samples_are_not_printed_as_calls(command: str, tmp_path: Path, capsys: Capsys) -> None:
    frame = python("train.py(3): step", ts=0, dur=9)
    sampled, recorded = tmp_path / "sampled.gpuprof", tmp_path / "recorded.gpuprof"
    save(trace_of(frame, sampled=True), sampled)
    save(trace_of(frame), recorded)
    assert "calls" not in gpuprof(capsys, command, sampled).out
    assert "calls" in gpuprof(capsys, command, recorded).out
    assert '"calls": 1' in gpuprof(capsys, command, sampled, "--json", "-").out
