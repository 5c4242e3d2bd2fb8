"""The page's text holds the record: exactly where it fits the budget, else in a stated way."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuprof_widgets.exceptions import printable_values
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views import encoding
from gpuprof_widgets.views.encoding import (
    NO_SHAPES,
    TICKS_NS,
    TOO_LARGE,
    Payload,
    _Page,
    encode,
)
from gpuprof_widgets.views.page_panels import panels
from gpuprof_widgets.views.page_rows import PageRows, merge_short, page_rows
from tests.records import records
from tests.traces import annotation, calls_of, copy, kernel, memory, op, python, runtime, trace_of

pytestmark = pytest.mark.slow

HOSTILE = ["</script><img src=x onerror=alert(1)>", "__proto__", '\u2028\n"\\', "=1+1", "日本語"]

US = 1_000
LOOP = trace_of(
    *(
        row
        for i in range(400)
        for row in (
            op("aten::linear", ts=(i * 100 + 2) * US, dur=50 * US, shapes=[[i % 2]]),
            op("aten::addmm", ts=(i * 100 + 4) * US, dur=30 * US),
            runtime("cudaLaunchKernel", ts=(i * 100 + 5) * US, dur=3 * US),
            kernel("gemm", ts=(i * 100 + 9) * US, dur=(20 + i % 7) * US, launched_by=4 * i + 2),
        )
    ),
    *(annotation("epoch", ts=i * 10_000 * US, dur=9_990 * US) for i in range(4)),
)
"""Four hundred like steps in four epochs; all times are whole microseconds."""


class Page:
    """A payload decoded as views/encoding.py describes it, by plain loops."""

    def __init__(self, payload: Payload) -> None:
        raw = gzip.decompress(base64.b64decode(payload.text))
        length = int.from_bytes(raw[:4], "little")
        self.header: dict[str, Any] = json.loads(raw[4 : 4 + length])
        self.rows: int = self.header["rows"]
        self.columns: dict[str, list[int]] = {}
        offset = 4 + length
        for column in self.header["columns"]:
            size = column["width"] * self.rows
            planes = raw[offset : offset + size]
            offset += size
            stored = [
                int.from_bytes(planes[row :: self.rows], "little") for row in range(self.rows)
            ]
            self.columns[column["name"]] = getattr(self, column["encoding"])(stored)
        offset += sum(info["width"] * info["length"] for info in self.header["arrays"])
        assert offset == len(raw)

    def plain(self, stored: list[int]) -> list[int]:
        return stored

    def delta(self, stored: list[int]) -> list[int]:
        values = []
        for track in self.track:
            before = values[-1] if values and self.track[len(values) - 1] == track else 0
            values.append(before + stored[len(values)])
        return values

    def link(self, stored: list[int]) -> list[int]:
        last, values = 0, []
        for value in stored:
            last += 0 if value == 0 else self.signed([value - 1])[0]
            values.append(last if value else -1)
        return values

    def signed(self, stored: list[int]) -> list[int]:
        return [-(value + 1) // 2 if value % 2 else value // 2 for value in stored]

    @property
    def track(self) -> list[int]:
        return [i for i, track in enumerate(self.header["tracks"]) for _ in range(track["rows"])]

    def labels(self) -> list[tuple[str, str]]:
        pairs = [self.header["label"][label] for label in self.columns["label"]]
        names, categories = self.header["names"], self.header["categories"]
        return [(names[name], categories[category]) for name, category in pairs]


@given(records())
@example(LOOP)
@settings(max_examples=25)
def test_the_text_holds_every_slice_to_the_nanosecond(record: Record) -> None:
    page, slices = Page(encode(record)), record.trace.slices
    assert page.columns["ts"] == slices["ts"].tolist()
    assert page.columns["dur"] == slices["dur"].tolist()
    assert page.track == slices["track"].tolist()
    names = map(printable_values, slices["name"])  # a page has no control codes
    assert page.labels() == list(zip(names, slices["category"], strict=True))
    forward = page.columns.get("forward", [-1] * page.rows)
    assert forward == slices["forward"].tolist()
    is_gpu = slices["category"].isin(GPU_CATEGORIES)
    owner = slices["launch"].where(slices["launch"] >= 0, slices["op"]).where(is_gpu, -1)
    assert page.columns.get("owner", [-1] * page.rows) == owner.tolist()


def test_names_are_data_and_the_text_cannot_break_a_page() -> None:
    rows = [op(name, ts=i, dur=1) for i, name in enumerate(HOSTILE)]
    payload = encode(trace_of(*rows))
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", payload.text)
    shown = [name.replace("\u2028", "\\u2028") for name in HOSTILE]
    assert [name for name, _ in Page(payload).labels()] == shown


def test_sizes_shapes_and_calls_are_sent_where_they_were_recorded() -> None:
    rows = [
        op("aten::mm", ts=0, dur=9, shapes=[[2, 3], []]),
        memory(-512, ts=3),
        copy(ts=12, dur=3, bytes=2**40, launched_by=0),
    ]
    page = Page(encode(trace_of(*rows, calls=calls_of((None, "f", 1, 5)))))
    assert page.columns["bytes"] == [0, -512, 2**40]
    assert [(["", *page.header["shapes"]])[code] for code in page.columns["shape"]] == [
        "[[2, 3], []]",
        "",
        "",
    ]
    assert [call["name"] for call in page.header["calls"]] == ["all calls", "cell.py:1(f)"]
    plain = Page(encode(trace_of(op("aten::mm", ts=0, dur=9))))
    assert set(plain.columns) == {"ts", "dur", "label"}
    assert plain.header["calls"] is None


def test_a_window_sends_callers_that_lie_before_it() -> None:
    rows = [
        op("aten::mm", ts=0, dur=9),
        runtime("cudaLaunchKernel", ts=2, dur=3),
        kernel("gemm", ts=50, dur=9, launched_by=1),
    ]
    page = Page(encode(window(trace_of(*rows), 55, 59)))
    assert [name for name, _ in page.labels()] == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert parents(page) == [-1, 0, -1]
    assert page.columns["owner"] == [-1, -1, 1]
    assert page.columns["count"] == [0, 0, 1]
    assert (page.header["start_ns"], page.header["end_ns"]) == (55, 59)
    began = np.array(page.columns["ts"]) - page.columns["before"]
    assert began.tolist() == [0, 2, 50]


def parents(page: Page) -> list[int]:
    """Callers as the page gets them where nesting does not give them."""
    return [row - step if step else -1 for row, step in enumerate(page.columns["parent"])]


def test_an_empty_record_has_a_page() -> None:
    assert Page(encode(trace_of())).rows == 0
    assert encode(trace_of(), budget_bytes=1).notes != ()


def test_a_smaller_budget_takes_coarser_ticks_then_merges() -> None:
    rng = np.random.default_rng(3)
    ends = np.cumsum(rng.integers(200, 9_000, 4_000))
    record = trace_of(*(op("aten::mm", ts=int(end) - 150, dur=150) for end in ends))
    sizes = [len(encode(record).text)]
    for tick_ns in 100, 1_000:
        payload = encode(record, budget_bytes=sizes[-1] - 1)
        assert payload.tick_ns == tick_ns
        assert "rounded" in payload.notes[0]
        assert Page(payload).header["notes"] == list(payload.notes)
        sizes.append(len(payload.text))
    merged = encode(record, budget_bytes=sizes[-1] - 1)
    assert len(merged.text) < sizes[-1]
    assert "merged" in merged.notes[0]
    page = Page(merged)
    assert sum(page.columns["count"]) == 4_000
    assert encode(record).notes == ()


@pytest.mark.parametrize("tick_ns", [100, 1_000])
def test_coarse_ticks_keep_callers_and_ops(tick_ns: int) -> None:
    """Events that a tick cannot tell apart still have their callers."""
    starts = np.arange(200) * 2_000 + np.random.default_rng(3).integers(0, 900, 200)
    rows = [
        row
        for i, ts in enumerate(starts.tolist())
        for row in (
            op("outer", ts=ts, dur=40),
            op("inner", ts=ts + 10, dur=20),
            runtime("cudaLaunchKernel", ts=ts + 12, dur=5),
            kernel("gemm", ts=ts + 300, dur=60, launched_by=4 * i + 2),
        )
    ]
    record = trace_of(*rows)
    budget = len(encode(record).text)
    while (payload := encode(record, budget_bytes=budget)).tick_ns < tick_ns:
        budget = len(payload.text) - 1
    page, slices = Page(payload), record.trace.slices
    assert page.rows == len(slices)
    assert parents(page) == slices["parent"].tolist()
    end = np.array(page.columns["ts"]) + page.columns["dur"]
    assert np.abs(end * tick_ns - (slices["ts"] + slices["dur"])).max() <= tick_ns // 2


@given(records(), st.sampled_from([1, 3, 100, 1_000]), st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_rows_nest_where_nesting_them_gives_their_parents(
    record: Record, tick_ns: int, part: tuple[float, float]
) -> None:
    trace = record.trace
    t0, t1 = (trace.start_ns + round(share * trace.span_ns) for share in sorted(part))
    rows = page_rows(window(record, t0, max(t1, t0 + 1)).trace)
    ts, end = rows.ts // tick_ns, (rows.ts + rows.dur) // tick_ns
    parent, _ = links.nest(ts, end, rows.track)
    assert rows.nests(ts, end) == np.array_equal(parent, rows.parent)


def test_merged_events_keep_totals_callers_owners_and_nesting() -> None:
    rows = page_rows(LOOP.trace)
    for longest_ns, slot_ns in (50 * US, 400 * US), (50 * US, 2_000 * US), (60 * US, 40_000 * US):
        merged = merge_short(rows, longest_ns, slot_ns)
        assert len(merged) < len(rows)
        assert summed(merged) == summed(rows)
        parent, _ = links.nest(merged.ts, merged.ts + merged.dur, merged.track)
        assert parent.tolist() == merged.parent.tolist()
    assert len(merged) == 4 * (1 + 2 * 4)  # per epoch and shape: two ops, a launch, a kernel


def summed(rows: PageRows) -> Counter[Any]:
    """Events and time by label, its caller's label and its launch's label."""
    label = [rows.label_pairs[code] for code in rows.label] + [None]  # the last one is nobody's
    total: Counter[Any] = Counter()
    columns = (rows.parent, rows.owner, rows.op, rows.count, rows.dur)
    for own, parent, owner, op_, count, dur in zip(label, *columns, strict=False):
        key = (own, label[parent], label[owner], label[op_])
        total[*key, "events"] += int(count)
        total[*key, "ns"] += int(dur)
    return total


def test_long_events_are_never_merged_nor_merged_across() -> None:
    short = [op("short", ts=10 * i, dur=1) for i in range(3_000)]
    long = [op("long", ts=10_000 * i + 5_005, dur=4) for i in range(3)]
    rows = page_rows(trace_of(*short, *long, python("frame", ts=0, dur=40_000)).trace)
    merged = merge_short(rows, 2, 40_000)
    texts = [merged.names[merged.label_pairs[code][0]] for code in merged.label]
    table = list(zip(texts, merged.ts, merged.dur, merged.count, strict=True))
    assert [row for row in table if row[0] != "short"] == [
        *(("long", 10_000 * i + 5_005, 4, 1) for i in range(3)),
        ("frame", 0, 40_000, 1),
    ]
    assert [row[3] for row in table if row[0] == "short"] == [501, 1_000, 1_000, 499]


def test_payload_says_whether_its_rows_are_the_slices() -> None:
    assert encode(LOOP).rows_kept
    merged = encode(LOOP, budget_bytes=1)
    assert Page(merged).rows < len(LOOP.trace)
    assert not merged.rows_kept


def loop(steps: int, *, shapes: int = 1, seed: int = 3) -> Record:
    """Steps of three nested events each, of random lengths; so many shapes take turns."""
    rng = np.random.default_rng(seed)
    rows, ts = [], 0
    for step, (pause, length) in enumerate(rng.integers(1_500, 90_000, (steps, 2)).tolist()):
        ts += pause
        rows += [
            op("aten::linear", ts=ts, dur=length, shapes=[[step % shapes, step % shapes]]),
            op("aten::addmm", ts=ts + 300, dur=length // 2),
            runtime("cudaLaunchKernel", ts=ts + 400, dur=length // 4),
        ]
        ts += length
    return trace_of(*rows)


LOOPS = {"plain": loop(600), "shapes": loop(600, shapes=2)}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("with_panels", [False, True])
def test_a_page_fits_its_budget_and_nearly_fills_it(name: str, with_panels: bool) -> None:
    record = LOOPS[name]
    rows = page_rows(record.trace)
    page = _Page(record, panels(record) if with_panels else None, (), 0)
    lengths = np.unique(np.geomspace(1_000, rows.span_ns, 80).astype(int)).tolist()
    sizes = [len(page.written(rows, TICKS_NS[-1], longest_ns).text) for longest_ns in lengths]
    rounded = len(page.written(rows, TICKS_NS[-1]).text)
    for budget in np.linspace(sizes[-1], 0.9 * rounded, 7).astype(int).tolist():
        payload = encode(record, budget_bytes=budget, with_panels=with_panels)
        assert "merged" in payload.notes[0]
        possible = max(size for size in sizes if size <= budget)
        assert 0.7 * possible <= len(payload.text) <= budget
        decoded = Page(payload)
        assert sum(decoded.columns["count"]) == len(record.trace)
        assert decoded.header["shapes"] == rows.shapes


def test_where_merging_is_not_enough_shapes_are_left_out() -> None:
    record = loop(400, shapes=400)
    rows = page_rows(record.trace)
    page = _Page(record, None, (), 0)
    budget = len(page.written(rows, TICKS_NS[-1], rows.span_ns).text) * 2 // 3
    payload = encode(record, budget_bytes=budget, with_panels=False)
    assert len(payload.text) <= budget
    assert payload.notes[-1] == NO_SHAPES
    decoded = Page(payload)
    assert decoded.header["shapes"] == []
    assert sum(decoded.columns.get("count", [1] * decoded.rows)) == len(record.trace)


def test_a_page_that_is_too_large_all_the_same_says_so() -> None:
    record = trace_of(
        *(op(f"op {number * 7919 % 1000}", ts=number, dur=1) for number in range(900))
    )
    payload = encode(record, budget_bytes=1_000, with_panels=False)
    assert len(payload.text) > 1_000
    assert payload.notes[-1] == TOO_LARGE.format("0.001 MB")
    assert Page(payload).header["notes"] == list(payload.notes)


@given(records(), st.integers(1, 4_000))
@settings(max_examples=25)
def test_every_record_fits_or_says_that_it_does_not(record: Record, budget: int) -> None:
    payload = encode(record, budget_bytes=budget, with_panels=False)
    too_large = payload.notes[-1:] == (TOO_LARGE.format(f"{budget / 1e6:.2g} MB"),)
    assert (len(payload.text) > budget) == too_large


def test_a_page_that_fits_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Payload] = []
    payload_of = encoding._payload

    def noted(*given: Any) -> Payload:
        written.append(payload_of(*given))
        return written[-1]

    monkeypatch.setattr(encoding, "_payload", noted)
    size = len(encode(LOOP).text)
    assert len(written) == 1
    encode(LOOP, budget_bytes=size - 1)
    assert len(written) == 3


def test_a_page_of_timelines_has_neither_panels_nor_memory() -> None:
    record = trace_of(op("aten::empty", ts=0, dur=9), memory(512, ts=3))
    assert Page(encode(record)).header["memory"]
    header = Page(encode(record, with_panels=False)).header
    assert header["memory"] is None
    assert header["panels"] == []
