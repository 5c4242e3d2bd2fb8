"""Where a real GPU's time goes: input pipeline, synchronising calls, copies."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.analyses.streams import overlaps, streams
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def recorded(work: Callable[[], object]) -> Record:
    """The second run: the first one starts CUDA, cuBLAS and CUPTI."""
    for label in ("warm up", "the run"):
        with Recorder(Options(python="off"), label=label) as recorder:
            work()
            torch.cuda.synchronize()
    return recorder.record()


def shares(record: Record) -> dict[str, float]:
    table = breakdown(record)
    assert table["time_ns"].sum() == record.trace.span_ns
    return dict(zip(table["class"], table["share"], strict=True))


def test_a_gpu_that_waits_for_its_data_does_so_in_the_input_pipeline() -> None:
    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.02)
            return torch.ones(64, 64)

    def train() -> None:
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=2):
            batch.cuda().square().sum()

    found = shares(recorded(train))
    assert found["input pipeline"] > 0.5


def test_queued_matmuls_are_compute() -> None:
    matrix = torch.ones(8192, 8192, device="cuda")

    def compute() -> None:
        for _ in range(20):
            matrix @ matrix

    record = recorded(compute)
    assert shares(record)["compute"] > 0.5
    assert set(idle(record, by="stream")["cause"]) <= {
        *("start", "end", "host", "device", "back to back", "synchronise")
    }


def test_streams_that_work_side_by_side_overlap() -> None:
    matrix = torch.ones(8192, 8192, device="cuda")
    host = torch.ones(2**28, dtype=torch.uint8).pin_memory()
    other = torch.cuda.Stream()

    def both() -> None:
        for _ in range(20):
            matrix @ matrix
        with torch.cuda.stream(other):
            host.to("cuda", non_blocking=True)

    record = recorded(both)
    assert len(streams(record)) == 2
    assert overlaps(record)["copy_overlapped_share"].iloc[0] > 0.5
    assert (streams(record)["serialised_ns"] < record.trace.span_ns / 2).all()
