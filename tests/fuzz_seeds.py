"""A small good file of every format, from which the fuzzer makes broken ones."""

from __future__ import annotations

import gzip
import json
import marshal
import pickle
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import zstandard

from gpuprof_widgets.trace import archive
from gpuprof_widgets.trace.chrome_writer import chrome_trace
from gpuprof_widgets.trace.model import Record
from tests import hostile, snapshots
from tests.bad_traces import BAD_TRACES
from tests.profiler_databases import Nsys, Nvprof, emitted
from tests.timelines import DATA, of_gpus
from tests.trace_files import kineto, tar_of, zip_of
from tests.traces import annotation, calls_of, copy, kernel, memory, op, python, runtime, trace_of

EVENTS_OF_REAL_FILES = 60


@dataclass(frozen=True)
class Seed:
    """A good file: what it holds (bytes, or lists and dicts), and how that becomes a file."""

    name: str
    content: Any
    file: Callable[[Any], bytes] = bytes

    @property
    def data(self) -> bytes:
        """The good file."""
        return self.file(self.content)


@cache
def seeds() -> tuple[Seed, ...]:
    """All of them, in an order that does not change."""
    return (*_of_json(), *_of_databases(), *_of_python(), *_packed())


@cache
def bad_seeds() -> tuple[Seed, ...]:
    """Files that are broken already, to be broken further."""
    return tuple(Seed(f"bad: {name}", bad.content) for name, bad in BAD_TRACES.items())


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _utf16(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")


def _record() -> Record:
    """Something of everything that a record may hold."""
    return trace_of(
        annotation("ProfilerStep#1", ts=0, dur=900),
        python("train.py(3): step", ts=5, dur=800),
        op("aten::mm", ts=10, dur=100, shapes=[[2, 3], [3, 4]], sequence=4),
        runtime("cudaLaunchKernel", ts=20, dur=10),
        kernel("gemm", ts=60, dur=90, launched_by=3, grid=[1, 1, 1]),
        runtime("cudaMemcpyAsync", ts=40, dur=10),
        copy(ts=160, dur=20, bytes=64, launched_by=5),
        memory(64, ts=30, allocated=64, reserved=128, device=0),
        calls=calls_of((None, "main", 1, 500), ("main", "step", 2, 300)),
        notes=["a note"],
        label="seed",
    )


def _of_json() -> Iterator[Seed]:
    slices = {"pid": 1, "tid": 2, "cat": "cpu_op"}
    pairs = [
        {"ph": "B", "name": "outer", "ts": 1, **slices},
        {
            "ph": "X",
            "name": "inner",
            "ts": 2,
            "dur": 3,
            **slices,
            "args": {"a": [1, {"b": 2}]},
            "sf": 2,
        },
        {"ph": "E", "ts": 9.5, **slices},
        {"ph": "i", "name": "now", "ts": 4, "s": "t", **slices},
        {"ph": "C", "name": "queue", "ts": 5, "pid": 1, "args": {"length": 3, "width": 2.5}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
        *({"ph": ph, "id": "0x1", "name": "task", "ts": 6, **slices} for ph in "bne"),
        *({"ph": ph, "id": 3, "name": "old", "ts": 7, **slices} for ph in "STF"),
        *({"ph": ph, "id": 4, "name": "flow", "ts": 2, **slices} for ph in "stf"),
        *({"ph": ph, "id": 5, "name": "thing", "ts": 8, **slices} for ph in "NOD"),
        {"ph": "P", "name": "cycles", "ts": 9, "sf": 2, **slices},
    ]
    frames = {"1": {"name": "main"}, "2": {"name": "step", "parent": 1}}
    samples = [{"cpu": 0, "tid": 2, "ts": at, "name": "cycles", "sf": 1} for at in (7, 8)]
    beside = {"displayTimeUnit": "ns", "stackFrames": frames, "samples": samples}
    yield Seed("chrome, object", {"traceEvents": pairs, **beside}, _json)
    yield Seed("chrome, list", pairs, _json)
    yield Seed("kineto, text", kineto("aten::mm", 'step "x"', "aten::add", host_name="n1"))
    yield Seed("kineto", json.loads(kineto("aten::mm", "aten::add", deviceProperties=[])), _json)
    yield Seed("hostile names", _shortened(json.loads(hostile.chrome_trace())), _json)
    yield Seed("ours, as JSON", json.loads(b"".join(chrome_trace(_record().trace))), _json)
    yield Seed("UTF-16", pairs, _utf16)
    for name, content in of_gpus().items():
        yield Seed(name, content, _json)
    for path in sorted(DATA.glob("*.json.gz")):
        yield Seed(path.name, _shortened(json.loads(gzip.decompress(path.read_bytes()))), _json)


def _of_databases() -> Iterator[Seed]:
    for made in (_nsys(), _nvprof()):
        name = type(made).__name__.lower()
        yield Seed(f"{name}, bytes", made.bytes())
        yield Seed(name, _tables(made.connection), _database)


def _nsys() -> Nsys:
    made = Nsys()
    made.range(emitted("aten::mm", number=1, sequence=4, sizes=[[2, 3]]), 100, 900)
    made.call("cudaLaunchKernel_v7000", 200, 300, correlation=5)
    made.kernel("gemm", 400, 800, correlation=5)
    made.gpu("MEMCPY", 900, 950, correlation=6, bytes=64, copyKind=1, srcKind=0, dstKind=2)
    made.gpu("SYNCHRONIZATION", 950, 990, correlation=7, syncType=3, eventId=0)
    made.add("TARGET_INFO_GPU", id=0, name="NVIDIA H100", totalMemory=2**36, cuDevice=0)
    return made


def _nvprof() -> Nvprof:
    made = Nvprof()
    made.range(emitted("aten::mm", number=1, sequence=4, sizes=[[2, 3]]), 100, 900)
    made.call(13, 200, 300, correlation=5)
    made.kernel("gemm", 400, 800, correlation=5)
    made.gpu("MEMCPY", 900, 950, correlation=6, bytes=64, copyKind=1, srcKind=0, dstKind=2)
    return made


def _tables(connection: sqlite3.Connection) -> dict[str, Any]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    tables = {}
    for (name,) in names:
        found = connection.execute(f'SELECT * FROM "{name}"')
        columns = [column[0] for column in found.description]
        tables[name] = {"columns": columns, "rows": [list(row) for row in found]}
    return {name: table for name, table in tables.items() if table["rows"]}


def _database(tables: Any) -> bytes:
    """The tables as SQLite, as far as it takes them."""
    connection = sqlite3.connect(":memory:")
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(table, dict):
            continue
        columns = _list(table.get("columns")) or ["x"]
        unique = list(dict.fromkeys(_quoted(str(column).lower()) for column in columns))
        connection.execute(f"CREATE TABLE {_quoted(name)} ({', '.join(unique)})")
        marks = ", ".join("?" * len(unique))
        for row in _list(table.get("rows")):
            values = [_storable(value) for value in _list(row)][: len(unique)]
            values += [None] * (len(unique) - len(values))
            connection.execute(f"INSERT INTO {_quoted(name)} VALUES ({marks})", values)
    connection.commit()
    return connection.serialize()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _quoted(name: str) -> str:
    clean = name.encode("utf-8", "replace").decode().replace("\0", "")
    return '"' + clean.replace('"', '""')[:100] + '"'


def _storable(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if value is None or isinstance(value, int | float | bytes) else str(value)


def _of_python() -> Iterator[Seed]:
    stats = archive.dump_pstats(_calls())
    yield Seed("pstats, bytes", stats)
    functions = [[[list(key), _as_lists(value)]] for key, value in marshal.loads(stats).items()]
    yield Seed("pstats", functions, _stats)
    snapshot = snapshots.snapshot(snapshots.training())
    for protocol in (2, 4):
        yield Seed(
            f"snapshot, protocol {protocol}", snapshot, partial(pickle.dumps, protocol=protocol)
        )
    yield Seed("snapshot, bytes", pickle.dumps(snapshot))


def _calls() -> Any:
    return _record().calls


def _as_lists(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_lists(one) for one in value]
    if isinstance(value, dict):
        return [[_as_lists(key), _as_lists(one)] for key, one in value.items()]
    return value


def _stats(functions: Any) -> bytes:
    """A dict with tuples again, whatever became of the lists."""
    found = {}
    for function in _list(functions):
        for pair in _list(function):
            key, value = (*_list(pair), None, None)[:2]
            numbers = _list(value)
            callers = {_hashable(one[0]): _hashable(one[1]) for one in _pairs(numbers[-1:])}
            found[_hashable(key)] = (*map(_hashable, numbers[:-1]), callers)
    return marshal.dumps(found)


def _pairs(value: Any) -> list[Any]:
    held = _list(value[0]) if value else []
    return [one for one in held if isinstance(one, list) and len(one) == 2]


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return repr(value) if isinstance(value, dict) else value


def _packed() -> Iterator[Seed]:
    plain = kineto("aten::mm", "aten::add")
    yield Seed("gzip", gzip.compress(plain, mtime=0))
    yield Seed("zstandard", zstandard.compress(plain))
    yield Seed("zip", zip_of({"trace.json": plain, "readme.txt": b"hello"}))
    yield Seed("tar", tar_of({"trace.json": plain}))
    spans = {f"n1_1.{n}.pt.trace": kineto("a", start_us=10**6 * n) for n in (1, 2)}
    yield Seed("spans", spans, _archive)
    file = BytesIO()
    archive.write(_record(), file)
    with zipfile.ZipFile(BytesIO(file.getvalue())) as saved:
        held = {name: saved.read(name) for name in saved.namelist()}
    yield Seed("ours", file.getvalue())
    trace = json.loads(gzip.decompress(held[archive.TRACE]))
    about = json.loads(held[archive.METADATA])

    def of_trace(value: Any) -> bytes:
        return zip_of({**held, archive.TRACE: gzip.compress(_json(value), mtime=0)})

    yield Seed("ours, its trace", trace, of_trace)
    yield Seed(
        "ours, its metadata", about, lambda value: zip_of({**held, archive.METADATA: _json(value)})
    )


def _archive(files: Any) -> bytes:
    held = files.items() if isinstance(files, dict) else ()
    return zip_of({f"{name}.json": _bytes(data) for name, data in held})


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _json(value)


def seed_of_real_file(path: Path) -> Seed:
    """The first events of each kind of one of other people's traces."""
    return Seed(path.name, _shortened(json.loads(gzip.decompress(path.read_bytes()))), _json)


def _shortened(document: Any) -> Any:
    """Some events of every category and phase, so that a change does not drown."""
    if isinstance(document, list):
        return _some(document)
    if not isinstance(document.get("traceEvents"), list):
        return document
    return {**document, "traceEvents": _some(document["traceEvents"])}


def _some(events: list[Any]) -> list[Any]:
    seen: dict[Any, int] = {}
    kept = []
    for event in events:
        kind = (event.get("ph"), event.get("cat"))
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= 6:
            kept.append(event)
    return kept[:EVENTS_OF_REAL_FILES]
