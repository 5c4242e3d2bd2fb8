"""What torch.compile took, what it compiled again and why: recorded, in traces, and said."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.analyses.cold_start import compiled_functions, compiling_time, is_compiling
from gpuprof_widgets.analyses.findings import FINDINGS, Finding, findings
from gpuprof_widgets.capture.compilations import MOST_KEPT, Compilations
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.redact import redacted
from gpuprof_widgets.trace.window import window
from tests.cells import recorded
from tests.traces import Shared, op, trace_of

pytestmark = pytest.mark.slow

MS = 1_000_000
WHOLE = "_compile.compile_inner (dynamo_timed)"
PHASE = "build_guards (dynamo_timed)"


def listed(**given: Any) -> dict[str, Any]:
    """One compilation as the recorder lists it."""
    one = {"function": "f", "file": "Cell [3]", "line": 4, "start_ns": 5, "dur_ns": 10}
    return {**one, "again": True, "reason": "", "gave_up": False} | given


def compiling(took: int, *compilations: dict[str, Any], **metadata: Any) -> Record:
    """One compilation that takes so many of 1000 ns."""
    return trace_of(
        op(WHOLE, ts=0, dur=took),
        op(PHASE, ts=0, dur=took // 2),
        op("Torch-Compiled Region: 0/0", ts=990, dur=10),
        compilations=list(compilations),
        **metadata,
    )


CASES: dict[str, tuple[Record, Record]] = {"compilation": (compiling(50), compiling(49))}


def said(record: Record, rule: str = "compilation") -> list[Finding]:
    return [one for one in findings(record) if one.rule == rule]


def test_slices_of_compilations_are_known_with_what_is_in_them() -> None:
    trace = trace_of(
        op("Torch-Compiled Region: 0/1", ts=0, dur=90),
        op("TorchDynamo Cache Lookup", ts=1, dur=2),
        op(WHOLE, ts=10, dur=40),
        op(PHASE, ts=12, dur=9),
        op("aten::mm", ts=13, dur=3),
        op("aten::mm", ts=60, dur=3),
        op(WHOLE, ts=14, dur=2),
        op("compile_file (dynamo_timed)", ts=45, dur=15, thread=7),
    ).trace
    names = trace.slices["name"].astype(str)
    found = trace.slices[is_compiling(trace)]
    assert sorted(zip(found["name"].astype(str), found["ts"], strict=True)) == [
        ("TorchDynamo Cache Lookup", 1),
        (WHOLE, 10),
        (WHOLE, 14),
        ("aten::mm", 13),
        (PHASE, 12),
        ("compile_file (dynamo_timed)", 45),
    ]
    assert names.iloc[compiled_functions(trace)].tolist() == [WHOLE]
    assert intervals.length(compiling_time(trace)) == 50


@pytest.mark.parametrize(
    "name", [WHOLE, "_compile.<locals>.compile_inner (dynamo_timed)", "_compile (dynamo_timed)"]
)
def test_a_compilation_is_known_by_the_names_of_all_versions(name: str) -> None:
    assert len(compiled_functions(trace_of(op(name, ts=0, dur=9)).trace)) == 1


def test_running_what_was_compiled_is_no_compilation(shared: Shared) -> None:
    for name in ("luatil/rtx3060_compile_cuda_graphs_05.json.gz", "hta/triton_a100.json.gz"):
        record = gpuprof_widgets.load(shared(name))
        assert record.trace.slices["name"].astype(str).str.startswith("Torch-Compiled").any()
        assert not len(compiled_functions(record.trace))
        assert said(record) == []


def test_a_trace_alone_tells_how_often_and_how_long() -> None:
    (finding,) = said(compiling(500))
    assert finding.text == ("`torch.compile` compiled 1 time, which took 500 ns of 1.00 µs (50 %).")
    assert (finding.cost_ns, finding.start_ns, finding.end_ns) == (500, 0, 500)
    assert finding.rows == (0,)
    assert finding.remedy.startswith("TORCH_LOGS=recompiles tells")
    assert "TORCHINDUCTOR_CACHE_DIR" in finding.remedy


def test_of_a_range_of_a_run_what_is_in_it_counts() -> None:
    one = listed(reason="n == 1", dur_ns=500)
    record = compiling(500, one, listed(reason="n == 2", start_ns=700))
    (first,) = said(window(record, 0, 600))
    assert "500 ns of 600 ns" in first.text
    assert "2" not in first.text.rpartition("the value")[2]
    assert said(window(record, 500, 600)) == []


SIZES = [
    listed(reason=f"tensor 'x' size mismatch at index 0. expected {n}, actual {n + 1}")
    for n in range(3, 10)
]

REASONS: dict[str, tuple[str, str]] = {
    "tensor 'x' size mismatch at index 1. expected 8, actual 16": (
        "because the size of `x` in dimension 1 changed (8, 16)", "mark_dynamic"),
    "2 <= x.size()[0]": ("the size of `x` in dimension 0 left the range", "mark_dynamic"),
    "tensor 'x' rank mismatch. expected 1, actual 2": ("number of dimensions of `x` changed (1, 2)",
        "one number of dimensions"),
    "tensor 'x' stride mismatch at index 0. expected 4, actual 1": ("strides of `x`", "contiguous"),
    "tensor 'x' dtype mismatch. expected Float, actual Double": (
        "the dtype of `x` changed (Float, Double)", "Convert it"),
    "tensor 'x' requires_grad mismatch. expected requires_grad=0": ("required gradients", "train"),
    "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU, AutogradCPU), actual "
    "DispatchKeySet(CPU)": ("the device of `x`, or its inference mode, changed", "one mode"),
    "GLOBAL_STATE changed: grad_mode ": ("settings of torch changed (`grad_mode`)", "grad mode"),
    "fn._modules['1'].training == True": ("`train()` to `eval()`", "per mode"),
    "len(l) == 2": ("the length of `l` changed", "torch.stack"),
    "n == 1": ("the value of `n` changed (1)", "as a tensor"),
    "n is None": ("the value of `n` changed (None)", "as a tensor"),
    "G['step'] == 3": ("the value of `step` changed (3)", "as a tensor"),
    "___check_obj_id(fn, 94123)": ("`fn` was another object", "outside of the loop"),
    "BACKEND_MATCH failure: torch.compile detected different backend callables. Cached": (
        "another backend", "outside of the loop"),
    'Duplicate tensors found: ["a", "b"]': ("the same tensor", "different tensors"),
    "something of a later torch": ("(`something of a later torch`)", "TORCH_LOGS=recompiles"),
    "": ("It recompiled `f` (Cell [3], line 4).", "TORCH_LOGS=recompiles"),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_every_kind_of_guard_is_said_in_words_with_what_to_do(reason: str) -> None:
    words, remedy = REASONS[reason]
    (finding,) = said(compiling(500, listed(reason=reason)))
    assert words in finding.text
    assert remedy in finding.remedy
    assert "TORCHINDUCTOR_CACHE_DIR" not in finding.remedy  # no first compilation is listed


def test_many_sizes_and_the_limit_are_one_sentence() -> None:
    last = listed(
        reason="tensor 'x' size mismatch at index 0. expected 10, actual 11", gave_up=True
    )
    (finding,) = said(compiling(500, listed(again=False), *SIZES, last))
    assert finding.text == (
        "`torch.compile` compiled 8 times, which took 500 ns of 1.00 µs (50 %). It recompiled "
        "`f` (Cell [3], line 4) 7 times, because the size of `x` in dimension 0 changed (3, 4, "
        "5, 6, …). At its limit (`recompile_limit`) it gave up on `f`, which has run uncompiled "
        "since then."
    )


def test_what_is_given_up_is_told_however_little_compiling_took() -> None:
    last = listed(reason="n == 8", gave_up=True)
    assert "has run uncompiled since" in said(compiling(1, last))[0].text
    assert said(compiling(1, listed(reason="n == 8"))) == []


def test_a_run_that_only_gave_up_compiled_nothing() -> None:
    last = listed(reason="n == 8", gave_up=True)
    (finding,) = said(compiling(500, last))
    assert finding.text == (
        "`torch.compile` compiled nothing, which took 500 ns of 1.00 µs (50 %). It would have "
        "recompiled `f` (Cell [3], line 4), because the value of `n` changed (8). At its limit "
        "(`recompile_limit`) it gave up on `f`, which has run uncompiled since then."
    )


def test_the_costliest_reason_stands_first_and_others_are_counted() -> None:
    record = compiling(500, *SIZES, listed(reason="n == 1", dur_ns=900, function="g"))
    (finding,) = said(record)
    assert (
        "It recompiled `g` (Cell [3], line 4), because the value of `n` changed (1)" in finding.text
    )
    assert "(7 more for other reasons)" in finding.text


def test_first_compilations_are_one_off_costs() -> None:
    first = [listed(again=False), listed(again=False, function="g", dur_ns=30)]
    (finding,) = said(compiling(500, *first))
    assert finding.text.endswith(
        " It compiled each function for the first time; `g` (Cell [3], line 4) took longest."
    )
    assert finding.remedy.startswith("The first compilation of a function is paid once. Warm up")


def test_hooks_of_the_recording_are_not_blamed_on_the_user() -> None:
    hooks = listed(reason="len(G['torch_nn_modules_module']._global_forward_hooks) == 0")
    (finding,) = said(compiling(500, hooks))
    assert "1 time because hooks of modules changed, perhaps those of the recording" in finding.text
    assert "the length of" not in finding.text
    (finding,) = said(compiling(500, {**hooks, "gave_up": True}))
    assert "the length of" not in finding.text
    assert "it gave up on `f`" in finding.text


def test_after_a_warm_up_one_of_two_findings_speaks() -> None:
    late = {"graphs": 2, "compile_ns": 500}
    steps = {"iterations": [], "one_off": {"after_warmup": late}}
    richer = compiling(500, listed(again=False), steps=steps)
    assert len(said(richer)) == 1
    assert said(richer, "one_off") == []
    assert "Warm up longer (--warmup)" in said(richer)[0].remedy
    alone = trace_of(op("x", ts=0, dur=900), steps=steps)
    assert "still compiled 2 graphs" in said(alone, "one_off")[0].text


@pytest.fixture
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()


FUNCTION = """
import torch
def f(x, n=1):
    return (x * 2 + n).sum()
