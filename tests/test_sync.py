"""`--sync`: CUDA's own synchronisation events, from the switch to the timeline."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.readers import load
from tests.traces import Shared


def record(**options: Any) -> Trace:
    with Recorder(Options(python="off", **options), label="the run") as recorder:
        torch.ones(2)
    return recorder.record().trace


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"sync": True}, {"enable_cuda_sync_events": True}),
        ({"record": "sync"}, {"enable_cuda_sync_events": True}),
    ],
)
def test_the_switch_reaches_torch(
    options: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[dict[str, Any]] = []
    make = torch._C._profiler._ExperimentalConfig

    def logging(**keywords: Any) -> Any:
        settings.append(keywords)
        return make(**keywords)

    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", logging)
    assert "aten::ones" in set(record(**options).slices["name"])
    assert settings[0] == expected


def test_synchronisation_events_of_a_real_trace_are_on_tracks_of_their_own(shared: Shared) -> None:
    trace = load(shared("hta/cuda_event_sync_multi_stream_a100.json.gz")).trace
    events = trace.slices[trace.slices["category"] == "cuda_sync"]
    labels = trace.tracks["label"].to_numpy()[events["track"]]
    found = list(zip(events["name"], labels, events["dur"], strict=True))
    assert found == [
        ("Event Sync", "GPU 0 · synchronisation", 4_000),
        ("Event Sync", "GPU 0 · synchronisation", 4_000),
        ("Event Sync", "GPU 0 · synchronisation", 4_000),
        ("Context Sync", "GPU 0 · synchronisation", 19_000),
        ("Stream Wait Event", "GPU 0 · stream 24 · synchronisation", 2_000),
    ]
    wait = events.index[-1]
    assert trace.args["cuda_sync_kind"][wait] == "Stream Wait Event"
    assert trace.args["wait_on_stream"][wait] == 20
    # Each lies inside the runtime call that asked for it.
    calls = trace.slices[trace.slices["category"] == "cuda_runtime"].set_index("correlation")
    assert list(calls.loc[events["correlation"], "name"]) == [
        *("cudaEventQuery",) * 3,
        "cudaDeviceSynchronize",
        "cudaStreamWaitEvent",
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_gpu_records_its_synchronisations() -> None:
    def run() -> None:
        torch.ones(8, device="cuda")
        torch.cuda.synchronize()

    with Recorder(Options(sync=True, python="off"), label="the run") as recorder:
        run()
    slices = recorder.record().trace.slices
    assert "Context Sync" in set(slices.loc[slices["category"] == "cuda_sync", "name"])
