"""Broken files through the readers: each ends in a sound record or in one error of ours.

``make fuzz`` runs it for a time, case after case; ``python -m tests.fuzz_readers --case 17`` runs
one again. A case is made from its number alone, so a finding is that number. A process apart does
the reading: what crashes it, takes too long or too much memory is a finding as well.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

import numpy as np

from gpuprof_widgets.analyses import plain_analyses
from gpuprof_widgets.exceptions import GpuprofError, TraceError
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace import scanned_events
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.readers import parse
from tests.fuzz_mutations import broken_bytes, broken_value
from tests.fuzz_seeds import Seed, bad_seeds, seeds
from tests.records import assert_same_record

FILE = Path("a file")
LONGEST_S = 20.0
"""A case takes milliseconds; this long it hangs."""

MOST_GROWTH_KB = 400 << 10
"""Of the process in one case: all seeds are small, and what one may unpack to is 64 MB."""

CASES_PER_PROCESS = 20_000


class UnsoundError(AssertionError):
    """A record that no file can mean."""


def case(number: int) -> tuple[Seed, bytes]:
    """The broken file of this number, and the seed it was made from."""
    rng = random.Random(number)
    every = seeds() if rng.random() < 0.85 else bad_seeds()
    seed = rng.choice(every)
    return seed, broken(seed, rng, every)


def broken(seed: Seed, rng: random.Random, others: Sequence[Seed]) -> bytes:
    """The file of a seed, changed as a value or as bytes; pieces of the others may get into it."""
    if isinstance(seed.content, bytes):
        return broken_bytes(rng, seed.content, [rng.choice(others).data])
    as_value = rng.random() < 0.8
    data = seed.file(broken_value(rng, seed.content) if as_value else seed.content)
    if not as_value or rng.random() < 0.2:
        data = broken_bytes(rng, data, [rng.choice(others).data])
    return data


def check(data: bytes, *, ask: bool = False) -> None:
    """Read it; raises what is no `TraceError`, and `UnsoundError` for a record that cannot be.

    ``ask``: put every question to the record as well, and draw its page.
    """
    try:
        record = parse(data, FILE)
    except TraceError as error:
        _check_words(error)
        return
    check_record(record)
    with mock.patch.object(scanned_events, "_library", return_value=None):
        again = parse(data, FILE)
    try:
        assert_same_record(record, again)
    except AssertionError as difference:
        raise UnsoundError(f"the complete reader reads something else: {difference}") from None
    if ask:
        _check_answers(record)


def _check_answers(record: Record) -> None:
    """Every analysis answers, or refuses in words of ours; so does the page."""
    profile = Profile(record.trace, record.calls, record.metadata, record.calls_of_workers)
    questions = {one.name: partial(one.function, profile) for one in plain_analyses()}
    for name, question in {**questions, "report": profile.report}.items():
        try:
            question()
        except GpuprofError:
            continue
        except Exception as problem:
            raise UnsoundError(f"{name} fails: {problem!r}") from problem


def _check_words(error: TraceError) -> None:
    """The message names the file, and says more; no memory or nesting was exhausted silently."""
    if not str(error).startswith((f"{FILE}: ", f"{FILE}/", f"{FILE}, ")):
        raise UnsoundError(f"the error does not name the file: {str(error)[:200]!r}")
    if isinstance(error.__cause__, MemoryError):
        raise UnsoundError("it ran out of memory") from error


def check_record(record: Record) -> None:
    """Slices in order, within their parents and the trace, on tracks that are there."""
    _check_trace(record.trace)
    notes = record.metadata.get("notes", [])
    if not isinstance(notes, list):
        raise UnsoundError(f"the notes are {notes!r}")
    if record.calls is not None and len(record.calls.edges):
        rows = record.calls.edges[["caller", "callee"]].to_numpy()
        _demand(rows.min() >= 0 and rows.max() < len(record.calls.functions), "calls of nobody")


def _check_trace(trace: Trace) -> None:
    slices = trace.slices
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    track, parent = slices["track"].to_numpy(), slices["parent"].to_numpy()
    end = ts + dur
    _demand((dur >= 0).all() and (end >= ts).all(), "a duration below zero or beyond int64")
    _demand(not len(slices) or (ts.min() >= trace.start_ns and end.max() <= trace.end_ns), "bounds")
    _demand(not len(slices) or (track.min() >= 0 and track.max() < len(trace.tracks)), "tracks")
    order = np.lexsort((-dur, ts, track))
    _demand((np.diff(track) >= 0).all() and (ts[order] == ts).all(), "the order of slices")
    has = np.flatnonzero(parent >= 0)
    above = parent[has]
    _demand((above < has).all() and (track[above] == track[has]).all(), "parents behind or beside")
    for column in ("launch", "op", "forward", "parent"):
        rows = slices[column].to_numpy()
        _demand(((rows >= -1) & (rows < len(slices))).all(), f"{column} of no slice")
    for values in trace.args.values():
        _demand(values.index.isin(slices.index).all(), "args of no slice")
    ends = trace.flows[["source", "target"]].to_numpy()
    _demand(((ends >= 0) & (ends < len(slices))).all(), "flows of no slice")


def _demand(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise UnsoundError(what)


# For a time, in a process apart


def _work(first: int, ask: bool, scanner: Path, sends: Connection) -> None:
    """Run cases from this one on, telling each before it begins, and each finding."""
    scanned_events.LIBRARY = scanner
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first, first + CASES_PER_PROCESS):
        seed, data = case(number)
        sends.send((number, seed.name, ""))
        try:
            check(data, ask=ask)
        except Exception:
            sends.send((number, seed.name, traceback.format_exc()))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if peak - grown > MOST_GROWTH_KB:
            sends.send((number, seed.name, f"it took {(peak - grown) >> 10} MB"))
        grown = max(grown, peak)


def findings(
    seconds: float, first: int, ask: bool, scanner: Path = scanned_events.LIBRARY
) -> Iterator[tuple[int, str, str]]:
    """(number, seed, what happened) of each case that did not end as it should."""
    until = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    number, seed = first, ""
    while time.monotonic() < until:
        receives, sends = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(number, ask, scanner, sends), daemon=True)
        worker.start()
        sends.close()
        try:
            while time.monotonic() < until:
                if not receives.poll(LONGEST_S + 30 * (not seed)):
                    yield number, seed, f"it took more than {LONGEST_S} s"
                    break
                number, seed, told = receives.recv()
                if told:
                    yield number, seed, told
        except EOFError:
            worker.join()
            if worker.exitcode:
                yield number, seed, f"the process died of {worker.exitcode}"
        finally:
            worker.kill()
            worker.join()
        number += 1
    print(f"cases {first} to {number}")


def main() -> int:
    """Print what is found; the exit status is 1 if anything was."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seconds", type=float, default=60)
    words.add_argument("--first", type=int, default=0, help="the number of the first case")
    words.add_argument("--case", type=int, help="run this one alone, here")
    words.add_argument("--ask", action="store_true", help="run every analysis and the page too")
    words.add_argument("--scanner", type=Path, help="a library, as `make sanitize` compiles it")
    given = words.parse_args()
    if given.case is not None:
        seed, data = case(given.case)
        print(f"{seed.name}: {data[:2_000]!r}")
        check(data, ask=given.ask)
        return 0
    found = 0
    scanner = given.scanner or scanned_events.LIBRARY
    for number, name, told in findings(given.seconds, given.first, given.ask, scanner):
        found += 1
        print(f"case {number} ({name}): {told}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
