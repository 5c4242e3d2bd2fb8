"""The source of both runs side by side, with what its lines took."""

from __future__ import annotations

import math

import pandas as pd

from gpuprof_widgets.analyses.compare import tables
from gpuprof_widgets.analyses.compare.line_matching import Place, source_pairs
from gpuprof_widgets.analyses.compare.tables import ADDED, GONE, SAME, Runs
from gpuprof_widgets.analyses.owners import LineSource, line_sources
from gpuprof_widgets.analyses.reasons import LACKS

CHANGED = "changed"
COLUMNS = ("cell", "line_a", "code_a", "line_b", "code_b", "source", "a_ns", "b_ns", "delta_ns")


def source(runs: Runs) -> pd.DataFrame:
    """Return every line of the cells that both runs have, in the order of the text.

    Columns: ``cell`` (b's), ``line_a``, ``code_a``, ``line_b``, ``code_b`` (-1 and "" where a run
    has no such line; with its indentation), ``source`` ("same", "changed", "added", "gone"),
    ``a_ns``, ``b_ns``: wall self times per step or of the run, as in `lines`, NaN for a line that
    the run did not record; ``delta_ns``: their difference, NaN where neither did.
    """
    return runs.once(("source",), lambda: _source(runs))


def _source(runs: Runs) -> pd.DataFrame:
    sources_a, sources_b = line_sources(runs.a), line_sources(runs.b)
    texts_a, texts_b = _texts(sources_a), _texts(sources_b)
    took_a, took_b = _times(runs)
    rows = []
    for a, b in source_pairs(sources_a, sources_b):
        code_a, code_b = texts_a.get(a, ""), texts_b.get(b, "")
        times = took_a.get(a, math.nan), took_b.get(b, math.nan)
        kind = _kind(a, b, code_a.rstrip() == code_b.rstrip())
        delta = _delta(*times)
        rows.append((b[0], a[1], code_a, b[1], code_b, kind, *times, delta))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    if not rows:
        table.attrs[LACKS] = "not both runs have the source of a cell: it was not recorded"
    return table


def _texts(sources: list[LineSource]) -> dict[Place, str]:
    return {
        (source.name, source.first + number): line
        for source in sources
        for number, line in enumerate(source.text)
    }


def _times(runs: Runs) -> tuple[dict[Place, float], dict[Place, float]]:
    """Return what each line of a, and of b, took."""
    table = tables.lines(runs, "cpu_self")
    places = zip(table["cell_a"], table["line_a"], table["cell"], table["line_b"], strict=True)
    took_a, took_b = {}, {}
    for (cell_a, line_a, cell_b, line_b), a_ns, b_ns in zip(
        places, table["a_ns"], table["b_ns"], strict=True
    ):
        if line_a >= 0:
            took_a[(cell_a, line_a)] = float(a_ns)
        if line_b >= 0:
            took_b[(cell_b, line_b)] = float(b_ns)
    return took_a, took_b


def _delta(a_ns: float, b_ns: float) -> float:
    """Return b less a: a line that only one run recorded took no time in the other."""
    if math.isnan(a_ns) and math.isnan(b_ns):
        return math.nan
    return (0 if math.isnan(b_ns) else b_ns) - (0 if math.isnan(a_ns) else a_ns)


def _kind(a: Place, b: Place, are_equal: bool) -> str:
    if a[1] < 0:
        return ADDED
    if b[1] < 0:
        return GONE
    return SAME if are_equal else CHANGED


def has_all_of_both(runs: Runs) -> bool:
    """Whether both runs have the text of all their cells, and each cell is in both."""
    sources = [line_sources(run) for run in (runs.a, runs.b)]
    names = [{source.name for source in of_run if source.text} for of_run in sources]
    paired = {b[0] for _, b in source_pairs(*sources)}
    return len(names[0]) == len(names[1]) == len(paired) == len(sources[0]) == len(sources[1]) > 0


def edits(runs: Runs) -> pd.DataFrame:
    """Return the lines of `source` that differ, without empty lines."""
    table = source(runs)
    has_text = (table["code_a"].str.strip() != "") | (table["code_b"].str.strip() != "")
    return table[(table["source"] != SAME) & has_text]
