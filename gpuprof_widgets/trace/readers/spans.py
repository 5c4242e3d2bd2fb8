"""Several traces in one folder or archive: those of one worker are one record, others an error.

Files of cProfile, one per rank or worker, are added up.

torch's ``tensorboard_trace_handler`` writes one file per profiled span, named
``worker.span.pt.trace.json``: the worker is host and process, the span a time in ns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.containers import Member
from gpuprof_widgets.trace.edit import joined, starts_when_joined
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.packing import TooLargeError
from gpuprof_widgets.trace.pstats import only_calls, summed_record

_SPAN_NAME = re.compile(r"(?:.*/)?(.+)\.\d+\.pt\.trace\.json(?:\.\w+)?")
_LISTED = 6


@dataclass(frozen=True)
class Span:
    """A trace among others: the name of its file, and what is in it."""

    name: str
    record: Record

    @property
    def start_ns(self) -> int:
        """When it began, in ns on the clock that all files of a machine share."""
        return self.record.trace.epoch_ns + self.record.trace.start_ns

    @property
    def end_ns(self) -> int:
        """When it ended, on the same clock."""
        return self.record.trace.epoch_ns + self.record.trace.end_ns


def one_record(
    members: Sequence[Member],
    where: Path,
    read: Callable[[Member], Record],
    otherwise: str,
) -> Record:
    """The record of the traces in a folder or archive, if they are all of one worker.

    Files that cannot be read are told in the notes, unless there is none that can. Raises a
    `TraceError` with the names of the files where they are of several workers; ``otherwise`` is
    what to do then.
    """
    _check_names(members, where, otherwise)
    found: list[Span] = []
    wrong: list[tuple[str, TraceError]] = []
    for member in members:
        try:
            span = Span(member.name, read(member))
        except TooLargeError:
            raise
        except TraceError as error:
            wrong.append((member.name, error))
            continue
        for other in found:
            if why := _why_not_one(other, span):
                told = f"{span.name} does not continue {other.name}: {why}"
                raise TraceError(_several(where, members, told, otherwise))
        found.append(span)
    if not found:
        raise _nothing(where, wrong)
    record = found[0].record if len(found) == 1 else _together(found, where)
    return with_notes(record, [_left_out(name, error) for name, error in wrong])


def _together(found: Sequence[Span], where: Path) -> Record:
    """Spans put one after another; files of cProfile, which have no times, added up."""
    if all(only_calls(span.record) for span in found):
        return summed_record({span.name: span.record for span in found}, str(where))
    return _joined(found, where)


def with_notes(record: Record, notes: Iterable[str]) -> Record:
    """The record with these lines behind the notes that it has."""
    added = list(notes)
    if not added:
        return record
    before = record.metadata.get("notes") or []
    return replace(record, metadata={**record.metadata, "notes": [*before, *added]})


def worker_in_name(name: str) -> str | None:
    """The worker in ``worker.span.pt.trace.json``; None where a file is called otherwise."""
    found = _SPAN_NAME.fullmatch(name)
    return found[1] if found else None


def _check_names(members: Sequence[Member], where: Path, otherwise: str) -> None:
    """Before anything is read: a run of many ranks leaves many large files."""
    workers = {worker: member.name for member in members if (worker := worker_in_name(member.name))}
    if len(workers) > 1:
        told = f"by their names they are of {len(workers):,} workers"
        raise TraceError(_several(where, members, told, otherwise))


def _why_not_one(one: Span, other: Span) -> str:
    """Why two traces cannot be spans of one worker; nothing where they can."""
    if only_calls(one.record) and only_calls(other.record):
        return ""
    if not len(one.record.trace) or not len(other.record.trace):
        return "one of them has no times"
    for what, read in (("rank", _rank), ("host", _host)):
        a, b = read(one.record), read(other.record)
        if a != b:
            return f"{what} {a} and {what} {b}"
    same_worker = worker_in_name(one.name) and worker_in_name(other.name)
    if not same_worker and not _processes(one.record) & _processes(other.record):
        return "no process is in both"
    if max(one.start_ns, other.start_ns) < min(one.end_ns, other.end_ns):
        return "they were taken at the same time"
    return ""


def _rank(record: Record) -> Any:
    ranks = record.trace.tracks["rank"]
    return int(ranks.max()) if len(ranks) else -1


def _host(record: Record) -> Any:
    return record.metadata.get("host")


def _processes(record: Record) -> set[str]:
    tracks = record.trace.tracks
    return set(tracks["process"][tracks["device"] < 0])


def _joined(found: Sequence[Span], where: Path) -> Record:
    spans = sorted(found, key=lambda span: span.start_ns)
    traces = [span.record.trace for span in spans]
    starts = starts_when_joined(traces)
    placed = list(zip(spans, starts, strict=True))
    told = {
        "source": str(where),
        "notes": list(dict.fromkeys(note for span in spans for note in _notes(span))),
        "profiler_spans": [each for span, start in placed for each in _moved(span, start)],
        "spans": [
            {
                "source": span.name,
                "epoch_ns": span.start_ns,
                "start_ns": start,
                "dur_ns": span.record.trace.span_ns,
            }
            for span, start in placed
        ],
    }
    between = spans[-1].end_ns - spans[0].start_ns - sum(trace.span_ns for trace in traces)
    note = (
        f"{len(spans)} spans of one worker ({_listed([span.name for span in spans])}) were put one "
        f"after another; the {between / 1e9:,.3f} s between them are not shown"
    )
    return with_notes(Record(joined(traces), None, {**spans[0].record.metadata, **told}), [note])


def _notes(span: Span) -> list[str]:
    return [str(note) for note in span.record.metadata.get("notes") or []]


def _moved(span: Span, start: int) -> list[dict[str, Any]]:
    """The profiler's own spans on the clock of the joined trace (ns)."""
    given = span.record.metadata.get("profiler_spans") or []
    return [{**each, "ts_ns": each["ts_ns"] + start} for each in given]


def _several(where: Path, members: Sequence[Member], told: str, otherwise: str) -> str:
    names = _listed([member.name for member in members])
    return f"{where}: holds {len(members)} traces ({names}), and {told}. {otherwise}."


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def _nothing(where: Path, wrong: Sequence[tuple[str, TraceError]]) -> TraceError:
    if len(wrong) == 1:
        return wrong[0][1]
    told = " ".join(f"{number}. {error}" for number, (_, error) in enumerate(wrong[:_LISTED], 1))
    return TraceError(f"{where}: none of its {len(wrong)} files can be read. {told}")


def _left_out(name: str, error: TraceError) -> str:
    told = str(error).split(": ", 1)[-1]
    return f"{name} beside it was left out: {told.split('; ')[0].split('. ')[0].rstrip('.')}"
