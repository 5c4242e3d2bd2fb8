"""What cProfile counted in several processes, or wrote into several files, as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.model import Calls, Record

_FUNCTION = ["file", "line", "name"]
_NUMBERS = ["calls", "primitive_calls", "self_ns", "total_ns"]
_ENDING = re.compile(r"(\.(prof|pstats|profile|cprof|gz|zst|bz2|xz))+$")
_SAVED_AS = "cell"
"""The name under which a saved profile has the calls of the whole."""


def added_up(several: Sequence[Calls]) -> Calls:
    """The calls of several processes as one table; functions are the same by file, line, name."""
    if len(several) == 1:
        return several[0]
    every = pd.concat([calls.functions for calls in several], ignore_index=True)
    number = every.groupby(_FUNCTION, sort=False).ngroup().to_numpy()
    functions = every.groupby(_FUNCTION, sort=False, as_index=False)[_NUMBERS].sum()
    functions = functions.astype({"file": object, "name": object})
    edges, first = [], 0
    for calls in several:
        place = number[first : first + len(calls.functions)]
        first += len(calls.functions)
        ends = {end: place[calls.edges[end].to_numpy()] for end in ("caller", "callee")}
        edges.append(calls.edges.assign(**ends))
    pairs = pd.concat(edges, ignore_index=True).groupby(["caller", "callee"], as_index=False)
    ends_as = {"caller": np.int32, "callee": np.int32}
    return Calls(functions, pairs[_NUMBERS].sum().astype(ends_as))


def only_calls(record: Record) -> bool:
    """Whether a record is of a file of cProfile: calls, and no trace."""
    return record.calls is not None and not len(record.trace) and not record.calls_of_workers


def one_of_calls(records: Mapping[str, Record], source: str) -> Record:
    """Files of cProfile added up; each of them stays in ``calls_of_workers``, by its name."""
    calls = [record.calls for record in records.values() if record.calls is not None]
    first = next(iter(records.values()))
    notes = [
        f"{name}: {note}"
        for name, record in records.items()
        for note in record.metadata.get("notes") or []
    ]
    added = f"{len(calls)} files of cProfile ({', '.join(list(records)[:6])}"
    added += f" and {len(calls) - 6} more" if len(calls) > 6 else ""
    told = f"{added}) were added up; calls_of_workers has each of them"
    return Record(
        first.trace,
        added_up(calls),
        {"source": source, "notes": [*notes, told]},
        dict(zip(_labels(records), calls, strict=True)),
    )


def _labels(names: Iterable[str]) -> list[str]:
    """The files' names without their endings, as the files of a saved profile can be called."""
    labels: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.@+-]+", "_", _ENDING.sub("", name)).lstrip("._") or "file"
        label, number = plain, 2
        while label in (*labels, _SAVED_AS):
            label, number = f"{plain}_{number}", number + 1
        labels.append(label)
    return labels
