"""An analysis that has nothing to say says why, in its `attrs`."""

from __future__ import annotations

import cProfile
import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.analysed import Analysed
from gpuprof_widgets.analyses.reasons import SNAPSHOT, why_empty
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.exceptions import OptionError, RecordingError
from gpuprof_widgets.many_ranks.profiles import RankProfiles
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.memory_history import SNAPSHOT_PROCESS
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse
from tests.job import collective, computing, rank_record, run_of
from tests.snapshots import dumped, snapshot, training
from tests.timelines import of_gpus
from tests.traces import annotation, cell_line, kernel, module, op, python, runtime, trace_of

pytestmark = pytest.mark.slow

Made = Callable[[Path], Record]


def _of_cprofile(folder: Path) -> Record:
    profile = cProfile.Profile()
    profile.runcall(sorted, [3, 1, 2])
    profile.dump_stats(folder / "run.prof")
    return Profile.load(folder / "run.prof")


def _train() -> None:
    x = torch.ones(8, 8, requires_grad=True)
    (x @ x).sum().backward()


def _recorded(body: Callable[[], object] = _train, **options: Any) -> Profile:
    with gpuprof_widgets.profile(quiet=True, **options) as run:
        body()
    return run


def _launched(folder: Path) -> Record:
    return trace_of(
        op("aten::mm", ts=0, dur=9),
        runtime("cudaLaunchKernel", ts=1, dur=3),
        kernel("gemm", ts=10, dur=5, launched_by=1),
    )


def _after_its_end(folder: Path) -> Record:
    run = _recorded(shapes=True)
    return run.window(run.trace.end_ns, run.trace.end_ns)


def _of_program(name: str) -> Made:
    content = json.dumps(of_gpus()[name]).encode()
    return lambda folder: parse(content, Path("timeline.json"))


RECORDS: dict[str, Made] = {
    "nothing": lambda folder: trace_of(),
    "a file of cProfile": _of_cprofile,
    "Python frames": lambda folder: trace_of(python("train.py(3): step", ts=0, dur=9)),
    "samples of Python": lambda folder: trace_of(
        python("train.py(3): step", ts=0, dur=9, **{"Sampled lines": [[0, 4]]}), sampled=True
    ),
    "a GPU alone": lambda folder: trace_of(
        kernel("gemm", ts=0, dur=5), kernel("relu", ts=7, dur=5)
    ),
    "a copy": lambda folder: trace_of(
        kernel("Memcpy HtoD (Pageable -> Device)", ts=0, dur=5, category="gpu_memcpy")
    ),
    "a collective": lambda folder: trace_of(collective(0, 5)),
    "CPU ops": lambda folder: trace_of(op("aten::mm", ts=0, dur=9)),
    "CPU ops with shapes": lambda folder: trace_of(
        op("aten::mm", ts=0, dur=9, shapes=[[2, 2], [2, 2]])
    ),
    "a module and a line": lambda folder: trace_of(
        cell_line(1, "model(x)", ts=0, dur=9), module("model", ts=1, dur=7)
    ),
    "an annotation": lambda folder: trace_of(annotation("forward", ts=0, dur=9)),
    "an instant": lambda folder: trace_of(op("m", ts=5, dur=0, category="cpu_instant_event")),
    "another program's": lambda folder: trace_of(op("handle", ts=0, dur=9, category="http")),
    "launched work": _launched,
    "a memory snapshot": lambda folder: Profile.load(dumped(snapshot(training()), folder)),
    "a snapshot without history": lambda folder: Profile.load(
        dumped(snapshot(training(), history=False), folder)
    ),
    **{name: _of_program(name) for name in of_gpus()},
    "our own recording": lambda folder: _recorded(shapes=True),
    "our own without cProfile": lambda folder: _recorded(python="off"),
    "our own of samples": lambda folder: _recorded(python="sampled"),
    "our own of nothing": lambda folder: _recorded(lambda: None),
    "a range after its end": _after_its_end,
}
"""Records of all kinds that lack something, by what they are."""

Keywords = dict[str, Any]


def ways(**options: tuple[Any, ...]) -> tuple[Keywords, ...]:
    """The defaults, and each value of each option."""
    return ({}, *({name: value} for name, values in options.items() for value in values))


