"""The files of a job by rank: found, numbered, and checked to be of one run.

`trace_files` expands paths, `readable` sorts out what could not be read, and `job` gives every file
a rank (`_numbered` says how), leaves out copies and notes missing ranks. `check_one_run` refuses
traces that do not belong together: no comparison would mean anything.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path

from gpuprof_widgets.analyses.collectives import SYNCHRONISING, ranks_text
from gpuprof_widgets.analyses.ranks.matching import SURE, TOLERANCE_NS, links, matched
from gpuprof_widgets.analyses.ranks.reduced import FUNCTION_TIMES, ReducedRank, joined
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import remote
from gpuprof_widgets.trace.pstats import FUNCTION_KEY
from gpuprof_widgets.trace.readers.spans import worker_in_name
from gpuprof_widgets.trace.remote import RemotePath, path_of
from gpuprof_widgets.trace.schema import NONE

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Part = tuple[Path, ReducedRank]
"""A file and its reduced content."""

SUFFIXES = (
    *(".json", ".json.gz", ".json.zst", ".json.xz", ".gpuprof", ".zip"),
    *(".nvprof", ".sqlite", ".cprofile", ".prof", ".pstats"),
)
"""Endings of files that are taken for traces in a folder; others can be named one by one."""

NAMED = 3
"""Files that a note names, of many."""

RANGES = 8
"""Ranges of missing ranks that a note names, of many."""

APART_NS = 3_600_000_000_000
"""An hour: clocks of machines that work together are wrong by less, time zones do not matter."""

_UNFINISHED = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.unfinished")
"""The name of a file that a process was writing when it was killed (see `write_whole`)."""

_SAYS_RANK, *_LESS_SURE = _IN_NAME = [
    re.compile(rf"(?<![a-z]){pattern}", re.IGNORECASE)
    for pattern in (
        r"(?<!local[-_.])rank[-_.]?(\d{1,5})(?!\d)",
        r"worker[-_.]?(\d{1,5})(?!\d|_\d)",
        r"r(\d{1,5})(?![a-z\d])",
    )
]
"""``rank3``, ``worker3``, ``r3``: the surest first. More than five digits are a date or a host."""

_AT_THE_END = re.compile(
    r"(?<!step)(?<!epoch)(?<!iter)(?<!iteration)(?<!\d)[-_.](\d{1,3})"
    rf"(?:{'|'.join(map(re.escape, SUFFIXES))})$"
)
"""``report.3.nvprof``, as ``%q{OMPI_COMM_WORLD_RANK}`` names it; with more digits, a process."""

_PACKED = re.compile(r"\.(?:gz|zst|xz)$")


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
    """Return the traces in a folder, the files that match a glob, or the one file."""
    if _is_folder(path):
        files = [file for file in _files_in(path) if _is_trace(file)]
        if not files:
            raise TraceError(
                f"{path}: no trace in this folder (no {', '.join(SUFFIXES)}); name the folder in "
                'which they are, or a glob such as "traces/*/*.pt.trace.json"'
            )
        return files
    files = [path]
    if isinstance(path, RemotePath):
        if remote.is_pattern(path):
            files = list(remote.matching(path))
    elif any(mark in str(path) for mark in "*?[") and not path.exists():
        root = Path(path.anchor)
        files = [file for file in root.glob(str(path.relative_to(root))) if file.is_file()]
    if not files:
        raise TraceError(f"{path}: no file matches; check the pattern and the folder it is in")
    return files


def _is_folder(path: Path) -> bool:
    if isinstance(path, RemotePath):  # asking about every file would take long
        is_file = path.name.endswith(SUFFIXES) and not path.url.endswith("/")
        return not is_file and remote.is_folder(path)
    return path.is_dir()


def _files_in(folder: Path) -> list[Path]:
    if isinstance(folder, RemotePath):
        return [*remote.files_in(folder)]
    return [file for file in folder.iterdir() if file.is_file()]


def left_out(paths: Paths) -> list[str]:
    """Return notes on other files in the folders: unfinished ones, and those that are no traces."""
    folders = [path for path in _expanded(paths) if _is_folder(path)]
    files = sorted((file for folder in folders for file in _files_in(folder)), key=_natural)
    notes = [
        f"{match['name']} was not finished: its process ended while it wrote {match[0]}"
        for file in files
        if (match := _UNFINISHED.fullmatch(file.name))
    ]
    others = [f.name for f in files if not f.name.startswith(".") and not _is_trace(f)]
    if others:
        were = "was" if len(others) == 1 else "were"
        notes.append(f"{_listed(others)} {were} left out: no trace has such a name")
    return notes


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


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
    notes = []
    for file, error in wrong:  # without the path before the message and the advice behind it
        reason = str(error).split(": ", 1)[-1].split("; ")[0].rstrip(".")
        notes.append(f"{file.name} was left out: {reason}")
    parts = [(file, part) for file, part in pairs if isinstance(part, ReducedRank)]
    files_with: dict[str, list[str]] = defaultdict(list)
    for file, part in parts:
        for note in part.notes:
            files_with[note].append(file.name)
    for note, (first, *more) in files_with.items():
        notes.append(f"{first}{f' and {len(more):,} more' if more else ''}: {note}")
    return parts, notes


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
    same = Counter(path.name for path, _ in parts)  # these are named with their folders
    folder = {path: f"{path.parent.name}/" if same[path.name] > 1 else "" for path, _ in parts}
    named = [(path, replace(part, sources=(folder[path] + path.name,))) for path, part in parts]
    groups = _numbered(named, notes.append)
    by_rank: dict[int, list[Part]] = defaultdict(list)
    for group in groups:
        for path, part in group.files:
            breakdown = part.breakdown.assign(rank=group.rank)
            part = replace(part, rank=group.rank, breakdown=breakdown)
            by_rank[group.rank].append((path, part))
    kept = {rank: _without_copies(rank, by_rank[rank], notes.append) for rank in sorted(by_rank)}
    ranks = tuple(joined([part for _, part in files]) for files in kept.values())
    files = {rank: tuple(path for path, _ in rank_parts) for rank, rank_parts in kept.items()}
    result = Job(ranks, files, ())
    check_one_run(result.timed)
    _note_missing(result, groups, notes.append)
    return replace(result, notes=tuple(notes))


@dataclass(eq=False)
class _Group:
    """Files of one rank; ``known``: the number is no guess, or the name says that it is a rank."""

    files: list[Part]
    rank: int = NONE
    known: bool = False

    @property
    def stated(self) -> int:
        return max(part.rank for _, part in self.files)

    @property
    def name(self) -> str:
        return self.files[0][1].sources[0]

    @property
    def in_names(self) -> int | None:
        ranks = {rank_in_name(path, part.processes) for path, part in self.files}
        return ranks.pop() if len(ranks) == 1 else None

    def takes(self, file: Part) -> bool:
        """Whether a file may be of this rank and process: nothing in it speaks against that."""
        one_rank = NONE in (file[1].rank, self.stated) or file[1].rank == self.stated
        return one_rank and not any(_at_odds(file, other) for other in self.files)


def _numbered(parts: Sequence[Part], say: Callable[[str], None]) -> list[_Group]:
    """Return the files in groups of one rank each. The order of evidence, here and nowhere else:

    1. The record, where it states its rank (torch's ``distributedInfo``, our recordings). If
       several processes state one rank at the same time, at most one of them has it.
    2. The process: files of one process, by host and process number, are of one rank.
    3. The name of the file or of its folder (`rank_in_name`), unless the names give one number
       twice, or one beyond the number of ranks that the records state.
    4. The order of the names.

    The last two are guesses: they put no two processes together and leave no file out. Only
    cProfile's calls, which have no process, join the timeline whose rank is in their name.
    """
    groups = _grouped(parts)
    claims = Counter(group.stated for group in groups if group.stated != NONE)
    for group in groups:
        if claims[group.stated] == 1:
            group.rank, group.known = group.stated, True
    by_rank = {group.rank: group for group in groups if group.known}
    unsure = [group for group in groups if not group.known]
    by_order = False
    free = (number for number in count() if number not in by_rank)
    for alone in (False, True):
        of_kind = [group for group in unsure if group.files[0][1].has_calls_alone == alone]
        for group, number in _numbers_in_names(of_kind, groups):
            other = by_rank.get(number)
            if other is None and (number == group.stated or not claims[number]):
                by_rank[number], group.rank = group, number
                said = alone or _says_rank(group.files[0][0])
                group.known = said and group.stated in (NONE, number)
            elif (
                alone
                and other is not None
                and number in (other.stated, other.in_names)
                and other.takes(group.files[0])
            ):
                group.rank, group.known = number, other.known
        rest = [group for group in of_kind if group.rank == NONE]
        for group in sorted(rest, key=lambda group: group.stated == NONE):
            number = group.stated if group.stated not in {NONE, *by_rank} else next(free)
            by_rank[number], group.rank, by_order = group, number, True
    _say_how(groups, unsure, by_order, say)
    return groups


def _numbers_in_names(
    unsure: Sequence[_Group], groups: Sequence[_Group]
) -> list[tuple[_Group, int]]:
    """Return the number in the name of each; none at all if one comes twice or is too large."""
    named = [(group, group.in_names) for group in unsure]
    numbered = [(group, number) for group, number in named if number is not None]
    numbers = {number for _, number in numbered}
    world = max(part.world_size for group in groups for _, part in group.files)
    is_too_large = len(groups) <= world <= max(numbers, default=NONE)
    return [] if len(numbers) < len(numbered) or is_too_large else numbered


def _grouped(parts: Sequence[Part]) -> list[_Group]:
    """Return the files in groups by what they state, by their processes, and copies together."""
    groups: list[_Group] = []
    by_key: dict[Hashable, list[_Group]] = defaultdict(list)
    for file in parts:
        keys = list(_keys(*file))
        groups_with_key = (group for key in keys for group in by_key[key])
        group = next((group for group in groups_with_key if group.takes(file)), None)
        if group is None:
            groups.append(group := _Group([]))
        group.files.append(file)
        for key in keys:
            by_key[key].append(group)
    return groups


def _keys(path: Path, part: ReducedRank) -> Iterator[Hashable]:
    """Yield what files of one rank share: their rank, a process, or, of copies, name and times."""
    if part.rank != NONE:
        yield part.rank
    host = part.host or _host_in_name(path, part.processes)
    number = rank_in_name(path, part.processes) if _says_rank(path) else None
    for process in part.processes:
        if host or number is not None:
            yield process, host or number
    yield _PACKED.sub("", str(path)), part.parts, part.slices


def _at_odds(first: Part, second: Part) -> bool:
    """Whether two files cannot be of one process: their times or calls differ, and are no copy."""
    (_, part), (_, other) = first, second
    if part.has_calls_alone or other.has_calls_alone:
        both = len(part.functions) > 0 and len(other.functions) > 0
        calls = [
            one.functions[[*FUNCTION_KEY, *FUNCTION_TIMES]].sort_values(
                FUNCTION_KEY, ignore_index=True
            )
            for one in (part, other)
        ]
        return both and not calls[0].equals(calls[1])
    if part.end_ns <= other.start_ns or other.end_ns <= part.start_ns:
        return False
    hosts = {one.host or _host_in_name(at, one.processes) for at, one in (first, second)} - {""}
    contents = {(one.parts, one.slices, one.processes) for one in (part, other)}
    return len(hosts) > 1 or len(contents) > 1


def _say_how(
    groups: Sequence[_Group], unsure: Sequence[_Group], by_order: bool, say: Callable[[str], None]
) -> None:
    """Note which ranks were guessed, and from what."""
    for rank in sorted({group.stated for group in unsure} - {NONE}):
        rivals = [group for group in unsure if group.stated == rank]
        who = "all traces" if len(rivals) == len(groups) else f"{len(rivals)} traces"
        taken = _listed([f"{group.name} was taken for rank {group.rank}" for group in rivals])
        say(f"{who} say rank {rank}, and they overlap in time: {taken}")
    silent = [group for group in unsure if group.stated == NONE]
    if len(silent) < len(groups):
        for group in silent[:NAMED]:
            say(f"{group.name} does not say its rank, and was taken for rank {group.rank}")
        if more := [group.rank for group in silent[NAMED:]]:
            say(f"{len(more):,} more do not, and were taken for ranks {ranks_text(more)}")
    elif by_order:
        say(
            "the traces do not say their rank, and not every file name has one of its own: such "
            "files were numbered in the order of their names (name them like run.rank3.prof; torch "
            "writes the rank where the process group exists when the profiler stops)"
        )
    else:
        say("the traces do not say their rank: the ranks are taken from the file names")


def rank_in_name(path: Path, processes: Collection[str] = ()) -> int | None:
    """Return the rank in a file name: ``rank3.json``, ``trace_r3.json.gz``, ``report.3.nvprof``.

    Else of the folder ``rank3``. torch's ``host_4242.1700000000.pt.trace.json`` has none, whatever
    the host is called, if 4242 is one of the ``processes`` in the file.
    """
    if _host_in_name(path, processes):
        return None
    found = [pattern.search(path.name) for pattern in (*_IN_NAME, _AT_THE_END)]
    match = next(filter(None, [*found, _SAYS_RANK.search(path.parent.name)]), None)
    return int(match[1]) if match else None


def _says_rank(path: Path) -> bool:
    return any(_SAYS_RANK.search(name) for name in (path.name, path.parent.name))


def _host_in_name(path: Path, processes: Collection[str]) -> str:
    """Return the host in torch's own name of a trace; "" for names that somebody gave."""
    host, _, process = (worker_in_name(path.name) or "").rpartition("_")
    is_process = process in processes if processes else not _SAYS_RANK.search(path.name)
    return host if is_process else ""


def _without_copies(rank: int, files: Sequence[Part], say: Callable[[str], None]) -> list[Part]:
    """Return the files of one rank in order of time, without copies.

    Files of Python calls alone, which have no times, come last, and only if no other has calls.
    """
    kept: list[Part] = []
    timed = [file for file in files if not file[1].has_calls_alone]
    for path, part in sorted(timed, key=lambda file: file[1].start_ns):
        before = kept[-1][1] if kept else None
        if before is not None and part.start_ns < before.end_ns:
            say(f"rank {rank}: {part.sources[0]} is a copy of {before.sources[0]} and was left out")
        else:
            kept.append((path, part))
    if len(kept) > 1:
        say(
            f"rank {rank} has {len(kept)} files, which follow one another in time: "
            f"{_listed([part.sources[0] for _, part in kept])}"
        )
    for path, part in (file for file in files if file[1].has_calls_alone):
        before = next((part for _, part in kept if len(part.functions)), None)
        if before is None:
            kept.append((path, part))
        else:
            say(
                f"rank {rank}: {part.sources[0]} was left out: the Python calls of that rank are "
                f"taken from {before.sources[0]}"
            )
    return kept


def _note_missing(job: Job, groups: Sequence[_Group], say: Callable[[str], None]) -> None:
    """Note the missing ranks: which, if all numbers are known; only how many, if the size is."""
    numbers = [rank.rank for rank in job.ranks]
    known = {group.rank for group in groups if group.known}
    stated = {group.rank for group in groups if group.known and group.rank == group.stated}
    world = max(rank.world_size for rank in job.ranks)
    expected = max(world, max(stated, default=NONE) + 1)
    if known == {*numbers} and 2 * len(numbers) > numbers[-1] + 1:  # else the names mean no ranks
        expected = max(expected, numbers[-1] + 1)
    if missing := max(expected - len(numbers), 0):
        which = ""
        if known == {*numbers} and numbers[-1] < expected:
            edges = pairwise([NONE, *numbers, expected])
            gaps = [[*{low + 1, high - 1}] for low, high in edges if high - low > 1]
            shown = ",".join("-".join(map(str, sorted(gap))) for gap in gaps[:RANGES])
            more = " and others" if len(gaps) > RANGES else ""
            noun, verb = ("rank", "is") if missing == 1 else ("ranks", "are")
            which = f": {noun} {shown}{more} {verb} missing"
        waited = "; time that others waited for a missing rank counts as moving data"
        say(f"{len(numbers)} of {expected:,} ranks are there{which}{waited if job.timed else ''}")
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
    spans = sorted((start, end, rank.rank) for rank in ranks for start, end in rank.parts)
    together: list[set[int]] = []  # ranks with traces within an hour of one another
    reach = 0
    for start, end, rank in spans:
        if not together or start > reach + APART_NS:
            together.append(set())
        together[-1].add(rank)
        reach = max(reach, end)
    if len(_reached(ranks, together)) == len(ranks):
        return
    table = matched(ranks)
    pairs = links(table[table["name"].isin(SYNCHRONISING)])
    # Pairs whose clocks run alike in the collectives that they share.
    together += [{a, b} for a, b, _, spread, n in pairs if n >= SURE and spread <= TOLERANCE_NS]
    known = _reached(ranks, together)
    strangers = [rank for rank in ranks if rank.rank not in known]
    if strangers:
        raise TraceError(
            f"these are not traces of one run: {_when(ranks[0])}, {_when(strangers[0])}, and "
            "no collectives show that they belong together; give the traces that all ranks of one "
            'run recorded together, such as "run/*rank*.json.gz"'
        )


def _reached(ranks: Sequence[ReducedRank], together: Iterable[set[int]]) -> set[int]:
    """Return the ranks that these sets connect to the first one."""
    known, left = {rank.rank for rank in ranks[:1]}, list(together)
    while touching := [group for group in left if group & known]:
        known = known.union(*touching)
        left = [group for group in left if group not in touching]
    return known


def _when(rank: ReducedRank) -> str:
    start = datetime.fromtimestamp(rank.parts[0][0] / 1e9, UTC)
    return f"{rank.sources[0]} was recorded on {start:%Y-%m-%d at %H:%M} UTC"
