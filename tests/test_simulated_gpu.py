"""The simulated GPU: its truth is known, and the analyses find it."""

from __future__ import annotations

import torch

from gpuprof_widgets import Profile
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from tests.simulated_gpu import LABEL, ImaginaryGpu, simulate
from tests.traces import Row, annotation, op, trace_of

US = 1_000
LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
GPU = ImaginaryGpu(dispatch_ns=10 * US, launch_ns=5 * US, latency_ns=4 * US, shortest_ns=2 * US)


def recorded(*rows: Row) -> Profile:
    record = trace_of(*rows)
    return Profile(record.trace, metadata={"label": "a loop"})


def times(profile: Profile) -> dict[str, int]:
    """Of each class in us."""
    table = profile.breakdown()
    return {
        row["class"]: row["time_ns"] / US for row in table[table["time_ns"] > 0].to_dict("records")
    }


def two_kernels_and_a_number() -> Profile:
    """Recorded on the CPU, where a ReLU takes as long as it takes."""
    return recorded(
        annotation("a loop", ts=0, dur=240 * US),
        annotation(LOADING, ts=0, dur=100 * US),
        op("aten::relu", ts=110 * US, dur=50 * US, shapes=[[4, 4]]),
        op("aten::clamp_min", ts=120 * US, dur=10 * US, shapes=[[4, 4]]),
        op("aten::relu", ts=170 * US, dur=30 * US, shapes=[[4, 4]]),
        op("aten::item", ts=210 * US, dur=5 * US, shapes=[[]], **{"Input type": ["float"]}),
        op("aten::view", ts=230 * US, dur=10 * US, shapes=[[4, 4]]),
    )


def test_the_idle_time_of_a_simulated_gpu_has_the_causes_that_were_put_in() -> None:
    """Launches return at 125, 150 and 175 us, their work begins at 129, 154 and 179."""
    made = simulate(two_kernels_and_a_number(), GPU)
    assert times(made) == {
        "compute": 2 + 2,
        "exposed copy": 1,
        "input pipeline": 100,
        "Python": 10 + 4 + 4,
        "CPU ops": 10 + 10 + 10,
        "launching": 5 + 5 + 5,
        "queued": 4 + 4 + 4,
        "other": 26,
    }
    assert made.trace.span_ns == 206 * US


def test_reading_a_number_waits_for_the_stream() -> None:
    table = waits(simulate(two_kernels_and_a_number(), GPU))
    (wait,) = table[table["kind"] == "synchronise"].to_dict("records")
    assert (wait["name"], wait["op_name"]) == ("cudaStreamSynchronize", "aten::item")
    assert (wait["start_ns"], wait["dur_ns"]) == (175 * US, 6 * US)


def test_a_batch_from_pageable_memory_waits_for_the_copy_and_from_pinned_memory_not() -> None:
    sent = recorded(
        op("aten::to", ts=0, dur=2 * US, shapes=[[500, 50]]),
        op("aten::relu", ts=10 * US, dur=2 * US, shapes=[[4, 4]]),
    )
    copying = 100_000 / 5  # bytes at 5 GB/s
    pageable, pinned = simulate(sent, GPU), simulate(sent, GPU, pinned=True)
    assert waits(pageable)["dur_ns"].tolist() == [4 * US + copying + US]
    assert len(waits(pinned)) == 0
    for made, kind in ((pageable, "Pageable"), (pinned, "Pinned")):
        assert f"Memcpy HtoD ({kind} -> Device)" in set(made.trace.slices["name"])


def test_a_kernel_takes_what_its_arithmetic_or_its_bytes_take() -> None:
    def kernel_ns(name: str, shapes: list[list[int]], **rates: float) -> int:
        made = simulate(
            recorded(op(name, ts=0, dur=US, shapes=shapes)), ImaginaryGpu(shortest_ns=1, **rates)
        )
        return int(made.kernels()["total_ns"].iloc[0])

    rates = {"flops_per_s": 1e9, "bytes_per_s": 1e9}
    assert kernel_ns("aten::mm", [[10, 20], [20, 30]], **rates) == 2 * 10 * 20 * 30
    assert kernel_ns("aten::addmm", [[30], [10, 20], [20, 30]], **rates) == 2 * 10 * 20 * 30
    assert kernel_ns("aten::relu", [[10, 20]], **rates) == 2 * 4 * 200


def test_everything_simulated_says_so() -> None:
    made = simulate(two_kernels_and_a_number(), GPU)
    label = "SIMULATED: a loop, on an imaginary GPU"
    assert made.metadata["label"] == label
    assert "The GPU is SIMULATED" in made.report()
    slices = made.trace.slices
    assert label in set(slices["name"])
    assert "a loop" not in set(slices["name"])
    kernels = slices.loc[(slices["category"] == "kernel").to_numpy(), "name"]
    assert len(kernels) == 2
    assert all(name.startswith(LABEL) for name in kernels)


def test_of_a_real_recording_the_stream_is_in_order_and_never_before_its_launches() -> None:
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(Options(shapes=True, python="off"), label="loop") as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.rand(3, 8).to("cpu")).sum()
            loss.backward()
            optimizer.step()
            loss.item()
    record = recorder.record()
    made = simulate(Profile(record.trace, metadata=record.metadata))
    slices = made.trace.slices
    gpu = slices[slices["category"].isin(["kernel", "gpu_memcpy"])].sort_values("ts")
    end = gpu["ts"] + gpu["dur"]
    assert len(gpu) > 10
    assert (gpu["ts"].to_numpy()[1:] >= end.to_numpy()[:-1] + US).all()
    launch = slices.loc[gpu["launch"]]
    returned = (launch["ts"] + launch["dur"]).to_numpy()
    assert (gpu["ts"].to_numpy() >= returned + ImaginaryGpu().latency_ns).all()
    assert waits(made)["op_name"].tolist().count("aten::item") == 3
