"""The file that a process writes where it was asked for one by name: no two ranks have the same."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from gpuprof_widgets.capture.ranks.launchers import ProcessRank

PROFILE = (".gpuprof", ".zip")
"""How names of saved profiles end; that of a rank ends with the first."""

_PLACEHOLDER = re.compile("%[rhp%]")


def rank_file(
    name: str | os.PathLike[str], found: ProcessRank | None, endings: Sequence[str] = PROFILE
) -> Path:
    """The file of that rank; ``endings`` are those of the format that is written.

    In the name (not in its folder) ``%r`` is the rank, 0 where there is none, ``%h`` the host,
    ``%p`` the process and ``%%`` a per cent sign. Where there are other ranks and the name does not
    tell them apart, by ``%r`` or by ``%h`` and ``%p`` together, the rank stands before the ending:
    ``run.rank2.gpuprof`` for "run", "run.gpuprof" and "run.zip", ``report.rank2.html``.
    """
    path = Path(name)
    alone = found is None or found.is_alone or _tells_apart(path.name)
    pattern = path.name if alone else _with_rank(path.name, endings)
    values = _of_this_process() | {"%r": str(found.rank if found else 0), "%%": "%"}
    return path.parent / _filled(pattern, values)


def files_of_ranks(name: str | os.PathLike[str], found: ProcessRank | None) -> list[Path]:
    """Of every rank the file of its profile; none where that is not known in this process."""
    if found is None or found.world_size is None or {"%h", "%p"} & _placeholders(Path(name).name):
        return []
    ranks = range(found.world_size)
    return [rank_file(name, ProcessRank(rank, found.world_size)) for rank in ranks]


def name_for_ranks(name: str | os.PathLike[str]) -> Path:
    """The name that all ranks get that this process starts: ``%h`` and ``%p`` are its own."""
    path = Path(name)
    pattern = path.name if "%r" in _placeholders(path.name) else _with_rank(path.name, PROFILE)
    return path.parent / _filled(pattern, _of_this_process())


def _placeholders(name: str) -> set[str]:
    return set(_PLACEHOLDER.findall(name))


def _tells_apart(name: str) -> bool:
    # A process number is of one host, and in containers the same on all of them.
    return "%r" in _placeholders(name) or {"%h", "%p"} <= _placeholders(name)


def _with_rank(name: str, endings: Sequence[str]) -> str:
    length = next((len(end) for end in endings if name.lower().endswith(end)), 0)
    stem, ending = name[: len(name) - length], name[len(name) - length :]
    return f"{stem}.rank%r{PROFILE[0] if endings == PROFILE else ending}"


def _of_this_process() -> dict[str, str]:
    host = re.sub(r"[^\w.-]+", "_", platform.node(), flags=re.ASCII)
    return {"%h": host, "%p": str(os.getpid())}


def _filled(pattern: str, values: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), pattern)
