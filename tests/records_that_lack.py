"""Records of all kinds that lack something, by what they are."""

from __future__ import annotations

import cProfile
import json
from collections.abc import Callable
from pathlib import Path

import torch

import gpuprof_widgets
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import parse
from tests.job import collective
from tests.snapshots import dumped, snapshot, training
from tests.timelines import of_gpus
from tests.traces import annotation, cell_line, kernel, module, op, python, runtime, trace_of

Made = Callable[[Path], Record]


def _of_cprofile(folder: Path) -> Record:
    profile = cProfile.Profile()
    profile.runcall(sorted, [3, 1, 2])
    profile.dump_stats(folder / "run.prof")
    return Profile.load(folder / "run.prof")


def _recorded(folder: Path) -> Profile:
    with gpuprof_widgets.profile(quiet=True, shapes=True) as run:
        x = torch.ones(8, 8, requires_grad=True)
        (x @ x).sum().backward()
    return run


def _without_cprofile(folder: Path) -> Record:
    with gpuprof_widgets.profile(quiet=True, python="off") as run:
        torch.ones(8).sum()
    return run


def _sampled(folder: Path) -> Record:
    with gpuprof_widgets.profile(quiet=True, python="sampled") as run:
        torch.ones(8).sum()
    return run


def _of_nothing(folder: Path) -> Record:
    with gpuprof_widgets.profile(quiet=True) as run:
        pass
    return run


def _launched(folder: Path) -> Record:
    return trace_of(
        op("aten::mm", ts=0, dur=9),
        runtime("cudaLaunchKernel", ts=1, dur=3),
        kernel("gemm", ts=10, dur=5, launched_by=1),
    )


def _after_its_end(folder: Path) -> Record:
    run = _recorded(folder)
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
    "our own recording": _recorded,
    "our own without cProfile": _without_cprofile,
    "our own of samples": _sampled,
    "our own of nothing": _of_nothing,
    "a range after its end": _after_its_end,
}
