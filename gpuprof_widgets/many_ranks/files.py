"""The files of a job by rank: found, numbered, and checked to be of one run.

`trace_files` expands paths, `readable` sorts out what could not be read, and `job` gives every file
a rank, by its content or else by its name, leaves out copies and notes missing ranks.
`check_one_run` refuses traces that do not belong together: no comparison would mean anything.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gpuprof_widgets.analyses.collectives import SYNCHRONISING, ranks_text
from gpuprof_widgets.analyses.ranks.matching import SURE, TOLERANCE_NS, links, matched
from gpuprof_widgets.analyses.ranks.reduced import ReducedRank, joined
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import remote
from gpuprof_widgets.trace.remote import RemotePath, path_of
from gpuprof_widgets.trace.schema import NONE

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Part = tuple[Path, ReducedRank]
"""A file and its reduced content."""

SUFFIXES = (
    *(".json", ".json.gz", ".json.zst", ".json.bz2", ".json.xz", ".gpuprof", ".zip"),
    *(".nvprof", ".sqlite", ".cprofile", ".prof", ".pstats"),
)
"""Endings of files that are taken for traces in a folder; others can be named one by one."""

NAMED = 3
"""Files that a note names, of many."""

APART_NS = 3_600_000_000_000
"""An hour: clocks of machines that work together are wrong by less, time zones do not matter."""

_UNFINISHED = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.unfinished")
"""The name of a file that a process was writing when it was killed (see `write_whole`)."""

_IN_NAME = re.compile(
    r"(?<![a-z])(?:rank[-_.]?|worker[-_.]?(?=\d+(?!\d|_\d))|r(?=\d+(?![a-z\d])))(\d+)",
    re.IGNORECASE,
)
"""``rank3``, ``worker3``, ``r3``. torch names a trace ``host_pid``: ``worker3_4242`` is a host."""

_AT_THE_END = re.compile(rf"[-_.](\d{{1,3}})(?:{'|'.join(map(re.escape, SUFFIXES))})$")
"""``report.3.nvprof``, as ``%q{OMPI_COMM_WORLD_RANK}`` names it; with more digits, a process."""


def trace_files(paths: Paths) -> list[Path]:
    """Return the files of these paths, URLs, globs and folders, each once, in order of their names.

    A folder stands for the traces in it (`SUFFIXES`). Raises a `TraceError` where there is none.
    """
    files = [file for path in _expanded(paths) for file in _files_of(path)]
    unique = list(dict.fromkeys(file.absolute() for file in files))
    if not unique:
        raise TraceError(
            "there are no traces to compare: give the folder with the traces of all ranks, a glob "
            'such as "run.rank*.gpuprof", or their paths'
        )
    return sorted(unique, key=_natural)


def _expanded(paths: Paths) -> list[Path]:
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [path_of(path).expanduser() for path in given]


def _files_of(path: Path) -> list[Path]:
    if _is_folder(path):
        inside = [file for file in _files_in(path) if _is_trace(file)]
        if not inside:
            raise TraceError(
                f"{path}: no trace in this folder (no {', '.join(SUFFIXES)}); name the folder in "
                'which they are, or a glob such as "traces/*/*.pt.trace.json"'
            )
        return inside
    if _is_pattern(path):
        matching = _matching(path)
        if not matching:
            raise TraceError(f"{path}: no file matches; check the pattern and the folder it is in")
        return matching
    return [path]


def _is_folder(path: Path) -> bool:
    if isinstance(path, RemotePath):  # asking about every file would take long
        is_file = path.name.endswith(SUFFIXES) and not path.url.endswith("/")
        return not is_file and remote.is_folder(path)
    return path.is_dir()


def _files_in(folder: Path) -> list[Path]:
    if isinstance(folder, RemotePath):
        return [*remote.files_in(folder)]
    return [file for file in folder.iterdir() if file.is_file()]


def _is_pattern(path: Path) -> bool:
    if isinstance(path, RemotePath):
        return remote.is_pattern(path)
    return any(mark in str(path) for mark in "*?[") and not path.exists()


def _matching(pattern: Path) -> list[Path]:
    if isinstance(pattern, RemotePath):
        return [*remote.matching(pattern)]
    root = Path(pattern.anchor)
    return [file for file in root.glob(str(pattern.relative_to(root))) if file.is_file()]


def left_out(paths: Paths) -> list[str]:
    """Return notes on other files in the folders: unfinished ones, and those that are no traces."""
    folders = [path for path in _expanded(paths) if _is_folder(path)]
    files = sorted((file for folder in folders for file in _files_in(folder)), key=_natural)
    unfinished = filter(None, (_UNFINISHED.fullmatch(file.name) for file in files))
    notes = [
        f"{match['name']} was not finished: its process ended while it wrote {match[0]}"
        for match in unfinished
    ]
    others = [f.name for f in files if not f.name.startswith(".") and not _is_trace(f)]
    if others:
        more = f" and {len(others) - NAMED:,} more" if len(others) > NAMED else ""
        were = "was" if len(others) == 1 else "were"
        named = ", ".join(others[:NAMED])
        notes.append(f"{named}{more} {were} left out: no trace has such a name")
    return notes


def _is_trace(file: Path) -> bool:
    return file.name.endswith(SUFFIXES) and not file.name.startswith(".")


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts rank2 before rank10."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def readable(
    files: Sequence[Path], read: Sequence[ReducedRank | TraceError], *, all_of_them: bool
) -> tuple[list[Part], list[str]]:
    """Return the files that could be read, and notes on those that were unreadable or incomplete.

    Raises the first error where ``all_of_them`` are needed, or where none could be read: a folder
    may hold other things, and a trace that was cut off.
    """
    pairs = list(zip(files, read, strict=True))
    wrong = [(file, error) for file, error in pairs if isinstance(error, TraceError)]
    if wrong and (all_of_them or len(wrong) == len(pairs)):
        raise wrong[0][1]
    notes = [f"{file.name} was left out: {_first_sentence(error)}" for file, error in wrong]
    parts = [(file, part) for file, part in pairs if isinstance(part, ReducedRank)]
    return parts, [*notes, *_reading_notes(parts)]


def _reading_notes(parts: Sequence[Part]) -> list[str]:
    """Return the notes of the files themselves, each once, with the first file that has it."""
    files: dict[str, list[str]] = defaultdict(list)
    for file, part in parts:
        for note in part.notes:
            files[note].append(file.name)
    return [
        f"{first}{f' and {len(more):,} more' if more else ''}: {note}"
        for note, (first, *more) in files.items()
    ]


def _first_sentence(error: TraceError) -> str:
    """Return the message without the path before it and the advice behind it."""
    message = str(error).split(": ", 1)[-1]
    return message.split("; ")[0].rstrip(".")


@dataclass(frozen=True)
class Job:
    """The ranks of a run, each with all of its files, and notes on anything odd or missing.

    ``files``: per rank the files that were read for it, those with a timeline first.
    """

    ranks: tuple[ReducedRank, ...]
    files: dict[int, tuple[Path, ...]]
    notes: tuple[str, ...]

    @property
    def timed(self) -> tuple[ReducedRank, ...]:
        """The ranks with a timeline."""
        return tuple(rank for rank in self.ranks if not rank.has_calls_alone)


def job(parts: Sequence[Part], earlier_notes: Sequence[str] = ()) -> Job:
    """Return the files by rank: a rank's files joined, copies left out, missing ranks noted.

    ``earlier_notes`` come first. Raises a `TraceError` if the files are not of one run.
    """
    notes = list(earlier_notes)
    numbered = _numbered(parts, notes.append)
    by_rank: dict[int, list[Part]] = defaultdict(list)
    for path, part in numbered:
        by_rank[part.rank].append((path, part))
    kept = {rank: _without_copies(rank, by_rank[rank], notes.append) for rank in sorted(by_rank)}
    ranks = tuple(joined([part for _, part in files]) for files in kept.values())
    files = {rank: tuple(path for path, _ in rank_parts) for rank, rank_parts in kept.items()}
    result = Job(ranks, files, ())
    check_one_run(result.timed)
    _note_missing(result, notes.append)
    return replace(result, notes=tuple(notes))


def _numbered(parts: Sequence[Part], say: Callable[[str], None]) -> list[Part]:
    """Return every file with its rank: from the trace, else from its name, else by its position."""
    known = {part.rank for _, part in parts}
    names = [rank_in_name(path) for path, _ in parts]
    if known == {NONE}:
        return _by_name_or_order(parts, names, "the traces do not say their rank", say)
    if NONE in known:
        return _with_the_free_numbers(parts, names, say)
    if len(known) == 1 and len(parts) > 1 and _at_one_time(parts):
        why = f"all traces say rank {known.pop()}, and they overlap in time"
        return _by_name_or_order(parts, names, why, say)
    return list(parts)


def _at_one_time(parts: Sequence[Part]) -> bool:
    """Whether all traces overlap in time, and none is a copy of another."""
    spans = {part.parts[0] for _, part in parts}
    latest, earliest = max(start for start, _ in spans), min(end for _, end in spans)
    return len(spans) == len(parts) and latest < earliest


def _by_name_or_order(
    parts: Sequence[Part], names: Sequence[int | None], why: str, say: Callable[[str], None]
) -> list[Part]:
    if all(name is not None for name in names):
        say(f"{why}: the ranks are taken from the file names")
        return _with_ranks(parts, [name for name in names if name is not None])
    say(
        f"{why}, and not every file name has a rank: the files were numbered in the order of "
        "their names (name them like run.rank3.prof; torch writes the rank where the process group "
        "exists when the profiler stops)"
    )
    return _with_ranks(parts, range(len(parts)))


def _with_ranks(parts: Sequence[Part], ranks: Sequence[int]) -> list[Part]:
    pairs = zip(parts, ranks, strict=True)
    return [(path, _as_rank(part, rank)) for (path, part), rank in pairs]


def _with_the_free_numbers(
    parts: Sequence[Part],
    names: Sequence[int | None],
    say: Callable[[str], None],
) -> list[Part]:
    """Return the files with ranks; where a trace has none, from its name or the lowest free one."""
    taken = {part.rank for _, part in parts}
    result = []
    for (path, part), name in zip(parts, names, strict=True):
        rank = part.rank
        if rank == NONE:
            free = next(number for number in range(len(parts) + 1) if number not in taken)
            fits = name is not None and (part.has_calls_alone or name not in taken)
            rank = name if name is not None and fits else free
            taken.add(rank)
            say(f"{path.name} does not say its rank, and was taken for rank {rank}")
        result.append((path, _as_rank(part, rank)))
    return result


def _as_rank(part: ReducedRank, rank: int) -> ReducedRank:
    if part.rank == rank:
        return part
    return replace(part, rank=rank, breakdown=part.breakdown.assign(rank=rank))


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file name: ``rank3.json``, ``trace_r3.json.gz``, ``report.3.nvprof``."""
    match = _IN_NAME.search(path.name) or _AT_THE_END.search(path.name)
    return int(match[1]) if match else None


