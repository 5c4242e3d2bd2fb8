"""Databases of profilers that store CUPTI's records: nvprof's files and Nsight Systems' exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.databases.nsys import is_nsys, read_nsys
from gpuprof_widgets.trace.databases.nvprof import is_nvprof, read_nvprof
from gpuprof_widgets.trace.databases.readings import LONGEST_NAME, Contents, record_of
from gpuprof_widgets.trace.databases.sqlite_tables import Database, is_sqlite, opened
from gpuprof_widgets.trace.files import without_garbage_collection
from gpuprof_widgets.trace.model import Record

__all__ = ["is_sqlite", "parse_database"]

TABLES_NAMED = 6
"""Tables that the error about an unknown database names at most."""


@dataclass(frozen=True)
class Kind:
    """A profiler's database: how it is recognised by its tables, and how it is read."""

    name: str
    recognises: Callable[[Database], bool]
    read: Callable[[Database], Contents]


KINDS = (
    Kind("nvprof (nvprof -o file.nvprof)", is_nvprof, read_nvprof),
    Kind("Nsight Systems (nsys export --type sqlite file.nsys-rep)", is_nsys, read_nsys),
)


def parse_database(data: bytes, path: Path) -> Record:
    """Return the record of a profiler's SQLite file; metadata and errors name ``path``."""
    with without_garbage_collection(), opened(data, path) as database:
        for kind in KINDS:
            if kind.recognises(database):
                return record_of(kind.read(database), path)
        raise TraceError(
            f"{path}: an SQLite file, but not of a known profiler: its tables are "
            f"{_listed(database.tables)}. What can be read: {'; '.join(k.name for k in KINDS)}."
        )


def _listed(tables: list[str]) -> str:
    if not tables:
        return "none at all"
    more = len(tables) - TABLES_NAMED
    return ", ".join(name[:LONGEST_NAME] for name in tables[:TABLES_NAMED]) + (
        f" and {more} more" if more > 0 else ""
    )
