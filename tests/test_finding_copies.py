"""Rules on tensors that are copied on the CPU and that grow by `torch.cat`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

import gpuprof_widgets
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.trace.model import Record
from tests.test_findings_work import said
from tests.traces import (
    Row,
    annotation,
    backward_op,
    cell_line,
    kernel,
    module,
    op,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow

MS = 1_000_000
END = op("aten::mm", ts=99 * MS, dur=MS)
"""So that the run takes 100 ms."""


def clone(ts: int, dur: int, name: str = "aten::clone") -> list[Row]:
    return [op(name, ts=ts, dur=dur), op("aten::copy_", ts=ts + dur // 4, dur=dur // 2)]


def in_rounds(name: str = "aten::clone", dur: int = MS, rounds: int = 3, ts: int = 0) -> list[Row]:
    """So many calls, between which something is computed."""
    calls = [
        [*clone(ts + at * 2 * dur, dur, name), op("aten::tanh", ts=ts + (2 * at + 1) * dur, dur=1)]
        for at in range(rounds)
    ]
    return list(chain(*calls))


def copying(took: int, *more: Row) -> Record:
    """A line that runs three times and copies; the third copy takes what is left of the time."""
    rows: list[Row] = []
    for at, dur in enumerate((MS, MS, took - 2 * MS)):
        rows += [cell_line(3, "y = x.clone()", ts=2 * at * MS, dur=dur), *clone(2 * at * MS, dur)]
    return trace_of(*rows, *more, END)


def growing(
    took: int,
    *,
    rounds: int = 20,
    sizes: Callable[[int], int] = lambda at: at,
    source: str = "out = torch.cat([out, x])",
) -> Record:
    """So many calls on one line, each with what the one before returned and one more, in ns."""
    each = took // rounds
    rows: list[Row] = []
    for at in range(rounds):
        start = at * 2 * MS
        shapes = [[[sizes(at), 8], [1, 8]], []]
        dur = each if at < rounds - 1 else took - each * (rounds - 1)
        rows += [
            cell_line(4, source, ts=start, dur=MS),
            op("aten::cat", ts=start, dur=dur, shapes=shapes, **{"Concrete Inputs": ["", "0"]}),
        ]
    return trace_of(*rows, END)


def timed(times: list[int], source: str = "out = add(out, x)", **metadata: Any) -> Record:
    """Calls on one line that take so many ns, without shapes."""
    rows = [
        row
        for at, took in enumerate(times)
        for row in (
            cell_line(4, source, ts=at * 2 * MS, dur=MS),
            op("aten::cat", ts=at * 2 * MS, dur=took),
        )
    ]
    return trace_of(*rows, op("aten::mm", ts=199 * MS, dur=MS), **metadata)


CASES = {
    "cpu_copies": (copying(10 * MS), copying(10 * MS - 1)),
    "growing_cat": (growing(5 * MS), growing(5 * MS - 1)),
}
"""Per rule a trace that fires it and one just below."""


class TestCpuCopies:
    def test_numbers_and_remedy(self) -> None:
        casts = in_rounds("aten::to", 3 * MS, ts=40 * MS)
        (finding,) = said("cpu_copies", copying(27 * MS, *casts))
        assert finding.text == (
            "Copying tensors on the CPU took 36.0 ms (36 % of the time) in 6 calls, mostly of "
            "`aten::clone` (75 %) and `aten::to` (25 %)."
        )
        assert (finding.cost_ns, finding.start_ns, finding.end_ns) == (36 * MS, 4 * MS, 29 * MS)
        assert finding.remedy.startswith("A clone is needed only if")
        assert "Make the data in the format in which it is used" in finding.remedy
        assert "reshape" not in finding.remedy

    def test_what_lies_within_a_copy_counts_once(self) -> None:
        rows = [
            op(name, ts=at * 20 * MS + start * MS, dur=dur * MS)
            for at in range(3)
            for start, dur, name in (
                (0, 10, "aten::contiguous"),
                (1, 8, "aten::clone"),
                (2, 6, "aten::copy_"),
                (11, 1, "aten::add"),
            )
        ]
        (finding,) = said("cpu_copies", trace_of(*rows, END))
        assert "took 30.0 ms (30 % of the time) in 3 calls of `aten::contiguous`" in finding.text
        assert "into another layout" in finding.remedy

    def test_many_ops_of_which_none_is_most(self) -> None:
        names = ["clone", "to", "type_as", "contiguous", "reshape", "flatten"]
        rows = [in_rounds(f"aten::{name}", ts=6 * at * MS) for at, name in enumerate(names)]
        (finding,) = said("cpu_copies", trace_of(*chain(*rows), END))
        assert "in 18 calls, the most in `aten::" in finding.text
        assert finding.remedy

    @pytest.mark.parametrize(("lines", "says"), [([4, 4, 4], True), ([4, 5, 6], False)])
    @pytest.mark.parametrize("name", ["aten::clone", "aten::to"])
    def test_copies_count_where_a_line_repeats_them(
        self, name: str, lines: list[int], says: bool
    ) -> None:
        rows: list[Row] = []
        for at, number in enumerate(lines):
            rows.append(cell_line(number, "x = f(x)", ts=at * 20 * MS, dur=9 * MS))
            rows += clone(at * 20 * MS, 8 * MS, name)
        assert bool(said("cpu_copies", trace_of(*rows, END))) is says

    @pytest.mark.parametrize(("between", "says"), [("aten::mm", True), ("aten::detach", False)])
    def test_on_one_line_rounds_are_told_apart_by_what_is_computed_between(
        self, between: str, says: bool
    ) -> None:
        rows = [cell_line(4, "train(model)", ts=0, dur=70 * MS)]
        for at in range(3):
            rows += clone(at * 20 * MS, 8 * MS, "aten::to")
            rows.append(op(between, ts=(at * 20 + 9) * MS, dur=MS))
        assert bool(said("cpu_copies", trace_of(*rows, END))) is says

    @pytest.mark.parametrize(
        "rows",
        [
            pytest.param(
                [op("aten::to", ts=20 * at * MS, dur=9 * MS) for at in range(3)],
                id="a cast to the same format",
            ),
            pytest.param(
                [
                    op(name, ts=at * 20 * MS + start * MS, dur=9 * MS)
                    for at in range(4)
                    for start, name in ((0, "aten::copy_"), (10, "aten::mul"))
                ],
                id="written into another tensor",
            ),
            pytest.param(
                [
                    *in_rounds(dur=9 * MS),
                    *(runtime("cudaMemcpyAsync", ts=(18 * at + 3) * MS, dur=MS) for at in range(3)),
                ],
                id="from a GPU",
            ),
        ],
    )
    def test_silent(self, rows: list[Row]) -> None:
        assert said("cpu_copies", trace_of(*rows, END)) == []

    @pytest.mark.parametrize(
        "around",
        [
            [op("aten::matmul", ts=0, dur=60 * MS)],
            backward_op("CloneBackward0", ts=0, dur=60 * MS, sequence=1),
            [annotation("Optimizer.step#SGD.step", ts=0, dur=60 * MS)],
            [annotation("enumerate(DataLoader)#_Single.__next__", ts=0, dur=60 * MS)],
        ],
        ids=["another op", "backward", "optimizer", "DataLoader"],
    )
    def test_silent_on_what_others_copy(self, around: list[Row]) -> None:
        copies = in_rounds(dur=9 * MS, ts=MS)
        assert said("cpu_copies", trace_of(*around, *copies, END)) == []

    def test_copies_that_a_function_of_the_user_makes_count(self) -> None:
        record = trace_of(op("Scale", ts=0, dur=60 * MS), *in_rounds(dur=9 * MS, ts=MS), END)
        assert len(said("cpu_copies", record)) == 1

    def test_beside_a_gpu_only_what_the_run_waits_for_counts(self) -> None:
        work = [
            op("aten::mm", ts=0, dur=MS),
            runtime("cudaLaunchKernel", ts=0, dur=MS),
            kernel("gemm", ts=MS, dur=98 * MS, launched_by=1),
        ]
        waiting = runtime("cudaDeviceSynchronize", ts=60 * MS, dur=39 * MS)
        record = trace_of(*work, *in_rounds(dur=9 * MS, ts=2 * MS), waiting)
        assert said("cpu_copies", record) == []

    def test_without_recorded_gpu_work_a_copy_may_be_one_to_the_gpu(self) -> None:
        gpu = [{"index": 0, "name": "NVIDIA A100"}]
        rows = [*in_rounds(dur=9 * MS), END]
        assert said("cpu_copies", trace_of(*rows, devices=gpu)) == []
        assert len(said("cpu_copies", trace_of(*rows, devices=gpu, cuda=True))) == 1

    def test_the_costliest_op_is_not_said_twice(self) -> None:
        rules = {finding.rule for finding in findings(copying(30 * MS))}
        assert "cpu_copies" in rules
        assert "cpu_ops" not in rules
        others = trace_of(*in_rounds(dur=4 * MS), op("aten::mm", ts=30 * MS, dur=70 * MS))
        assert {"cpu_copies", "cpu_ops"} <= {finding.rule for finding in findings(others)}


class TestGrowingCat:
    def test_shapes_alone_do_not_tell_whether_a_call_appends(self) -> None:
        """A mark before longer and longer sequences has the shapes of a tensor that grows."""
        (finding,) = said("growing_cat", growing(10 * MS, source="y = f(mark, x[:n])"))
        assert finding.title == "`torch.cat` joins more and more from call to call"
        assert finding.text == (
            "`aten::cat` joined more and more in 20 calls, which took 10.0 ms (10 % of the "
            "time). The result grew from 0 to 20 along one dimension."
        )
        assert finding.remedy.startswith("If each call appends")

    def test_a_long_line_is_searched_in_no_time(self) -> None:
        for source in ("a" * 100_000, "a=cat(" * 20_000, "." * 100_000):
            assert len(said("growing_cat", growing(10 * MS, source=source))) == 1

    @pytest.mark.parametrize("layers", [24, 100])
    def test_layers_that_read_all_before_them_are_no_loop(self, layers: int) -> None:
        rows: list[Row] = []
        for step in range(2):
            begin = step * 49 * MS
            rows.append(module("block", ts=begin, dur=48 * MS))
            rows += [
                op(
                    "aten::cat",
                    ts=begin + layer * MS * 45 // layers,
                    dur=MS * 40 // layers,
                    shapes=[[[8, layer + 1], [8, 1]], []],
                    **{"Concrete Inputs": ["", "1"]},
                )
                for layer in range(layers)
            ]
        assert len(said("growing_cat", trace_of(*rows, END))) == (layers == 100)

    @pytest.mark.parametrize(
        ("rounds", "sizes"),
        [
            pytest.param(15, lambda at: at, id="few calls"),
            pytest.param(20, lambda at: 7, id="constant sizes"),
            pytest.param(20, lambda at: at * 7919 % 31, id="random sizes"),
            pytest.param(20, lambda at: 20 - at, id="shrinking"),
            pytest.param(20, lambda at: at % 4, id="short runs"),
            pytest.param(20, lambda at: at * at, id="lengths of its inputs"),
        ],
    )
    def test_silent_by_shapes(self, rounds: int, sizes: Callable[[int], int]) -> None:
        assert said("growing_cat", growing(15 * MS, rounds=rounds, sizes=sizes)) == []

    def test_keys_and_values_grow_in_turns(self) -> None:
        rows: list[Row] = []
        for token in range(20):
            for layer in range(4):  # of which two cats grow, and one joins halves
                start = token * 4 * MS + layer * MS
                rows.append(module("attention", ts=start, dur=MS))
                rows += [
                    op("aten::cat", ts=start + at * MS // 4, dur=MS // 5, shapes=[shapes, []])
                    for at, shapes in enumerate(
                        (
                            [[1, 2, 1, 4], [1, 2, 1, 4]],
                            [[1, 2, token + 3, 8], [1, 2, 1, 8]],
                            [[1, 2, token + 3, 8], [1, 2, 1, 8]],
                        )
                    )
                ]
        (finding,) = said("growing_cat", trace_of(*rows, END))
        assert "in 160 calls, which took 32.0 ms" in finding.text
        assert "from 3 to 23 along one dimension" in finding.text
        assert "static" in finding.remedy

    @pytest.mark.parametrize(
        ("shapes", "dimension"),
        [
            pytest.param(lambda at: [[3, 8]] * (at + 2), "-2", id="a list"),
            pytest.param(lambda at: [[at, 8] if at else [0], [1, 8]], "", id="empty at first"),
        ],
    )
    def test_ways_to_grow(self, shapes: Callable[[int], list[list[int]]], dimension: str) -> None:
        given = {"Concrete Inputs": ["", dimension]}
        rows = [
            op("aten::cat", ts=at * 2 * MS, dur=MS, shapes=[shapes(at), []], **given)
            for at in range(20)
        ]
        assert len(said("growing_cat", trace_of(*rows, END))) == 1

    @pytest.mark.parametrize(
        "shapes",
        [[], [[]], ["x"], [[3, 8]], [[[3, 8], "x"], []], [[[3, 8], [1.5]], []], [[[], []], []], 7],
    )
    def test_odd_shapes_raise_nothing(self, shapes: Any) -> None:
        rows = [op("aten::cat", ts=at * 2 * MS, dur=MS, shapes=shapes) for at in range(20)]
        odd = {"Concrete Inputs": ["", "x"], "Input type": 3}
        more = [op("aten::cat", ts=(at + 21) * 2 * MS, dur=MS, **odd) for at in range(20)]
        assert said("growing_cat", trace_of(*rows, *more, END)) == []

    def test_by_times_where_the_line_appends(self) -> None:
        times = [MS * at // 40 for at in range(40)]
        (finding,) = said("growing_cat", timed(times, "self.out = torch.cat((self.out, x), 1)"))
        assert finding.text == (
            "`aten::cat` copied a growing tensor in 40 calls, which took 19.5 ms (9.8 % of the "
            "time). The second half of the calls took 3.1 times as long as the first half, as "
            "each call copied the whole tensor."
        )

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("out = torch.cat([out, x])", True),
            ("self.out = cat((x, self.out), dim=1)  # [rows]", True),
            ("buffer = torch.cat([buffer[1:], x])", False),
            ("out = torch.cat([out, x])[-100:]", False),
            ("out = torch.cat([other, x])", False),
        ],
    )
    def test_a_line_that_appends_is_believed_among_other_programs(
        self, source: str, says: bool
    ) -> None:
        """Other programs made calls slower at random, as on two CPUs that four programs shared."""
        slower = [(at * 7919 % 11) * MS // 40 for at in range(64)]
        times = [MS // 4 + MS * at // 100 + slower[at] for at in range(64)]
        found = said("growing_cat", timed(times, source))
        assert [each.title for each in found] == ["A tensor grows by `torch.cat` in a loop"] * says

    def test_many_short_tensors_on_one_line_are_none_that_grows(self) -> None:
        times = [MS * (1 + at % 4) // 8 for at in range(64)]
        assert said("growing_cat", timed(times, "out = torch.cat([out, x])")) == []

    @pytest.mark.parametrize("source", ["f(out, x)", "out = torch.cat([a, x])", ""])
    def test_by_times_alone_it_is_only_likely(self, source: str) -> None:
        times = [MS * at // 40 for at in range(40)]
        (finding,) = said("growing_cat", timed(times, source))
        assert finding.title == "`torch.cat` joins more and more from call to call"
        assert "joined more and more in 40 calls" in finding.text
        assert finding.remedy.startswith("If each call appends")

    @pytest.mark.parametrize(
        "times",
        [
            pytest.param([MS // 2] * 40, id="constant"),
            pytest.param([0] * 40, id="nothing"),
            pytest.param([MS * (40 - at) // 40 for at in range(40)], id="warming up"),
            pytest.param([MS // 4] * 39 + [30 * MS], id="one slow call"),
            pytest.param([*[MS // 5, MS // 4] * 10, *[MS - 9, MS // 2] * 10], id="a slower half"),
            pytest.param([MS // 2 + 1000 * at for at in range(40)], id="hardly slower"),
            pytest.param([MS * at // 15 for at in range(15)], id="few calls"),
            pytest.param([MS * (at * 17 % 40) // 40 for at in range(40)], id="at random"),
        ],
    )
    def test_silent_by_times(self, times: list[int]) -> None:
        assert said("growing_cat", timed(times)) == []

    def test_each_run_of_a_loop_begins_anew(self) -> None:
        rows: list[Row] = []
        for run in range(3):
            rows.append(cell_line(3, "for x in data:", ts=run * 60 * MS, dur=59 * MS))
            for at in range(20):
                start = run * 60 * MS + at * 2 * MS
                rows.append(cell_line(4, "out = f(out)", ts=start, dur=MS))
                rows.append(op("aten::cat", ts=start, dur=MS * at // 20))
        (finding,) = said("growing_cat", trace_of(*rows))
        assert "in 60 calls" in finding.text

    def test_two_calls_in_one_round_are_told_apart(self) -> None:
        rows: list[Row] = []
        for at in range(20):
            start = at * 4 * MS
            rows.append(cell_line(4, "out = f(out)", ts=start, dur=3 * MS))
            rows.append(op("aten::cat", ts=start, dur=MS))
            rows.append(op("aten::cat", ts=start + MS, dur=MS * at // 10))
        (finding,) = said("growing_cat", trace_of(*rows, END))
        assert "in 20 calls, which took 19.0 ms" in finding.text

    def test_on_a_gpu_the_time_is_that_of_the_kernels(self) -> None:
        rows: list[Row] = []
        for at in range(20):
            start = at * 4 * MS
            rows.append(op("aten::cat", ts=start, dur=MS))
            rows.append(runtime("cudaLaunchKernel", ts=start, dur=9))
            rows.append(
                kernel("Cat", ts=start + 9, dur=MS * (at + 1) // 8, launched_by=len(rows) - 1)
            )
        (finding,) = said("growing_cat", trace_of(*rows, END))
        assert "in 20 calls, which took 26.2 ms on the GPU" in finding.text

    def test_the_costliest_op_is_not_said_twice(self) -> None:
        assert {"growing_cat", "cpu_ops"} & {f.rule for f in findings(growing(15 * MS))} == {
            "growing_cat"
        }


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys = torch.zeros(32, 0, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.cat([-x[..., 32:], x[..., :32]], -1)
        self.keys = torch.cat([self.keys, turned], 1)
        return self.keys[:, -1:]


def clone_and_cast() -> None:
    h = torch.randn(500, 500)
    for _ in range(20):
        h = torch.tanh(h.clone().double().float().clone())


def lay_out() -> None:
    h = torch.randn(500, 500)
    for _ in range(20):
        h = torch.tanh(h.t().contiguous())


def append() -> None:
    out = torch.zeros(0, 64)
    for _ in range(100):
        out = torch.cat([out, torch.zeros(100, 64)])


def generate() -> None:
    model, x = nn.Sequential(Cache(), Cache()), torch.randn(32, 1, 64)
    for _ in range(100):
        x = model(x)


def train() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(256, 64)
    for _ in range(20):
        optimizer.zero_grad()
        joined = torch.cat([x[:128], x[128:]])
        model(joined.to(torch.float32)).square().mean().backward()
        optimizer.step()


def fill() -> None:
    batch, image = torch.zeros(20, 100_000), torch.randn(100_000)
    for at in range(20):
        batch[at] = image.relu()


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8 * (at + 1), 8) for at in range(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu()], 1)
        return x


def connect() -> None:
    model, x = Dense(), torch.randn(500, 8)
    for _ in range(3):
        model(x).sum().backward()


QUIET = (train, fill, connect)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("run", "speaks"),
    [
        (clone_and_cast, {"cpu_copies"}),
        (lay_out, {"cpu_copies"}),
        (append, {"growing_cat"}),
        (generate, {"growing_cat"}),
        *((run, set[str]()) for run in QUIET),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_real_cells(run: Callable[[], None], speaks: set[str]) -> None:
    """How long copies take depends on the machine: that they are copies does not."""
    run()
    with gpuprof_widgets.profile(shapes=True, quiet=True) as profile:
        run()
    copies = said("cpu_copies", profile, cpu_copies_share=0.02)
    grows = said("growing_cat", profile, growing_cat_share=0.001)
    assert {*(["cpu_copies"] if copies else []), *(["growing_cat"] if grows else [])} == speaks
