"""Databases of profilers that store CUPTI's records: nvprof's files and Nsight Systems' exports."""

from __future__ import annotations

from pathlib import Path

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.databases.nsys import is_nsys, read_nsys
from gpuprof_widgets.trace.databases.nvprof import is_nvprof, read_nvprof
from gpuprof_widgets.trace.databases.readings import LONGEST_NAME, record_of
from gpuprof_widgets.trace.databases.sqlite_tables import is_sqlite, opened
from gpuprof_widgets.trace.files import without_garbage_collection
from gpuprof_widgets.trace.model import Record

__all__ = ["is_sqlite", "parse_database"]

KINDS = (
    ("nvprof (nvprof -o file.nvprof)", is_nvprof, read_nvprof),
    ("Nsight Systems (nsys export --type sqlite file.nsys-rep)", is_nsys, read_nsys),
)
"""Each profiler's database: its name, how it is recognised by its tables, and how it is read."""


def parse_database(data: bytes, path: Path) -> Record:
    """Return the record of a profiler's SQLite file; metadata and errors name ``path``."""
    with without_garbage_collection(), opened(data, path) as database:
        for _, recognises, read in KINDS:
            if recognises(database):
                return record_of(read(database), path)
        names = ", ".join(name[:LONGEST_NAME] for name in database.tables[:6]) or "none at all"
        more = f" and {len(database.tables) - 6} more" if len(database.tables) > 6 else ""
        raise TraceError(
            f"{path}: an SQLite file, but not of a known profiler: its tables are {names}{more}. "
            f"What can be read: {'; '.join(name for name, _, _ in KINDS)}."
        )