def _without_copies(rank: int, files: Sequence[Part], say: Callable[[str], None]) -> list[Part]:
    """Return the files of one rank in order of time, without files that overlap an earlier one.

    Files of Python calls alone, which have no times, come last, and only if no other has calls.
    """
    timed = [file for file in files if not file[1].has_calls_alone]
    kept = _one_after_another(rank, timed, say)
    for path, part in (file for file in files if file[1].has_calls_alone):
        before = next((path for path, part in kept if len(part.functions)), None)
        if before is None:
            kept.append((path, part))
        else:
            say(
                f"rank {rank}: {path.name} was left out: the Python calls of that rank are taken "
                f"from {before.name}"
            )
    return kept


def _one_after_another(rank: int, files: Sequence[Part], say: Callable[[str], None]) -> list[Part]:
    kept: list[Part] = []
    for path, part in sorted(files, key=lambda file: file[1].start_ns):
        before = kept[-1][1] if kept else None
        if before is not None and part.start_ns < before.end_ns:
            same = part.parts == before.parts and part.slices == before.slices
            relation = "is a copy of" if same else "is of the same rank and time as"
            say(f"rank {rank}: {path.name} {relation} {kept[-1][0].name} and was left out")
            continue
        kept.append((path, part))
    if len(kept) > 1:
        say(f"rank {rank} has {len(kept)} files, which follow one another in time")
    return kept


