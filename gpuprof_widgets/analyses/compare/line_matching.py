"""Match the lines of two runs by their text, as diff does; `by_text` and `source` are made of it.

A line that was edited is matched with what it was: of the lines that diff replaces by others, those
that are alike. Lines of a cell whose text one of the runs lacks, as where it was redacted, are
matched by number.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.compare.matching import ALONE, EXACT, SIMILAR, Pairs
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.owners import LineSource, line_sources
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE

CellLines = list[tuple[int, str]]
"""The lines of a cell, each with its number."""
Place = tuple[str, int]
"""A cell and the number of a line."""

ALIKE = 0.6
"""How much of two texts has to be equal for one to be an edit of the other (difflib's ratio; its
`get_close_matches` takes the same)."""
LONGEST = 400
"""Characters of a line that are looked at, half of them from its end."""
MOST_EDITS = 4_000_000
"""Pairs of characters beyond which lines that diff replaces by others are not looked at as edits:
about 0.2 s."""
MAGIC = "%%gpuprofile"
NUMBER = "number"
"""Value of ``matched``: of a cell whose text is not known in both runs."""


def by_text(
    a: pd.DataFrame, b: pd.DataFrame, sources_a: list[LineSource], sources_b: list[LineSource]
) -> Pairs:
    """Pair lines (``cell``, ``line``, ``code``) of equal or similar text in the same order.

    Those of a cell whose text one of the runs lacks are paired by number: all lines of such cells,
    also those without a counterpart, have "number" as ``matched``. Cells are paired by how much of
    their text is equal, as their numbers change. ``names``: ``cell``, ``code`` and ``line_b`` of b,
    ``cell_a``, ``code_a`` and ``line_a`` of a, ``matched``.
    Where a run has no such line its ``line_`` is -1; ``cell`` and ``code`` are a's for lines of a
    alone, ``cell_a`` and ``code_a`` are "" for lines of b alone.
    """
    texts = _texts(a, sources_a), _texts(b, sources_b)
    cells = _same_cells(*texts)
    numbered_a, numbered_b = _numbered(*texts, cells)
    partner = {
        (cell_b, b_line): (cell_a, a_line)
        for cell_a, cell_b in cells
        for a_line, b_line in _line_pairs(texts[0][cell_a], texts[1][cell_b])
    }
    lines_a = list(zip(a["cell"].astype(str), a["line"].astype(int), a["code"], strict=True))
    rows = [
        (cell, code, NONE, cell, code, line, NUMBER if cell in numbered_a else ALONE)
        for cell, line, code in lines_a
    ]
    place = {(cell, line): row for row, (cell, line, _) in enumerate(lines_a)}
    rows_b = []
    for cell, line, code in zip(
        b["cell"].astype(str), b["line"].astype(int), b["code"], strict=True
    ):
        row = place.get(partner.get((cell, line), ("", NONE)), len(rows))
        is_numbered = cell in numbered_b
        if row == len(rows):
            rows.append((cell, code, line, "", "", NONE, NUMBER if is_numbered else ALONE))
        else:
            cell_a, line_a, code_a = lines_a[row]
            is_edited = code_a and code and code_a.strip() != code.strip()
            how = NUMBER if is_numbered else SIMILAR if is_edited else EXACT
            rows[row] = (cell, code, line, cell_a, code_a, line_a, how)
        rows_b.append(row)
    columns = ["cell", "code", "line_b", "cell_a", "code_a", "line_a", "matched"]
    names = pd.DataFrame(rows, columns=columns)
    texts_of = dict.fromkeys(("cell", "code", "cell_a", "code_a", "matched"), object)
    return Pairs(
        names.astype(texts_of)[["cell", "code", "line_a", "line_b", "cell_a", "code_a", "matched"]],
        np.arange(len(a), dtype=np.int64),
        np.array(rows_b, np.int64),
    )


def paired_lines(a: Record, b: Record) -> pd.DataFrame:
    """Return the ``names`` of `by_text` of all lines of two runs."""
    lines_a, lines_b = (cell_lines(run.trace).lines for run in (a, b))
    return by_text(lines_a, lines_b, line_sources(a), line_sources(b)).names


def other_names(pairs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the slices' names, of a and of b, of `paired_lines` whose texts are not alike.

    They were edited, or one of the runs lacks their text. A name that lines of several cells have
    is left out if they are not all paired with the same text.
    """
    of_a = pairs[pairs["line_a"] != NONE]
    places = zip(of_a["line_a"], of_a["code_a"], of_a["line_b"], of_a["code"], strict=True)
    names: dict[str, str] = {}
    texts: dict[str, set[str]] = {}
    for line_a, code_a, line_b, code_b in places:
        name = line_name(line_a, code_a)
        names[name] = name if line_b == NONE else line_name(line_b, code_b)
        texts.setdefault(name, set()).add(line_text(names[name]))
    return [
        (name, names[name])
        for name, of_b in texts.items()
        if len(of_b) == 1 and of_b != {line_text(name)}
    ]


