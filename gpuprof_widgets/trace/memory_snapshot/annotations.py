"""The regions (`record_function`) that a snapshot has with ``global_record_annotations=True``."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof_widgets.trace.memory_snapshot.content import Entry, number, text


@dataclass(frozen=True)
class Annotation:
    """A region: name, device, start and length in ns."""

    name: str
    device: int
    ts: int
    dur: int


def annotations_of(entries: list[Entry]) -> tuple[list[Annotation], int]:
    """The regions, and how many entries have only one end; of one name the last one ends first.

    Written by ``_initRecordAnnotations`` in ``torch/csrc/cuda/memory_snapshot.cpp``: ``name``,
    ``stage`` ("START" or "END"), ``device``, ``time_us``.
    """
    opened: dict[tuple[str, int], list[int]] = {}
    found, loose = [], 0
    for entry in entries:
        key = text(entry, "name"), number(entry, "device") or 0
        moment = number(entry, "time_us")
        if moment is None or moment >= 2**63 // 1000:
            loose += 1
        elif text(entry, "stage") == "START":
            opened.setdefault(key, []).append(moment)
        elif opened.get(key):
            start = opened[key].pop()
            found.append(Annotation(*key, start * 1000, max(moment - start, 0) * 1000))
        else:
            loose += 1
    return found, loose + sum(map(len, opened.values()))