g = torch.compile(f, backend="eager", dynamic=False)
"""


def run(body: str, names: dict[str, Any] | None = None, **options: Any) -> Record:
    outcome, record = recorded(body, names, **options)
    assert not outcome.error
    return record


def compilations(record: Record) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = record.metadata.get("compilations", [])
    return found


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_storm_of_sizes_is_recorded_and_said() -> None:
    record = run(f"{FUNCTION}for n in range(3, 14): g(torch.ones(n))")
    told = compilations(record)
    assert [one["function"] for one in told] == ["f"] * 9
    assert {(one["file"], one["line"]) for one in told} == {("Cell [7]", 4)}
    assert [one["again"] for one in told] == [False] + [True] * 8
    assert [one["gave_up"] for one in told] == [False] * 8 + [True]
    assert told[1]["reason"] == "tensor 'x' size mismatch at index 0. expected 3, actual 4"
    rows = record.trace.slices.iloc[compiled_functions(record.trace)]
    assert len(rows) == 9
    ended = [0, *(rows["ts"] + rows["dur"])]
    for one, before, begun in zip(told, ended[:-1], rows["ts"], strict=True):
        assert before - MS <= one["start_ns"] <= begun + MS  # what comes first has no region
    (finding,) = FINDINGS["compilation"](record, compilation_share=0)
    assert "compiled 8 times" in finding.text
    assert "7 times, because the size of `x` in dimension 0 changed (3, 4, 5, 6, …)" in finding.text
    assert "it gave up on `f`, which has run uncompiled since" in finding.text
    assert "mark_dynamic" in finding.remedy


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ("for n in range(3): g(torch.ones(3), n)", "the value of `n` changed (0, 1)"),
        ("g(torch.ones(3)); g(torch.ones(3).double())", "the dtype of `x` changed"),
        ("g(torch.ones(3))\nwith torch.no_grad(): g(torch.ones(3))", "settings of torch changed"),
        ("g(torch.ones(3)); g(torch.ones(3, 3))", "the number of dimensions of `x` changed"),
    ],
)
def test_torchs_own_words_for_guards_are_understood(calls: str, words: str) -> None:
    (finding,) = FINDINGS["compilation"](run(FUNCTION + calls), compilation_share=0)
    assert words in finding.text


@pytest.mark.usefixtures("fresh_dynamo")
def test_modules_under_our_hooks_are_compiled_once() -> None:
    body = """
