"""The simulated GPU: its truth is known, and the analyses find it."""

from __future__ import annotations

from gpuprof_widgets import Profile
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
