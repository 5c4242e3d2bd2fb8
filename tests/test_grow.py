"""The traces that benchmarks make out of smaller ones: so many times all of it, and no more."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from benchmarks.grow import PAUSE_US, grow
from gpuprof_widgets.analyses.launches import UNLINKED
from gpuprof_widgets.profiles import Profile

TIMES = 3
STEP_NS = 1_000_000
SPAN_NS = 3 * STEP_NS - 1
LAUNCH = "cudaLaunchKernel"
EPOCH = "166120346259"
"""With these digits before them, microseconds and their decimals are beyond a float64."""


def event(name: str, category: str, ts: str, dur: str, **args: Any) -> dict[str, Any]:
    thread = {"pid": 0, "tid": 7} if "stream" in args else {"pid": 100, "tid": 100}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        **thread,
        "ts": f"@{ts}@",
        "dur": f"@{dur}@",
        "args": args,
    }


def arrow(phase: str, number: int, ts: str) -> dict[str, Any]:
    thread = {"pid": 100, "tid": 100} if phase == "s" else {"pid": 0, "tid": 7}
    name = {"cat": "ac2g", "name": "ac2g", "ph": phase, "id": number}
    return {**name, **thread, "ts": f"@{ts}@", "bp": "e"}


def step(number: int) -> list[dict[str, Any]]:
    """An op that launches a kernel; in the last step the kernel's launch is not in the trace."""
    at = f"{EPOCH}{number}"
    events = [
        event(f"ProfilerStep#{7 + number}", "user_annotation", f"{at}000.000", "999.999"),
        event(
            *("aten::mm", "cpu_op", f"{at}100.125", "50.250"),
            **{"External id": 1 + number, "Ev Idx": number, "Sequence number": number},
        ),
        event(LAUNCH, "cuda_runtime", f"{at}110.001", "9.5", correlation=40 + number),
        event(
            *("gemm", "kernel", f"{at}200.003", "100.750"),
            device=0,
            stream=7,
            correlation=40 + number,
        ),
        arrow("s", 40 + number, f"{at}110.001"),
        arrow("f", 40 + number, f"{at}200.003"),
    ]
    return [one for one in events if number < 2 or one["name"] != LAUNCH]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trace of three steps and the larger one."""
    folder = tmp_path_factory.mktemp("grown")
    source, target = folder / "small.json.gz", folder / "large.json.gz"
    names = [
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
    ]
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "A100", "numSms": 108}],
        "traceEvents": [*names, *step(0), *step(1), *step(2)],
    }
    text = json.dumps(document).replace('"@', "").replace('@"', "")
    source.write_bytes(gzip.compress(text.encode()))
    grow(source, TIMES, target)
    return source, target


@pytest.fixture(scope="module")
def profiles(traces: tuple[Path, Path]) -> tuple[Profile, Profile]:
    small, large = map(gpuprof_widgets.load, traces)
    return small, large


def test_there_are_so_many_times_the_kernels_and_as_many_without_a_launch(
    profiles: tuple[Profile, Profile],
) -> None:
    small, large = profiles
    assert small.launches().attrs[UNLINKED] == 1
    assert large.launches().attrs[UNLINKED] == TIMES
    for column in ("calls", "total_ns"):
        assert large.kernels()[column].sum() == TIMES * small.kernels()[column].sum()


def test_every_copy_has_its_times_to_the_last_digit(profiles: tuple[Profile, Profile]) -> None:
    source, copies = (profile.trace.slices for profile in profiles)
    later = SPAN_NS + 1_000 * PAUSE_US
    for name in ("aten::mm", "gemm"):
        starts, copied = (
            table.loc[table["name"] == name, ["ts", "dur"]].to_numpy().tolist()
            for table in (source, copies)
        )
        assert copied == [[ts + n * later, dur] for n in range(TIMES) for ts, dur in starts]


def test_no_link_leads_to_another_copy(profiles: tuple[Profile, Profile]) -> None:
    small, large = profiles
    linked = large.launches()
    assert len(linked) == TIMES * len(small.launches())
    assert set(linked["latency_ns"]) == set(small.launches()["latency_ns"])
    flows = large.trace.flows
    slices = large.trace.slices
    apart = slices["ts"].to_numpy()[flows["target"]] - slices["ts"].to_numpy()[flows["source"]]
    assert len(flows) == TIMES * len(small.trace.flows)
    assert (abs(apart) < STEP_NS).all()


def test_steps_are_numbered_on(profiles: tuple[Profile, Profile]) -> None:
    _, large = profiles
    assert large.steps()["step"].tolist() == list(range(7, 7 + 3 * TIMES))


def test_names_of_threads_and_the_head_are_written_once(traces: tuple[Path, Path]) -> None:
    small, large = (json.loads(gzip.decompress(path.read_bytes())) for path in traces)
    named = [[e for e in one["traceEvents"] if e["ph"] == "M"] for one in (small, large)]
    assert named[0] == named[1]
    assert len(large["traceEvents"]) - 2 == TIMES * (len(small["traceEvents"]) - 2)
    del small["traceEvents"], large["traceEvents"]
    assert small == large
