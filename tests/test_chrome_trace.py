"""The reader of Kineto traces: real files, every dialect, and files that are broken."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import event_json
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.gather import MORE_ARGS, MOST_KEYS
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.schema import CATEGORY_ALIASES
from tests.records import assert_same_record
from tests.traces import Shared


def event(name: str = "aten::mm", **fields: Any) -> dict[str, Any]:
    """A complete event as Kineto writes it; fields replace its own, None removes them."""
    own = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    return {key: value for key, value in (own | fields).items() if value is not None}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """A function that writes events, or text, to a file and returns its path."""

    def written(*events: dict[str, Any], text: str | bytes = "", **beside: Any) -> Path:
        path = tmp_path / "trace.json"
        text = text or json.dumps({"schemaVersion": 1, **beside, "traceEvents": events})
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def names(record: Record) -> list[str]:
    return record.trace.slices["name"].tolist()


# Real traces


def index_counts(index: Path) -> dict[str, dict[str, int]]:
    """Complete events by category of every real trace, as their index lists them."""
    rows = [line.split("|") for line in index.read_text().splitlines() if ".json.gz |" in line]
    return {
        row[1].strip(): {
            name: int(count)
            for name, count in (item.rsplit(" ", 1) for item in row[4].strip().split(", "))
        }
        for row in rows
    }


def test_a_real_trace_has_every_complete_event(
    shared_trace: Path, shared_record: Record, shared: Shared
) -> None:
    expected = index_counts(shared("INDEX.md"))[f"{shared_trace.parent.name}/{shared_trace.name}"]
    expected = {CATEGORY_ALIASES.get(name, name): count for name, count in expected.items()}
    markers = expected.pop("Trace", 0)
    found = Counter(shared_record.trace.slices["category"])
    instants = found.pop("cpu_instant_event", 0)
    assert found == expected
    assert instants == len(shared_record.trace.args.get("Bytes", ()))
    spans = shared_record.metadata["profiler_spans"]
    assert sum(span["dur_ns"] > 0 for span in spans) >= markers
    assert shared_record.metadata["notes"] == []


def test_times_of_a_real_trace_equal_their_decimal_digits(
    shared_trace: Path, shared_record: Record
) -> None:
    written = json.loads(gzip.decompress(shared_trace.read_bytes()), parse_float=Decimal)
    events = written if isinstance(written, list) else written["traceEvents"]
    base = 0 if isinstance(written, list) else written.get("baseTimeNanoseconds", 0)
    expected = Counter(
        (int(Decimal(e["ts"]) * 1000) + base, int(Decimal(e["dur"]) * 1000), e["name"])
        for e in events
        if e["ph"] == "X" and e.get("cat") != "Trace"
    )
    trace = shared_record.trace
    slices = trace.slices[trace.slices["category"] != "cpu_instant_event"]
    ts = (slices["ts"] + trace.epoch_ns).tolist()
    found = Counter(zip(ts, slices["dur"].tolist(), slices["name"], strict=True))
    assert found == expected


def test_args_of_a_real_trace_are_all_there(shared_trace: Path, shared_record: Record) -> None:
    written = json.loads(gzip.decompress(shared_trace.read_bytes()))
    events = written if isinstance(written, list) else written["traceEvents"]
    expected = Counter(
        key
        for e in events
        if (e["ph"] == "X" and e.get("cat") != "Trace") or e["name"] == "[memory]"
        for key in e.get("args", {})
    )
    trace = shared_record.trace
    in_columns = {"correlation", "External id", "external id", "Sequence number", "Fwd thread id"}
    found = {key: len(values) for key, values in trace.args.items()}
    assert found == {key: n for key, n in expected.items() if key not in in_columns}
    assert (trace.slices["correlation"] >= 0).sum() == expected["correlation"]
    assert (trace.slices["sequence"] >= 0).sum() == expected["Sequence number"]


def test_tracks_of_a_real_trace_hold_what_they_are_for(shared_record: Record) -> None:
    trace = shared_record.trace
    kind = trace.tracks["kind"].astype(str).to_numpy()[trace.slices["track"]]
    category = trace.slices["category"].astype(str)
    homes = {
        "kernel": "gpu",
        "gpu_memcpy": "copy",
        "gpu_memset": "copy",
        "gpu_user_annotation": "annotation",
        "python_function": "python",
        "cpu_op": "cpu",
        "cuda_runtime": "cpu",
        "cuda_driver": "cpu",
        "cuda_sync": "other",
    }
    for name, home in homes.items():
        assert set(kind[category == name]) <= {home}
    on_gpu = trace.tracks["kind"].isin(["gpu", "copy", "annotation"])
    assert (trace.tracks["device"][on_gpu] >= 0).all()
    assert (trace.tracks["stream"][on_gpu] >= 0).all()
    assert (trace.tracks["device"][~on_gpu] == -1).all()


def test_forward_links_of_a_real_trace_agree_with_its_arrows(shared: Shared) -> None:
    trace = load(shared("hta/nccl_a100_rank0_of_2.json.gz")).trace
    arrows = trace.flows[trace.flows["kind"] == "fwdbwd"]
    assert len(arrows) == 543
    assert (trace.slices["forward"].to_numpy()[arrows["target"]] == arrows["source"]).all()


# Dialects


def test_base_time_is_part_of_the_epoch(write: Any) -> None:
    trace = load(write(event(ts=4388786529647.578), baseTimeNanoseconds=1790857026 * 10**9)).trace
    assert trace.epoch_ns == 1790857026 * 10**9 + 4388786529647578
    assert (trace.start_ns, trace.end_ns) == (0, 2000)


def test_categories_of_torch_1_8_have_todays_names(write: Any) -> None:
    record = load(
        write(
            event("a", cat="Operator", tid="25738"),
            event("b", cat="Runtime", tid="25738", args={"correlation": 4}),
            event("c", cat="Kernel", pid=0, tid="stream 7", ts=9, args={"correlation": 4}),
            event("[memory]", ph="i", s="t", cat=None, dur=None, tid=25738, args={"Bytes": 8}),
        )
    )
    table = record.trace.slices.set_index("name")
    assert table["category"].to_dict() == {
        "a": "cpu_op",
        "b": "cuda_runtime",
        "c": "kernel",
        "[memory]": "cpu_instant_event",
    }
    assert table["track"].nunique() == 2, "the id 25738 is one thread, as text or as a number"
    assert record.trace.tracks[["device", "stream"]].to_numpy().tolist() == [[-1, -1], [0, 7]]
    assert table["launch"]["c"] == 1


def test_what_the_profiler_says_of_itself_is_metadata(write: Any) -> None:
    record = load(
        write(
            event("PyTorch Profiler (0)", cat="Trace", pid="Spans", tid="x", ts=0, dur=100),
            event("Iteration Start", ph="i", s="g", cat=None, dur=None, pid="Traces", ts=1),
            event("aten::mm", ts=40),
        )
    )
    assert names(record) == ["aten::mm"]
    assert record.metadata["profiler_spans"] == [
        {"name": "PyTorch Profiler (0)", "ts_ns": -40000, "dur_ns": 100000},
        {"name": "Iteration Start", "ts_ns": -39000, "dur_ns": 0},
    ]


def test_threads_have_the_names_of_the_file(write: Any) -> None:
    meta = {"ph": "M", "ts": 0, "pid": 1, "tid": 5}
    record = load(
        write(
            {**meta, "name": "process_name", "args": {"name": "python"}},
            {**meta, "name": "thread_name", "args": {"name": "thread 5 (pt_autograd_0)"}},
            event("a", tid=5),
            event("f", tid=5, cat="python_function"),
            event("x", tid=9, cat="something_new"),
        )
    )
    assert record.trace.tracks[["kind", "label"]].to_numpy().tolist() == [
        ["cpu", "thread 5 (pt_autograd_0)"],
        ["python", "thread 5 (pt_autograd_0) · Python"],
        ["other", "python · thread 9"],
    ]
    assert record.trace.tracks["lane"].tolist() == [0, 0, 1]


def test_threads_come_main_first_and_gpus_by_device_and_stream(write: Any) -> None:
    worker = [event("w", tid=7, pid=5, ts=ts) for ts in range(0, 40, 2)]
    gpu = [
        event("k", cat="kernel", pid=device, tid=stream, args={"device": device, "stream": stream})
        for device, stream in [(1, 7), (0, 20), (0, 7)]
    ]
    copy = event("c", cat="gpu_memcpy", pid=0, tid=7, args={"device": 0, "stream": 7})
    record = load(write(*gpu, copy, *worker, event("main", pid=5, tid=5)))
    assert record.trace.tracks["label"].tolist() == [
        "thread 5",
        "thread 7",
        "GPU 0 · stream 7",
        "GPU 0 · stream 7 · copies",
        "GPU 0 · stream 20",
        "GPU 1 · stream 7",
    ]


def test_counters_come_from_counter_events_and_from_allocations(write: Any) -> None:
    memory = {"Bytes": 8, "Total Allocated": 24, "Total Reserved": 99, "Device Type": 1}
    record = load(
        write(
            event("a", ts=0, dur=10),
            event("GPU power", ph="C", cat=None, ts=3, dur=None, args={"value": 250}),
            event("Queue", ph="C", cat=None, ts=4, dur=None, args={"in": 2, "out": 1}),
            event("[memory]", ph="i", s="t", ts=5, dur=None, args={**memory, "Device Id": 1}),
        )
    )
    assert record.trace.counters.to_numpy().tolist() == [
        [5000, "GPU 1 allocated", 24.0],
        [5000, "GPU 1 reserved", 99.0],
        [3000, "GPU power", 250.0],
        [4000, "Queue in", 2.0],
        [4000, "Queue out", 1.0],
    ]


def test_sizes_without_totals_are_summed_up(write: Any) -> None:
    sizes = [
        event("[memory]", ph="i", s="t", ts=ts, dur=None, args={"Bytes": size, "Device Type": 0})
        for ts, size in [(1, 8), (2, 4), (3, -8)]
    ]
    assert load(write(*sizes)).trace.counters["value"].tolist() == [8, 12, 4]


def test_args_keep_their_types(write: Any) -> None:
    kinds = {"int": 3, "float": 0.5, "text": "x", "list": [[1], []], "flag": True, "none": None}
    later = {"int": 2**63, "text": None}
    args = load(write(event(args=kinds), event(ts=9, args=later), event(ts=20))).trace.args
    assert {key: values[0] for key, values in args.items()} == kinds
    assert args["int"].tolist() == [3, 2**63]
    assert args["text"].to_dict() == {0: "x", 1: None}
    assert str(args["float"].dtype) == "float64"


def test_rare_args_of_very_many_kinds_are_kept_together(write: Any, tmp_path: Path) -> None:
    odd = {f"odd {number}": number for number in range(MOST_KEYS + 200)}
    common = {"correlation": 7, "common": 1}
    record = load(write(event(args={**common, **odd}), event(ts=9, args=common)))
    args = record.trace.args
    assert len(args) == MOST_KEYS  # the correlation is a column of slices
    assert args["common"].tolist() == [1, 1]
    (rest,) = args[MORE_ARGS]
    assert len(rest) == len(odd) - (MOST_KEYS - 2)
    assert rest.items() <= odd.items()
    assert record.metadata["notes"] == [
        f"{len(rest)} rare keys of args are kept together, as 'More args'"
    ]
    assert_same_record(load(save(record, tmp_path / "saved.zip")), record)


def test_what_stands_beside_the_events_is_metadata(write: Any) -> None:
    gpu = {"id": 0, "name": "H100", "totalGlobalMem": 80 * 2**30}
    path = write(event(), deviceProperties=[gpu], distributedInfo={"rank": 3}, with_stack=1)
    record = load(path)
    assert record.metadata["devices"] == [
        {"index": 0, "name": "H100", "total_memory_bytes": 80 * 2**30}
    ]
    assert record.metadata["schema_version"] == 1
    assert record.metadata["with_stack"] == 1
    assert record.metadata["source"] == str(path)
    assert record.trace.tracks["rank"].tolist() == [3]


# Batches


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_json, "BATCH_BYTES", 60)


def kineto_text(*events: dict[str, Any]) -> str:
    """Events as Kineto lays them out: each ends with a brace on a line of its own."""
    bodies = [f"  {{\n    {json.dumps(event)[1:-1]}\n  }}" for event in events]
    return '{\n  "traceEvents": [\n' + ",\n".join(bodies) + '\n  ],\n  "traceName": "x"\n}'


def some_events() -> list[dict[str, Any]]:
    return [event(f"op {n % 3}", ts=n, args={"n": n, "dims": [[n % 2]]}) for n in range(20)]


@pytest.mark.usefixtures("small_batches")
def test_a_file_read_in_batches_is_the_same(write: Any) -> None:
    trace = load(write(text=kineto_text(*some_events()))).trace
    assert trace.slices["name"].tolist() == [f"op {n % 3}" for n in range(20)]
    assert trace.args["n"].tolist() == list(range(20))
    assert trace.args["dims"].tolist() == [[[n % 2]] for n in range(20)]


@pytest.mark.usefixtures("small_batches")
def test_a_layout_that_cannot_be_cut_there_is_read_whole(write: Any) -> None:
    text = json.dumps(some_events()).replace("}, ", "\n  },\n ").replace("}}", "\n  }\n}")
    text = text.replace(', "args": {', ', "args": {"deep": {\n  },\n ')
    record = load(write(text=text))
    assert record.trace.args["n"].tolist() == list(range(20))


@pytest.mark.usefixtures("small_batches")
def test_names_are_mended_after_good_batches_too(write: Any) -> None:
    text = kineto_text(*some_events(), event("step !x!"), *some_events()).replace("!", '"')
    record = load(write(text=text))
    assert len(record.trace) == 41
    assert 'step "x"' in names(record)


# Broken files: the error names the file, the place, what was found and what to do


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["kineto", "compact"])
def test_a_trace_cut_anywhere_is_an_error_or_its_events_before_the_cut(
    write: Any, layout: str
) -> None:
    text = kineto_text(event("step", args={"a": 1}), event(args={"a": 1}))
    text = json.dumps(json.loads(text)) if layout == "compact" else text.rstrip()
    first, second = (text.index("}", text.index("}", at) + 1) for at in place_of_events(text))
    for length in range(1, len(text)):
        whole = (length > first) + (length > second)
        if not whole:
            with pytest.raises(TraceError, match=r"cut off|not a kind of file|no \"traceEvents\""):
                load(write(text=text[:length]))
        else:
            record = load(write(text=text[:length]))
            assert sorted(names(record)) == ["aten::mm", "step"][2 - whole :]
            assert "cut off" in record.metadata["notes"][0]


def place_of_events(text: str) -> list[int]:
    return [found.start() for found in re.finditer('"ph"', text)]
