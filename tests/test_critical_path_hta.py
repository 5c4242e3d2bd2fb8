"""The critical path on real traces against Holistic Trace Analysis.

HTA 0.5.0 cannot do it with pandas 3 (`DataFrame.drop(axis=1, columns=...)`, and it relies on
chained assignment), so what it says is written down here: `critical_path_analysis(rank=0,
annotation, instance_id)` under pandas 2.2 with HTA_DISABLE_NS_ROUNDING=1, its bound types added up
in us, and the GPU events among its `critical_path_events_set` (start in us, stream).
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pytest

from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.what_if import what_if
from gpuprof_widgets.trace.readers import load
from tests.traces import Shared

FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
ALEXNET_GPU = (
    *(43345833, 43345901, 43346226, 43346373, 43346511, 43346619, 43346743, 43346772, 43346784),
    *(43347046, 43347115, 43347167, 43347222, 43347236, 43347622, 43347668, 43347685, 43347712),
    *(43347723, 43347991, 43348037, 43348053, 43348091, 43348229, 43348240, 43349053, 43349063),
    *(43349069, 43349077, 43349471, 43349480, 43349487, 43349492, 43349591),
)
"""Three kernels of stream 20, then, after an event, 31 of stream 7."""
ADD_GPU = (41140619, 41141012, 41141021, 41141028, 41141033, 41141132)


@dataclass(frozen=True)
class Said:
    """What HTA says of one range: us by bound type, and the starts (us) of the GPU slices."""

    trace: str
    instance: int
    cpu: int
    gpu: int
    kernel_kernel: int
    launch: int
    slices: tuple[int, ...]
    events: int = 0
    """us between slices of two streams, which HTA weighs nothing."""


SAID = (
    Said("critical_path_alexnet_a100", 0, 74984, 3712, 50, 30, ALEXNET_GPU, events=1),
    Said("critical_path_alexnet_a100", 1, 32042, 3712, 50, 30, ALEXNET_GPU, events=1),
    Said("critical_path_simple_add_a100", 0, 294162, 508, 9, 17, ADD_GPU),
    Said("critical_path_simple_add_a100", 1, 241190, 508, 9, 17, ADD_GPU),
)


def path_of(said: Said, shared: Shared) -> pd.DataFrame:
    """The path of the same range: HTA's ends with the last GPU work that was launched in it."""
    record = load(shared(f"hta/{said.trace}.json.gz"))
    slices = record.trace.slices
    start = int(slices.loc[slices["name"] == FORWARD, "ts"].iloc[said.instance])
    gpu = slices[slices["category"].isin(["kernel", "gpu_memcpy", "gpu_memset"])]
    launched = gpu[gpu["ts"] >= start]
    return critical_path(record, region=(start, int((launched["ts"] + launched["dur"]).max())))


@pytest.mark.parametrize("said", SAID, ids=lambda said: f"{said.trace}-{said.instance}")
def test_the_same_path_as_hta(said: Said, shared: Shared) -> None:
    """The same GPU slices, and the same time by bound.

    What we add is time that HTA's path weighs nothing: of Python between ops, and of calls that
    wait for the GPU and found it done.
    """
    path = path_of(said, shared)
    us = path.groupby("kind")["dur_ns"].sum() / 1_000
    gpu = path[path["kind"].isin(["compute", "communication", "copy", "memset"])]
    assert tuple((gpu["start_ns"] // 1_000).tolist()) == said.slices
    assert gpu["dur_ns"].sum() == said.gpu * 1_000
    assert us["launch delay"] == said.launch
    assert us["kernel-to-kernel delay"] == said.kernel_kernel + said.events
    assert us["cpu op"] + us["runtime"] == said.cpu
    weightless = us.sum() - said.cpu - said.gpu - said.kernel_kernel - said.launch - said.events
    assert us["python"] + us.get("synchronisation", 0) == weightless


def test_a_launch_at_the_very_moment_in_which_the_stream_is_free(shared: Shared) -> None:
    """HTA takes the memset before it for what the last kernel waited for: 15 us kernel to kernel.

    The memset ended in the us in which the kernel's launch began, and launches take 15 us in this
    trace: the kernel began when its launch let it, and without the memset it would not be earlier.
    """
    record = load(shared("hta/cuda_event_sync_multi_stream_a100.json.gz"))
    last = critical_path(record).set_index("kind")["dur_ns"].tail(3) // 1_000
    assert last.to_dict() == {"launch delay": 15, "compute": 123, "synchronisation": 13}
    assert what_if(record, "Memset (Device)")["saved_ns"].tolist() == [0]