def _note_missing(job: Job, say: Callable[[str], None]) -> None:
    numbers = [rank.rank for rank in job.ranks]
    world = max(rank.world_size for rank in job.ranks)
    expected = max(world, max(numbers) + 1)
    missing = sorted(set(range(expected)) - set(numbers))
    if missing:
        noun, verb = ("rank", "is") if len(missing) == 1 else ("ranks", "are")
        waited = "; time that others waited for a missing rank counts as moving data"
        say(
            f"{len(numbers)} of {expected} ranks are there: {noun} {ranks_text(missing)} {verb} "
            f"missing{waited if job.timed else ''}"
        )
    without: dict[str, list[int]] = defaultdict(list)
    for rank in job.ranks:
        if rank.has_calls_alone and job.timed:
            without["Python calls alone, without times, so without a timeline"].append(rank.rank)
        elif not len(rank.collectives) and job.timed:
            without[rank.lacks].append(rank.rank)
    for lack, ranks in without.items():
        say(f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}: {lack}")


def check_one_run(ranks: Sequence[ReducedRank]) -> None:
    """Raise a `TraceError` where some ranks do not belong to the same run.

    Ranks belong together if they were recorded within an hour of each other, or, whatever their
    clocks show, if 5 or more of their collectives end at equal distances to 50 µs.
    """
    if len(ranks) < 2:
        return
    together = _one_run_at_one_time(ranks)
    if len(_reached(ranks, together)) == len(ranks):
        return
    known = _reached(ranks, [*together, *_sharing_collectives(ranks)])
    strangers = [rank for rank in ranks if rank.rank not in known]
    if strangers:
        raise TraceError(
            f"these are not traces of one run: {_when(ranks[0])}, {_when(strangers[0])}, and "
            "no collectives show that they belong together; give the traces that all ranks of one "
            'run recorded together, such as "run/*rank*.json.gz"'
        )