import torch
m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
g = torch.compile(m, backend="eager")
for _ in range(4): g(torch.ones(2, 4)).sum().backward()
"""
    names: dict[str, Any] = {"__name__": "__main__"}
    assert [one["again"] for one in compilations(run(body, names))] == [False]
    again = run("for _ in range(3): g(torch.ones(2, 4))", names)
    assert compilations(again) == []
    assert not len(compiled_functions(again.trace))
    assert said(again) == []


@pytest.mark.usefixtures("fresh_dynamo")
def test_compilations_of_the_warm_up_are_not_those_of_the_record() -> None:
    body = f"{FUNCTION}for n in gpuprof_widgets.steps([1, 2, 3, 3, 3], warmup=2, active=2):\n"
    names = {"__name__": "__main__", "gpuprof_widgets": gpuprof_widgets}
    told = compilations(run(f"{body}    g(torch.ones(4), n)", names))
    assert [(one["function"], one["reason"]) for one in told] == [("f", "n == 2")]


@pytest.mark.usefixtures("fresh_dynamo")
def test_no_more_than_torch_still_knows_is_told_and_that_is_noted() -> None:
    functions = "\n".join(
        f"exec('def f{n}(x): return x + {n}', globals())\n"
        f"torch.compile(globals()['f{n}'], backend='eager')(x)"
        for n in range(4)
    )
    record = run(f"import torch\nx = torch.ones(2)\n{functions}", {"__name__": "__main__"})
    assert len(compilations(record)) == 4
    assert not any("last 64" in note for note in record.metadata["notes"])
    listening, utils = Compilations(Context(Options(), "the run", {}, {})), torch._dynamo.utils
    known = utils.get_compilation_metrics()
    listening.start()
    utils._compilation_metrics.extend([dataclasses.replace(known[0]) for _ in range(MOST_KEPT + 1)])
    listening.stop()
    assert len(utils.get_compilation_metrics()) == MOST_KEPT
    assert "only the last 64 compilations" in listening.notes()[0]


def test_a_torch_that_tells_nothing_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for utils in (None, types.ModuleType("utils")):
        if utils is None:
            monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
        else:
            monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
        listening = Compilations(Context(Options(), "the run", {}, {}))
        listening.start()
        listening.stop()
        listening.refine(trace_of(op("x", ts=0, dur=9)).trace)
        assert listening.metadata() == {}
        assert listening.notes() == []


def test_an_older_torch_with_fewer_fields_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in place of us, and reasons in a list of their own: torch 2.6."""
    older = types.SimpleNamespace(
        compile_id="0/1", co_name="f", co_filename="train.py", co_firstlineno=3, start_time=5.0,
        entire_frame_compile_time_s=0.25, fail_type="CacheSizeLimitExceeded",
    )  # fmt: skip
    failures = {"code of f": ["0/0: n == 1  # return x * n", "0/0: n == 5", "0/1: n == 2"]}
    utils = types.SimpleNamespace(get_compilation_metrics=lambda: [older], guard_failures=failures)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    listening = Compilations(Context(Options(), "the run", {}, {}))
    listening.start()
    listening.stop()
    trace = trace_of(op("x", ts=0, dur=10**9)).trace
    listening.refine(dataclasses.replace(trace, epoch_ns=4_500_000_000))
    assert listening.metadata()["compilations"] == [
        listed(
            file="train.py",
            line=3,
            start_ns=500_000_000,
            dur_ns=250_000_000,
            gave_up=True,
            reason="n == 1",
        )
    ]


def test_folders_and_texts_can_be_hidden() -> None:
    record = compiling(
        500,
        listed(file="/home/anna/project/train.py", reason="mode == 'hunter2' # x"),
        listed(file="/home/anna/project/train.py", reason="tensor 'x' dtype mismatch."),
    )
    clean = redacted(record).metadata["compilations"]
    assert [one["file"] for one in clean] == ["train.py", "train.py"]
    assert [one["reason"] for one in clean] == ["mode == '…'", "tensor 'x' dtype mismatch."]
    assert "anna" not in json.dumps(clean)