OPTIONS: dict[str, tuple[Keywords, ...]] = {
    "operators": ways(by_shape=(True,), stack_depth=(3,)),
    "analyze": (
        *ways(side=("device", "host"), by=("call", "name", "type")),
        *({"side": "host", **more} for more in ways(by=("name", "type"), min_ns=(10**15,))),
        {"side": "host", "types": ["none such"]},
        {"side": "host", "input_dtype": "int64"},
    ),
    "roofline": ways(by=("op", "shape", "kernel")),
    "call_tree": ways(source=("ops", "merged", "cprofile")),
    "attribution": tuple({"level": level} for level in ("line", "module", "op", "python")),
    "kernels": ways(by=("name", "geometry", "kind")),
    "sequences": ways(op=("conv",), length=(1, 100)),
    "copies": ways(by=("copy", "kind", "op")),
    "collectives": ways(instances=(True,)),
    "counters": ways(derived=(False,)),
    "breakdown": ways(by=("device", "step")),
    "overlaps": ways(by=("device", "step")),
    "idle": ways(by=("device", "stream")),
    "streams": ways(by=("stream", "pair", "concurrency")),
    "critical_path": ways(
        by=("kind", "op", "name", "module", "line"), step=(0,), region=("forward", (0, 0), (0, 3))
    ),
    "what_if": tuple({"name": name} for name in ("aten::mm", "gemm", "none such")),
    "what_ifs": ways(step=(0,), region=((0, 0),)),
    "owners": ({"row": 0}, {"row": 10**9}),
    "worker_calls": ({"worker": 0},),
}
"""Of each analysis that takes any: every grouping, and options that leave nothing over."""

COMPARED: dict[str, tuple[Keywords, ...]] = {
    **dict.fromkeys(("ops", "modules", "lines"), ways(measure=("cpu_self", "device_self"))),
    "call_tree": ways(source=("ops", "merged", "cprofile")),
}
OF_RANKS = {"collectives": ways(per_rank=(True,))}