def _one_run_at_one_time(ranks: Sequence[ReducedRank]) -> list[set[int]]:
    """Return sets of ranks that have traces within an hour of one another."""
    spans = sorted((start, end, rank.rank) for rank in ranks for start, end in rank.parts)
    sets: list[set[int]] = []
    reach = spans[0][0]
    for start, end, rank in spans:
        if not sets or start > reach + APART_NS:
            sets.append(set())
        sets[-1].add(rank)
        reach = max(reach, end)
    return sets


def _sharing_collectives(ranks: Sequence[ReducedRank]) -> list[set[int]]:
    """Return pairs of ranks that share collectives, as their clocks run alike in them."""
    table = matched(ranks)
    pairs = links(table[table["name"].isin(SYNCHRONISING)])
    return [{a, b} for a, b, _, spread, n in pairs if n >= SURE and spread <= TOLERANCE_NS]


def _reached(ranks: Sequence[ReducedRank], together: Iterable[set[int]]) -> set[int]:
    """Return the ranks that these sets connect to the first one."""
    known, left = {ranks[0].rank}, list(together)
    while touching := [group for group in left if group & known]:
        known = known.union(*touching)
        left = [group for group in left if group not in touching]
    return known


def _when(rank: ReducedRank) -> str:
    start = datetime.fromtimestamp(rank.parts[0][0] / 1e9, UTC)
    return f"{rank.sources[0]} was recorded on {start:%Y-%m-%d at %H:%M} UTC"
