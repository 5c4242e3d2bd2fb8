"""The large traces that `benchmarks.large_traces` reads, grown from a small one."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.child_process import ROOT
from benchmarks.grow import DECODER, ENCODER, grow, is_repeated

SOURCE = ROOT / "tests" / "data" / "gpu" / "a_step_of_many_small_kernels.gpuprof"
"""The largest of our own traces of a training on a GPU."""

MEMBER = "trace.json.gz"
"""The trace in a profile that gpuprof_widgets has saved."""

OUR_KEY = "gpuprof_widgets"
GZIP_MAGIC = b"\x1f\x8b"
BLOCK = 1 << 16


@dataclass(frozen=True)
class MadeTrace:
    """A file, the name and repetitions of its source, and its size in events and bytes."""

    file: Path
    source: str
    times: int
    events: int
    text_bytes: int
    file_bytes: int

    @property
    def title(self) -> str:
        return f"{self.events / 1e6:.2f} M events"


def plain_source(source: Path, folder: Path) -> Path:
    """Write the source as a gzipped trace of Kineto's into the folder, whatever it is packed in.

    What gpuprof_widgets wrote into a trace that it saved is left out: it holds for that trace only.
    """
    data = source.read_bytes()
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            data = archive.read(MEMBER)
    text = gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data
    document = DECODER.decode(text)
    if document.pop(OUR_KEY, None) is not None:
        text = ENCODER.encode(document)
    target = folder / f"{stem(source)}.json.gz"
    target.write_bytes(gzip.compress(text))
    return target


def stem(source: Path) -> str:
    """Return the name of the file without what says how it is packed."""
    return source.name.removesuffix(".gz").removesuffix(".json").removesuffix(".gpuprof")


def times_for(events: int, millions: float) -> int:
    """Return how often so many events have to be written to make about so many millions."""
    return max(1, round(millions * 1e6 / events))


def make_trace(source: Path, millions: float, folder: Path) -> MadeTrace:
    """Repeat the events of the source; a file that was made before is kept."""
    small = plain_source(source, folder)
    events = DECODER.decode(gzip.decompress(small.read_bytes()))["traceEvents"]
    times = times_for(len(events), millions)
    target = folder / f"{stem(source)}-{times}-times.json.gz"
    if not target.exists():
        unfinished = target.with_suffix(".unfinished")
        grow(small, times, unfinished)
        unfinished.rename(target)
    return MadeTrace(
        file=target,
        source=source.name,
        times=times,
        events=len(events) + (times - 1) * sum(map(is_repeated, events)),
        text_bytes=text_size(target),
        file_bytes=target.stat().st_size,
    )


def text_size(file: Path) -> int:
    """Return how many bytes are packed in the file, without holding them."""
    unpack, size = zlib.decompressobj(31), 0
    with file.open("rb") as packed:
        while block := packed.read(BLOCK):
            size += len(unpack.decompress(block))
    return size


def make_traces(source: Path, sizes: Sequence[float], folder: Path) -> list[MadeTrace]:
    """Make traces of about so many million events, in another process so that this one stays small.

    A process counts at least as much memory as the one that started it had until then.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        made = [pool.submit(make_trace, source, size, folder) for size in sizes]
        return [future.result() for future in made]
