"""Types of the metadata that analyses and views read, and a device's peak rates among them.

A file may hold anything under these keys. Values of other types are left out, and a note says so;
other keys stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.remarks import FOCUS, REMARKS, Focus, Remark

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Number = Int | Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]


class _Device(TypedDict, total=False):
    name: str | None
    total_memory_bytes: Int | None


class _DeviceProperties(TypedDict, total=False):
    name: str | None
    totalGlobalMem: Int
    numSms: Int
    computeMajor: Int
    computeMinor: Int
    id: Int


class _Group(TypedDict, total=False):
    ranks: list[Int]


class _Distributed(TypedDict, total=False):
    rank: Int
    world_size: Int
    pg_config: list[_Group] | dict[str, Any] | str | None


class _Span(TypedDict):
    name: str
    ts_ns: Int
    dur_ns: Int


class _Iteration(TypedDict):
    step: Int
    kind: str
    dur_ns: Int


class _Late(TypedDict, total=False):
    graphs: Int
    compile_ns: Int


class _OneOff(_Late, total=False):
    reserved_bytes: Int
    alloc_retries: Int
    after_warmup: _Late | None


class _Steps(TypedDict, total=False):
    iterations: list[_Iteration] | None
    windows: list[dict[str, Number | None]]
    one_off: _OneOff | None


class _Guard(TypedDict):
    every: Int
    line: Int


class _Cell(TypedDict, total=False):
    label: str
    source: str
    first_line: Int
    statements: list[Int]
    beyond_limit: list[Int]


class _Lines(TypedDict, total=False):
    cells: list[_Cell]
    limit: Int


class _Worker(TypedDict):
    worker: Int
    items_in_calls: Int


class _Overhead(TypedDict, total=False):
    estimate_ns: Number | None
    events: Number | None
    calls: Number | None
    frames: Number | None
    modules: Number | None
    lines: Number | None
    allocations: Number | None
    call_cost_ns: Number | None
    frame_cost_ns: Number | None


class _Held(TypedDict):
    device: str
    address: Int
    bytes: Int
    category: str
    tensor: str


class _Memory(TypedDict, total=False):
    retries: Int
    before: list[_Held]
    frames: list[str]
    stacks: list[list[Int]]


class _Blocks(TypedDict):
    state: list[str]
    bytes: list[Int]
    requested: list[Int]
    stack: list[Int]


class _Segment(TypedDict):
    device: Int
    stream: Int
    pool: str
    kind: str
    expandable: bool
    address: Int
    bytes: Int
    blocks: _Blocks


class _Collections(TypedDict):
    collections: list[Int]
    time_ns: list[Int]


class _LongCollection(TypedDict):
    start_ns: Int
    dur_ns: Int


class _CollectionPlace(TypedDict):
    file: str
    function_line: Int
    function: str
    line: Int
    during: str
    time_ns: Int


class _GarbageCollections(_Collections):
    once: _Collections
    longest: list[_LongCollection]
    places: list[_CollectionPlace]


class _Compilation(TypedDict):
    function: str
    file: str
    line: Int
    start_ns: Int
    dur_ns: Int
    again: bool
    reason: str
    gave_up: bool


class _Samples(TypedDict):
    by_signal: bool
    samples: Int
    interval_ns: Int
    median_ns: Int
    code: dict[str, dict[str, str]]


class _Options(TypedDict, total=False):
    expect: str | None


class _CpuUse(TypedDict):
    wall_ns: Int
    cpu_ns: Int
    preemptions: Int
    queued_ns: NotRequired[Int]


class _Peaks(TypedDict):
    device: str
    flops_per_s: dict[str, Number]
    bytes_per_s: Number
    source: str


TYPES: dict[str, Any] = {
    "label": str | None,
    "source": str,
    "host": str | None,
    "error": str | None,
    "notes": list[str],
    "devices": list[_Device] | str | None,
    "deviceProperties": list[_DeviceProperties] | None,
    "distributedInfo": _Distributed | None,
    "profiler_spans": list[_Span],
    "wall_ns": Number | None,
    "own_torch_profiler": bool,
    "overhead": _Overhead | None,
    "options": _Options | None,
    "steps": _Steps | None,
    "guards": dict[str, _Guard] | None,
    "gc": _GarbageCollections | None,
    "compilations": list[_Compilation] | None,
    "lines": _Lines | None,
    "workers": list[_Worker],
    "memory": _Memory,
    "memory_segments": list[_Segment] | None,
    "peaks": _Peaks | None,
    "recorded_by": str | None,
    "recorder": str | None,
    "sampled": bool | None,
    "python_samples": _Samples | None,
    "rank": Int | None,
    "world_size": Int | None,
    "window_ns": list[Int],
    REMARKS: list[Remark],
    FOCUS: Focus | None,
    "cpus": Int | None,
    "torch_threads": Int | None,
    "cpu_use": _CpuUse | None,
}
"""Type of each value, by key, as torch and this package write it."""


def with_usable_metadata(record: Record) -> Record:
    """Return the record without metadata of other types; its notes name their keys."""
    wrong = {}
    for key in (key for key in TYPES if key in record.metadata):
        try:
            msgspec.convert(record.metadata[key], TYPES[key])
        except msgspec.ValidationError:
            wrong[key] = "wrong type, or a key is missing"
        except UnicodeEncodeError:
            wrong[key] = "broken Unicode"
        except RecursionError:
            wrong[key] = "nested too deeply"
    if not wrong:
        return record
    notes = [] if "notes" in wrong else record.metadata.get("notes", [])
    usable = {key: value for key, value in record.metadata.items() if key not in wrong}
    left_out = [
        f'the metadata "{key}" of the file is malformed ({why}) and was left out'
        for key, why in wrong.items()
    ]
    return replace(record, metadata={**usable, "notes": [*notes, *left_out]})


DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""Number formats that have peaks; "tf32" is fp32 data in TF32 tensor cores."""


@dataclass(frozen=True)
class Peaks:
    """The peak rates of a device: the roofs of a roofline.

    ``flops_per_s``: FLOP/s of dense data by number format (`DTYPES`). A multiplication and an
    addition count as two; a missing format is unknown. ``bytes_per_s``: to and from its memory.
    ``source``: where the figures come from (a data sheet, or "measured").
    """

    device: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.flops_per_s) - set(DTYPES)):
            raise OptionError(
                f"no such number format: {', '.join(unknown)}; there are {', '.join(DTYPES)}."
            )
        if not all(value > 0 for value in (self.bytes_per_s, *self.flops_per_s.values())):
            raise OptionError(
                f"peaks must be above zero: {dict(self.flops_per_s)}, {self.bytes_per_s}"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the peaks as plain values, as in metadata and in a table's ``attrs``."""
        return asdict(self) | {"flops_per_s": dict(self.flops_per_s)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Peaks:
        """Return the peaks that `as_dict` wrote."""
        return cls(
            device=str(given["device"]),
            flops_per_s={str(key): float(value) for key, value in given["flops_per_s"].items()},
            bytes_per_s=float(given["bytes_per_s"]),
            source=str(given["source"]),
        )