def numbered_names(pairs: pd.DataFrame) -> list[str]:
    """Return the slices' names, in either run, of `paired_lines` that are matched by number."""
    numbered = pairs[pairs["matched"] == NUMBER]
    names = [
        line_name(line, code)
        for numbers, codes in (("line_a", "code_a"), ("line_b", "code"))
        for line, code in zip(numbered[numbers], numbered[codes], strict=True)
        if line != NONE
    ]
    return list(dict.fromkeys(names))


def line_name(line: int, code: str) -> str:
    """Return what the slices of a line are called: ``3: y = f(x)``, redacted ``3``."""
    return f"{line}: {code.strip()}" if code.strip() else str(line)


def line_text(name: str) -> str:
    """Return the name of a line's slices without the number, unless that is all."""
    number, separator, code = name.partition(": ")
    return code if separator and number.isdecimal() else name


def cells_without_text(run: Record) -> list[str]:
    """Return the cells whose lines ran and whose text the run lacks, in their order."""
    texts = _texts(cell_lines(run.trace).lines, line_sources(run))
    return [cell for cell, lines in texts.items() if _is_unknown(lines)]


def source_pairs(a: list[LineSource], b: list[LineSource]) -> list[tuple[Place, Place]]:
    """Return the lines of each pair of cells in their order, as (cell, line) of a and of b.

    A line that only one run has stands opposite of line -1. Cells without a counterpart, and the
    line of the magic, are left out.
    """
    texts = _source_texts(a), _source_texts(b)
    return [
        ((cell_a, line_a), (cell_b, line_b))
        for cell_a, cell_b in _same_cells(*texts)
        for line_a, line_b in _aligned(texts[0][cell_a], texts[1][cell_b])
    ]


def _source_texts(sources: list[LineSource]) -> dict[str, CellLines]:
    """Return the lines of each cell that the record has, but for the magic's own."""
    return {
        source.name: [
            (source.first + place, line.strip())
            for place, line in enumerate(source.text)
            if place or not line.startswith(MAGIC)
        ]
        for source in sources
    }


def _texts(keys: pd.DataFrame, sources: list[LineSource]) -> dict[str, CellLines]:
    """Return the lines of each cell: all where the record has its text, else those that ran."""
    texts = {cell: lines for cell, lines in _source_texts(sources).items() if lines}
    for cell, group in keys.groupby("cell", sort=False):
        ran = sorted(zip(group["line"], group["code"], strict=True))
        texts.setdefault(str(cell), [(int(line), str(code).strip()) for line, code in ran])
    return texts


def _is_unknown(lines: CellLines) -> bool:
    return not any(text for _, text in lines)


def _same_cells(a: dict[str, CellLines], b: dict[str, CellLines]) -> list[tuple[str, str]]:
    """Return the cells of a and b that have most lines in common, else most edited ones.

    A cell whose text is not known is paired with the one of its name, else by numbers of lines.
    """
    free, pairs = dict(a), {}
    for count, of_one_name in (
        (_equal_lines, False),
        (_matched_lines, False),
        (_equal_numbers, True),
        (_equal_numbers, False),
    ):
        for cell in [cell for cell in b if cell not in pairs]:
            likeness = {
                name: (count(free[name], b[cell]), name == cell)
                for name in free
                if name == cell or not of_one_name
            }
            best = max(likeness, key=lambda name: likeness[name], default=None)
            if best is not None and likeness[best][0] > 0:
                del free[best]
                pairs[cell] = best
    return [(pairs[cell], cell) for cell in b if cell in pairs]