def tables_of(
    subject: object, kind: type, options: dict[str, tuple[Keywords, ...]]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """What each public method returns that returns tables, in every way it can be asked."""
    for name, method in vars(kind).items():
        annotated = inspect.get_annotations(method) if inspect.isfunction(method) else {}
        if name.startswith("_") or "DataFrame" not in str(annotated.get("return")):
            continue
        for keywords in options.get(name, ({},)):
            with suppress(OptionError, RecordingError):  # these say what is wrong
                yield f"{name}({keywords})", getattr(subject, name)(**keywords)


@pytest.fixture(params=RECORDS)
def record(request: pytest.FixtureRequest, tmp_path: Path) -> Profile:
    made = RECORDS[request.param](tmp_path)
    return Profile(made.trace, made.calls, made.metadata, made.calls_of_workers)


def test_every_empty_table_says_why(record: Profile) -> None:
    subjects: list[tuple[object, type, dict[str, tuple[Keywords, ...]]]] = [
        (record, Analysed, OPTIONS),
        (Comparison(record, record), Comparison, COMPARED),
        (run_of(record), RankProfiles, OF_RANKS),
        (run_of(record, record), RankProfiles, OF_RANKS),
    ]
    silent = [
        f"{kind.__name__}.{way}"
        for subject, kind, options in subjects
        for way, table in tables_of(subject, kind, options)
        if not len(table) and not why_empty(table)
    ]
    assert silent == []


def has(*categories: str) -> Callable[[Record], bool]:
    return lambda record: bool(record.trace.slices["category"].isin(categories).any())


def has_named(*words: str) -> Callable[[Record], bool]:
    return lambda record: any(
        word in name.lower() for name in record.trace.slices["name"] for word in words
    )


WORK = has("kernel", "gpu_memcpy", "gpu_memset")
OPS = has("cpu_op")

UNTRUE_IF: dict[str, Callable[[Record], bool]] = {
    "memory snapshot:": lambda record: set(record.trace.tracks["process"]) != {SNAPSHOT_PROCESS},
    r"no GPU work\b": WORK,
    "no kernels": has("kernel"),
    "no ops|neither ops nor kernels|nor CPU ops": OPS,
    "neither GPU work": WORK,
    "no input shapes": lambda record: not OPS(record) or "Input Dims" in record.trace.args,
    "no modules": has("module"),
    "no cell lines": has("cell_line"),
    "no annotations": has("user_annotation"),
    "no memory events": has_named("[memory]"),
    "no copies to": has("gpu_memcpy"),
    "no collectives": has_named("nccl"),
    "no steps": has_named("profilerstep"),
    "no counters": lambda record: len(record.trace.counters) > 0,
    "no Python calls": lambda record: record.calls is not None or has("python_function")(record),
    "no Python frames": has("python_function"),
    "launches of its": lambda record: bool((record.trace.slices["launch"] >= 0).any()),
    "neither CPU threads nor GPU streams": lambda record: bool(
        record.trace.tracks["kind"].isin(["cpu", "gpu"]).any()
    ),
    "only a CUDA memory snapshot": lambda record: (
        set(record.trace.tracks["process"]) == {SNAPSHOT_PROCESS}
    ),
    "no calls of cProfile": lambda record: record.calls is not None,
    "samples count no calls": lambda record: not record.metadata.get("sampled"),
}
"""Sentences of a profile's tables, and what makes each of them false, by the raw events alone."""


def test_the_reason_is_true_of_the_trace(record: Profile) -> None:
    untrue = [
        f"{way}: {why}"
        for way, table in tables_of(record, Analysed, OPTIONS)
        if not len(table) and (why := why_empty(table))
        for sentence, is_untrue in UNTRUE_IF.items()
        if re.search(sentence, why) and is_untrue(record)
    ]
    assert untrue == []


@pytest.mark.parametrize(
    ("kind", "way", "words"),
    [
        ("our own recording", lambda run: run.roofline(by="kernel"), "no GPU work"),
        ("our own without cProfile", lambda run: run.roofline(), "(shapes=True)"),
        ("CPU ops", lambda run: run.analyze(side="host", types=["conv"]), "none of the 1 calls"),
        ("CPU ops", lambda run: run.critical_path(region=(0, 0)), "nothing took any time"),
        ("CPU ops", lambda run: run.what_ifs(region=(0, 0)), "nothing took any time"),
        ("Python frames", lambda run: run.roofline(), "the trace has no ops"),
        ("a GPU alone", lambda run: run.roofline(), "the trace has no ops"),
        ("a GPU alone", lambda run: run.streams(by="pair"), "more than one stream"),
        ("a GPU alone", lambda run: run.counters(derived=False), "no counters"),
        ("a copy", lambda run: run.gpu_summary(), "no kernels"),
        ("a file of cProfile", lambda run: run.roofline(), "neither ops nor kernels"),
        ("a memory snapshot", lambda run: run.what_ifs(), SNAPSHOT),
        ("a memory snapshot", lambda run: run.what_if("[memory]"), SNAPSHOT),
    ],
)
def test_the_reason_is_the_one_that_helps(
    kind: str, way: Callable[[Profile], pd.DataFrame], words: str, tmp_path: Path
) -> None:
    made = RECORDS[kind](tmp_path)
    table = way(Profile(made.trace, made.calls, made.metadata))
    assert len(table) == 0
    assert words in why_empty(table)


def test_ranks_say_what_they_do_not_have_in_common() -> None:
    without = run_of(rank_record(0, computing(0, 5)), rank_record(1, computing(0, 5)))
    why = "no collective of two ranks was found (the trace has no collectives: "
    assert why_empty(without.collectives()).startswith(why)
    assert why_empty(without.waits()).startswith(why)
    alone = run_of(rank_record(0, collective(0, 5)))
    assert why_empty(alone.waits()) == "no collective of two ranks was found"
    together = run_of(rank_record(0, collective(0, 5)), rank_record(1, collective(0, 5)))
    assert why_empty(together.waits()) == "no rank waited for another"


def test_an_op_that_did_not_run_is_an_error_that_says_where_to_look() -> None:
    made = trace_of(op("aten::mm", ts=0, dur=9))
    with pytest.raises(OptionError, match=r"called 'aten::gather'.*; what_ifs\(\) names those"):
        Profile(made.trace).what_if("aten::gather")


def test_findings_print_as_sentences_and_say_why_there_are_none() -> None:
    made = trace_of(op("aten::mm", ts=0, dur=9))
    found = Profile(made.trace).findings()
    assert isinstance(found, list)
    assert repr(found).splitlines()[0] == f"1. {found[0].text}"
    assert repr(found).splitlines()[1] == f"   {found[0].remedy}"
    nothing = Profile(trace_of().trace).findings()
    assert nothing == []
    assert repr(nothing) == "No findings: the record has neither slices nor Python calls."
    assert repr(run_of(made, made).findings()) == "No findings: nothing stands out."
