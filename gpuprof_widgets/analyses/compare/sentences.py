"""Findings of a comparison: the step or run as a whole first, then what made the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share, signed_ns
from gpuprof_widgets.analyses.compare import source, tables
from gpuprof_widgets.analyses.compare.labels import device_names
from gpuprof_widgets.analyses.compare.line_matching import NUMBER, cells_without_text
from gpuprof_widgets.analyses.compare.measured import QUANTITIES, ops, python_recorder
from gpuprof_widgets.analyses.compare.tables import (
    ADDED,
    GONE,
    MEASURE,
    NOISE,
    SAME,
    Runs,
)
from gpuprof_widgets.analyses.compare.whole import (
    SAME_TIME,
    STEPS,
    Change,
    change_of,
    differ,
    means_agree,
    whole,
)
from gpuprof_widgets.analyses.findings.finding import Finding, code
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED

LEAST_SHARE = 0.01
"""Share of a step (or run) of A: smaller differences are in the tables only."""
KINDS = {
    "Where it went": "The time in",
    "Ops": "The op",
    "Kernels": "The kernel",
    "Lines": "The line",
    "Functions": "The function",
}
"""What a title calls a row of the table, by the heading of the sentence."""
NAMED = 4
"""Differences that one sentence names."""
OUTSIDE_SHARE = 0.1
"""Share of the time of all ops that, outside of the steps, is worth mentioning."""

RECORDED = (
    *("stack", "python", "memory", "shapes", "lines", "modules", "workers", "sync", "flops"),
)
"""Options that cost time while a cell runs."""
OFF = (False, "none", "off", "")


def comparison_findings(runs: Runs) -> list[Finding]:
    """Return the sentences: the step or run as a whole, unlike recordings, and the causes.

    Differences within the spread of the steps are no causes.
    """
    if sentence := _no_trace_sentence(runs):
        without = Finding(sentence, rule="whole", title="Without a trace nothing can be compared")
        return _functions_without_trace(runs) or [without]
    first = whole(runs)
    if not differ(runs):
        return [first, *_source(runs), *_not_alike(runs)]
    on_cpu = tables.ops(runs, "cpu_self")
    ops = tables.ops(runs, None)
    causes = (
        _moved(runs, "Where it went", _class_names(tables.classes(runs))),
        _moved(runs, "Ops", ops),
        _moved(runs, "Ops", on_cpu) if ops.attrs[MEASURE] != "cpu_self" else None,
        _moved(runs, "Kernels", tables.kernels(runs)),
        _moved(runs, "Lines", _coded_lines(tables.lines(runs, "cpu_self"))),
        None if len(on_cpu) else _moved(runs, "Functions", tables.functions(runs)),
    )
    return [
        first,
        *_source(runs),
        *_not_alike(runs),
        *_lines_by_number(runs),
        *(cause for cause in causes if cause is not None),
    ]


def _no_trace_sentence(runs: Runs) -> str:
    """Return a sentence about runs without a trace (cProfile's files); "" where both have one."""
    empty = [name for name, run in (("A", runs.a), ("B", runs.b)) if not len(run.trace)]
    if not empty:
        return ""
    verb = "hold" if len(empty) > 1 else "holds"
    return f"{' and '.join(empty)} {verb} no trace, so nothing can be compared."


def _functions_without_trace(runs: Runs) -> list[Finding]:
    """Compare runs without a trace: all of Python's time, and the functions that changed."""
    table = tables.functions(runs)
    if not len(table):
        return []
    a, b = (int(table[column].sum()) for column in ("total_a_ns", "total_b_ns"))
    share = abs(b - a) / max(a, 1)
    title = f"B's Python functions take {Change(a, b).words()}" if a != b else SAME_TIME
    text = (
        f"{title}: {format_ns(a)} → {format_ns(b)} "
        f"({_recorders_without_steps(runs)}: noise and change cannot be distinguished)."
        if a != b
        else f"No difference: the Python functions of both take {format_ns(a)}."
    )
    first = Finding(text, cost_ns=abs(b - a), share=share, rule="whole", title=title)
    moved = _moved(runs, "Functions", table, whole_ns=float(a))
    unlike = _recorder_findings(runs)
    return [first, *unlike, *filter(None, [moved])]


def _recorders_without_steps(runs: Runs) -> str:
    names = dict.fromkeys(python_recorder(run) or "another program" for run in (runs.a, runs.b))
    if len(names) > 1:
        return f"by {' and '.join(names)}, of the whole runs"
    return f"by {next(iter(names))}, which has no steps"


def _source(runs: Runs) -> list[Finding]:
    """Say which lines of the source differ, those first whose times differ most, or that none do.

    Where times differ and the code does not, the reader must not take the difference for its work.
    """
    edits = source.edits(runs)
    if not len(edits):
        if not (differ(runs) and source.has_all_of_both(runs)):
            return []
        text = (
            "The recorded code is the same in A and B: the difference comes from elsewhere, such "
            "as warm-up, caches, the data, the machine, or functions that the code calls."
        )
        return [Finding(text, rule="source", title="The recorded code is the same in A and B")]
    moved_ns = edits["delta_ns"].abs().fillna(0).sort_values(ascending=False, kind="stable")
    moved = edits.loc[moved_ns.index]
    named = [_edit(row) for row in moved.head(NAMED).to_dict("records")]
    more = f", and {format_count(len(edits) - NAMED, 'more line')}" if len(edits) > NAMED else ""
    per = "per step" if runs.steps else "of the run"
    text = f"Changed in the source: {', '.join(named)}{more} (wall self time {per})."
    title = f"The source differs in {format_count(len(edits), 'line')}"
    cost = int(moved_ns.iloc[0])
    share = cost / max(change_of(runs).a, 1)
    return [Finding(text, cost_ns=cost, share=share, rule="source", title=title)]


def _edit(row: Mapping[Any, Any]) -> str:
    """Return ``line 3 `x.cpu()` → `x` (−2.10 ms)``."""
    a, b = (code(row[text].strip()) for text in ("code_a", "code_b"))
    if row["source"] == ADDED:
        words = f"line {row['line_b']} {b} is new"
    elif row["source"] == GONE:
        words = f"A's line {row['line_a']} {a} is gone"
    else:
        words = f"line {row['line_b']} {a} → {b}"
    delta = row["delta_ns"]
    return words if math.isnan(delta) else f"{words} ({signed_ns(delta)})"


def _moved(
    runs: Runs, heading: str, table: pd.DataFrame, *, whole_ns: float | None = None
) -> Finding | None:
    """Name the rows that changed the total most, each with its difference.

    ``whole_ns``: the total; None takes a step or run of A.
    """
    if not len(table):
        return None
    real = table[~table["change"].isin([NOISE, SAME])]
    all_ns = max(whole_ns or change_of(runs).a, 1.0)
    # The self time of steps and of the run is in no op: it is Python's, which the classes show.
    whole_names = (STEPS, runs.a.metadata.get("label"))
    real = real[(real["delta_ns"].abs() >= LEAST_SHARE * all_ns) & ~real["name"].isin(whole_names)]
    if not len(real):
        return None
    named = [_difference(row) for row in real.head(NAMED).to_dict("records")]
    more = f", and {len(real) - NAMED} more" if len(real) > NAMED else ""
    quantities = QUANTITIES.get(heading.lower().removesuffix("s"), {})
    measure = quantities.get(table.attrs.get(MEASURE, ""), "time")
    per = "per step" if runs.steps else "of the run"
    cost = float(real["delta_ns"].abs().max())
    text = f"{heading}: {', '.join(named)}{more} ({measure} {per})."
    most = str(real["name"].iloc[int(real["delta_ns"].abs().to_numpy().argmax())])
    of_what = "" if measure == "time" else f" in {measure}"
    title = f"{KINDS[heading]} {code(most)} changed most{of_what}"
    return Finding(text, cost_ns=int(cost), share=cost / all_ns, rule="moved", title=title)


def _difference(row: Mapping[Any, Any]) -> str:
    words = f"{code(str(row['name']))} {signed_ns(row['delta_ns'])}"
    return words + {ADDED: " (new in B)", GONE: " (gone)"}.get(row["change"], "")


def _coded_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Name lines by their source, redacted ones by their number and, of several cells, their cell.

    Lines that are matched by number are not said to be new or gone.
    """
    if not len(table):
        return table
    number = table["line_b"].where(table["line_b"] >= 0, table["line_a"]).astype(str)
    cells_a = table.loc[table["line_a"] >= 0, "cell_a"]
    cells_b = table.loc[table["line_b"] >= 0, "cell"]
    if max(cells_a.nunique(), cells_b.nunique()) > 1:
        number = number + " of " + table["cell"].astype(str)
    named = table.assign(name=table["code"].where(table["code"] != "", number))
    may_be_there = (named["matched"] == NUMBER) & named["change"].isin([ADDED, GONE])
    return named[~may_be_there]


def _class_names(table: pd.DataFrame) -> pd.DataFrame:
    if not len(table):
        return table
    states = {"busy": "", "idle": "idle: ", "host": ""}
    names = [states.get(s, "") + c for s, c in zip(table["state"], table["class"], strict=True)]
    return table.assign(name=names)


def _not_alike(runs: Runs) -> list[Finding]:
    """Return what differs between the recordings, not between the programs."""
    devices = [device_names(run) for run in (runs.a, runs.b)]
    findings = [*_endings(runs), *_first_run(runs), *_outliers(runs)]
    if all(devices) and devices[0] != devices[1]:
        text = f"A ran on {devices[0]}, B on {devices[1]}."
        findings.append(_unlike(text, "A and B ran on different GPUs"))
    if options := _options_that_differ(runs):
        which = ", ".join(options)
        text = f"A and B were recorded with different options ({which}), which take time too."
        findings.append(_unlike(text, "A and B were recorded with different options"))
    return [*findings, *_recorder_findings(runs), *_outside(runs)]


def _lines_by_number(runs: Runs) -> list[Finding]:
    """Say that lines of the same number may not be the same where their text is not known."""
    table = tables.lines(runs, "cpu_self")
    by_number = table["matched"] == NUMBER
    lacking = {
        name: cells
        for name, run in (("A", runs.a), ("B", runs.b))
        if (cells := cells_without_text(run))
    }
    if not by_number.any():
        return []
    if by_number.all():
        text = (
            f"The text of lines is not known in {' and '.join(lacking)}, as in a redacted profile: "
            "there lines are matched by their number, and what changed in them is not known."
        )
        return [_unlike(text, "Lines are matched by their number")]
    where = " and ".join(f"of {_cells(cells)} in {name}" for name, cells in lacking.items())
    text = (
        f"The text of the lines {where} is not known, as in a redacted profile: they are matched "
        "by their number, and what changed in them is not known."
    )
    return [_unlike(text, "Some lines are matched by their number")]


def _cells(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    named = [*map(code, names[:NAMED]), *more]
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def _endings(runs: Runs) -> list[Finding]:
    """Say which run did not reach its end."""
    ended = []
    for name, run in (("A", runs.a), ("B", runs.b)):
        error = str(run.metadata.get("error") or "").partition(":")[0]
        if error or run.metadata.get("interrupted"):
            how = f"raised {code(error)}" if error else "was interrupted"
            text = f"{name} {how}: it has not done all that the other run did."
            ended.append(_unlike(text, f"{name} did not reach its end"))
    return ended


def _first_run(runs: Runs) -> list[Finding]:
    """Say that A warmed up, where that may be why B is faster."""
    change = change_of(runs)
    if not runs.earlier.a_is_first or change.b >= change.a or not differ(runs):
        return []
    text = (
        "A is the first recorded run of this cell: it may also have paid for warm-up (imports, "
        "allocations, compilation). Run the cell once more before you trust the difference."
    )
    return [_unlike(text, "A is the first recorded run of this cell")]


def _outliers(runs: Runs) -> list[Finding]:
    """Say that single steps make the averages, which differ from the medians then."""
    if runs.steps is None or not differ(runs) or means_agree(runs):
        return []
    times = tables.step_times(runs)
    means = format_ns(float(times[0].mean())), format_ns(float(times[1].mean()))
    slow, slowest = max((float(of.max()), name) for of, name in zip(times, "AB", strict=True))
    text = (
        f"Single slow steps dominate the averages, {means[0]} → {means[1]} (the slowest step of "
        f"{slowest} took {format_ns(slow)}): what follows is about averages."
    )
    return [_unlike(text, "Single slow steps dominate the averages")]


def _unlike(text: str, title: str) -> Finding:
    return Finding(text, rule="unlike", title=title)


def _options_that_differ(runs: Runs) -> list[str]:
    """Return what only one of the runs recorded, as ``stack in B only``."""
    a, b = (_recorded(run) for run in (runs.a, runs.b))
    words = []
    for name in RECORDED:
        if a.get(name) == b.get(name) or not {name} <= a.keys() & b.keys():
            continue
        on = [run for run, options in (("A", a), ("B", b)) if options[name] not in OFF]
        # Both recorded modules, but of different variables.
        both = f"{name} {a[name]} in A and {b[name]} in B"
        words.append(f"{name} in {on[0]} only" if len(on) == 1 else both)
    return words


def _recorded(run: Record) -> dict[str, Any]:
    """Return the run's options as they took effect: stacks replace calls and samples of Python.

    An older record has ``cprofile``, true or false, in place of ``python``.
    """
    options = dict(run.metadata.get("options") or {})
    if "cprofile" in options:
        options.setdefault("python", "cprofile" if options["cprofile"] else "off")
    return options | ({"python": "off"} if options.get("stack") else {})


def _recorder_findings(runs: Runs) -> list[Finding]:
    """Say how to read Python functions that two programs, or a sampler, recorded."""
    table = tables.functions(runs)
    if not len(table):
        return []
    names = [python_recorder(run) or "another program" for run in (runs.a, runs.b)]
    findings = []
    if names[0] != names[1]:
        text = (
            f"{names[0]} recorded A's Python functions, {names[1]} B's: each slows them down in "
            "its own way, so small differences between functions mean nothing."
        )
        findings.append(_unlike(text, "Different programs recorded the Python functions"))
    sampled = [
        run for run, of in zip("AB", (runs.a, runs.b), strict=True) if of.metadata.get(SAMPLED)
    ]
    if sampled and table["change"].isin([ADDED, GONE]).any():
        text = (
            f"{' and '.join(sampled)} {'were' if len(sampled) > 1 else 'was'} sampled: a function "
            "that is new or gone may have run in both, between the samples of one."
        )
        findings.append(_unlike(text, "A sampler may have missed functions"))
    return findings


def _outside(runs: Runs) -> list[Finding]:
    """Say how much of the runs is in no step, where that is much."""
    if runs.steps is None:
        return []
    shares = []
    for run in (runs.a, runs.b):
        times = ops(run, "cpu_self")
        shares.append(float(times.ns[times.step < 0].sum()) / max(float(times.ns.sum()), 1.0))
    if max(shares) < OUTSIDE_SHARE:
        return []
    parts = [f"{format_share(share)} of {run}'s" for share, run in zip(shares, "AB", strict=True)]
    text = f"Outside of the steps, and so not compared: {' and '.join(parts)} CPU time."
    return [_unlike(text, "Time outside of the steps is not compared")]
