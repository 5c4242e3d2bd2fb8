"""Several traces in one folder or archive: those of one worker become one record, others an error.

torch's ``tensorboard_trace_handler`` writes one file per profiled span, named
``worker.span.pt.trace.json``: the worker is host and process, the span a time in ns. Spans are put
one after another. Files of cProfile, one per rank or worker, are added up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.edit import joined, starts_when_joined
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.packing import Member, TooLargeError
from gpuprof_widgets.trace.pstats import only_calls, summed_record

_SPAN_NAME = re.compile(r"(?:.*/)?(.+)\.\d+\.pt\.trace\.json(?:\.\w+)?")
_LISTED = 6


@dataclass(frozen=True)
class Span:
    """A trace among others: the name of its file, and its record."""

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
    members: Sequence[Member], source: Path, read: Callable[[Member], Record], advice: str
) -> Record:
    """Return the record of the traces in a folder or archive, if they are all of one worker.

    Notes name the files that cannot be read. Raises a `TraceError` if none can be read, or if the
    traces are of several workers; the latter names the files and gives ``advice``.
    """
    # Checked before anything is read: a run of many ranks leaves many large files.
    workers = {worker_in_name(member.name) for member in members} - {None}
    if len(workers) > 1:
        sentence = f"by their names they are of {len(workers):,} workers"
        raise TraceError(_several(source, members, sentence, advice))
    spans: list[Span] = []
    errors: list[tuple[str, TraceError]] = []
    for member in members:
        try:
            span = Span(member.name, read(member))
        except TooLargeError:
            raise
        except TraceError as error:
            errors.append((member.name, error))
            continue
        for earlier in spans:
            if reason := _why_not_one(earlier, span):
                sentence = f"{span.name} does not continue {earlier.name}: {reason}"
                raise TraceError(_several(source, members, sentence, advice))
        spans.append(span)
    if not spans and len(errors) == 1:
        raise errors[0][1]
    if not spans:
        texts = " ".join(f"{n}. {error}" for n, (_, error) in enumerate(errors[:_LISTED], 1))
        raise TraceError(f"{source}: none of its {len(errors)} files can be read. {texts}")
    record = spans[0].record if len(spans) == 1 else _together(spans, source)
    reasons = (
        (name, str(error).split(": ", 1)[-1].split("; ")[0].split(". ")[0].rstrip("."))
        for name, error in errors
    )
    return with_notes(record, [f"{name} beside it was left out: {why}" for name, why in reasons])


def with_notes(record: Record, notes: Iterable[str]) -> Record:
    """Return the record with these lines behind its notes."""
    added = list(notes)
    if not added:
        return record
    before = record.metadata.get("notes") or []
    return replace(record, metadata={**record.metadata, "notes": [*before, *added]})


def worker_in_name(name: str) -> str | None:
    """Return the worker in ``worker.span.pt.trace.json``; None for other names."""
    match = _SPAN_NAME.fullmatch(name)
    return match[1] if match else None


def _why_not_one(first: Span, second: Span) -> str:
    """Return why two traces cannot be spans of one worker; "" where they can."""
    if only_calls(first.record) and only_calls(second.record):
        return ""
    if not len(first.record.trace) or not len(second.record.trace):
        return "one of them has no times"
    ranks = [span.record.trace.tracks["rank"].max() for span in (second, first)]
    hosts = [span.record.metadata.get("host") for span in (second, first)]
    for noun, (b, a) in (("rank", ranks), ("host", hosts)):
        if a != b:
            named = (f"no {noun}" if one in (None, -1) else f"{noun} {one}" for one in (b, a))
            return " and ".join(named)
    same_worker = worker_in_name(first.name) and worker_in_name(second.name)
    if not same_worker and not _processes(first.record) & _processes(second.record):
        return "no process is in both"
    if max(first.start_ns, second.start_ns) < min(first.end_ns, second.end_ns):
        return "they were taken at the same time"
    return ""


def _processes(record: Record) -> set[str]:
    tracks = record.trace.tracks
    return set(tracks["process"][tracks["device"] < 0])


def _together(spans: Sequence[Span], source: Path) -> Record:
    """Put spans one after another; add up files of cProfile, which have no times."""
    if all(only_calls(span.record) for span in spans):
        return summed_record({span.name: span.record for span in spans}, str(source))
    spans = sorted(spans, key=lambda span: span.start_ns)
    traces = [span.record.trace for span in spans]
    placed = list(zip(spans, starts_when_joined(traces), strict=True))
    metadata = {
        **spans[0].record.metadata,
        "source": str(source),
        "notes": list(
            dict.fromkeys(str(n) for span in spans for n in span.record.metadata.get("notes") or [])
        ),
        "profiler_spans": [
            {**profiled, "ts_ns": profiled["ts_ns"] + start}
            for span, start in placed
            for profiled in span.record.metadata.get("profiler_spans") or []
        ],
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
    return with_notes(Record(joined(traces), None, metadata), [note])


def _several(source: Path, members: Sequence[Member], sentence: str, advice: str) -> str:
    names = _listed([member.name for member in members])
    return f"{source}: holds {len(members)} traces ({names}), and {sentence}. {advice}."


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")