def _numbered(
    a: dict[str, CellLines], b: dict[str, CellLines], pairs: list[tuple[str, str]]
) -> tuple[set[str], set[str]]:
    """Return the cells of a, and of b, whose text is not known in both runs.

    Beside those of which a run lacks the text, a cell without a counterpart is one of them if the
    other run has a cell without text that may be it: one that is paired with none of its own name.
    """
    numbered: tuple[set[str], set[str]] = (set(), set())
    for cell_a, cell_b in pairs:
        if _is_unknown(a[cell_a]) or _is_unknown(b[cell_b]):
            numbered[0].add(cell_a)
            numbered[1].add(cell_b)
    named = {cell_a for cell_a, cell_b in pairs if cell_a == cell_b}
    for side, (cells, others) in enumerate(((a, b), (b, a))):
        alone = cells.keys() - {pair[side] for pair in pairs}
        may_be_there = any(map(_is_unknown, (others[cell] for cell in others.keys() - named)))
        numbered[side].update(cell for cell in alone if may_be_there or _is_unknown(cells[cell]))
    return numbered


def _equal_lines(a: CellLines, b: CellLines) -> int:
    """Return how many lines, which are not empty, are equal and in the same order."""
    texts = [text for _, text in a], [text for _, text in b]
    matcher = difflib.SequenceMatcher(None, *texts, autojunk=False)
    blocks = matcher.get_matching_blocks()
    return sum(bool(text) for at, _, size in blocks for text in texts[0][at : at + size])


def _matched_lines(a: CellLines, b: CellLines) -> int:
    text = dict(a)
    return sum(
        1 for line_a, line_b in _aligned(a, b) if NONE not in (line_a, line_b) and text[line_a]
    )


def _equal_numbers(a: CellLines, b: CellLines) -> int:
    """Return how many numbers of lines two cells have in common of which one lacks its text."""
    return len(_line_pairs(a, b)) if _is_unknown(a) or _is_unknown(b) else 0


def _line_pairs(a: CellLines, b: CellLines) -> list[tuple[int, int]]:
    """Return the numbers of the lines that both cells have; the same where a text is not known."""
    if _is_unknown(a) or _is_unknown(b):
        return [(line, line) for line in dict(a).keys() & dict(b).keys()]
    return [(in_a, in_b) for in_a, in_b in _aligned(a, b) if NONE not in (in_a, in_b)]


def _aligned(a: CellLines, b: CellLines) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the lines of both cells side by side, as diff aligns them; -1: none."""
    texts = [text for _, text in a], [text for _, text in b]
    matcher = difflib.SequenceMatcher(None, *texts, autojunk=False)
    for _, first_a, end_a, first_b, end_b in matcher.get_opcodes():
        next_a, next_b = first_a, first_b
        for at_a, at_b in _edited(texts[0][first_a:end_a], texts[1][first_b:end_b]):
            yield from _apart(a[next_a : first_a + at_a], b[next_b : first_b + at_b])
            yield a[first_a + at_a][0], b[first_b + at_b][0]
            next_a, next_b = first_a + at_a + 1, first_b + at_b + 1
        yield from _apart(a[next_a:end_a], b[next_b:end_b])


def _apart(a: CellLines, b: CellLines) -> Iterator[tuple[int, int]]:
    yield from ((line, NONE) for line, _ in a)
    yield from ((NONE, line) for line, _ in b)


def _edited(a: list[str], b: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions of lines that are equal or alike, in the order of both."""
    a, b = list(map(_ends, a)), list(map(_ends, b))
    if sum(map(len, a)) * sum(map(len, b)) > MOST_EDITS:
        return
    at_b = 0
    for at_a, text in enumerate(a):
        for place in range(at_b, len(b)):
            alike = difflib.SequenceMatcher(None, text, b[place], autojunk=False)
            if text == b[place] or (text and alike.quick_ratio() >= ALIKE <= alike.ratio()):
                yield at_a, place
                at_b = place + 1
                break


def _ends(text: str) -> str:
    """Return a long line without its middle."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else text[:half] + text[-half:]
